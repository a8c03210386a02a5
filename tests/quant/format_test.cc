// Storage formats against frozen bytes, against goldens of an independent implementation
// (make_ggml_goldens.py), and against their own error bounds.
#include "quant/format.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quant/formats/q4_0.h"
#include "quant/formats/q8_0.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace oar {
namespace {

// One row.
std::vector<float> decode(Format f, const std::vector<uint8_t>& blocks) {
  const int64_t n = (static_cast<int64_t>(blocks.size()) - f.head_bytes()) / f.block_bytes();
  std::vector<float> out(static_cast<size_t>(n * f.block_elems()));
  f.info().decode(blocks.data(), 0, n, out.data());
  return out;
}

std::vector<uint8_t> encode(Format f, const std::vector<float>& x) {
  const int64_t n = static_cast<int64_t>(x.size()) / f.block_elems();
  std::vector<uint8_t> out(static_cast<size_t>(f.head_bytes() + n * f.block_bytes()));
  f.info().encode(x.data(), n, out.data());
  return out;
}

Format named(const char* name) {
  const auto f = Format::find(name);
  REQUIRE(f.has_value());
  return *f;
}

TEST_CASE("registry: names are unique, sizes agree") {
  REQUIRE(all_formats().size() >= 23);
  for (const FormatInfo* f : all_formats()) {
    CAPTURE(f->name);
    REQUIRE(Format::find(f->name) == Format(f));
    CHECK(f->bits_per_weight == Approx(8.0 * f->block_bytes / f->block_elems));
    CHECK(f->decode != nullptr);
    CHECK(f->block_bytes % f->alignment == 0);
    CHECK(f->head_bytes % f->alignment == 0);
    if (f->plain) {
      CHECK(f->block_elems == 1);
      CHECK(f->block_bytes * 8 == dtype_bits(f->scalar));
      CHECK(Format::of(f->scalar) == Format(f));
      CHECK(std::string(f->name) == dtype_name(f->scalar));
    } else {
      CHECK(f->scalar == DType::kBytes);
    }
  }
  CHECK_FALSE(Format::find("iq1_s").has_value());
  CHECK_FALSE(Format::find("").has_value());
  CHECK(Format() == Format::f32());
  CHECK_FALSE(Format::f32() == Format::bf16());
}

TEST_CASE("row_bytes is exact or says no") {
  const Format q8 = named("q8_0"), q6k = named("q6_k");
  CHECK(q8.row_bytes(0) == 0);
  CHECK(q8.row_bytes(64) == 68);
  CHECK_FALSE(q8.row_bytes(33).has_value());
  CHECK_FALSE(q8.row_bytes(-32).has_value());
  CHECK(q6k.row_bytes(4096) == 16 * 210);
  CHECK(Format::f32().row_bytes(3) == 12);
  CHECK_FALSE(Format::f32().row_bytes(INT64_MAX).has_value());
  CHECK_FALSE(Format::f32().row_bytes(int64_t{1} << 61).has_value());
  CHECK(Format::f32().row_bytes((int64_t{1} << 61) - 1) == INT64_MAX - 3);
  CHECK_FALSE(q8.row_bytes(INT64_MAX / 32 * 32).has_value());
  const Format channel = named("i8_channel");
  CHECK(channel.row_bytes(5) == 9);
  CHECK(channel.row_bytes(INT64_MAX - 4) == INT64_MAX);
  CHECK_FALSE(channel.row_bytes(INT64_MAX - 3).has_value());
  CHECK(channel.bits_per_weight(32) == 9.0);
}

TEST_CASE("any run of blocks of a row decodes as it does within the row") {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (const FormatInfo* info : all_formats()) {
    if (!info->encode) continue;
    const Format f(info);
    std::vector<float> x(static_cast<size_t>(f.block_elems()) * 7);
    for (float& v : x) v = normal(rng);
    const std::vector<uint8_t> row = encode(f, x);
    const std::vector<float> whole = decode(f, row);
    CAPTURE(f.name());
    for (int64_t first = 0; first < 7; ++first) {
      for (int64_t n = 0; first + n <= 7; ++n) {
        std::vector<float> part(static_cast<size_t>(n * f.block_elems()));
        info->decode(row.data(), first, n, part.data());
        REQUIRE(std::equal(part.begin(), part.end(), whole.begin() + first * f.block_elems()));
      }
    }
  }
}

TEST_CASE("frozen bytes") {
  // q8_0: absmax 127 makes d exactly 1 (f16 0x3c00).
  std::vector<float> x(32, 0.0f);
  x[0] = 127.0f;
  x[1] = -2.5f;  // half away from zero
  x[2] = 0.49999997f;
  x[31] = -127.0f;
  std::vector<uint8_t> expected(34, 0);
  expected[1] = 0x3c;
  expected[2] = 127;
  expected[3] = 0xfd;
  expected[33] = 0x81;
  CHECK(encode(named("q8_0"), x) == expected);

  // q4_0: -8 maps to level 0, so d = 1; zero is level 8.
  x.assign(32, 0.0f);
  x[0] = -8.0f;
  x[16] = 7.0f;
  expected.assign(18, 0x88);
  expected[0] = 0x00;
  expected[1] = 0x3c;
  expected[2] = 0xf0;
  CHECK(encode(named("q4_0"), x) == expected);
  CHECK(decode(named("q4_0"), expected) == x);

  // q5_1: 0..31 are the levels themselves; d = 1, m = 0.
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i);
  const std::vector<uint8_t> blocks = encode(named("q5_1"), x);
  CHECK(std::vector<uint8_t>(blocks.begin(), blocks.begin() + 10) ==
        std::vector<uint8_t>{0x00, 0x3c, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x00, 0x11});
  CHECK(decode(named("q5_1"), blocks) == x);
}

