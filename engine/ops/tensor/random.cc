// Random numbers: a counter-based generator (SplitMix64, https://doi.org/10.1145/2714064.2660195), so that a
// seed gives the same numbers on every machine and thread count. Without a seed: seed 0, still deterministic.
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

class Random {
 public:
  explicit Random(double seed) { std::memcpy(&state_, &seed, sizeof state_); }
  double uniform() {  // [0, 1)
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  double normal() {  // Box-Muller
    const double r = std::sqrt(-2 * std::log(1 - uniform()));
    return r * std::cos(6.283185307179586 * uniform());
  }

 private:
  uint64_t state_;
};

// random_*(shape, like?) {dtype, seed, ...}
template <class F>
Status generate(EvalContext& ctx, F&& f) {
  OAR_ASSIGN(const auto dims, ctx.ints(0));
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  DType fallback = DType::kF32;
  if (ctx.has(1) && ctx.datum(1).is_tensor() && dtype_is_float(dtype_of(ctx.datum(1).tensor)))
    fallback = dtype_of(ctx.datum(1).tensor);
  OAR_ASSIGN(const DType dtype, dtype_attr(ctx, "dtype", fallback));
  if (!dtype_is_float(dtype)) return invalid_argument("random numbers are floats");
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  Random random(ctx.attrs().get_float("seed"));
  std::vector<double> v(static_cast<size_t>(shape.numel()));
  for (double& e : v) e = f(random);
  ctx.set(0, from_doubles(ctx, shape, dtype, v));
  return ok_status();
}

Status random_uniform(EvalContext& ctx) {
  const double low = ctx.attrs().get_float("low", 0), high = ctx.attrs().get_float("high", 1);
  return generate(ctx, [=](Random& r) { return low + (high - low) * r.uniform(); });
}
Status random_normal(EvalContext& ctx) {
  const double mean = ctx.attrs().get_float("mean", 0), scale = ctx.attrs().get_float("scale", 1);
  return generate(ctx, [=](Random& r) { return mean + scale * r.normal(); });
}

Status bernoulli(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  if (!dtype_is_float(dtype_of(x))) return bad_dtype(x);
  OAR_ASSIGN(const DType dtype, dtype_attr(ctx, "dtype", dtype_of(x)));
  if (dtype == DType::kString) return invalid_argument("the result must be numbers");
  Random random(ctx.attrs().get_float("seed"));
  std::vector<double> v = to_doubles(x);
  for (double& e : v) e = random.uniform() < e;
  ctx.set(0, from_doubles(ctx, x.shape(), dtype, v));
  return ok_status();
}

// multinomial(x (N, C) unnormalized log-probabilities) {sample_size}
Status multinomial(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const DType dtype, dtype_attr(ctx, "dtype", DType::kI32));
  const int64_t samples = ctx.attrs().get_int("sample_size", 1);
  if (x.shape().rank() != 2 || x.shape()[1] < 1 || !dtype_is_float(dtype_of(x)) || !dtype_is_integer(dtype))
    return invalid_argument("needs a float matrix");
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{x.shape()[0], samples}));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  Random random(ctx.attrs().get_float("seed"));
  const std::vector<double> v = to_doubles(x);
  std::vector<double> out;
  const int64_t C = x.shape()[1];
  for (int64_t n = 0; n < x.shape()[0]; ++n) {
    const double* row = v.data() + n * C;
    const double top = *std::max_element(row, row + C);
    double total = 0;
    for (int64_t c = 0; c < C; ++c) total += std::exp(row[c] - top);
    for (int64_t s = 0; s < samples; ++s) {
      double at = random.uniform() * total;
      int64_t c = 0;
      while (c + 1 < C && (at -= std::exp(row[c] - top)) >= 0) ++c;
      out.push_back(static_cast<double>(c));
    }
  }
  ctx.set(0, from_doubles(ctx, shape, dtype, out));
  return ok_status();
}

// dropout(x, ratio?, training?) -> y, mask: the identity unless training.
Status dropout(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  int64_t training = 0;
  double ratio = 0.5;
  if (ctx.has(2)) { OAR_ASSIGN(training, ctx.scalar_int(2)); }
  if (ctx.has(1)) { OAR_ASSIGN(ratio, ctx.scalar(1)); }
  if (!ctx.wants(1) && (!training || ratio == 0)) return ctx.set(0, x), ok_status();
  OAR_ASSIGN(Tensor mask, ctx.allocate(x.shape(), DType::kBool));
  std::fill_n(mutable_elements<uint8_t>(mask), mask.numel(), uint8_t{1});
  if (!training || ratio == 0) {
    ctx.set(0, x);
    ctx.set(1, std::move(mask));
    return ok_status();
  }
  if (!dtype_is_float(dtype_of(x)) || !(ratio > 0 && ratio < 1))
    return invalid_argument("needs floats and a ratio in [0, 1)");
  Random random(static_cast<double>(ctx.attrs().get_int("seed")));
  std::vector<double> v = to_doubles(x);
  for (size_t k = 0; k < v.size(); ++k) {
    const bool keep = random.uniform() >= ratio;
    mutable_elements<uint8_t>(mask)[k] = keep;
    v[k] = keep ? v[k] / (1 - ratio) : 0;
  }
  ctx.set(0, from_doubles(ctx, x.shape(), dtype_of(x), v));
  ctx.set(1, std::move(mask));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
#define OAR_RANDOM_OP(op) extern const OpDef op_##op = {.name = #op, .evaluate = tensor::op, .impure = true}
OAR_RANDOM_OP(bernoulli);
OAR_RANDOM_OP(multinomial);
OAR_RANDOM_OP(random_normal);
OAR_RANDOM_OP(random_uniform);
extern const OpDef op_dropout = {
    .name = "dropout", .vjp = gradient::dropout, .evaluate = tensor::dropout, .impure = true};
}  // namespace oar
