#include "engine/graph/passes/typed.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"

namespace oar::passes {
namespace {

std::string node_name(const Node& n) {
  return n.name.empty() ? n.op->name : cat(n.op->name, " '", n.name, "'");
}

bool numbers_only(const TensorType& t) {
  return t.known && std::all_of(t.shape.begin(), t.shape.end(), [](const Dim& d) { return d.is_const(); });
}

// The operand as far as it is known without running: a constant, or where `size_only`, a shape without bytes.
Result<std::optional<Datum>> known_operand(const Graph& g, ValueId v, bool size_only) {
  const Value& value = g.value(v);
  if (value.kind == ValueKind::kConstant) return std::optional<Datum>(value.constant);
  if (!size_only) return std::optional<Datum>();
  std::vector<int64_t> dims;
  for (const Dim& d : value.type.shape) dims.push_back(d.const_value());
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  return std::optional<Datum>(Tensor::without_bytes(shape, value.type.format));
}

// Results of a node that no run can change; nothing of one that a run may.
Result<std::optional<std::vector<Datum>>> folded(const Graph& g, const Node& n,
                                                 const std::vector<ValueId>& in) {
  using Folded = std::optional<std::vector<Datum>>;
  if (n.op->evaluate == nullptr || n.op->impure || n.op->effect || !n.subgraphs.empty()) return Folded();
  std::vector<Datum> operands(in.size());
  std::vector<const Datum*> pointers(in.size(), nullptr);
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k] == kNoValue) continue;
    OAR_ASSIGN(auto operand, known_operand(g, in[k], n.op->sizes == SizesFrom::kItself));
    if (!operand) return Folded();
    operands[k] = std::move(*operand);
    pointers[k] = &operands[k];
  }
  OAR_ASSIGN(auto results, compute_op(n, pointers, {}));
  for (const Datum& d : results) {
    if (!d.is_tensor()) return Folded();
  }
  return Folded(std::move(results));
}

}  // namespace

Result<Graph> typed(const Graph& graph, const std::map<std::string, TensorType>& inputs) {
  Graph source = graph;
  source.sort();
  Graph g;
  std::vector<ValueId> to(source.num_values(), kNoValue);
  const auto type_of = [&](const Value& v) -> Result<TensorType> {
    const auto given = inputs.find(v.name);
    const TensorType& t = given != inputs.end() ? given->second : v.type;
    if (numbers_only(t)) return t;
    return invalid_argument(
        cat("input '", v.name, "' needs a type whose extents are numbers; it is ", graph.type_string(t)));
  };
  for (const ValueId v : source.inputs()) {
    OAR_ASSIGN(TensorType t, type_of(source.value(v)));
    to[static_cast<size_t>(v)] = g.add_input(source.value(v).name, std::move(t));
  }
  for (const ValueId v : source.states()) {
    OAR_ASSIGN(TensorType t, type_of(source.value(v)));
    to[static_cast<size_t>(v)] = g.add_state(source.value(v).name, std::move(t));
  }
  for (size_t v = 0; v < source.num_values(); ++v) {
    const Value& value = source.value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kConstant) to[v] = g.add_constant(value.name, value.constant);
  }
  const std::vector<int> uses = source.use_counts();
  for (const Node& n : source.nodes()) {
    if (!n.subgraphs.empty()) return unimplemented(cat(node_name(n), " has branches or a loop"));
    std::vector<ValueId> in;
    for (const ValueId v : n.inputs) in.push_back(v == kNoValue ? kNoValue : to[static_cast<size_t>(v)]);
    OAR_ASSIGN(const auto constants, folded(g, n, in));
    for (size_t k = 0; constants && k < n.outputs.size() && k < constants->size(); ++k)
      to[static_cast<size_t>(n.outputs[k])] = g.add_constant("", (*constants)[k].tensor);
    if (constants) continue;
    auto made = g.add_node(n.op, in, n.attrs);
    if (!made.ok()) return Status(made.status().code(), cat(node_name(n), ": ", made.status().message()));
    g.nodes().back().name = n.name;
    for (size_t k = 0; k < n.outputs.size(); ++k) {
      if (k < made->size()) to[static_cast<size_t>(n.outputs[k])] = (*made)[k];
      else if (uses[static_cast<size_t>(n.outputs[k])] > 0)
        return unimplemented(cat("result ", k, " of ", node_name(n), " has no type without a run"));
    }
  }
  for (const Graph::Output& o : source.outputs()) g.add_output(o.name, to[static_cast<size_t>(o.value)]);
  return g;
}

}  // namespace oar::passes