TEST_CASE("goldens of the gguf package") {
  const std::string bytes = oar_test::read_file(oar_test::source_path("tests/quant/ggml_blocks.golden"));
  size_t at = 0;
  const auto take = [&](void* to, size_t n) {
    REQUIRE(n <= bytes.size() - at);
    memcpy(to, bytes.data() + at, n);
    at += n;
  };
  const auto u32 = [&] {
    uint32_t v;
    take(&v, sizeof v);
    return v;
  };
  int decodes = 0, encodes = 0;
  while (at < bytes.size()) {
    const uint32_t kind = u32();
    std::string name(u32(), ' ');
    take(name.data(), name.size());
    const uint32_t count = u32(), block_bytes = u32(), block_elems = u32();
    std::vector<uint8_t> blocks(size_t{count} * block_bytes);
    std::vector<float> x(size_t{count} * block_elems);
    take(blocks.data(), blocks.size());
    take(x.data(), x.size() * sizeof(float));

    CAPTURE(name, kind);
    const Format f = named(name.c_str());
    REQUIRE(f.block_bytes() == static_cast<int>(block_bytes));
    REQUIRE(f.block_elems() == static_cast<int>(block_elems));
    if (kind == 0) {
      ++decodes;
      const std::vector<float> got = decode(f, blocks);
      for (size_t i = 0; i < x.size(); ++i) {
        CAPTURE(i);
        REQUIRE(got[i] == x[i]);  // bit for bit, but for the sign of zero
      }
    } else {
      ++encodes;
      const std::vector<uint8_t> got = encode(f, x);
      for (size_t i = 0; i < blocks.size(); ++i) {
        CAPTURE(i / block_bytes, i % block_bytes);
        REQUIRE(static_cast<int>(got[i]) == static_cast<int>(blocks[i]));
      }
    }
  }
  CHECK(decodes == 18);
  CHECK(encodes == 5);
}

