// Linear layers that read the same input become one call with several weights: the input is converted once
// and the pool meets one barrier. The weights stay where they are mapped; results are column slices of one
// buffer. operands of `linear`: x, residual or none, then (weight, bias or none) per segment.
#include <map>

#include "engine/graph/builder.h"
#include "engine/graph/cut.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {

Result<int> fuse_linear(Graph& graph) {
  std::map<ValueId, std::vector<size_t>> by_input;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    if (n.is("linear") && n.inputs[1] == kNoValue) by_input[n.inputs[0]].push_back(i);
  }
  int fused = 0;
  std::vector<bool> dead(graph.nodes().size(), false);
  for (const auto& [x, members] : by_input) {
    // Segments of one call share a storage format.
    std::map<std::string, std::vector<size_t>> by_format;
    for (size_t i : members) {
      const Node& n = graph.nodes()[i];
      by_format[graph.value(n.inputs[2]).type.format.name() + n.attrs.get_string("format")].push_back(i);
    }
    for (const auto& [format, group] : by_format) {
      if (group.size() < 2) continue;
      std::vector<ValueId> inputs{x, kNoValue};
      for (size_t i : group) {
        const auto& in = graph.nodes()[i].inputs;
        inputs.insert(inputs.end(), in.begin() + 2, in.end());
      }
      auto all = graph.add_node(find_op("linear"), inputs, graph.nodes()[group[0]].attrs);
      OAR_RETURN_IF_ERROR(all.status());
      Builder b(graph);
      Dim begin = 0;
      for (size_t i : group) {
        const ValueId old = graph.nodes()[i].outputs[0];
        const Dim n = graph.value(old).type.shape.back();
        const Val part =
            b.op("slice", {Val{(*all)[0]}}, cut_attrs(-1, begin.const_value(), (begin + n).const_value()));
        OAR_RETURN_IF_ERROR(b.status());
        graph.replace_uses(old, part.id);
        begin = begin + n;
        dead[i] = true;
      }
      ++fused;
    }
  }
  // add(linear(x), r) where nobody else reads the product: the epilogue adds it.
  const std::vector<int> producer = graph.producers(), uses = graph.use_counts();
  dead.resize(graph.nodes().size(), false);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& add = graph.nodes()[i];
    if (dead[i] || !add.is("add")) continue;
    for (int side : {0, 1}) {
      const ValueId product = add.inputs[side], residual = add.inputs[1 - side];
      const int p = producer[product];
      if (p < 0 || dead[p] || uses[product] != 1) continue;
      Node& linear = graph.nodes()[p];
      if (!linear.is("linear") || linear.inputs[1] != kNoValue) continue;
      if (!(graph.value(residual).type == graph.value(product).type)) continue;
      linear.inputs[1] = residual;
      graph.replace_uses(graph.nodes()[i].outputs[0], product);
      dead[i] = true;
      ++fused;
      break;
    }
  }
  graph.remove_nodes(dead);
  graph.sort();
  return fused;
}

}  // namespace oar::passes
