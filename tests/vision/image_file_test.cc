// JPEG and PNG of users: what is decoded, and what broken files say.
#include "clients/cli/image_file.h"

#include <jpeglib.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include "clients/cli/exif.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::cli;

namespace {

vision::Image picture(int width, int height) {
  vision::Image image = std::move(vision::make_image(width, height)).value();
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.at(x, y)[0] = static_cast<uint8_t>(2 * x);
      image.at(x, y)[1] = static_cast<uint8_t>(2 * y);
      image.at(x, y)[2] = static_cast<uint8_t>(x + y);
    }
  }
  return image;
}

// A JPEG of one color of `components` channels.
std::string jpeg_of(int width, int height, J_COLOR_SPACE space, std::initializer_list<uint8_t> color) {
  jpeg_compress_struct info;
  jpeg_error_mgr error;
  info.err = jpeg_std_error(&error);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = static_cast<int>(color.size());
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> row;
  for (int x = 0; x < width; ++x) row.insert(row.end(), color);
  JSAMPROW line = row.data();
  for (int y = 0; y < height; ++y) jpeg_write_scanlines(&info, &line, 1);
  jpeg_finish_compress(&info);
  std::string out(reinterpret_cast<char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return out;
}

void has_color(const std::string& jpeg, int r, int g, int b) {
  const auto image = decode_image(jpeg, "a.jpg");
  REQUIRE_OK(image);
  REQUIRE(image->width == 20);
  REQUIRE(image->height == 12);
  // Quantization at quality 95 moves a flat color by at most 2.
  for (size_t k = 0; k < image->rgb.size(); k += 3) {
    REQUIRE(std::abs(image->rgb[k] - r) <= 2);
    REQUIRE(std::abs(image->rgb[k + 1] - g) <= 2);
    REQUIRE(std::abs(image->rgb[k + 2] - b) <= 2);
  }
}

}  // namespace

TEST_CASE("a PNG comes back as it was written; cut or flipped it is an error or an image, never a crash") {
  const std::string path = oar_test::temp_dir() + "/round.png";
  const vision::Image image = picture(37, 21);
  REQUIRE(write_png(image, path).ok());
  const auto again = read_image(path);
  REQUIRE_OK(again);
  CHECK(again->rgb == image.rgb);
  const std::string whole = oar_test::read_file(path);
  for (size_t n = 0; n < whole.size() - 12;
       ++n) {  // the last twelve bytes are the end mark, which nobody needs
    INFO(n);
    CHECK_FALSE(decode_image(whole.substr(0, n), "cut.png").ok());
  }
  std::mt19937 random(5);
  for (int k = 0; k < 2000; ++k) {
    std::string bytes = whole;
    bytes[random() % bytes.size()] ^= static_cast<char>(1u << (random() % 8));
    const auto r = decode_image(bytes, "flipped.png");
    CHECK((r.ok() || !r.status().message().empty()));
  }
}

TEST_CASE("JPEGs of every color space become RGB") {
  has_color(jpeg_of(20, 12, JCS_RGB, {200, 100, 50}), 200, 100, 50);
  has_color(jpeg_of(20, 12, JCS_GRAYSCALE, {90}), 90, 90, 90);
  // libjpeg marks CMYK as Adobe's, whose inks are inverted: 255 is none.
  has_color(jpeg_of(20, 12, JCS_CMYK, {255, 128, 0, 255}), 255, 128, 0);
  has_color(jpeg_of(20, 12, JCS_CMYK, {255, 255, 255, 100}), 100, 100, 100);
}

TEST_CASE("a JPEG cut anywhere is an error; with flipped bits never a crash") {
  const std::string whole = jpeg_of(64, 48, JCS_RGB, {10, 200, 30});
  REQUIRE(decode_image(whole, "whole.jpg").ok());
  for (size_t n = 0; n + 2 < whole.size(); ++n) {
    INFO(n);
    CHECK_FALSE(decode_image(whole.substr(0, n), "cut.jpg").ok());
  }
  std::mt19937 random(6);
  for (int k = 0; k < 2000; ++k) {
    std::string bytes = whole;
    bytes[random() % bytes.size()] ^= static_cast<char>(1u << (random() % 8));
    const auto r = decode_image(bytes, "flipped.jpg");
    CHECK((r.ok() || !r.status().message().empty()));
  }
}

