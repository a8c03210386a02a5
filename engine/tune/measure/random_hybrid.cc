// Tensors of hybrids and of attention over a latent, as their checkpoints have them.
#include "engine/tune/measure/random_hybrid.h"
#include "engine/base/format.h"

namespace oar {
namespace {

using Fill = TensorSpec::Fill;

int64_t size_of(const json::object& config, const char* key, int64_t absent) {
  const json::value* v = config.if_contains(key);
  return v != nullptr && v->is_int64() && v->get_int64() > 0 && v->get_int64() <= 1 << 22 ? v->get_int64()
                                                                                          : absent;
}

struct Layer {
  std::vector<TensorSpec>& out;
  std::string prefix;
  void add(std::string_view name, std::vector<int64_t> shape) const {
    const Fill fill = shape.size() == 1 ? Fill::kOnes : Fill::kNormal;
    out.push_back({prefix + std::string(name), std::move(shape), fill});
  }
  void mlp(const std::string& at, int64_t F, int64_t E) const {
    add(at + "gate_proj.weight", {F, E});
    add(at + "up_proj.weight", {F, E});
    add(at + "down_proj.weight", {E, F});
  }
  void mixture(const ModelConfig& c) const {
    add("mlp.gate.weight", {c.experts, c.width});
    for (int64_t e = 0; e < c.experts; ++e) mlp(cat("mlp.experts.", e, "."), c.expert_ffn, c.width);
  }
  void attention(const ModelConfig& c, int64_t query_parts) const {
    add("self_attn.q_proj.weight", {query_parts * c.heads * c.head_dim, c.width});
    add("self_attn.k_proj.weight", {c.kv_heads * c.head_dim, c.width});
    add("self_attn.v_proj.weight", {c.kv_heads * c.head_dim, c.width});
    add("self_attn.o_proj.weight", {c.width, c.heads * c.head_dim});
  }
};

void delta_layer(const Layer& l, const json::object& config, const ModelConfig& c, int64_t n) {
  const ScanConfig& s = c.scan;
  const int64_t E = c.width, V = s.heads * s.value_dim, QKV = 2 * s.key_heads * s.key_dim + V;
  if (c.is_recurrent(n)) {
    l.add("linear_attn.A_log", {s.heads});
    l.add("linear_attn.dt_bias", {s.heads});
    l.add("linear_attn.conv1d.weight", {QKV, 1, c.conv_kernel});
    if (c.model_type == "qwen3_next") {
      l.add("linear_attn.in_proj_qkvz.weight", {QKV + V, E});
      l.add("linear_attn.in_proj_ba.weight", {2 * s.heads, E});
    } else {
      l.add("linear_attn.in_proj_qkv.weight", {QKV, E});
      l.add("linear_attn.in_proj_z.weight", {V, E});
      l.add("linear_attn.in_proj_a.weight", {s.heads, E});
      l.add("linear_attn.in_proj_b.weight", {s.heads, E});
    }
    l.add("linear_attn.norm.weight", {s.value_dim});
    l.add("linear_attn.out_proj.weight", {E, V});
  } else {
    l.attention(c, 2);  // and a gate
    l.add("self_attn.q_norm.weight", {c.head_dim});
    l.add("self_attn.k_norm.weight", {c.head_dim});
  }
  if (c.experts == 0 || c.dense_layer[static_cast<size_t>(n)]) return l.mlp("mlp.", c.ffn, E);
  l.mixture(c);
  l.mlp("mlp.shared_expert.", size_of(config, "shared_expert_intermediate_size", 512), E);
  l.add("mlp.shared_expert_gate.weight", {1, E});
}

void granite_layer(const Layer& l, const ModelConfig& c, int64_t n) {
  const ScanConfig& s = c.scan;
  const int64_t E = c.width, I = s.heads * s.value_dim, inner = I + 2 * s.key_heads * s.key_dim;
  if (c.is_recurrent(n)) {
    for (const char* number : {"mamba.A_log", "mamba.D", "mamba.dt_bias"}) l.add(number, {s.heads});
    l.add("mamba.conv1d.weight", {inner, 1, c.conv_kernel});
    if (c.conv_bias) l.add("mamba.conv1d.bias", {inner});
    l.add("mamba.in_proj.weight", {I + inner + s.heads, E});
    if (c.mamba.bias) l.add("mamba.in_proj.bias", {I + inner + s.heads});
    l.add("mamba.norm.weight", {I});
    l.add("mamba.out_proj.weight", {E, I});
    if (c.mamba.output_bias) l.add("mamba.out_proj.bias", {E});
  } else {
    l.attention(c, 1);
  }
  if (c.experts > 0) {
    l.add("block_sparse_moe.input_linear.weight", {c.experts, 2 * c.expert_ffn, E});
    l.add("block_sparse_moe.output_linear.weight", {c.experts, E, c.expert_ffn});
    l.add("block_sparse_moe.router.layer.weight", {c.experts, E});
  }
  l.add("shared_mlp.input_linear.weight", {2 * c.ffn, E});
  l.add("shared_mlp.output_linear.weight", {E, c.ffn});
}

void latent_layer(const Layer& l, const json::object& config, const ModelConfig& c, int64_t n) {
  const LatentShape& s = c.latent;
  const int64_t E = c.width, Q = c.heads * (s.nope + s.rope);
  if (s.query_rank > 0) {
    l.add("self_attn.q_a_proj.weight", {s.query_rank, E});
    l.add("self_attn.q_a_layernorm.weight", {s.query_rank});
    l.add("self_attn.q_b_proj.weight", {Q, s.query_rank});
  } else {
    l.add("self_attn.q_proj.weight", {Q, E});
  }
  l.add("self_attn.kv_a_proj_with_mqa.weight", {s.rank + s.rope, E});
  l.add("self_attn.kv_a_layernorm.weight", {s.rank});
  l.add("self_attn.kv_b_proj.weight", {c.heads * (s.nope + s.value), s.rank});
  l.add("self_attn.o_proj.weight", {E, c.heads * s.value});
  if (c.dense_layer[static_cast<size_t>(n)]) return l.mlp("mlp.", c.ffn, E);
  l.mixture(c);
  if (c.route.score == "sigmoid") l.add("mlp.gate.e_score_correction_bias", {c.experts});
  l.mlp("mlp.shared_experts.", size_of(config, "n_shared_experts", 1) * c.expert_ffn, E);
}

}  // namespace

std::optional<std::vector<TensorSpec>> hybrid_tensors(const json::object& config, const ModelConfig& c) {
  const bool delta = c.model_type.starts_with("qwen3_5") || c.model_type == "qwen3_next",
             granite = c.model_type == "granitemoehybrid",
             latent = c.latent.rank > 0 && c.model_type != "minicpm3" && c.model_type != "mistral4";
  if ((!delta && !granite && !latent) || c.attention_bias) return std::nullopt;
  std::vector<TensorSpec> out;
  out.push_back({"model.embed_tokens.weight", {c.vocab, c.width}});
  for (int64_t n = 0; n < c.layers; ++n) {
    const Layer l{out, cat("model.layers.", n, ".")};
    l.add("input_layernorm.weight", {c.width});
    l.add("post_attention_layernorm.weight", {c.width});
    if (delta) delta_layer(l, config, c, n);
    if (granite) granite_layer(l, c, n);
    if (latent) latent_layer(l, config, c, n);
  }
  out.push_back({"model.norm.weight", {c.width}, Fill::kOnes});
  if (!c.tied) out.push_back({"lm_head.weight", {c.vocab, c.width}});
  return out;
}

}  // namespace oar
