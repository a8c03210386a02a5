// Normalizations: over a batch, channels, groups of these, windows of these, or any axes.
#include <algorithm>

#include "engine/ops/define/definitions.h"

namespace oar::definition {
namespace {

using Vals = std::span<const Val>;

// One value per channel as it meets (N, C, ...).
Val per_channel(Builder& b, Val v, size_t rank) {
  if (rank < 2) return v;
  Ints shape(rank - 1, 1);
  shape[0] = -1;
  return reshaped(b, v, shape);
}

// Mean and variance along `axes`, which stay.
struct Moments {
  Val centered, variance, mean;
};
Moments moments(Builder& b, Val x, const Ints& axes) {
  Moments m;
  m.mean = reduced(b, "reduce_mean", x, axes);
  m.centered = b.op("sub", {x, m.mean});
  m.variance = reduced(b, "reduce_mean", b.op("square", {m.centered}), axes);
  return m;
}

// 1 / sqrt(variance + epsilon)
Val inverse_deviation(Builder& b, Val variance, const Attrs& attrs) {
  return b.op("rsqrt", {b.op("add", {variance, b.scalar(attrs.get_float("epsilon", 1e-5))})});
}

}  // namespace

// (x - mean) / sqrt(variance + epsilon) scale + bias; training_mode takes both from the batch, and moves the
// running ones by {momentum}. https://arxiv.org/abs/1502.03167
std::vector<Val> batch_norm(Builder& b, Vals in, const Attrs& attrs) {
  const size_t rank = b.shape(in[0]).size();
  const auto channel = [&](Val v) { return per_channel(b, v, rank); };
  std::vector<Val> out(1);
  Val centered, variance;
  if (attrs.get_bool("training_mode")) {
    Ints axes = axes_from(2, static_cast<int64_t>(rank));
    axes.insert(axes.begin(), 0);
    const Moments m = moments(b, in[0], axes);
    centered = m.centered, variance = m.variance;
    const double momentum = attrs.get_float("momentum", 0.9);
    const auto moved = [&](Val running, Val batch) {
      return b.op("add", {b.op("mul", {running, b.scalar(momentum)}),
                          b.op("mul", {reshaped(b, batch, {-1}), b.scalar(1 - momentum)})});
    };
    out.push_back(moved(in[3], m.mean));
    out.push_back(moved(in[4], m.variance));
  } else {
    centered = b.op("sub", {in[0], channel(in[3])});
    variance = channel(in[4]);
  }
  const Val y = b.op("mul", {b.op("mul", {centered, inverse_deviation(b, variance, attrs)}), channel(in[1])});
  out[0] = b.op("add", {y, channel(in[2])});
  return out;
}

// Each channel of each entry by itself. https://arxiv.org/abs/1607.08022
std::vector<Val> instance_norm(Builder& b, Vals in, const Attrs& attrs) {
  const size_t rank = b.shape(in[0]).size();
  const Moments m = moments(b, in[0], axes_from(2, static_cast<int64_t>(rank)));
  const Val y = b.op("mul", {m.centered, inverse_deviation(b, m.variance, attrs)});
  return {b.op("add", {b.op("mul", {y, per_channel(b, in[1], rank)}), per_channel(b, in[2], rank)})};
}

// {num_groups} channels of a group together; scale and bias per channel, or per group.
// https://arxiv.org/abs/1803.08494
std::vector<Val> group_norm(Builder& b, Vals in, const Attrs& attrs) {
  const Ints shape = extents(b, in[0]), scales = extents(b, in[1]);
  const int64_t groups = attrs.get_int("num_groups", 1);
  if (!b.status().ok() || shape.size() < 2 || scales.size() != 1)
    return b.fail(invalid_argument("needs (N, C, ...) and a list of scales")), std::vector<Val>{};
  const Moments m = moments(b, reshaped(b, in[0], {0, groups, -1}), {2});
  Val y = b.op("mul", {m.centered, inverse_deviation(b, m.variance, attrs)});
  const bool by_group = scales[0] == groups && scales[0] != shape[1];
  const auto spread = [&](Val v) {
    return by_group ? reshaped(b, v, {groups, 1}) : per_channel(b, v, shape.size());
  };
  if (!by_group) y = reshaped(b, y, shape);
  y = b.op("add", {b.op("mul", {y, spread(in[1])}), spread(in[2])});
  return {by_group ? reshaped(b, y, shape) : y};
}

// x / |x| along {axis} by the norm of {p}; 0 where that is 0.
std::vector<Val> lp_normalization(Builder& b, Vals in, const Attrs& attrs) {
  const Val x = real(b, in[0]);
  const Ints axes{attrs.get_int("axis", -1)};
  const Val norm = reduced(b, attrs.get_int("p", 2) == 1 ? "reduce_l1" : "reduce_l2", x, axes);
  const Val divisor = b.op("where", {b.op("equal", {norm, b.scalar(0)}), b.scalar(1), norm});
  return {b.op("div", {x, divisor})};
}

// x / (bias + alpha / size sum of squares of `size` channels around it)^beta
std::vector<Val> lrn(Builder& b, Vals in, const Attrs& attrs) {
  Ints shape = extents(b, in[0]);
  const int64_t size = attrs.get_int("size", 1);
  if (!b.status().ok() || shape.size() < 2 || size < 1)
    return b.fail(invalid_argument("needs (N, C, ...) and a positive size")), std::vector<Val>{};
  // Channels beyond the first and the last add nothing.
  const int64_t C = shape[1], before = std::clamp<int64_t>((size - 1) / 2, 0, C),
                after = std::min(size / 2, C);
  const auto none = [&](int64_t channels) {
    shape[1] = channels;
    return filled(b, shape, 0);
  };
  std::vector<Val> parts{b.op("square", {in[0]})};
  if (before > 0) parts.insert(parts.begin(), none(before));
  if (after > 0) parts.push_back(none(after));
  const Val padded = joined(b, parts, 1);
  Val sum = cut(b, padded, 1, 0, C);
  for (int64_t k = 1; k <= before + after; ++k) sum = b.op("add", {sum, cut(b, padded, 1, k, k + C)});
  const double alpha = attrs.get_float("alpha", 1e-4) / static_cast<double>(size);
  const Val base = b.op("add", {b.op("mul", {sum, b.scalar(alpha)}), b.scalar(attrs.get_float("bias", 1))});
  return {b.op("div", {in[0], b.op("pow", {base, b.scalar(attrs.get_float("beta", 0.75))})})};
}

// (x - mean) / (deviation + 1e-9) along {axes: 0, 2, 3}
std::vector<Val> mean_variance_normalization(Builder& b, Vals in, const Attrs& attrs) {
  const Moments m = moments(b, in[0], attrs.has("axes") ? attrs.get_ints("axes") : Ints{0, 2, 3});
  return {b.op("div", {m.centered, b.op("add", {b.op("sqrt", {m.variance}), b.scalar(1e-9)})})};
}

}  // namespace oar::definition
