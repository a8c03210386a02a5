// Llama 2 and 3, https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2407.21783; Mistral (the same with a
// window, https://arxiv.org/abs/2310.06825); Qwen 2 (biases on q, k, v come with the checkpoint,
// https://arxiv.org/abs/2407.10671); Qwen 3 (each query and key head normalized before its rotation,
// https://arxiv.org/abs/2505.09388); Seed-OSS; and their mixtures.
//
//   x += attention(rms_norm(x));  x += mlp(rms_norm(x))
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kLlama = {.ffn = 11008, .max_context = 2048};
constexpr DecoderDefaults kMistral = {
    .ffn = 14336, .max_context = 131072, .kv_heads = 8, .windows = Windows::kAll};
constexpr DecoderDefaults kQwen2 = {
    .ffn = 22016, .max_context = 32768, .kv_heads = 32, .windows = Windows::kUpper, .attention_bias = true};
constexpr DecoderDefaults kQwen3 = {
    .ffn = 22016, .max_context = 32768, .kv_heads = 32, .head_dim = 128, .windows = Windows::kUpper};
constexpr DecoderDefaults kQwen3Moe = {
    .ffn = 6144, .max_context = 32768, .kv_heads = 4, .windows = Windows::kSwitched};
constexpr DecoderDefaults kMixtral = {.ffn = 14336,
                                      .max_context = 131072,
                                      .kv_heads = 8,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e6,
                                      .windows = Windows::kAll,
                                      .window = 0};
constexpr DecoderDefaults kSeedOss = {
    .ffn = 27648, .max_context = 524288, .kv_heads = 8, .head_dim = 128, .attention_bias = true};

template <const DecoderDefaults& kDefaults>
Status read_llama(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kDefaults, c));
  OAR_ASSIGN(c.mlp_bias, r.boolean("mlp_bias", false));
  return check_gate(c, "hidden_act");
}

template <const DecoderDefaults& kDefaults>
Status read_qwen3(ConfigReader& r, ModelConfig& c) {
  c.head_norms = HeadNorms::kEach;
  OAR_RETURN_IF_ERROR(r.expect("use_qk_norm", true));
  return read_llama<kDefaults>(r, c);
}

Status read_qwen3_moe(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_qwen3<kQwen3Moe>(r, c));
  return read_experts(r, {.count = 128, .per_token = 8, .ffn = 768}, c);
}

Status read_mixtral(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_llama<kMixtral>(r, c));
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 8, .per_token = 2}, c));
  c.route.normalize = true;
  return ok_status();
}

Status read_seed_oss(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_llama<kSeedOss>(r, c));
  OAR_ASSIGN(c.output_bias, r.boolean("attention_out_bias", false));
  return ok_status();
}

template <Val (*kMlp)(ModelBuilder&, Val, const std::string&, int64_t)>
Val llama_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat("model.layers.", n, ".");
    x = b.add(x, b.self_attention(b.rms_norm(x, layer + "input_layernorm"), layer + "self_attn.", n));
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

}  // namespace

extern const Architecture architecture_llama = {"llama", read_llama<kLlama>, llama_hidden<dense>};
extern const Architecture architecture_mistral = {"mistral", read_llama<kMistral>, llama_hidden<dense>};
extern const Architecture architecture_qwen2 = {"qwen2", read_llama<kQwen2>, llama_hidden<dense>};
extern const Architecture architecture_qwen3 = {"qwen3", read_qwen3<kQwen3>, llama_hidden<dense>};
extern const Architecture architecture_seed_oss = {"seed_oss", read_seed_oss, llama_hidden<dense>};
extern const Architecture architecture_qwen3_moe = {"qwen3_moe", read_qwen3_moe, llama_hidden<qwen_experts>};
extern const Architecture architecture_mixtral = {"mixtral", read_mixtral, llama_hidden<mixtral_experts>};

}  // namespace oar
