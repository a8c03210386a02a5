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

// A layer of Mamba-2.
void mamba_layer(const Layer& l, const ModelConfig& c, const std::string& at) {
  const ScanConfig& s = c.scan;
  const int64_t E = c.width, I = s.heads * s.value_dim, inner = I + 2 * s.key_heads * s.key_dim;
  for (const char* number : {"A_log", "D", "dt_bias"}) l.add(at + number, {s.heads});
  l.add(at + "conv1d.weight", {inner, 1, c.conv_kernel});
  if (c.conv_bias) l.add(at + "conv1d.bias", {inner});
  l.add(at + "in_proj.weight", {I + inner + s.heads, E});
  if (c.mamba.bias) l.add(at + "in_proj.bias", {I + inner + s.heads});
  if (c.mamba.normed) l.add(at + "norm.weight", {I});
  l.add(at + "out_proj.weight", {E, I});
  if (c.mamba.output_bias) l.add(at + "out_proj.bias", {E});
}

void granite_layer(const Layer& l, const ModelConfig& c, int64_t n) {
  const int64_t E = c.width;
  if (c.is_recurrent(n)) mamba_layer(l, c, "mamba.");
  else l.attention(c, 1);
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
  if (c.experts == 0 || c.dense_layer[static_cast<size_t>(n)]) return l.mlp("mlp.", c.ffn, E);
  if (c.model_type == "mistral4") {
    l.add("mlp.gate.weight", {c.experts, E});
    l.add("mlp.experts.gate_up_proj", {c.experts, 2 * c.expert_ffn, E});
    l.add("mlp.experts.down_proj", {c.experts, E, c.expert_ffn});
  } else {
    l.mixture(c);
  }
  if (c.route.score == "sigmoid") l.add("mlp.gate.e_score_correction_bias", {c.experts});
  l.mlp("mlp.shared_experts.", size_of(config, "n_shared_experts", 1) * c.expert_ffn, E);
}

void lfm2_layer(const Layer& l, const ModelConfig& c, int64_t n) {
  const int64_t E = c.width, D = c.head_dim;
  l.add("operator_norm.weight", {E});
  l.add("ffn_norm.weight", {E});
  const auto biased = [&](const std::string& name, std::vector<int64_t> shape) {
    if (c.conv_bias) l.add(name + ".bias", {shape[0]});
    l.add(name + ".weight", std::move(shape));
  };
  if (c.is_recurrent(n)) {
    biased("conv.conv", {E, 1, c.conv_kernel});
    biased("conv.in_proj", {3 * E, E});
    biased("conv.out_proj", {E, E});
  } else {
    l.add("self_attn.q_proj.weight", {c.heads * D, E});
    for (const char* name : {"self_attn.k_proj.weight", "self_attn.v_proj.weight"})
      l.add(name, {c.kv_heads * D, E});
    l.add("self_attn.out_proj.weight", {E, c.heads * D});
    for (const char* name : {"self_attn.q_layernorm.weight", "self_attn.k_layernorm.weight"})
      l.add(name, {D});
  }
  const auto mlp = [&](const std::string& at, int64_t F) {
    for (const char* in : {"w1.weight", "w3.weight"}) l.add(at + in, {F, E});
    l.add(at + "w2.weight", {E, F});
  };
  if (c.experts == 0 || c.dense_layer[static_cast<size_t>(n)]) return mlp("feed_forward.", c.ffn);
  l.add("feed_forward.gate.weight", {c.experts, E});
  if (c.route.corrected) l.add("feed_forward.expert_bias", {c.experts});
  for (int64_t e = 0; e < c.experts; ++e) mlp(cat("feed_forward.experts.", e, "."), c.expert_ffn);
}

void falcon_layer(const Layer& l, const ModelConfig& c) {
  l.add("input_layernorm.weight", {c.width});
  l.add("pre_ff_layernorm.weight", {c.width});
  mamba_layer(l, c, "mamba.");
  l.attention(c, 1);
  l.mlp("feed_forward.", c.ffn, c.width);
  if (!c.mlp_bias) return;
  for (const char* in : {"gate_proj.bias", "up_proj.bias"}) l.add(std::string("feed_forward.") + in, {c.ffn});
  l.add("feed_forward.down_proj.bias", {c.width});
}

