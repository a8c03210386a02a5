// Llama 2 and 3, https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2407.21783; Mistral (the same with a
// window, https://arxiv.org/abs/2310.06825); Qwen 2 (biases on q, k, v come with the checkpoint,
// https://arxiv.org/abs/2407.10671); Qwen 3 (each query and key head normalized before its rotation,
// https://arxiv.org/abs/2505.09388); and their mixtures.
//
//   x += attention(rms_norm(x));  x += mlp(rms_norm(x))
#include "engine/base/format.h"
#include "engine/models/model.h"

namespace oar {
namespace {

Val attention(ModelBuilder& b, Val x, const std::string& layer, int64_t n) {
  const std::string p = layer + "self_attn.";
  Val q = b.split_heads(b.linear(x, p + "q_proj"), b.c.heads);     // (T, H, D)
  Val k = b.split_heads(b.linear(x, p + "k_proj"), b.c.kv_heads);  // (T, K, D)
  Val v = b.split_heads(b.linear(x, p + "v_proj"), b.c.kv_heads);
  if (b.has(p + "q_norm.weight")) {
    q = b.rms_norm(q, p + "q_norm");
    k = b.rms_norm(k, p + "k_norm");
  }
  return b.linear(b.merge_heads(b.attention(b.rope(q), b.rope(k), v, n)), p + "o_proj");
}

template <Val (*kMlp)(ModelBuilder&, Val, const std::string&, int64_t)>
Val hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat("model.layers.", n, ".");
    x = b.add(x, attention(b, b.rms_norm(x, layer + "input_layernorm"), layer, n));
    x = b.add(x, kMlp(b, b.rms_norm(x, layer + "post_attention_layernorm"), layer, n));
  }
  return b.rms_norm(x, "model.norm");
}

Val dense(ModelBuilder& b, Val x, const std::string& layer, int64_t) {
  return b.gated_mlp(x, layer + "mlp.");
}

Val qwen_experts(ModelBuilder& b, Val x, const std::string& layer, int64_t n) {
  if (b.c.experts == 0 || b.c.dense_layer[static_cast<size_t>(n)]) return dense(b, x, layer, n);
  return b.experts(x, layer + "mlp.gate", layer + "mlp.experts", "gate_proj", "up_proj", "down_proj");
}

Val mixtral_experts(ModelBuilder& b, Val x, const std::string& layer, int64_t n) {
  if (!b.has(layer + "block_sparse_moe.gate.weight")) return qwen_experts(b, x, layer, n);  // GGUF's names
  return b.experts(x, layer + "block_sparse_moe.gate", layer + "block_sparse_moe.experts", "w1", "w3", "w2");
}

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace

extern const Architecture architecture_llama = {"llama", hidden<dense>, kHead, kEmbedding};
extern const Architecture architecture_mistral = {"mistral", hidden<dense>, kHead, kEmbedding};
extern const Architecture architecture_qwen2 = {"qwen2", hidden<dense>, kHead, kEmbedding};
extern const Architecture architecture_qwen3 = {"qwen3", hidden<dense>, kHead, kEmbedding};
extern const Architecture architecture_qwen3_moe = {"qwen3_moe", hidden<qwen_experts>, kHead, kEmbedding};
extern const Architecture architecture_mixtral = {"mixtral", hidden<mixtral_experts>, kHead, kEmbedding};

}  // namespace oar
