// Constant folding of ordinary graphs: a node whose operands are all constants is evaluated once
// (evaluate.h). Results that would outgrow what they are made of many times over (an Expand of a scalar) stay
// nodes; integers that become floats (DequantizeLinear of weights) do not count as such. Subgraphs are left
// alone: what they read from outside reaches them as operands.
#include <algorithm>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/substitution.h"

namespace oar::passes {
namespace {

// Folding may trade this many bytes for never computing the node again.
constexpr uint64_t kMayGrow = 1 << 20;

}  // namespace

Result<int> fold_evaluated(Graph& graph) {
  int folded = 0;
  std::vector<bool> dead(graph.nodes().size(), false);
  EvalOptions options;
  Substitution constants(graph);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    Node& node = graph.nodes()[i];
    constants.apply(node.inputs);
    if (!node.op->evaluate || node.op->effect || node.op->impure || !node.subgraphs.empty() ||
        node.inputs.empty())
      continue;
    std::vector<Datum> values;
    uint64_t bytes = 0, elements = 0;
    bool constant = true;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) {
        values.emplace_back();
        continue;
      }
      constant = constant && graph.value(v).kind == ValueKind::kConstant;
      if (!constant) break;
      values.emplace_back(graph.value(v).constant);
      bytes += graph.value(v).constant.bytes();
      elements += static_cast<uint64_t>(graph.value(v).constant.numel());
    }
    if (!constant) continue;
    std::vector<const Datum*> operands;
    for (size_t k = 0; k < values.size(); ++k)
      operands.push_back(node.inputs[k] == kNoValue ? nullptr : &values[k]);
    options.tensor_limit = std::max(bytes * 2, elements * sizeof(float)) + kMayGrow;
    auto results = compute_op(node, operands, options);
    // What cannot be computed now is an error when, and only when, it is reached.
    if (!results.ok()) continue;
    bool tensors = true;
    for (const Datum& d : *results) tensors = tensors && d.is_tensor();
    if (!tensors) continue;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      constants.add(node.outputs[k], graph.add_constant(node.name, std::move((*results)[k].tensor)));
    }
    dead[i] = true;
    ++folded;
  }
  constants.apply(graph);
  graph.remove_nodes(dead);
  return folded;
}

}  // namespace oar::passes
