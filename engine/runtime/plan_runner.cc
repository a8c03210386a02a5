#include "engine/runtime/plan_runner.h"

#include <optional>

#include "engine/base/format.h"

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
  PlanRunner(ServingPlan serving, RunnerLimits limits, std::vector<std::vector<Buffer>> pools)
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
    if (s_.backend->memory() != MemoryKind::kHost) {
      logits_.resize(static_cast<size_t>(limits_.max_logit_rows * limits_.vocab_size));
    }
  }

  const RunnerLimits& limits() const override { return limits_; }

  Status copy_blocks(std::span<const BlockCopy> copies) override {
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

  Result<std::span<const float>> run(const Batch& batch) override {
    const auto R = static_cast<int64_t>(batch.logit_rows.size());
    std::fill(symbols_.begin(), symbols_.end(), 0);
    symbols_[s_.T] = static_cast<int64_t>(batch.tokens.size());
    symbols_[s_.R] = R;
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
    OAR_RETURN_IF_ERROR(s_.run->run(symbols_, inputs_));
    const Operand out = s_.run->output(0);
    const auto count = static_cast<size_t>(R * limits_.vocab_size);
    if (s_.backend->memory() == MemoryKind::kHost)
      return std::span<const float>(out.as<const float>(), count);
    OAR_RETURN_IF_ERROR(s_.backend->download(logits_.data(), out.data, count * sizeof(float)));
    OAR_RETURN_IF_ERROR(s_.backend->synchronize());
    return std::span<const float>(logits_.data(), count);
  }

 private:
  ServingPlan s_;
  RunnerLimits limits_;
  std::vector<std::vector<Buffer>> pools_;  // by group and layer
  std::vector<int64_t> symbols_;
  std::vector<const void*> inputs_;
  std::vector<float> logits_;  // host copy, for devices with memory of their own
  size_t tokens_ = 0, positions_ = 0, logit_rows_ = 0;
  std::optional<size_t> adapters_;  // the input, where the model has slots
  std::vector<int32_t> none_;       // a row without an adapter, as often as a step has rows
};

}  // namespace

Result<std::unique_ptr<HostRunner>> make_plan_runner(ServingPlan serving, std::vector<int32_t> num_blocks) {
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
  return std::unique_ptr<HostRunner>(
      std::make_unique<PlanRunner>(std::move(serving), std::move(limits), std::move(pools)));
}

}  // namespace oar
