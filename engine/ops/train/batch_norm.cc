// batch_statistics_norm and its way back (ops.h): batch norm as it is trained. A channel's sums go over the
// batch in its order, in double; channels go to threads, so that no sum depends on their number.
#include <cmath>

#include "engine/base/format.h"
#include "engine/graph/derived.h"
#include "engine/graph/evaluate.h"
#include "engine/ops/tensor/util.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

using tensor::extent;

// (N, C, ...) with a number a channel for each of `count` operands from the second on.
struct Channels {
  int64_t N = 0, C = 0, inner = 0;
  double count() const { return static_cast<double>(N * inner); }
  double cost() const { return count() * 2; }
  // The values of channel c one after another: f(index of its first, of each entry of the batch).
  template <class F>
  void each_run(int64_t c, F&& f) const {
    for (int64_t n = 0; n < N; ++n) f((n * C + c) * inner);
  }
};

Result<Channels> channels(EvalContext& ctx, size_t count) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  if (x.shape().rank() < 2 || !(x.format() == Format::f32()) || x.numel() == 0)
    return invalid_argument("x is f32 (N, C, ...), of some elements");
  const Channels out{x.shape()[0], x.shape()[1], extent(x.shape(), 2, x.shape().rank())};
  for (size_t k = 1; k <= count; ++k) {
    OAR_ASSIGN(const Tensor t, ctx.tensor(k));
    if (!(t.format() == Format::f32()) || t.numel() != out.C)
      return invalid_argument(cat("operand ", k, " is f32 (C)"));
  }
  return out;
}

// In four lanes, which keep additions from waiting for each other.
template <class F>
double sum_of(int64_t n, F&& value) {
  double lanes[4] = {0, 0, 0, 0};
  int64_t k = 0;
  for (; k + 4 <= n; k += 4)
    for (int64_t j = 0; j < 4; ++j) lanes[j] += value(k + j);
  for (; k < n; ++k) lanes[0] += value(k);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

double inverse_of(double variance, double epsilon) { return 1 / std::sqrt(variance + epsilon); }

Status statistics_norm_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Channels s, channels(ctx, 2));
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor scale, ctx.tensor(1));
  OAR_ASSIGN(const Tensor shift, ctx.tensor(2));
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), DType::kF32));
  OAR_ASSIGN(Tensor mean, ctx.allocate({s.C}, DType::kF32));
  OAR_ASSIGN(Tensor variance, ctx.allocate({s.C}, DType::kF32));
  const double epsilon = ctx.attrs().get_float("epsilon", 1e-5);
  const float *const from = elements<float>(x), *const factor = elements<float>(scale),
                     *const term = elements<float>(shift);
  float *const to = mutable_elements<float>(y), *const means = mutable_elements<float>(mean),
               *const variances = mutable_elements<float>(variance);
  ctx.parallel(s.C, s.cost(), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sum = 0, squares = 0;
      s.each_run(c, [&](int64_t at) {
        sum += sum_of(s.inner, [&](int64_t k) { return static_cast<double>(from[at + k]); });
      });
      const double m = sum / s.count();
      s.each_run(c, [&](int64_t at) {
        squares += sum_of(s.inner, [&](int64_t k) {
          const double d = from[at + k] - m;
          return d * d;
        });
      });
      means[c] = static_cast<float>(m);
      variances[c] = static_cast<float>(squares / s.count());
      // As its way back reads them: rounded.
      const auto a = static_cast<float>(factor[c] * inverse_of(variances[c], epsilon));
      const float b = means[c], t = term[c];
      s.each_run(c, [&](int64_t at) {
        for (int64_t k = 0; k < s.inner; ++k) to[at + k] = (from[at + k] - b) * a + t;
      });
    }
  });
  ctx.set(0, std::move(y));
  ctx.set(1, std::move(mean));
  ctx.set(2, std::move(variance));
  return ok_status();
}

