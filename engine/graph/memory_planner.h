// Places of the values of a graph whose sizes are expressions of symbols, before any size is known: each at a
// fixed offset of one arena, planned (run_memory.h) for the largest size that each may have. Values whose
// lifetimes do not overlap share bytes. Reshapes and column slices are views, not copies. So is what is
// joined column by column: those that compute it write where the joined rows lie.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace oar {

struct Placement {
  int64_t offset = -1;      // bytes from the arena's start; -1: not in the arena (constants, states, unused)
  ValueId root = kNoValue;  // the value whose storage this one views; itself when it owns storage
  int64_t column = 0;       // elements from the start of the root's row
  Dim row_stride = 1;       // elements from one index of axis 0 to the next
  int64_t head_step = 0;    // of three axes, from one index of axis 1 to the next; 0: the last extent
  bool contiguous = true;
};

struct MemoryRules {
  // A device may do neighbours at once that make heads for a cache (rotations, transforms, the append behind
  // them), so what one of these reads stays until all are done; the same of a gate and the product of experts
  // behind it, and of a product and one number its rows are multiplied with.
  bool together = false;
  // Heads may lie apart for the ops that say so (OpDef::apart_inputs, apart_output).
  bool heads_apart = false;
};

struct MemoryPlan {
  std::vector<Placement> placements;  // by value
  uint64_t arena_bytes = 0;
};

// Nodes must be in topological order. INTERNAL when a node that needs contiguous rows would read a strided
// view (call insert_copies() first); RESOURCE_EXHAUSTED when values at their largest take over 64 TiB.
Result<MemoryPlan> plan_memory(const Graph& graph, const MemoryRules& rules = {});

// Puts a `contiguous` node before each operand that views strided rows an op cannot read.
Status insert_copies(Graph& graph, const MemoryRules& rules = {});

// Whether a node moves no bytes: its result is where its operands are.
bool in_place(const Node& node, const std::vector<Placement>& placements);

}  // namespace oar
