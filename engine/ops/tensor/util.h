// What evaluations of ordinary ops share: attribute and dtype checks, broadcasting over strides, loops over
// elements of any dtype.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"
#include "engine/ops/define/definitions.h"
#include "engine/ops/gradient/gradients.h"

namespace oar::tensor {

inline Status bad_dtype(const Tensor& t) {
  return invalid_argument(cat("element type ", t.format().name(), " is not supported by this op"));
}
inline DType dtype_of(const Tensor& t) { return t.format().dtype(); }

// Row-major strides in elements.
inline std::array<int64_t, Shape::kMaxRank> strides_of(const Shape& s) {
  std::array<int64_t, Shape::kMaxRank> out{};
  int64_t stride = 1;
  for (int k = s.rank() - 1; k >= 0; --k) out[static_cast<size_t>(k)] = stride, stride *= s[k];
  return out;
}
inline std::vector<int64_t> dims_of(const Shape& s) { return {s.begin(), s.end()}; }
// Product of the sizes of axes [from, to).
inline int64_t extent(const Shape& s, int from, int to) {
  int64_t n = 1;
  for (int k = from; k < to; ++k) n *= s[k];
  return n;
}

// NumPy broadcasting of up to four shapes, with adjacent axes merged where all operands allow.
class Broadcast {
 public:
  static constexpr int kMaxOperands = 4;
  static Result<Broadcast> make(std::initializer_list<const Shape*> shapes);
  const Shape& shape() const { return shape_; }
  // One number per operand.
  using Offsets = std::array<int64_t, kMaxOperands>;
  // Calls f(out offset, operand offsets, count, operand steps) for each innermost run of the result's
  // elements [begin, end), counted row-major.
  template <class F>
  void runs(int64_t begin, int64_t end, F&& f) const {
    using Fn = std::remove_reference_t<F>;
    visit_runs(
        begin, end,
        [](void* g, int64_t at, const Offsets& from, int64_t n, const Offsets& step) {
          (*static_cast<Fn*>(g))(at, from, n, step);
        },
        &f);
  }
  int64_t numel() const { return shape_.numel(); }
  // The axes after merging, and an operand's step along each.
  int rank() const { return rank_; }
  int64_t dim(int axis) const { return dims_[axis]; }
  int64_t stride(int operand, int axis) const { return strides_[operand][axis]; }

 private:
  using Visitor = void (*)(void* f, int64_t at, const Offsets& from, int64_t n, const Offsets& step);
  // Not a template: a hundred loops over elements share it.
  void visit_runs(int64_t begin, int64_t end, Visitor visit, void* f) const;

  Shape shape_;
  int rank_ = 1;  // after merging, at least 1
  int operands_ = 0;
  int64_t dims_[Shape::kMaxRank] = {1};
  int64_t strides_[kMaxOperands][Shape::kMaxRank] = {};
};

// y = f(x) per element of dtype T and result dtype U, in their compute types.
template <class T, class U, class F>
void map_elements(const EvalContext& ctx, const Tensor& x, Tensor& y, double cost, F&& f) {
  const T* in = elements<T>(x);
  U* out = mutable_elements<U>(y);
  ctx.parallel(x.numel(), cost, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) out[k] = Element<U>::store(f(Element<T>::load(in[k])));
  });
}

// A float op of one operand; f is called with float or double.
template <class F>
Status unary_float(EvalContext& ctx, double cost, F&& f) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.allocate_over(0, x, x.shape(), dtype_of(x)));
  if (!dispatch_float(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        map_elements<T, T>(ctx, x, y, cost, f);
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}
// The same for integers too.
template <class F>
Status unary_numeric(EvalContext& ctx, double cost, F&& f) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.allocate_over(0, x, x.shape(), dtype_of(x)));
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        map_elements<T, T>(ctx, x, y, cost,
                           [&](auto v) { return static_cast<typename Element<T>::Compute>(f(v)); });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// out = f(a, b) with broadcasting, a and b of storage type T, out of storage type U.
