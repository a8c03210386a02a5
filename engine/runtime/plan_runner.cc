#include "engine/runtime/plan_runner.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "engine/base/format.h"
#include "engine/runtime/adapters.h"

namespace oar {
namespace {

CachePages cache_pages(ServeLayout::Pages pages) {
  switch (pages) {
    case ServeLayout::Pages::kOpen: return CachePages::kOpen;
    case ServeLayout::Pages::kFirst: return CachePages::kFirst;
    case ServeLayout::Pages::kState: return CachePages::kState;
    case ServeLayout::Pages::kRows: return CachePages::kRows;
    default: return CachePages::kAll;
  }
}

class PlanRunner final : public HostRunner {
 public:
  explicit PlanRunner(PlanStep step) : step_(std::move(step)) {
    if (step_.backend().memory() != MemoryKind::kHost)
      logits_.resize(static_cast<size_t>(limits().max_logit_rows * limits().vocab_size));
  }

  const RunnerLimits& limits() const override { return step_.limits(); }
  Status copy_blocks(std::span<const BlockCopy> copies) override { return step_.copy_blocks(copies); }

  Result<std::span<const float>> run(const Batch& batch) override {
    OAR_RETURN_IF_ERROR(step_.load(batch));
    OAR_RETURN_IF_ERROR(step_.run().execute());
    const Operand out = step_.logits();
    const size_t count = batch.logit_rows.size() * static_cast<size_t>(limits().vocab_size);
    Backend& backend = step_.backend();
    if (backend.memory() == MemoryKind::kHost) return std::span<const float>(out.as<const float>(), count);
    OAR_RETURN_IF_ERROR(backend.download(logits_.data(), out.data, count * sizeof(float)));
    OAR_RETURN_IF_ERROR(backend.synchronize());
    return std::span<const float>(logits_.data(), count);
  }

 private:
  PlanStep step_;
  std::vector<float> logits_;  // host copy, for devices with memory of their own
};

}  // namespace

PlanStep::PlanStep(ServingPlan serving, RunnerLimits limits, std::vector<std::vector<Buffer>> pools)
    : s_(std::move(serving)), limits_(std::move(limits)), pools_(std::move(pools)) {
  symbols_.resize(s_.run->graph().symbols().size());
  inputs_.resize(s_.run->graph().inputs().size());
  const auto& graph = s_.run->graph();
  for (size_t k = 0; k < graph.inputs().size(); ++k) {
    const std::string& name = graph.value(graph.inputs()[k]).name;
    if (name == "tokens") tokens_ = k;
    if (name == "positions") positions_ = k;
    if (name == "logit_rows") logit_rows_ = k;
    if (name == "adapter_index") adapters_ = k;
  }
  if (adapters_) none_.assign(static_cast<size_t>(limits_.max_batch_tokens), -1);
}

Status PlanStep::copy_blocks(std::span<const BlockCopy> copies) {
  for (const BlockCopy& c : copies) {
    const auto g = static_cast<size_t>(c.group);
    for (size_t layer = 0; layer < pools_[g].size(); ++layer) {
      const uint64_t bytes = s_.layout.groups[g].state_block_bytes[layer];
      auto* pool = static_cast<std::byte*>(pools_[g][layer].mutable_data());
      Backend& backend = s_.run->state_backend(s_.layout.groups[g].states[layer]);
      OAR_RETURN_IF_ERROR(backend.copy(pool + static_cast<uint64_t>(c.to) * bytes,
                                       pool + static_cast<uint64_t>(c.from) * bytes, bytes));
    }
  }
  return ok_status();
}

// The same step with its sizes rounded up, so that few captures serve all of them: pages of a table, and
// sequences where each has one row. Those that are made up have one token, which is stored nowhere, and come
// last; what others get does not depend on them.
Batch PlanStep::padded(const Batch& batch) {
  const auto& symbols = s_.run->graph().symbols();
  const auto B = static_cast<int64_t>(batch.context_len.size());
  const bool single = batch.tokens.size() == batch.context_len.size() &&
                      batch.logit_rows.size() == batch.context_len.size() && batch.prompts == 0;
  const int64_t most = std::min({symbols[s_.T].max, symbols[s_.R].max, symbols[s_.layout.sequences].max});
  const int64_t rounded =
      B <= 8 ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(B))) : (B + 7) / 8 * 8;
  const int64_t rows = single ? std::max(B, std::min(rounded, most)) : B;
  const auto added = static_cast<size_t>(rows - B);
  const auto longer = [&](std::span<const int32_t> given, std::vector<int32_t>& to, int32_t value) {
    to.assign(given.begin(), given.end());
    to.insert(to.end(), added, value);
    return std::span<const int32_t>(to);
  };
  Batch out = batch;
  if (added > 0) {
    out.tokens = longer(batch.tokens, padded_.tokens, 0);
    out.positions = longer(batch.positions, padded_.positions, 0);
    out.context_len = longer(batch.context_len, padded_.context_len, 1);
    out.seq_start = longer(batch.seq_start, padded_.seq_start, 0);
    out.logit_rows = longer(batch.logit_rows, padded_.logit_rows, 0);
    for (int64_t k = B; k < rows; ++k) {
      padded_.seq_start[static_cast<size_t>(k) + 1] = static_cast<int32_t>(k) + 1;
      padded_.logit_rows[static_cast<size_t>(k)] = static_cast<int32_t>(k);
    }
    if (!batch.adapters.empty()) out.adapters = longer(batch.adapters, padded_.adapters, -1);
  }
  padded_.slots.resize(batch.groups.size());
  padded_.tables.resize(batch.groups.size());
  padded_.groups.assign(batch.groups.begin(), batch.groups.end());
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    const Batch::Group& given = batch.groups[g];
    Batch::Group& group = padded_.groups[g];
    group.max_blocks = std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(given.max_blocks))),
                                symbols[s_.layout.groups[g].max_blocks].max);
    group.max_blocks = std::max(group.max_blocks, given.max_blocks);
    if (!given.slots.empty()) group.slots = longer(given.slots, padded_.slots[g], -1);
    std::vector<int32_t>& tables = padded_.tables[g];
    tables.assign(static_cast<size_t>(rows * group.max_blocks), has_holes(limits_.groups[g].pages) ? -1 : 0);
    for (int64_t b = 0; b < B; ++b)
      std::copy_n(given.block_tables.begin() + b * given.max_blocks, given.max_blocks,
                  tables.begin() + b * group.max_blocks);
    group.block_tables = tables;
  }
  out.groups = padded_.groups;
  return out;
}

