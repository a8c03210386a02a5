#include "engine/graph/memory_planner.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/op.h"

namespace oar {
namespace {

Dim product(const DimVector& shape, size_t from) {
  Dim p = 1;
  for (size_t k = from; k < shape.size(); ++k) p = p * shape[k];
  return p;
}

Dim bytes_of(const TensorType& t) {
  return Dim::align(product(t.shape, 0) * Dim(t.format.block_bytes()), 64);
}

// How the node's result views an operand's storage, if it does.
bool view_of(const Graph& g, const Node& n, const std::vector<Placement>& places, Placement* out) {
  if (n.op->effect) {
    *out = places[n.inputs[0]];
    return true;
  }
  if (!n.is("reshape") && !n.is("slice")) return false;
  const ValueId x = n.inputs[0];
  const Value& source = g.value(x);
  if (source.kind == ValueKind::kConstant || source.kind == ValueKind::kState) return false;
  const Placement& from = places[x];
  const DimVector& in = source.type.shape;
  const DimVector& shape = g.value(n.outputs[0]).type.shape;
  *out = from;
  if (n.is("reshape")) {
    if (from.contiguous) {
      out->row_stride = shape.empty() ? Dim(1) : product(shape, 1);
      return true;
    }
    return !shape.empty() && !in.empty() && shape[0] == in[0];
  }
  // Slices of a matrix's last axis keep whole rows apart by the same stride.
  const int64_t axis = n.attrs.get_int("axis");
  if (in.size() != 2 || (axis != -1 && axis != 1)) return false;
  out->column += n.attrs.get_int("begin");
  out->contiguous = from.contiguous && shape[1] == in[1];
  return true;
}

std::vector<Placement> place_views(const Graph& graph) {
  std::vector<Placement> places(graph.num_values());
  for (ValueId v = 0; v < static_cast<ValueId>(graph.num_values()); ++v) {
    places[v].root = v;
    const DimVector& shape = graph.value(v).type.shape;
    places[v].row_stride = shape.empty() ? Dim(1) : product(shape, 1);
  }
  for (const Node& n : graph.nodes()) {
    Placement view;
    if (view_of(graph, n, places, &view)) places[n.outputs[0]] = view;
  }
  return places;
}

bool needs_copy(const Node& n, size_t k, const std::vector<Placement>& places) {
  const ValueId v = n.inputs[k];
  if (v == kNoValue || places[v].contiguous || n.is("contiguous")) return false;
  if (k < 32 && (n.op->strided_inputs >> k & 1)) return false;
  // Views read nothing; whether they can view is decided where they are read.
  return !((n.is("reshape") || n.is("slice")) && places[n.outputs[0]].root == places[v].root);
}

}  // namespace

Status insert_copies(Graph& graph) {
  const OpDef* copy = find_op("contiguous");
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<Placement> places = place_views(graph);
    for (size_t i = 0; i < graph.nodes().size() && !changed; ++i) {
      for (size_t k = 0; k < graph.nodes()[i].inputs.size(); ++k) {
        if (!needs_copy(graph.nodes()[i], k, places)) continue;
        auto out = graph.add_node(copy, {graph.nodes()[i].inputs[k]});
        OAR_RETURN_IF_ERROR(out.status());
        graph.nodes()[i].inputs[k] = (*out)[0];
        graph.sort();
        changed = true;
        break;
      }
    }
  }
  return ok_status();
}

Result<MemoryPlan> plan_memory(const Graph& graph) {
  MemoryPlan plan;
  plan.placements = place_views(graph);
  auto& places = plan.placements;
  const int end = static_cast<int>(graph.nodes().size());

  // Lifetimes of storage: from the node that defines a root to the last node that reads any view of it.
  std::vector<int> last(graph.num_values(), -2), first(graph.num_values(), -2);
  for (ValueId v : graph.inputs()) first[v] = -1, last[v] = -1;
  for (int i = 0; i < end; ++i) {
    const Node& n = graph.nodes()[i];
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      if (n.inputs[k] == kNoValue) continue;
      if (needs_copy(n, k, places))
        return internal_error(cat(n.op->name, " reads a strided view it cannot read"));
      last[places[n.inputs[k]].root] = i;
    }
    for (ValueId v : n.outputs) {
      if (places[v].root == v) first[v] = i, last[v] = std::max(last[v], i);
    }
  }
  for (const auto& o : graph.outputs()) last[places[o.value].root] = end;

  std::vector<ValueId> roots;
  for (ValueId v = 0; v < static_cast<ValueId>(graph.num_values()); ++v) {
    const ValueKind kind = graph.value(v).kind;
    const bool stored = kind == ValueKind::kInput || (kind == ValueKind::kResult && first[v] >= 0);
    if (places[v].root == v && stored) roots.push_back(v);
  }
  std::stable_sort(roots.begin(), roots.end(), [&](ValueId a, ValueId b) { return first[a] < first[b]; });

  std::vector<int> free_after;  // by slot: its present tenant's last reader
  for (ValueId v : roots) {
    const Dim bytes = bytes_of(graph.value(v).type);
    const int64_t bound = bytes.upper_bound(graph.symbols());
    int best = -1;
    int64_t best_waste = 0;
    for (size_t s = 0; s < plan.slot_bytes.size(); ++s) {
      // Strictly before: a kernel's output must not overlap what it reads.
      if (free_after[s] >= first[v]) continue;
      const int64_t have = plan.slot_bytes[s].upper_bound(graph.symbols());
      const int64_t waste = have > bound ? have - bound : 2 * (bound - have);
      if (best < 0 || waste < best_waste) best = static_cast<int>(s), best_waste = waste;
    }
    if (best < 0) {
      best = static_cast<int>(plan.slot_bytes.size());
      plan.slot_bytes.push_back(bytes);
      free_after.push_back(0);
    }
    plan.slot_bytes[best] = Dim::max(plan.slot_bytes[best], bytes);
    free_after[best] = last[v];
    places[v].slot = best;
  }
  for (Placement& p : places) {
    if (p.root != kNoValue) p.slot = places[p.root].slot;
  }
  return plan;
}

}  // namespace oar
