// Image: 8-bit RGB pixels and what text recognition and classification do to them before a network sees them.
// Pixels have their centers at half-integers, so resizing maps x to (x + 0.5) * scale - 0.5; positions
// outside repeat the border. What it is not: a file format (clients/ decodes JPEG and PNG).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"

namespace oar::vision {

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // height * width * 3, rows from the top

  const uint8_t* at(int x, int y) const {
    return rgb.data() + (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 3;
  }
  uint8_t* at(int x, int y) { return const_cast<uint8_t*>(static_cast<const Image*>(this)->at(x, y)); }
};

inline constexpr int kMaxSide = 32768;

// A black image. INVALID_ARGUMENT unless both sides are 1 to kMaxSide and the pixels fit in 1 GiB.
Result<Image> make_image(int width, int height);

struct Point {
  float x = 0, y = 0;
};
// Corners of a box in pixels: top left, top right, bottom right, bottom left of the text.
using Quad = std::array<Point, 4>;

// Bilinear, without smoothing when shrinking (what the recognizers were trained with).
Result<Image> resize(const Image& image, int width, int height);
// The box as an upright image of its own mean width and height, by perspective and bicubic interpolation
// (Keys, a = -0.75); turned by 90 degrees when it is at least 1.5 times as high as wide.
Result<Image> crop_quad(const Image& image, const Quad& box);
Image rotate_90(const Image& image);  // counterclockwise
Image rotate_180(const Image& image);
// The middle width x height, which must fit.
Result<Image> center_crop(const Image& image, int width, int height);

// As classifiers see images: the short side at 8/7 of the result and the middle of that; the whole image,
// stretched, where `whole`. An image of exactly this size is left as it is.
Result<Image> fitted(const Image& image, int width, int height, bool whole);

// Channel-major floats (x / 255 - mean[c]) / std[c] into out[3][height][row], columns from image.width to
// `row` zero. `bgr`: channel 0 is blue. `mean` and `std` go by channel of the result.
struct Normalization {
  std::array<float, 3> mean{0.5f, 0.5f, 0.5f}, std{0.5f, 0.5f, 0.5f};
  bool bgr = true;
};
void normalize(const Image& image, const Normalization& how, int row, float* out);

// Straight lines of 2 pixels around the box, clipped to the image.
void draw_quad(Image& image, const Quad& box, std::array<uint8_t, 3> color);

}  // namespace oar::vision
