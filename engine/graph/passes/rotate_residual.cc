// rotate_residual (R1). The proof that a basis may change: values that must share a basis are joined (both
// operands and the result of an addition, a weightless norm or a row gather and what it reads, a linear
// layer's residual and its result), linear layers and embeddings separate their sides because their weights
// absorb a rotation, and everything else holds its operands and results to the basis they have. What remains
// joined to an embedding and held by nothing is the residual stream. Of a stream that is held the first node
// that does is known by its place in the graph.
#include <algorithm>
#include <numeric>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/graph/passes/rotate.h"
#include "engine/graph/weights.h"
#include "quant/transforms/hadamard.h"

namespace oar::passes {
namespace {

using namespace rotation;

class Bases {
 public:
  Bases(const Graph& graph, const RotationOptions& options)
      : graph_(graph), parent_(graph.num_values()), holder_(graph.num_values(), kNone) {
    std::iota(parent_.begin(), parent_.end(), 0);
    const std::vector<bool> weights = weight_nodes(graph);
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      if (!weights[i]) visit(i, options);
    }
    for (const auto& o : graph.outputs()) hold(o.value, graph.nodes().size());
  }
  bool same(ValueId a, ValueId b) { return find(a) == find(b); }
  bool held(ValueId v) { return holder(v) != kNone; }
  // The first node that holds v where it is; behind the last one, an output of the graph.
  size_t holder(ValueId v) { return holder_[static_cast<size_t>(find(v))]; }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  ValueId find(ValueId v) {
    while (parent_[static_cast<size_t>(v)] != v)
      v = parent_[static_cast<size_t>(v)] = parent_[static_cast<size_t>(parent_[static_cast<size_t>(v)])];
    return v;
  }
  void join(ValueId a, ValueId b) {
    const ValueId from = find(a), to = find(b);
    hold(to, holder_[static_cast<size_t>(from)]);
    parent_[static_cast<size_t>(from)] = to;
  }
  void hold(ValueId v, size_t node) {
    if (v == kNoValue) return;
    size_t& first = holder_[static_cast<size_t>(find(v))];
    first = std::min(first, node);
  }

  void visit(size_t i, const RotationOptions& options) {
    const Node& n = graph_.nodes()[i];
    const DimVector& out = graph_.value(n.outputs[0]).type.shape;
    const auto same_shape = [&](ValueId v) { return graph_.value(v).type.shape == out; };
    if (n.is("embedding") && weight_source(graph_, graph_.nodes(), n.inputs[0]) != kNoValue) return;
    if (n.is("add") && same_shape(n.inputs[0]) && same_shape(n.inputs[1])) {
      join(n.inputs[0], n.outputs[0]);
      join(n.inputs[1], n.outputs[0]);
    } else if (n.is("mul") && number(n.inputs[1]) && same_shape(n.inputs[0])) {
      join(n.inputs[0], n.outputs[0]);
    } else if (n.is("rms_norm") && weightless(n)) {
      join(n.inputs[0], n.outputs[0]);
    } else if ((n.is("gather") && n.attrs.get_int("axis") == 0) || n.is("moe_combine")) {
      join(n.inputs[0], n.outputs[0]);
    } else if (is_linear(n) && may_rewrite(graph_, n, options)) {
      if (n.is("linear") && n.inputs[1] != kNoValue) join(n.inputs[1], n.outputs[0]);
      // Segments side by side have no common basis to rotate.
      if (output_segments(n) != 1) hold(n.outputs[0], i);
    } else {
      for (ValueId v : n.inputs) hold(v, i);
      for (ValueId v : n.outputs) hold(v, i);
    }
  }
  bool number(ValueId v) const {
    return graph_.value(v).kind == ValueKind::kConstant && graph_.value(v).constant.numel() == 1;
  }
  bool weightless(const Node& norm) const {
    const Value& w = graph_.value(norm.inputs[1]);
    if (w.kind != ValueKind::kConstant) return false;
    auto f32 = to_f32(w.constant);
    if (!f32.ok()) return false;
    const auto values = f32->values<float>();
    return std::all_of(values.begin(), values.end(), [](float v) { return v == 1.f; });
  }

