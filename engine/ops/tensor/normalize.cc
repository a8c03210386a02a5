// Normalizations that language models have not (norm.cc has the others). Statistics in double; results
// rounded once.
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/tensor/util.h"
#include "kernels/norm.h"

namespace oar::tensor {
namespace {

// A float operand as doubles; an error names it otherwise.
Result<std::vector<double>> floats(const EvalContext& ctx, size_t operand, int64_t count) {
  OAR_ASSIGN(const Tensor t, ctx.tensor(operand));
  if (!dtype_is_float(dtype_of(t))) return bad_dtype(t);
  if (count >= 0 && t.numel() != count)
    return invalid_argument(cat("operand ", operand, " needs ", count, " values"));
  return to_doubles(t);
}

double epsilon_of(const EvalContext& ctx) { return ctx.attrs().get_float("epsilon", 1e-5); }

// batch_norm(x, scale, bias, mean, variance) {epsilon}; training_mode also yields running statistics.
Status batch_norm(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  if (!dtype_is_float(dtype_of(x)) || x.shape().rank() < 1) return bad_dtype(x);
  const int64_t C = x.shape().rank() > 1 ? x.shape()[1] : 1, N = x.shape()[0],
                inner = extent(x.shape(), std::min(2, x.shape().rank()), x.shape().rank());
  OAR_ASSIGN(const auto scale, floats(ctx, 1, C));
  OAR_ASSIGN(const auto bias, floats(ctx, 2, C));
  OAR_ASSIGN(auto mean, floats(ctx, 3, C));
  OAR_ASSIGN(auto variance, floats(ctx, 4, C));
  const double epsilon = epsilon_of(ctx);
  if (ctx.attrs().get_int("training_mode")) {
    const std::vector<double> v = to_doubles(x);
    const double momentum = ctx.attrs().get_float("momentum", 0.9), count = static_cast<double>(N * inner);
    std::vector<double> running_mean(mean), running_var(variance);
    for (int64_t c = 0; c < C; ++c) {
      double m = 0, s = 0;
      for (int64_t n = 0; n < N; ++n)
        for (int64_t i = 0; i < inner; ++i) m += v[static_cast<size_t>((n * C + c) * inner + i)];
      m /= count;
      for (int64_t n = 0; n < N; ++n)
        for (int64_t i = 0; i < inner; ++i) {
          const double d = v[static_cast<size_t>((n * C + c) * inner + i)] - m;
          s += d * d;
        }
      const auto k = static_cast<size_t>(c);
      mean[k] = m, variance[k] = s / count;
      running_mean[k] = running_mean[k] * momentum + m * (1 - momentum);
      running_var[k] = running_var[k] * momentum + variance[k] * (1 - momentum);
    }
    OAR_ASSIGN(const Tensor like, ctx.tensor(3));
    ctx.set(1, from_doubles(ctx, {C}, dtype_of(like), running_mean));
    ctx.set(2, from_doubles(ctx, {C}, dtype_of(like), running_var));
  }
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), dtype_of(x)));
  dispatch_float(dtype_of(x), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = typename Element<T>::Compute;
    const T* in = elements<T>(x);
    T* out = mutable_elements<T>(y);
    ctx.parallel(N * C, 0.5 * static_cast<double>(inner), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const auto c = static_cast<size_t>(p % C);
        const double factor = scale[c] / std::sqrt(variance[c] + epsilon);
        const A f = static_cast<A>(factor), b = static_cast<A>(bias[c] - mean[c] * factor);
        if constexpr (std::is_same_v<T, float>) {
          scale_and_shift(in + p * inner, out + p * inner, inner, f, b);
        } else {
          for (int64_t i = p * inner; i < (p + 1) * inner; ++i)
            out[i] = Element<T>::store(Element<T>::load(in[i]) * f + b);
        }
      }
    });
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

