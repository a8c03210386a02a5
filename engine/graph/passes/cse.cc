// Common subexpressions: two pure nodes with the same op, operands and attributes become one; two scalar
// constants with the same bytes become one value first, so that expressions over them can match.
#include <cstring>
#include <map>

#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {
namespace {

void merge_scalars(Graph& graph) {
  std::map<std::string, ValueId> seen;
  for (ValueId v = 0; v < static_cast<ValueId>(graph.num_values()); ++v) {
    const Value& value = graph.value(v);
    if (value.kind != ValueKind::kConstant || value.constant.numel() != 1) continue;
    if (value.constant.format().dtype() == DType::kString) continue;
    std::string key = graph.type_string(value.type) + ":";
    key.append(static_cast<const char*>(value.constant.data()), value.constant.bytes());
    const auto [it, fresh] = seen.emplace(std::move(key), v);
    if (!fresh) graph.replace_uses(v, it->second);
  }
}

}  // namespace

Result<int> cse(Graph& graph) {
  merge_scalars(graph);
  graph.sort();
  int merged = 0;
  std::multimap<std::pair<const OpDef*, std::vector<ValueId>>, size_t> seen;
  std::vector<bool> dead(graph.nodes().size(), false);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    if (n.op->effect || n.op->impure || !n.subgraphs.empty()) continue;
    const auto key = std::make_pair(n.op, n.inputs);
    const auto [begin, end] = seen.equal_range(key);
    auto same = begin;
    while (same != end && !(graph.nodes()[same->second].attrs == n.attrs)) ++same;
    if (same == end) {
      seen.emplace(key, i);
      continue;
    }
    const std::vector<ValueId> outputs = n.outputs, kept = graph.nodes()[same->second].outputs;
    for (size_t k = 0; k < outputs.size(); ++k) graph.replace_uses(outputs[k], kept[k]);
    dead[i] = true;
    ++merged;
  }
  graph.remove_nodes(dead);
  return merged;
}

}  // namespace oar::passes
