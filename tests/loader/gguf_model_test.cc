// GGUF's names and metadata in Hugging Face's words.
#include "engine/loader/gguf_model.h"

#include <cmath>

#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

using oar_test::Contains;
using oar_test::exact_buffer;
using oar_test::floats;
using oar_test::GgufBuilder;

Result<json::object> config_of(const GgufBuilder& b) {
  const auto file = parse_gguf(exact_buffer(b.bytes()), "m.gguf");
  REQUIRE_OK(file);
  return gguf_config(*file);
}

// The least a llama file says: width 8, 2 heads.
GgufBuilder small(const char* arch) {
  const std::string p = std::string(arch) + ".";
  GgufBuilder b;
  b.str("general.architecture", arch).u32(p + "embedding_length", 8).u32(p + "block_count", 2);
  b.u32(p + "attention.head_count", 2).u32(p + "feed_forward_length", 16).u32(p + "context_length", 128);
  return b;
}

TEST_CASE("gguf names: decoders") {
  CHECK(hugging_face_name("llama", "token_embd.weight") == "model.embed_tokens.weight");
  CHECK(hugging_face_name("llama", "output.weight") == "lm_head.weight");
  CHECK(hugging_face_name("llama", "output_norm.weight") == "model.norm.weight");
  CHECK(hugging_face_name("llama", "blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight");
  CHECK(hugging_face_name("qwen2", "blk.0.attn_k.bias") == "model.layers.0.self_attn.k_proj.bias");
  CHECK(hugging_face_name("qwen3", "blk.7.attn_q_norm.weight") == "model.layers.7.self_attn.q_norm.weight");
  CHECK(hugging_face_name("qwen3moe", "blk.1.ffn_gate_inp.weight") == "model.layers.1.mlp.gate.weight");
  CHECK(hugging_face_name("qwen3moe", "blk.1.ffn_gate_exps.weight") ==
        "model.layers.1.mlp.experts.gate_proj.weight");
  CHECK(hugging_face_name("llama", "blk.1.ffn_down.5.weight") ==
        "model.layers.1.mlp.experts.5.down_proj.weight");
  CHECK(hugging_face_name("llama", "blk.1.ffn_norm.weight") ==
        "model.layers.1.post_attention_layernorm.weight");
}

TEST_CASE("gguf names: gpt2") {
  CHECK(hugging_face_name("gpt2", "token_embd.weight") == "transformer.wte.weight");
  CHECK(hugging_face_name("gpt2", "position_embd.weight") == "transformer.wpe.weight");
  CHECK(hugging_face_name("gpt2", "blk.3.attn_qkv.bias") == "transformer.h.3.attn.c_attn.bias");
  CHECK(hugging_face_name("gpt2", "blk.3.ffn_down.weight") == "transformer.h.3.mlp.c_proj.weight");
}

TEST_CASE("gguf names: unknown ones stay as they are") {
  for (const char* name : {"blk.1.unheard_of.weight", "blk.1", "blk.", "weight", "", ".", "blk..weight",
                           "blk.1..weight", "token_embd", "blk.1.ffn_gate.x.weight", "blk.1.5.weight"}) {
    CAPTURE(name);
    CHECK(hugging_face_name("llama", name) == name);
  }
  CHECK(hugging_face_name("bert", "token_embd.weight") == "token_embd.weight");
}

TEST_CASE("gguf config: llama") {
  GgufBuilder b = small("llama");
  b.u32("llama.attention.head_count_kv", 1).f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  b.f32("llama.rope.freq_base", 500000.0f).u32("llama.rope.dimension_count", 4);
  b.tensor("token_embd.weight", {8, 3}, 1, std::string(48, '\0'));
  const auto c = config_of(b);
  REQUIRE_OK(c);
  CHECK(c->at("architectures") == json::array{"LlamaForCausalLM"});
  CHECK(c->at("model_type") == "llama");
  CHECK(c->at("hidden_size") == 8);
  CHECK(c->at("num_hidden_layers") == 2);
  CHECK(c->at("num_attention_heads") == 2);
  CHECK(c->at("num_key_value_heads") == 1);
  CHECK(c->at("head_dim") == 4);
  CHECK(c->at("intermediate_size") == 16);
  CHECK(c->at("max_position_embeddings") == 128);
  CHECK(c->at("vocab_size") == 3);
  CHECK(c->at("rms_norm_eps").as_double() == Approx(1e-5));
  CHECK(c->at("rope_theta") == 500000.0);
  CHECK(c->at("tie_word_embeddings") == true);
  CHECK(c->at("rope_interleaved") == true);
  CHECK(c->at("hidden_act") == "silu");
  CHECK(c->at("torch_dtype") == "float16");
  CHECK_FALSE(c->contains("partial_rotary_factor"));
  CHECK_FALSE(c->contains("rope_scaling"));
}

TEST_CASE("gguf config: what llama files also are") {
  CHECK(config_of(small("llama").u32("llama.expert_count", 8).u32("llama.expert_used_count", 2))
            ->at("model_type") == "mixtral");
  const auto mistral = config_of(small("llama").u32("llama.attention.sliding_window", 64));
  CHECK(mistral->at("model_type") == "mistral");
  CHECK(mistral->at("sliding_window") == 64);
  CHECK(config_of(small("llama").u32("llama.expert_count", 0))->at("model_type") == "llama");
}

TEST_CASE("gguf config: qwen") {
  const auto c = config_of(small("qwen3moe")
                               .u32("qwen3moe.expert_count", 16)
                               .u32("qwen3moe.expert_used_count", 4)
                               .u32("qwen3moe.expert_feed_forward_length", 24)
                               .u32("qwen3moe.attention.key_length", 16)
                               .u32("qwen3moe.attention.value_length", 16)
                               .tensor("output.weight", {8, 3}, 0, std::string(96, '\0')));
  REQUIRE_OK(c);
  CHECK(c->at("architectures") == json::array{"Qwen3MoeForCausalLM"});
  CHECK(c->at("num_experts") == 16);
  CHECK(c->at("num_experts_per_tok") == 4);
  CHECK(c->at("moe_intermediate_size") == 24);
  CHECK(c->at("norm_topk_prob") == true);
  CHECK(c->at("head_dim") == 16);
  CHECK(c->at("num_key_value_heads") == 2);  // as many as query heads
  CHECK(c->at("tie_word_embeddings") == false);
  CHECK_FALSE(c->contains("rope_interleaved"));
}

TEST_CASE("gguf config: gpt2 has Hugging Face's other names") {
  const auto c = config_of(small("gpt2").f32("gpt2.attention.layer_norm_epsilon", 1e-5f));
  REQUIRE_OK(c);
  CHECK(c->at("n_embd") == 8);
  CHECK(c->at("n_layer") == 2);
  CHECK(c->at("n_head") == 2);
  CHECK(c->at("n_positions") == 128);
  CHECK(c->at("n_inner") == 16);
  CHECK(c->at("activation_function") == "gelu_new");
  CHECK(c->at("linear_out_in") == true);
}

TEST_CASE("gguf config: rope scaling") {
  const auto yarn = config_of(small("llama")
                                  .str("llama.rope.scaling.type", "yarn")
                                  .f32("llama.rope.scaling.factor", 4.0f)
                                  .u32("llama.rope.scaling.original_context_length", 32));
  CHECK(yarn->at("rope_scaling") ==
        json::object{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}});
  CHECK(config_of(small("llama").f32("llama.rope.scale_linear", 2.0f))->at("rope_scaling") ==
        json::object{{"rope_type", "linear"}, {"factor", 2.0}});
  CHECK_FALSE(config_of(small("llama").str("llama.rope.scaling.type", "none"))->contains("rope_scaling"));
  const auto table = config_of(small("llama").tensor("rope_freqs.weight", {2}, 0, floats({1, 8})));
  CHECK(table->at("rope_scaling") ==
        json::object{{"rope_type", "freq_factors"}, {"factors", json::array{1.0, 8.0}}});
  CHECK_THAT(config_of(small("llama").tensor("rope_freqs.weight", {2}, 0, floats({0, 8}))).status().message(),
             Contains("rope_freqs.weight") && Contains("not 0"));
  CHECK_THAT(
      config_of(small("llama").tensor("rope_freqs.weight", {2}, 1, std::string(4, '\0'))).status().message(),
      Contains("must be f32"));
}

