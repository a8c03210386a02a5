// Attention over a latent: what is kept of a token, which tiers keep it, pages of every size, weights of
// every kind behind kv_b_proj, and what is refused.
#include <cmath>

#include "engine/base/format.h"
#include "engine/loader/quantization_config.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/serving_plan.h"
#include "tests/models/served_fixture.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
using namespace oar;

constexpr const char* kLatents[] = {"deepseek-v2", "deepseek-v3", "glm4-moe-lite", "minicpm3", "mistral4"};

LanguageModelOptions latent_options(const char* kv, int32_t page) {
  LanguageModelOptions o;
  o.threads = 2;
  o.max_batch_tokens = 192;
  o.max_sequences = 64;
  o.page_tokens = page;
  o.kv = kv;
  return o;
}

Status served(const TinyGolden& golden, const LanguageModelOptions& options) {
  const auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  const auto config = read_model_config(checkpoint->config);
  if (!config.ok()) return config.status();
  return build_serving_graph(*checkpoint, *config, options).status();
}

}  // namespace

TEST_CASE("latent: a token keeps rank + rope numbers and no values") {
  for (const char* name : kLatents) {
    const auto checkpoint = load_checkpoint(write_tiny_model(load_tiny_golden(name), TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    const auto graph = build_serving_graph(*checkpoint, *config, latent_options("bf16", 64));
    REQUIRE_OK(graph);
    INFO(name);
    const auto numbers = static_cast<uint64_t>(config->latent.rank + config->latent.rope);
    CHECK(kv_bytes_per_token(graph->layout, 64) == static_cast<uint64_t>(config->layers) * numbers * 2);
  }
  // DeepSeek's: 512 + 64.
  CHECK(kv_block_bytes({DType::kBF16, 64, 1, 576, 512}) == size_t{64} * 1152);
}

// f32 as golden_test.cc; others round each key and value, and queries and probabilities as they may: four
// places a layer, by 2^-11 (f16), 2^-9 (bf16), 1 / 254 of a row's largest, which is within 4 of its scale
// (int8), 0.95 / 15 of it (int4, kv_codec.h), or 2^-4 (fp8). Two of these places are those of scores, which
// YaRN's growth and that of queries by their position multiply.
double bound_of(std::string_view tier, const ModelConfig& c, const TinyGolden& golden) {
  if (tier == "f32") return 1e-4;
  const double sharper = c.attention_scale * std::sqrt(static_cast<double>(c.latent.nope + c.latent.rope));
  const double periods = std::floor(static_cast<double>(golden.tokens.size() - 1) / c.position_period);
  const double grown = 1 + c.position_beta * std::log1p(periods);
  const double step = tier == "f16" || tier == "bf16" ? 0x1p-9
                      : tier == "int8"                ? 4.0 / 254
                      : tier == "int4"                ? 4 * 0.95 / 15
                                                      : 0x1p-4;
  return (2 + 2 * sharper * grown) * static_cast<double>(c.layers) * step;
}

TEST_CASE("latent: every tier it is kept in, in pages of 16 and 64, gives the golden's logits") {
  for (const char* name : kLatents) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    // A mixture whose closest choice of experts is this close may take others where keys are rounded.
    const bool narrow = golden.router_margin_f32 && *golden.router_margin_f32 < 0.005;
    for (const int32_t page : {16, 64}) {
      for (const char* kv : {"f32", "f16", "bf16", "int8", "fp8", "int4"}) {
        if (narrow && std::string_view(kv) != "f32") continue;
        // So does Mistral 4's, by 0.023 of a logit: YaRN makes its scores sharper. What these tiers round of
        // it is held below, where it has no mixture and where every expert is chosen.
        const bool kept = std::string_view(kv) == "f32" || std::string_view(kv) == "f16";
        if (std::string_view(name) == "mistral4" && !kept) continue;
        RunnerFixture model(path, latent_options(kv, page));
        INFO(name << " " << kv << " pages of " << page);
        const double bound = bound_of(kv, model.config, golden);
        const double error = relative_error(model.run_prompt(golden.tokens), golden.logits_f32);
        CAPTURE(error, bound);
        CHECK(error < bound);
      }
    }
  }
}

// The mixtures themselves over narrow caches. Which experts a token has is a step: a choice that is close
// falls the other way by any rounding, and the logits with it. So every expert is chosen here; what remains
// of a mixture, its scores, weights and products, is smooth, and is held to the bound of what tiers round.
TEST_CASE("latent: mixtures over every tier, where no choice of experts can fall another way") {
  Sample sample(3);
  for (const char* name : {"deepseek-v2", "deepseek-v3", "glm4-moe-lite", "mistral4"}) {
    TinyGolden golden = load_tiny_golden(name);
    json::object config = json::parse(golden.config).as_object();
    const json::value experts = config.at("n_routed_experts");  // the next line may move it
    config["num_experts_per_tok"] = experts;
    config["topk_group"] = config.contains("n_group") ? config.at("n_group") : json::value(1);
    golden.config = json::serialize(config);
    golden.name = cat(name, "-all-experts");
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    const std::vector<float> want = RunnerFixture(path, latent_options("f32", 16)).run_prompt(golden.tokens);
    for (const char* kv : {"f16", "bf16", "int8", "fp8", "int4"}) {
      if (!sample.take()) continue;
      RunnerFixture model(path, latent_options(kv, 16));
      const double bound = bound_of(kv, model.config, golden);
      const double error = relative_error(model.run_prompt(golden.tokens), want);
      INFO(name << " " << kv);
      CAPTURE(error, bound);
      CHECK(error < bound);
    }
  }
}

// 150 tokens: over nine borders of pages of 16 and two of 64. Of mixtures in f32 alone, whose closest choices
// of 150 tokens are closer than what other tiers round; mistral4-long has none.
TEST_CASE("latent: over several pages, whole, in pieces and token by token") {
  Sample sample(3);
  for (const char* name :
       {"deepseek-v2-long", "deepseek-v3-long", "glm4-moe-lite-long", "minicpm3-long", "mistral4-long"}) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    for (const int32_t page : {16, 64}) {
      for (const char* kv : {"f32", "f16", "bf16", "int8", "fp8", "int4"}) {
        if ((golden.router_margin_f32 && std::string_view(kv) != "f32") || !sample.take()) continue;
        auto options = latent_options(kv, page);
        options.max_sequences = 192;  // rows of logits too
        RunnerFixture model(path, options);
        INFO(name << " " << kv << " pages of " << page);
        const std::vector<float> whole = model.run_prompt(golden.tokens);
        const double error = relative_error(whole, golden.logits_f32),
                     bound = bound_of(kv, model.config, golden);
        CAPTURE(error, bound);
        CHECK(error < bound);
        for (const size_t step : {size_t{1}, size_t{7}, size_t{65}}) {
          std::vector<float> pieces;
          const auto blocks = model.blocks(golden.tokens.size(), 20);
          for (size_t at = 0; at < golden.tokens.size(); at += step) {
            const size_t end = std::min(at + step, golden.tokens.size());
            const std::vector<int32_t> part(golden.tokens.begin() + static_cast<ptrdiff_t>(at),
                                            golden.tokens.begin() + static_cast<ptrdiff_t>(end));
            const auto rows = model.run({{part, static_cast<int32_t>(at), blocks, true}});
            pieces.insert(pieces.end(), rows.begin(), rows.end());
          }
          CHECK((pieces == whole));
        }
      }
    }
  }
}

