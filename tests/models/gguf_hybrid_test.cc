// Hybrids and attention over a latent as llama.cpp's converter writes them, against the goldens of their
// checkpoints. Names are its own tables' (tests/golden/gguf_names.json); what it makes of tensors is here:
// decays as -exp(A_log), numbers by head with an axis of one, norms by groups, 1 added to Qwen's norms,
// matrices split in two, Qwen 3.5's value heads in another order, Falcon's multipliers within its matrices.
#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/format.h"
#include "engine/loader/gguf_model.h"
#include "tests/models/gguf_fixture.h"
#include "tests/models/runner_fixture.h"
#include "tests/models/tiny_adapter.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace json = oar::json;

// A tensor on its way into a file, row-major.
struct Written {
  std::vector<float> values;
  std::vector<int64_t> shape;
};

// Rows [begin, begin + heads head_dim) of `w`, whose value heads lie by key head, in the order in which the
// first head of every key head comes first.
void tile_heads(std::vector<float>& w, int64_t begin, int64_t key_heads, int64_t heads, int64_t head_rows,
                int64_t cols) {
  const std::vector<float> old = w;
  const int64_t per = heads / key_heads, size = head_rows * cols;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t from = (h % key_heads) * per + h / key_heads;
    std::copy_n(old.begin() + begin * cols + from * size, size, w.begin() + begin * cols + h * size);
  }
}

// What is behind axis `axis` of `w` cut at `at` there.
std::vector<Written> cut(const Written& w, size_t axis, int64_t at) {
  int64_t outer = 1, inner = 1;
  for (size_t k = 0; k < w.shape.size(); ++k)
    (k < axis ? outer : k > axis ? inner : inner) *= k == axis ? 1 : w.shape[k];
  const int64_t all = w.shape[axis];
  std::vector<Written> out{{{}, w.shape}, {{}, w.shape}};
  out[0].shape[axis] = at, out[1].shape[axis] = all - at;
  for (int64_t o = 0; o < outer; ++o) {
    const auto row = w.values.begin() + o * all * inner;
    out[0].values.insert(out[0].values.end(), row, row + at * inner);
    out[1].values.insert(out[1].values.end(), row + at * inner, row + all * inner);
  }
  return out;
}

Written pick(const Written& w, int64_t parts, int64_t begin, int64_t end) {  // rows of each of `parts` alike
  const int64_t cols = w.shape[1], per = w.shape[0] / parts;
  Written out{{}, {parts * (end - begin), cols}};
  for (int64_t h = 0; h < parts; ++h)
    out.values.insert(out.values.end(), w.values.begin() + (h * per + begin) * cols,
                      w.values.begin() + (h * per + end) * cols);
  return out;
}

// (heads, 2, D / 2) rows become (heads, D / 2, 2).
void pair_all(Written& w, int64_t head) {
  const std::vector<float> old = w.values;
  const int64_t cols = w.shape[1];
  for (int64_t r = 0; r < w.shape[0]; ++r) {
    const int64_t i = r % head, to = r - i + (i < head / 2 ? 2 * i : 2 * (i - head / 2) + 1);
    std::copy_n(old.begin() + r * cols, cols, w.values.begin() + to * cols);
  }
}

double number_of(const json::object& keys, const char* key) { return keys.at(key).to_number<double>(); }

// Falcon's multipliers, where each belongs.
void fold(Written& w, const std::string& name, const json::object& keys, const oar::ModelConfig& c) {
  const auto has = [&](const char* part) { return name.find(part) != name.npos; };
  const auto times = [&](double by) {
    for (float& v : w.values) v = static_cast<float>(v * by);
  };
  const double in = number_of(keys, "attention_in_multiplier");
  const auto& mlp = keys.at("mlp_multipliers").as_array();
  if (has("down_proj")) times(mlp[1].to_number<double>());
  else if (has("gate_proj")) times(mlp[0].to_number<double>());
  else if (has("k_proj")) times(number_of(keys, "key_multiplier") * in);
  else if (has("q_proj") || has("v_proj")) times(in);
  else if (has("o_proj")) times(number_of(keys, "attention_out_multiplier"));
  else if (has("out_proj")) times(number_of(keys, "ssm_out_multiplier"));
  else if (has("lm_head")) times(number_of(keys, "lm_head_multiplier"));
  else if (has("embed_tokens")) times(number_of(keys, "embedding_multiplier"));
  else if (has("in_proj")) {
    times(number_of(keys, "ssm_in_multiplier"));
    const int64_t I = c.scan.heads * c.scan.value_dim, N = c.scan.key_heads * c.scan.key_dim;
    const int64_t ends[] = {I, 2 * I, 2 * I + N, 2 * I + 2 * N, w.shape[0]};
    for (int64_t r = 0, part = 0; r < w.shape[0]; ++r) {
      while (r >= ends[part]) ++part;
      const double by = keys.at("ssm_multipliers").as_array()[static_cast<size_t>(part)].to_number<double>();
      for (int64_t k = 0; k < w.shape[1]; ++k)
        w.values[static_cast<size_t>(r * w.shape[1] + k)] *= static_cast<float>(by);
    }
  }
}

