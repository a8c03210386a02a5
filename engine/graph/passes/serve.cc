#include "engine/graph/passes/serve.h"

#include <algorithm>
#include <map>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"
#include "kernels/state.h"

namespace oar {

namespace {

// Finds or makes cache groups, with their inputs, and adds states to them.
class Groups {
 public:
  Groups(Graph& graph, ServeLayout& layout, const ServeOptions& options, Dim sequences)
      : graph_(graph), layout_(layout), B_(sequences) {
    blocks_ = graph.dim(graph.add_symbol("N", INT32_MAX));
    max_blocks_ = (options.max_context + options.page_tokens - 1) / options.page_tokens;
  }

  struct Inputs {
    ValueId slots, tables;
  };
  // The group of such pages: equal window and block size, as one table serves them all. Of recurrent state
  // every block is of one sequence and page, whatever its size.
  size_t find(ServeLayout::Pages pages, int64_t window, size_t bytes, const Dim& tokens) {
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const ServeLayout::Group& group = layout_.groups[g];
      const bool any_size = pages == ServeLayout::Pages::kState || pages == ServeLayout::Pages::kRows;
      if (group.pages == pages && group.window == window && (any_size || group.state_block_bytes[0] == bytes))
        return g;
    }
    const size_t g = layout_.groups.size();
    const Format i32 = Format::i32();
    ServeLayout::Group group;
    group.pages = pages;
    group.window = window;
    group.max_blocks = graph_.add_symbol(cat("M", g), pages == ServeLayout::Pages::kFirst ? 1 : max_blocks_);
    ValueId slots = kNoValue;
    if (pages != ServeLayout::Pages::kState) {
      slots = graph_.add_input(cat("slots", g), {i32, {tokens}});
      group.slots_input = graph_.inputs().size() - 1;
    }
    const ValueId tables =
        graph_.add_input(cat("block_tables", g), {i32, {B_, graph_.dim(group.max_blocks)}});
    group.block_tables_input = graph_.inputs().size() - 1;
    inputs_.push_back({slots, tables});
    layout_.groups.push_back(std::move(group));
    return g;
  }
  // A layer's pool in group g. Its extent is a symbol: as many blocks as memory allows, known only when the
  // plan's own needs are.
  ValueId add_state(size_t g, size_t bytes) {
    const bool pages = layout_.groups[g].pages < ServeLayout::Pages::kState;
    const ValueId pool =
        graph_.add_state(cat(pages ? "kv" : "state", graph_.states().size()),
                         {Format::of(DType::kU8), {blocks_, Dim(static_cast<int64_t>(bytes))}});
    ServeLayout::Group& group = layout_.groups[g];
    group.states.push_back(graph_.states().size() - 1);
    group.state_block_bytes.push_back(bytes);
    group.block_bytes += bytes;
    return pool;
  }
  const Inputs& inputs(size_t g) const { return inputs_[g]; }

