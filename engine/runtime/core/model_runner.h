// The seam between scheduling and computing: a Batch of token rows goes in, drawn tokens come back later. The
// engine thread is the only caller. PlanRunner (plan_runner.h) is the real one; tests use fakes.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/runtime/core/sample_spec.h"

namespace oar {

// Layers whose KV pages have the same size and window share one block table: a cache group. Most models have
// one.
enum class CachePages : uint8_t {
  kAll,    // every page (of the window)
  kOpen,   // 16-bit copies of the pages whose queries may still run: a quantized page is made from one once
           // full
  kFirst,  // the first page alone (its first tokens stay in 16 bits)
  kState,  // recurrent state: entry i is the state behind page i, kept behind few pages (block_manager.h)
  kRows,   // beside it, rows of the pages whose positions may still be computed
};
// Tables of these have holes.
inline constexpr bool has_holes(CachePages pages) {
  return pages == CachePages::kState || pages == CachePages::kRows;
}

// What a quantized cache needs beside its pages, and what recurrent layers keep, are groups of their own:
// counted, copied on write, shared and preempted like any other.
struct CacheGroup {
  int64_t window = 0;      // 0: full context; otherwise blocks wholly out of the window may be released
  size_t block_bytes = 0;  // bytes of one block over all layers of the group
  int32_t num_blocks = 0;  // blocks in the pool
  CachePages pages = CachePages::kAll;
};

struct RunnerLimits {
  int64_t vocab_size = 0;
  int64_t max_context = 0;       // positions the model supports
  int64_t max_batch_tokens = 0;  // T of a batch
  int64_t max_sequences = 0;     // B of a batch
  int64_t max_logit_rows = 0;    // R of a batch; 0: max_sequences
  // Steps that may be submitted when the last one's draws have not been collected: 0 runs in lockstep, 1
  // keeps a device busy while the host commits.
  int32_t depth = 0;
  int32_t page_tokens = 0;  // P
  std::vector<CacheGroup> groups;
  bool device_draws = false;  // tokens are drawn where the host does not see the logits
  // Rows of prompts and rows of generated tokens are computed in different orders (Batch::prompts).
  bool phases = false;
  bool has_states() const {  // recurrent layers
    for (const CacheGroup& g : groups)
      if (g.pages == CachePages::kState) return true;
    return false;
  }
};

// One step. Rows [seq_start[b], seq_start[b+1]) are consecutive tokens of sequence b: a prefill chunk, or one
// decode with the drafts behind it. Spans point into memory of the caller that stays valid until the step has
// been collected.
struct Batch {
  std::span<const int32_t> tokens;       // [T]; ~s: what chain s of the step before drew first (depth 1)
  std::span<const int32_t> positions;    // [T]
  std::span<const int32_t> seq_start;    // [B + 1]
  std::span<const int32_t> context_len;  // [B] tokens in the cache after this step
  std::span<const int32_t> logit_rows;   // [R] rows whose logits are wanted, ascending; may be empty
  struct Group {
    // [T] block * P + offset; -1 where the group keeps no such page. None in kState groups.
    std::span<const int32_t> slots;
    // [B, max_blocks] row-major; unused entries 0, in groups with holes -1
    std::span<const int32_t> block_tables;
    int64_t max_blocks = 0;
  };
  std::span<const Group> groups;  // as many as RunnerLimits::groups
  std::span<const int32_t>
      adapters;  // [T] slot of the row's adapter (adapter.h), -1: none; empty: none at all
  // Where RunnerLimits::phases: so many rows, the last ones, are of prompts; those before are of tokens that
  // were generated or drafted. No sequence has rows of both.
  int64_t prompts = 0;
};

struct BlockCopy {
  int32_t group, from, to;
};

// A step is submitted, told what to draw, and collected; at depth 1 the next one is submitted before this one
// is collected. Calls come in this order:
//   lockstep:    submit 1, sample 1, collect 1, submit 2, sample 2, collect 2, ...
//   one ahead:   submit 1, sample 1, submit 2, collect 1, sample 2, submit 3, collect 2, sample 3, ...
// An error is a device fault: the engine turns unavailable and fails what is in flight.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const RunnerLimits& limits() const = 0;
  // Copies whole blocks (copy-on-write) before the rows of the next step, as if one after the other in this
  // order.
  virtual Status copy_blocks(std::span<const BlockCopy> copies) = 0;
  // The rows of a step. Need not wait for them.
  virtual Status submit(const Batch& batch) = 0;
  // What to draw from the logits of the step submitted last. `spec` and all it points to belong to the caller
  // again when this returns.
  virtual Status sample(const SampleSpec& spec) = 0;
  // The draws of the oldest step not yet collected; waits for them. Valid until the next sample().
  virtual Result<SampleResult*> collect() = 0;
};

}  // namespace oar
