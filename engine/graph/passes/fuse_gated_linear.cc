// linear(swiglu(gate, up)) where nobody else reads the product: it is computed while the layer packs its
// input, which saves writing and reading it, and a barrier.
#include "engine/graph/builder.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {

Result<int> fuse_gated_linear(Graph& graph) {
  int fused = 0;
  const std::vector<int> producer = graph.producers(), uses = graph.use_counts();
  const size_t count = graph.nodes().size();
  std::vector<bool> dead(count, false);
  for (size_t i = 0; i < count; ++i) {
    const Node& linear = graph.nodes()[i];
    if (!linear.is("linear") || linear.inputs.size() != 4) continue;
    const ValueId product = linear.inputs[0];
    const int p = producer[product];
    if (p < 0 || uses[product] != 1 || !graph.nodes()[p].is("swiglu")) continue;
    if (graph.value(product).type.shape.size() != 2) continue;
    const Node& swiglu = graph.nodes()[p];
    if (swiglu.attrs.get_float("alpha", 1) != 1 || swiglu.attrs.has("limit") || swiglu.attrs.has("up_offset"))
      continue;
    const std::vector<ValueId> inputs{swiglu.inputs[0], swiglu.inputs[1], linear.inputs[1], linear.inputs[2],
                                      linear.inputs[3]};
    const ValueId old = linear.outputs[0];
    Attrs attrs = linear.attrs;
    if (swiglu.attrs.has("act")) attrs.set("act", swiglu.attrs.get_string("act"));
    OAR_ASSIGN(const auto made, graph.add_node(find_op("gated_linear"), inputs, std::move(attrs)));
    graph.replace_uses(old, made[0]);
    dead[i] = dead[p] = true;
    ++fused;
  }
  dead.resize(graph.nodes().size(), false);
  graph.remove_nodes(dead);
  graph.sort();
  return fused;
}

}  // namespace oar::passes