// As golden_test.cc's bound of bf16 weights: the places above, and the inputs of seven layers of matrices, of
// latents, of queries, of each head's two, of o, gate and up, and down.
TEST_CASE("latent: weights in bf16 where scores are sharper") {
  const TinyGolden golden = load_tiny_golden("mistral4-long");
  auto options = latent_options("auto", 16);
  options.max_sequences = 192;  // rows of logits too
  RunnerFixture model(write_tiny_model(golden, TinyDtype::bf16), options);
  const double scores = bound_of("bf16", model.config, golden),
               others = 7 * static_cast<double>(model.config.layers) / 512;
  const double error = relative_error(model.run_prompt(golden.tokens), golden.logits_bf16);
  CAPTURE(error, scores + others + 1.0 / 512);
  CHECK(error < scores + others + 1.0 / 512);
}

TEST_CASE("latent: tiers whose keys could not be values are refused by layer and name") {
  for (const char* kv : {"int4-mean", "k8v4", "k4v3", "int8/k8v4/int8/int8"}) {
    const Status status = served(load_tiny_golden("deepseek-v3"), latent_options(kv, 16));
    INFO(kv);
    CHECK(status.code() == StatusCode::kUnimplemented);
    CHECK_THAT(std::string(status.message()), Contains("attention layer"));
    CHECK_THAT(std::string(status.message()), Contains("is none of f32, bf16, f16, int8, fp8, int4"));
  }
}

