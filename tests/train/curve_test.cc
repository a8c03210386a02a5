// Loss curves against PyTorch's (tests/golden/generate_training.py): the same start, samples, optimizer and
// order.
#include <cmath>
#include <cstring>

#include "engine/base/json.h"
#include "engine/tensor/mapped_file.h"
#include "tests/train/training_fixture.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

// The largest distance from PyTorch's curve in double over `steps`, in units of the bound that the golden
// gives: f32 of PyTorch differs from itself in double by `spread`, by the order of its sums alone.
double distance(const std::string& name, bool full, size_t steps) {
  const std::string path = std::string(OAR_SOURCE_DIR) + "/tests/golden/training/" + name + ".json";
  const json::value golden = parse_json(read_small_file(path, 1 << 20).value(), path).value();
  const auto number = [&](const char* key) { return golden.at(key).to_number<double>(); };
  std::vector<std::vector<int32_t>> samples;
  for (const json::value& s : golden.at("samples").as_array()) {
    samples.emplace_back();
    for (const json::value& id : s.as_array()) samples.back().push_back(static_cast<int32_t>(id.as_int64()));
  }
  TinyRun run(name, samples);
  run.options.graph.tokens = 32;
  run.options.graph.full = full;
  run.options.graph.lora = {golden.at("rank").as_int64(), number("alpha"), {"all"}};
  run.options.rate = number("rate");
  run.options.optimizer.decay = number("decay");
  run.options.clip = number("clip");
  auto t = run.trainer();
  for (size_t k = 0; k < t->parameters().size() && !full; ++k) {
    const Parameter& p = t->parameters()[k];
    if (!p.name.ends_with(".lora_A.weight")) continue;
    const auto values = tiny_weights(p.name, std::vector<int64_t>(p.shape.begin(), p.shape.end()),
                                     static_cast<uint64_t>(golden.at("seed").as_int64()));
    std::memcpy(t->value(k).mutable_data(), values.data(), values.size() * sizeof(float));
  }
  const json::value& mode = golden.at(full ? "full" : "lora");
  const double bound = std::max(1e-5, 4 * mode.at("spread").to_number<double>());
  double worst = 0;
  for (size_t k = 0; k < steps; ++k) {
    const auto r = t->step();
    INFO((r.ok() ? std::string() : r.status().message()));
    REQUIRE(r.ok());
    worst = std::max(worst, std::abs(r->loss - mode.at("loss").at(k).to_number<double>()) / bound);
  }
  return worst;
}

}  // namespace

TEST_CASE("loss curves are PyTorch's") {
  for (const char* name : {"llama3", "qwen2", "gemma2"}) {
    for (const bool full : {true, false}) {
      INFO(name << (full ? " full" : " lora"));
      CHECK(distance(name, full, 200) < 1);
    }
  }
}

TEST_CASE("loss curves are PyTorch's, of every dense architecture", "[slow]") {
  for (const char* name :
       {"llama2", "llama-bias", "llama-linear", "qwen3", "mistral", "seed_oss", "gemma3", "granite", "olmo2",
        "smollm3", "starcoder2", "glm4", "phi3", "gpt2", "cohere2", "exaone4", "ernie4_5"}) {
    for (const bool full : {true, false}) {
      if (!full && std::string(name) == "gpt2") continue;
      INFO(name << (full ? " full" : " lora"));
      CHECK(distance(name, full, 200) < 1);
    }
  }
}
