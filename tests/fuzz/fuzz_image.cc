// Any bytes as an image file and, beyond the first two, as a detector's probability map: an error, or pixels
// and boxes that lie inside.
#include <cstring>

#include "clients/cli/image_file.h"
#include "engine/vision/text_boxes.h"
#include "tests/fuzz/target.h"

OAR_FUZZ_TARGET(image) {
  using namespace oar;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // Small sides only: a few bytes may rightly announce a gigabyte of pixels, which is slow, not wrong.
  if (size < 65536) {
    const auto image = cli::decode_image(bytes, "fuzz");
    if (image.ok())
      OAR_CHECK(image->rgb.size() ==
                static_cast<size_t>(image->width) * static_cast<size_t>(image->height) * 3);
  }
  if (size < 6) return 0;
  const int width = 1 + data[0] % 64;
  std::vector<float> map((size - 2) / 4);
  std::memcpy(map.data(), data + 2, map.size() * 4);
  const int height = static_cast<int>(map.size()) / width;
  if (height < 1) return 0;
  map.resize(static_cast<size_t>(width) * static_cast<size_t>(height));
  const auto boxes = vision::text_boxes(map, width, height, 640, 480);
  OAR_CHECK(boxes.ok());
  for (const auto& b : *boxes) {
    for (const auto p : b.corners) OAR_CHECK(p.x >= 0 && p.x <= 640 && p.y >= 0 && p.y <= 480);
  }
  return 0;
}
