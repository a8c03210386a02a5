// Shape: the sizes of a tensor's axes, outermost first, held inline. Sizes are concrete; symbolic dims live
// in engine/graph.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "engine/base/status.h"

namespace oar {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;  // rank 0: a scalar, one element
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  // At most kMaxRank dims, none negative; readers of files check before they come here.
  explicit Shape(std::span<const int64_t> dims) {
    OAR_CHECK(dims.size() <= kMaxRank, "a Shape has at most 8 axes");
    for (int64_t d : dims) {
      OAR_CHECK(d >= 0, "a Shape's sizes are not negative");
      dims_[rank_++] = d;
    }
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const {
    OAR_CHECK(axis >= 0 && axis < rank_, "axis out of range");
    return dims_[axis];
  }
  // The innermost size; 1 for a scalar.
  int64_t cols() const { return rank_ == 0 ? 1 : dims_[rank_ - 1]; }
  const int64_t* begin() const { return dims_; }
  const int64_t* end() const { return dims_ + rank_; }

  // Product of all sizes; nullopt when it does not fit in int64.
  std::optional<int64_t> checked_numel() const { return checked_product(rank_); }
  // The same for shapes known to fit.
  int64_t numel() const {
    const auto n = checked_numel();
    OAR_CHECK(n.has_value(), "element count overflows");
    return *n;
  }
  // Product of all sizes but the innermost; 1 for rank 0 and 1.
  std::optional<int64_t> checked_rows() const { return checked_product(rank_ == 0 ? 0 : rank_ - 1); }
  int64_t rows() const {
    const auto n = checked_rows();
    OAR_CHECK(n.has_value(), "row count overflows");
    return *n;
  }

  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if (dims_[i] != other.dims_[i]) return false;
    }
    return true;
  }

  // "[2, 3]".
  std::string to_string() const;

 private:
  std::optional<int64_t> checked_product(int axes) const {
    int64_t n = 1;
    bool zero = false, overflow = false;
    for (int i = 0; i < axes; ++i) {
      zero |= dims_[i] == 0;
      overflow |= __builtin_mul_overflow(n, dims_[i], &n);
    }
    if (zero) return 0;
    if (overflow) return std::nullopt;
    return n;
  }

  int64_t dims_[kMaxRank] = {};
  int rank_ = 0;
};

}  // namespace oar
