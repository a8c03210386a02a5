// What a step of an engine costs the emulated device beside its kernels: copies, captures, launches.
#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "kernels/cuda/emulation/runtime.h"
#include "tests/cuda/device_engine.h"
#include "tests/cuda/stored_weights.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar;
using namespace oar_test;
using Counters = cuda::emulation::RuntimeCounters;

// Of the runtime that the plug-in has, once it is loaded.
Counters counters() {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string plugin = program.parent_path() / (std::string("liboar_") + kCudaPlugin + ".so");
  void* const library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  auto* const ask = reinterpret_cast<decltype(&oar_emulated_runtime_counters)>(
      dlsym(library, "oar_emulated_runtime_counters"));
  REQUIRE(ask != nullptr);
  Counters out;
  ask(&out);
  dlclose(library);
  return out;
}

// Counters when each step was over, and how many rows it had; filled by the engine's thread.
struct Watch {
  std::mutex mutex;
  std::vector<std::pair<int64_t, Counters>> steps;
};

std::shared_ptr<Watch> watch(Engine& engine) {
  auto seen = std::make_shared<Watch>();
  engine.on_step([seen](const StepInfo& info) {
    std::lock_guard lock(seen->mutex);
    seen->steps.emplace_back(info.tokens, counters());
  });
  return seen;
}

}  // namespace

// In lockstep what to draw has a copy of its own, so that rows do not wait until masks are known.
TEST_CASE("cuda emulated: a step takes one copy to the device and one back, and few captures") {
  for (const Draws draws : {Draws::kLockstep, Draws::kOneAhead}) {
    DeviceEngine engine(served_path("llama3"), "bf16", draws);
    const auto seen = watch(*engine.engine);
    const uint64_t captures = counters().captures;
    // Texts of three lengths, so that one, two and three sequences decode, over seven pages.
    std::vector<std::shared_ptr<CollectSink>> sinks;
    for (const int64_t length : {20, 60, 110}) {
      sinks.push_back(engine.submit(prompt_of(static_cast<uint64_t>(length), 5, engine.vocab), length, {}));
    }
    for (const auto& sink : sinks) REQUIRE(sink->wait(std::chrono::seconds(120)));
    engine.engine.reset();
    REQUIRE(seen->steps.size() > 100);
    size_t decodes = 0, replays = 0;
    for (size_t i = seen->steps.size() / 4; i < seen->steps.size(); ++i) {
      const Counters &before = seen->steps[i - 1].second, &after = seen->steps[i].second;
      // One step ahead the last step of all has nobody behind it.
      if (i + 2 >= seen->steps.size()) continue;
      CHECK(after.copies_to_device - before.copies_to_device == (draws == Draws::kOneAhead ? 1 : 2));
      CHECK(after.copies_to_host - before.copies_to_host == 1);
      replays += after.replays - before.replays;
      ++decodes;
    }
    CHECK(decodes > 50);
    // 1, 2 and 4 sequences; 1, 2, 4 and 8 pages: no more than these.
    CHECK(counters().captures - captures <= 8);
    // Sizes seen for the first time are launched kernel by kernel.
    CHECK(decodes - replays <= 12);
  }
}

namespace {

// Of a model's last layer in a step that is replayed, for all sequences of the step together, and of all that
// is no layer: the first `layers` of it have one layer's launches more than those but the last.
struct Launches {
  uint64_t layer, beside;
  bool operator==(const Launches&) const = default;
};
uint64_t launches_of_step(DeviceEngine engine) {
  const auto seen = watch(*engine.engine);
  REQUIRE(engine.submit(prompt_of(3, 5, engine.vocab), 6, {})->wait(std::chrono::seconds(120)));
  engine.engine.reset();
  REQUIRE(seen->steps.size() > 5);
  const Counters &before = seen->steps[3].second, &after = seen->steps[4].second;
  CHECK(after.replays - before.replays == 1);
  return after.launches - before.launches;
}
Launches launches_of(const std::string& path, const char* kv, const char* weights = "auto", int layers = 2) {
  const auto launches = [&](int count) {
    return launches_of_step(DeviceEngine(path, kv, Draws::kOneAhead, 64, {}, count, weights));
  };
  const uint64_t all = launches(layers), less = launches(layers - 1), layer = all - less;
  return {layer, all - layer * static_cast<uint64_t>(layers)};
}

// Of a layer of a step whose rows are all of a prompt, behind others of it.
uint64_t launches_of_prompt(const std::string& path, const char* weights, const char* libraries) {
  const WithLibraries with(libraries);
  const auto launches = [&](int layers) {
    DeviceEngine engine(path, "bf16", Draws::kLockstep, 64, {}, layers, weights);
    const auto seen = watch(*engine.engine);
    REQUIRE(engine.submit(prompt_of(3, 64, engine.vocab), 3, {})->wait(std::chrono::seconds(120)));
    engine.engine.reset();
    REQUIRE(seen->steps.size() > 2);
    CHECK(seen->steps[1].first == 32);
    return seen->steps[1].second.launches - seen->steps[0].second.launches;
  };
  return launches(2) - launches(1);
}

}  // namespace

