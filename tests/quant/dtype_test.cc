// Scalar conversions, exhaustively: every narrow value against its definition in double arithmetic, and every
// boundary between two neighbours against round-to-nearest-even.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "quant/dtype.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

float from_bits(uint32_t u) { return detail::float_of(u); }
uint32_t bits_of(float x) { return detail::bits_of(x); }

// The value of a float with `exp` and `man` bits by the formula of the standard, for finite patterns.
double formula(uint32_t bits, int exp, int man) {
  const int bias = (1 << (exp - 1)) - 1;
  const uint32_t e = (bits >> man) & ((1u << exp) - 1), m = bits & ((1u << man) - 1);
  const double sign = (bits >> (exp + man)) & 1 ? -1.0 : 1.0;
  if (e == 0) return sign * std::ldexp(static_cast<double>(m), 1 - bias - man);
  return sign * std::ldexp(1.0 + static_cast<double>(m) / (1u << man), static_cast<int>(e) - bias);
}

template <class T>
struct Case {
  int exp, man;
  uint32_t count;       // of bit patterns
  uint32_t max_finite;  // magnitude
  T (*encode)(float);
  bool saturates;
  bool (*is_nan)(uint32_t magnitude);
  bool (*is_inf)(uint32_t magnitude);
};

template <class T>
void check_all(const Case<T>& c) {
  using Bits = decltype(T::bits);
  const uint32_t sign_bit = c.count / 2;
  for (uint32_t b = 0; b < c.count; ++b) {
    const uint32_t magnitude = b & (sign_bit - 1);
    const float x = to_f32(T{static_cast<Bits>(b)});
    CAPTURE(b, x);
    if (c.is_nan(magnitude)) {
      REQUIRE(std::isnan(x));
      const uint32_t back = c.encode(x).bits;
      REQUIRE(c.is_nan(back & (sign_bit - 1)));
      REQUIRE((back & sign_bit) == (b & sign_bit));
      continue;
    }
    REQUIRE(std::signbit(x) == (b >= sign_bit));
    if (c.is_inf(magnitude)) {
      REQUIRE(std::isinf(x));
      REQUIRE(c.encode(x).bits == (c.saturates ? (b & sign_bit) + c.max_finite : b));
      continue;
    }
    REQUIRE(static_cast<double>(x) == formula(b, c.exp, c.man));
    REQUIRE(c.encode(x).bits == b);
    // The midpoint to the next value goes to the even one; one f32 step off it, to the nearer one.
    if (magnitude < c.max_finite) {
      const double next = formula(b + 1, c.exp, c.man);
      const float middle = static_cast<float>((static_cast<double>(x) + next) / 2);
      if (static_cast<double>(middle) != (static_cast<double>(x) + next) / 2)
        continue;  // bf16's own f32 subnormals
      const uint32_t even = b % 2 == 0 ? b : b + 1;
      REQUIRE(c.encode(middle).bits == even);
      REQUIRE(c.encode(std::nextafter(middle, x)).bits == b);
      REQUIRE(c.encode(std::nextafter(middle, static_cast<float>(next))).bits == b + 1);
    }
  }
  // Overflow: half a step beyond the largest finite value, and far beyond.
  const double top = formula(c.max_finite, c.exp, c.man);
  const double step = top - formula(c.max_finite - 1, c.exp, c.man);
  const uint32_t beyond = c.saturates ? c.max_finite : c.max_finite + 1;
  const float tie = static_cast<float>(top + step / 2);
  REQUIRE(c.encode(std::nextafter(tie, 0.0f)).bits == c.max_finite);
  REQUIRE(c.encode(tie).bits == (c.saturates || c.max_finite % 2 == 0 ? c.max_finite : beyond));
  for (float x : {std::nextafter(tie, INFINITY), std::numeric_limits<float>::max(), INFINITY}) {
    REQUIRE(c.encode(x).bits == beyond);
    REQUIRE(c.encode(-x).bits == (beyond | sign_bit));
  }
  // Underflow: half of the smallest subnormal ties to zero; f32 subnormals vanish, their sign does not.
  const float smallest = static_cast<float>(formula(1, c.exp, c.man));
  if (smallest > std::numeric_limits<float>::denorm_min() * 4) {
    REQUIRE(c.encode(smallest / 2).bits == 0);
    REQUIRE(c.encode(std::nextafter(smallest / 2, 1.0f)).bits == 1);
    REQUIRE(c.encode(-smallest / 2).bits == sign_bit);
  }
}

bool never(uint32_t) { return false; }

TEST_CASE("f16: all 65536 values, ties, overflow, underflow, NaN") {
  check_all<f16>({5, 10, 65536, 0x7bff, &to_f16, false, [](uint32_t m) { return m > 0x7c00; },
                  [](uint32_t m) { return m == 0x7c00; }});
  CHECK(to_f16(65519.996f).bits == 0x7bff);
  CHECK(to_f16(65520.0f).bits == 0x7c00);
  CHECK(to_f16(from_bits(1)).bits == 0);
  CHECK(to_f16(from_bits(0x80000001)).bits == 0x8000);
}