TEST_CASE("block encoders stay within half a step, scale rounding included") {
  struct Bound {
    const char* name;
    int levels;  // steps across the block's range
  };
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  for (const Bound& b :
       {Bound{"q8_0", 254}, Bound{"q4_0", 16}, Bound{"q4_1", 15}, Bound{"q5_0", 32}, Bound{"q5_1", 31}}) {
    CAPTURE(b.name);
    const Format f = named(b.name);
    std::vector<float> x(32 * 200);
    for (float& v : x) v = normal(rng);
    const std::vector<float> y = decode(f, encode(f, x));
    for (size_t block = 0; block < 200; ++block) {
      float lo = 0, hi = 0, extreme = 0;
      for (size_t i = 0; i < 32; ++i) {
        lo = std::min(lo, x[block * 32 + i]);
        hi = std::max(hi, x[block * 32 + i]);
        extreme = std::max(extreme, std::fabs(x[block * 32 + i]));
      }
      const bool symmetric = b.levels % 2 == 0;
      const float step =
          symmetric ? 2 * extreme / static_cast<float>(b.levels) : (hi - lo) / static_cast<float>(b.levels);
      // Half a step; a whole one at the clipped end of the symmetric formats (level `levels` does not exist,
      // except in q8_0). Rounding d and m to f16 moves a value by at most 2^-11 of the range each.
      const float clip = symmetric && b.levels != 254 ? step : step / 2;
      const float bound = clip + 2 * std::ldexp(hi - lo + extreme, -11);
      for (size_t i = 0; i < 32; ++i) REQUIRE(std::fabs(x[block * 32 + i] - y[block * 32 + i]) <= bound);
    }
  }
}

TEST_CASE("encoders take any float without trapping") {
  const float kSpecial[] = {NAN,     INFINITY, -INFINITY, 3.4e38f,  -3.4e38f, 1e-45f,
                            -1e-45f, 0.0f,     -0.0f,     65504.0f, 1.0f};
  for (const FormatInfo* info : all_formats()) {
    if (!info->encode) continue;
    const Format f(info);
    std::vector<float> x(static_cast<size_t>(f.block_elems()) * 64);
    std::mt19937 rng(11);
    for (float& v : x) v = kSpecial[rng() % std::size(kSpecial)];
    CAPTURE(f.name());
    CHECK(decode(f, encode(f, x)).size() == x.size());  // the sanitizers judge
  }
}

TEST_CASE("decoders take any bytes without trapping") {
  std::mt19937 rng(13);
  for (const FormatInfo* info : all_formats()) {
    std::vector<uint8_t> blocks(static_cast<size_t>(info->head_bytes + info->block_bytes * 50));
    for (uint8_t& b : blocks) b = static_cast<uint8_t>(rng());
    CHECK(decode(Format(info), blocks).size() == static_cast<size_t>(info->block_elems) * 50);
  }
}

TEST_CASE("plain formats round-trip and saturate") {
  for (const char* name : {"f32", "f64", "bf16", "f16", "i8", "i16", "i32", "i64"}) {
    CAPTURE(name);
    const std::vector<float> x{0.0f, 1.0f, -1.0f, 100.0f, -128.0f};
    CHECK(decode(named(name), encode(named(name), x)) == x);
  }
  CHECK(decode(named("u8"), encode(named("u8"), {-1.0f, 254.5f, 300.0f, NAN})) ==
        std::vector<float>{0.0f, 254.0f, 255.0f, 0.0f});
  CHECK(decode(named("i8"), encode(named("i8"), {-129.0f, 127.5f, 0.5f, 1.5f, INFINITY})) ==
        std::vector<float>{-128.0f, 127.0f, 0.0f, 2.0f, 127.0f});
  const std::vector<uint8_t> top = encode(named("i64"), {9.3e18f, -9.3e18f});
  int64_t v[2];
  memcpy(v, top.data(), sizeof v);
  CHECK(v[0] == INT64_MAX);
  CHECK(v[1] == INT64_MIN);
  CHECK(decode(named("bool"), {0, 1, 2, 255}) == std::vector<float>{0.0f, 1.0f, 1.0f, 1.0f});
}

}  // namespace
}  // namespace oar
