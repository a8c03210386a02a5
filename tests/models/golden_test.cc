// Every architecture against Hugging Face's logits (tests/golden), in f32 and bf16, on every instruction-set
// level of this machine, with passes on and off.
#include <cmath>
#include <cstdlib>

#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;

oar::LanguageModelOptions small_options() {
  oar::LanguageModelOptions o;
  o.threads = 2;
  o.max_batch_tokens = 64;
  o.max_sequences = 64;
  o.page_tokens = 16;
  return o;
}

}  // namespace

TEST_CASE("f32 logits equal transformers' to 1e-4") {
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    for (const bool reference : {false, true}) {
      auto options = small_options();
      options.reference = reference;
      RunnerFixture model(path, options);
      INFO(name << (reference ? ", reference kernels" : ""));
      const double error = relative_error(model.run_prompt(golden.tokens), golden.logits_f32);
      CAPTURE(error);
      CHECK(error < 1e-4);
    }
  }
}

TEST_CASE("bf16 weights with exact arithmetic equal transformers' to 1e-4") {
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    auto options = small_options();
    options.reference = true;
    options.kv = "f32";
    RunnerFixture model(write_tiny_model(golden, TinyDtype::bf16), options);
    INFO(name);
    CHECK(relative_error(model.run_prompt(golden.tokens), golden.logits_bf16) < 1e-4);
  }
}

TEST_CASE("bf16 logits equal transformers' within the roundings of bf16 operands") {
  // Weights are bf16 exactly in both; what differs is that kernels round activations, keys and values to
  // bf16, each to a relative u = 2^-9, at eight places per layer (inputs of qkv, o, gate/up and down; q, k, v
  // and p) and before the head. q and k count by the scores they make: norms whose weights are w + 1 with w
  // about 1 make them four times larger, and scores that are not divided by sqrt(D) that much. Norms bring
  // every layer's input to unit scale and the weights' rule (tests/golden/README.md) keeps a product's gain
  // at 1, so each place adds at most u of the logits' scale; in the worst case all with one sign.
  int rerouted = 0;
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    RunnerFixture model(write_tiny_model(golden, TinyDtype::bf16), small_options());
    const double bound = (rounded_places(model.config) * static_cast<double>(model.config.layers) + 1) / 512;
    const double error = relative_error(model.run_prompt(golden.tokens), golden.logits_bf16);
    INFO(name);
    CAPTURE(error, bound);
    // Where the closest choice of experts lies within these roundings another may be taken, which is a jump.
    // What remains of such a model is held exactly, above.
    if (error >= bound && golden.router_margin_bf16.value_or(1) < bound) {
      ++rerouted;
      continue;
    }
    CHECK(error < bound);
  }
  CHECK(rerouted <= 4);  // of 19 mixtures
}

TEST_CASE("every pass can be switched off without changing the logits") {
  for (const std::string name : {"llama3", "qwen3", "qwen3-moe", "gpt2"}) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    for (const oar::Pass& pass : oar::default_passes()) {
      auto options = small_options();
      options.disabled_passes = {pass.name};
      // Without folding, GPT-2's transposed weights are not constants and nothing can compute with them fast.
      if (name == "gpt2" && std::string(pass.name) == "fold_constants") continue;
      RunnerFixture model(path, options);
      INFO(name << " without " << pass.name);
      CHECK(relative_error(model.run_prompt(golden.tokens), golden.logits_f32) < 1e-4);
    }
  }
}

