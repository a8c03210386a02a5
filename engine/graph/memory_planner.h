// The memory planner: gives every value of a graph its place in one arena before any size is known. Values
// whose lifetimes do not overlap share a slot. A slot's size is the maximum of its tenants' sizes, its offset
// the sum of the slots before it; both are integer expressions of the symbols. Reshapes and column slices are
// views, not copies.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace oar {

struct Placement {
  int slot = -1;            // -1: not in the arena (constants, states, unused)
  ValueId root = kNoValue;  // the value whose storage this one views; itself when it owns storage
  int64_t column = 0;       // elements from the start of the root's row
  Dim row_stride = 1;       // elements from one index of axis 0 to the next
  bool contiguous = true;
};

struct MemoryPlan {
  std::vector<Placement> placements;  // by value
  std::vector<Dim> slot_bytes;        // each a multiple of 64
  Dim total_bytes() const {
    Dim sum = 0;
    for (const Dim& d : slot_bytes) sum = sum + d;
    return sum;
  }
};

// Nodes must be in topological order. Fails when a node that needs contiguous rows would read a strided view;
// call insert_copies() first.
Result<MemoryPlan> plan_memory(const Graph& graph);

// Puts a `contiguous` node before each operand that views strided rows an op cannot read.
Status insert_copies(Graph& graph);

}  // namespace oar