// Mamba-2 and Nemotron H, whose layers are one thing each.
void single_layer(const Layer& l, const json::object& config, const ModelConfig& c, int64_t n) {
  const int64_t E = c.width;
  l.add("norm.weight", {E});
  const auto mlp = [&](const std::string& at, int64_t F, int64_t in) {
    l.add(at + "up_proj.weight", {F, in});
    l.add(at + "down_proj.weight", {in, F});
    if (!c.mlp_bias) return;
    l.add(at + "up_proj.bias", {F});
    l.add(at + "down_proj.bias", {in});
  };
  switch (c.kinds.empty() ? LayerKind::kScan : c.kinds[static_cast<size_t>(n)]) {
    case LayerKind::kScan: return mamba_layer(l, c, "mixer.");
    case LayerKind::kAttention:
      l.add("mixer.q_proj.weight", {c.heads * c.head_dim, E});
      for (const char* name : {"mixer.k_proj.weight", "mixer.v_proj.weight"})
        l.add(name, {c.kv_heads * c.head_dim, E});
      return l.add("mixer.o_proj.weight", {E, c.heads * c.head_dim});
    case LayerKind::kMlp: return mlp("mixer.", c.ffn, E);
    case LayerKind::kExperts: break;
  }
  const int64_t narrow = size_of(config, "moe_latent_size", 0);
  l.add("mixer.gate.weight", {c.experts, E});
  l.add("mixer.gate.e_score_correction_bias", {c.experts});
  for (int64_t e = 0; e < c.experts; ++e)
    mlp(cat("mixer.experts.", e, "."), c.expert_ffn, narrow > 0 ? narrow : E);
  mlp("mixer.shared_experts.", size_of(config, "moe_shared_expert_intermediate_size", 7688), E);
  if (narrow == 0) return;
  l.add("mixer.fc1_latent_proj.weight", {narrow, E});
  l.add("mixer.fc2_latent_proj.weight", {E, narrow});
}

}  // namespace

std::optional<std::vector<TensorSpec>> hybrid_tensors(const json::object& config, const ModelConfig& c) {
  const std::string& type = c.model_type;
  const bool delta = type.starts_with("qwen3_5") || type == "qwen3_next",
             granite = type == "granitemoehybrid", latent = c.latent.rank > 0,
             lfm2 = type.starts_with("lfm2"), falcon = type == "falcon_h1",
             single = type == "mamba2" || type == "nemotron_h";
  if ((!delta && !granite && !latent && !lfm2 && !falcon && !single) || c.attention_bias) return std::nullopt;
  const std::string stem = single ? "backbone." : "model.";
  std::vector<TensorSpec> out;
  out.push_back({stem + (single ? "embeddings.weight" : "embed_tokens.weight"), {c.vocab, c.width}});
  for (int64_t n = 0; n < c.layers; ++n) {
    const Layer l{out, cat(stem, "layers.", n, ".")};
    if (delta || granite || latent) {
      l.add("input_layernorm.weight", {c.width});
      l.add("post_attention_layernorm.weight", {c.width});
    }
    if (delta) delta_layer(l, config, c, n);
    if (granite) granite_layer(l, c, n);
    if (latent) latent_layer(l, config, c, n);
    if (lfm2) lfm2_layer(l, c, n);
    if (falcon) falcon_layer(l, c);
    if (single) single_layer(l, config, c, n);
  }
  const char* norm = lfm2     ? "embedding_norm.weight"
                     : falcon ? "final_layernorm.weight"
                     : single ? "norm_f.weight"
                              : "norm.weight";
  out.push_back({stem + norm, {c.width}, Fill::kOnes});
  if (!c.tied) out.push_back({"lm_head.weight", {c.vocab, c.width}});
  return out;
}

}  // namespace oar
