// rotate_ffn (R4): what an activation function hands to a linear layer, where the largest outliers of all
// arise, is rotated online and the layer's weight in advance.
#include <algorithm>

#include "engine/graph/op.h"
#include "engine/graph/passes/rotate.h"

namespace oar::passes {
namespace {

using namespace rotation;

bool is_activation(const Node& n) {
  // A product of two activations is a gate spelled out.
  for (const char* name : {"swiglu", "silu", "gelu", "relu", "mul"}) {
    if (n.is(name)) return true;
  }
  return false;
}

}  // namespace

Result<int> rotate_ffn(Graph& graph, const RotationOptions& options) {
  if (!options.ffn && !options.stored_ffn) return 0;
  int rewrites = 0;
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    const Node node = graph.nodes()[i];
    if (!is_activation(node)) continue;
    const ValueId h = node.outputs[0];
    const DimVector& shape = graph.value(h).type.shape;
    if (shape.size() != 2 || !shape[1].is_const() || shape[0].is_const()) continue;  // constants are weights
    std::vector<size_t> readers;
    for (size_t r = 0; r < count; ++r) {
      const Node& n = graph.nodes()[r];
      const bool linear = is_linear(n) && n.inputs[0] == h;
      if (linear && (options.stored_ffn || may_rewrite(graph, n, options))) readers.push_back(r);
    }
    const int64_t block = ffn_block(shape[1].const_value(), options);
    if (readers.empty() || block < 2) continue;
    OAR_ASSIGN(const auto rotated, graph.add_node(find_op("hadamard"), {h}, transform(block)));
    for (size_t r : readers) {
      graph.nodes()[r].inputs[0] = rotated[0];
      if (options.stored_ffn) continue;
      for (size_t k : weight_operands(graph.nodes()[r])) {
        const ValueId old = graph.nodes()[r].inputs[k];
        keep_format(graph, graph.nodes()[r], old);
        OAR_ASSIGN(const ValueId weight, rewrite(graph, "hadamard", {old}, transform(block)));
        graph.nodes()[r].inputs[k] = weight;
      }
    }
    ++rewrites;
  }
  graph.sort();
  return rewrites;
}

std::string why_not_ffn(const Graph&, const RotationOptions&) {
  return "no linear layer whose weights may change reads an activation of even width";
}

}  // namespace oar::passes