TEST_CASE("bf16: all 65536 values, ties, overflow, NaN") {
  check_all<bf16>({8, 7, 65536, 0x7f7f, &to_bf16, false, [](uint32_t m) { return m > 0x7f80; },
                   [](uint32_t m) { return m == 0x7f80; }});
  CHECK(to_bf16(from_bits(0x3f808000)).bits == 0x3f80);
  CHECK(to_bf16(from_bits(0x3f818000)).bits == 0x3f82);
  CHECK(to_bf16(from_bits(0x7f800001)).bits == 0x7fc0);  // a NaN whose payload lies in the dropped bits
  CHECK(to_bf16(from_bits(0x00008001)).bits == 0x0001);  // subnormals round too
}

TEST_CASE("e4m3: all 256 values, ties, saturation, NaN") {
  check_all<e4m3>({4, 3, 256, 0x7e, &to_e4m3, true, [](uint32_t m) { return m == 0x7f; }, &never});
  CHECK(to_f32(e4m3{0x7e}) == 448.0f);
  CHECK(to_f32(e4m3{0x01}) == 0.001953125f);
  CHECK(to_e4m3(1e30f).bits == 0x7e);
}

TEST_CASE("e5m2: all 256 values, ties, saturation, NaN") {
  check_all<e5m2>({5, 2, 256, 0x7b, &to_e5m2, true, [](uint32_t m) { return m > 0x7c; },
                   [](uint32_t m) { return m == 0x7c; }});
  CHECK(to_f32(e5m2{0x7b}) == 57344.0f);
  CHECK(to_f32(e5m2{0x01}) == 1.52587890625e-05f);
}

TEST_CASE("f32 to f16 equals the double-precision definition on random patterns") {
  // Independent of the shifts: scale into units of the target's step, where nearbyint() rounds half to even.
  uint32_t state = 12345;
  for (int i = 0; i < 1000000; ++i) {
    state = state * 1664525u + 1013904223u;
    const uint32_t u = state ^ (state >> 15);
    const float x = from_bits(u);
    if (!std::isfinite(x)) continue;
    int e;
    std::frexp(x, &e);
    const int step = std::max(e - 11, -24);
    const double expected = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -step)), step);
    const float got = to_f32(to_f16(x));
    if (std::fabs(expected) > 65504.0) REQUIRE((std::isinf(got) && std::signbit(got) == std::signbit(x)));
    else REQUIRE(bits_of(got) == bits_of(static_cast<float>(expected)));
  }
}

TEST_CASE("dtype names, sizes and parsing") {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType t = static_cast<DType>(i);
    REQUIRE(parse_dtype(dtype_name(t)) == t);
  }
  CHECK_FALSE(parse_dtype("float").has_value());
  CHECK_FALSE(parse_dtype("").has_value());
  CHECK(dtype_bits(DType::kI4) == 4);
  CHECK(dtype_bits(DType::kE4M3) == 8);
  CHECK(dtype_bits(DType::kBF16) == 16);
  CHECK(dtype_bits(DType::kF32) == 32);
  CHECK(dtype_bits(DType::kU64) == 64);
  CHECK(std::string(dtype_name(DType::kBytes)) == "bytes");
  CHECK(dtype_is_float(DType::kE5M2));
  CHECK_FALSE(dtype_is_float(DType::kI4));
  CHECK(dtype_is_integer(DType::kU64));
  CHECK_FALSE(dtype_is_integer(DType::kBool));
}

TEST_CASE("e2m1 and e8m0: every code, every tie") {
  const float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t b = 0; b < 16; ++b) {
    const float v = b < 8 ? kValues[b] : -kValues[b - 8];
    CHECK(to_f32(e2m1{b}) == v);
    CHECK(to_e2m1(v).bits == b);
    if (b > 0 && b < 8) {
      const float middle = (kValues[b - 1] + kValues[b]) / 2;
      CHECK(to_e2m1(middle).bits == (b % 2 == 0 ? b : b - 1));
      CHECK(to_e2m1(std::nextafter(middle, 10.0f)).bits == b);
      CHECK(to_e2m1(std::nextafter(middle, 0.0f)).bits == b - 1);
    }
  }
  CHECK(to_e2m1(-0.0f).bits == 8);
  CHECK(to_e2m1(1e30f).bits == 7);
  CHECK(to_e2m1(-INFINITY).bits == 15);
  CHECK(to_e2m1(NAN).bits == 0);
  CHECK(to_e2m1(1e-40f).bits == 0);
  for (int e = 0; e < 255; ++e) CHECK(to_f32(e8m0{static_cast<uint8_t>(e)}) == std::ldexp(1.0f, e - 127));
  CHECK(std::isnan(to_f32(e8m0{255})));
}

}  // namespace
}  // namespace oar
