// Where the values of one evaluation lie: one arena, each value at an offset that was planned for the shapes
// of this run. Values of ordinary models have sizes only once the inputs have. So a plan is made for each set
// of input shapes, from the requests that an evaluation made (or would make: Evaluator::size()).
//
// A plan is a hint. The same shapes may ask for other memory the next time (a branch taken, a loop longer, a
// count that depends on values); a block is placed where the plan says only if that place is free now, else
// wherever it fits, else outside of the arena. So a plan can be wrong, but not unsafe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/tensor/backend.h"

namespace oar {

// One block of a run: its bytes and when it was alive, on a clock that ticks at each request and release.
struct BlockLife {
  static constexpr uint32_t kHeld = UINT32_MAX;  // an `end`: still in use when the run ended, so a result
  uint64_t bytes = 0;
  uint32_t begin = 0, end = kHeld;
  bool operator==(const BlockLife&) const = default;
};

struct BlockPlan {
  static constexpr uint64_t kOutside = UINT64_MAX;  // an offset: of results, which outlive the run
  std::vector<BlockLife> blocks;                    // in the order of requests
  std::vector<uint64_t> offsets;                    // by block, multiples of Buffer::kAlignment
  std::vector<uint32_t> first;                      // by node of a run that was sized: its first block
  uint64_t arena_bytes = 0;
  uint64_t result_bytes = 0;
  uint64_t live_bytes = 0;  // the most that is alive at once, results apart: no arena can be smaller
  uint64_t peak_bytes() const { return arena_bytes + result_bytes; }
  // Of the plan itself.
  uint64_t bytes() const {
    return sizeof(*this) + blocks.capacity() * sizeof(BlockLife) + offsets.capacity() * sizeof(uint64_t) +
           first.capacity() * sizeof(uint32_t);
  }
};

// Gives each block a place: the largest first, each at the lowest gap that fits between those alive at the
// same time ("greedy by size", https://arxiv.org/abs/2001.03288).
BlockPlan plan_blocks(std::vector<BlockLife> blocks);

// The memory of one evaluation at a time, kept from run to run. Results lie outside of the arena; up to one
// run's bytes of those whose holders are gone are kept for the next run, since fresh memory costs a fault a
// page. allocate() and the release of blocks may come from any thread, the rest from one. Blocks may outlive
// the RunMemory.
class RunMemory {
 public:
  // `backend`: whose memory it is, not looked at otherwise, and outlives it; null: the host's.
  explicit RunMemory(Backend* backend = nullptr);
  // Blocks come from here on until end(), placed as the plan says; null: wherever they fit. The arena grows
  // to the plan's size, without blocks from before (results in it must have been copied).
  Status begin(std::shared_ptr<const BlockPlan> plan);
  // Instead: blocks of zeros that take no memory until they are written, to learn what a run would ask for.
  void begin_sizing();
  // Uninitialized (see begin_sizing) and aligned as Buffer says; transient, see Buffer.
  Result<Buffer> allocate(uint64_t bytes);
  // Node `node` of the run begins: what it asks for is looked for among what it asked for when it was sized.
  // Else a node that asks for more or fewer blocks would lead those behind it to the wrong places.
  void at_node(size_t node);
  // Of a run that is sized, as in BlockPlan.
  std::vector<uint32_t> first_blocks() const;
  // The blocks since begin(); empty when they were too many to plan.
  std::vector<BlockLife> end();

  bool in_arena(const void* data) const;
  uint64_t arena_bytes() const;
  // Frees the arena and what is kept for results; returns their bytes. Not between begin() and end().
  uint64_t shrink();

 private:
  struct State;
  struct Release;
  std::shared_ptr<State> state_;
};

}  // namespace oar
