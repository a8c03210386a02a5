// What a language model reserves before it is made is what it then takes; several models share one budget and
// one set of workers.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/models/config_reader.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tensor/charge.h"
#include "kernels/thread_pool.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

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

TEST_CASE("pools: layers with a window leave to full ones what their sequences cannot use") {
  const TinyGolden golden = load_tiny_golden("gemma4-e2b");
  const auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
  REQUIRE_OK(checkpoint);
  const auto config = read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  LanguageModelOptions o = modest_options();
  o.page_tokens = 16;
  const auto graph = build_serving_graph(*checkpoint, *config, o);
  REQUIRE_OK(graph);
  const ServeLayout& layout = graph->layout;
  // Two layers with windows of 12 and one without have pages; the three behind them read those.
  REQUIRE(layout.groups.size() == 2);
  CHECK(layout.groups[0].window == 0);
  CHECK(layout.groups[0].states.size() == 1);
  CHECK(layout.groups[1].window == 12);
  CHECK(layout.groups[1].states.size() == 2);
  const uint64_t page = 16 * 2 * 2;  // tokens; keys and values; bytes
  CHECK(layout.groups[0].block_bytes == page * 32);
  CHECK(layout.groups[1].block_bytes == 2 * page * 16);
  // 2 sequences: twice two windows of a page and four more, four pages of a chunk, one.
  constexpr int32_t kEnough = 2 * 2 * (1 + 4) + 4 + 1;
  for (const uint64_t pages : {uint64_t{1}, uint64_t{10}, uint64_t{40}, uint64_t{1000}}) {
    const uint64_t bytes = pages * page * 64;
    const auto blocks = blocks_for(layout, bytes, {1 << 20, 64, 2, 16});
    INFO(pages);
    CHECK(pool_bytes(layout, blocks) <= bytes);
    CHECK(blocks[1] == std::min<int32_t>(static_cast<int32_t>(pages), kEnough));
    CHECK(blocks[0] == static_cast<int32_t>(2 * pages) - blocks[1]);  // pages of both groups are of one size
  }
}

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

TEST_CASE("per-layer embeddings are read where they lie, whatever weights are computed in") {
  TinyGolden golden = load_tiny_golden("gemma4-e2b");
  constexpr int64_t kRows = 1 << 16;  // 12 MiB in bf16, beside which the rest is nothing
  const std::string key = "\"vocab_size_per_layer_input\": ", table = "model.embed_tokens_per_layer.weight";
  const size_t at = golden.config.find(key + "256");
  REQUIRE(at != std::string::npos);
  golden.config.replace(at + key.size(), 3, std::to_string(kRows));
  for (TinyTensor& t : golden.tensors)
    if (t.name == table) t.shape[0] = kRows;
  const std::string path = write_tiny_model(golden, TinyDtype::bf16);
  for (const char* weights : {"auto", "int8", "int4", "in blocks"}) {
    INFO(weights);
    const bool blocks = std::string_view(weights) == "in blocks";  // as GGUF files have it
    LanguageModelOptions o = modest_options();
    if (!blocks) o.weights = weights;
    const auto backend = make_backend(o);
    REQUIRE_OK(backend);
    auto loaded = load_checkpoint(path);
    REQUIRE_OK(loaded);
    auto checkpoint =
        quantize_at_load(std::move(*loaded), o.weights, {"", 0}, (*backend)->host_pool(), {}, {});
    REQUIRE_OK(checkpoint);
    Tensor& t = checkpoint->tensors.at(table);
    CHECK(t.format() == Format::bf16());
    if (blocks) {
      auto q8 = Tensor::allocate(t.shape(), *Format::find("q8_0"));
      REQUIRE_OK(q8);
      std::memset(q8->mutable_data(), 0, q8->bytes());
      t = std::move(*q8);
    }
    const uint64_t bytes = t.bytes();
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    auto graph = build_serving_graph(*checkpoint, *config, o);
    REQUIRE_OK(graph);
    const ForeseenWeights foreseen = foresee_weights(graph->model.graph, **backend);
    CHECK((blocks ? foreseen.in_place : foreseen.mapped) >= bytes);
    CHECK(foreseen.made < kMiB);
    const auto serving = compile_serving_plan(std::move(*graph), *config, o, *backend, {});
    REQUIRE_OK(serving);
    CHECK(serving->run->program().in_place_weight_bytes() >= bytes);
    CHECK(serving->run->program().copied_weight_bytes() < kMiB);
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