TEST_CASE("gguf config: YaRN's factor of attention multiplies its own, or is what the checkpoint has") {
  const auto scaled = [](const char* key) {
    return config_of(small("llama")
                         .str("llama.rope.scaling.type", "yarn")
                         .f32("llama.rope.scaling.factor", 4.0f)
                         .f32(key, 0.5f));
  };
  const auto older = scaled("llama.rope.scaling.attn_factor"),
             newer = scaled("llama.rope.scaling.yarn_attn_factor");
  REQUIRE_OK(older);
  REQUIRE_OK(newer);
  CHECK(older->at("rope_scaling").at("attention_factor").as_double() ==
        Approx(0.5 * (1 + 0.1 * std::log(4.0))));
  CHECK(newer->at("rope_scaling").at("attention_factor").as_double() == 0.5);
  CHECK_THAT(config_of(small("llama").f32("llama.rope.scaling.attn_factor", 0.5f)).status().message(),
             Contains("attn_factor"));
  CHECK_THAT(config_of(small("llama")
                           .str("llama.rope.scaling.type", "linear")
                           .f32("llama.rope.scaling.factor", 4.0f)
                           .tensor("rope_freqs.weight", {2}, 0, floats({1, 8})))
                 .status()
                 .message(),
             Contains("tensor of factors"));
}

