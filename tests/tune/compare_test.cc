// The instrument on the default model: it agrees with the perplexity of a serving engine, sees no loss where
// there is none, and refuses what it cannot compare.
#include "engine/tune/measure/compare.h"

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/format.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/tune/measure/activation_rounding.h"
#include "engine/tune/measure/svg_plot.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"

using namespace oar;

namespace {

const std::string kDemo = std::string(OAR_SOURCE_DIR) + "/configs/demo";

std::string heldout(size_t bytes) {
  std::ifstream file(kDemo + "/heldout.txt");
  std::stringstream text;
  text << file.rdbuf();
  return text.str().substr(0, bytes);
}

struct Demo {
  Checkpoint checkpoint = std::move(load_checkpoint(kDemo)).value();
  std::shared_ptr<const Tokenizer> tokenizer = std::move(make_tokenizer(checkpoint.tokenizer, 2048)).value();
};

}  // namespace

TEST_CASE("comparing measures what the engine serves") {
  const Demo demo;
  const std::string text = heldout(oar_test::kSlow ? 1200 : 3000);
  CompareOptions options;
  options.contexts = {48, 200};
  options.rows = 64;  // windows of 200 take several chunks
  const auto report = compare_models(
      demo.checkpoint, *demo.tokenizer, text,
      {{"demo", &demo.checkpoint, "auto", "f32"}, {"demo", &demo.checkpoint, "int8", "f32"}}, options);
  REQUIRE(report.ok());
  REQUIRE(report->rows.size() == 4);
  LanguageModelOptions serving;
  serving.kv = "f32";
  auto model = LanguageModel::load(kDemo, serving);
  REQUIRE(model.ok());
  for (size_t k = 0; k < 4; ++k) {
    const CompareRow& row = report->rows[k];
    CHECK(row.context == options.contexts[k % 2]);
    if (k < 2) {
      CHECK(row.mean_kld == 0);
      CHECK(row.top1 == 1);
      PerplexityOptions eval;
      eval.context = row.context;
      const auto served = evaluate_perplexity((*model)->engine(), *demo.tokenizer, text, eval);
      REQUIRE(served.ok());
      CHECK(served->tokens == row.positions);
      // Chunks differ from the engine's batches: sums of other length, rounded in f32.
      CHECK(row.perplexity == Approx(served->perplexity()).epsilon(1e-4));
    } else {
      // 8 bits: some loss, far below a 4-bit format's 0.01.
      CHECK(row.mean_kld > 0);
      CHECK(row.mean_kld < 1e-3);
      CHECK(row.p99_kld >= row.mean_kld);
      CHECK(row.logit_snr_db > 35);
      CHECK(row.bits.bits_per_weight == 8.5);
    }
    CHECK(row.bits.kv_bits() == 32);
    CHECK(row.bits.kv_bytes_per_token == 6 * 2 * 2 * 64 * 4);  // layers, k and v, heads, head size, f32
  }
  const std::string table = compare_table(*report);
  CHECK(table.find("int8") != std::string::npos);
  CHECK(compare_json(*report).at("rows").as_array().size() == 4);
  const std::string plot = compare_svg(*report);
  CHECK(plot.starts_with("<svg"));
  CHECK(plot.ends_with("</svg>\n"));
}

TEST_CASE("rounded activations") {
  // Whole numbers up to 127 and a channel in the next 256 that does not disturb them.
  std::vector<float> x(512), y(512);
  for (size_t i = 0; i < 256; ++i) x[i] = static_cast<float>(i) - 128.f + (i == 0 ? 1.f : 0.f);
  x[256] = 1e6f;
  x[257] = 1000.f;
  round_activations(ActivationCode::kInt8, x.data(), 512, y.data());
  for (size_t i = 0; i < 256; ++i) CHECK(y[i] == x[i]);
  CHECK(y[256] == Approx(1e6f));
  CHECK(y[257] == 0);  // less than half a step of 1e6 / 127
  // e4m3: three bits behind the leading one, so 2^-4 of each number.
  round_activations(ActivationCode::kFp8, x.data(), 256, y.data());
  for (size_t i = 0; i < 256; ++i) CHECK(std::abs(y[i] - x[i]) <= std::abs(x[i]) / 16);
  round_activations(ActivationCode::kBf16, x.data(), 512, y.data());
  for (size_t i = 0; i < 512; ++i) CHECK(std::abs(y[i] - x[i]) <= std::abs(x[i]) / 256);
  x.assign(512, 0.f);
  round_activations(ActivationCode::kFp8, x.data(), 512, y.data());
  CHECK(y == x);
}