// Each run of `n` elements to zero mean and unit variance; then f(run, index, value).
template <class F>
Status normalize_runs(EvalContext& ctx, const Tensor& x, int64_t n, F&& f) {
  const double epsilon = epsilon_of(ctx);
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), dtype_of(x)));
  const int64_t runs = n > 0 ? x.numel() / n : 0;
  if (!dispatch_float(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using A = typename Element<T>::Compute;
        ctx.parallel(runs, 3.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            const T* in = elements<T>(x) + r * n;
            double mean = 0, square = 0;
            for (int64_t k = 0; k < n; ++k) mean += static_cast<double>(Element<T>::load(in[k]));
            mean /= static_cast<double>(n);
            for (int64_t k = 0; k < n; ++k) {
              const double d = static_cast<double>(Element<T>::load(in[k])) - mean;
              square += d * d;
            }
            const double inverse = 1 / std::sqrt(square / static_cast<double>(n) + epsilon);
            for (int64_t k = 0; k < n; ++k) {
              const double v = (static_cast<double>(Element<T>::load(in[k])) - mean) * inverse;
              mutable_elements<T>(y)[r * n + k] = Element<T>::store(static_cast<A>(f(r, k, v)));
            }
          }
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// The channels of x (N, C, ...) in `groups`, each of which is normalized by itself, and what they are
// multiplied by and added to: one value per channel, or per group (opset 18).
struct ChannelGroups {
  Tensor x;
  int64_t groups = 1;
  std::vector<double> scale, bias;
  int64_t channels() const { return x.shape()[1]; }
  int64_t per() const { return channels() / groups; }
  int64_t inner() const { return extent(x.shape(), 2, x.shape().rank()); }
  size_t at(int64_t channel) const {
    return static_cast<size_t>(channel / (channels() / static_cast<int64_t>(scale.size())));
  }
};

// instance_norm(x, scale, bias) {epsilon}, group_norm with {num_groups}.
template <bool kGroups>
Result<ChannelGroups> channel_groups(const EvalContext& ctx) {
  ChannelGroups c;
  OAR_ASSIGN(c.x, ctx.tensor(0));
  if (c.x.shape().rank() < 2) return invalid_argument("needs (N, C, ...)");
  c.groups = kGroups ? ctx.attrs().get_int("num_groups", 1) : c.channels();
  if (kGroups && (c.groups < 1 || c.channels() % c.groups != 0))
    return invalid_argument("num_groups does not divide the channels");
  OAR_ASSIGN(c.scale, floats(ctx, 1, kGroups ? -1 : c.channels()));
  const auto count = static_cast<int64_t>(c.scale.size());
  if (count != c.channels() && count != c.groups)
    return invalid_argument("scale and bias need one value per channel or group");
  OAR_ASSIGN(c.bias, floats(ctx, 2, count));
  return c;
}

template <bool kGroups>
Status normalize_channels(EvalContext& ctx) {
  OAR_ASSIGN(const ChannelGroups c, channel_groups<kGroups>(ctx));
  const int64_t inner = c.inner(), per = c.per();
  return normalize_runs(ctx, c.x, per * inner, [&](int64_t r, int64_t k, double v) {
    const size_t at = c.at(r % c.groups * per + k / inner);
    return v * c.scale[at] + c.bias[at];
  });
}

// f32: the rows of a LayerNorm, each scaled and shifted by channel while the cache has it.
template <bool kGroups>
Result<bool> normalize_by_kernel(KernelContext& ctx) {
  OAR_ASSIGN(const ChannelGroups c, channel_groups<kGroups>(ctx));
  if (dtype_of(c.x) != DType::kF32 || c.x.numel() == 0) return false;
  OAR_ASSIGN(Tensor y, ctx.allocate(c.x.shape(), DType::kF32));
  const Kernel& norm = f32_kernel(ctx.backend(), KernelFamily::kLayerNorm);
  ctx.uses(norm);
  const int64_t inner = c.inner(), per = c.per(), n = per * inner;
  LayerNormArgs args;
  args.rows = 1, args.cols = args.ldx = args.ldo = n, args.eps = static_cast<float>(epsilon_of(ctx));
  const float* in = elements<float>(c.x);
  float* out = mutable_elements<float>(y);
  ctx.parallel(c.x.numel() / n, 0.5 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    OneThread thread;
    for (int64_t r = begin; r < end; ++r) {
      LayerNormArgs a = args;
      a.x = in + r * n, a.out = out + r * n;
      thread.run(norm, &a);
      for (int64_t k = 0; k < per; ++k) {
        const size_t at = c.at(r % c.groups * per + k);
        scale_and_shift(a.out + k * inner, a.out + k * inner, inner, static_cast<float>(c.scale[at]),
                        static_cast<float>(c.bias[at]));
      }
    }
  });
  ctx.set(0, std::move(y));
  return true;
}

Status lp_normalization(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis", -1), x.shape().rank()));
  const int64_t p = ctx.attrs().get_int("p", 2), n = x.shape()[axis],
                inner = extent(x.shape(), axis + 1, x.shape().rank());
  if (!dtype_is_float(dtype_of(x)) || (p != 1 && p != 2))
    return invalid_argument("needs floats and p of 1 or 2");
  std::vector<double> v = to_doubles(x);
  for (int64_t l = 0; n > 0 && l < x.numel() / n; ++l) {
    const int64_t base = l / inner * n * inner + l % inner;
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double e = v[static_cast<size_t>(base + k * inner)];
      sum += p == 1 ? std::abs(e) : e * e;
    }
    const double norm = p == 1 ? sum : std::sqrt(sum);
    for (int64_t k = 0; k < n; ++k) {
      double& e = v[static_cast<size_t>(base + k * inner)];
      e = norm == 0 ? 0 : e / norm;
    }
  }
  ctx.set(0, from_doubles(ctx, x.shape(), dtype_of(x), v));
  return ok_status();
}