TEST_CASE("latent: attention that chooses its keys is refused by name") {
  for (const char* type : {"deepseek_v32", "deepseek_v3_2", "deepseek_v4", "glm_moe_dsa", "deepseek32",
                           "deepseek4", "glm-dsa"}) {
    json::object config = json::parse(load_tiny_golden("deepseek-v3").config).as_object();
    config["model_type"] = type;
    const auto read = read_model_config(config);
    REQUIRE(!read.ok());
    CHECK_THAT(std::string(read.status().message()), Contains(type));
    CHECK_THAT(std::string(read.status().message()), Contains("indexer"));
  }
  json::object config = json::parse(load_tiny_golden("deepseek-v3").config).as_object();
  config["index_topk"] = 2048;
  CHECK_THAT(std::string(read_model_config(config).status().message()), Contains("'index_topk'"));
}

// DeepSeek-V2 and its Coder of 236B: 3 of 8 groups, each as good as its best expert.
TEST_CASE("latent: DeepSeek V2's groups of experts") {
  TinyGolden golden = load_tiny_golden("deepseek-v2");
  json::object config = json::parse(golden.config).as_object();
  const auto logits = [&](const char* method, int64_t groups, int64_t taken, bool reference) {
    config["topk_method"] = method;
    config["n_group"] = groups;
    config["topk_group"] = taken;
    golden.config = json::serialize(config);
    golden.name = "deepseek-v2-groups";
    LanguageModelOptions options = latent_options("f32", 16);
    options.reference = reference;
    RunnerFixture model(write_tiny_model(golden, TinyDtype::f32), options);
    return model.run_prompt(golden.tokens);
  };
  const auto greedy = logits("greedy", 4, 2, false);  // which looks at no groups
  CHECK(relative_error(greedy, golden.logits_f32) < 1e-4);
  CHECK((logits("group_limited_greedy", 1, 1, false) == greedy));
  CHECK(relative_error(logits("group_limited_greedy", 4, 4, false), greedy) < 1e-5);
  const auto limited = logits("group_limited_greedy", 4, 1, false);
  CHECK(relative_error(limited, golden.logits_f32) > 1e-2);
  CHECK(relative_error(limited, logits("group_limited_greedy", 4, 1, true)) < 1e-4);
  // The two best experts of all lie in the two groups whose best experts are best: nothing is taken away.
  CHECK(relative_error(logits("group_limited_greedy", 8, 2, false), greedy) < 1e-5);
  CHECK(relative_error(logits("group_limited_greedy", 4, 2, false), greedy) < 1e-5);
  config["topk_method"] = "noaux_tc";
  CHECK_THAT(std::string(read_model_config(config).status().message()), Contains("'topk_method'"));
  config["topk_method"] = "group_limited_greedy";
  config["n_group"] = 3;  // of 8 experts
  golden.config = json::serialize(config);
  CHECK_FALSE(served(golden, latent_options("f32", 16)).ok());
}

TEST_CASE("latent: Kimi K2 is DeepSeek V3") {
  TinyGolden golden = load_tiny_golden("deepseek-v3");
  json::object config = json::parse(golden.config).as_object();
  config["model_type"] = "kimi_k2";
  golden.config = json::serialize(config);
  golden.name = "kimi-k2";
  RunnerFixture model(write_tiny_model(golden, TinyDtype::f32), latent_options("f32", 16));
  CHECK(relative_error(model.run_prompt(golden.tokens), golden.logits_f32) < 1e-4);
}

