#include "engine/vision/image.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"

namespace oar::vision {
namespace {

// Keys' cubic kernel at distances of t from four neighbours.
void cubic_weights(float t, float w[4]) {
  constexpr float a = -0.75f;
  auto near = [](float x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  auto far = [](float x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  w[0] = far(1 + t);
  w[1] = near(t);
  w[2] = near(1 - t);
  w[3] = 1 - w[0] - w[1] - w[2];
}

uint8_t to_byte(float v) { return static_cast<uint8_t>(std::clamp(std::lround(v), 0L, 255L)); }

// x, y in pixel indices; every neighbour is clamped into the image.
void sample_cubic(const Image& image, float x, float y, uint8_t* out) {
  const float fx = std::floor(x), fy = std::floor(y);
  float wx[4], wy[4];
  cubic_weights(x - fx, wx);
  cubic_weights(y - fy, wy);
  float sum[3] = {};
  for (int j = 0; j < 4; ++j) {
    const int yy = static_cast<int>(
        std::clamp(fy + static_cast<float>(j - 1), 0.f, static_cast<float>(image.height - 1)));
    for (int i = 0; i < 4; ++i) {
      const int xx = static_cast<int>(
          std::clamp(fx + static_cast<float>(i - 1), 0.f, static_cast<float>(image.width - 1)));
      const uint8_t* p = image.at(xx, yy);
      for (int c = 0; c < 3; ++c) sum[c] += wx[i] * wy[j] * static_cast<float>(p[c]);
    }
  }
  for (int c = 0; c < 3; ++c) out[c] = to_byte(sum[c]);
}

// The projective map of the unit rectangle [0, w] x [0, h] onto the box (Heckbert 1989, section 2.2.3):
// (x, y) -> ((a x + b y + c) / (g x + h y + 1), ...).
struct Projection {
  double a, b, c, d, e, f, g, h;
  Point apply(double x, double y) const {
    const double w = g * x + h * y + 1;
    return {static_cast<float>((a * x + b * y + c) / w), static_cast<float>((d * x + e * y + f) / w)};
  }
};
Projection onto(const Quad& q, double width, double height) {
  const double x0 = q[0].x, y0 = q[0].y, x1 = q[1].x, y1 = q[1].y, x2 = q[2].x, y2 = q[2].y, x3 = q[3].x,
               y3 = q[3].y;
  const double dx1 = x1 - x2, dx2 = x3 - x2, sx = x0 - x1 + x2 - x3;
  const double dy1 = y1 - y2, dy2 = y3 - y2, sy = y0 - y1 + y2 - y3;
  const double det = dx1 * dy2 - dx2 * dy1;
  // A box without area has no perspective: an affine map is as good as any.
  const double g = det == 0 ? 0 : (sx * dy2 - dx2 * sy) / det, h = det == 0 ? 0 : (dx1 * sy - sx * dy1) / det;
  return {(x1 - x0 + g * x1) / width,
          (x3 - x0 + h * x3) / height,
          x0,
          (y1 - y0 + g * y1) / width,
          (y3 - y0 + h * y3) / height,
          y0,
          g / width,
          h / height};
}

double distance(Point a, Point b) {
  return std::hypot(static_cast<double>(a.x) - b.x, static_cast<double>(a.y) - b.y);
}

}  // namespace

Result<Image> make_image(int width, int height) {
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide ||
      int64_t{width} * height * 3 > int64_t{1} << 30) {
    return invalid_argument(cat("an image of ", width, " x ", height, " pixels; sides must be 1 to ",
                                kMaxSide, " and the pixels fit in 1 GiB"));
  }
  Image image{width, height, {}};
  image.rgb.resize(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  return image;
}

Result<Image> resize(const Image& image, int width, int height) {
  OAR_ASSIGN(Image out, make_image(width, height));
  if (image.width < 1 || image.height < 1) return invalid_argument("resizing an empty image");
  struct Tap {
    int low, high;
    float t;
  };
  auto taps = [](int from, int to) {
    std::vector<Tap> list(static_cast<size_t>(to));
    const float scale = static_cast<float>(from) / static_cast<float>(to);
    for (int k = 0; k < to; ++k) {
      const float x =
          std::clamp((static_cast<float>(k) + 0.5f) * scale - 0.5f, 0.f, static_cast<float>(from - 1));
      const int low = static_cast<int>(x);
      list[static_cast<size_t>(k)] = {low, std::min(low + 1, from - 1), x - static_cast<float>(low)};
    }
    return list;
  };
  const std::vector<Tap> columns = taps(image.width, width), rows = taps(image.height, height);
  for (int y = 0; y < height; ++y) {
    const Tap r = rows[static_cast<size_t>(y)];
    for (int x = 0; x < width; ++x) {
      const Tap c = columns[static_cast<size_t>(x)];
      const uint8_t *p00 = image.at(c.low, r.low), *p01 = image.at(c.high, r.low),
                    *p10 = image.at(c.low, r.high), *p11 = image.at(c.high, r.high);
      uint8_t* to = out.at(x, y);
      for (int k = 0; k < 3; ++k) {
        const float top = p00[k] + c.t * static_cast<float>(p01[k] - p00[k]);
        const float bottom = p10[k] + c.t * static_cast<float>(p11[k] - p10[k]);
        to[k] = to_byte(top + r.t * (bottom - top));
      }
    }
  }
  return out;
}

Result<Image> crop_quad(const Image& image, const Quad& box) {
  if (image.width < 1 || image.height < 1) return invalid_argument("cropping an empty image");
  for (Point p : box) {
    if (!std::isfinite(p.x) || !std::isfinite(p.y))
      return invalid_argument("a box with a corner that is no number");
  }
  const double w = std::max(distance(box[0], box[1]), distance(box[2], box[3]));
  const double h = std::max(distance(box[0], box[3]), distance(box[1], box[2]));
  if (w > kMaxSide || h > kMaxSide) return invalid_argument("a box larger than any image");
  OAR_ASSIGN(Image out, make_image(std::max(1, static_cast<int>(w)), std::max(1, static_cast<int>(h))));
  const Projection map = onto(box, out.width, out.height);
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const Point p = map.apply(x, y);
      // A degenerate perspective may send a pixel to infinity.
      const float px = std::isfinite(p.x) ? std::clamp(p.x, -2.f, static_cast<float>(image.width + 1)) : 0;
      const float py = std::isfinite(p.y) ? std::clamp(p.y, -2.f, static_cast<float>(image.height + 1)) : 0;
      sample_cubic(image, px, py, out.at(x, y));
    }
  }
  return 2 * out.height >= 3 * out.width ? rotate_90(out) : std::move(out);
}

Image rotate_90(const Image& image) {
  Image out{image.height, image.width, std::vector<uint8_t>(image.rgb.size())};
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) std::copy_n(image.at(image.width - 1 - y, x), 3, out.at(x, y));
  }
  return out;
}

