// Values that stand for others, collected by a pass that visits nodes in their order: it hands each node's
// operands to apply() as it comes to it and the graph at the end. One sweep for all rewrites, where
// Graph::replace_uses() is a sweep for each.
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
  void apply(Graph& g) const {
    for (Node& n : g.nodes()) apply(n.inputs);
    std::vector<ValueId> replaced;
    for (const Graph::Output& o : g.outputs()) {
      if (of(o.value) != o.value) replaced.push_back(o.value);
    }
    for (const ValueId v : replaced) g.replace_uses(v, of(v));
  }

 private:
  // Values that came later stand for themselves.
  ValueId of(ValueId v) const {
    return v >= 0 && v < static_cast<ValueId>(to_.size()) ? to_[static_cast<size_t>(v)] : v;
  }
  std::vector<ValueId> to_;
};

}  // namespace oar::passes