TEST_CASE("quantized KV: every architecture and tier, decode equals prefill and chunks, to the bit") {
  Sample sample;
  for (const std::string& name : all_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    // Longer than three pages, so that most of the context is read in quantized form.
    TinyGolden longer = golden;
    while (longer.tokens.size() < 56) {
      longer.tokens.push_back(longer.tokens[longer.tokens.size() - golden.tokens.size()]);
    }
    for (const std::string tier : {"int8", "fp8", "k8v4", "int4", "int4-mean", "k4v3"}) {
      if (!keeps(golden, tier) || !sample.take()) continue;
      auto options = small_options();
      options.kv = tier;
      options.max_context = name == "gpt2" ? 64 : 192;  // which learned 64 positions
      RunnerFixture model(path, options);
      INFO(name << " " << tier);
      const std::vector<float> whole = model.run_prompt(longer.tokens);
      for (const size_t step : {size_t{1}, size_t{7}}) {
        std::vector<float> pieces;
        const auto blocks = model.blocks(longer.tokens.size(), 8);
        for (size_t at = 0; at < longer.tokens.size(); at += step) {
          const size_t n = std::min(step, longer.tokens.size() - at);
          const std::vector<int32_t> tokens(longer.tokens.begin() + static_cast<int64_t>(at),
                                            longer.tokens.begin() + static_cast<int64_t>(at + n));
          const auto part = model.run({{tokens, static_cast<int32_t>(at), blocks, true}});
          pieces.insert(pieces.end(), part.begin(), part.end());
        }
        CHECK((pieces == whole));
      }
    }
  }
}

TEST_CASE("decode equals prefill, chunks equal the whole, a batch equals each alone, to the bit") {
  Sample sample(3);
  for (const std::string& name : all_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    for (const TinyDtype dtype : {TinyDtype::f32, TinyDtype::bf16}) {
      for (const bool int8 : {false, true}) {
        if (!sample.take()) continue;
        auto options = small_options();
        if (int8) options.weights = "int8";
        RunnerFixture model(write_tiny_model(golden, dtype), options);
        INFO(name << (dtype == TinyDtype::f32 ? " f32" : " bf16") << (int8 ? " int8" : ""));
        const size_t T = golden.tokens.size();
        const auto V = static_cast<size_t>(model.vocab());
        const std::vector<float> whole = model.run_prompt(golden.tokens);

        for (const size_t step : {size_t{1}, size_t{7}}) {
          std::vector<float> pieces;
          const auto blocks = model.blocks(T, 8);
          for (size_t at = 0; at < T; at += step) {
            const size_t n = std::min(step, T - at);
            const std::vector<int32_t> tokens(golden.tokens.begin() + static_cast<int64_t>(at),
                                              golden.tokens.begin() + static_cast<int64_t>(at + n));
            const auto part = model.run({{tokens, static_cast<int32_t>(at), blocks, true}});
            pieces.insert(pieces.end(), part.begin(), part.end());
          }
          CHECK((pieces == whole));
        }

        // Three sequences of different lengths in one batch; the middle one is a decode.
        const std::vector<int32_t> head(golden.tokens.begin(), golden.tokens.begin() + 11);
        const std::vector<int32_t> tail(golden.tokens.begin() + 5, golden.tokens.begin() + 18);
        const std::vector<int32_t> one(golden.tokens.begin() + 11, golden.tokens.begin() + 12);
        const auto tail_alone = model.run({{tail, 0, model.blocks(tail.size(), 16), true}});
        (void)model.run({{head, 0, model.blocks(12, 20), false}});
        const auto batch = model.run({{tail, 0, model.blocks(tail.size(), 24), true},
                                      {one, 11, model.blocks(12, 20), true},
                                      {head, 0, model.blocks(head.size(), 28), true}});
        const std::vector<float> got_tail(batch.begin(),
                                          batch.begin() + static_cast<int64_t>(tail.size() * V));
        const std::vector<float> got_one(batch.begin() + static_cast<int64_t>(tail.size() * V),
                                         batch.begin() + static_cast<int64_t>((tail.size() + 1) * V));
        CHECK((got_tail == tail_alone));
        CHECK((got_one == std::vector<float>(whole.begin() + static_cast<int64_t>(11 * V),
                                             whole.begin() + static_cast<int64_t>(12 * V))));
      }
    }
  }
}
