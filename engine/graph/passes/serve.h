// The serve pass: attention over packed tokens becomes attention over a paged KV cache, and ops with a
// recurrent state (OpDef::state) become those that go on from it. Models are written without a cache; this
// pass gives each attention a state, an append before it, and the inputs that say where pages lie, and each
// recurrent op its borders and open rows (kernels/state.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/graph/graph.h"
#include "kernels/attention.h"
#include "kernels/kv_quant.h"

namespace oar {

// How a layer's keys and values are kept.
struct KvFormat {
  bool quantized = false;
  DType type = DType::kBF16;                            // of an unquantized cache: f32, f16 or bf16
  KvCode keys = KvCode::kInt8, values = KvCode::kInt8;  // of a quantized one
  std::string name = "bf16";
};
// "f32", "f16", "bf16", "int8", "fp8", "k8v4", "int4", "int4-mean", "k4v3"; INVALID_ARGUMENT (field "kv")
// lists them.
Result<KvFormat> kv_format(std::string_view name);

struct ServeOptions {
  // One for all attention layers, or one per layer that keeps keys and values, in the graph's order.
  std::vector<KvFormat> kv = {KvFormat{}};
  int32_t page_tokens = 64;
  int64_t max_sequences = 64;
  int64_t max_context = 0;
};

// One state per attention layer, but layers that attend to the same keys and values share it; layers of equal
// window and block size share a cache group. A quantized layer
// has two states more, its open and its first page in 16 bits, in groups that all quantized layers share. A
// recurrent op has two, its borders and its rows, in groups that all of them share, whatever their sizes.
// Groups that hold whole contexts come first.
struct ServeLayout {
  enum class Pages : uint8_t { kAll, kOpen, kFirst, kState, kRows };  // as CacheGroup
  struct Group {
    Pages pages = Pages::kAll;
    int64_t window = 0;
    size_t block_bytes = 0;      // over all layers of the group
    std::vector<size_t> states;  // indices into graph.states()
    std::vector<size_t> state_block_bytes;
    std::optional<size_t> slots_input;  // index into graph.inputs(); none of kState
    size_t block_tables_input = 0;
    SymbolId max_blocks = 0;  // columns of the group's block tables
  };
  std::vector<Group> groups;
  size_t seq_start_input = 0, context_len_input = 0;
  SymbolId sequences = 0;        // B
  bool holds_contexts() const {  // the first group, if any does
    return !groups.empty() && groups[0].pages == Pages::kAll && groups[0].window == 0;
  }
  bool has_states() const {
    for (const Group& g : groups)
      if (g.pages == Pages::kState) return true;
    return false;
  }
};

// Fails when an attention's shapes do not suit the cache (a head size no kernel has).
Result<ServeLayout> serve(Graph& graph, const ServeOptions& options);

}  // namespace oar
