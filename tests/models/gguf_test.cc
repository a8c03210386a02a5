// The tiny models once more as GGUF files: by its names, with the weights as its converters leave them (rows
// of queries and keys in the order of neighbouring pairs, 1 added to norms), against the same goldens.
#include <map>

#include "engine/loader/gguf_architectures.h"
#include "engine/loader/gguf_model.h"
#include "tests/loader/builders.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace json = oar::json;

struct Case {
  const char *golden, *architecture;
  bool permuted = false;  // by the converter
  // What the metadata has besides the shapes.
  std::vector<std::pair<const char*, double>> numbers = {};
  std::vector<std::pair<const char*, uint32_t>> counts = {};
};

const Case kCases[] = {
    {"phi3",
     "phi3",
     false,
     {},
     {{"rope.scaling.original_context_length", 16}, {"attention.sliding_window", 12}}},
    {"smollm3", "smollm3", true},
    {"granite",
     "granite",
     true,
     {{"attention.scale", 0.0625}, {"embedding_scale", 12}, {"residual_scale", 0.22}, {"logit_scale", 8}}},
    {"ernie4_5", "ernie4_5"},
    {"seed_oss", "seed_oss"},
    {"olmo2", "olmo2"},
    {"gemma3",
     "gemma3",
     false,
     {{"rope.freq_base_swa", 10000}, {"rope.scaling.factor", 8}},
     {{"attention.sliding_window", 12}, {"attention.sliding_window_pattern", 3}}},
    {"gemma2",
     "gemma2",
     false,
     {{"attn_logit_softcapping", 50}, {"final_logit_softcapping", 30}},
     {{"attention.sliding_window", 12}}},
    {"glm4", "glm4", false, {}, {{"rope.dimension_count", 16}}},
    {"cohere2", "cohere2", false, {{"logit_scale", 0.25}}, {{"attention.sliding_window", 12}}},
    {"starcoder2", "starcoder2", false, {}, {{"attention.sliding_window", 12}}},
    {"qwen2-moe", "qwen2moe", false, {}, {{"expert_shared_feed_forward_length", 80}}},
    {"glm4-moe",
     "glm4moe",
     false,
     {{"expert_weights_scale", 2.5}},
     {{"rope.dimension_count", 16},
      {"leading_dense_block_count", 1},
      {"expert_group_count", 4},
      {"expert_group_used_count", 2},
      {"expert_gating_func", 2},
      {"expert_shared_count", 1}}},
};

// The GGUF name that means `name`; empty when none does.
std::string gguf_name(const std::string& architecture, const std::string& name, int64_t layers) {
  const auto* found = oar::gguf::find_architecture(architecture);
  for (const auto names : {found->own, found->names}) {
    for (const auto& r : names) {
      for (int64_t n = 0; n < layers; ++n) {
        std::string stem(r.gguf);
        if (stem.starts_with("blk.N.")) stem.replace(4, 1, std::to_string(n));
        for (const char* suffix : {".weight", ".bias"})
          if (oar::hugging_face_name(architecture, stem + suffix) == name) return stem + suffix;
      }
    }
  }
  return {};
}

// (heads, 2, D / 2) rows become (heads, D / 2, 2).
std::vector<float> pair_rows(const std::vector<float>& w, int64_t rows, int64_t cols, int64_t head) {
  std::vector<float> out(w.size());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t h = r / head, i = r % head, half = head / 2;
    const int64_t to = h * head + (i < half ? 2 * i : 2 * (i - half) + 1);
    std::copy_n(w.begin() + r * cols, cols, out.begin() + to * cols);
  }
  return out;
}

std::string bytes_of(const std::vector<float>& v) {
  return {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float)};
}

}  // namespace

