// Memory of recurrent sequences as kernels of kernels/state.h find it in a step, for their tests: pools whose
// blocks begin as NaN, and tables as a block manager would fill them. Only every other border is kept beside
// those that the step goes on from or ends behind, and rows of chunks that fill and will not be read are not.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/state.h"
#include "tests/kernels/matmul_problem.h"

namespace oar_test {

// Positions [begin, end) of a sequence in a step, and which of the memory's sequences it is.
struct StatePart {
  int64_t begin, end;
  size_t home;
};

struct StateMemory {
  static constexpr int64_t kChunks = 10;
  oar::StateArgs state;  // as set by step()

  StateMemory(int32_t page, int64_t border_floats, int64_t row_floats, size_t sequences)
      : borders_(sequences * kChunks * static_cast<size_t>(border_floats)),
        rows_(sequences * kChunks * static_cast<size_t>(page * row_floats)) {
    state.page_tokens = page;
    state.border_floats = border_floats;
    state.row_floats = row_floats;
    std::fill(borders_.begin(), borders_.end(), NAN);
    std::fill(rows_.begin(), rows_.end(), NAN);
    state.borders = borders_.data(), state.rows = rows_.data();
    state.max_borders = state.max_row_blocks = kChunks;
  }

  void step(const std::vector<StatePart>& parts) {
    const int64_t P = state.page_tokens;
    starts_ = {0};
    for (auto* x : {&lengths_, &border_tables_, &row_tables_, &slots_}) x->clear();
    for (const StatePart& p : parts) {
      starts_.push_back(starts_.back() + static_cast<int32_t>(p.end - p.begin));
      lengths_.push_back(static_cast<int32_t>(p.end));
      const auto first = static_cast<int32_t>(p.home) * static_cast<int32_t>(kChunks);
      const int64_t last = p.end / P - 1;  // the border behind which the sequence goes on
      for (int32_t j = 0; j < kChunks; ++j) {
        const bool kept = j == last || j == last - 1 || j == p.begin / P - 1 || j % 2 == 0;
        border_tables_.push_back(kept ? first + j : -1);
        row_tables_.push_back(first + j);
      }
      for (int64_t t = p.begin; t < p.end; ++t)
        slots_.push_back(t / P < last ? -1 : static_cast<int32_t>(first * P + t));
    }
    state.T = starts_.back(), state.B = static_cast<int64_t>(parts.size());
    state.seq_start = starts_.data(), state.context_len = lengths_.data();
    state.border_tables = border_tables_.data(), state.row_tables = row_tables_.data();
    state.row_slots = slots_.data();
  }

  // From here on; and which borders and rows (blocks, slots) have other bytes since.
  void watch() {
    borders_before_.assign(borders_.begin(), borders_.end());
    rows_before_.assign(rows_.begin(), rows_.end());
  }
  std::vector<int32_t> written_borders() const {
    return changed(borders_, borders_before_, state.border_floats);
  }
  std::vector<int32_t> written_rows() const { return changed(rows_, rows_before_, state.row_floats); }

 private:
  static std::vector<int32_t> changed(const Guarded<float>& now, const std::vector<float>& before,
                                      int64_t floats) {
    std::vector<int32_t> out;
    const auto n = static_cast<size_t>(floats);
    for (size_t i = 0; i * n < now.size(); ++i)
      if (std::memcmp(now.data() + i * n, before.data() + i * n, n * sizeof(float)) != 0)
        out.push_back(static_cast<int32_t>(i));
    return out;
  }

  Guarded<float> borders_, rows_;
  std::vector<float> borders_before_, rows_before_;
  std::vector<int32_t> starts_, lengths_, border_tables_, row_tables_, slots_;
};

// Levels of this machine at which a family has kernels of its own, the best first.
inline std::vector<Isa> levels_of(oar::KernelFamily family) {
  std::vector<Isa> out;
  for (const Kernel* k : oar::KernelRegistry::cpu().all())
    if (k->family == family && k->isa <= oar::best_isa()) out.push_back(k->isa);
  return out;
}

// All chunks on this thread, one by one from the last, or on a pool; in scratch of NaN.
inline void run_state_kernel(KernelFamily family, Isa isa, const void* args, oar::ThreadPool* pool) {
  const Kernel& kernel = *oar::KernelRegistry::cpu().find({family}, isa);
  REQUIRE(kernel.isa == isa);
  KernelPlan plan;
  kernel.plan(args, pool != nullptr ? pool->workers() : 1, &plan);
  REQUIRE(plan.phases == 1);
  if (pool != nullptr) {
    pool->reserve_scratch(plan.worker_scratch);
    return pool->run(kernel, args, plan, nullptr);
  }
  Guarded<float> scratch(plan.worker_scratch / 4, 64);
  std::fill(scratch.begin(), scratch.end(), NAN);
  for (int64_t i = plan.chunks[0]; i-- > 0;) kernel.run(args, 0, i, i + 1, {scratch.data(), nullptr});
}

// A sequence token by token, then another at once: a border is written once, by the step that fills its page,
// and only where a table names a block for it; a row where its slot says so. run(begin, end, home) is a step.
template <class Run>
void require_written_once(StateMemory& memory, Run&& run) {
  const int64_t P = memory.state.page_tokens;
  std::vector<int32_t> borders, rows;
  for (int64_t t = 0; t < 2 * P + 3; ++t) {
    memory.watch();
    run(t, t + 1, size_t{0});
    borders.clear();
    if ((t + 1) % P == 0) borders.push_back(static_cast<int32_t>(t / P));
    REQUIRE(memory.written_borders() == borders);
    REQUIRE(memory.written_rows() == std::vector<int32_t>{static_cast<int32_t>(t)});
  }
  memory.watch();
  run(int64_t{0}, 4 * P + 5, size_t{1});
  borders.clear();
  for (const int32_t chunk : {0, 2, 3}) borders.push_back(static_cast<int32_t>(StateMemory::kChunks) + chunk);
  for (int64_t t = 3 * P; t < 4 * P + 5; ++t)
    rows.push_back(static_cast<int32_t>(StateMemory::kChunks * P + t));
  CHECK(memory.written_borders() == borders);
  CHECK(memory.written_rows() == rows);
}

}  // namespace oar_test
