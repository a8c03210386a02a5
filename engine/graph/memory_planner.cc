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

// What no view may have: values that somebody outside reads or brings as rows behind one another.
std::vector<bool> outputs_of(const Graph& g) {
  std::vector<bool> out(g.num_values());
  for (const auto& o : g.outputs()) out[o.value] = true;
  return out;
}

// Values that nobody reads who needs their heads behind one another.
std::vector<bool> may_lie_apart(const Graph& g) {
  std::vector<bool> apart = outputs_of(g);
  apart.flip();
  for (const Node& n : g.nodes()) {
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const bool reads = k < 32 && (n.op->apart_inputs >> k & 1);
      if (n.inputs[k] != kNoValue && !reads) apart[n.inputs[k]] = false;
    }
  }
  return apart;
}

// How the node's result views an operand's storage, if it does.
bool view_of(const Graph& g, const Node& n, const std::vector<Placement>& places,
             const std::vector<bool>& apart, Placement* out) {
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
    return from.head_step == 0 && !shape.empty() && !in.empty() && shape[0] == in[0];
  }
  // Slices of a matrix's last axis keep whole rows apart by the same stride; those of heads leave them apart.
  const auto cut = cut_of(g, n);
  const bool heads = in.size() == 3 && apart[n.outputs[0]] && in[2].is_const();
  if (!cut || (in.size() != 2 && !heads) || cut->axis != static_cast<int64_t>(in.size()) - 1) return false;
  if (heads && from.head_step == 0) out->head_step = in[2].const_value();
  out->column += cut->begin;
  out->contiguous = from.contiguous && shape.back() == in.back();
  if (out->contiguous) out->head_step = 0;
  return true;
}

// The value whose op writes an operand of joined columns, where that op may write them in place; else none.
// With one head these are rows, however they are shaped.
ValueId storage_of(const Graph& g, ValueId v, const std::vector<int>& producers, bool one_head) {
  int p = producers[v];
  while (one_head && p >= 0 && g.nodes()[static_cast<size_t>(p)].is("reshape")) {
    v = g.nodes()[static_cast<size_t>(p)].inputs[0];
    p = producers[v];
  }
  if (p < 0) return kNoValue;
  const Node& n = g.nodes()[static_cast<size_t>(p)];
  const TensorType& type = g.value(v).type;
  const bool rows = type.shape.size() == 2 || (type.shape.size() == 3 && type.shape[1] == Dim(1)),
             writes = one_head ? n.op->strided_output && rows : n.op->apart_output;
  return writes && n.outputs[0] == v && type.format == Format::f32() ? v : kNoValue;
}

// Places operands of heads that are joined by their columns, each by itself, within what they become. All of
// one node, or none.
void place_joined(const Graph& g, const MemoryRules& rules, std::vector<Placement>& places) {
  if (!rules.heads_apart) return;
  const std::vector<int> producers = g.producers();
  const std::vector<bool> outputs = outputs_of(g);
  std::vector<bool> placed(g.num_values());
  for (const Node& n : g.nodes()) {
    if (!n.is("concat")) continue;
    const ValueId joined = n.outputs[0];
    const DimVector& shape = g.value(joined).type.shape;
    const int64_t axis = n.attrs.get_int("axis");
    if (shape.size() != 3 || (axis != 2 && axis != -1) || !shape[1].is_const() || !shape[2].is_const())
      continue;
    const bool one_head = shape[1] == Dim(1);
    std::vector<ValueId> storage;
    for (const ValueId v : n.inputs) {
      const ValueId s = storage_of(g, v, producers, one_head);
      const bool free = s != kNoValue && !placed[s] && !outputs[s] && !outputs[v] &&
                        g.value(s).type.shape[0] == shape[0] &&
                        std::find(storage.begin(), storage.end(), s) == storage.end();
      if (!free) break;
      storage.push_back(s);
    }
    if (storage.size() != n.inputs.size()) continue;
    int64_t column = 0;
    for (size_t k = 0; k < storage.size(); ++k) {
      Placement& p = places[storage[k]];
      p.root = joined;
      p.column = column;
      p.row_stride = product(shape, 1);
      p.head_step = one_head ? 0 : shape[2].const_value();
      p.contiguous = false;
      placed[storage[k]] = true;
      column += g.value(n.inputs[k]).type.shape[2].const_value();
    }
    placed[joined] = true;
  }
}