TEST_CASE("gguf config: a key that changes the computation and is not read is refused by name") {
  for (const char* key : {"attention.clamp_kqv", "attn_logit_softcapping", "logit_scale",
                          "expert_shared_count", "rope.scaling.yarn_log_multiplier"}) {
    const std::string full = std::string("llama.") + key;
    CHECK_THAT(config_of(small("llama").f32(full, 0.25f)).status().message(), Contains(full));
  }
  REQUIRE_OK(config_of(small("llama").f32("llama.logit_scale", 1.0f)));
  REQUIRE_OK(config_of(small("llama").f32("llama.attn_logit_softcapping", 0.0f)));
  const auto file = parse_gguf(exact_buffer(small("llama").u32("llama.unheard_of", 3).bytes()), "m.gguf");
  REQUIRE_OK(file);
  std::vector<std::string> notices;
  REQUIRE_OK(gguf_config(*file, &notices));
  REQUIRE(notices.size() == 1);
  CHECK_THAT(notices[0], Contains("llama.unheard_of"));
}

TEST_CASE("gguf names: what Mamba-2's files have without an end") {
  CHECK(hugging_face_name("mamba2", "blk.3.ssm_a") == "backbone.layers.3.mixer.A");
  CHECK(hugging_face_name("mamba2", "blk.3.ssm_dt.bias") == "backbone.layers.3.mixer.dt_bias");
  CHECK(hugging_face_name("falcon-h1", "blk.3.ffn_norm") == "model.layers.3.pre_ff_layernorm.weight");
  CHECK(hugging_face_name("falcon-h1", "blk.3.ffn_norm.weight") == "model.layers.3.pre_ff_layernorm.weight");
  CHECK(hugging_face_name("llama", "blk.3.ssm_a") == "blk.3.ssm_a");
}

TEST_CASE("gguf config: kinds of layers are read from lists, and refused where they mean none") {
  const auto lists = [](const char* arch, std::vector<int32_t> kv_heads, std::vector<int32_t> ffn) {
    const std::string p = std::string(arch) + ".";
    GgufBuilder b;
    b.str("general.architecture", arch).u32(p + "embedding_length", 8).u32(p + "block_count", 4);
    b.u32(p + "attention.head_count", 2).u32(p + "ssm.inner_size", 16).u32(p + "ssm.time_step_rank", 4);
    b.array(p + "attention.head_count_kv", GgufType::kI32, kv_heads);
    return b.array(p + "feed_forward_length", GgufType::kI32, ffn);
  };
  const auto c = config_of(lists("nemotron_h", {0, 2, 0, 0}, {0, 0, 24, 0}));
  REQUIRE_OK(c);
  CHECK(c->at("layer_types") == json::array{"linear_attention", "full_attention", "mlp", "linear_attention"});
  CHECK(c->at("num_key_value_heads") == 2);
  CHECK(c->at("mamba_head_dim") == 4);
  // A layer behind the last, for drafts, is none.
  const auto drafts =
      config_of(lists("nemotron_h", {0, 2, 0, 2}, {0, 0, 24, 0}).u32("nemotron_h.nextn_predict_layers", 1));
  REQUIRE_OK(drafts);
  CHECK(drafts->at("layer_types").as_array().size() == 3);
  CHECK(drafts->at("num_hidden_layers") == 3);
  const auto error = [&](auto... v) { return config_of(lists(v...)).status().message(); };
  using List = std::vector<int32_t>;
  CHECK_THAT(error("granitehybrid", List{0, 2, 4, 0}, List{24, 24, 24, 24}),
             Contains("attention.head_count_kv has 4 beside 2"));
  CHECK_THAT(error("nemotron_h", List{0, 2, 0}, List{0, 0, 24, 0}), Contains("3 entries for 4 layers"));
  CHECK_THAT(error("nemotron_h", List{0, 2, 0, 0}, List{0, 24, 24, 0}),
             Contains("attention.head_count_kv is 2 and feed_forward_length 24 at layer 1"));
  GgufBuilder endless;
  endless.str("general.architecture", "lfm2").u32("lfm2.block_count", INT32_MAX);
  endless.u32("lfm2.attention.head_count_kv", 2);
  CHECK_THAT(config_of(endless).status().message(), Contains("block_count is 2147483647; at most 65536"));
  GgufBuilder uneven;
  uneven.str("general.architecture", "mamba2").u32("mamba2.block_count", 1);
  uneven.u32("mamba2.ssm.inner_size", 10).u32("mamba2.ssm.time_step_rank", 4);
  CHECK_THAT(config_of(uneven).status().message(), Contains("ssm.inner_size 10 is no multiple"));
}

