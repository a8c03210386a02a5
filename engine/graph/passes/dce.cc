// Removes nodes whose results reach no graph output and that write no state.
#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {

Result<int> dce(Graph& graph) {
  std::vector<bool> live_value(graph.num_values(), false);
  for (const auto& o : graph.outputs()) live_value[o.value] = true;
  // Users may precede producers between passes, so iterate to the fixed point.
  std::vector<bool> dead(graph.nodes().size(), true);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = graph.nodes().size(); i-- > 0;) {
      const Node& n = graph.nodes()[i];
      if (!dead[i]) continue;
      bool live = n.op->effect;
      for (ValueId v : n.outputs) live = live || live_value[v];
      if (!live) continue;
      dead[i] = false;
      changed = true;
      for (ValueId v : n.inputs) {
        if (v != kNoValue) live_value[v] = true;
      }
    }
  }
  int removed = 0;
  for (bool d : dead) removed += d;
  graph.remove_nodes(dead);
  return removed;
}

}  // namespace oar::passes
