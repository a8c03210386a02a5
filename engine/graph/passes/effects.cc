#include "engine/graph/passes/effects.h"

#include <algorithm>

#include "engine/graph/op.h"

namespace oar::passes {
namespace {

// By value the last node that reads it, or another one that may lie in the same memory; -1: none.
std::vector<int> last_readers(const Graph& g) {
  std::vector<ValueId> memory(g.num_values());
  std::vector<int> last(memory.size(), -1);
  for (size_t v = 0; v < memory.size(); ++v) memory[v] = static_cast<ValueId>(v);
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& n = g.nodes()[i];
    for (const ValueId v : n.inputs)
      if (v != kNoValue) last[static_cast<size_t>(memory[static_cast<size_t>(v)])] = static_cast<int>(i);
    // These copy, but where there is nothing to change.
    const bool moves = n.is("cast") || n.is("expand") || n.is("slice") || n.is("transpose") || n.is("concat");
    if ((n.op->view || moves) && n.inputs[0] != kNoValue)
      memory[static_cast<size_t>(n.outputs[0])] = memory[static_cast<size_t>(n.inputs[0])];
  }
  return last;
}

}  // namespace

void add_effects(Graph& g, std::vector<Node> effects) {
  const std::vector<int> producer = g.producers(), reader = last_readers(g);
  std::vector<std::vector<Node>> behind(g.nodes().size() + 1);
  for (Node& n : effects) {
    int after = -1;
    for (const ValueId v : n.inputs) {
      if (v == kNoValue) continue;
      const auto k = static_cast<size_t>(v);
      after = std::max(after, g.value(v).kind == ValueKind::kState ? reader[k] : producer[k]);
    }
    behind[static_cast<size_t>(after + 1)].push_back(std::move(n));
  }
  std::vector<Node> nodes = std::move(behind[0]);
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    nodes.push_back(std::move(g.nodes()[i]));
    for (Node& n : behind[i + 1]) nodes.push_back(std::move(n));
  }
  g.nodes() = std::move(nodes);
}

}  // namespace oar::passes
