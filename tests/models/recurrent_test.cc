// Architectures with a recurrent state as their files write them, before any pass or cache: the definitions
// of their ops in double must say what transformers says. So an error here is one of the equations, and one
// in golden_test.cc alone is one of kernels or of what is kept.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "engine/graph/reference.h"
#include "engine/models/model.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;

oar::HostValue row(std::vector<int64_t> values) {
  oar::HostValue v;
  v.shape = oar::Shape({static_cast<int64_t>(values.size())});
  v.dtype = oar::DType::kI32;
  v.i = std::move(values);
  return v;
}

// 150 tokens each, over several pages.
constexpr std::array kLong = {"qwen3_5-long", "mamba2-long", "granitemoehybrid-long", "falcon_h1-long",
                              "nemotron_h-long"};

}  // namespace

TEST_CASE("recurrent architectures: their definitions in double equal transformers' to 1e-4") {
  size_t found = 0;
  std::vector<std::string> names = tiny_golden_names();
  names.insert(names.end(), kLong.begin(), kLong.end());
  for (const std::string& name : names) {
    const TinyGolden golden = load_tiny_golden(name);
    const auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
    REQUIRE(checkpoint.ok());
    const auto config = oar::read_model_config(checkpoint->config);
    if (!config.ok()) FAIL(name << ": " << config.status().to_string());
    if (config->scan.heads == 0 && std::ranges::count(config->recurrent, true) == 0) continue;
    ++found;
    INFO(name);
    auto model = oar::build_model(*checkpoint, *config, {});
    if (!model.ok()) FAIL(model.status().to_string());
    std::vector<int64_t> tokens(golden.tokens.begin(), golden.tokens.end()), each(tokens.size());
    std::iota(each.begin(), each.end(), 0);
    const auto got =
        oar::evaluate_reference(model->graph, {{"tokens", row(tokens)},
                                               {"positions", row(each)},
                                               {"segments", row(std::vector<int64_t>(tokens.size(), 0))},
                                               {"logit_rows", row(each)}});
    if (!got.ok()) FAIL(got.status().to_string());
    const std::vector<double>& logits = got->at("logits").f;
    REQUIRE(logits.size() == golden.logits_f32.size());
    // transformers keeps norms, tables of rope and delta rules in f32 (tests/golden/README.md).
    double most = 0, off = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      most = std::max(most, std::fabs(static_cast<double>(golden.logits_f32[i])));
      off = std::max(off, std::fabs(logits[i] - static_cast<double>(golden.logits_f32[i])));
    }
    CAPTURE(off / most);
    CHECK(off < 1e-4 * most);
  }
  CHECK(found >= 4);
}

TEST_CASE("scans, served over several pages: transformers' logits, decode equals prefill to the bit") {
  for (const char* name : kLong) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    for (const int page : {16, 64}) {
      oar::LanguageModelOptions options;
      options.threads = 2;
      options.max_batch_tokens = options.max_sequences = 160;
      options.page_tokens = page;
      options.kv = "f32";
      RunnerFixture model(path, options);
      INFO(name << ", pages of " << page);
      const std::vector<float> whole = model.run_prompt(golden.tokens);
      CHECK(relative_error(whole, golden.logits_f32) < 1e-4);  // as golden_test.cc
      for (const size_t step : {size_t{1}, size_t{7}}) {
        std::vector<float> pieces;
        const auto blocks = model.blocks(golden.tokens.size(), 20);
        for (size_t at = 0; at < golden.tokens.size(); at += step) {
          const size_t n = std::min(step, golden.tokens.size() - at);
          const std::vector<int32_t> tokens(golden.tokens.begin() + static_cast<int64_t>(at),
                                            golden.tokens.begin() + static_cast<int64_t>(at + n));
          const auto part = model.run({{tokens, static_cast<int32_t>(at), blocks, true}});
          pieces.insert(pieces.end(), part.begin(), part.end());
        }
        CHECK((pieces == whole));
      }
    }
  }
}
