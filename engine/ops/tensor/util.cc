#include "engine/ops/tensor/util.h"

namespace oar::tensor {

Result<Broadcast> Broadcast::make(std::initializer_list<const Shape*> shapes) {
  Broadcast b;
  int rank = 0;
  for (const Shape* s : shapes) rank = std::max(rank, s->rank());
  int64_t dims[Shape::kMaxRank];
  for (int k = 0; k < rank; ++k) {
    dims[k] = 1;
    for (const Shape* s : shapes) {
      const int own = k - (rank - s->rank());
      if (own < 0 || (*s)[own] == 1) continue;
      if (dims[k] != 1 && dims[k] != (*s)[own]) {
        std::string all;
        for (const Shape* t : shapes) all += cat(all.empty() ? "" : " and ", t->to_string());
        return invalid_argument(cat("shapes ", all, " cannot be broadcast together"));
      }
      dims[k] = (*s)[own];
    }
  }
  OAR_ASSIGN(b.shape_, checked_shape({dims, static_cast<size_t>(rank)}));
  b.operands_ = static_cast<int>(shapes.size());
  // Strides of each operand at each axis, 0 where it repeats.
  int64_t strides[kMaxOperands][Shape::kMaxRank] = {};
  int o = 0;
  for (const Shape* s : shapes) {
    int64_t stride = 1;
    for (int k = rank - 1; k >= 0; --k) {
      const int own = k - (rank - s->rank());
      if (own < 0) continue;
      if ((*s)[own] != 1) strides[o][k] = stride;
      stride *= (*s)[own];
    }
    ++o;
  }
  // Merge axis k into the one after it when every operand walks them as one.
  int n = 0;
  for (int k = 0; k < rank; ++k) {
    if (dims[k] == 1 && rank > 1 && !(k == rank - 1 && n == 0)) continue;
    bool merge = n > 0;
    for (int p = 0; p < b.operands_ && merge; ++p) merge = b.strides_[p][n - 1] == strides[p][k] * dims[k];
    if (!merge) ++n, b.dims_[n - 1] = 1;
    b.dims_[n - 1] *= dims[k];
    for (int p = 0; p < b.operands_; ++p) b.strides_[p][n - 1] = strides[p][k];
  }
  b.rank_ = std::max(n, 1);
  return b;
}

void Broadcast::visit_runs(int64_t begin, int64_t end, Visitor visit, void* f) const {
  const int64_t inner = dims_[rank_ - 1];
  Offsets at{}, step{};
  for (int o = 0; o < operands_; ++o) step[o] = strides_[o][rank_ - 1];
  while (begin < end) {
    const int64_t column = begin % inner, count = std::min(inner - column, end - begin);
    int64_t rest = begin / inner;
    for (int o = 0; o < operands_; ++o) at[o] = column * step[o];
    for (int k = rank_ - 2; k >= 0; --k) {
      const int64_t i = rest % dims_[k];
      rest /= dims_[k];
      for (int o = 0; o < operands_; ++o) at[o] += i * strides_[o][k];
    }
    visit(f, begin, at, count, step);
    begin += count;
  }
}

Status check_number(const Tensor& t) {
  if (dtype_of(t) == DType::kString) return bad_dtype(t);
  return ok_status();
}

std::vector<double> to_doubles(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.numel()));
  dispatch_number(dtype_of(t), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t k = 0; k < out.size(); ++k) out[k] = static_cast<double>(Element<T>::load(elements<T>(t)[k]));
  });
  return out;
}

Tensor from_doubles(const EvalContext& ctx, const Shape& shape, DType dtype, const std::vector<double>& v) {
  auto allocated = ctx.allocate(shape, dtype);
  Tensor t = allocated.ok() ? std::move(*allocated) : must(allocate_elements(shape, dtype));
  dispatch_number(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    for (size_t k = 0; k < v.size(); ++k) {
      C c;
      if constexpr (std::is_integral_v<C>) c = saturate_cast<C>(v[k]);
      else c = static_cast<C>(v[k]);
      mutable_elements<T>(t)[k] = Element<T>::store(c);
    }
  });
  return t;
}