TEST_CASE("latent: matrices apart, as GGUF has them, are those of kv_b_proj") {
  const TinyGolden golden = load_tiny_golden("deepseek-v3");
  auto loaded = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(loaded);
  const auto config = read_model_config(loaded->config);
  REQUIRE_OK(config);
  const LatentShape& s = config->latent;
  for (int64_t n = 0; n < config->layers; ++n) {
    const std::string p = cat("model.layers.", n, ".self_attn.");
    const Tensor both = loaded->tensors.at(p + "kv_b_proj.weight");
    Tensor k = Tensor::allocate({config->heads, s.rank, s.nope}, Format::f32()).value();
    Tensor v = Tensor::allocate({config->heads, s.value, s.rank}, Format::f32()).value();
    const auto from = both.values<float>();
    const auto at = [&](int64_t head, int64_t row, int64_t column) {
      return from[static_cast<size_t>((head * (s.nope + s.value) + row) * s.rank + column)];
    };
    size_t i = 0, j = 0;
    for (int64_t h = 0; h < config->heads; ++h) {
      for (int64_t c = 0; c < s.rank; ++c)
        for (int64_t d = 0; d < s.nope; ++d) k.mutable_values<float>()[i++] = at(h, d, c);
      for (int64_t d = 0; d < s.value; ++d)
        for (int64_t c = 0; c < s.rank; ++c) v.mutable_values<float>()[j++] = at(h, s.nope + d, c);
    }
    loaded->tensors.erase(p + "kv_b_proj.weight");
    loaded->tensors[p + "k_b_proj.weight"] = std::move(k);
    loaded->tensors[p + "v_b_proj.weight"] = std::move(v);
  }
  for (const char* mla : {"absorbed", "expanded"}) {
    auto options = latent_options("f32", 16);
    options.mla = mla;
    RunnerFixture model(Checkpoint(*loaded), options);
    CHECK(relative_error(model.run_prompt(golden.tokens), golden.logits_f32) < 1e-4);
  }
}

TEST_CASE("latent: a quantized kv_b_proj computes what its numbers say") {
  const TinyGolden golden = load_tiny_golden("minicpm3");
  const auto stored = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(stored);
  ThreadPool pool({.threads = 2});
  Checkpoint packed = *stored, wide = *stored;
  for (auto& [name, tensor] : packed.tensors) {
    if (!name.ends_with("kv_b_proj.weight")) continue;
    auto q = quantize_weight(tensor, *Format::find("q8_0"), {}, {}, pool);
    REQUIRE_OK(q);
    tensor = q->tensor;
    Tensor plain = Tensor::allocate(tensor.shape(), Format::f32()).value();
    const int64_t rows = tensor.shape()[0], cols = tensor.shape()[1];
    const auto bytes = *tensor.format().row_bytes(cols);
    for (int64_t r = 0; r < rows; ++r)
      tensor.format().decode_row(static_cast<const std::byte*>(tensor.data()) + r * bytes, cols,
                                 plain.mutable_values<float>().data() + r * cols);
    wide.tensors[name] = std::move(plain);
  }
  for (const char* mla : {"absorbed", "expanded"}) {
    auto options = latent_options("f32", 16);
    options.reference = true;  // no kernel rounds activations
    options.mla = mla;
    RunnerFixture one(Checkpoint(packed), options), other(Checkpoint(wide), options);
    CHECK(relative_error(one.run_prompt(golden.tokens), other.run_prompt(golden.tokens)) < 1e-5);
  }
}

