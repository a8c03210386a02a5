// What a language model reserves before it is made is what it then takes; several models share one budget and
// one set of workers.
#include <filesystem>

#include "engine/models/config_reader.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tensor/charge.h"
#include "kernels/thread_pool.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

LanguageModelOptions modest_options() {
  LanguageModelOptions o;
  o.threads = 2;
  o.max_sequences = 2;
  o.max_batch_tokens = 64;
  o.max_context = 128;
  o.cache_bytes = 0;
  return o;
}

size_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace

TEST_CASE("weights are foreseen from their layouts: what is made later is that") {
  for (const char* weights : {"auto", "f32", "f16", "int8", "q4_0", "fp8"}) {
    INFO(weights);
    LanguageModelOptions o = modest_options();
    o.weights = weights;
    auto loaded = load_checkpoint(source_path("configs/demo"));
    REQUIRE_OK(loaded);
    const auto backend = make_backend(o);
    REQUIRE_OK(backend);
    auto checkpoint =
        quantize_at_load(std::move(*loaded), o.weights, {"", 0}, (*backend)->host_pool(), {}, {});
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    auto graph = build_serving_graph(*checkpoint, *config, o);
    REQUIRE_OK(graph);
    const ForeseenWeights foreseen = foresee_weights(graph->model.graph, **backend);
    const auto budget = MemoryBudget::make(uint64_t{1} << 40);
    auto own = budget->reserve(0, "demo");
    REQUIRE_OK(own);
    const ChargeTo charge(*own);
    const auto serving = compile_serving_plan(std::move(*graph), *config, o, *backend, {});
    REQUIRE_OK(serving);
    const uint64_t made = budget->reserved() - serving->run->arena_bytes() - serving->run->scratch_bytes();
    CHECK(made <= foreseen.made + 2 * Buffer::kAlignment * 64);
    // Norms lie in place and as f32 beside, which is little.
    const Program& program = serving->run->program();
    CHECK(foreseen.made <= program.copied_weight_bytes());
    CHECK(program.copied_weight_bytes() <= foreseen.made + 64 * kKiB);
    const uint64_t in_memory = program.in_place_weight_bytes() + program.copied_weight_bytes();
    CHECK(in_memory <= foreseen.total() + 64 * kKiB);
    CHECK(foreseen.total() <= in_memory + 64 * kKiB);
  }
}

TEST_CASE("a model's reservation is its weights, scratch and cache, and goes with it") {
  LanguageModelOptions o = modest_options();
  o.resources.memory = MemoryBudget::make(64 * kMiB);
  for (const bool mapped : {true, false}) {
    o.use_mmap = mapped;
    auto model = LanguageModel::load(source_path("configs/demo"), o);
    REQUIRE_OK(model);
    const ModelInfo& info = (*model)->info();
    const uint64_t all = info.weight_bytes + info.scratch_bytes + info.kv_bytes;
    INFO("reserved " << o.resources.memory->reserved() << " of " << all);
    CHECK(o.resources.memory->reserved() + kMiB / 2 >= all);
    // Without mapping the whole file stays in memory, the tokenizer's part of it too.
    CHECK(o.resources.memory->reserved() <= all + kMiB);
    model = internal_error("gone");
    CHECK(o.resources.memory->reserved() == 0);
  }
}

TEST_CASE("several models share one budget: a large one may take more than its number's part") {
  LanguageModelOptions large = modest_options(), small = modest_options();
  large.weights = "f32", small.weights = "int8";
  large.max_context = 0, large.max_sequences = 16;  // a cache that takes all it can get
  const auto need = [](const LanguageModelOptions& o) {
    const auto model = LanguageModel::load(source_path("configs/demo"), o);
    REQUIRE_OK(model);
    return (*model)->info().weight_bytes + (*model)->info().scratch_bytes;
  };
  const uint64_t budget = need(large) + need(small) + 4 * kMiB;
  // What each of two got when the budget was divided by their number.
  large.memory_bytes = budget / 2;
  CHECK(LanguageModel::load(source_path("configs/demo"), large).status().code() ==
        StatusCode::kResourceExhausted);
  large.memory_bytes = 0;
  large.resources.memory = small.resources.memory = MemoryBudget::make(budget);
  auto to_come = large.resources.memory->reserve(need(small), "the other, to come");
  REQUIRE_OK(to_come);
  large.kv_share = 0.5;
  auto first = LanguageModel::load(source_path("configs/demo"), large);
  REQUIRE_OK(first);
  CHECK(budget - large.resources.memory->reserved() >= kMiB);  // half of the rest, for the other's cache
  to_come = Reservation();
  auto second = LanguageModel::load(source_path("configs/demo"), small);
  REQUIRE_OK(second);
  CHECK(small.resources.memory->reserved() <= budget);
  const auto third = LanguageModel::load(source_path("configs/demo"), small);
  CHECK(third.status().code() == StatusCode::kResourceExhausted);
  CHECK(third.status().message().find("in use; raise the memory") != std::string::npos);
}

TEST_CASE("models of one process share its workers") {
  LanguageModelOptions o = modest_options();
  o.memory_bytes = 64 * kMiB;
  o.resources.pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 3});
  const size_t before = threads_of_process();
  auto one = LanguageModel::load(source_path("configs/demo"), o),
       other = LanguageModel::load(source_path("configs/demo"), o);
  REQUIRE_OK(one);
  REQUIRE_OK(other);
  CHECK((*one)->info().threads == 2);
  CHECK(threads_of_process() == before + 2);  // one engine thread each
}