template <class T, class U, class F>
void zip_elements(const EvalContext& ctx, const Broadcast& b, const Tensor& x, const Tensor& y, Tensor& out,
                  F&& f) {
  const T* px = elements<T>(x);
  const T* py = elements<T>(y);
  U* po = mutable_elements<U>(out);
  ctx.parallel(b.numel(), 0.5, [&](int64_t begin, int64_t end) {
    b.runs(begin, end, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
      const T* p = px + from[0];
      const T* q = py + from[1];
      U* o = po + at;
      if (step[0] == 1 && step[1] == 1) {
        for (int64_t k = 0; k < n; ++k)
          o[k] = Element<U>::store(f(Element<T>::load(p[k]), Element<T>::load(q[k])));
      } else if (step[0] == 1 && step[1] == 0) {
        const auto c = Element<T>::load(*q);
        for (int64_t k = 0; k < n; ++k) o[k] = Element<U>::store(f(Element<T>::load(p[k]), c));
      } else {
        for (int64_t k = 0; k < n; ++k) {
          o[k] = Element<U>::store(f(Element<T>::load(p[k * step[0]]), Element<T>::load(q[k * step[1]])));
        }
      }
    });
  });
}

inline Status check_same_dtype(const Tensor& a, const Tensor& b) {
  if (a.format() == b.format()) return ok_status();
  return invalid_argument(
      cat("operands have different element types, ", a.format().name(), " and ", b.format().name()));
}

// Any numeric tensor as doubles, and back, for ops where exactness beyond f64 does not matter and speed
// neither.
std::vector<double> to_doubles(const Tensor& t);
Tensor from_doubles(const EvalContext& ctx, const Shape& shape, DType dtype, const std::vector<double>& v);
// Fails for strings.
Status check_number(const Tensor& t);
// A tensor of numbers as f32 or f64: itself when it is. With a context in the memory of its run, as results
// are.
Result<Tensor> as_f32(const Tensor& t);
Result<Tensor> as_f32(const EvalContext& ctx, const Tensor& t);
Result<Tensor> as_f64(const EvalContext& ctx, const Tensor& t);
// An f32 or f64 tensor rounded to `dtype`, a float.
Result<Tensor> from_f32(const EvalContext& ctx, const Tensor& t, DType dtype);
Result<Tensor> from_f64(const EvalContext& ctx, const Tensor& t, DType dtype);
// The same, 16-bit floats by kernels (kernel_call.cc).
Result<Tensor> as_f32(const KernelContext& ctx, const Tensor& t);
Result<Tensor> from_f32(const KernelContext& ctx, const Tensor& t, DType dtype);

// y = x scale + shift of f32 values that lie together, in vectors; y may be x.
void scale_and_shift(const float* x, float* y, int64_t n, float scale, float shift);

// The least and greatest integer of a dtype; false of any other.
bool integer_range(DType t, double* low, double* high);
// The dtype named by an attribute, or `fallback`.
Result<DType> dtype_attr(const EvalContext& ctx, const char* name, DType fallback);

// Copies elements [from, from + n) of x to [to, ...) of y; strings by assignment.
void copy_elements(const Tensor& x, int64_t from, const Tensor& y, int64_t to, int64_t n);
// A copy of the values under another shape of equally many elements shares the bytes.
inline Result<Tensor> view(const Tensor& t, const Shape& shape) { return t.reshape(shape); }

}  // namespace oar::tensor

// Defines the OpDef of an ordinary op; further fields may follow.
#define OAR_TENSOR_OP(op, function, ...) \
  extern const OpDef op_##op = {.name = #op, .evaluate = function __VA_OPT__(, ) __VA_ARGS__}
// The same of one with a derivative (engine/ops/gradient/gradients.h), and of one whose derivative is zero.
#define OAR_SMOOTH_OP(op, function, ...) \
  extern const OpDef op_##op = {         \
      .name = #op, .vjp = gradient::op, .evaluate = function __VA_OPT__(, ) __VA_ARGS__}
#define OAR_STEP_OP(op, function, ...) \
  extern const OpDef op_##op = {       \
      .name = #op, .piecewise_constant = true, .evaluate = function __VA_OPT__(, ) __VA_ARGS__}
// The same of one that is defined by others and rounds: its gradient is zero almost everywhere.
#define OAR_ROUNDING_OP(op, function, ...)                  \
  extern const OpDef op_##op = {.name = #op,                \
                                .define = definition::op,   \
                                .piecewise_constant = true, \
                                .evaluate = function __VA_OPT__(, ) __VA_ARGS__}
// The same of one that has a definition (engine/ops/define/definitions.h), and with it a gradient.
#define OAR_DEFINED_OP(op, function, ...) \
  extern const OpDef op_##op = {          \
      .name = #op, .define = definition::op, .evaluate = function __VA_OPT__(, ) __VA_ARGS__}
