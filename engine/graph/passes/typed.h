// Graphs of ordinary models (ONNX, Paddle) know no types until they run; gradients are written in graphs that
// do. typed() finds them out for inputs of one set of sizes, as a training step of fixed batch has them.
#pragma once

#include <map>
#include <string>

#include "engine/graph/graph.h"

namespace oar::passes {

// The same graph with every result's type known, shape arithmetic computed and what depends on constants
// alone evaluated; names of inputs, states, constants, nodes and outputs stay, ids do not. `inputs`: the
// types of those whose own are unknown or have symbols, by name; extents are numbers.
//
// INVALID_ARGUMENT names an input that is missing or has symbols. UNIMPLEMENTED names the node that has
// branches, or whose second result somebody reads; FAILED_PRECONDITION the one whose sizes depend on values
// of the run.
Result<Graph> typed(const Graph& graph, const std::map<std::string, TensorType>& inputs = {});

}  // namespace oar::passes
