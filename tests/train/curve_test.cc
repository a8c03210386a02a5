// Loss curves against PyTorch's (tests/golden/generate_training.py): the same start, samples, optimizer and
// order.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/tensor/mapped_file.h"
#include "tests/support/sample.h"
#include "tests/train/training_fixture.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

const std::string kGoldens = std::string(OAR_SOURCE_DIR) + "/tests/golden/training";

// The largest distance from PyTorch's curve in double in units of the bound that the golden
// gives: f32 of PyTorch differs from itself in double by `spread`, by the order of its sums alone.
double distance(const std::string& name, const std::string& mode_name) {
  const std::string path = cat(kGoldens, "/", name, ".json");
  const json::value golden = parse_json(read_small_file(path, 1 << 20).value(), path).value();
  if (!golden.as_object().contains(mode_name)) return 0;  // GPT-2 takes no adapters, nor do stacks
  const bool full = mode_name == "full";
  const auto number = [&](const char* key) { return golden.at(key).to_number<double>(); };
  std::vector<std::vector<int32_t>> samples;
  for (const json::value& s : golden.at("samples").as_array()) {
    samples.emplace_back();
    for (const json::value& id : s.as_array()) samples.back().push_back(static_cast<int32_t>(id.as_int64()));
  }
  TinyRun run(name, samples);
  if (golden.as_object().contains("balance")) {
    run.configure({{"output_router_logits", true}, {"router_aux_loss_coef", number("balance")}});
  }
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
  const json::value& mode = golden.at(mode_name);
  const double bound = std::max(1e-5, 4 * mode.at("spread").to_number<double>());
  double worst = 0;
  for (size_t k = 0; k < mode.at("loss").as_array().size(); ++k) {
    const auto r = t->step();
    INFO((r.ok() ? std::string() : r.status().message()));
    REQUIRE(r.ok());
    worst = std::max(worst, std::abs(r->loss - mode.at("loss").at(k).to_number<double>()) / bound);
  }
  return worst;
}

}  // namespace

TEST_CASE("loss curves are PyTorch's, of every model there is one of") {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens))
    if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  REQUIRE(names.contains("llama3"));
  REQUIRE(names.contains("mixtral"));
  oar_test::Sample sample;
  for (const std::string& name : names) {
    for (const char* mode : {"full", "lora"}) {
      if (!sample.take()) continue;
      const double worst = distance(name, mode);
      INFO(name << " " << mode);
      CHECK(worst < 1);
    }
  }
}