namespace {

// DeepSeek V3 in two layers, the second a mixture, whose matrices have whole tiles of 128 columns; rows of
// queries and of latents end within a tile, and a tile of kv_b_proj has a head's keys and values.
TinyGolden tiled_model() {
  TinyGolden golden = load_tiny_golden("deepseek-v3");
  json::object c = json::parse(golden.config).as_object();
  const int64_t E = 128, F = 256, M = 256, Q = 128, R = 256, H = 4, nope = 64, rope = 16, value = 64, X = 8;
  for (const auto& [key, number] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"hidden_size", E},
                                                              {"intermediate_size", F},
                                                              {"moe_intermediate_size", M},
                                                              {"q_lora_rank", Q},
                                                              {"kv_lora_rank", R},
                                                              {"num_attention_heads", H},
                                                              {"num_key_value_heads", H},
                                                              {"qk_nope_head_dim", nope},
                                                              {"qk_rope_head_dim", rope},
                                                              {"v_head_dim", value},
                                                              {"n_routed_experts", X},
                                                              {"num_hidden_layers", 2}})
    c[key] = number;
  c["quantization_config"] = {{"quant_method", "fp8"},
                              {"fmt", "e4m3"},
                              {"activation_scheme", "dynamic"},
                              {"weight_block_size", {128, 128}}};
  golden.name = "fp8-blocks";
  golden.config = json::serialize(c);
  golden.tensors.clear();
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    golden.tensors.push_back({name, std::move(shape), 0});
  };
  const auto mlp = [&](const std::string& p, int64_t width) {
    add(p + "gate_proj.weight", {width, E});
    add(p + "up_proj.weight", {width, E});
    add(p + "down_proj.weight", {E, width});
  };
  add("model.embed_tokens.weight", {golden.vocab, E});
  for (int64_t n = 0; n < 2; ++n) {
    const std::string p = cat("model.layers.", n, "."), a = p + "self_attn.";
    add(p + "input_layernorm.weight", {E});
    add(p + "post_attention_layernorm.weight", {E});
    add(a + "q_a_proj.weight", {Q, E});
    add(a + "q_a_layernorm.weight", {Q});
    add(a + "q_b_proj.weight", {H * (nope + rope), Q});
    add(a + "kv_a_proj_with_mqa.weight", {R + rope, E});
    add(a + "kv_a_layernorm.weight", {R});
    add(a + "kv_b_proj.weight", {H * (nope + value), R});
    add(a + "o_proj.weight", {E, H * value});
    if (n == 0) {
      mlp(p + "mlp.", F);
      continue;
    }
    add(p + "mlp.gate.weight", {X, E});
    add(p + "mlp.gate.e_score_correction_bias", {X});
    for (int64_t e = 0; e < X; ++e) mlp(cat(p, "mlp.experts.", e, "."), M);
    mlp(p + "mlp.shared_experts.", M);
  }
  add("model.norm.weight", {E});
  add("lm_head.weight", {golden.vocab, E});
  return golden;
}

// A matrix in tiles of 128 x 128 as DeepSeek writes it: codes, a scale of each, and the numbers that they
// mean.
void into_tiles(const std::string& name, const Tensor& matrix, TensorMap& stored, TensorMap& meant) {
  const int64_t N = matrix.shape()[0], K = matrix.shape()[1];
  const int64_t rows = (N + 127) / 128, columns = (K + 127) / 128;
  const Format format = Format::of(DType::kE4M3);
  Tensor codes = Tensor::allocate({N, K}, format).value();
  Tensor scales = Tensor::allocate({rows, columns}, Format::f32()).value();
  Tensor plain = Tensor::allocate({N, K}, Format::f32()).value();
  const auto from = matrix.values<float>();
  const auto to = plain.mutable_values<float>();
  auto* bytes = static_cast<std::byte*>(codes.mutable_data());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t last_row = std::min(N, (r + 1) * 128), last = std::min(K, (k + 1) * 128),
                    n = last - k * 128;
      float largest = 0;
      for (int64_t i = r * 128; i < last_row; ++i)
        for (int64_t j = k * 128; j < last; ++j)
          largest = std::max(largest, std::fabs(from[static_cast<size_t>(i * K + j)]));
      const float scale = largest / 448;
      scales.mutable_values<float>()[static_cast<size_t>(r * columns + k)] = scale;
      std::vector<float> row(static_cast<size_t>(n));
      for (int64_t i = r * 128; i < last_row; ++i) {
        const auto at = static_cast<size_t>(i * K + k * 128);
        for (int64_t j = 0; j < n; ++j)
          row[static_cast<size_t>(j)] = from[at + static_cast<size_t>(j)] / scale;
        format.encode_row(row.data(), n, bytes + at);
        format.decode_row(bytes + at, n, row.data());
        for (int64_t j = 0; j < n; ++j) to[at + static_cast<size_t>(j)] = row[static_cast<size_t>(j)] * scale;
      }
    }
  }
  stored.insert_or_assign(name, std::move(codes));
  stored.insert_or_assign(name + "_scale_inv", std::move(scales));
  meant.insert_or_assign(name, std::move(plain));
}

}  // namespace