  const Graph& graph_;
  std::vector<ValueId> parent_;
  std::vector<size_t> holder_;  // of roots
};

ValueId stream_of(const Graph& graph, Bases& bases) {
  ValueId stream = kNoValue;
  for (const Node& n : graph.nodes()) {
    if (n.is("embedding") && !bases.held(n.outputs[0])) stream = n.outputs[0];
  }
  return stream;
}

// "layer_norm at 'transformer.h.0.ln_1.weight'": the nearest tensor says which of its kind a node is.
std::string place_of(const Graph& graph, size_t node) {
  const std::vector<int> producer = graph.producers();
  std::vector<size_t> near{node};
  for (size_t k = 0; k < near.size(); ++k) {
    const std::vector<ValueId>& in = graph.nodes()[near[k]].inputs;
    for (const ValueId v : in) {
      if (v == kNoValue || graph.value(v).kind != ValueKind::kConstant) continue;
      // What a pass made of a number has no name but its marks.
      const std::string& name = graph.value(v).name;
      if (name.find_first_not_of('\'') != name.npos)
        return cat(graph.nodes()[node].op->name, " at '", name, "'");
    }
    for (auto v = in.rbegin(); v != in.rend(); ++v) {
      const int made = *v == kNoValue ? -1 : producer[static_cast<size_t>(*v)];
      if (made >= 0 && std::find(near.begin(), near.end(), static_cast<size_t>(made)) == near.end())
        near.push_back(static_cast<size_t>(made));
    }
  }
  return graph.nodes()[node].op->name;
}

Status rewrite_weight(Graph& graph, size_t node, size_t operand, const Attrs& attrs, bool matrix) {
  const ValueId old = graph.nodes()[node].inputs[operand];
  if (matrix) keep_format(graph, graph.nodes()[node], old);
  OAR_ASSIGN(const ValueId rotated, rewrite(graph, "hadamard", {old}, attrs));
  graph.nodes()[node].inputs[operand] = rotated;
  return ok_status();
}

}  // namespace

bool residual_is_free(const Graph& graph, const RotationOptions& options) {
  Bases bases(graph, options);
  return stream_of(graph, bases) != kNoValue;
}

std::string why_not_residual(const Graph& graph, const RotationOptions& options) {
  Graph folded = graph;
  if (const auto norms = fold_each_norm(folded, options); !norms.ok()) return norms.status().message();
  Bases bases(folded, options);
  for (const Node& n : folded.nodes()) {
    if (!n.is("embedding")) continue;
    if (!bases.held(n.outputs[0])) {
      const int64_t width = folded.value(n.outputs[0]).type.shape.back().const_value();
      if (whole_block(width) >= 2) return "norms keep their weights without the pass fold_norms";
      return cat("no transform is as wide as the stream between the layers: ", width);
    }
    const size_t holder = bases.holder(n.outputs[0]);
    return cat("the stream between the layers is held by ",
               holder < folded.nodes().size() ? place_of(folded, holder) : "an output of the model");
  }
  return "no embedding begins a stream between the layers";
}

Result<int> rotate_residual(Graph& graph, const RotationOptions& options) {
  if (!options.residual || options.stored_residual) return 0;
  Bases bases(graph, options);
  const ValueId stream = stream_of(graph, bases);
  if (stream == kNoValue) return 0;
  const int64_t width = graph.value(stream).type.shape.back().const_value(), block = whole_block(width);
  if (block < 2) return 0;
  const Attrs rows = transform(block, options.seed), columns = transform(block, options.seed, true);
  int rewrites = 0;
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    const Node node = graph.nodes()[i];  // a copy: weights are appended
    if (node.is("embedding") && bases.same(node.outputs[0], stream)) {
      OAR_RETURN_IF_ERROR(rewrite_weight(graph, i, 0, rows, true));
      ++rewrites;
    }
    if (!is_linear(node)) continue;
    const bool reads = bases.same(node.inputs[0], stream), writes = bases.same(node.outputs[0], stream);
    if (!reads && !writes) continue;
    for (size_t k : weight_operands(node)) {
      if (reads) OAR_RETURN_IF_ERROR(rewrite_weight(graph, i, k, rows, true));
      if (!writes) continue;
      OAR_RETURN_IF_ERROR(rewrite_weight(graph, i, k, columns, true));
      const bool bias = node.is("linear") && node.inputs[k + 1] != kNoValue;
      if (bias) OAR_RETURN_IF_ERROR(rewrite_weight(graph, i, k + 1, columns, false));
    }
    // Experts' biases are rows of a matrix.
    if (writes && node.is("grouped_linear") && node.inputs[3] != kNoValue)
      OAR_RETURN_IF_ERROR(rewrite_weight(graph, i, 3, rows, false));
    ++rewrites;
  }
  graph.sort();
  return rewrites;
}

}  // namespace oar::passes
