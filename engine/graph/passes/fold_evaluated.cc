// Constant folding of ordinary graphs: a node whose operands are all constants is evaluated once
// (evaluate.h). Results that would outgrow what they are made of many times over (an Expand of a scalar) stay
// nodes; integers that become floats (DequantizeLinear of weights) do not count as such. Subgraphs are left
// alone: what they read from outside reaches them as operands. Extents that are read from a shape are
// constants where the graph tells them: the width of heads, say, from which exporters compute a scale.
#include <algorithm>
#include <optional>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/static_extents.h"
#include "engine/graph/passes/substitution.h"
#include "engine/tensor/element.h"

namespace oar::passes {
namespace {

// Folding may trade this many bytes for never computing the node again.
constexpr uint64_t kMayGrow = 1 << 20;

// What slices and picks read from a shape, as far as all of it is known.
std::optional<Tensor> known_extents(const StaticExtents& extents, const Node& n) {
  // Of a shape itself, whose integers are i64; a cast may have made others of them.
  const Node* const shape = n.is("slice") ? extents.maker(n.inputs[0]) : &n;
  if (n.outputs.size() != 1 || shape == nullptr || !shape->is("shape_of")) return std::nullopt;
  const auto entries = extents.entries(n.outputs[0]);
  if (!entries) return std::nullopt;
  Tensor out = must(allocate_elements({static_cast<int64_t>(entries->size())}, DType::kI64));
  for (size_t k = 0; k < entries->size(); ++k) {
    const StaticExtents::Entry& e = (*entries)[k];
    int64_t& number = mutable_elements<int64_t>(out)[k] = e.number;
    if (e.of == kNoValue) continue;
    const int rank = extents.rank(e.of).value_or(0);
    const auto known =
        e.axis < rank ? extents.extent(e.of, rank - 1 - static_cast<int>(e.axis)) : std::nullopt;
    if (!known) return std::nullopt;
    number = *known;
  }
  return out;
}

}  // namespace

Result<int> fold_evaluated(Graph& graph) {
  int folded = 0;
  std::vector<bool> dead(graph.nodes().size(), false);
  EvalOptions options;
  Substitution constants(graph);
  const StaticExtents extents(graph);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    Node& node = graph.nodes()[i];
    constants.apply(node.inputs);
    if (!node.op->evaluate || node.op->effect || node.op->impure || !node.subgraphs.empty() ||
        node.inputs.empty())
      continue;
    if (auto known = known_extents(extents, node)) {
      constants.add(node.outputs[0], graph.add_constant(node.name, std::move(*known)));
      dead[i] = true;
      ++folded;
      continue;
    }
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