 private:
  Graph& graph_;
  ServeLayout& layout_;
  Dim B_, blocks_;
  int64_t max_blocks_;
  std::vector<Inputs> inputs_;
};

// Operands of attention that follow are of served attention as well: its heads' sinks.
constexpr int64_t kSinks = 5;
// Of expanded attention: the keys, in whose place come those of served attention.
constexpr size_t kExpanded = 2;

// A layer's pages behind its append, and how attention over them is said: with its operands behind the query.
struct Kept {
  const char* op = nullptr;
  std::vector<ValueId> operands;
  Attrs attrs;
};

Result<Kept> keep_plain(Graph& graph, Groups& groups, const KvShape& shape, const Node& node,
                        int64_t window) {
  const ValueId k = node.inputs[1], v = node.inputs[2];
  const size_t bytes = kv_block_bytes(shape);
  const size_t g = groups.find(ServeLayout::Pages::kAll, window, bytes, graph.value(k).type.shape[0]);
  const ValueId pool = groups.add_state(g, bytes);
  Attrs attrs{{"kv_type", int64_t{static_cast<int64_t>(shape.type)}},
              {"page_tokens", int64_t{shape.page_tokens}},
              {"kv_heads", int64_t{shape.kv_heads}},
              {"head_dim", int64_t{shape.head_dim}}};
  if (shape.latent > 0) attrs.set("latent", int64_t{shape.latent});
  OAR_ASSIGN(const auto filled,
             graph.add_node(find_op("kv_append"), {pool, k, v, groups.inputs(g).slots}, attrs));
  return Kept{"paged_attention", {filled[0], groups.inputs(g).tables}, attrs};
}

Result<Kept> keep_quantized(Graph& graph, Groups& groups, const QuantKvShape& shape, const Node& node,
                            int64_t window) {
  const ValueId k = node.inputs[1], v = node.inputs[2];
  const Dim tokens = graph.value(k).type.shape[0];
  const size_t bytes = quant_kv_block_bytes(shape), open_bytes = kv_block_bytes(open_kv_shape(shape)),
               sink_bytes = kv_block_bytes(sink_kv_shape(shape));
  const size_t g = groups.find(ServeLayout::Pages::kAll, window, bytes, tokens);
  const ValueId pool = groups.add_state(g, bytes);
  const size_t o = groups.find(ServeLayout::Pages::kOpen, 0, open_bytes, tokens);
  const ValueId open = groups.add_state(o, open_bytes);
  const size_t f = groups.find(ServeLayout::Pages::kFirst, 0, sink_bytes, tokens);
  const ValueId sinks = groups.add_state(f, sink_bytes);
  Attrs attrs{{"key_code", int64_t{static_cast<int64_t>(shape.keys)}},
              {"value_code", int64_t{static_cast<int64_t>(shape.values)}},
              {"page_tokens", int64_t{shape.page_tokens}},
              {"kv_heads", int64_t{shape.kv_heads}},
              {"head_dim", int64_t{shape.head_dim}}};
  if (shape.latent > 0) attrs.set("latent", int64_t{shape.latent});
  OAR_ASSIGN(const auto filled, graph.add_node(find_op("quant_kv_append"),
                                               {pool, open, sinks, k, v, groups.inputs(g).slots,
                                                groups.inputs(o).slots, groups.inputs(f).slots},
                                               attrs));
  return Kept{
      "quant_paged_attention",
      {filled[0], open, sinks, groups.inputs(g).tables, groups.inputs(o).tables, groups.inputs(f).tables},
      attrs};
}

// A recurrent op behind its pools, tables and slots; its results take the place of the node's.
Status keep_state(Graph& graph, Groups& groups, const Node& node, int32_t page_tokens, ValueId seq_start,
                  ValueId context_len) {
  OAR_ASSIGN(const StateFloats floats, node.op->state(graph, node.inputs, node.attrs));
  const size_t border = state_border_bytes(floats.border);
  const size_t rows = state_rows_bytes(floats.row, page_tokens);
  const Dim tokens = graph.value(node.inputs.back()).type.shape[0];
  const size_t s = groups.find(ServeLayout::Pages::kState, 0, border, tokens);
  const ValueId borders = groups.add_state(s, border);
  const size_t r = groups.find(ServeLayout::Pages::kRows, 0, rows, tokens);
  const ValueId open = groups.add_state(r, rows);
  std::vector<ValueId> operands{
      borders,   open,       groups.inputs(s).tables, groups.inputs(r).tables, groups.inputs(r).slots,
      seq_start, context_len};
  operands.insert(operands.end(), node.inputs.begin(), node.inputs.end() - 1);
  Attrs attrs = node.attrs;
  attrs.set("page_tokens", int64_t{page_tokens});
  OAR_ASSIGN(const auto out, graph.add_node(find_op(node.op->served), std::move(operands), std::move(attrs)));
  for (size_t k = 0; k < node.outputs.size(); ++k) graph.replace_uses(node.outputs[k], out[k + 1]);
  return ok_status();
}

// Gives rows of prompts the pages that `attention` fills, where they are expanded; it then leaves them out.
bool expand_prompts(Graph& graph, const Node& attention, const Kept& pages, ValueId seq_start,
                    ValueId context_len) {
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    Node& node = graph.nodes()[i];
    if (!node.is("expanded_attention") || node.inputs[kExpanded] != attention.inputs[1]) continue;
    std::vector<ValueId>& in = node.inputs;
    const bool quantized = pages.operands.size() > 2;
    if (quantized) std::copy_n(pages.operands.begin(), 6, in.begin() + kExpanded);
    else in[kExpanded] = pages.operands[0], in[kExpanded + 3] = pages.operands[1];
    in[kExpanded + 6] = seq_start, in[kExpanded + 7] = context_len;
    for (const char* name : {"kv_type", "key_code", "page_tokens", "head_dim", "latent"})
      if (pages.attrs.has(name)) node.attrs.set(name, pages.attrs.get_int(name));
    return true;
  }
  return false;
}

}  // namespace

Result<KvFormat> kv_format(std::string_view name) {
  const auto plain = [&](DType t) { return KvFormat{false, t, {}, {}, std::string(name)}; };
  const auto quantized = [&](KvCode k, KvCode v) {
    return KvFormat{true, DType::kBF16, k, v, std::string(name)};
  };
  if (name == "f32") return plain(DType::kF32);
  if (name == "f16") return plain(DType::kF16);
  if (name == "bf16") return plain(DType::kBF16);
  if (name == "int8") return quantized(KvCode::kInt8, KvCode::kInt8);
  if (name == "fp8") return quantized(KvCode::kFp8, KvCode::kFp8);
  if (name == "k8v4") return quantized(KvCode::kInt8, KvCode::kInt4);
  if (name == "k4v3") return quantized(KvCode::kInt4Mean, KvCode::kInt3);
  if (name == "int4") return quantized(KvCode::kInt4, KvCode::kInt4);
  if (name == "int4-mean") return quantized(KvCode::kInt4Mean, KvCode::kInt4);
  return invalid_argument(
      cat("kv '", name, "' is not one of f32, bf16, f16, int8, fp8, k8v4, int4, int4-mean, k4v3"), "kv");
}

