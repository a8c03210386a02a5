// Every storage format x architecture x KV tier on tiny models: each combination loads, runs a prompt longer
// than its first pages in uneven chunks, and stays as near to the same weights over an f32 cache as its tier
// promises.
#include <cmath>

#include "engine/runtime/quantize_weights.h"
#include "engine/tune/eval_model.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

using namespace oar;

namespace {

// All logits of `tokens`, in chunks of 7.
std::vector<float> logits_of(const Checkpoint& checkpoint, const LanguageModelOptions& options,
                             const std::shared_ptr<Backend>& backend, const std::vector<int32_t>& tokens) {
  const auto model = EvalModel::open(checkpoint, options, backend, 16);
  INFO((model.ok() ? "" : model.status().message()));
  REQUIRE(model.ok());
  std::vector<float> out;
  for (size_t at = 0; at < tokens.size(); at += 7) {
    const auto part =
        (*model)->append(std::span(tokens).subspan(at, std::min<size_t>(7, tokens.size() - at)));
    REQUIRE(part.ok());
    out.insert(out.end(), part->begin(), part->end());
  }
  return out;
}

double snr_db(const std::vector<float>& truth, const std::vector<float>& other) {
  double signal = 0, noise = 1e-30;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double t = static_cast<double>(truth[i]), d = static_cast<double>(other[i]) - t;
    signal += t * t;
    noise += d * d;
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace

TEST_CASE("every format, architecture and KV tier together", "[slow][.]") {
  // Least SNR, dB. 8-bit activations round a slightly different input differently, and a mixture's router may
  // choose another expert, so even a bf16 cache is only 19.6 dB from an f32 one in the worst combination;
  // what reads the wrong bytes has none. NaN fails.
  const std::pair<const char*, double> tiers[] = {{"bf16", 15}, {"int8", 15}, {"fp8", 12},
                                                  {"k8v4", 8},  {"int4", 8},  {"int4-mean", 8}};
  std::vector<std::string> formats = weight_scheme_names();
  for (const FormatInfo* info : all_formats()) {
    const Format format(info);
    if (!format.plain() && weight_scheme(info->name).ok()) formats.emplace_back(info->name);
  }
  CHECK(formats.size() >= 25);
  LanguageModelOptions options;
  options.threads = 1;
  options.page_tokens = 16;
  options.max_context = 64;
  const auto backend = make_backend(options);
  int combinations = 0;
  for (const std::string& name : oar_test::tiny_golden_names()) {
    const auto golden = oar_test::load_tiny_golden(name);
    const Checkpoint bf16 =
        load_checkpoint(oar_test::write_tiny_model(golden, oar_test::TinyDtype::bf16)).value();
    std::vector<int32_t> tokens;
    while (tokens.size() < 52) tokens.push_back(golden.tokens[tokens.size() % golden.tokens.size()]);
    for (const std::string& format : formats) {
      // No folder for a cache: in memory.
      const auto quantized = quantize_at_load(bf16, format, "/dev/null/none", backend->host_pool(), {}, {});
      INFO(name << " " << format);
      REQUIRE(quantized.ok());
      options.weights = format;
      options.kv = "f32";
      const std::vector<float> truth = logits_of(*quantized, options, backend, tokens);
      for (const auto& [tier, least] : tiers) {
        options.kv = tier;
        const double snr = snr_db(truth, logits_of(*quantized, options, backend, tokens));
        INFO(name << " " << format << " " << tier << " " << snr);
        CHECK(snr >= least);
        ++combinations;
      }
    }
  }
  CHECK(combinations >= 10 * 25 * 6);
}