// What the converter makes of a tensor: one, or its parts.
std::vector<Written> converted(const std::string& architecture, const std::string& name, Written w,
                               const json::object& keys, const oar::ModelConfig& c) {
  const auto ends = [&](const char* end) { return name.ends_with(end); };
  const auto has = [&](const char* part) { return name.find(part) != name.npos; };
  const oar::ScanConfig& s = c.scan;
  const bool delta = architecture.starts_with("qwen3"), tiled = architecture.starts_with("qwen35");
  if (ends("A_log"))
    for (float& v : w.values) v = -std::exp(v);
  if (!delta && (ends("A_log") || ends(".D"))) w.shape.push_back(1);
  if (ends("conv1d.weight") || ends("conv.conv.weight")) w.shape = {w.shape[0], w.shape[2]};
  if (ends("mixer.norm.weight") || ends("mamba.norm.weight"))
    w.shape = {s.key_heads, w.shape[0] / s.key_heads};
  if (ends("shared_expert_gate.weight")) w.shape = {w.shape[1]};
  if (delta && ends("norm.weight") && !ends("linear_attn.norm.weight"))
    for (float& v : w.values) v += 1;
  if (architecture == "falcon-h1") fold(w, name, keys, c);
  const bool pairs = architecture == "granitehybrid" || architecture.starts_with("nemotron");
  if (pairs && (ends("q_proj.weight") || ends("k_proj.weight"))) pair_all(w, c.head_dim);
  if (tiled && has("linear_attn.")) {
    const int64_t K = 2 * s.key_heads * s.key_dim;
    const auto tile = [&](int64_t begin, int64_t rows, int64_t cols) {
      tile_heads(w.values, begin, s.key_heads, s.heads, rows, cols);
    };
    if (has("in_proj_qkv") || has("conv1d")) tile(K, s.value_dim, w.shape[1]);
    if (has("in_proj_z")) tile(0, s.value_dim, w.shape[1]);
    if (has("in_proj_a") || has("in_proj_b")) tile(0, 1, w.shape[1]);
    if (has("A_log") || has("dt_bias")) tile(0, 1, 1);
    if (has("out_proj"))
      for (int64_t r = 0; r < w.shape[0]; ++r) tile(r * w.shape[1], s.value_dim, 1);
  }
  if (has("in_proj_qkvz")) {
    const int64_t D = s.key_dim, V = s.heads / s.key_heads * s.value_dim, H = s.key_heads;
    Written qkv = pick(w, H, 0, D);
    for (const Written& part : {pick(w, H, D, 2 * D), pick(w, H, 2 * D, 2 * D + V)}) {
      qkv.values.insert(qkv.values.end(), part.values.begin(), part.values.end());
      qkv.shape[0] += part.shape[0];
    }
    return {qkv, pick(w, H, 2 * D + V, 2 * D + 2 * V)};
  }
  if (has("kv_b_proj") && architecture != "minicpm3") {
    const oar::LatentShape& l = c.latent;
    w.shape = {c.heads, l.nope + l.value, l.rank};
    std::vector<Written> parts = cut(w, 1, l.nope);
    const std::vector<float> old = parts[0].values;
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t d = 0; d < l.nope; ++d)
        for (int64_t r = 0; r < l.rank; ++r)
          parts[0].values[static_cast<size_t>((h * l.rank + r) * l.nope + d)] =
              old[static_cast<size_t>((h * l.nope + d) * l.rank + r)];
    parts[0].shape = {c.heads, l.rank, l.nope};
    return parts;
  }
  if (has("input_linear")) return cut(w, w.shape.size() - 2, w.shape[w.shape.size() - 2] / 2);
  return {w};
}

