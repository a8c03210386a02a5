// Common subexpressions: two pure nodes with the same op, operands and attributes become one; two scalar
// constants with the same bytes become one value first, so that expressions over them can match.
#include <functional>
#include <map>
#include <unordered_map>

#include "engine/graph/op.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/substitution.h"

namespace oar::passes {
namespace {

void merge_scalars(Graph& graph) {
  Substitution same(graph);
  std::map<std::string, ValueId> seen;
  for (ValueId v = 0; v < static_cast<ValueId>(graph.num_values()); ++v) {
    const Value& value = graph.value(v);
    if (value.kind != ValueKind::kConstant || value.constant.numel() != 1) continue;
    if (value.constant.format().dtype() == DType::kString) continue;
    std::string key = graph.type_string(value.type) + ":";
    key.append(static_cast<const char*>(value.constant.data()), value.constant.bytes());
    const auto [it, fresh] = seen.emplace(std::move(key), v);
    if (!fresh) same.add(v, it->second);
  }
  same.apply(graph);
}

// Of op, operands and attributes: many nodes may read one value and differ in the attributes alone.
size_t hash_of(const Node& n) {
  size_t h = std::hash<const void*>()(n.op);
  const auto mix = [&h](size_t part) { h = (h ^ part) * 0x9E3779B97F4A7C15u + (h >> 29); };
  const auto mix_value = [&mix](const auto& v) { mix(std::hash<std::decay_t<decltype(v)>>()(v)); };
  for (const ValueId v : n.inputs) mix_value(v);
  for (const auto& [name, value] : n.attrs.items()) {
    mix_value(name);
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) mix_value(v);
          else
            for (const auto& e : v) mix_value(e);
        },
        value);
  }
  return h;
}

}  // namespace

Result<int> cse(Graph& graph) {
  merge_scalars(graph);
  graph.sort();
  int merged = 0;
  Substitution kept(graph);
  std::unordered_multimap<size_t, size_t> seen;  // nodes that stay, by hash
  std::vector<bool> dead(graph.nodes().size(), false);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    Node& n = graph.nodes()[i];
    kept.apply(n.inputs);
    // An attribute that is not a number equals nothing, itself included.
    if (n.op->effect || n.op->impure || !n.subgraphs.empty() || !(n.attrs == n.attrs)) continue;
    const size_t hash = hash_of(n);
    auto [same, end] = seen.equal_range(hash);
    const auto equal = [&n](const Node& o) {
      return o.op == n.op && o.inputs == n.inputs && o.attrs == n.attrs &&
             o.outputs.size() == n.outputs.size();
    };
    while (same != end && !equal(graph.nodes()[same->second])) ++same;
    if (same == end) {
      seen.emplace(hash, i);
      continue;
    }
    const Node& first = graph.nodes()[same->second];
    for (size_t k = 0; k < n.outputs.size(); ++k) kept.add(n.outputs[k], first.outputs[k]);
    dead[i] = true;
    ++merged;
  }
  kept.apply(graph);
  graph.remove_nodes(dead);
  return merged;
}

}  // namespace oar::passes
