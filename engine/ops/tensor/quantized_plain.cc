// What layers of 8-bit integers are held against (quantized.cc has their kernels): exact sums, then real
// numbers in double, which are rounded where the result is codes.
#include <limits>

#include "engine/ops/tensor/conv.h"
#include "engine/ops/tensor/quantized.h"

namespace oar::tensor {
namespace {

// {y_dtype, y_scale, y_zero, low, high, activation}: what a real value becomes.
struct Coding {
  DType type;
  double scale, zero, low, high;
  Activation act;
  double operator()(double t) const {
    const auto bounded = [&](double v) { return v < low ? low : v > high ? high : v; };  // NaN stays
    if (type == DType::kF32) return act.apply(bounded(t));
    const double r = bounded(act.apply(t)) / scale, least = type == DType::kI8 ? -128 : 0;
    return std::isnan(r) ? 0 : std::clamp(std::nearbyint(r) + zero, least, least + 255);
  }
};
Result<Coding> coding_of(const Attrs& attrs) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  OAR_ASSIGN(const Activation act, activation_of(attrs));
  return Coding{y_dtype(attrs),
                attrs.get_float("y_scale", 1),
                static_cast<double>(attrs.get_int("y_zero")),
                attrs.get_float("low", -kInfinity),
                attrs.get_float("high", kInfinity),
                act};
}

// The operand's zero point: a run's, or an attribute.
Result<int64_t> x_zero_of(const EvalContext& ctx) {
  return ctx.has(6) ? ctx.scalar_int(6) : ctx.attrs().get_int("x_zero");
}
// Those of M filters, one or each.
Result<std::vector<int64_t>> w_zeros_of(const EvalContext& ctx, int64_t M) {
  std::vector<int64_t> z{0};
  if (!ctx.has(7)) return z;
  OAR_ASSIGN(const Tensor t, ctx.tensor(7));
  if (dtype_of(t) != DType::kI8 || (t.numel() != 1 && t.numel() != M))
    return invalid_argument("zero points of weights are i8, one for all or one per filter");
  z.clear();
  for (int64_t k = 0; k < t.numel(); ++k) z.push_back(element_as_int(t, k));
  return z;
}

// y + residual in double.
Result<Tensor> with_residual(const EvalContext& ctx, const Tensor& y, size_t operand) {
  OAR_ASSIGN(const Tensor residual, ctx.tensor(operand));
  if (dtype_of(residual) != DType::kF32) return bad_dtype(residual);
  OAR_ASSIGN(const Tensor wide, as_f64(ctx, residual));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&y.shape(), &residual.shape()}));
  OAR_ASSIGN(Tensor sum, ctx.allocate(b.shape(), DType::kF64));
  zip_elements<double, double>(ctx, b, y, wide, sum, [](double u, double v) { return u + v; });
  return sum;
}
Tensor coded(const EvalContext& ctx, const Tensor& y, const Coding& code) {
  std::vector<double> out = to_doubles(y);
  for (double& v : out) v = code(v);
  return from_doubles(ctx, y.shape(), code.type, out);
}

// The real values of a layer's sums, one scale and bias per filter: a bias of integers counts in their units.
struct Reals {
  std::vector<double> scale, bias;
  bool units = false;
  double operator()(int64_t m, int32_t sum) const {
    const auto at = [&](const std::vector<double>& v) {
      return v.empty() ? 0.0 : v[v.size() == 1 ? 0 : static_cast<size_t>(m)];
    };
    const auto s = static_cast<double>(sum);
    return units ? (s + at(bias)) * at(scale) : s * at(scale) + at(bias);
  }
};
Result<Reals> reals_of(const EvalContext& ctx, int64_t M) {
  Reals r;
  OAR_ASSIGN(const Tensor scale, ctx.tensor(2));
  OAR_RETURN_IF_ERROR(check_number(scale));
  r.scale = to_doubles(scale);
  double x_scale = ctx.attrs().get_float("x_scale", 1);
  if (ctx.has(5)) { OAR_ASSIGN(x_scale, ctx.scalar(5)); }
  for (double& s : r.scale) s *= x_scale;
  if (ctx.has(3)) {
    OAR_ASSIGN(const Tensor bias, ctx.tensor(3));
    OAR_RETURN_IF_ERROR(check_number(bias));
    r.bias = to_doubles(bias), r.units = dtype_of(bias) == DType::kI32;
  }
  for (const auto* v : {&r.scale, &r.bias}) {
    if (v->size() > 1 && static_cast<int64_t>(v->size()) != M)
      return invalid_argument("scales or bias of a quantized layer do not match its weight");
  }
  return r;
}