// V3 and R1 are released so: kv_b_proj cut by heads and turned, ranks across tiles, experts one by one.
TEST_CASE(
    "latent: DeepSeek's FP8 tiles compute what their numbers say, in both forms, and decode as they "
    "prefill") {
  TinyGolden golden = tiled_model();
  const json::object tiled = json::parse(golden.config).as_object();
  json::object plain = tiled;
  plain.erase("quantization_config");
  golden.config = json::serialize(plain);
  const auto loaded = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(loaded);
  Checkpoint packed = *loaded, wide = *loaded;
  for (const auto& [name, tensor] : loaded->tensors)
    if (name.ends_with("_proj.weight") || name.ends_with("_with_mqa.weight"))
      into_tiles(name, tensor, packed.tensors, wide.tensors);
  packed.config = tiled;
  std::vector<std::string> notices;
  REQUIRE_OK(apply_quantization_config(packed.config, packed.tensors, &notices));
  CHECK(notices.empty());
  for (const char* name : {"self_attn.kv_b_proj", "mlp.experts.3.down_proj"})
    CHECK(std::string_view(packed.tensors.at(cat("model.layers.1.", name, ".weight")).format().name()) ==
          "e4m3_g128");
  for (const char* mla : {"absorbed", "expanded"}) {
    INFO(mla);
    auto options = latent_options("f32", 16);
    options.mla = mla;
    options.reference = true;  // no kernel rounds activations
    RunnerFixture one(Checkpoint(packed), options), other(Checkpoint(wide), options);
    CHECK(relative_error(one.run_prompt(golden.tokens), other.run_prompt(golden.tokens)) < 1e-5);
  }
  RunnerFixture model(Checkpoint(packed), latent_options("f32", 16));
  const std::vector<float> whole = model.run_prompt(golden.tokens);
  std::vector<float> single;
  const auto blocks = model.blocks(golden.tokens.size(), 20);
  for (size_t t = 0; t < golden.tokens.size(); ++t)
    for (const float x : model.run({{{golden.tokens[t]}, static_cast<int32_t>(t), blocks, true}}))
      single.push_back(x);
  CHECK((single == whole));
}

