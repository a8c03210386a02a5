// Rotations leave a model's function as it is: for every architecture f32 logits before and after differ by
// less than 1e-4 of their scale and the greedy text is the same, each rotation alone and all together, with
// fusions on and off.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "engine/base/format.h"
#include "engine/graph/passes/rotate.h"
#include "engine/graph/weights.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/rotated_model.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
using namespace oar;

LanguageModelOptions small_options(const std::string& rotate) {
  LanguageModelOptions o;
  o.threads = 2;
  o.max_batch_tokens = 64;
  o.max_sequences = 64;
  o.page_tokens = 16;
  o.rotate = rotate;
  return o;
}

std::vector<int32_t> greedy(RunnerFixture& model, std::vector<int32_t> tokens, size_t count) {
  const auto blocks = model.blocks(tokens.size() + count, 8);
  std::vector<int32_t> out, chunk = tokens;
  int32_t at = 0;
  while (out.size() < count) {
    const auto logits = model.run({{chunk, at, blocks, false}});
    at += static_cast<int32_t>(chunk.size());
    out.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    chunk = {out.back()};
  }
  return out;
}

// What R1 needs to find: norms that only linear layers read (not one whose rows are weighted in front of
// experts), and none that subtracts a mean or writes into the residual stream, which nothing but linear
// layers write.
struct Residual {
  bool free = true;
  int norms = 2;  // of a layer, whose weights may be folded
  // What holds the stream else, and part of its place: of weights plus 1 that of the layer before.
  std::string op = {}, at = {};
};
Residual residual_of(const std::string& name) {
  const std::string before = "0.input_layernorm", behind = "0.post_attention_layernorm", norm = "rms_norm";
  const std::pair<const char*, Residual> held[] = {{"gpt2", {false, 0, "layer_norm", "h.0.ln_1"}},
                                                   {"starcoder2", {false, 0, "layer_norm", before}},
                                                   {"cohere2", {false, 0, "layer_norm", before}},
                                                   {"olmo2", {false, 0, norm, behind}},
                                                   {"olmo3", {false, 0, norm, behind}},
                                                   {"exaone4", {false, 0, norm, behind}},
                                                   {"gemma2", {false, 0, norm, "0.self_attn.o_proj"}},
                                                   {"gemma3", {false, 0, norm, "0.self_attn.o_proj"}},
                                                   {"glm4", {false, 0, norm, "0.post_self_attn_layernorm"}},
                                                   {"gemma4-e2b", {false, 0, norm, behind}},
                                                   {"gemma4-12b", {false, 0, norm, behind}},
                                                   {"gemma4-26b-a4b", {false, 0, norm, behind}},
                                                   {"llama4", {false, 0, norm, "post_attention_layernorm"}},
                                                   {"falcon_h1", {false, 0, norm, before}},
                                                   {"qwen2-moe", {false, 0, "mul", "shared_expert"}},
                                                   {"qwen3-next", {false, 0, "mul", "shared_expert"}},
                                                   {"qwen3_5-moe", {false, 0, "mul", "shared_expert"}}};
  for (const auto& [model, residual] : held)
    if (name == model) return residual;
  for (const char* single : {"mamba2", "nemotron_h", "nemotron_h-moe"})
    if (name == single) return {true, 1};
  return {};
}

// Why R2 and R3 have no place, or nothing.
std::string heads_refusal(const ModelConfig& c) {
  return c.latent.rank > 0 ? "a latent" : c.attention_layers() == 0 ? "no layer has attention" : "";
}

// Whether the linear layers that write queries and keys are found: not behind norms over all heads or behind
// the rope, nor where a factor scales queries or keys. Such heads keep their channels as they are.
bool keys_are_traced(const std::string& name) {
  for (const char* other :
       {"ministral3", "hunyuan_v1_dense", "olmo2", "olmo3", "minimax-m2", "llama4", "falcon_h1"})
    if (name == other) return false;
  return true;
}

// Attention with a gate behind it, of layers beside gated delta rules.
bool has_gated_attention(const ModelConfig& c) {
  return c.scan.heads > 0 && c.head_norms != HeadNorms::kNone;
}

// Norms of one group behind a gate, which the projection behind them takes in.
int scan_norms(const ModelConfig& c) {
  const bool folded = c.mamba.normed && !c.mamba.norm_first && c.scan.key_heads == 1;
  return c.head_norms == HeadNorms::kNone && folded ? static_cast<int>(std::ranges::count(c.recurrent, true))
                                                    : 0;
}

