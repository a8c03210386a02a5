// Where effects stand among a graph's nodes. Operands say what they read; nothing says who reads a state
// before it is written.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace oar::passes {

// Adds nodes that write states. Each stands as early as it can: right behind what makes its operands, and
// behind every node of `g` that reads one of its states, or a view of it. So what it reads leaves memory at
// once. No two of them share a state.
void add_effects(Graph& g, std::vector<Node> effects);

}  // namespace oar::passes