Result<ServeLayout> serve(Graph& graph, const ServeOptions& options) {
  ServeLayout layout;
  layout.sequences = graph.add_symbol("B", options.max_sequences);
  const Dim B = graph.dim(layout.sequences);
  const Format i32 = Format::i32();
  const ValueId seq_start = graph.add_input("seq_start", {i32, {B + Dim(1)}});
  layout.seq_start_input = graph.inputs().size() - 1;
  const ValueId context_len = graph.add_input("context_len", {i32, {B}});
  layout.context_len_input = graph.inputs().size() - 1;
  Groups groups(graph, layout, options, B);

  const size_t count = graph.nodes().size();
  std::vector<bool> dead(count, false);
  size_t layers = 0;             // with pages of their own
  ValueId generated = kNoValue;  // seq_start of rows of generated tokens, where others are expanded
  // By keys, values and window: later layers that attend to what one keeps already read its pages.
  std::map<std::tuple<ValueId, ValueId, int64_t>, Kept> kept;
  for (size_t i = 0; i < count; ++i) {
    const Node node = graph.nodes()[i];
    if (node.op->state != nullptr) {
      OAR_RETURN_IF_ERROR(keep_state(graph, groups, node, options.page_tokens, seq_start, context_len));
      dead[i] = true;
    }
    if (!node.is("attention")) continue;
    const DimVector& kv = graph.value(node.inputs[1]).type.shape;  // (T, K, D)
    const auto kv_heads = static_cast<int32_t>(kv[1].const_value());
    const auto head_dim = static_cast<int32_t>(kv[2].const_value());
    const auto latent = static_cast<int32_t>(node.attrs.get_int("latent"));
    const int32_t widest = latent > 0 ? kMaxLatentDim : kMaxHeadDim;
    if (head_dim % 8 != 0 || head_dim > widest || latent % 8 != 0) {
      return unimplemented(latent > 0
                               ? cat("attention layer ", layers, ": a latent of ", latent, " in keys of ",
                                     head_dim, " is no multiple of 8 in one up to ", widest)
                               : cat("attention layer ", layers, ": head size ", head_dim,
                                     " is not a multiple of 8 up to ", widest));
    }
    // A window at least as long as the context never hides anything.
    int64_t window = node.attrs.get_int("window");
    if (window >= options.max_context) window = 0;
    Kept& pages = kept[{node.inputs[1], node.inputs[2], window}];
    if (pages.op == nullptr) {
      const size_t layer = layers++;
      if (options.kv.size() > 1 && layer >= options.kv.size()) continue;  // reported below
      const KvFormat& format = options.kv[options.kv.size() > 1 ? layer : 0];
      if (format.quantized) {
        QuantKvShape shape{format.keys, format.values, options.page_tokens, kv_heads, head_dim, latent};
        if (latent > 0 && format.keys != format.values)
          return unimplemented(cat("attention layer ", layer,
                                   " keeps a latent, whose keys are its values: kv '", format.name,
                                   "' is none of f32, bf16, f16, int8, fp8, int4"));
        if (latent > 0 && format.keys == KvCode::kInt4) shape.keys = shape.values = KvCode::kInt4Mean;
        OAR_ASSIGN(pages, keep_quantized(graph, groups, shape, node, window));
      } else {
        const KvShape shape{format.type, options.page_tokens, kv_heads, head_dim, latent};
        OAR_ASSIGN(pages, keep_plain(graph, groups, shape, node, window));
      }
    }
    const bool expanded = expand_prompts(graph, node, pages, seq_start, context_len);
    if (expanded && generated == kNoValue) {
      OAR_ASSIGN(const auto starts,
                 graph.add_node(find_op("generated_rows"), {seq_start, node.inputs[0]}, {}));
      generated = starts[0];
    }
    std::vector<ValueId> operands{node.inputs[0]};
    operands.insert(operands.end(), pages.operands.begin(), pages.operands.end());
    operands.insert(operands.end(), {expanded ? generated : seq_start, context_len});
    operands.insert(operands.end(), node.inputs.begin() + kSinks, node.inputs.end());
    Attrs attrs = pages.attrs;
    attrs.set("scale", node.attrs.get_float("scale"));
    attrs.set("softcap", node.attrs.get_float("softcap"));
    attrs.set("window", window);
    if (node.attrs.get_bool("chunked")) attrs.set("chunked", int64_t{1});
    if (expanded) attrs.set("generated", int64_t{1});
    OAR_ASSIGN(const auto out, graph.add_node(find_op(pages.op), std::move(operands), std::move(attrs)));
    graph.replace_uses(node.outputs[0], out[0]);
    dead[i] = true;
  }
  if (options.kv.size() > 1 && options.kv.size() != layers) {
    return invalid_argument(
        cat("kv names ", options.kv.size(), " layers, the model keeps keys and values of ", layers,
            ": one for all, or one per layer"),
        "kv");
  }
  std::ranges::stable_partition(layout.groups, [](const ServeLayout::Group& g) {
    return g.pages == ServeLayout::Pages::kAll && g.window == 0;
  });
  dead.resize(graph.nodes().size(), false);
  graph.remove_nodes(dead);
  graph.sort();
  return layout;
}

}  // namespace oar