// Heads are rotated and appended in one; products behind attention, norms and the next layer's first product
// are one. Beside layers: tokens of the step before, embedding, the first norm and product, rows wanted,
// head, draws.
TEST_CASE("cuda emulated: launches of a layer in a step that decodes") {
  for (const char* kv : {"bf16", "int8", "int4"}) {
    INFO(kv);
    CHECK(launches_of(served_path("llama3"), kv) == Launches{3, 7});
  }
  struct Model {
    const char *name, *weights;
    Launches expected;
  };
  // Experts: their choice is behind the router's product; their layers, the gate, the sum, the norm and the
  // next layer's first product are one launch more. Norms behind attention and behind the gated product,
  // which are in the chain. Over a latent the products of all heads are in it, too. Routers and the matrices
  // of heads keep the file's format, whatever the others have. With a state: its convolution, an activation,
  // norms of heads, the scan and its norm are launches more; what makes gates of columns is in the chain.
  for (const Model& m : {Model{"mixtral", "auto", {4, 7}},
                         {"mixtral", "q4_0", {4, 7}},
                         {"mixtral", "nvfp4", {4, 7}},
                         {"gemma2", "auto", {3, 7}},
                         {"minicpm3", "auto", {3, 7}},
                         {"minicpm3", "q4_0", {3, 7}},
                         {"minicpm3", "nvfp4", {3, 7}},
                         {"qwen3_5", "auto", {6, 7}},
                         {"mamba2", "auto", {6, 7}},
                         {"lfm2", "auto", {3, 6}}}) {
    INFO(m.name << ", weights " << m.weights);
    const Launches got = launches_of(served_path(m.name), "bf16", m.weights);
    CAPTURE(got.layer, got.beside);
    CHECK(got == m.expected);
  }
}

// With tensor cores and without. Of two layers, so that one has another behind it.
TEST_CASE("cuda emulated: launches of a layer are the same for weights of every storage format") {
  const auto check = [](const Checkpoint& stored, const std::string& weights) {
    CHECK(launches_of_step(DeviceEngine(stored, "bf16", Draws::kOneAhead, 64, {}, 2, weights)) == 2 * 3 + 7);
  };
  CHECK(for_stored_weights(source_path("configs/demo"), check) >= 37);
}

// As files have them whose values and second layers keep more bits (Q4_K_M and its kin), and where there are
// tensor cores for all of these, for some, and for none.
TEST_CASE("cuda emulated: launches of a layer are the same for weights of several formats") {
  struct Formats {
    const char *most, *values, *down;
  };
  for (const Formats& f : {Formats{"q4_k", "q6_k", "q6_k"},
                           {"q5_k", "q6_k", "q6_k"},
                           {"q3_k", "q5_k", "q4_k"},
                           {"q2_k", "q3_k", "q3_k"}}) {
    INFO(f.most << ", values " << f.values << ", second layers " << f.down);
    Checkpoint stored = load_with_weights(source_path("configs/demo"), "auto");
    fill_matrices(stored, *Format::find(f.most));
    fill_matrices(stored, *Format::find(f.values), "v_proj");
    fill_matrices(stored, *Format::find(f.down), "down_proj");
    CHECK(launches_of_step(DeviceEngine(stored, "bf16", Draws::kOneAhead, 64, {}, 2, "auto")) == 2 * 3 + 7);
  }
}

TEST_CASE("cuda emulated: launches of a layer where libraries' products have rows of prompts") {
  const std::string demo = source_path("configs/demo");
  {
    // No row is of a prompt then.
    const WithLibraries with("wgmma");
    for (const char* weights : {"auto", "fp8"}) CHECK(launches_of(demo, "bf16", weights) == Launches{3, 7});
  }
  struct Prompt {
    const char *weights, *libraries;
    uint64_t expected;
  };
  for (const Prompt& p : {
           Prompt{"bf16", "wgmma", 13},
           {"fp8", "wgmma", 13},
           {"bf16", "cublaslt", 13},
           // Scales of rows, which cuBLASLt is not given: no row has a phase, products are our own.
           {"fp8", "cublaslt", 8},
       }) {
    INFO("weights " << p.weights << " by " << p.libraries);
    CHECK(launches_of_prompt(demo, p.weights, p.libraries) == p.expected);
  }
}

// README.md has these, too: of models whose layers take more than four launches, how many they are.
TEST_CASE("cuda emulated: launches of a layer of every architecture") {
  const std::map<std::string, double> most = {
      {"hunyuan_v1_dense", 7},   {"falcon_h1", 7},  {"starcoder2", 6.8},
      {"qwen3_5-moe", 6.3},      {"mistral4", 6.3}, {"llama4", 6.3},
      {"qwen3-next", 6},         {"mamba2", 6},     {"gpt-oss", 6},
      {"gpt-oss-mxfp4", 6},      {"qwen3_5", 5.3},  {"ministral3", 5.3},
      {"granitemoehybrid", 4.8}, {"cohere2", 4.8}};
  for (const std::string& name : tiny_golden_names()) {
    if (name == "gpt2") continue;  // it learned fewer positions than this engine has
    DeviceEngine engine(served_path(name), "bf16", Draws::kOneAhead);
    const auto layers = static_cast<double>(engine.layer_count);
    const uint64_t launches = launches_of_step(std::move(engine));
    INFO(name << ": " << launches << " launches of " << layers << " layers");
    const auto known = most.find(name);
    CHECK(static_cast<double>(launches) - 7 <= layers * (known != most.end() ? known->second + 0.05 : 4));
  }
}
