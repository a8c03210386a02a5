// The serve pass: attention over packed tokens becomes attention over a paged KV cache. Models are written
// without a cache; this pass gives each attention a state, an append before it, and the inputs that say where
// pages lie.
#pragma once

#include "engine/graph/graph.h"
#include "kernels/attention.h"

namespace oar {

struct ServeOptions {
  DType kv_type = DType::kBF16;
  int32_t page_tokens = 64;
  int64_t max_sequences = 64;
  int64_t max_context = 0;
};

// One state per attention layer; layers of equal window and block size share a cache group.
struct ServeLayout {
  struct Group {
    int64_t window = 0;
    size_t block_bytes = 0;      // over all layers of the group
    std::vector<size_t> states;  // indices into graph.states()
    std::vector<size_t> state_block_bytes;
    size_t slots_input = 0, block_tables_input = 0;  // indices into graph.inputs()
    SymbolId max_blocks = 0;                         // columns of the group's block tables
  };
  std::vector<Group> groups;
  size_t seq_start_input = 0, context_len_input = 0;
  SymbolId sequences = 0;  // B
};

// Fails when an attention's shapes do not suit the cache (a head size no kernel has).
Result<ServeLayout> serve(Graph& graph, const ServeOptions& options);

}  // namespace oar