Result<Tensor> added_plainly(const EvalContext& ctx, const Attrs& attrs, const Tensor& a, const Tensor& b) {
  for (const Tensor* t : {&a, &b}) {
    if (!is_byte(*t)) return bad_dtype(*t);
  }
  OAR_ASSIGN(const Coding code, coding_of(attrs));
  if (code.type == DType::kF32) return invalid_argument("a quantized sum is u8 or i8");
  const double sa = attrs.get_float("a_scale", 1), sb = attrs.get_float("b_scale", 1);
  const auto za = static_cast<double>(attrs.get_int("a_zero")),
             zb = static_cast<double>(attrs.get_int("b_zero"));
  OAR_ASSIGN(const Broadcast shape, Broadcast::make({&a.shape(), &b.shape()}));
  const std::vector<double> pa = to_doubles(a), pb = to_doubles(b);
  std::vector<double> y(static_cast<size_t>(shape.numel()));
  ctx.parallel(shape.numel(), 10.0, [&](int64_t begin, int64_t end) {
    shape.runs(begin, end, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
      for (int64_t k = 0; k < n; ++k) {
        const double p = pa[static_cast<size_t>(from[0] + k * step[0])],
                     q = pb[static_cast<size_t>(from[1] + k * step[1])];
        y[static_cast<size_t>(at + k)] = code((p - za) * sa + (q - zb) * sb);
      }
    });
  });
  return from_doubles(ctx, shape.shape(), code.type, y);
}

}  // namespace

Status quantized_add(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor a, ctx.tensor(0));
  OAR_ASSIGN(const Tensor b, ctx.tensor(1));
  OAR_ASSIGN(Tensor y, added_plainly(ctx, ctx.attrs(), a, b));
  ctx.set(0, std::move(y));
  return ok_status();
}

Status quantized_conv(EvalContext& ctx) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  if (!is_byte(x)) return bad_dtype(x);
  if (x.shape().rank() != 4) return invalid_argument("a quantized convolution needs four axes");
  const bool nhwc = is_nhwc(ctx.attrs());
  OAR_ASSIGN(const Conv c, plan_conv(ctx.attrs(), nhwc ? channels_first(x.shape()) : x.shape(), w.shape()));
  OAR_ASSIGN(const Reals real, reals_of(ctx, c.M));
  OAR_ASSIGN(const Coding code, coding_of(ctx.attrs()));
  const int64_t outs = c.w.out_size();
  if (nhwc) {
    OAR_ASSIGN(Tensor planes, ctx.allocate(channels_first(x.shape()), dtype_of(x)));
    turn_bytes(ctx, elements<uint8_t>(x), mutable_elements<uint8_t>(planes), c.N, c.w.in_size(), c.C);
    x = std::move(planes);
  }
  OAR_ASSIGN(const int64_t x_zero, x_zero_of(ctx));
  OAR_ASSIGN(const auto w_zeros, w_zeros_of(ctx, c.M));
  OAR_ASSIGN(const Tensor sums, integer_conv(ctx, c, x, w, {x_zero}, w_zeros));
  OAR_ASSIGN(Tensor y, ctx.allocate(nhwc ? channels_last(c.out) : c.out, DType::kF64));
  for (int64_t k = 0; k < c.out.numel(); ++k) {
    const int64_t n = k / outs / c.M, m = k / outs % c.M, o = k % outs;
    mutable_elements<double>(y)[nhwc ? (n * outs + o) * c.M + m : k] = real(m, elements<int32_t>(sums)[k]);
  }
  const bool residual = ctx.has(4) && code.type == DType::kF32;
  if (residual) { OAR_ASSIGN(y, with_residual(ctx, y, 4)); }
  Tensor out = coded(ctx, y, code);
  if (ctx.has(4) && !residual) {
    OAR_ASSIGN(const Tensor other, ctx.tensor(4));
    OAR_ASSIGN(out, added_plainly(ctx, sum_attrs(ctx.attrs()), out, other));
  }
  ctx.set(0, std::move(out));
  return ok_status();
}

Status quantized_linear(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  if (!is_byte(x)) return bad_dtype(x);
  if (!is_byte(w) || w.shape().rank() != 2) return invalid_argument("the weight is no matrix of bytes");
  const bool columns = ctx.attrs().get_int("input_major") != 0;
  const int64_t M = w.shape()[columns ? 1 : 0], K = w.shape()[columns ? 0 : 1];
  const int rank = x.shape().rank();
  if (rank < 1 || x.shape()[rank - 1] != K || (ctx.attrs().get_int("matrix") != 0 && rank != 2))
    return invalid_argument(cat("inner extents differ: ", x.shape().to_string(), " . [", K, ", ", M, "]"));
  OAR_ASSIGN(const Reals real, reals_of(ctx, M));
  OAR_ASSIGN(const Coding code, coding_of(ctx.attrs()));
  std::vector<int64_t> dims = dims_of(x.shape());
  dims.back() = M;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF64));
  const int64_t rows = K > 0 ? x.numel() / K : extent(shape, 0, rank - 1);
  OAR_ASSIGN(const int64_t zero, x_zero_of(ctx));
  OAR_ASSIGN(const auto w_zeros, w_zeros_of(ctx, M));
  ctx.parallel(rows, 3.0 * static_cast<double>(M * K), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t m = 0; m < M; ++m) {
        uint64_t sum = 0;
        for (int64_t k = 0; k < K; ++k)
          sum += static_cast<uint64_t>((element_as_int(x, r * K + k) - zero) *
                                       (element_as_int(w, columns ? k * M + m : m * K + k) -
                                        w_zeros[w_zeros.size() == 1 ? 0 : static_cast<size_t>(m)]));
        mutable_elements<double>(y)[r * M + m] = real(m, static_cast<int32_t>(sum));
      }
    }
  });
  if (ctx.has(4)) { OAR_ASSIGN(y, with_residual(ctx, y, 4)); }
  ctx.set(0, coded(ctx, y, code));
  return ok_status();
}

}  // namespace oar::tensor
