// Pixels, boxes and text: geometry against answers known by construction, hostile maps and boxes.
#include <cmath>
#include <random>

#include "engine/vision/ctc.h"
#include "engine/vision/image.h"
#include "engine/vision/text_boxes.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar::vision;

namespace {

Image gradient(int width, int height) {
  Image image = std::move(make_image(width, height)).value();
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.at(x, y)[0] = static_cast<uint8_t>(4 * x);
      image.at(x, y)[1] = static_cast<uint8_t>(4 * y);
      image.at(x, y)[2] = static_cast<uint8_t>(2 * (x + y));
    }
  }
  return image;
}

// A map with p inside the rectangle around (cx, cy) turned by `angle`, zero elsewhere.
std::vector<float> map_of(int width, int height, float cx, float cy, float length, float breadth, float angle,
                          float p) {
  std::vector<float> map(static_cast<size_t>(width * height));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const float dx = static_cast<float>(x) - cx, dy = static_cast<float>(y) - cy;
      const float u = dx * std::cos(angle) + dy * std::sin(angle),
                  v = -dx * std::sin(angle) + dy * std::cos(angle);
      if (std::abs(u) <= length / 2 && std::abs(v) <= breadth / 2)
        map[static_cast<size_t>(y * width + x)] = p;
    }
  }
  return map;
}

}  // namespace

TEST_CASE("images of impossible sizes are refused") {
  CHECK_FALSE(make_image(0, 4).ok());
  CHECK_FALSE(make_image(4, -1).ok());
  CHECK_FALSE(make_image(kMaxSide, kMaxSide).ok());
  CHECK_FALSE(resize(gradient(4, 4), 0, 4).ok());
  CHECK_FALSE(center_crop(gradient(4, 4), 5, 4).ok());
}

TEST_CASE("resizing: constants stay, halving a line averages two pixels, one pixel spreads") {
  const Image image = gradient(16, 8);
  const auto half = resize(image, 8, 4);
  REQUIRE(half.ok());
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 8; ++x) CHECK(half->at(x, y)[0] == 8 * x + 2);
  }
  const auto same = resize(image, 16, 8);
  REQUIRE(same.ok());
  CHECK(same->rgb == image.rgb);
  const auto spread = resize(*center_crop(image, 1, 1), 7, 5);
  REQUIRE(spread.ok());
  for (int k = 0; k < 35; ++k) CHECK(spread->rgb[static_cast<size_t>(3 * k)] == spread->rgb[0]);
}

TEST_CASE("a crop of an upright box is that part of the image, a turned box is turned back") {
  const Image image = gradient(40, 30);
  const auto part = crop_quad(image, {{{5, 6}, {25, 6}, {25, 16}, {5, 16}}});
  REQUIRE(part.ok());
  REQUIRE(part->width == 20);
  REQUIRE(part->height == 10);
  for (int y = 0; y < 10; ++y) {
    for (int x = 0; x < 20; ++x) CHECK(part->at(x, y)[0] == image.at(5 + x, 6 + y)[0]);
  }
  // Corners listed from the right: the crop is mirrored back into reading direction, by 180 degrees.
  const auto turned = crop_quad(image, {{{25, 16}, {5, 16}, {5, 6}, {25, 6}}});
  REQUIRE(turned.ok());
  CHECK(turned->at(0, 0)[0] == 100);
  CHECK(turned->at(19, 9)[0] == image.at(6, 7)[0]);
  const auto high = crop_quad(image, {{{5, 2}, {9, 2}, {9, 22}, {5, 22}}});
  REQUIRE(high.ok());
  CHECK(high->width == 20);
  CHECK(high->height == 4);
  const auto pixel = crop_quad(image, {{{3, 3}, {3, 3}, {3, 3}, {3, 3}}});
  REQUIRE(pixel.ok());
  CHECK(pixel->width == 1);
  CHECK_FALSE(crop_quad(image, {{{NAN, 0}, {1, 0}, {1, 1}, {0, 1}}}).ok());
  CHECK_FALSE(crop_quad(image, {{{0, 0}, {1e9f, 0}, {1e9f, 1}, {0, 1}}}).ok());
}

TEST_CASE("turning twice by 180 or four times by 90 degrees changes nothing") {
  const Image image = gradient(5, 3);
  CHECK(rotate_180(rotate_180(image)).rgb == image.rgb);
  Image r = image;
  for (int k = 0; k < 4; ++k) r = rotate_90(r);
  CHECK(r.rgb == image.rgb);
  CHECK(rotate_90(image).at(0, 0)[0] == image.at(4, 0)[0]);
}

TEST_CASE("normalized pixels are channel-major, in the order asked for, padded with zeros") {
  Image image = std::move(make_image(2, 1)).value();
  image.rgb = {255, 0, 51, 0, 255, 102};
  std::vector<float> out(9, 7.f);
  normalize(image, {}, 3, out.data());
  CHECK(out[0] == Approx(51 / 127.5 - 1));  // blue first
  CHECK(out[2] == 0);
  CHECK(out[6] == Approx(1));
  Normalization rgb{{0, 0, 0}, {1, 1, 1}, false};
  normalize(image, rgb, 3, out.data());
  CHECK(out[0] == Approx(1));
}

