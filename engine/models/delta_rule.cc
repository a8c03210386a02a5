// Layers of a gated delta rule, https://arxiv.org/abs/2412.06464, whose state forgets and then takes a value
// in the place of what it had for a key.
//
//   q, k, v = silu(causal_conv(W x));  o (rms_norm(state_scan(q / |q| sqrt D, k / |k|, v)) silu(z))
#include <cmath>

#include "engine/models/model.h"

namespace oar {
namespace {

// What the projections make of x, rows as the convolution has its channels: (T, 2 Hk Dk + Hv Dv), (T, Hv Dv),
// (T, Hv), (T, Hv).
struct Projected {
  Val qkv, z, b, a;
};

Projected project(ModelBuilder& b, Val x, const std::string& p) {
  // By key head: q, k, the values and gates of its value heads; then their b and a.
  const ScanConfig& s = b.c.scan;
  const int64_t per = s.heads / s.key_heads, D = s.key_dim, V = per * s.value_dim;
  const auto make = [&](const char* name) { return b.linear(x, p + name, false); };
  const auto part = [&](Val from, int64_t begin, int64_t end) {
    return b.merge_heads(b.slice(from, begin, end));
  };
  const bool apart = b.has(p + "in_proj_qkv.weight");
  if (apart && b.has(p + "in_proj_b.weight"))
    return {make("in_proj_qkv"), make("in_proj_z"), make("in_proj_b"), make("in_proj_a")};
  const Val ba = b.split_heads(make("in_proj_ba"), s.key_heads, 2 * per);
  const Val gates = part(ba, 0, per), steps = part(ba, per, 2 * per);
  if (apart) return {make("in_proj_qkv"), make("in_proj_z"), gates, steps};
  const Val all = b.split_heads(make("in_proj_qkvz"), s.key_heads, 2 * D + 2 * V);
  const Val qkv = b.op("concat", {part(all, 0, D), part(all, D, 2 * D), part(all, 2 * D, 2 * D + V)},
                       {{"axis", int64_t{1}}});
  return {qkv, part(all, 2 * D + V, 2 * D + 2 * V), gates, steps};
}

}  // namespace

Val ModelBuilder::delta_rule(Val x, const std::string& p) {
  const ScanConfig& s = c.scan;
  const int64_t K = s.key_heads * s.key_dim, V = s.heads * s.value_dim;
  const Projected made = project(*this, x, p);
  // In front of the convolution, as the projection is.
  const Val steps = op("softplus", {add(made.a, weight(p + "dt_bias", {s.heads}))});
  const Val g = op("mul", {steps, decay_rate(p)}), beta = op("sigmoid", {made.b});
  const Val mixed = op("silu", {causal_conv(made.qkv, p + "conv1d", 2 * K + V, c.conv_kernel, false)});
  const auto part = [&](int64_t begin, int64_t end, int64_t count, int64_t dim) {
    return split_heads(slice(mixed, begin, end), count, dim);
  };
  // x / |x|, |x|^2 + 1e-6 under the root, and q by 1 / sqrt D once more.
  const auto unit = [&](Val v, double by) {
    const auto D = static_cast<double>(s.key_dim);
    return op("rms_norm", {v, filled(s.key_dim, by / std::sqrt(D))}, {{"epsilon", 1e-6 / D}});
  };
  // Where value heads are tiled over key heads, those are repeated, so that each has its own.
  const auto tiled = [&](Val v) {
    if (!s.tiled || s.heads == s.key_heads) return v;
    return op("concat", std::vector<Val>(static_cast<size_t>(s.heads / s.key_heads), v),
              {{"axis", int64_t{1}}});
  };
  const Val q =
      tiled(unit(part(0, K, s.key_heads, s.key_dim), 1 / std::sqrt(static_cast<double>(s.key_dim))));
  const Val k = tiled(unit(part(K, 2 * K, s.key_heads, s.key_dim), 1));
  const Val v = part(2 * K, 2 * K + V, s.heads, s.value_dim);
  const Val read = op("state_scan", {q, k, v, g, beta, in.segments}, {{"delta", int64_t{1}}});
  const Val normed = merge_heads(rms_norm(read, weight(p + "norm.weight", {s.value_dim})));
  return linear(gated(made.z, normed), p + "out_proj", false);
}

}  // namespace oar