// What its converter writes of the config.
void add_keys(GgufBuilder& b, const std::string& architecture, const std::string& golden,
              const json::object& keys, const oar::ModelConfig& c) {
  const std::string p = architecture + ".";
  const auto count = [&](const char* key, int64_t v) { b.u32(p + key, static_cast<uint32_t>(v)); };
  const auto number = [&](const char* key, double v) { b.f32(p + key, static_cast<float>(v)); };
  const auto flag = [&](const char* key, bool v) {
    b.scalar(p + key, oar::GgufType::kBool, static_cast<uint8_t>(v));
  };
  const bool mamba2 = architecture == "mamba2", latent = c.latent.rank > 0,
             nemotron = architecture.starts_with("nemotron");
  b.str("general.architecture", architecture);
  count("block_count", c.layers), count("context_length", c.max_context), count("embedding_length", c.width);
  count("attention.head_count", mamba2 ? 0 : c.heads);
  number("attention.layer_norm_rms_epsilon", c.norm_eps);
  if (!mamba2) number("rope.freq_base", c.rope.theta);
  std::vector<int32_t> kv_heads, ffn;
  for (int64_t n = 0; n < c.layers; ++n) {
    const auto kind = c.kinds.empty() ? oar::LayerKind::kScan : c.kinds[static_cast<size_t>(n)];
    const bool attends = nemotron ? kind == oar::LayerKind::kAttention : !c.is_recurrent(n);
    const bool fed = kind == oar::LayerKind::kMlp || kind == oar::LayerKind::kExperts;
    kv_heads.push_back(attends ? static_cast<int32_t>(c.kv_heads) : 0);
    ffn.push_back(fed ? static_cast<int32_t>(c.experts > 0 ? c.expert_ffn : c.ffn) : 0);
  }
  const bool lfm2 = architecture.starts_with("lfm2");
  if (lfm2 || architecture == "granitehybrid" || nemotron)
    b.array(p + "attention.head_count_kv", oar::GgufType::kI32, kv_heads);
  else if (!mamba2) count("attention.head_count_kv", latent ? 1 : c.kv_heads);
  if (nemotron) b.array(p + "feed_forward_length", oar::GgufType::kI32, ffn);
  else if (mamba2) count("feed_forward_length", 0);
  else if (keys.contains("intermediate_size"))
    count("feed_forward_length", keys.at("intermediate_size").as_int64());
  else if (lfm2) count("feed_forward_length", c.ffn);
  if (c.experts > 0) {
    count("expert_count", c.experts), count("expert_used_count", c.experts_per_token);
    if (architecture != "granitehybrid") count("expert_feed_forward_length", c.expert_ffn);
  }
  const auto key_heads = [&] {
    count("attention.key_length", c.head_dim), count("attention.value_length", c.head_dim);
  };
  if (c.scan.heads > 0) {
    count("ssm.conv_kernel", c.conv_kernel), count("ssm.state_size", c.scan.key_dim);
    count("ssm.group_count", c.scan.key_heads), count("ssm.time_step_rank", c.scan.heads);
    count("ssm.inner_size", c.scan.heads * c.scan.value_dim);
  }
  if (lfm2) count("shortconv.l_cache", c.conv_kernel);
  if (architecture == "lfm2moe") {
    count("leading_dense_block_count", std::ranges::count(c.dense_layer, true));
    count("expert_gating_func", 2);
  }
  if (architecture.starts_with("qwen3")) {
    key_heads();
    count("rope.dimension_count", c.head_dim / 4);
    // As files of today have it; those from before it say so by an interval alone.
    if (c.experts == 0) {
      std::vector<uint8_t> recurrent;
      for (int64_t n = 0; n < c.layers; ++n) recurrent.push_back(c.is_recurrent(n) ? 1 : 0);
      b.array(p + "attention.recurrent_layers", oar::GgufType::kBool, recurrent);
      count("full_attention_interval", 1);
    } else {
      count("full_attention_interval", 4);
    }
    if (c.experts > 0) count("expert_shared_feed_forward_length", 80);
    if (architecture != "qwen3next")
      b.array(p + "rope.dimension_sections", oar::GgufType::kI32, std::vector<int32_t>{2, 1, 1, 0});
  }
  if (architecture == "falcon-h1") key_heads();
  if (architecture == "granitehybrid" || nemotron) {
    count("rope.dimension_count", c.width / c.heads);
    flag("rope.scaling.finetuned", false);
    if (nemotron) key_heads();
  }
  if (architecture == "granitehybrid") {
    number("attention.scale", c.attention_scale), number("embedding_scale", c.embedding_scale);
    number("residual_scale", c.residual_scale), number("logit_scale", 1 / c.logit_scale);
    count("expert_shared_feed_forward_length", c.ffn);
  }
  if (architecture == "nemotron_h_moe") {
    count("expert_shared_feed_forward_length", 80), count("expert_shared_count", 1),
        count("expert_group_count", 1);
    count("moe_latent_size", 32);
    flag("expert_weights_norm", true), number("expert_weights_scale", c.route.scale);
  }
  if (!latent) return;
  const oar::LatentShape& l = c.latent;
  if (architecture == "minicpm3") {  // neither how wide values are nor its multipliers
    count("attention.q_lora_rank", l.query_rank), count("attention.kv_lora_rank", l.rank);
    count("attention.key_length", l.nope + l.rope), count("rope.dimension_count", l.rope);
    for (const char* list : {"long", "short"}) {
      const auto f = json::value_to<std::vector<float>>(c.rope.scaling.at(std::string(list) + "_factor"));
      b.tensor(std::string("rope_factors_") + list + ".weight", {f.size()}, 0,
               {reinterpret_cast<const char*>(f.data()), f.size() * sizeof(float)});
    }
    return;
  }
  count("leading_dense_block_count", std::ranges::count(c.dense_layer, true));
  if (l.query_rank > 0) count("attention.q_lora_rank", l.query_rank);
  count("attention.kv_lora_rank", l.rank), count("attention.key_length", l.rank + l.rope);
  count("attention.value_length", l.rank), count("attention.key_length_mla", l.nope + l.rope);
  count("attention.value_length_mla", l.value), count("rope.dimension_count", l.rope);
  count("expert_shared_count", keys.at("n_shared_experts").as_int64()),
      number("expert_weights_scale", c.route.scale);
  if (c.route.normalize) flag("expert_weights_norm", true);
  count("expert_group_count", c.route.groups), count("expert_group_used_count", c.route.top_groups);
  // Nor how much queries grow by their position.
  if (golden != "glm4-moe-lite" && golden != "mistral4")
    count("expert_gating_func", c.route.score == "sigmoid" ? 2 : 1);
  if (c.rope.scaling.empty()) return;
  b.str(p + "rope.scaling.type", "yarn");
  number("rope.scaling.factor", number_of(c.rope.scaling, "factor"));
  count("rope.scaling.original_context_length",
        c.rope.scaling.at("original_max_position_embeddings").as_int64());
  number("rope.scaling.yarn_log_multiplier", 0.1 * number_of(c.rope.scaling, "mscale_all_dim"));
}

