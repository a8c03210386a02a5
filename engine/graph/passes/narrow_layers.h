// The pass lower_precision, which takes arguments.
#pragma once

#include "engine/graph/pass.h"
#include "engine/graph/precision.h"

namespace oar::passes {

class Matcher;

// Marks every convolution and layer that fits with the attribute "precision". Returns how many; none where
// `backend` has no such products.
Result<int> lower_precision(Graph& graph, Precision precision, const Backend& backend);
std::vector<Refusal> explain_precision(const Graph& graph);
// Null where a convolution or layer fits.
const char* why_not_narrow(const Matcher& m, const Node& n);
bool has_products(const Backend& backend, Precision precision);

}  // namespace oar::passes