namespace {

// A TIFF header and a directory of one entry, the orientation.
std::string exif(int orientation, bool little) {
  const auto number = [little](uint32_t v, int bytes) {
    std::string s;
    for (int k = 0; k < bytes; ++k) s += static_cast<char>(v >> (8 * (little ? k : bytes - 1 - k)));
    return s;
  };
  return (little ? "II" : "MM") + number(42, 2) + number(8, 4) + number(1, 2) + number(0x0112, 2) +
         number(3, 2) + number(1, 4) + number(static_cast<uint32_t>(orientation), 2) + number(0, 2) +
         number(0, 4);
}
std::string with_segment(const std::string& jpeg, const std::string& tiff) {
  const std::string body = std::string("Exif\0\0", 6) + tiff;
  const size_t length = body.size() + 2;
  std::string segment = "\xff\xe1";
  segment += static_cast<char>(length >> 8);
  segment += static_cast<char>(length & 255);
  return jpeg.substr(0, 2) + segment + body + jpeg.substr(2);
}

}  // namespace

TEST_CASE("photographs are set upright as EXIF says") {
  // Where the pixel at column 2, row 1 of a 5 x 3 image goes, by the table of the EXIF standard.
  const vision::Image held = picture(5, 3);
  const std::array<std::array<int, 4>, 8> where{{{5, 3, 2, 1},  // width, height, x, y
                                                 {5, 3, 2, 1},
                                                 {5, 3, 2, 1},
                                                 {5, 3, 2, 1},
                                                 {3, 5, 1, 2},
                                                 {3, 5, 1, 2},
                                                 {3, 5, 1, 2},
                                                 {3, 5, 1, 2}}};
  // And where its first pixel goes, which tells all eight apart.
  const std::array<std::array<int, 2>, 8> first{
      {{0, 0}, {4, 0}, {4, 2}, {0, 2}, {0, 0}, {2, 0}, {2, 4}, {0, 4}}};
  for (size_t k = 0; k < 8; ++k) {
    INFO(k + 1);
    const auto seen = upright(held, static_cast<int>(k + 1));
    REQUIRE_OK(seen);
    CHECK(seen->width == where[k][0]);
    CHECK(seen->height == where[k][1]);
    CHECK(std::memcmp(seen->at(where[k][2], where[k][3]), held.at(2, 1), 3) == 0);
    CHECK(std::memcmp(seen->at(first[k][0], first[k][1]), held.at(0, 0), 3) == 0);
  }
  const std::string jpeg = jpeg_of(20, 12, JCS_RGB, {200, 100, 50});
  for (const bool little : {false, true}) {
    const auto turned = decode_image(with_segment(jpeg, exif(6, little)), "turned.jpg");
    REQUIRE_OK(turned);
    CHECK(turned->width == 12);
    CHECK(turned->height == 20);
  }
  // What is damaged counts as upright.
  const std::string whole = exif(6, false);
  for (size_t n = 0; n < whole.size() - 6; ++n) {
    INFO(n);
    CHECK(exif_orientation(with_segment(jpeg, whole.substr(0, n))) == 1);
  }
  CHECK(exif_orientation(with_segment(jpeg, exif(9, true))) == 1);
  CHECK(exif_orientation(std::string("\x89PNG\r\n\x1a\n", 8) + std::string("\0\0\0\x1a", 4) + "eXIf" +
                         exif(8, true)) == 8);
}

TEST_CASE("other files and sizes beyond reason are refused with the file's name") {
  CHECK(decode_image("GIF89a", "a.gif").status().message() ==
        "a.gif: neither JPEG nor PNG; convert the image to one of them");
  CHECK_FALSE(decode_image("", "empty").ok());
  CHECK_FALSE(read_image("/nonexistent/image.png").ok());
  // The header of a PNG of 2^31 - 1 squared pixels.
  std::string huge = oar_test::temp_dir() + "/huge.png";
  REQUIRE(write_png(picture(4, 4), huge).ok());
  std::string bytes = oar_test::read_file(huge);
  for (size_t k : {16u, 20u})
    bytes[k] = '\x7f', bytes[k + 1] = '\xff', bytes[k + 2] = '\xff', bytes[k + 3] = '\xff';
  CHECK_FALSE(decode_image(bytes, "huge.png").ok());
}