// Layers whose heads R2 and R3 rotate: a latent stays as it is.
int rotated_layers(const ModelConfig& c) {
  return c.latent.rank > 0 ? 0 : static_cast<int>(c.attention_layers());
}

// Layers with heads whose channels have scales: whose keys no other layer reads, and whose values nothing but
// a linear layer.
int scaled_layers(const std::string& name, const ModelConfig& c) {
  if (has_gated_attention(c)) return 0;
  return name == "gemma4-e2b" ? 1 : rotated_layers(c);
}

// Networks that R4 finds: one of each layer, and that of a mixture's shared experts.
int64_t feed_forwards(const std::string& name, const ModelConfig& c) {
  if (name == "gemma4-e2b") return 2 * c.layers;  // and the gate of each layer's own embedding
  if (name == "llama4")                           // and the inputs of experts, which are weighted
    return c.layers + 2 * std::ranges::count(c.dense_layer, false);
  if (name == "mamba2") return c.layers;  // a product with the weights of groups' norms
  if (name.starts_with("nemotron_h")) return std::ranges::count(c.recurrent, true);
  if (name == "granitemoehybrid") return 2 * c.layers;  // a mixture and a shared MLP
  if (name == "falcon_h1") return 3 * c.layers;  // an MLP, a gated scan, and what it reads, by its factor
  int64_t shared = 0;
  for (const char* shares : {"qwen2-moe", "glm4-moe", "ernie4_5-moe", "gemma4-26b-a4b", "deepseek-v2",
                             "deepseek-v3", "glm4-moe-lite", "mistral4", "qwen3-next", "qwen3_5-moe"})
    if (name == shares) shared = std::ranges::count(c.dense_layer, false);
  // Behind a gated convolution, delta rule or attention there is a linear layer of a product, as in an MLP.
  return c.layers + shared + std::ranges::count(c.recurrent, true) +
         (has_gated_attention(c) ? c.attention_layers() : 0);
}

int rewrites(const ServingGraph& g, const char* pass) {
  for (const PassReport& r : g.passes) {
    if (r.name == pass) return r.rewrites;
  }
  return -1;
}

}  // namespace

TEST_CASE("every rotation, alone and together, keeps f32 logits to 1e-4 and the greedy text") {
  Sample models, sample(3);
  for (const std::string& name : tiny_golden_names()) {
    if (!models.take()) continue;
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    RunnerFixture plain(path, small_options("none"));
    const auto before = plain.run_prompt(golden.tokens);
    const std::vector<int32_t> prompt(golden.tokens.begin(), golden.tokens.begin() + 7);
    const auto text = greedy(plain, prompt, 16);
    for (const char* rotate : {"r1", "r2", "r3", "r4", "r4-exact", "kv", "all"}) {
      for (const bool fused : {true, false}) {
        if (!sample.take()) continue;
        auto options = small_options(rotate);
        if (!fused) options.disabled_passes = {"fuse_residual_norm", "fuse_head_norm_rope", "fuse_linear"};
        INFO(name << " " << rotate << (fused ? "" : " without fusions"));
        const std::string_view one = rotate;
        const bool of_heads = one == "r2" || one == "r3" || one == "kv";
        const bool applies =
            one == "r1" ? residual_of(name).free : !of_heads || rotated_layers(plain.config) > 0;
        if (!applies && one != "kv") {  // the next test case has the reasons
          const auto refused = build_serving_graph(plain.checkpoint, plain.config, options);
          CHECK(refused.status().code() == StatusCode::kUnimplemented);
          continue;
        }
        RunnerFixture model(path, options);
        const auto after = model.run_prompt(golden.tokens);
        const double error = relative_error(after, before);
        CAPTURE(error);
        CHECK(error < 1e-4);
        // Not the same computation: a rotation that did nothing would pass everything here.
        CHECK((after != before) == applies);
        CHECK(greedy(model, prompt, 16) == text);
      }
    }
  }
}