// Local response normalization across channels.
Status lrn(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const double alpha = ctx.attrs().get_float("alpha", 1e-4), beta = ctx.attrs().get_float("beta", 0.75),
               bias = ctx.attrs().get_float("bias", 1);
  const int64_t size = ctx.attrs().get_int("size", 1);
  if (x.shape().rank() < 2 || size < 1 || !dtype_is_float(dtype_of(x)))
    return invalid_argument("needs (N, C, ...) of floats and a positive size");
  const int64_t C = x.shape()[1], inner = extent(x.shape(), 2, x.shape().rank());
  const std::vector<double> v = to_doubles(x);
  std::vector<double> y(v.size());
  for (int64_t k = 0; k < x.numel(); ++k) {
    const int64_t c = k / inner % C, from = std::max<int64_t>(0, c - (size - 1) / 2),
                  to = std::min(C - 1, c + size / 2);
    double sum = 0;
    for (int64_t j = from; j <= to; ++j) sum += std::pow(v[static_cast<size_t>(k + (j - c) * inner)], 2);
    y[static_cast<size_t>(k)] =
        v[static_cast<size_t>(k)] / std::pow(bias + alpha / static_cast<double>(size) * sum, beta);
  }
  ctx.set(0, from_doubles(ctx, x.shape(), dtype_of(x), y));
  return ok_status();
}

// (x - mean) / (deviation + 1e-9) over axes (0, 2, 3) unless told.
Status mean_variance_normalization(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  if (!dtype_is_float(dtype_of(x))) return bad_dtype(x);
  std::vector<int64_t> axes = ctx.attrs().get_ints("axes");
  if (!ctx.attrs().has("axes")) axes = {0, 2, 3};
  std::vector<bool> gone(static_cast<size_t>(x.shape().rank()), false);
  for (int64_t a : axes) {
    OAR_ASSIGN(const int axis, checked_axis(a, x.shape().rank()));
    gone[static_cast<size_t>(axis)] = true;
  }
  std::vector<double> v = to_doubles(x);
  std::vector<int64_t> group(v.size());
  int64_t groups = 1;
  for (int k = x.shape().rank() - 1; k >= 0; --k) {
    if (gone[static_cast<size_t>(k)]) continue;
    const int64_t inner = extent(x.shape(), k + 1, x.shape().rank());
    for (size_t e = 0; e < v.size(); ++e) group[e] += static_cast<int64_t>(e) / inner % x.shape()[k] * groups;
    groups *= x.shape()[k];
  }
  std::vector<double> sum(static_cast<size_t>(groups), 0), square(sum), count(sum);
  for (size_t e = 0; e < v.size(); ++e)
    sum[static_cast<size_t>(group[e])] += v[e], count[static_cast<size_t>(group[e])] += 1;
  for (size_t e = 0; e < v.size(); ++e) {
    const auto g = static_cast<size_t>(group[e]);
    v[e] -= sum[g] / count[g];
    square[g] += v[e] * v[e];
  }
  for (size_t e = 0; e < v.size(); ++e)
    v[e] /= std::sqrt(square[static_cast<size_t>(group[e])] / count[static_cast<size_t>(group[e])]) + 1e-9;
  ctx.set(0, from_doubles(ctx, x.shape(), dtype_of(x), v));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_DEFINED_OP(batch_norm, tensor::batch_norm);
OAR_DEFINED_OP(group_norm, tensor::normalize_channels<true>, .by_kernels = tensor::normalize_by_kernel<true>);
OAR_DEFINED_OP(instance_norm, tensor::normalize_channels<false>,
               .by_kernels = tensor::normalize_by_kernel<false>);
OAR_DEFINED_OP(lp_normalization, tensor::lp_normalization);
OAR_DEFINED_OP(lrn, tensor::lrn);
OAR_DEFINED_OP(mean_variance_normalization, tensor::mean_variance_normalization);
}  // namespace oar