Result<Tensor> as_f32(const Tensor& t) {
  if (dtype_of(t) == DType::kF32) return t;
  OAR_ASSIGN(Tensor out, allocate_elements(t.shape(), DType::kF32));
  if (!dispatch_number(dtype_of(t), [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (int64_t k = 0; k < t.numel(); ++k) {
          mutable_elements<float>(out)[k] = static_cast<float>(Element<T>::load(elements<T>(t)[k]));
        }
      })) {
    return bad_dtype(t);
  }
  return out;
}

namespace {

template <class Wide>
Result<Tensor> widened(const EvalContext& ctx, const Tensor& t) {
  if (dtype_of(t) == DTypeOf<Wide>::value) return t;
  OAR_ASSIGN(Tensor out, ctx.allocate(t.shape(), DTypeOf<Wide>::value));
  if (!dispatch_number(dtype_of(t), [&](auto tag) {
        map_elements<typename decltype(tag)::type, Wide>(ctx, t, out, 1.0,
                                                         [](auto v) { return static_cast<Wide>(v); });
      }))
    return bad_dtype(t);
  return out;
}

template <class Wide>
Result<Tensor> rounded(const EvalContext& ctx, const Tensor& t, DType dtype) {
  if (dtype == DTypeOf<Wide>::value) return t;
  OAR_ASSIGN(Tensor out, ctx.allocate(t.shape(), dtype));
  if (!dispatch_float(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        map_elements<Wide, T>(ctx, t, out, 1.0,
                              [](Wide v) { return static_cast<typename Element<T>::Compute>(v); });
      }))
    return bad_dtype(out);
  return out;
}

}  // namespace

Result<Tensor> as_f32(const EvalContext& ctx, const Tensor& t) { return widened<float>(ctx, t); }
Result<Tensor> as_f64(const EvalContext& ctx, const Tensor& t) { return widened<double>(ctx, t); }
Result<Tensor> from_f32(const EvalContext& ctx, const Tensor& t, DType dtype) {
  return rounded<float>(ctx, t, dtype);
}
Result<Tensor> from_f64(const EvalContext& ctx, const Tensor& t, DType dtype) {
  return rounded<double>(ctx, t, dtype);
}

namespace {

// A vector of the baseline, for loops that the compiler leaves scalar at its second level.
using F4 [[gnu::vector_size(16)]] = float;

F4 loaded(const float* p) {
  F4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

void scale_and_shift(const float* x, float* y, int64_t n, float scale, float shift) {
  const F4 s = {scale, scale, scale, scale}, t = {shift, shift, shift, shift};
  int64_t k = 0;
  for (; k + 4 <= n; k += 4) {
    const F4 v = loaded(x + k) * s + t;
    std::memcpy(y + k, &v, sizeof v);
  }
  for (; k < n; ++k) y[k] = x[k] * scale + shift;
}

Result<DType> dtype_attr(const EvalContext& ctx, const char* name, DType fallback) {
  if (!ctx.attrs().has(name)) return fallback;
  const auto d = parse_dtype(ctx.attrs().get_string(name));
  if (!d || *d == DType::kBytes)
    return invalid_argument(cat("unknown element type '", ctx.attrs().get_string(name), "'"));
  return *d;
}

void copy_elements(const Tensor& x, int64_t from, const Tensor& y, int64_t to, int64_t n) {
  if (n <= 0) return;
  if (dtype_of(x) == DType::kString) {
    std::copy_n(elements<std::string>(x) + from, n, mutable_elements<std::string>(y) + to);
    return;
  }
  const int64_t width = x.format().block_bytes();
  std::memcpy(mutable_elements<std::byte>(y) + to * width, elements<std::byte>(x) + from * width,
              static_cast<size_t>(n * width));
}

}  // namespace oar::tensor
