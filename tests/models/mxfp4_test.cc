// gpt-oss as it is released: experts in mxfp4, codes and scales in tensors of their own. Against
// transformers, which decodes them first; and how much of them lies in memory.
#include <cctype>
#include <cstring>
#include <fstream>

#include "engine/graph/builder.h"
#include "engine/graph/weights.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar;
using namespace oar_test;

LanguageModelOptions mxfp4_options() {
  LanguageModelOptions o;
  o.threads = 2;
  o.max_batch_tokens = 64;
  o.max_sequences = 64;
  o.page_tokens = 16;
  return o;
}

// Pages of a mapped file that this process has in memory.
uint64_t resident_bytes(const std::string& file) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  uint64_t kib = 0;
  while (std::getline(maps, line)) {
    if (!line.empty() && std::isupper(line[0]) == 0)
      ours = line.find(file) != std::string::npos;  // an address
    else if (ours && line.starts_with("Rss:")) kib += std::stoull(line.substr(4));
  }
  return kib << 10;
}

// Expert e of a stack, without its first axis.
Tensor expert_of(const Tensor& all, int64_t e) {
  std::vector<int64_t> dims;
  for (int k = 1; k < all.shape().rank(); ++k) dims.push_back(all.shape()[k]);
  return all.slice(e, e + 1).reshape(Shape(std::span<const int64_t>(dims))).value();
}

}  // namespace

TEST_CASE("mxfp4: codes and scales of a checkpoint decode to the bits that transformers makes of them") {
  const TinyGolden golden = load_tiny_golden("gpt-oss-mxfp4");
  const auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  REQUIRE(golden.decoded.size() == 8);
  ThreadPool pool({.threads = 2});
  for (const TinyTensor& want : golden.decoded) {
    const int64_t X = want.shape[0], K = want.shape[1], N = want.shape[2];
    std::vector<float> values(static_cast<size_t>(X * K * N)), row(static_cast<size_t>(K));
    for (int64_t e = 0; e < X; ++e) {
      Graph g;
      Builder b(g);
      const Val w = b.op("stored_matrix",
                         {b.constant("blocks", expert_of(checkpoint->tensors.at(want.name + "_blocks"), e)),
                          b.constant("scales", expert_of(checkpoint->tensors.at(want.name + "_scales"), e))},
                         {{"rows", N}});
      REQUIRE(b.status().ok());
      const auto made = evaluate_weight(g, w.id, pool);
      REQUIRE_OK(made);
      CHECK(made->format() == *Format::find("mxfp4"));
      for (int64_t n = 0; n < N; ++n) {
        made->format().decode_row(static_cast<const char*>(made->data()) + n * K / 32 * 17, K, row.data());
        for (int64_t k = 0; k < K; ++k)
          values[static_cast<size_t>((e * K + k) * N + n)] = row[static_cast<size_t>(k)];
      }
    }
    INFO(want.name);
    CHECK(fnv1a64(values) == want.checksum);
  }
}

TEST_CASE("gpt-oss with experts in mxfp4 equals transformers'") {
  const TinyGolden golden = load_tiny_golden("gpt-oss-mxfp4");
  const std::string path = write_tiny_model(golden, TinyDtype::f32);
  for (const bool reference : {true, false}) {
    auto options = mxfp4_options();
    options.reference = reference;
    RunnerFixture model(path, options);
    const std::vector<float> got = model.run_prompt(golden.tokens);
    if (reference) {
      CHECK(relative_error(got, golden.logits_f32) < 1e-4);
      continue;
    }
    // Kernels of integers round what goes into an expert's two products to half a step of 127, in each layer.
    // Where two experts nearly tie that chooses another one, and all of the row is another: in few of them.
    const double bound = 2 * static_cast<double>(model.config.layers) * 0.5 / 127;
    const auto V = static_cast<int64_t>(golden.vocab), T = static_cast<int64_t>(golden.tokens.size());
    int64_t others = 0;
    for (int64_t t = 0; t < T; ++t) {
      const auto row = [&](const std::vector<float>& x) {
        return std::vector<float>(x.begin() + t * V, x.begin() + (t + 1) * V);
      };
      const double error = relative_error(row(got), row(golden.logits_f32));
      UNSCOPED_INFO("row " << t << ": " << error);
      others += error >= bound;
    }
    CHECK(others <= T / 8);
  }
}

