// What an op without a shape rule of its own makes of operands whose sizes are numbers: ordinary ops in a
// graph that knows its types, as definitions and their gradients are written. There is no second shape rule
// beside evaluate(), which is asked with its loops left out.
#pragma once

#include <span>
#include <vector>

#include "engine/graph/graph.h"

namespace oar {

// Of one result. INVALID_ARGUMENT where an extent is a symbol, FAILED_PRECONDITION where a size depends on
// values that are no constants.
Result<std::vector<TensorType>> evaluated_types(const Graph& g, const OpDef& op,
                                                std::span<const ValueId> inputs, const Attrs& attrs);

}  // namespace oar