TEST_CASE("where a rotation applies is found from the graph") {
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    auto options = small_options("all");
    std::string logged;
    options.log.callback = [&](LogLevel, std::string_view line) { logged += line; };
    const auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    const auto graph = build_serving_graph(*checkpoint, *config, options);
    REQUIRE_OK(graph);
    INFO(name);
    const auto layers = static_cast<int>(config->layers), attention = rotated_layers(*config);
    const Residual residual = residual_of(name);
    const int of_queries = config->latent.query_rank > 0 ? layers : 0;  // norms of their own latent
    CHECK(rewrites(*graph, "fold_norms") ==
          (residual.free ? residual.norms * layers + 1 + of_queries + scan_norms(*config) : 0));
    CHECK((rewrites(*graph, "rotate_residual") > 0) == residual.free);
    CHECK(rewrites(*graph, "rotate_values") == attention);
    CHECK(rewrites(*graph, "rotate_queries_keys") == attention);
    CHECK(rewrites(*graph, "rotate_ffn") == feed_forwards(name, *config));
    CHECK(rewrites(*graph, "equalize_heads") == scaled_layers(name, *config));
    // Weights stay as wide as they were.
    CHECK(graph->weights == "bf16");

    // What has no place is left out of "all" and logged, and refused by its name where that was said.
    const std::string heads = heads_refusal(*config);
    CHECK(graph->rotation == cat(residual.free ? "r1," : "", heads.empty() ? "r2,r3," : "", "r4"));
    CHECK(logged.empty() == (residual.free && heads.empty()));
    const auto asked = [&](const char* rotate) {
      return build_serving_graph(*checkpoint, *config, small_options(rotate)).status();
    };
    for (const auto& [rotation, missing, reason] : std::vector<std::tuple<const char*, bool, std::string>>{
             {"r1", !residual.free, cat("held by ", residual.op, " at '")},
             {"r2", !heads.empty(), heads},
             {"r3", !heads.empty(), heads}}) {
      const Status status = asked(rotation);
      INFO(rotation << ": " << status.message());
      CHECK(status.code() == (missing ? StatusCode::kUnimplemented : StatusCode::kOk));
      if (!missing) continue;
      CHECK(status.param() == "rotate");
      CHECK_THAT(status.message(), Contains(cat(rotation, " (")) && Contains(reason));
      CHECK_THAT(logged, Contains("rotate all") && Contains(reason));
      if (rotation == std::string_view("r1")) CHECK_THAT(status.message(), Contains(residual.at));
    }
  }
}

TEST_CASE("a rotation that is left out or refused is told by every way to ask for one") {
  const auto source = load_checkpoint(write_tiny_model(load_tiny_golden("deepseek-v2"), TinyDtype::bf16));
  REQUIRE_OK(source);
  const auto config = read_model_config(source->config);
  REQUIRE_OK(config);
  // By itself a quantized cache asks for what there is.
  auto options = small_options("auto");
  std::vector<LogLevel> levels;
  std::string logged;
  options.log.callback = [&](LogLevel level, std::string_view line) {
    levels.push_back(level), logged += line;
  };
  const auto plain = build_serving_graph(*source, *config, options);
  REQUIRE_OK(plain);
  CHECK((plain->rotation == "none" && logged.empty()));
  options.kv = "int8";
  const auto quantized = build_serving_graph(*source, *config, options);
  REQUIRE_OK(quantized);
  CHECK(quantized->rotation == "none");
  CHECK(levels == std::vector{LogLevel::kInfo});
  CHECK_THAT(logged, Contains("rotate auto: left out r2 (") && Contains("r3 ("));
  // In a list, what has a place does not help what has none.
  options.rotate = "r1,r2";
  const auto listed = build_serving_graph(*source, *config, options);
  CHECK(listed.status().code() == StatusCode::kUnimplemented);
  CHECK_THAT(listed.status().message(), Contains("no place for r2 (") && !Contains("r1 ("));
  // What is to be written is judged as what is served.
  const auto named = RotatedModel::make(*source, *config, parse_rotation("r3").value());
  CHECK(named.status().code() == StatusCode::kUnimplemented);
  const auto all = RotatedModel::make(*source, *config, parse_rotation("all").value());
  REQUIRE_OK(all);
  CHECK_THAT(left_out_text(all->left_out()), Contains("r2 (") && Contains("r3 ("));
}

