// How a camera was held: EXIF's orientation in a JPEG (segment APP1) or PNG (chunk eXIf), and the image set
// upright by it. Files are untrusted: what is damaged or missing counts as upright.
// https://www.cipa.jp/std/documents/e/DC-X008-Translation-2019-E.pdf, 4.6.4 and 4.6.5
#pragma once

#include <string_view>

#include "engine/vision/image.h"

namespace oar::cli {

// 1 to 8; 1 is upright.
int exif_orientation(std::string_view file);
// The image as it is to be seen: mirrored and turned.
Result<vision::Image> upright(vision::Image image, int orientation);

}  // namespace oar::cli
