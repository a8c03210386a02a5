// Our own storage formats against a second implementation (make_format_goldens.py, bytes and values bit for
// bit), against their error bounds, and against the promises other rooms build on.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quant/format.h"
#include "quant/formats/w4a8.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace oar {
namespace {

const char* const kOwn[] = {"i8_channel",   "i8_g64",    "i8_g128",  "i4_g64",    "i4_g128",
                            "u4_g32",       "u4_g64",    "u4_g128",  "i4_s8_g32", "w4a8_g32",
                            "w4a8_g64",     "w4a8_g128", "mxfp4",    "nvfp4",     "e4m3_channel",
                            "e5m2_channel", "e4m3_g128", "e5m2_g128"};

std::vector<uint8_t> encode_row(Format f, const std::vector<float>& x) {
  std::vector<uint8_t> row(static_cast<size_t>(*f.row_bytes(static_cast<int64_t>(x.size()))));
  f.encode_row(x.data(), static_cast<int64_t>(x.size()), row.data());
  return row;
}

std::vector<float> decode_row(Format f, const std::vector<uint8_t>& row, size_t cols) {
  std::vector<float> x(cols);
  f.decode_row(row.data(), static_cast<int64_t>(cols), x.data());
  return x;
}

TEST_CASE("our formats: the bytes and values of the second implementation") {
  const std::string golden = oar_test::read_file(oar_test::source_path("tests/quant/formats.golden"));
  size_t at = 0;
  const auto take = [&](void* to, size_t n) {
    REQUIRE(n <= golden.size() - at);
    memcpy(to, golden.data() + at, n);
    at += n;
  };
  const auto u32 = [&] {
    uint32_t v;
    take(&v, sizeof v);
    return v;
  };
  size_t seen = 0;
  while (at < golden.size()) {
    std::string name(u32(), ' ');
    take(name.data(), name.size());
    const size_t rows = u32(), cols = u32(), row_bytes = u32();
    CAPTURE(name);
    const auto f = Format::find(name);
    REQUIRE(f.has_value());
    REQUIRE(f->row_bytes(static_cast<int64_t>(cols)) == static_cast<int64_t>(row_bytes));
    std::vector<float> x(rows * cols), y(rows * cols);
    std::vector<uint8_t> bytes(rows * row_bytes);
    take(x.data(), x.size() * 4);
    take(bytes.data(), bytes.size());
    take(y.data(), y.size() * 4);
    for (size_t r = 0; r < rows; ++r) {
      const std::vector<uint8_t> row(bytes.begin() + static_cast<ptrdiff_t>(r * row_bytes),
                                     bytes.begin() + static_cast<ptrdiff_t>((r + 1) * row_bytes));
      const std::vector<uint8_t> got = encode_row(*f, {x.begin() + static_cast<ptrdiff_t>(r * cols),
                                                       x.begin() + static_cast<ptrdiff_t>((r + 1) * cols)});
      for (size_t i = 0; i < row_bytes; ++i) {
        CAPTURE(r, i);
        REQUIRE(static_cast<int>(got[i]) == static_cast<int>(row[i]));
      }
      const std::vector<float> values = decode_row(*f, row, cols);
      for (size_t i = 0; i < cols; ++i) {
        CAPTURE(r, i);
        REQUIRE(values[i] == y[r * cols + i]);  // bit for bit, but for the sign of zero
      }
    }
    ++seen;
  }
  CHECK(seen == std::size(kOwn));
}

TEST_CASE("our formats: frozen bytes") {
  // One row, small enough to read. i4_s8_g32: the first group's step is 255 units of scale = 1/255 ...
  std::vector<float> x(32, 0.0f);
  x[0] = -7.5f;
  x[16] = 3.0f;
  // ... so s = 255 and d = 1: -7.5 is a tie, rounded to the even -8 (level 0); 3 is level 11; 0 is level 8.
  std::vector<uint8_t> row = encode_row(*Format::find("i4_s8_g32"), x);
  CHECK(row[4] == 255);
  CHECK(row[5] == 0xb0);
  CHECK(row[6] == 0x88);
  // mxfp4: 6 is the largest code under 2^0, -0.5 the smallest.
  x[0] = 6.0f;
  x[1] = -0.5f;
  x[16] = 1.0f;
  row = encode_row(*Format::find("mxfp4"), x);
  CHECK(row == std::vector<uint8_t>{127, 0x27, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  // e4m3_channel: 448 is the largest value, so the scale is 1.
  CHECK(encode_row(*Format::find("e4m3_channel"), {448.0f, -1.0f, 0.0f}) ==
        std::vector<uint8_t>{0, 0, 0x80, 0x3f, 0x7e, 0xb8, 0x00});
  // i8_channel: scale 1; 2.5 is a tie, rounded to 2.
  CHECK(encode_row(*Format::find("i8_channel"), {127.0f, -127.0f, 2.5f}) ==
        std::vector<uint8_t>{0, 0, 0x80, 0x3f, 127, 0x81, 2});
}

// |x - decode(encode(x))| per format. step(row, group) is derived from the definition in the header; f16
// rounding of the scale moves the outermost level by at most 2^-11 of the group's largest magnitude, of a
// zero by as much again.
TEST_CASE("our formats: encoding stays within the bound of its definition") {
  std::mt19937 rng(17);
  std::normal_distribution<float> normal;
  for (const char* name : kOwn) {
    CAPTURE(name);
    const Format f = *Format::find(name);
    const std::string n = name;
    const size_t G = f.block_elems() == 1 ? 256 : static_cast<size_t>(f.block_elems()), cols = 256;
    for (int trial = 0; trial < 60; ++trial) {
      std::vector<float> x(cols);
      for (float& v : x) v = normal(rng) * 0.02f;
      const std::vector<float> y = decode_row(f, encode_row(f, x), cols);
      float row_max = 0;
      for (float v : x) row_max = std::max(row_max, std::fabs(v));
      for (size_t g = 0; g < cols; g += G) {
        float lo = x[g], hi = x[g], top = 0;
        for (size_t i = g; i < g + G; ++i) {
          lo = std::min(lo, x[i]), hi = std::max(hi, x[i]), top = std::max(top, std::fabs(x[i]));
        }
        const float f16_slack = std::ldexp(top, -10);
        for (size_t i = g; i < g + G; ++i) {
          float bound = 0;
          if (n.starts_with("i8")) bound = top / 127 / 2;
          else if (n.starts_with("i4_g")) bound = top / 8;  // a whole step at the clipped end
          else if (n.starts_with("u4")) bound = (hi - lo) / 15 / 2 + std::ldexp(hi - lo, -10);
          // Half a step of absmax / 7.5, and 8 levels times the half unit by which the sub-scale was rounded.
          else if (n == "i4_s8_g32") bound = top / 15 + 8 * row_max / (7.5f * 255) / 2;
          // Half a unit of level one, half an integer step, and 7.5 of the half unit that rounding the step
          // costs, with a zero that is rounded as well.
          else if (n.starts_with("w4a8")) {
            const float unit = row_max / 119;
            const float step = std::max(1.0f, (std::max(hi, 0.f) - std::min(lo, 0.f)) / 15 / unit + 0.5f);
            bound = unit * (0.5f + step / 2 + 8 + step / 2);
          } else if (n.starts_with("e4m3")) {
            bound = std::max(std::fabs(x[i]) / 16, std::ldexp(top / 448, -10));
          } else if (n.starts_with("e5m2")) {
            bound = std::max(std::fabs(x[i]) / 8, std::ldexp(top / 57344, -17));
          } else if (n == "mxfp4") {
            bound = top / 4;  // 8 - 6 of 8 at the clipped end; 1/6 elsewhere
          } else if (n == "nvfp4") {
            bound = top / 6 + top / 16;  // half of the gap from 4 to 6, and the scale's rounding
          }
          CAPTURE(i, x[i], y[i], top);
          REQUIRE(std::fabs(x[i] - y[i]) <= bound + f16_slack);
        }
      }
    }
  }
}

// What a format decodes to, it encodes to again, up to the rounding of the scale: a second round trip changes
// values by no more than the scale's own precision.
TEST_CASE("our formats: a second round trip moves little") {
  std::mt19937 rng(19);
  std::normal_distribution<float> normal;
  for (const char* name : kOwn) {
    CAPTURE(name);
    const Format f = *Format::find(name);
    const std::string n = name;
    std::vector<float> x(256);
    for (float& v : x) v = normal(rng);
    const std::vector<float> once = decode_row(f, encode_row(f, x), x.size());
    const std::vector<float> twice = decode_row(f, encode_row(f, once), x.size());
    double moved = 0, error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      moved += std::pow(once[i] - twice[i], 2);
      error += std::pow(once[i] - x[i], 2);
    }
    // Exact where the extreme of a group is itself a code of the format, which fixes the scale.
    const bool fixed_point = n.starts_with("i8") || n.starts_with("e") || n.starts_with("i4_g");
    if (fixed_point) CHECK(moved <= 1e-6 * error);
    else CHECK(moved <= 0.5 * error);
  }
}

TEST_CASE("w4a8: level one stays inside int8 for any weights") {
  std::mt19937 rng(23);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> x(64);
    const float shift = normal(rng) * static_cast<float>(trial % 3);
    for (float& v : x) v = normal(rng) + shift;
    const Format f(&formats::w4a8_g32::kInfo);
    const std::vector<uint8_t> row = encode_row(f, x);
    for (size_t g = 0; g < 2; ++g) {
      formats::W4A8Group<32> b;
      memcpy(&b, row.data() + 4 + g * sizeof b, sizeof b);
      REQUIRE(b.s >= 1);
      REQUIRE(b.s <= 16);
      REQUIRE(b.z <= 15);
      for (int i = 0; i < 32; ++i) {
        const int w8 = (formats::nibble(b.q, i) - b.z) * b.s;
        REQUIRE(w8 >= -128);
        REQUIRE(w8 <= 127);
      }
    }
  }
}

TEST_CASE("f8 blocks repeat a tile's scale: rows of a DeepSeek tensor decode to q * scale exactly") {
  const Format f = *Format::find("e4m3_g128");
  std::vector<uint8_t> row(132);
  const float scale = 0.00123f;
  memcpy(row.data(), &scale, 4);
  for (int q = 0; q < 128; ++q) row[4 + static_cast<size_t>(q)] = static_cast<uint8_t>(q == 127 ? 0 : q);
  const std::vector<float> y = decode_row(f, row, 128);
  for (int q = 0; q < 127; ++q)
    REQUIRE(y[static_cast<size_t>(q)] == to_f32(e4m3{static_cast<uint8_t>(q)}) * scale);
}

TEST_CASE("names of the families") {
  CHECK(Format::find("i4_g32") == Format::find("q4_0"));
  CHECK(Format::find("i8_g32") == Format::find("q8_0"));
  CHECK(Format::find("i4_s8_g32")->bits_per_weight(4096) == Approx(4.25 + 32.0 / 4096));
}

}  // namespace
}  // namespace oar
