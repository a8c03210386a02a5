#include "engine/graph/memory_planner.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/cut.h"
#include "engine/graph/op.h"
#include "engine/graph/run_memory.h"

namespace oar {
namespace {

Dim product(const DimVector& shape, size_t from) {
  Dim p = 1;
  for (size_t k = from; k < shape.size(); ++k) p = p * shape[k];
  return p;
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
  const auto cut = cut_of(g, n);
  if (!cut || in.size() != 2 || cut->axis != 1) return false;
  out->column += cut->begin;
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

// By node: the last of those that may be done at once with it; itself where there are none.
std::vector<uint32_t> last_beside(const Graph& g, bool together) {
  const auto n = static_cast<uint32_t>(g.nodes().size());
  std::vector<uint32_t> last(n);
  uint32_t append = n;  // n: none behind
  for (uint32_t i = n; i-- > 0;) {
    const Node& node = g.nodes()[i];
    if (node.is("kv_append") || node.is("quant_kv_append")) append = i;
    else if (!node.is("rope") && !node.is("hadamard") && !node.is("reshape") && !node.is("slice")) append = n;
    last[i] = together && append < n ? append : i;
    // A gate may be part of the product of experts behind it.
    const Node* const next = i + 1 < n ? &g.nodes()[i + 1] : nullptr;
    if (together && node.is("swiglu") && next != nullptr && next->is("grouped_linear") &&
        next->inputs[0] == node.outputs[0])
      last[i] = i + 1;
  }
  return last;
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

Result<MemoryPlan> plan_memory(const Graph& graph, bool together) {
  MemoryPlan plan;
  plan.placements = place_views(graph);
  auto& places = plan.placements;
  const auto end = static_cast<uint32_t>(graph.nodes().size());

  // Lifetimes of storage: from the node that defines a root to the last node that reads any view of it. Node
  // i runs at ticks 2 i + 1 to 2 i + 2, so that no result overlaps what its node reads.
  constexpr uint32_t kUnused = 0;
  std::vector<BlockLife> lives(graph.num_values(), {0, kUnused, kUnused});
  const std::vector<uint32_t> last = last_beside(graph, together);
  for (ValueId v : graph.inputs()) lives[v].end = 1;
  for (uint32_t i = 0; i < end; ++i) {
    const Node& n = graph.nodes()[i];
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      if (n.inputs[k] == kNoValue) continue;
      if (needs_copy(n, k, places))
        return internal_error(cat(n.op->name, " reads a strided view it cannot read"));
      BlockLife& life = lives[places[n.inputs[k]].root];
      life.end = std::max(life.end, 2 * last[i] + 2);
    }
    for (ValueId v : n.outputs) {
      if (places[v].root == v) lives[v].begin = 2 * i + 1, lives[v].end = std::max(lives[v].end, 2 * i + 2);
    }
  }
  for (const auto& o : graph.outputs()) lives[places[o.value].root].end = 2 * end + 1;

  std::vector<BlockLife> blocks;
  std::vector<ValueId> roots;
  constexpr uint64_t kMost = uint64_t{1} << 46;
  // Largest sizes are mostly powers of two: places that far apart would share their sets of every cache.
  constexpr uint64_t kApart = 5 * Buffer::kAlignment;
  for (ValueId v = 0; v < static_cast<ValueId>(graph.num_values()); ++v) {
    const Value& value = graph.value(v);
    const bool stored =
        value.kind == ValueKind::kInput || (value.kind == ValueKind::kResult && lives[v].begin > 0);
    if (places[v].root != v || !stored) continue;
    const Dim bytes = product(value.type.shape, 0) * Dim(value.type.format.block_bytes());
    lives[v].bytes = static_cast<uint64_t>(bytes.upper_bound(graph.symbols()));
    if (lives[v].bytes > kMost)
      return resource_exhausted(cat("a value would take ", lives[v].bytes, " bytes"));
    lives[v].bytes += kApart;
    roots.push_back(v);
    blocks.push_back(lives[v]);
  }
  const BlockPlan placed = plan_blocks(std::move(blocks));
  if (placed.arena_bytes > kMost)
    return resource_exhausted(cat("activations would take ", placed.arena_bytes, " bytes"));
  for (size_t k = 0; k < roots.size(); ++k) places[roots[k]].offset = static_cast<int64_t>(placed.offsets[k]);
  for (Placement& p : places) {
    if (p.root != kNoValue) p.offset = places[p.root].offset;
  }
  plan.arena_bytes = placed.arena_bytes;
  return plan;
}

}  // namespace oar
