// What a language model reserves before it is made is what it then takes; several models share one budget and
// one set of workers.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "engine/base/format.h"
#include "engine/models/config_reader.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tensor/charge.h"
#include "kernels/attention.h"
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

TEST_CASE("caches: what a config says that layers keep is what their graph keeps") {
  constexpr int32_t kPage = 16;
  std::set<std::string> types;
  std::vector<std::string> names = all_golden_names();
  for (const std::string& name : long_golden_names()) names.push_back(name);
  for (const std::string& name : names) {
    INFO(name);
    const auto checkpoint = load_checkpoint(write_tiny_model(load_tiny_golden(name), TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    types.insert(config->model_type);
    LanguageModelOptions o = modest_options();
    o.max_context = 0;
    o.page_tokens = kPage;
    o.kv = "bf16";
    const auto graph = build_serving_graph(*checkpoint, *config, o);
    REQUIRE_OK(graph);
    std::multiset<std::pair<int64_t, size_t>> pages, told;  // window and bytes of a layer's block
    uint64_t borders = 0, rows = 0, told_borders = 0, told_rows = 0;
    for (const ServeLayout::Group& g : graph->layout.groups) {
      if (g.pages == ServeLayout::Pages::kState) borders += g.block_bytes;
      if (g.pages == ServeLayout::Pages::kRows) rows += g.block_bytes;
      if (g.pages == ServeLayout::Pages::kAll)
        for (const size_t bytes : g.state_block_bytes) pages.emplace(g.window, bytes);
    }
    for (const CachedLayer& kept : cached_layers(*config)) {
      told_borders += kept.border_bytes(*config);
      told_rows += kept.open_bytes(*config, kPage);
      if (kept.heads.kv_heads == 0) continue;
      const KvShape shape(DType::kBF16, kPage, static_cast<int32_t>(kept.heads.kv_heads),
                          static_cast<int32_t>(kept.heads.head_dim), static_cast<int32_t>(kept.latent));
      told.emplace(kept.window < graph->max_context ? kept.window : 0, kv_block_bytes(shape));
    }
    CHECK(told == pages);
    CHECK(told_borders == borders);
    CHECK(told_rows == rows);
  }
  types.insert("kimi_k2");  // deepseek_v3 under another name
  CHECK(types.size() == architecture_names().size());
}

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

namespace {
using Pages = ServeLayout::Pages;
ServeLayout layout_of(const std::string& golden, const char* kv) {
  LanguageModelOptions o = modest_options();
  o.kv = kv;
  const auto checkpoint = load_checkpoint(write_tiny_model(load_tiny_golden(golden), TinyDtype::bf16));
  REQUIRE_OK(checkpoint);
  const auto config = read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  auto graph = build_serving_graph(*checkpoint, *config, o);
  REQUIRE_OK(graph);
  return std::move(graph->layout);
}
// What a group has, and bytes of a block of those that are `pages`.
int64_t blocks_of(const ServeLayout& layout, const std::vector<int32_t>& blocks, Pages pages) {
  for (size_t g = 0; g < blocks.size(); ++g)
    if (layout.groups[g].pages == pages) return blocks[g];
  return 0;
}
uint64_t bytes_of(const ServeLayout& layout, Pages pages) {
  uint64_t sum = 0;
  for (const auto& g : layout.groups) sum += g.pages == pages ? g.block_bytes : 0;
  return sum;
}
}  // namespace

TEST_CASE("pools: recurrent states are charged first, and how many sequences run at once follows") {
  std::vector<std::pair<std::string, ServeLayout>> layouts;
  for (const char* kv : {"auto", "int8"}) layouts.emplace_back(kv, layout_of("qwen3_5", kv));
  layouts.emplace_back("states alone", layout_of("mamba2", "auto"));
  // Two models' layers in one budget, and states that are small beside a page.
  ServeLayout both = layouts[0].second;
  both.groups.insert(both.groups.end(), layouts[2].second.groups.begin(), layouts[2].second.groups.end());
  layouts.emplace_back("both", both);
  ServeLayout wide;
  const auto add = [&wide](Pages pages, size_t bytes) {
    ServeLayout::Group group;
    group.pages = pages;
    group.block_bytes = bytes;
    wide.groups.push_back(group);
  };
  add(Pages::kAll, 90'000), add(Pages::kState, 700), add(Pages::kRows, 300);
  layouts.emplace_back("wide pages", wide);
  for (const auto& [name, layout] : layouts) {
    const uint64_t least = least_kv_bytes(layout);
    const uint64_t state = bytes_of(layout, Pages::kState), each = state + bytes_of(layout, Pages::kRows);
    REQUIRE(state > 0);
    for (const int64_t wanted : {1, 8, 64}) {
      int64_t before = 1;
      for (uint64_t bytes = least; bytes < 400 * least; bytes += bytes / 7) {
        INFO(name << ": " << bytes << " bytes for " << wanted);
        const int64_t sequences = sequences_for(layout, bytes, wanted);
        CHECK(sequences >= before);
        CHECK(sequences <= wanted);
        before = sequences;
        const auto charged = static_cast<uint64_t>(2 * sequences + 2);
        if (sequences > 1) CHECK(charged * each <= bytes / 2);
        // One more would not be half of the budget, or leave no room for the least of the rest.
        if (sequences < wanted)
          CHECK(((charged + 2) * each > bytes / 2 || (charged + 2) * each + least - 4 * each > bytes));
        const auto blocks = blocks_for(layout, bytes, {1 << 20, 64, sequences, 64});
        CHECK(pool_bytes(layout, blocks) <= bytes);
        for (size_t g = 0; g < blocks.size(); ++g) {
          const bool open = layout.groups[g].pages == Pages::kOpen;
          CHECK(blocks[g] >= (open ? 3 : 1));
        }
        const int64_t states = blocks_of(layout, blocks, Pages::kState);
        CHECK(blocks_of(layout, blocks, Pages::kRows) == static_cast<int64_t>(charged));
        CHECK(states >= static_cast<int64_t>(charged));
        CHECK((static_cast<uint64_t>(states) - charged) * state <= bytes / 8);
        // As many snapshots as they are given bytes for, and not one more.
        for (const uint64_t given : {uint64_t{0}, state - 1, 3 * state, 5 * state + 1}) {
          const auto with = blocks_for(layout, bytes, {1 << 20, 64, sequences, 64, given});
          CHECK(blocks_of(layout, with, Pages::kState) == static_cast<int64_t>(charged + given / state));
          if (given < state) CHECK(pool_bytes(layout, with) <= bytes);
        }
      }
      CHECK(before == wanted);  // where there is plenty
    }
    const auto too_many = blocks_for(layout, 2 * least, {1 << 20, 64, 1, 64, 2 * least});
    CHECK(pool_bytes(layout, too_many) > 2 * least);  // which load() refuses
  }
}

TEST_CASE("a model of recurrent layers says what its states take and how many run at once") {
  for (const char* golden : {"mamba2", "qwen3_5"}) {
    INFO(golden);
    const std::string folder = write_lettered_model(load_tiny_golden(golden), TinyDtype::bf16);
    LanguageModelOptions o = modest_options();
    o.max_sequences = 24;
    std::vector<std::pair<LogLevel, std::string>> said;
    o.log.callback = [&said](LogLevel level, std::string_view text) {
      if (text.find("recurrent state") != text.npos) said.emplace_back(level, text);
    };
    o.memory_bytes = 64 * kMiB;
    uint64_t block = 0, beside = 0;
    {
      auto roomy = LanguageModel::load(folder, o);
      REQUIRE_OK(roomy);
      const ModelInfo& info = (*roomy)->info();
      CHECK(info.max_sequences == 24);
      REQUIRE(said.size() == 1);
      CHECK(said[0].first == LogLevel::kInfo);
      CHECK(said[0].second.find(" a sequence, ") != std::string::npos);
      CHECK(said[0].second.find(" for 24 sequences at once and ") != std::string::npos);
      CHECK(said[0].second.find("max_sequences") == std::string::npos);
      beside = info.weight_bytes + info.scratch_bytes;
      block = 2 * info.state_bytes_per_step;  // no less than a state and the rows of a page
    }
    // Room for the states of a few.
    o.memory_bytes = beside + kMiB / 2 + 20 * block;
    said.clear();
    auto tight = LanguageModel::load(folder, o);
    REQUIRE_OK(tight);
    const int64_t runs = (*tight)->info().max_sequences;
    CHECK(runs >= 1);
    CHECK(runs < 24);
    REQUIRE(said.size() == 1);
    CHECK(said[0].first == LogLevel::kWarning);
    CHECK(said[0].second.find(cat("memory does not hold the states of max_sequences 24, so ", runs,
                                  " run at once")) != std::string::npos);
    // Snapshots that are told to take more than there is.
    o.state_snapshots = o.memory_bytes;
    const auto refused = LanguageModel::load(folder, o);
    CHECK(refused.status().code() == StatusCode::kResourceExhausted);
    CHECK(refused.status().message().starts_with("state_snapshots: "));
    CHECK(refused.status().message().find("do not fit beside the states of") != std::string::npos);
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
