// rope(rms_norm(x, w)) over heads becomes one rope that normalizes each head first (QK-norm models).

#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {

Result<int> fuse_head_norm_rope(Graph& graph) {
  int fused = 0;
  const std::vector<int> producer = graph.producers(), uses = graph.use_counts();
  std::vector<bool> dead(graph.nodes().size(), false);
  for (Node& rope : graph.nodes()) {
    if (!rope.is("rope") || rope.inputs.size() != 4 || rope.inputs[3] != kNoValue) continue;
    const int i = producer[rope.inputs[0]];
    if (i < 0 || uses[rope.inputs[0]] != 1) continue;
    const Node& norm = graph.nodes()[i];
    if (!norm.is("rms_norm") || norm.attrs.has("axis")) continue;
    rope.inputs[3] = norm.inputs[1];
    rope.attrs.set("norm_eps", norm.attrs.get_float("epsilon", 1e-5));
    rope.inputs[0] = norm.inputs[0];
    dead[i] = true;
    ++fused;
  }
  graph.remove_nodes(dead);
  return fused;
}

}  // namespace oar::passes
