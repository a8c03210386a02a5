// Committed cases of single ops: models, inputs and what another runtime computed, in JSON.
#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "engine/base/json.h"
#include "engine/import/paddle_program.h"
#include "engine/tensor/element.h"
#include "tests/support/catch.h"

namespace oar_test::golden {

using namespace oar;

inline std::string text(const json::value& v) { return {v.get_string().data(), v.get_string().size()}; }

inline std::string base64(const std::string& s) {
  std::string out;
  uint32_t bits = 0;
  int have = 0;
  for (char c : s) {
    const int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                  : c >= 'a' && c <= 'z' ? c - 'a' + 26
                  : c >= '0' && c <= '9' ? c - '0' + 52
                  : c == '+'             ? 62
                  : c == '/'             ? 63
                                         : -1;
    if (v < 0) continue;
    bits = bits << 6 | static_cast<uint32_t>(v);
    have += 6;
    if (have >= 8) out += static_cast<char>(bits >> (have -= 8));
  }
  return out;
}

inline double number(const json::value& v) {
  if (v.is_string()) return text(v) == "inf" ? INFINITY : text(v) == "-inf" ? -INFINITY : NAN;
  return v.to_number<double>();
}

inline Tensor tensor(const json::value& v) {
  std::vector<int64_t> dims;
  for (const auto& d : v.at("shape").as_array()) dims.push_back(d.to_number<int64_t>());
  const auto dtype = paddle::dtype_named(text(v.at("dtype")));
  REQUIRE(dtype);
  Tensor t = must(allocate_elements(Shape(std::span<const int64_t>(dims)), *dtype));
  if (const auto* packed = v.as_object().if_contains("bytes")) {
    const std::string bytes = base64(text(*packed));
    REQUIRE(bytes.size() == t.bytes());
    if (!bytes.empty()) std::memcpy(t.mutable_data(), bytes.data(), bytes.size());
    return t;
  }
  if (const auto* packed = v.as_object().if_contains("halves")) {  // f32 that are exact in f16
    const std::string bytes = base64(text(*packed));
    REQUIRE(bytes.size() == 2 * static_cast<size_t>(t.numel()));
    for (int64_t k = 0; k < t.numel(); ++k) {
      f16 h;
      std::memcpy(&h, bytes.data() + 2 * k, sizeof h);
      mutable_elements<float>(t)[k] = to_f32(h);
    }
    return t;
  }
  const auto& data = v.at("data").as_array();
  REQUIRE(static_cast<int64_t>(data.size()) == t.numel());
  dispatch_number(*dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    for (size_t k = 0; k < data.size(); ++k) {
      mutable_elements<T>(t)[k] = Element<T>::store(static_cast<C>(number(data[k])));
    }
  });
  return t;
}

// f32 of a few hundred products at most, in another order of summation, and functions within a few units of
// the last place: 2e-5 relative is far above both and far below any wrong formula. `steps`: instead,
// of integers that were rounded, how far they may lie apart.
inline void check_equal(const Tensor& got, const Tensor& want, double steps = 0) {
  REQUIRE(got.shape().to_string() == want.shape().to_string());
  CHECK(got.format().name() == std::string(want.format().name()));
  for (int64_t k = 0; k < want.numel(); ++k) {
    const double w = element_as_double(want, k), g = element_as_double(got, k);
    if (std::isnan(w) ? std::isnan(g) : w == g) continue;
    INFO("element " << k << ": " << g << " instead of " << w);
    REQUIRE(std::abs(g - w) <= (steps > 0 ? steps : 2e-5 * std::max(1.0, std::abs(w))));
  }
}

}  // namespace oar_test::golden