TEST_CASE("a checkpoint written from a rotated graph is served with its online part alone") {
  Sample models;
  for (const std::string& name : tiny_golden_names()) {
    if (name == "gpt2" || !models.take())
      continue;  // its transposed weights are folded before a rotation sees them
    const TinyGolden golden = load_tiny_golden(name);
    auto loaded = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
    REQUIRE_OK(loaded);
    const auto checkpoint = unstack_experts(std::move(*loaded));
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    auto model = build_model(*checkpoint, *config, {});
    REQUIRE_OK(model);
    const auto wanted = parse_rotation("all");
    REQUIRE_OK(wanted);
    const auto applied = rotate(model->graph, *wanted);
    REQUIRE_OK(applied);
    INFO(name);
    // Norms whose weights are an expression of the file's are folded by the server alone.
    const bool residual = residual_of(name).free && config->norm_offset == 0,
               latent = config->latent.rank > 0;
    const bool heads = rotated_layers(*config) > 0;
    CHECK(rotation_names(*applied) == oar::cat(residual ? "r1," : "", heads ? "r2,r3," : "", "r4"));

    // As the offline quantizer does it: every weight under its name, one at a time.
    Checkpoint written = *checkpoint;
    std::set<std::string> names;
    ThreadPool pool({.threads = 2});
    for (const NamedWeight& w : named_weights(model->graph)) {
      auto t = evaluate_weight(model->graph, w.value, pool);
      REQUIRE_OK(t);
      // Computed tables; what is made of a stack of experts has a name of its own.
      const bool table = model->graph.value(w.value).kind == ValueKind::kConstant || w.name.empty();
      if (!checkpoint->tensors.contains(w.name) && w.name != "lm_head.weight" && table) continue;
      INFO(w.name);
      CHECK(names.insert(w.name).second);
      written.tensors.insert_or_assign(w.name, *t);
    }
    for (const auto& [tensor, value] : checkpoint->tensors) {
      // Vectors that something is added to or multiplied with before they are used stay as the file has them.
      const bool changed = config->norm_offset != 0 || tensor.ends_with(".router.scale") ||
                           tensor.ends_with(".A_log") || tensor.ends_with(".D");
      const bool stack = tensor.find(".experts.") != std::string::npos && !tensor.ends_with(".weight");
      // Its halves are read each by itself.
      const bool halves = latent && tensor.ends_with(".kv_b_proj.weight");
      CHECK((names.count(tensor) == 1 || stack || halves || (changed && value.shape().rank() == 1)));
      if (stack && names.count(tensor) == 0) written.tensors.erase(tensor);
    }
    CHECK(written.tensors.count("lm_head.weight") == 1);
    written.config["tie_word_embeddings"] = false;
    written.config["quantization_config"] = {{"quant_method", "oar"},
                                             {"rotation", rotation_record(*applied)}};

    const auto plain = RunnerFixture(*checkpoint, small_options("none")).run_prompt(golden.tokens);
    for (const char* rotate : {"none", "all", "kv"}) {  // what is stored is not done twice
      const auto options = small_options(rotate);
      const auto served_config = read_model_config(written.config);
      REQUIRE_OK(served_config);
      const auto graph = build_serving_graph(written, *served_config, options);
      REQUIRE_OK(graph);
      const bool at_load = !residual && residual_of(name).free && std::string_view(rotate) == "all";
      CHECK((rewrites(*graph, "rotate_residual") > 0) == at_load);
      CHECK(rewrites(*graph, "rotate_values") == 0);
      CHECK(rewrites(*graph, "rotate_queries_keys") == rotated_layers(*config));
      CHECK(rewrites(*graph, "rotate_ffn") == feed_forwards(name, *config));
      const auto backend = make_backend(options);
      REQUIRE_OK(backend);
      // Every weight stays where it lies, but for a latent's halves.
      if (!at_load && !latent) CHECK(foresee_weights(graph->model.graph, **backend).made == 0);
      CHECK(relative_error(RunnerFixture(written, options).run_prompt(golden.tokens), plain) < 1e-4);
    }
  }
}