// How matrices lie in the file: as floats, in a format of blocks (its name and GGUF's number), or as the
// floats that such blocks mean.
struct Blocks {
  const char* format = nullptr;
  uint32_t type = 0;
  bool decoded = false;
};

// Matrices whose rows are whole blocks, but for those that converters leave as they are.
void put(GgufBuilder& b, const std::string& name, const Written& w, const Blocks& blocks) {
  const std::vector<uint64_t> dims(w.shape.rbegin(), w.shape.rend());
  const auto plain = [&](const std::vector<float>& values) {
    b.tensor(name, dims, 0, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  };
  const auto has = [&](const char* part) { return name.find(part) != name.npos; };
  const int64_t cols = w.shape.back(), rows = static_cast<int64_t>(w.values.size()) / cols;
  const auto format = oar::Format::find(blocks.format != nullptr ? blocks.format : "");
  if (!format || w.shape.size() < 2 || !format->row_bytes(cols) || has("norm") || has("_inp") || has("conv"))
    return plain(w.values);
  const int64_t row_bytes = *format->row_bytes(cols);
  std::string codes(static_cast<size_t>(rows * row_bytes), '\0');
  std::vector<float> meant(w.values.size());
  for (int64_t r = 0; r < rows; ++r) {
    auto* row = reinterpret_cast<std::byte*>(codes.data()) + r * row_bytes;
    format->encode_row(w.values.data() + r * cols, cols, row);
    format->decode_row(row, cols, meant.data() + r * cols);
  }
  if (blocks.decoded) return plain(meant);
  b.tensor(name, dims, blocks.type, codes);
}

GgufBuilder hybrid_file(const TinyGolden& golden, const oar::ModelConfig& config, const Blocks& blocks = {}) {
  const json::object keys = json::parse(golden.config).as_object();
  const GgufNames known(golden.name);
  const std::string& architecture = known.architecture();
  GgufBuilder b;
  add_keys(b, architecture, golden.name, keys, config);
  std::map<std::string, Written> stacked;  // experts, one behind the other
  for (const TinyTensor& t : golden.tensors) {
    std::string name = t.name;
    const size_t at = name.find(".experts.");
    const bool one = at != name.npos && std::isdigit(name[at + 9]);
    if (one) name.erase(at + 8, name.find('.', at + 9) - at - 8);
    const std::vector<Written> parts = converted(
        architecture, name, {tiny_weights(t.name, t.shape, golden.weight_seed), t.shape}, keys, config);
    const std::vector<std::string> names = known.of(name);
    INFO(name);
    REQUIRE(names.size() == parts.size());
    for (size_t k = 0; k < parts.size(); ++k) {
      const std::string& theirs = names[k];
      if (!one) {
        put(b, theirs, parts[k], blocks);
        continue;
      }
      Written& all = stacked[theirs];
      const size_t count = parts[k].values.size(), e = static_cast<size_t>(std::stoi(t.name.substr(at + 9)));
      all.values.resize(static_cast<size_t>(config.experts) * count);
      std::ranges::copy(parts[k].values, all.values.begin() + static_cast<int64_t>(e * count));
      all.shape = {config.experts, parts[k].shape[0], parts[k].shape[1]};
    }
  }
  for (const auto& [name, w] : stacked) put(b, name, w, blocks);
  return b;
}

std::string write_hybrid(const TinyGolden& golden, const oar::ModelConfig& config,
                         const Blocks& blocks = {}) {
  const std::string path =
      oar::cat(temp_dir(), "/hybrid-", golden.name, blocks.format != nullptr ? blocks.format : "",
               blocks.decoded ? "-decoded" : "", ".gguf");
  write_file(path, hybrid_file(golden, config, blocks).bytes());
  return path;
}

oar::LanguageModelOptions hybrid_options() {
  oar::LanguageModelOptions options;
  options.threads = 2;
  options.max_batch_tokens = 192;
  options.max_sequences = 192;
  options.page_tokens = 16;
  return options;
}

constexpr const char* kConverted[] = {"lfm2",        "mamba2",      "falcon_h1",     "granitemoehybrid",
                                      "nemotron_h",  "qwen3-next",  "qwen3_5",       "qwen3_5-moe",
                                      "deepseek-v2", "deepseek-v3", "glm4-moe-lite", "nemotron_h-moe",
                                      "lfm2-moe",    "mistral4",    "minicpm3"};

// What a file does not tell apart, in the golden's config as files mean it; false where it tells all.
bool unsaid(const std::string& name, json::object& keys) {
  if (name == "deepseek-v3") {
    // It has one of YaRN's two factors and means both by it, as in every released model.
    keys["rope_scaling"].as_object()["mscale"] = json::value(keys["rope_scaling"].at("mscale_all_dim"));
  } else if (name == "minicpm3") {
    // Neither the context that longrope grows from, which is the model's, nor what logits are divided by.
    keys["original_max_position_embeddings"] = json::value(keys.at("max_position_embeddings"));
    keys["rope_scaling"].as_object()["original_max_position_embeddings"] =
        json::value(keys.at("max_position_embeddings"));
    keys["dim_model_base"] = 256;
  } else {
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("GGUF: hybrids and latents as the converter writes them equal their goldens") {
  for (const char* name : kConverted) {
    INFO(name);
    TinyGolden golden = load_tiny_golden(name);
    json::object keys = json::parse(golden.config).as_object();
    std::vector<float> want = golden.logits_f32;
    if (unsaid(name, keys)) {
      golden.config = json::serialize(keys);
      RunnerFixture checkpoint(write_tiny_model(golden, TinyDtype::f32), hybrid_options());
      want = checkpoint.run_prompt(golden.tokens);
    }
    const auto config = oar::read_model_config(keys);
    REQUIRE_OK(config);
    auto checkpoint = oar::load_checkpoint(write_hybrid(golden, *config));
    REQUIRE_OK(checkpoint);
    auto options = hybrid_options();
    std::string warnings;
    options.log.callback = [&](oar::LogLevel level, std::string_view text) {
      if (level >= oar::LogLevel::kWarning) warnings.append(text).append("\n");
    };
    RunnerFixture model(std::move(*checkpoint), options);
    CHECK(warnings.find("no kernel for") == std::string::npos);
    CHECK(model.config.unknown_keys == "");
    CHECK(relative_error(model.run_prompt(golden.tokens), want) < 1e-4);
  }
}

TEST_CASE("GGUF: hybrids and latents whose metadata says something else", "[types]") {
  size_t turn = 0;
  for (const char* name : kConverted) {
    const TinyGolden golden = load_tiny_golden(name);
    const auto config = oar::read_model_config(json::parse(golden.config).as_object());
    REQUIRE_OK(config);
    check_changed_metadata(hybrid_file(golden, *config), GgufNames(name).architecture(), turn);
  }
}

// Whatever the loader cuts, stacks or tells the graph of their order.
TEST_CASE("GGUF: hybrids and latents in blocks compute what the blocks say, and decode as they prefill") {
  bool other = false;
  for (const char* name : kConverted) {
    other = !other;
    const Blocks blocks = other ? Blocks{"q8_0", 8} : Blocks{"q4_0", 2};
    INFO(name << " " << blocks.format);
    const TinyGolden golden = load_tiny_golden(name);
    const auto config = oar::read_model_config(json::parse(golden.config).as_object());
    REQUIRE_OK(config);
    const std::string path = write_hybrid(golden, *config, blocks),
                      meant = write_hybrid(golden, *config, {blocks.format, 0, true});
    const auto checkpoint = oar::load_checkpoint(path);
    REQUIRE_OK(checkpoint);
    const auto in_blocks = std::ranges::count_if(checkpoint->tensors, [&](const auto& t) {
      return t.second.format() == *oar::Format::find(blocks.format);
    });
    CHECK(in_blocks > config->layers);
    auto options = hybrid_options();
    options.reference = true;  // no kernel rounds activations
    CHECK(relative_error(RunnerFixture(path, options).run_prompt(golden.tokens),
                         RunnerFixture(meant, options).run_prompt(golden.tokens)) < 1e-5);
    RunnerFixture model(path, hybrid_options());
    const std::vector<float> whole = model.run_prompt(golden.tokens);
    CHECK(std::ranges::all_of(whole, [](float v) { return std::isfinite(v); }));
    std::vector<float> single;
    const auto own = model.blocks(golden.tokens.size(), 20);
    for (size_t t = 0; t < golden.tokens.size(); ++t)
      for (const float x : model.run({{{golden.tokens[t]}, static_cast<int32_t>(t), own, true}}))
        single.push_back(x);
    CHECK((single == whole));
  }
}

// An adapter changes the checkpoint's matrices; where the file has others, and only there, it is refused.
TEST_CASE("GGUF: adapters of hybrids whose files have other matrices are refused by name", "[adapters]") {
  const struct {
    const char *golden, *module, *refusal;
  } kCases[] = {{"falcon_h1", "model.layers.0.self_attn.v_proj", "multipliers"},
                {"qwen3_5", "model.layers.0.linear_attn.in_proj_z", "value heads"},
                {"qwen3_5", "model.layers.3.self_attn.v_proj", nullptr},
                {"granitemoehybrid", "model.layers.2.self_attn.v_proj", nullptr}};
  for (const auto& c : kCases) {
    const TinyGolden golden = load_tiny_golden(c.golden);
    const auto config = oar::read_model_config(json::parse(golden.config).as_object());
    REQUIRE_OK(config);
    const auto w = std::ranges::find(golden.tensors, std::string(c.module) + ".weight", &TinyTensor::name);
    REQUIRE(w != golden.tensors.end());
    const std::string base = std::string("base_model.model.") + c.module;
    const json::object keys = {
        {"peft_type", "LORA"},
        {"r", 4},
        {"lora_alpha", 8},
        {"target_modules", json::array{std::string(c.module).substr(std::string(c.module).rfind('.') + 1)}}};
    const std::vector<TinyTensor> halves = {{base + ".lora_A.weight", {4, w->shape[1]}, 0},
                                            {base + ".lora_B.weight", {w->shape[0], 4}, 0}};
    const std::string folder = write_adapter(std::string("adapter-of-hybrid-") + c.golden, keys, halves, 3);
    auto options = hybrid_options();
    options.max_loras = 1;
    RunnerFixture model(write_hybrid(golden, *config), options);
    const auto loaded = model.adapters->load("a", folder);
    INFO(c.golden << " " << c.module);
    CHECK(loaded.ok() == (c.refusal == nullptr));
    if (c.refusal == nullptr) continue;
    CHECK(loaded.status().code() == oar::StatusCode::kUnimplemented);
    CHECK_THAT(loaded.status().message(), Contains(c.refusal) && Contains(c.module));
  }
}
