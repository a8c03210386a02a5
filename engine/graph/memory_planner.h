// Places of the values of a graph whose sizes are expressions of symbols, before any size is known: each at a
// fixed offset of one arena, planned (run_memory.h) for the largest size that each may have. Values whose
// lifetimes do not overlap share bytes. Reshapes and column slices are views, not copies.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace oar {

struct Placement {
  int64_t offset = -1;      // bytes from the arena's start; -1: not in the arena (constants, states, unused)
  ValueId root = kNoValue;  // the value whose storage this one views; itself when it owns storage
  int64_t column = 0;       // elements from the start of the root's row
  Dim row_stride = 1;       // elements from one index of axis 0 to the next
  bool contiguous = true;
};

struct MemoryPlan {
  std::vector<Placement> placements;  // by value
  uint64_t arena_bytes = 0;
};

// Nodes must be in topological order. `together`: a device may do neighbours at once that make heads for a
// cache (rotations, transforms, the append behind them), so what one of these reads stays until all are done;
// the same of a gate and the product of experts behind it.
// INTERNAL when a node that needs contiguous rows would read a strided
// view (call insert_copies() first); RESOURCE_EXHAUSTED when values at their largest take over 64 TiB.
Result<MemoryPlan> plan_memory(const Graph& graph, bool together = false);

// Puts a `contiguous` node before each operand that views strided rows an op cannot read.
Status insert_copies(Graph& graph);

}  // namespace oar