TEST_CASE("scales of heads: found in every architecture, the function is the same with and without") {
  Sample models, sample(3);
  for (const std::string& name : tiny_golden_names()) {
    if (!models.take()) continue;
    // Outliers where keys, queries, values and the output projection have them: a scale in the wrong place
    // or of the wrong head is wrong by its square.
    TinyGolden golden = load_tiny_golden(name);
    const auto stored = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
    REQUIRE_OK(stored);
    Checkpoint planted = *stored;
    for (auto& [tensor, value] : planted.tensors) {
      const auto has = [&name = tensor](const char* part) { return name.find(part) != std::string::npos; };
      const bool fused = has("attn.c_attn.weight");  // (in, query, key and value behind one another)
      if (!fused && !has("k_proj.weight") && !has("v_proj.weight") && !has("k_norm.weight")) continue;
      Tensor copy = Tensor::allocate(value.shape(), Format::f32()).value();
      const auto from = value.values<float>();
      const auto to = copy.mutable_values<float>();
      const auto cols = static_cast<size_t>(value.shape().cols());
      for (size_t i = 0; i < to.size(); ++i) {
        const size_t channel = fused || value.shape().rank() == 1 ? i % cols : i / cols;
        to[i] = from[i] * (channel % 5 == 0 && (!fused || channel >= cols / 3) ? 6.f : 1.f);
      }
      value = copy;
    }
    INFO(name);
    RunnerFixture plain(planted, small_options("none"));
    const auto before = plain.run_prompt(golden.tokens);
    const std::vector<int32_t> prompt(golden.tokens.begin(), golden.tokens.begin() + 7);
    const auto text = greedy(plain, prompt, 16);
    for (const char* rotate : {"r2", "r3", "kv", "all"}) {
      if (!sample.take()) continue;
      if (rotated_layers(plain.config) == 0 && *rotate == 'r') continue;  // refused
      auto options = small_options(rotate);
      RunnerFixture with(planted, options);
      options.disabled_passes = {"equalize_heads"};
      RunnerFixture without(planted, options);
      INFO(rotate);
      const auto scaled = with.run_prompt(golden.tokens);
      CHECK(relative_error(scaled, before) < 1e-4);
      const bool keys = std::string_view(rotate) != "r2" && keys_are_traced(name);
      const bool values = std::string_view(rotate) != "r3";
      const bool any = (keys || values) && scaled_layers(name, with.config) > 0;
      CHECK((scaled != without.run_prompt(golden.tokens)) == any);
      CHECK(greedy(with, prompt, 16) == text);
      const auto graph = build_serving_graph(planted, with.config, small_options(rotate));
      REQUIRE_OK(graph);
      CHECK(rewrites(*graph, "equalize_heads") == (keys || values ? scaled_layers(name, with.config) : 0));
      int scales = 0;
      for (const Node& n : graph->model.graph.nodes()) scales += n.is("equalizing_scale") ? 1 : 0;
      CHECK(scales == (int{keys} + int{values}) * scaled_layers(name, with.config));
    }
  }
}

TEST_CASE("rotation options and records: what was written is read, what is unknown is refused") {
  for (const char* text : {"none", "r1", "r2,r4", "r1,r4-exact", "r1,r2,r3,r4"}) {
    const auto o = parse_rotation(text);
    REQUIRE_OK(o);
    CHECK(rotation_names(*o) == text);
  }
  CHECK(rotation_names(*parse_rotation("all")) == "r1,r2,r3,r4");
  CHECK(rotation_names(*parse_rotation("kv")) == "r2,r3");
  CHECK(parse_rotation("kv")->values_online);
  for (const char* bad : {"r5", "r1,,r2", "R1", "r1 r2", "all,r1", ",r1"}) {
    const auto o = parse_rotation(bad);
    REQUIRE(!o.ok());
    CHECK(o.status().message().find("r1, r2, r3, r4") != std::string::npos);
  }
  RotationOptions o;
  o.stored_residual = o.stored_ffn = o.queries_keys = true;
  o.seed = 0xfedcba9876543210;
  o.ffn_block = 256;
  const auto back = read_rotation_record(rotation_record(o));
  REQUIRE_OK(back);
  CHECK((rotation_record(*back) == rotation_record(o)));
  CHECK(back->seed == o.seed);
  for (const char* bad :
       {R"({"r1": 1})", R"({"r5": true})", R"({"r1_seed": 7})", R"({"r1_seed": "18446744073709551616"})",
        R"({"r1_seed": ""})", R"({"r4_block": 0})", R"({"r4_block": "256"})", R"({"r4_exact": "no"})"}) {
    INFO(bad);
    const auto json = parse_json(bad, "record");
    REQUIRE_OK(json);
    CHECK(!read_rotation_record(json->as_object()).ok());
  }
  for (const char* bad : {R"({"quantization_config": {"rotation": 3}})",
                          R"({"quantization_config": {"rotation": {"x": 1}}})"}) {
    CHECK(!stored_rotation(parse_json(bad, "config")->as_object()).ok());
  }
  CHECK(!stored_rotation(parse_json("{}", "config")->as_object())->any());
}

TEST_CASE("bf16 and int8 weights after all rotations stay within their roundings") {
  // What a rotation adds to stored weights is one more rounding of each: bf16 to 2^-9 of a weight, int8 as
  // any int8. Both models compute in what they store, so the bound is that of golden_test.cc, twice: the
  // plain and the rotated model each differ from the exact one by at most that.
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::bf16);
    RunnerFixture model(path, small_options("all"));
    const double bound =
        2 * (rounded_places(model.config) * static_cast<double>(model.config.layers) + 1) / 512;
    INFO(name);
    const double error = relative_error(model.run_prompt(golden.tokens), golden.logits_bf16);
    CAPTURE(error, bound);
    // Chosen experts are a jump: a mixture whose margin is within the error may take another.
    if (golden.router_margin_bf16 && *golden.router_margin_bf16 < 0.1) continue;
    CHECK(error < bound);
  }
}
