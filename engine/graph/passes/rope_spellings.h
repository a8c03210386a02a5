// Rotary embedding as exporters spell it. Its definition cuts an axis and joins it again, which the
// polynomials of algebra.h do not see: a value is brought to "which part of which last axis" here, and the
// arithmetic between cuts and joins is compared as polynomials, as that of all other definitions is.
#pragma once

#include "engine/graph/graph.h"

namespace oar::passes {

// Part of fuse_definitions(), for graphs that know no types. How many became rope.
Result<int> fuse_rope(Graph& graph);

}  // namespace oar::passes