TEST_CASE("experts in mxfp4 lie in memory once, packed") {
  const TinyGolden golden = load_tiny_golden("gpt-oss-mxfp4");
  auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  uint64_t stored = 0;
  for (const auto& [name, t] : checkpoint->tensors) {
    INFO(name);
    CHECK(t.buffer().mapped());  // nothing was repacked by the loader
    if (tiny_is_bytes(name)) stored += t.bytes();
  }
  const auto options = mxfp4_options();
  const auto config = read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  auto graph = build_serving_graph(*checkpoint, *config, options);
  REQUIRE_OK(graph);
  const auto backend = make_backend(options);
  REQUIRE_OK(backend);
  const ForeseenWeights foreseen = foresee_weights(graph->model.graph, **backend);
  const auto serving = compile_serving_plan(std::move(*graph), *config, options, *backend, {});
  REQUIRE_OK(serving);
  // 4.25 bits become 4.375, or 8.125 where the kernel wants bytes; and heads of blocks that rows of 64 and 96
  // do not fill. Biases and sinks are a few kilobytes.
  const uint64_t copied = serving->run->program().copied_weight_bytes();
  CAPTURE(stored, copied, foreseen.made);
  CHECK(copied >= stored);
  CHECK(copied < stored * 5 / 4 + 64 * 1024);
  CHECK(copied <= foreseen.made + 64 * 1024);
}

TEST_CASE("experts in mxfp4: pages of the file that were repacked are given back") {
  // Wide enough for pages to tell: 9 MiB of codes.
  TinyGolden golden = load_tiny_golden("gpt-oss-mxfp4");
  constexpr int64_t kWide = 12288;
  const std::string key = "\"intermediate_size\": ";
  const size_t at = golden.config.find(key + "96");
  REQUIRE(at != std::string::npos);
  golden.config.replace(at + key.size(), 2, std::to_string(kWide));
  for (TinyTensor& t : golden.tensors) {
    if (t.name.find("gate_up_proj_") != std::string::npos) t.shape[1] = 2 * kWide;
    if (t.name.ends_with("down_proj_blocks") || t.name.ends_with("down_proj_scales")) t.shape[2] = kWide / 32;
  }
  const std::string path = write_tiny_model(golden, TinyDtype::f32);
  auto checkpoint = load_checkpoint(path);
  REQUIRE_OK(checkpoint);
  uint64_t stored = 0;
  for (const auto& [name, t] : checkpoint->tensors)
    if (tiny_is_bytes(name)) stored += t.bytes();
  CHECK(stored > uint64_t{8} << 20);
  const auto options = mxfp4_options();
  const auto config = read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  auto graph = build_serving_graph(*checkpoint, *config, options);
  REQUIRE_OK(graph);
  const auto serving = compile_serving_plan(std::move(*graph), *config, options, *make_backend(options), {});
  REQUIRE_OK(serving);
  CHECK(serving->run->program().copied_weight_bytes() >= stored);
  const uint64_t left = resident_bytes(path + "/model.safetensors");
  CAPTURE(stored, left);
  CHECK(left < stored / 4);
}

TEST_CASE("mxfp4: tensors that contradict each other are refused by name") {
  const TinyGolden golden = load_tiny_golden("gpt-oss-mxfp4");
  const auto refusal = [&](auto&& change) {
    TinyGolden other = golden;
    change(other);
    const auto loaded = load_checkpoint(write_tiny_model(other, TinyDtype::f32));
    return loaded.ok() ? std::string() : loaded.status().message();
  };
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  const auto tensor = [&](TinyGolden& g, const std::string& part) {
    return std::find_if(g.tensors.begin(), g.tensors.end(),
                        [&](const TinyTensor& t) { return t.name == name + part; });
  };
  CHECK(refusal([](TinyGolden&) {}) == "");
  const std::string missing = refusal([&](TinyGolden& g) { g.tensors.erase(tensor(g, "_scales")); });
  CHECK(missing.find(name + "_scales") != std::string::npos);
  const std::string wide = refusal([&](TinyGolden& g) { tensor(g, "_blocks")->shape.back() = 8; });
  CHECK(wide.find(name + "_blocks") != std::string::npos);
  const std::string few = refusal([&](TinyGolden& g) { tensor(g, "_scales")->shape[1] = 32; });
  CHECK(few.find(name + "_scales") != std::string::npos);
  // Extents that fit each other and not the config.
  TinyGolden fewer = golden;
  tensor(fewer, "_scales")->shape[1] = tensor(fewer, "_blocks")->shape[1] = 32;
  auto checkpoint = load_checkpoint(write_tiny_model(fewer, TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  const auto config = read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  const auto graph = build_serving_graph(*checkpoint, *config, mxfp4_options());
  CHECK_FALSE(graph.ok());
  CHECK(graph.status().message().find(name + "_blocks") != std::string::npos);
}