TEST_CASE("models from GGUF files equal their goldens") {
  oar::LanguageModelOptions options;
  options.threads = 2;
  options.max_batch_tokens = 64;
  options.max_sequences = 64;
  options.page_tokens = 16;
  for (const Case& c : kCases) {
    INFO(c.golden);
    const TinyGolden golden = load_tiny_golden(c.golden);
    const json::object keys = json::parse(golden.config).as_object();
    const auto config = oar::read_model_config(keys);
    REQUIRE_OK(config);
    const std::string p = std::string(c.architecture) + ".";
    const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
    GgufBuilder b;
    b.str("general.architecture", c.architecture);
    b.u32(p + "embedding_length", u32(config->width)).u32(p + "block_count", u32(config->layers));
    b.u32(p + "attention.head_count", u32(config->heads))
        .u32(p + "attention.head_count_kv", u32(config->kv_heads));
    b.u32(p + "attention.key_length", u32(config->head_dim))
        .u32(p + "attention.value_length", u32(config->head_dim));
    b.u32(p + "feed_forward_length", u32(config->ffn)).u32(p + "context_length", u32(config->max_context));
    b.f32(p + "rope.freq_base", static_cast<float>(config->rope.theta));
    const bool layer_norm = keys.contains("norm_epsilon") || keys.contains("layer_norm_eps");
    b.f32(p + (layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
          static_cast<float>(config->norm_eps));
    if (config->experts > 0) {
      b.u32(p + "expert_count", u32(config->experts))
          .u32(p + "expert_used_count", u32(config->experts_per_token));
      b.u32(p + "expert_feed_forward_length", u32(config->expert_ffn));
    }
    for (const auto& [key, value] : c.numbers) b.f32(p + key, static_cast<float>(value));
    for (const auto& [key, value] : c.counts) b.u32(p + key, value);
    if (std::string_view(c.golden) == "gemma3") b.str(p + "rope.scaling.type", "linear");
    if (config->rope.scaling.contains("long_factor")) {
      for (const char* list : {"long_factor", "short_factor"}) {
        std::vector<float> factors;
        for (const json::value& v : config->rope.scaling.at(list).as_array())
          factors.push_back(v.to_number<float>());
        b.tensor(std::string("rope_factors_") + (list[0] == 'l' ? "long" : "short") + ".weight",
                 {factors.size()}, 0, bytes_of(factors));
      }
    }

    std::map<std::string, std::vector<float>> stacked;  // experts, one behind the other
    std::map<std::string, std::vector<uint64_t>> stacked_dims;
    for (const TinyTensor& t : golden.tensors) {
      std::vector<float> values = tiny_weights(t.name, t.shape, golden.weight_seed);
      const bool queries = t.name.find("q_proj") != std::string::npos,
                 k = t.name.find("k_proj") != std::string::npos;
      if (c.permuted && (queries || k))
        values = pair_rows(values, t.shape[0], t.shape.size() > 1 ? t.shape[1] : 1, config->head_dim);
      if (config->norm_offset != 0 && t.shape.size() == 1)
        for (float& v : values) v += 1;
      std::vector<uint64_t> dims(t.shape.rbegin(), t.shape.rend());
      if (dims.size() == 2 && dims[1] == 1) dims.pop_back();  // its converter squeezes
      std::string name = t.name;
      if (const size_t at = name.find(".experts."); at != std::string::npos) {
        const size_t from = at + 9, to = name.find('.', from);
        name.erase(from, to - from + 1);
        stacked[name].resize(static_cast<size_t>(config->experts) * values.size());
        std::copy(
            values.begin(), values.end(),
            stacked[name].begin() + std::stoi(t.name.substr(from)) * static_cast<int64_t>(values.size()));
        stacked_dims[name] = {dims[0], dims[1], static_cast<uint64_t>(config->experts)};
        continue;
      }
      const std::string theirs = gguf_name(c.architecture, name, config->layers);
      INFO(name);
      REQUIRE(theirs != "");
      b.tensor(theirs, dims, 0, bytes_of(values));
    }
    for (const auto& [name, values] : stacked)
      b.tensor(gguf_name(c.architecture, name, config->layers), stacked_dims.at(name), 0, bytes_of(values));

    const std::string path = temp_dir() + "/" + c.golden + ".gguf";
    write_file(path, b.bytes());
    auto checkpoint = oar::load_checkpoint(path);
    REQUIRE_OK(checkpoint);
    // Gemma's files do not say what scores are divided by: it is the head size, and not so in this golden.
    const auto scale = [&](oar::ModelConfig& m) { m.attention_scale = config->attention_scale; };
    RunnerFixture model(std::move(*checkpoint), options, 64, scale);
    CHECK(model.config.unknown_keys == "");
    CHECK(relative_error(model.run_prompt(golden.tokens), golden.logits_f32) < 1e-4);
  }
}
