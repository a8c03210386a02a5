#include "engine/graph/passes/serve.h"

#include <cstring>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar {

Result<ServeLayout> serve(Graph& graph, const ServeOptions& options) {
  ServeLayout layout;
  layout.sequences = graph.add_symbol("B", options.max_sequences);
  const Dim B = graph.dim(layout.sequences);
  const Format i32 = Format::i32();
  const ValueId seq_start = graph.add_input("seq_start", {i32, {B + Dim(1)}});
  layout.seq_start_input = graph.inputs().size() - 1;
  const ValueId context_len = graph.add_input("context_len", {i32, {B}});
  layout.context_len_input = graph.inputs().size() - 1;
  // Blocks of the pool: as many as memory allows, known only when the plan's own needs are.
  const Dim blocks = graph.dim(graph.add_symbol("N", INT32_MAX));
  const int64_t max_blocks = (options.max_context + options.page_tokens - 1) / options.page_tokens;

  std::vector<std::pair<ValueId, ValueId>> group_inputs;  // slots, block tables
  const size_t count = graph.nodes().size();
  std::vector<bool> dead(count, false);
  for (size_t i = 0; i < count; ++i) {
    const Node node = graph.nodes()[i];
    if (std::strcmp(node.op->name, "attention") != 0) continue;
    const ValueId q = node.inputs[0], k = node.inputs[1], v = node.inputs[2];
    const DimVector& kv = graph.value(k).type.shape;  // (T, K, D)
    KvShape shape{options.kv_type, options.page_tokens, static_cast<int32_t>(kv[1].const_value()),
                  static_cast<int32_t>(kv[2].const_value())};
    if (shape.head_dim % 8 != 0 || shape.head_dim > 256) {
      return unimplemented(cat("head size ", shape.head_dim, " is not a multiple of 8 up to 256"));
    }
    const size_t bytes = kv_block_bytes(shape);
    // A window at least as long as the context never hides anything.
    int64_t window = node.attrs.get_int("window");
    if (window >= options.max_context) window = 0;

    size_t g = 0;
    while (g < layout.groups.size() &&
           (layout.groups[g].window != window || layout.groups[g].state_block_bytes[0] != bytes)) {
      ++g;
    }
    if (g == layout.groups.size()) {
      ServeLayout::Group group;
      group.window = window;
      group.max_blocks = graph.add_symbol(cat("M", g), max_blocks);
      const ValueId slots = graph.add_input(cat("slots", g), {i32, {kv[0]}});
      group.slots_input = graph.inputs().size() - 1;
      const ValueId tables = graph.add_input(cat("block_tables", g), {i32, {B, graph.dim(group.max_blocks)}});
      group.block_tables_input = graph.inputs().size() - 1;
      group_inputs.emplace_back(slots, tables);
      layout.groups.push_back(std::move(group));
    }
    ServeLayout::Group& group = layout.groups[g];
    const ValueId pool =
        graph.add_state(cat("kv", graph.states().size()),
                        {Format::of(DType::kU8), {blocks, Dim(static_cast<int64_t>(bytes))}});
    group.states.push_back(graph.states().size() - 1);
    group.state_block_bytes.push_back(bytes);
    group.block_bytes += bytes;

    Attrs cache{{"kv_type", int64_t{static_cast<int64_t>(shape.type)}},
                {"page_tokens", int64_t{shape.page_tokens}},
                {"kv_heads", int64_t{shape.kv_heads}},
                {"head_dim", int64_t{shape.head_dim}}};
    auto filled = graph.add_node(find_op("kv_append"), {pool, k, v, group_inputs[g].first}, cache);
    OAR_RETURN_IF_ERROR(filled.status());
    Attrs attrs = cache;
    attrs.set("scale", node.attrs.get_float("scale"));
    attrs.set("softcap", node.attrs.get_float("softcap"));
    attrs.set("window", window);
    auto out = graph.add_node(find_op("paged_attention"),
                              {q, (*filled)[0], group_inputs[g].second, seq_start, context_len}, attrs);
    OAR_RETURN_IF_ERROR(out.status());
    graph.replace_uses(node.outputs[0], (*out)[0]);
    dead[i] = true;
  }
  dead.resize(graph.nodes().size(), false);
  graph.remove_nodes(dead);
  graph.sort();
  return layout;
}

}  // namespace oar
