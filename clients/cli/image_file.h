// Image files of users: JPEG (grey, YCbCr, RGB, CMYK, YCCK) and PNG (every kind, transparency over white),
// told apart by their first bytes, decoded by libjpeg-turbo and libpng. Files are untrusted: dimensions are
// bounded before memory is taken, damage is an error and not half an image. Images come upright, as the
// camera that took them noted down (exif.h).
#pragma once

#include <string>
#include <string_view>

#include "engine/vision/image.h"

namespace oar::cli {

// `name` is used in messages.
Result<vision::Image> decode_image(std::string_view bytes, const std::string& name);
Result<vision::Image> read_image(const std::string& path);
Status write_png(const vision::Image& image, const std::string& path);

}  // namespace oar::cli
