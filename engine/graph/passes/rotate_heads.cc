// rotate_values (R2) and rotate_queries_keys (R3): rotations within attention heads. Attention mixes the rows
// of v and leaves their channels alone, so a rotation of every value head is undone by the output projection
// or by an inverse transform; queries and keys meet only in a dot product, which any rotation of both keeps.
#include <algorithm>
#include <map>
#include <optional>

#include "engine/base/format.h"
#include "engine/graph/cut.h"
#include "engine/graph/op.h"
#include "engine/graph/passes/rotate.h"
#include "engine/graph/weights.h"

namespace oar::passes {
namespace {

using namespace rotation;

int64_t head_size(const Graph& graph, ValueId v) { return graph.value(v).type.shape.back().const_value(); }

// The linear layer whose rows [begin, end) make the value heads, where nothing else reads them.
struct Source {
  size_t node = 0;
  int64_t begin = 0, end = 0;
};

std::optional<Source> source_of(const Graph& graph, ValueId v, const RotationOptions& options) {
  const std::vector<int> producer = graph.producers(), uses = graph.use_counts();
  Source s;
  int p = producer[v];
  if (p < 0 || uses[v] != 1 || !graph.nodes()[p].is("reshape")) return std::nullopt;
  ValueId flat = graph.nodes()[p].inputs[0];
  const DimVector& shape = graph.value(flat).type.shape;
  if (shape.size() != 2 || uses[flat] != 1) return std::nullopt;
  s.end = shape[1].const_value();
  p = producer[flat];
  if (p >= 0 && graph.nodes()[p].is("slice")) {
    const Node& slice = graph.nodes()[p];
    const auto own = cut_of(graph, slice);
    if (!own) return std::nullopt;
    s.begin = own->begin;
    s.end = own->end;
    flat = slice.inputs[0];
    // Other readers must take columns beside these.
    for (const Node& n : graph.nodes()) {
      if (std::find(n.inputs.begin(), n.inputs.end(), flat) == n.inputs.end()) continue;
      const auto cut = cut_of(graph, n);
      const bool apart = cut && (cut->end <= s.begin || cut->begin >= s.end);
      if (!apart && n.outputs != slice.outputs) return std::nullopt;
    }
    p = producer[flat];
  }
  if (p < 0 || !graph.nodes()[p].is("linear") || graph.nodes()[p].inputs[1] != kNoValue) return std::nullopt;
  if (graph.nodes()[p].inputs.size() != 4 || !may_rewrite(graph, graph.nodes()[p], options))
    return std::nullopt;
  s.node = static_cast<size_t>(p);
  return s;
}

// The linear layers that read all heads of an attention, and nothing else.
std::optional<std::vector<size_t>> readers_of(const Graph& graph, ValueId heads,
                                              const RotationOptions& options) {
  std::vector<size_t> out;
  ValueId flat = kNoValue;
  for (const Node& n : graph.nodes()) {
    if (std::find(n.inputs.begin(), n.inputs.end(), heads) == n.inputs.end()) continue;
    if (!n.is("reshape") || flat != kNoValue || graph.value(n.outputs[0]).type.shape.size() != 2)
      return std::nullopt;
    flat = n.outputs[0];
  }
  for (const auto& o : graph.outputs()) {
    if (o.value == heads || o.value == flat) return std::nullopt;
  }
  if (flat == kNoValue) return std::nullopt;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    const auto uses = std::count(n.inputs.begin(), n.inputs.end(), flat);
    if (uses == 0) continue;
    if (uses != 1 || !is_linear(n) || n.inputs[0] != flat || !may_rewrite(graph, n, options))
      return std::nullopt;
    out.push_back(i);
  }
  return out;
}

Status rewrite_operand(Graph& graph, size_t node, size_t operand, const Attrs& attrs, bool matrix) {
  const ValueId old = graph.nodes()[node].inputs[operand];
  if (matrix) keep_format(graph, graph.nodes()[node], old);
  OAR_ASSIGN(const ValueId rotated, rewrite(graph, "hadamard", {old}, attrs));
  graph.nodes()[node].inputs[operand] = rotated;
  return ok_status();
}

Status fold_values(Graph& graph, const Source& source, const std::vector<size_t>& readers, int64_t block) {
  Attrs columns = transform(block, 0, true);
  const int64_t rows = graph.value(graph.nodes()[source.node].inputs[2]).type.shape[0].const_value();
  if (source.begin != 0 || source.end != rows) {
    columns.set("begin", source.begin);
    columns.set("end", source.end);
  }
  OAR_RETURN_IF_ERROR(rewrite_operand(graph, source.node, 2, columns, true));
  if (graph.nodes()[source.node].inputs[3] != kNoValue)
    OAR_RETURN_IF_ERROR(rewrite_operand(graph, source.node, 3, columns, false));
  for (size_t r : readers) {
    for (size_t k : weight_operands(graph.nodes()[r]))
      OAR_RETURN_IF_ERROR(rewrite_operand(graph, r, k, transform(block), true));
  }
  return ok_status();
}

// Heads behind one transform, whatever the number of attentions over them: these keep them once.
class OnceEach {
 public:
  explicit OnceEach(Graph& graph) : graph_(graph) {}
  Result<ValueId> of(ValueId heads, int64_t block) {
    const auto [at, fresh] = rotated_.try_emplace(heads, kNoValue);
    if (!fresh) return at->second;
    OAR_ASSIGN(const auto made, graph_.add_node(find_op("hadamard"), {heads}, transform(block)));
    return at->second = made[0];
  }

