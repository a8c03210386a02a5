// What passes share that take the op behind a layer into the layer's own call.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/graph/passes/match.h"

namespace oar::passes {

// An activation that a call can end with: the layer's attributes `activation`, `act_alpha`, `act_beta`.
struct Ending {
  std::string kind;
  double alpha = 0, beta = 0;
};
std::optional<Ending> ending_of(const Matcher& m, const Node& act);

// Takes `reader`, the only one of n's result, into n, if that is possible.
using Absorb = std::function<Result<bool>(Graph& g, const Matcher& m, Node& n, const Node& reader)>;
// For each node with one result that one node reads, from the last to the first and again until nothing
// changes; of two layers that meet in a sum, the later one takes it. Returns how many readers went.
Result<int> absorb_readers(Graph& graph, const Absorb& absorb);

}  // namespace oar::passes