TEST_CASE("gguf config: deepseek2 is V2 or V3 by its router, in both forms of its lengths") {
  const auto latent = [] {
    GgufBuilder b = small("deepseek2");
    return b.u32("deepseek2.attention.kv_lora_rank", 32).u32("deepseek2.rope.dimension_count", 8);
  };
  const auto newer = [&] {
    GgufBuilder b = latent();
    b.u32("deepseek2.attention.key_length", 40).u32("deepseek2.attention.value_length", 32);
    return b.u32("deepseek2.attention.key_length_mla", 24).u32("deepseek2.attention.value_length_mla", 20);
  };
  const auto v2 = config_of(newer());
  REQUIRE_OK(v2);
  CHECK(v2->at("model_type") == "deepseek_v2");
  CHECK(v2->at("q_lora_rank").is_null());
  for (const auto& c : {*v2, *config_of(latent()
                                            .u32("deepseek2.attention.key_length", 24)
                                            .u32("deepseek2.attention.value_length", 20))}) {
    CHECK(c.at("qk_nope_head_dim") == 16);
    CHECK(c.at("qk_rope_head_dim") == 8);
    CHECK(c.at("v_head_dim") == 20);
  }
  CHECK(config_of(newer().u32("deepseek2.expert_gating_func", 2))->at("model_type") == "deepseek_v3");
  const auto corrected = newer().tensor("blk.1.exp_probs_b.bias", {2}, 0, floats({1, 8}));
  CHECK(config_of(corrected)->at("model_type") == "deepseek_v3");
  CHECK_THAT(config_of(newer().u32("deepseek2.expert_gating_func", 3)).status().message(),
             Contains("expert_gating_func is 3"));
  CHECK_THAT(config_of(latent().u32("deepseek2.attention.key_length", 8)).status().message(),
             Contains("rope.dimension_count 8 is not within"));
}

TEST_CASE("gguf config: unheardmoe is no architecture of ours") {
  const auto c = config_of(small("unheardmoe").u32("unheardmoe.expert_count", 60));
  REQUIRE_OK(c);
  CHECK(c->at("model_type") == "unheardmoe");  // engine/models refuses it by this name
  CHECK_FALSE(c->contains("architectures"));
}

TEST_CASE("gguf config: per-layer values serve when equal") {
  GgufBuilder b;
  b.str("general.architecture", "llama")
      .array<uint32_t>("llama.attention.head_count", GgufType::kU32, {4, 4});
  CHECK(config_of(b)->at("num_attention_heads") == 4);
  GgufBuilder d;
  d.str("general.architecture", "llama")
      .array<uint32_t>("llama.attention.head_count", GgufType::kU32, {4, 8});
  CHECK_THAT(config_of(d).status().message(),
             Contains("llama.attention.head_count") && Contains("differs between layers"));
}

TEST_CASE("gguf config: each fault is named") {
  CHECK_THAT(config_of(GgufBuilder()).status().message(), Contains("general.architecture is missing"));
  const auto error = [](GgufBuilder b) { return config_of(b).status().message(); };
  GgufBuilder b;
  b.str("general.architecture", "llama").u32("llama.block_count", UINT32_MAX);
  CHECK_THAT(error(b), Contains("llama.block_count") && Contains("4294967295"));
  GgufBuilder s;
  s.str("general.architecture", "llama").str("llama.embedding_length", "8");
  CHECK_THAT(error(s), Contains("llama.embedding_length") && Contains("not string"));
  CHECK_THAT(error(small("llama").f32("llama.rope.freq_base", NAN)), Contains("llama.rope.freq_base"));
  CHECK_THAT(
      error(small("llama").u32("llama.attention.key_length", 4).u32("llama.attention.value_length", 8)),
      Contains("value_length 8"));
}

TEST_CASE("gguf config: an unknown architecture can be inspected") {
  const auto c = config_of(small("bert"));
  REQUIRE_OK(c);
  CHECK(c->at("model_type") == "bert");
  CHECK(c->at("hidden_size") == 8);
  CHECK_FALSE(c->contains("architectures"));
}

}  // namespace
}  // namespace oar
