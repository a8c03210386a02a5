// Values that stand for others, collected by a pass that hands the graph to apply() at the end: one sweep for
// all rewrites, where Graph::replace_uses() of one value is a sweep for each. A pass that visits nodes in
// their order may hand each node's operands to apply() as it comes to it.
#pragma once

#include <numeric>
#include <vector>

#include "engine/graph/graph.h"

namespace oar::passes {

class Substitution {
 public:
  explicit Substitution(const Graph& g) : to_(g.num_values()) { std::iota(to_.begin(), to_.end(), 0); }
  // `to` itself is never replaced: a constant, or a result of a node that has been visited and stays.
  void add(ValueId from, ValueId to) { to_[static_cast<size_t>(from)] = to; }
  void apply(std::vector<ValueId>& operands) const {
    for (ValueId& v : operands) v = of(v);
  }
  // Everywhere, the outputs included.
  void apply(Graph& g) const { g.replace_uses(to_); }

 private:
  // Values that came later stand for themselves.
  ValueId of(ValueId v) const {
    return v >= 0 && v < static_cast<ValueId>(to_.size()) ? to_[static_cast<size_t>(v)] : v;
  }
  std::vector<ValueId> to_;
};

}  // namespace oar::passes