Status PlanStep::load(const Batch& given, std::span<const std::byte> beside) {
  const Batch batch = s_.backend->captures() ? padded(given) : given;
  std::fill(symbols_.begin(), symbols_.end(), 0);
  symbols_[s_.T] = static_cast<int64_t>(batch.tokens.size());
  symbols_[s_.R] = static_cast<int64_t>(batch.logit_rows.size());
  if (s_.prompts) symbols_[*s_.prompts] = batch.prompts;
  symbols_[s_.layout.sequences] = static_cast<int64_t>(batch.context_len.size());
  inputs_[tokens_] = batch.tokens.data();
  inputs_[positions_] = batch.positions.data();
  inputs_[logit_rows_] = batch.logit_rows.data();
  if (adapters_) inputs_[*adapters_] = batch.adapters.empty() ? none_.data() : batch.adapters.data();
  inputs_[s_.layout.seq_start_input] = batch.seq_start.data();
  inputs_[s_.layout.context_len_input] = batch.context_len.data();
  for (size_t g = 0; g < s_.layout.groups.size(); ++g) {
    const ServeLayout::Group& group = s_.layout.groups[g];
    symbols_[group.max_blocks] = batch.groups[g].max_blocks;
    if (group.slots_input) inputs_[*group.slots_input] = batch.groups[g].slots.data();
    inputs_[group.block_tables_input] = batch.groups[g].block_tables.data();
  }
  if (s_.adapters != nullptr) OAR_RETURN_IF_ERROR(s_.adapters->upload());
  return s_.run->load(symbols_, inputs_, beside);
}

Result<PlanStep> PlanStep::make(ServingPlan serving, std::vector<int32_t> num_blocks) {
  RunnerLimits limits;
  limits.vocab_size = serving.vocab_size;
  limits.max_context = serving.max_context;
  limits.max_batch_tokens = serving.max_batch_tokens;
  limits.max_sequences = serving.max_sequences;
  limits.max_logit_rows = serving.max_logit_rows;
  limits.page_tokens = serving.page_tokens;
  limits.phases = serving.run->program().plan().has_phases();
  std::vector<std::vector<Buffer>> pools;
  for (size_t g = 0; g < serving.layout.groups.size(); ++g) {
    const ServeLayout::Group& group = serving.layout.groups[g];
    limits.groups.push_back({group.window, group.block_bytes, num_blocks[g], cache_pages(group.pages)});
    pools.emplace_back();
    for (size_t layer = 0; layer < group.states.size(); ++layer) {
      // Pages are touched when first written, so an unused pool costs address space only.
      OAR_ASSIGN(Buffer pool,
                 serving.run->state_backend(group.states[layer])
                     .allocate(static_cast<uint64_t>(num_blocks[g]) * group.state_block_bytes[layer]));
      serving.run->bind_state(group.states[layer], pool);
      pools.back().push_back(std::move(pool));
    }
  }
  return PlanStep(std::move(serving), std::move(limits), std::move(pools));
}

Result<std::unique_ptr<HostRunner>> make_plan_runner(ServingPlan serving, std::vector<int32_t> num_blocks) {
  OAR_ASSIGN(PlanStep step, PlanStep::make(std::move(serving), std::move(num_blocks)));
  return std::unique_ptr<HostRunner>(std::make_unique<PlanRunner>(std::move(step)));
}

}  // namespace oar
