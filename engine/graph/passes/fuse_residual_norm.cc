// h = x + r; n = rms_norm(h, w)  becomes  n, h = add_rms_norm(x, r, w): the sum is written once while the
// norm reads it.

#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {

Result<int> fuse_residual_norm(Graph& graph) {
  const OpDef* fused_op = find_op("add_rms_norm");
  int fused = 0;
  const size_t count = graph.nodes().size();
  std::vector<bool> dead(count, false);
  for (size_t i = 0; i < count; ++i) {
    const Node norm = graph.nodes()[i];
    if (!norm.is("rms_norm") || norm.attrs.has("axis")) continue;
    const int add_index = graph.producers()[norm.inputs[0]];
    if (add_index < 0 || dead[add_index]) continue;
    const Node add = graph.nodes()[add_index];
    if (!add.is("add")) continue;
    const TensorType& sum = graph.value(norm.inputs[0]).type;
    if (!(graph.value(add.inputs[0]).type == sum) || !(graph.value(add.inputs[1]).type == sum)) continue;
    auto out = graph.add_node(fused_op, {add.inputs[0], add.inputs[1], norm.inputs[1]}, norm.attrs);
    OAR_RETURN_IF_ERROR(out.status());
    graph.replace_uses(norm.outputs[0], (*out)[0]);
    graph.replace_uses(add.outputs[0], (*out)[1]);
    dead[i] = dead[add_index] = true;
    ++fused;
  }
  dead.resize(graph.nodes().size(), false);
  graph.remove_nodes(dead);
  graph.sort();
  return fused;
}

}  // namespace oar::passes