namespace {

LanguageModelOptions expanded_options(const char* kv, int32_t page) {
  auto options = latent_options(kv, page);
  options.max_sequences = 192;  // rows of logits too
  options.mla = "expanded";
  return options;
}

// Logits of all rows, all of them a prompt's, in pieces of `step`, in blocks of their own.
std::vector<float> prompt_in_pieces(RunnerFixture& model, const std::vector<int32_t>& tokens, size_t step) {
  std::vector<float> out;
  const auto blocks = model.blocks(tokens.size(), 20);
  for (size_t at = 0; at < tokens.size(); at += step) {
    const std::vector<int32_t> part(
        tokens.begin() + static_cast<ptrdiff_t>(at),
        tokens.begin() + static_cast<ptrdiff_t>(std::min(at + step, tokens.size())));
    const auto rows =
        model.run({{part, static_cast<int32_t>(at), blocks, true}}, static_cast<int64_t>(part.size()));
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

}  // namespace

// Keys and values are what the tier kept, as the absorbed form reads it; all else is f32 or, as there, the
// product with a head's matrix. So the bounds are the same.
TEST_CASE("expanded latent: prompts give the golden's logits, whole and in pieces, in every tier") {
  Sample sample(11);
  for (const char* name :
       {"deepseek-v2-long", "deepseek-v3-long", "glm4-moe-lite-long", "minicpm3-long", "mistral4-long"}) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    for (const int32_t page : {16, 64}) {
      for (const char* kv : {"f32", "f16", "bf16", "int8", "fp8", "int4"}) {
        if ((golden.router_margin_f32 && std::string_view(kv) != "f32") || !sample.take()) continue;
        RunnerFixture model(path, expanded_options(kv, page));
        INFO(name << " " << kv << " pages of " << page);
        REQUIRE(model.runner->limits().phases);
        const std::vector<float> whole = model.run_prompt(golden.tokens);
        const double error = relative_error(whole, golden.logits_f32),
                     bound = bound_of(kv, model.config, golden);
        CAPTURE(error, bound);
        CHECK(error < bound);
        for (const size_t step : {size_t{1}, size_t{7}, size_t{65}})
          CHECK((prompt_in_pieces(model, golden.tokens, step) == whole));
        auto options = expanded_options(kv, page);
        options.mla = "absorbed";
        CHECK_FALSE((RunnerFixture(path, options).run_prompt(golden.tokens) == whole));  // it is another form
      }
    }
  }
}

// More than one span of positions, whose sums are merged.
TEST_CASE("expanded latent: contexts of several spans, to the bit whatever the pieces") {
  Sample sample(3);
  for (const char* kv : {"bf16", "int8", "int4"}) {
    if (!sample.take()) continue;
    auto options = expanded_options(kv, 16);
    options.max_batch_tokens = options.max_sequences = 600;
    options.max_context = 640;
    RunnerFixture model(write_tiny_model(load_tiny_golden("minicpm3"), TinyDtype::f32), options, 120);
    const auto tokens = prompt_of(5, 600, model.vocab());
    const std::vector<float> whole = model.run_prompt(tokens);
    INFO(kv);
    for (const size_t step : {size_t{33}, size_t{256}, size_t{300}})
      CHECK((prompt_in_pieces(model, tokens, step) == whole));
    options.mla = "absorbed";
    options.kv = "f32";
    const auto absorbed =
        RunnerFixture(write_tiny_model(load_tiny_golden("minicpm3"), TinyDtype::f32), options, 120)
            .run_prompt(tokens);
    CHECK(relative_error(whole, absorbed) < bound_of(kv, model.config, load_tiny_golden("minicpm3")));
  }
}

TEST_CASE("expanded latent: rows of generated tokens beside prompts are what they are alone") {
  Sample sample(3);
  for (const char* kv : {"int4", "bf16", "int8"}) {
    if (!sample.take()) continue;
    RunnerFixture model(write_tiny_model(load_tiny_golden("minicpm3"), TinyDtype::f32),
                        expanded_options(kv, 16));
    const auto first = prompt_of(3, 40, model.vocab()), second = prompt_of(4, 50, model.vocab());
    const auto prefill = [&](const std::vector<int32_t>& tokens, int32_t block) {
      return model.run({{tokens, 0, model.blocks(60, block), true}}, static_cast<int64_t>(tokens.size()));
    };
    INFO(kv);
    prefill(first, 0);
    const auto alone = model.run({{{7, 8, 9}, 40, model.blocks(60, 0), true}}), other = prefill(second, 20);
    prefill(first, 10);
    const auto both =
        model.run({{{7, 8, 9}, 40, model.blocks(60, 10), true}, {second, 0, model.blocks(60, 30), true}}, 50);
    const auto middle = both.begin() + static_cast<ptrdiff_t>(alone.size());
    CHECK((std::vector<float>(both.begin(), middle) == alone));
    CHECK((std::vector<float>(middle, both.end()) == other));
  }
}

// What is given up, and no more: one position's prefill and its decode are two forms, within what tiers
// round; and where all rows are of generated tokens nothing of the expanded form is left.
TEST_CASE(
    "expanded latent: decode is the absorbed form to the bit, and prefill differs from it by roundings") {
  Sample sample(11);
  for (const char* name : {"deepseek-v2", "glm4-moe-lite", "mistral4", "minicpm3"}) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    for (const char* kv : {"f32", "f16", "bf16", "int8", "fp8", "int4"}) {
      if (!sample.take()) continue;
      auto options = expanded_options(kv, 16);
      RunnerFixture expanded(path, options);
      options.mla = "absorbed";
      RunnerFixture absorbed(path, options);
      const auto tokens = prompt_of(3, 40, absorbed.vocab());
      const std::vector<float> decoded = absorbed.run_prompt(tokens);
      INFO(name << " " << kv);
      CHECK((expanded.run({{tokens, 0, expanded.blocks(tokens.size()), true}}) == decoded));
      const std::vector<float> prefilled = expanded.run_prompt(tokens);
      CHECK_FALSE((prefilled == decoded));
      // In f32 nothing is rounded to less, and no choice of experts can fall another way by it.
      if (std::string_view(kv) == "f32") CHECK(relative_error(prefilled, decoded) < 1e-4);
    }
  }
}

TEST_CASE("expanded latent: refused by name where there is no latent, or no such form") {
  auto options = latent_options("f32", 16);
  options.mla = "expanded";
  const Status none = served(load_tiny_golden("qwen3"), options);
  CHECK(none.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(none.message()), Contains("mla 'expanded': a qwen3 keeps no latent"));
  options.mla = "naive";
  const Status unknown = served(load_tiny_golden("deepseek-v3"), options);
  CHECK(unknown.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(unknown.message()), Contains("neither absorbed nor expanded"));
}
