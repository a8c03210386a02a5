// Layers of Mamba-2, https://arxiv.org/abs/2405.21060, which scan with one decay a head: those of a model
// that has no others, and beside attention.
//
//   z, x, B, C, dt = W u;  x, B, C = silu(causal_conv(x, B, C));  dt = clip(softplus(dt + bias))
//   y = state_scan(C, B, x, dt A, dt) + D x,  A = -exp(A_log)
//   out = W' norm(y silu(z)),  or W' (norm(y) silu(z)),  or W' (y silu(z));  a norm in each group
#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

// [least, most] of `time_step_limit`, of which the latter may be infinite.
Status read_step_limit(ConfigReader& r, MambaConfig& m) {
  const json::value* v = r.value("time_step_limit");
  if (v == nullptr) return ok_status();
  const auto number = [](const json::value& one) {
    return one.is_number() ? std::optional(one.to_number<double>()) : special_float(one);
  };
  if (v->is_array() && v->get_array().size() == 2) {
    const auto least = number(v->get_array()[0]), most = number(v->get_array()[1]);
    if (least && most && std::isfinite(*least) && *most > 0 && *least <= *most) {
      m.least_step = *least, m.most_step = *most;
      return ok_status();
    }
  }
  return invalid_argument(cat("config.json: 'time_step_limit' is ", json::serialize(*v).substr(0, 80),
                              ", expected the least and the most step, two numbers"));
}

}  // namespace

Status check_silu(const ModelConfig& c, const char* key) {
  if (c.activation == "silu" || c.activation == "swish") return ok_status();
  return unimplemented(cat("config.json: '", key, "' is '", c.activation, "', which ", c.model_type,
                           " is not run with here; expected silu"));
}

Status read_mamba(ConfigReader& r, const MambaKeys& keys, ModelConfig& c) {
  int64_t width = 0;
  if (keys.expand != nullptr) {
    OAR_ASSIGN(const int64_t expand, r.integer({keys.expand}, 1, 64, 2));
    width = expand * c.width;
  }
  if (keys.width != nullptr) {
    OAR_ASSIGN(width, r.integer({keys.width}, 1, 1 << 22, keys.absent_width, width));
  }
  OAR_ASSIGN(c.scan.heads, r.integer({keys.heads}, 1, 1 << 14, keys.absent_heads));
  c.scan.value_dim = keys.absent_head_dim > 0 ? keys.absent_head_dim : width / c.scan.heads;
  const json::value* size = r.value(keys.head_dim);
  if (size == nullptr || *size != json::value("auto")) {
    OAR_ASSIGN(c.scan.value_dim, r.integer({keys.head_dim}, 1, 1 << 12, c.scan.value_dim));
  }
  OAR_ASSIGN(c.scan.key_dim, r.integer({keys.state}, 1, 1 << 12, keys.absent_state));
  OAR_ASSIGN(c.scan.key_heads, r.integer({keys.groups}, 1, 1 << 12, keys.absent_groups));
  if (c.scan.heads % c.scan.key_heads != 0)
    return invalid_argument(cat("config.json: '", keys.heads, "' ", c.scan.heads, " is no multiple of '",
                                keys.groups, "' ", c.scan.key_heads));
  if (width > 0 && c.scan.heads * c.scan.value_dim != width)
    return invalid_argument(cat("config.json: '", keys.heads, "' ", c.scan.heads, " of '", keys.head_dim,
                                "' ", c.scan.value_dim, " are not the ", width, " of '",
                                keys.width != nullptr ? keys.width : keys.expand, "'"));
  OAR_ASSIGN(c.conv_kernel, r.integer({keys.conv}, 1, 64, 4));
  OAR_ASSIGN(c.conv_bias, r.boolean(keys.conv_bias, true));
  OAR_ASSIGN(c.mamba.bias, r.boolean(keys.bias, false));
  c.mamba.output_bias = c.mamba.bias;
  if (c.scan.value_dim < 1)
    return invalid_argument(cat("config.json: '", keys.heads, "' leaves heads nothing"));
  OAR_RETURN_IF_ERROR(read_step_limit(r, c.mamba));
  // How steps began in training, and how long the chunks are that others compute a prompt in.
  r.without_effect(
      "time_step_rank time_step_min time_step_max time_step_floor time_step_init_scheme chunk_size "
      "mamba_chunk_size mamba_dt_min mamba_dt_max mamba_dt_init_floor use_mamba_kernels "
      "mamba_ssm_cache_dtype");
  return ok_status();
}