std::vector<Placement> place_views(const Graph& graph, const MemoryRules& rules) {
  std::vector<Placement> places(graph.num_values());
  for (ValueId v = 0; v < static_cast<ValueId>(graph.num_values()); ++v) {
    places[v].root = v;
    const DimVector& shape = graph.value(v).type.shape;
    places[v].row_stride = shape.empty() ? Dim(1) : product(shape, 1);
  }
  place_joined(graph, rules, places);
  std::vector<bool> apart(graph.num_values());
  if (rules.heads_apart) apart = may_lie_apart(graph);
  for (const Node& n : graph.nodes()) {
    Placement view;
    if (view_of(graph, n, places, apart, &view)) places[n.outputs[0]] = view;
  }
  return places;
}

bool needs_copy(const Node& n, size_t k, const std::vector<Placement>& places) {
  const ValueId v = n.inputs[k];
  if (v == kNoValue || places[v].contiguous) return false;
  const uint32_t reads = places[v].head_step != 0 ? n.op->apart_inputs : n.op->strided_inputs;
  if (k < 32 && (reads >> k & 1)) return false;
  // Views read nothing; whether they can view is decided where they are read.
  return !in_place(n, places);
}

// By node: the last of those that may be done at once with it; itself where there are none.
std::vector<uint32_t> last_beside(const Graph& g, bool together, const std::vector<Placement>& places) {
  const auto n = static_cast<uint32_t>(g.nodes().size());
  std::vector<uint32_t> last(n);
  uint32_t append = n;  // n: none behind
  for (uint32_t i = n; i-- > 0;) {
    const Node& node = g.nodes()[i];
    if (node.is("kv_append") || node.is("quant_kv_append")) append = i;
    else if (!node.is("rope") && !node.is("hadamard") && !in_place(node, places)) append = n;
    last[i] = together && append < n ? append : i;
    // A gate may be part of the product of experts behind it, and what rows are multiplied with of their
    // product.
    const Node* const next = i + 1 < n ? &g.nodes()[i + 1] : nullptr;
    const bool follows = next != nullptr && !next->inputs.empty() && next->inputs[0] == node.outputs[0],
               gate = node.is("swiglu") && follows && next->is("grouped_linear"),
               scaled = (node.is("linear") || node.is("gated_linear")) && follows && next->is("mul");
    if (together && (gate || scaled)) last[i] = i + 1;
  }
  return last;
}

}  // namespace

bool in_place(const Node& n, const std::vector<Placement>& placements) {
  if (!n.is("reshape") && !n.is("slice") && !n.is("concat")) return false;
  return placements[n.outputs[0]].root == placements[n.inputs[0]].root;
}

Status insert_copies(Graph& graph, const MemoryRules& rules) {
  const OpDef* copy = find_op("contiguous");
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<Placement> places = place_views(graph, rules);
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

Result<MemoryPlan> plan_memory(const Graph& graph, const MemoryRules& rules) {
  MemoryPlan plan;
  plan.placements = place_views(graph, rules);
  auto& places = plan.placements;
  const auto end = static_cast<uint32_t>(graph.nodes().size());

  // Lifetimes of storage: from the node that defines a root to the last node that reads any view of it. Node
  // i runs at ticks 2 i + 1 to 2 i + 2, so that no result overlaps what its node reads.
  constexpr uint32_t kUnused = 0;
  std::vector<BlockLife> lives(graph.num_values(), {0, kUnused, kUnused});
  const std::vector<uint32_t> last = last_beside(graph, rules.together, places);
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
      const ValueId root = places[v].root;  // written by parts that are joined, before it is there
      if (root != v && (in_place(n, places) || n.op->effect)) continue;
      BlockLife& life = lives[root];
      if (life.begin == kUnused) life.begin = 2 * i + 1;
      life.end = std::max(life.end, 2 * i + 2);
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