Image rotate_180(const Image& image) {
  Image out{image.width, image.height, std::vector<uint8_t>(image.rgb.size())};
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      std::copy_n(image.at(image.width - 1 - x, image.height - 1 - y), 3, out.at(x, y));
    }
  }
  return out;
}

Result<Image> center_crop(const Image& image, int width, int height) {
  if (width > image.width || height > image.height) {
    return invalid_argument(
        cat("a crop of ", width, " x ", height, " from ", image.width, " x ", image.height));
  }
  OAR_ASSIGN(Image out, make_image(width, height));
  const int left = (image.width - width) / 2, top = (image.height - height) / 2;
  for (int y = 0; y < height; ++y)
    std::copy_n(image.at(left, top + y), static_cast<size_t>(width) * 3, out.at(0, y));
  return out;
}

Result<Image> fitted(const Image& image, int width, int height, bool whole) {
  if (image.width == width && image.height == height) return image;
  if (whole) return resize(image, width, height);
  // Rounding never leaves less than the result.
  const double scale = std::max(8.0 * width / 7.0 / image.width, 8.0 * height / 7.0 / image.height);
  OAR_ASSIGN(const Image small,
             resize(image, std::max(width, static_cast<int>(std::lround(image.width * scale))),
                    std::max(height, static_cast<int>(std::lround(image.height * scale)))));
  return center_crop(small, width, height);
}

void normalize(const Image& image, const Normalization& how, int row, float* out) {
  const auto stride = static_cast<size_t>(row);
  for (int c = 0; c < 3; ++c) {
    const int from = how.bgr ? 2 - c : c;
    const auto k = static_cast<size_t>(c);
    const float scale = 1.f / (255.f * how.std[k]), shift = how.mean[k] / how.std[k];
    for (int y = 0; y < image.height; ++y) {
      float* line = out + (k * static_cast<size_t>(image.height) + static_cast<size_t>(y)) * stride;
      for (int x = 0; x < image.width; ++x)
        line[x] = static_cast<float>(image.at(x, y)[from]) * scale - shift;
      std::fill(line + image.width, line + row, 0.f);
    }
  }
}

void draw_quad(Image& image, const Quad& box, std::array<uint8_t, 3> color) {
  for (size_t k = 0; k < 4; ++k) {
    const Point a = box[k], b = box[(k + 1) % 4];
    const double length = distance(a, b);
    if (!(length < 4.0 * kMaxSide)) continue;
    const int steps = static_cast<int>(length) + 1;
    for (int s = 0; s <= steps; ++s) {
      const float t = static_cast<float>(s) / static_cast<float>(steps);
      const int x = static_cast<int>(a.x + t * (b.x - a.x)), y = static_cast<int>(a.y + t * (b.y - a.y));
      for (int dy = 0; dy < 2; ++dy) {
        for (int dx = 0; dx < 2; ++dx) {
          const int xx = x + dx, yy = y + dy;
          if (xx >= 0 && yy >= 0 && xx < image.width && yy < image.height)
            std::copy_n(color.data(), 3, image.at(xx, yy));
        }
      }
    }
  }
}

}  // namespace oar::vision