namespace {
Val numbers(ModelBuilder& b, const char* name, const Shape& shape, const std::vector<float>& values) {
  auto t = Tensor::allocate(shape, Format::f32());
  if (!t.ok()) {
    b.fail(t.status());
    return {};
  }
  std::copy(values.begin(), values.end(), t->mutable_values<float>().begin());
  return b.constant(name, std::move(*t));
}
}  // namespace

Val ModelBuilder::decay_rate(const std::string& p) {
  if (has(p + "A")) return weight(p + "A", {c.scan.heads});
  // The number comes first: what is made of a tensor is no tensor of the file.
  return op("mul", {scalar(-1), op("exp", {weight(p + "A_log", {c.scan.heads})})});
}

Val ModelBuilder::mamba(Val u, const std::string& p) {
  const ScanConfig& s = c.scan;
  const MambaConfig& m = c.mamba;
  const int64_t I = s.heads * s.value_dim, G = s.key_heads, N = s.key_dim;
  const std::array<int64_t, 5> widths{I, I, G * N, G * N, s.heads};
  Val all = linear(scale(u, m.input_scale), p + "in_proj", m.bias);
  if (m.scales != std::array<double, 5>{1, 1, 1, 1, 1}) {
    std::vector<float> scales;
    for (size_t k = 0; k < widths.size(); ++k)
      scales.insert(scales.end(), static_cast<size_t>(widths[k]), static_cast<float>(m.scales[k]));
    all = op("mul", {all, numbers(*this, "mamba.scales", {2 * I + 2 * G * N + s.heads}, scales)});
  }
  const int64_t inner = I + 2 * G * N;
  const Val z = slice(all, 0, I), dt = slice(all, I + inner, I + inner + s.heads);
  // In front of the convolution, as the projection is.
  Val step = op("softplus", {add(dt, weight(p + "dt_bias", {s.heads}))});
  if (m.least_step > 0) step = op("max", {step, scalar(m.least_step)});
  if (std::isfinite(m.most_step)) step = op("min", {step, scalar(m.most_step)});
  const Val decay = op("mul", {step, decay_rate(p)});
  const Val mixed =
      op("silu", {causal_conv(slice(all, I, I + inner), p + "conv1d", inner, c.conv_kernel, c.conv_bias)});
  const Val x = split_heads(slice(mixed, 0, I), s.heads, s.value_dim),
            B = split_heads(slice(mixed, I, I + G * N), G, N),
            C = split_heads(slice(mixed, I + G * N, inner), G, N);
  // D is spread over its head's columns once, at load: in a step a product along two axes would have no
  // kernel.
  const Val ones =
      numbers(*this, "mamba.ones", {s.heads, s.value_dim}, std::vector<float>(static_cast<size_t>(I), 1));
  const Val D = op("reshape", {weight(p + "D", {s.heads})}, {{"shape", std::vector<int64_t>{s.heads, 1}}});
  const Val skip =
      op("reshape", {op("mul", {scalar(-1), op("mul", {ones, D})})}, {{"shape", std::vector<int64_t>{I}}});
  const Val read = op("state_scan", {C, B, x, decay, step, in.segments}, {{"delta", int64_t{0}}});
  const Val y = op("sub", {merge_heads(read), op("mul", {slice(mixed, 0, I), skip})});
  const auto norm = [&](Val v) {
    if (G == 1) return rms_norm(v, weight(p + "norm.weight", {I}));
    return op("mul", {merge_heads(rms_norm(split_heads(v, G, I / G))), weight(p + "norm.weight", {I})});
  };
  const auto gated = [&](Val v) { return op("swiglu", {z, v}); };
  const Val out = !m.normed ? gated(y) : m.norm_first ? gated(norm(y)) : norm(gated(y));
  return scale(linear(out, p + "out_proj", m.output_bias), m.output_scale);
}

}  // namespace oar
