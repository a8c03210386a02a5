// rotate_residual (R1). The proof that a basis may change: values that must share a basis are joined (both
// operands and the result of an addition, a weightless norm or a row gather and what it reads, a linear
// layer's residual and its result), linear layers and embeddings separate their sides because their weights
// absorb a rotation, and everything else holds its operands and results to the basis they have. What remains
// joined to an embedding and held by nothing is the residual stream.
#include <algorithm>
#include <numeric>

#include "engine/graph/op.h"
#include "engine/graph/passes/rotate.h"
#include "engine/graph/weights.h"
#include "quant/transforms/hadamard.h"

namespace oar::passes {
namespace {

using namespace rotation;

class Bases {
 public:
  Bases(const Graph& graph, const RotationOptions& options) : graph_(graph), parent_(graph.num_values() + 1) {
    std::iota(parent_.begin(), parent_.end(), 0);
    const std::vector<bool> weights = weight_nodes(graph);
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      if (!weights[i]) visit(graph.nodes()[i], options);
    }
    for (const auto& o : graph.outputs()) hold(o.value);
  }
  bool same(ValueId a, ValueId b) { return find(a) == find(b); }
  bool held(ValueId v) { return find(v) == find(held_()); }

 private:
  ValueId held_() const { return static_cast<ValueId>(parent_.size() - 1); }
  ValueId find(ValueId v) {
    while (parent_[static_cast<size_t>(v)] != v)
      v = parent_[static_cast<size_t>(v)] = parent_[static_cast<size_t>(parent_[static_cast<size_t>(v)])];
    return v;
  }
  void join(ValueId a, ValueId b) { parent_[static_cast<size_t>(find(a))] = find(b); }
  void hold(ValueId v) {
    if (v != kNoValue) join(v, held_());
  }

  void visit(const Node& n, const RotationOptions& options) {
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
      if (output_segments(n) != 1) hold(n.outputs[0]);
    } else {
      for (ValueId v : n.inputs) hold(v);
      for (ValueId v : n.outputs) hold(v);
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
};

ValueId stream_of(const Graph& graph, Bases& bases) {
  ValueId stream = kNoValue;
  for (const Node& n : graph.nodes()) {
    if (n.is("embedding") && !bases.held(n.outputs[0])) stream = n.outputs[0];
  }
  return stream;
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