// With x^ = (x - mean) / deviation and m numbers a channel: d shift = sum dy, d scale = sum dy x^, and
// dx = scale / deviation (dy - d shift / m - x^ d scale / m). https://arxiv.org/abs/1502.03167
Status statistics_norm_back_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Channels s, channels(ctx, 3));
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor scale, ctx.tensor(1));
  OAR_ASSIGN(const Tensor mean, ctx.tensor(2));
  OAR_ASSIGN(const Tensor variance, ctx.tensor(3));
  OAR_ASSIGN(const Tensor dy, ctx.tensor(4));
  if (!(dy.shape() == x.shape()) || !(dy.format() == Format::f32()))
    return invalid_argument("dy is shaped like x");
  OAR_ASSIGN(Tensor dx, ctx.allocate(x.shape(), DType::kF32));
  OAR_ASSIGN(Tensor dscale, ctx.allocate(scale.shape(), DType::kF32));
  OAR_ASSIGN(Tensor dshift, ctx.allocate(scale.shape(), DType::kF32));
  const double epsilon = ctx.attrs().get_float("epsilon", 1e-5);
  const float *const from = elements<float>(x), *const g = elements<float>(dy);
  const float *const factor = elements<float>(scale), *const means = elements<float>(mean),
                     *const variances = elements<float>(variance);
  float *const to = mutable_elements<float>(dx), *const to_scale = mutable_elements<float>(dscale),
               *const to_shift = mutable_elements<float>(dshift);
  ctx.parallel(s.C, s.cost(), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const double b = means[c], inverse = inverse_of(variances[c], epsilon);
      double sum = 0, product = 0;
      s.each_run(c, [&](int64_t at) {
        sum += sum_of(s.inner, [&](int64_t k) { return static_cast<double>(g[at + k]); });
        product += sum_of(s.inner, [&](int64_t k) { return g[at + k] * (from[at + k] - b); });
      });
      to_shift[c] = static_cast<float>(sum);
      to_scale[c] = static_cast<float>(product * inverse);
      const auto a = static_cast<float>(factor[c] * inverse);
      const auto less = static_cast<float>(sum / s.count());
      const auto slope = static_cast<float>(product * inverse * inverse / s.count());
      const float shift = means[c];
      s.each_run(c, [&](int64_t at) {
        for (int64_t k = 0; k < s.inner; ++k)
          to[at + k] = a * (g[at + k] - less - (from[at + k] - shift) * slope);
      });
    }
  });
  ctx.set(0, std::move(dx));
  ctx.set(1, std::move(dscale));
  ctx.set(2, std::move(dshift));
  return ok_status();
}

Result<std::vector<TensorType>> statistics_norm_types(const Graph& g, std::span<const ValueId> in,
                                                      const Attrs&) {
  const TensorType& x = g.value(in[0]).type;
  if (x.shape.size() < 2) return invalid_argument("x is (N, C, ...)");
  const TensorType channel{Format::f32(), {x.shape[1]}};
  return std::vector<TensorType>{x, channel, channel};
}

Result<std::vector<TensorType>> statistics_norm_back_types(const Graph& g, std::span<const ValueId> in,
                                                           const Attrs&) {
  return std::vector<TensorType>{g.value(in[0]).type, g.value(in[1]).type, g.value(in[1]).type};
}

// batch_norm in training, whose averages become the batch's own numbers at once.
std::vector<Val> statistics_norm_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val zeros = gradient::zeros_like(b, in[1]);
  const std::vector<Val> operands{in[0], in[1], in[2], zeros, zeros};
  const Attrs training{
      {"training_mode", int64_t{1}}, {"momentum", 0.0}, {"epsilon", attrs.get_float("epsilon", 1e-5)}};
  return definition::batch_norm(b, operands, training);
}
// Nothing of y's gradient depends on the shift, nor on numbers that a definition computes anew.
std::vector<Val> statistics_norm_back_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val operands[] = {in[0], in[1], in[1]};
  return derived_gradient(b, statistics_norm_define, operands, attrs, in.last(1), 3);
}

std::vector<Val> statistics_norm_vjp(const Pullback& p) {
  if (p.d[1] || p.d[2]) p.b.fail(unimplemented("a batch's mean and variance have no gradient of their own"));
  if (!p.d[0]) return std::vector<Val>(3);
  const Val in[] = {p.in[0], p.in[1], p.out[1], p.out[2], p.d[0]};
  return emit(p.b, op_batch_statistics_norm_back, in, p.attrs);
}

}  // namespace

const OpDef op_batch_statistics_norm = {.name = "batch_statistics_norm",
                                        .infer = statistics_norm_types,
                                        .define = statistics_norm_define,
                                        .vjp = statistics_norm_vjp,
                                        .evaluate = statistics_norm_evaluate,
                                        .no_gradient_of = "its mean and variance"};
const OpDef op_batch_statistics_norm_back = {.name = "batch_statistics_norm_back",
                                             .infer = statistics_norm_back_types,
                                             .define = statistics_norm_back_define,
                                             .evaluate = statistics_norm_back_evaluate};

}  // namespace oar::train
