// Weights of 8-bit integers as kernels take them: i8, with zero points where these are not 0.
#pragma once

#include <unordered_map>

#include "engine/graph/passes/match.h"

namespace oar::passes {

inline bool is_byte(DType t) { return t == DType::kU8 || t == DType::kI8; }
inline bool is_byte(const Tensor& t) { return t.format().plain() && is_byte(t.format().dtype()); }

// One, or one a filter of M, of the weights' own type; `zero` may be null: none.
inline bool are_zeros_of(const Tensor& w, const Tensor* zero, int64_t M) {
  return zero == nullptr || (zero->format() == w.format() && (zero->numel() == 1 || zero->numel() == M));
}

// Turns constants of u8 into i8, 128 less, each once.
class SignedWeights {
 public:
  explicit SignedWeights(Graph& g) : g_(g) {}
  // The constant i8 that stands for the constant bytes w.
  Result<ValueId> weights(ValueId w) { return as_i8(w); }
  // Its zero points, of w's, which may be kNoValue; kNoValue where all are 0.
  Result<ValueId> zeros(ValueId w, ValueId zero) {
    const bool turned = g_.value(w).constant.format().dtype() == DType::kU8;
    if (zero == kNoValue && !turned) return kNoValue;
    if (zero == kNoValue) {
      OAR_ASSIGN(Tensor t, allocate_elements({1}, DType::kI8));
      mutable_elements<int8_t>(t)[0] = -128;
      return g_.add_constant("zero", std::move(t));
    }
    OAR_ASSIGN(const ValueId z, as_i8(zero));
    const Tensor& t = g_.value(z).constant;
    for (int64_t k = 0; k < t.numel(); ++k)
      if (element_as_int(t, k) != 0) return z;
    return kNoValue;
  }

 private:
  Result<ValueId> as_i8(ValueId v) {
    const Tensor& from = g_.value(v).constant;
    if (from.format().dtype() == DType::kI8) return v;
    const auto known = made_.find(v);
    if (known != made_.end()) return known->second;
    OAR_ASSIGN(Tensor t, allocate_elements(from.shape(), DType::kI8));
    for (int64_t k = 0; k < from.numel(); ++k)
      mutable_elements<int8_t>(t)[k] = static_cast<int8_t>(elements<uint8_t>(from)[k] ^ 0x80);
    return made_[v] = g_.add_constant(g_.value(v).name, std::move(t));
  }
  Graph& g_;
  std::unordered_map<ValueId, ValueId> made_;  // of u8 -> i8
};

}  // namespace oar::passes
