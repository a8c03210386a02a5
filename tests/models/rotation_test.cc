// Rotations leave a model's function as it is: for every architecture f32 logits before and after differ by
// less than 1e-4 of their scale and the greedy text is the same, each rotation alone and all together, with
// fusions on and off.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/graph/passes/rotate.h"
#include "engine/graph/weights.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
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

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, scale = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    if (!std::isfinite(a[k])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(a[k]) - b[k]));
    scale = std::max(scale, std::abs(static_cast<double>(b[k])));
  }
  return worst / scale;
}

std::vector<float> whole_prompt(RunnerFixture& model, const TinyGolden& golden) {
  return model.run({{golden.tokens, 0, model.blocks(golden.tokens.size()), true}});
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

int rewrites(const ServingGraph& g, const char* pass) {
  for (const PassReport& r : g.passes) {
    if (r.name == pass) return r.rewrites;
  }
  return -1;
}

}  // namespace

TEST_CASE("every rotation, alone and together, keeps f32 logits to 1e-4 and the greedy text") {
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    RunnerFixture plain(path, small_options("none"));
    const auto before = whole_prompt(plain, golden);
    const std::vector<int32_t> prompt(golden.tokens.begin(), golden.tokens.begin() + 7);
    const auto text = greedy(plain, prompt, 16);
    for (const char* rotate : {"r1", "r2", "r3", "r4", "kv", "all"}) {
      for (const bool fused : {true, false}) {
        auto options = small_options(rotate);
        if (!fused) options.disabled_passes = {"fuse_residual_norm", "fuse_head_norm_rope", "fuse_linear"};
        RunnerFixture model(path, options);
        INFO(name << " " << rotate << (fused ? "" : " without fusions"));
        const auto after = whole_prompt(model, golden);
        const double error = relative_error(after, before);
        CAPTURE(error);
        CHECK(error < 1e-4);
        // Not the same computation: a rotation that did nothing would pass everything here.
        const bool applies = !(name == "gpt2" && std::string_view(rotate) == "r1");
        CHECK((after != before) == applies);
        CHECK(greedy(model, prompt, 16) == text);
      }
    }
  }
}

TEST_CASE("where a rotation applies is found from the graph") {
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    const auto options = small_options("all");
    const auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    const auto graph = build_serving_graph(*checkpoint, *config, options);
    REQUIRE_OK(graph);
    INFO(name);
    const auto layers = static_cast<int>(config->layers);
    // GPT-2's LayerNorm subtracts a mean, which a rotation moves: R1 leaves it alone.
    const bool layer_norm = name == "gpt2";
    CHECK(rewrites(*graph, "fold_norms") == (layer_norm ? 0 : 2 * layers + 1));
    CHECK((rewrites(*graph, "rotate_residual") > 0) == !layer_norm);
    CHECK(rewrites(*graph, "rotate_values") == layers);
    CHECK(rewrites(*graph, "rotate_queries_keys") == layers);
    CHECK(rewrites(*graph, "rotate_ffn") == layers);
    // Weights stay as wide as they were.
    CHECK(graph->weights == "bf16");
  }
}