TEST_CASE("8-bit activations as served are those that are measured, and cost W4A8 less than 0.3 %") {
  const Demo demo;
  CompareOptions options;
  options.contexts = {256};
  ThreadPool pool({.threads = 2});
  const auto w4a8 = quantize_at_load(demo.checkpoint, "w4a8", {"/dev/null/none"}, pool, {}, {});
  REQUIRE(w4a8.ok());
  // Levels of 8 bits under a scale: held in f32, the weights are exactly those of the file.
  const auto report =
      compare_models(demo.checkpoint, *demo.tokenizer, heldout(oar_test::kSlow ? 1500 : 12000),
                     {{"served", &*w4a8, "auto", "f32", "none"},
                      {"wide", &*w4a8, "f32", "f32", "none", "bf16"},
                      {"int8", &*w4a8, "f32", "f32", "none", "int8"}},
                     options);
  REQUIRE(report.ok());
  const CompareRow &served = report->rows[0], &wide = report->rows[1], &narrow = report->rows[2];
  CHECK(std::abs(served.perplexity / wide.perplexity - 1) < 0.003);
  // The same rounding but for ties (a quotient here, a product with the reciprocal in the kernels).
  CHECK(served.mean_kld == Approx(narrow.mean_kld).epsilon(0.02));
  CHECK(served.perplexity == Approx(narrow.perplexity).epsilon(5e-4));
  CHECK(compare_table(*report).find("f32 x int8") != std::string::npos);
  const auto bad = compare_models(demo.checkpoint, *demo.tokenizer, "some text to predict",
                                  {{"demo", &demo.checkpoint, "auto", "f32", "none", "int3"}}, options);
  CHECK(bad.status().message().find("int3") != std::string::npos);
}

TEST_CASE("comparing refuses what cannot be compared") {
  const Demo demo;
  CompareOptions options;
  const auto run = [&](const std::string& weights, const std::string& kv) {
    return compare_models(demo.checkpoint, *demo.tokenizer, "some text to predict",
                          {{"demo", &demo.checkpoint, weights, kv}}, options)
        .status();
  };
  CHECK(run("auto", "auto").code() == StatusCode::kInvalidArgument);  // no context
  options.contexts = {32};
  CHECK(run("auto", "auto").ok());
  CHECK(run("int9", "auto").message().find("int9") != std::string::npos);
  CHECK(run("auto", "int9").message().find("int9") != std::string::npos);
  const Progress stop = [](std::string_view, uint64_t, uint64_t) { return false; };
  const auto stopped = compare_models(demo.checkpoint, *demo.tokenizer, "some text to predict",
                                      {{"demo", &demo.checkpoint, "auto", "auto"}}, options, stop);
  CHECK(stopped.status().code() == StatusCode::kCancelled);
}

TEST_CASE("checkpoints of one name are a curve, of different names points") {
  CompareReport report;
  const auto row = [](const char* label, double bits, double kld) {
    CompareRow r;
    r.label = label;
    r.context = 64;
    r.bits.bits_per_weight = bits;
    r.mean_kld = kld;
    return r;
  };
  report.rows = {row("rtn", 4.5, 0.008), row("rtn", 4.25, 0.01), row("gptq", 4.5, 0.005)};
  CHECK(compare_svg(report).find("<polyline") == std::string::npos);
  report.rows.push_back(row("gptq", 4.25, 0.006));
  const std::string plot = compare_svg(report);
  size_t curves = 0;
  for (size_t at = plot.find("<polyline"); at != std::string::npos; at = plot.find("<polyline", at + 1))
    ++curves;
  CHECK(curves == 2);
  CHECK(plot.find(">gptq</text>") != std::string::npos);
  // The reference beside itself is no point: its bits would stretch the axis.
  report.rows.push_back(row("reference", 16, 0));
  CHECK(compare_svg(report) == plot);
}

TEST_CASE("names of points that lie together are all there, each in a place of its own") {
  Plot plot{.title = "", .x_label = "", .y_label = "", .series = {{"", {}, false}}};
  for (int k = 0; k < 10; ++k) plot.series[0].points.push_back({cat("name", k), 4.5, 0.01 + 1e-5 * k});
  const std::string drawn = svg(plot);
  std::set<std::string> places;
  for (int k = 0; k < 10; ++k) {
    const size_t end = drawn.find(cat(">name", k, "</text>"));
    REQUIRE(end != std::string::npos);
    places.insert(drawn.substr(drawn.rfind("<text", end), end - drawn.rfind("<text", end)));
  }
  CHECK(places.size() == 10);
}

TEST_CASE("a plot survives odd points") {
  const std::string plot =
      svg({.title = "a < b & c",
           .x_label = "x",
           .y_label = "y",
           .series = {{"s\"", {{"zero", 1, 0}, {"one", 1, 1}}, true}, {"empty", {}, false}}});
  CHECK(plot.find("a &lt; b &amp; c") != std::string::npos);
  CHECK(plot.find("nan") == std::string::npos);
  CHECK(svg({}).ends_with("</svg>\n"));
}
