// Every storage format in a whole model: the demo model with its matrices in the format, against the same
// model with the decoded numbers in f32. No kernel, pass or model file names a format, so each must simply
// work.
#include <cmath>
#include <random>

#include "kernels/kernel.h"
#include "kernels/matmul.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar;
using namespace oar_test;

TEST_CASE("every storage format runs in a model as its decoded numbers do") {
  const Checkpoint demo = load_checkpoint(source_path("configs/demo")).value();
  const std::vector<int32_t> tokens{17, 300, 42, 999, 1500, 8, 77};
  LanguageModelOptions options;
  options.threads = 2;
  options.max_batch_tokens = 64;
  options.max_sequences = 64;
  options.page_tokens = 16;
  options.kv = "f32";
  int formats = 0;
  oar_test::Sample sample(7);
  for (const FormatInfo* info : all_formats()) {
    const Format format(info);
    if (format.plain() && !dtype_is_float(format.dtype())) continue;  // plain integers hold no weights
    if (format.plain() && dtype_bits(format.dtype()) == 8) continue;  // nor do unscaled 8-bit floats
    CAPTURE(format.name());
    ++formats;
    if (!sample.take()) continue;
    std::mt19937 rng(5);
    Checkpoint stored = demo, decoded = demo;
    for (auto& [name, tensor] : stored.tensors) {
      if (tensor.shape().rank() != 2) continue;
      REQUIRE(format.row_bytes(tensor.shape().cols()).has_value());
      tensor = in_format(tensor, format, rng);
      decoded.tensors[name] = to_f32(tensor).value();
    }
    for (const bool reference : {true, false}) {
      // Layouts of their own quantize the activations too: their kernels have their own tests.
      if (!reference && !weight_layout(format, best_isa()).in_place) continue;
      options.reference = reference;
      RunnerFixture a(stored, options), b(decoded, options);
      const auto x = a.run({{tokens, 0, a.blocks(tokens.size()), true}});
      const auto y = b.run({{tokens, 0, b.blocks(tokens.size()), true}});
      REQUIRE(x.size() == y.size());
      double worst = 0, scale = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        REQUIRE(std::isfinite(x[i]));
        worst = std::max(worst, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
        scale = std::max(scale, std::abs(static_cast<double>(y[i])));
      }
      CAPTURE(reference, worst, scale);
      // The reference sums the same numbers in the same order. Other kernels round the activations at nine
      // places in each of six layers: to 16 bits (2^-9 each), or to half a step of 127 where blocks of
      // integers are multiplied as such.
      if (reference) CHECK(worst == 0);
      else if (format.plain() && dtype_bits(format.dtype()) == 32) CHECK(worst <= scale * 1e-4);
      else CHECK(worst <= scale * 9 * 6 * (format.plain() ? 1.0 / 512 : 0.5 / 127));
    }
  }
  CHECK(formats >= 30);
}

// Few rows are packed once per worker, so 33 to 42 rows of 96 columns need more than 32 or 64 of them.
TEST_CASE("the scratch of every number of rows is foreseen") {
  const TinyGolden golden = load_tiny_golden("mistral");
  const std::string path = write_tiny_model(golden, TinyDtype::f32);
  for (const char* weights : {"int4", "int8", "f32"}) {
    std::string warned;
    LanguageModelOptions options;
    options.threads = 2;
    options.max_batch_tokens = 256;
    options.max_sequences = 64;
    options.page_tokens = 16;
    if (std::string_view(weights) != "f32") options.weights = weights;
    options.log.callback = [&](LogLevel level, std::string_view message) {
      if (level >= LogLevel::kWarning) warned += message;
    };
    RunnerFixture model(path, options);
    for (size_t n = 1; n <= 64; ++n) {
      std::vector<int32_t> tokens(n, 7);
      (void)model.run_prompt(tokens);
    }
    INFO(weights);
    CHECK(warned == "");
  }
}

}  // namespace