TEST_CASE("the smallest rectangle around random points touches them and is no larger than the upright one") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> at(0, 100);
  for (int round = 0; round < 200; ++round) {
    std::vector<Point> points(3 + static_cast<size_t>(round) % 20);
    for (Point& p : points) p = {at(random), at(random)};
    const Quad q = smallest_rectangle(points);
    const double w = std::hypot(q[1].x - q[0].x, q[1].y - q[0].y),
                 h = std::hypot(q[3].x - q[0].x, q[3].y - q[0].y);
    float lo_x = 1e9f, hi_x = -1e9f, lo_y = 1e9f, hi_y = -1e9f;
    for (Point p : points) {
      lo_x = std::min(lo_x, p.x), hi_x = std::max(hi_x, p.x), lo_y = std::min(lo_y, p.y),
      hi_y = std::max(hi_y, p.y);
      const double u = ((p.x - q[0].x) * (q[1].x - q[0].x) + (p.y - q[0].y) * (q[1].y - q[0].y)) / w;
      CHECK(u >= -1e-2);
      CHECK(u <= w + 1e-2);
    }
    CHECK(w * h <= (hi_x - lo_x) * (hi_y - lo_y) * 1.001 + 1e-3);
  }
  CHECK(smallest_rectangle({})[0].x == 0);
  CHECK(smallest_rectangle({{3, 4}})[2].y == 4);
}

TEST_CASE("a text region becomes a box grown by its area over its perimeter, scaled to the image") {
  for (const float angle : {0.f, 0.3f, -0.4f}) {
    const auto map = map_of(160, 120, 80, 60, 60, 12, angle, 0.9f);
    const auto boxes = text_boxes(map, 160, 120, 320, 240);
    REQUIRE(boxes.ok());
    REQUIRE(boxes->size() == 1);
    const Quad& q = (*boxes)[0].corners;
    // 60 x 12 grows by 60 * 12 * 1.5 / 144 = 7.5 on each side, twice in the image; +-2 for pixels and
    // rounding.
    CHECK(std::hypot(q[1].x - q[0].x, q[1].y - q[0].y) == Approx(150).margin(5));
    CHECK(std::hypot(q[3].x - q[0].x, q[3].y - q[0].y) == Approx(54).margin(5));
    CHECK(std::atan2(q[1].y - q[0].y, q[1].x - q[0].x) == Approx(angle).margin(0.05));
    CHECK((*boxes)[0].score == Approx(0.9).margin(0.1));
  }
}

TEST_CASE("faint, small and broken regions give no box") {
  CHECK(text_boxes(map_of(64, 64, 30, 30, 30, 10, 0, 0.4f), 64, 64, 64, 64)->empty());
  CHECK(text_boxes(map_of(64, 64, 30, 30, 2, 2, 0, 0.9f), 64, 64, 64, 64)->empty());
  CHECK(text_boxes(std::vector<float>(64, NAN), 8, 8, 8, 8)->empty());
  CHECK(text_boxes(std::vector<float>(64, INFINITY), 8, 8, 8, 8).ok());
  CHECK_FALSE(text_boxes(std::vector<float>(63), 8, 8, 8, 8).ok());
  CHECK_FALSE(text_boxes({}, 0, 0, 8, 8).ok());
}

TEST_CASE("boxes are read line by line") {
  std::vector<float> map(200 * 100);
  for (const auto& [x, y] : std::vector<std::pair<float, float>>{{150, 24}, {40, 20}, {100, 70}, {90, 22}}) {
    const auto one = map_of(200, 100, x, y, 30, 10, 0, 0.95f);
    for (size_t k = 0; k < map.size(); ++k) map[k] = std::max(map[k], one[k]);
  }
  const auto boxes = text_boxes(map, 200, 100, 200, 100);
  REQUIRE(boxes.ok());
  REQUIRE(boxes->size() == 4);
  CHECK((*boxes)[0].corners[0].x < (*boxes)[1].corners[0].x);
  CHECK((*boxes)[1].corners[0].x < (*boxes)[2].corners[0].x);
  CHECK((*boxes)[3].corners[0].y > 40);
}

TEST_CASE("random maps never break the boxes") {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const int width = 1 + static_cast<int>(random() % 40), height = 1 + static_cast<int>(random() % 40);
    std::vector<float> map(static_cast<size_t>(width * height));
    for (float& v : map) v = random() % 50 == 0 ? NAN : static_cast<float>(random() % 1000) / 999.f;
    TextBoxOptions options;
    options.box_threshold = 0.1f;
    const auto boxes = text_boxes(map, width, height, 100, 100, options);
    REQUIRE(boxes.ok());
    for (const TextBox& b : *boxes) {
      for (Point p : b.corners) CHECK((p.x >= 0 && p.x <= 100 && p.y >= 0 && p.y <= 100));
    }
  }
}

TEST_CASE("CTC: repetitions merge, blanks separate, confidence is the mean of what is kept") {
  const auto alphabet = ctc_alphabet({"a", "b"}, 4);
  REQUIRE(alphabet.ok());
  CHECK((*alphabet)[3] == " ");
  const std::vector<float> p = {0, .9f, 0, 0, 0, .8f, 0, 0,   .7f, 0, 0,   0,
                                0, .5f, 0, 0, 0, 0,   0, .6f, 0,   0, .4f, 0};
  const ReadText t = ctc_decode(p, *alphabet);
  CHECK(t.text == "aa b");
  CHECK(t.confidence == Approx((.9 + .5 + .6 + .4) / 4));
  CHECK(ctc_decode({}, *alphabet).text.empty());
  const std::vector<float> nan(4, NAN);
  CHECK(ctc_decode(nan, *alphabet).text.empty());
  CHECK_FALSE(ctc_alphabet({"a"}, 9).ok());
  CHECK(read_dictionary("a\r\nb\n \n") == std::vector<std::string>{"a", "b", " "});
}
