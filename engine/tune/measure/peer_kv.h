// Other engines' rules for a quantized KV cache, so that they stand beside ours in the instrument's table.
// For measuring alone: each is a round trip of keys and values on their way into an f32 cache, so that
// attention reads what that engine's would. That holds for every token, the newest too: these rules keep none
// in 16 bits.
//
//   llama-q8_0, llama-q4_0           ggml's blocks of 32 (quant/formats/q8_0.h, q4_0.h)
//   llama-q8_0-rot, llama-q4_0-rot   the same behind a Hadamard transform of each head: of the largest power
//                                    of two from 64 up that divides the head for keys, of blocks of 64 for
//                                    values; heads that 64 does not divide stay as they are
//   paddle-c4                        4 bits under a static scale and zero of each channel of each head:
//                                    q = clamp(rint(x * scale + zero), -8, 7), fitted to the extremes of the
//                                    very text that is measured, which flatters it
//   rtn-g32                          4 bits, groups of 32, scale max|x| / 7 in f16: no rotation, no search
//
// The rules are restated from the engines' documentation and sources, never their code.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace oar {

enum class PeerCode : uint8_t { kBlocksQ8, kBlocksQ4, kStaticChannel4, kGroup32 };

struct PeerKv {
  const char* name;
  PeerCode code;
  bool rotate = false;
  double bits = 0;  // per element; static scales are shared by all tokens and not counted
};
// None: the name is none of the above.
std::optional<PeerKv> peer_kv(std::string_view name);
std::vector<std::string> peer_kv_names();

// Extremes by channel of one layer's keys or values: f32 (2, K * D), minima then maxima.
using KvRange = Tensor;

// What attention reads of x[n], the channels of one token over all heads (n a multiple of 32). `range`: the
// extremes of these channels, for kStaticChannel4 (else null).
void peer_round_trip(PeerCode code, const float* x, int64_t n, const float* range, float* out);

// Puts the rule before every attention's keys and values. `ranges`: two per layer (keys, values) in graph
// order, for kStaticChannel4.
Status insert_peer_kv(Graph& graph, const PeerKv& rule, const std::vector<KvRange>& ranges);

// Makes each run widen `ranges`, which this fills with two per layer.
Status observe_kv(Graph& graph, std::vector<KvRange>& ranges);

}  // namespace oar