 private:
  Graph& graph_;
  std::map<ValueId, ValueId> rotated_;
};

}  // namespace

Result<int> rotate_values(Graph& graph, const RotationOptions& options) {
  if (!options.values || options.stored_values) return 0;
  int rewrites = 0;
  OnceEach rotated(graph);
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    if (!graph.nodes()[i].is("attention")) continue;
    if (graph.nodes()[i].inputs[2] == kNoValue) continue;  // they are keys, which are left as they are
    const ValueId v = graph.nodes()[i].inputs[2], out = graph.nodes()[i].outputs[0];
    const int64_t block = whole_block(head_size(graph, v));
    if (block < 2) continue;
    std::optional<Source> source;
    std::optional<std::vector<size_t>> readers;
    if (!options.values_online) {
      source = source_of(graph, v, options);
      readers = readers_of(graph, out, options);
    }
    if (source && readers && !readers->empty()) {
      OAR_RETURN_IF_ERROR(fold_values(graph, *source, *readers, block));
    } else {
      Attrs inverse = transform(block);
      inverse.set("inverse", int64_t{1});
      OAR_ASSIGN(graph.nodes()[i].inputs[2], rotated.of(v, block));
      OAR_ASSIGN(const auto back, graph.add_node(find_op("hadamard"), {out}, inverse));
      graph.replace_uses(out, back[0]);
      graph.nodes().back().inputs[0] = out;
    }
    ++rewrites;
  }
  graph.sort();
  return rewrites;
}

std::string why_not_heads(const Graph& graph, const RotationOptions&) {
  for (const Node& n : graph.nodes()) {
    if (!n.is("attention")) continue;
    if (n.inputs[2] == kNoValue) return "attention keeps a latent, which stays as it is";
    return cat("no transform is as wide as a head: ", head_size(graph, n.inputs[0]));
  }
  return "no layer has attention";
}

Result<int> rotate_queries_keys(Graph& graph, const RotationOptions& options) {
  if (!options.queries_keys) return 0;
  int rewrites = 0;
  OnceEach rotated(graph);
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    if (!graph.nodes()[i].is("attention")) continue;
    if (graph.nodes()[i].inputs[2] == kNoValue) continue;  // so would values be
    const int64_t block = whole_block(head_size(graph, graph.nodes()[i].inputs[0]));
    if (block < 2) continue;
    for (size_t k : {size_t{0}, size_t{1}}) {
      OAR_ASSIGN(graph.nodes()[i].inputs[k], rotated.of(graph.nodes()[i].inputs[k], block));
    }
    ++rewrites;
  }
  graph.sort();
  return rewrites;
}

}  // namespace oar::passes
