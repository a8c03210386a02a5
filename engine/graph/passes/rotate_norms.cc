// fold_norms: rms_norm(x) * w before linear layers becomes rms_norm(x) and layers with their columns scaled
// by w. What is left of the norm commutes with every rotation. Only where all readers are linear layers: a
// norm that also feeds an addition (a norm after a block) keeps its weight.
#include <algorithm>
#include <map>

#include "engine/graph/op.h"
#include "engine/graph/passes/rotate.h"

namespace oar::passes {
namespace {

using namespace rotation;

bool all_ones(const Tensor& t) {
  auto f32 = to_f32(t);
  if (!f32.ok()) return false;
  const auto values = f32->values<float>();
  return std::all_of(values.begin(), values.end(), [](float v) { return v == 1.f; });
}

// The linear layers that read `value` as their input, through row gathers; false where anything else reads
// it.
bool linear_readers(const Graph& graph, ValueId value, std::vector<size_t>& readers) {
  for (const auto& o : graph.outputs()) {
    if (o.value == value) return false;
  }
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    const auto uses = std::count(n.inputs.begin(), n.inputs.end(), value);
    if (uses == 0) continue;
    if (uses > 1 || n.inputs[0] != value) return false;
    if (n.is("gather") && n.attrs.get_int("axis") == 0) {
      if (!linear_readers(graph, n.outputs[0], readers)) return false;
    } else if (is_linear(n)) {
      readers.push_back(i);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<int> fold_each_norm(Graph& graph, const RotationOptions& options) {
  int folded = 0;
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    if (!graph.nodes()[i].is("rms_norm") || graph.nodes()[i].attrs.has("axis")) continue;
    const ValueId y = graph.nodes()[i].outputs[0], w = graph.nodes()[i].inputs[1];
    if (graph.value(w).kind != ValueKind::kConstant || all_ones(graph.value(w).constant)) continue;
    std::vector<size_t> readers;
    if (graph.value(y).type.shape.size() != 2 || !linear_readers(graph, y, readers) || readers.empty())
      continue;
    if (!std::all_of(readers.begin(), readers.end(),
                     [&](size_t r) { return may_rewrite(graph, graph.nodes()[r], options); }))
      continue;
    for (size_t r : readers) {
      for (size_t k : weight_operands(graph.nodes()[r])) {
        const ValueId old = graph.nodes()[r].inputs[k];
        keep_format(graph, graph.nodes()[r], old);
        OAR_ASSIGN(const ValueId scaled, rewrite(graph, "mul", {old, w}, {}));
        graph.nodes()[r].inputs[k] = scaled;
      }
    }
    OAR_ASSIGN(Tensor ones, Tensor::allocate(graph.value(w).constant.shape(), Format::f32()));
    for (float& v : ones.mutable_values<float>()) v = 1.f;
    const ValueId one = graph.add_constant(graph.value(w).name, std::move(ones));
    graph.nodes()[i].inputs[1] = one;
    ++folded;
  }
  graph.sort();
  return folded;
}

Result<int> fold_norms(Graph& graph, const RotationOptions& options) {
  if (!options.residual || options.stored_residual) return 0;
  // Weights that are rewritten for a rotation that cannot be are a second copy for nothing.
  Graph trial = graph;
  OAR_ASSIGN(const int folded, fold_each_norm(trial, options));
  if (!residual_is_free(trial, options)) return 0;
  graph = std::move(trial);
  return folded;
}

}  // namespace oar::passes
