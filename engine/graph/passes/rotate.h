// Rotation: orthonormal Hadamard transforms that leave a model's function as it is and spread outliers over
// many channels, so that few bits lose less. After QuaRot and SpinQuant, https://arxiv.org/abs/2404.00456,
// 2405.16406:
//
// fold_norms: each RMS norm's weight goes into the linear layers behind it; RMS(R x) = R RMS(x) then holds.
//
// rotate_residual (R1): the stream between the layers, through the embedding and every layer that reads or
// writes it. No online cost.
//
// rotate_values (R2): value heads against the output projection; in the weights, or online.
//
// rotate_queries_keys (R3): queries and keys after rope, online; cancels in q . k, leaves keys fit for a
// 4-bit cache.
//
// rotate_ffn (R4): the input of the down projection, online; its weights take the inverse.
//
// equalize_heads: R2 and R3 divide the channels of values and keys by a scale of each first, which the output
// projection and the queries undo: channels that are large by the choice of basis alone cost nothing then.
//
// One rule makes transposes unnecessary. Where activations go through x' = T(x), the rows of the weight that
// reads them go through the same T: W T^t T x = W x. A weight that writes them has its columns transformed.
//
// Whether a rotation applies is proved from the graph, not from the name of an architecture: R1 needs a set
// of values, closed under additions, norms without weight and row gathers, that only embeddings and linear
// layers read or write. A norm of its own after a block (Gemma 2) or a LayerNorm (GPT-2) breaks the proof,
// and the model keeps its basis. What was asked for and left out is told with the reason.
//
// Weights are rewritten as expressions (engine/graph/weights.h): nothing is computed here.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/graph/graph.h"
#include "engine/graph/pass.h"

namespace oar {

struct RotationOptions {
  bool residual = false;      // R1, with fold_norms
  bool values = false;        // R2
  bool queries_keys = false;  // R3
  bool ffn = false;           // R4
  // Each of these was asked for by its name: one that finds no place is refused, not left out.
  bool named = false;
  // R2 as two online transforms instead of in the weights, which then stay mapped. Layers whose weights are
  // stored in a block format do so anyway unless `reencode`.
  bool values_online = false;
  // Weights of block formats may be decoded, rotated and encoded again (a second rounding).
  bool reencode = true;
  // Scales of channels in R2 and R3 (equalize_heads).
  bool equalize = true;
  // Over how many tokens each attention layer's cache takes the mean off its keys, 0 where it keeps them
  // whole: for all layers, or one per layer. A bias of the keys weighs less in their scale where it does.
  std::vector<int64_t> key_mean_tokens = {0};
  uint64_t seed = 0x6f61720000000001;  // of R1's random signs; 0: none
  // R4: independent blocks of the largest power of two that divides the width, no larger than this; exact
  // products of Paley cores where it is below 32. Or one exact transform of the whole width.
  int64_t ffn_block = 8192;
  bool ffn_exact = false;

  // Rotations the checkpoint's weights already carry (an `oar quantize --rotate` folder): only what they need
  // online is inserted. R3 is never in the weights.
  bool stored_residual = false, stored_values = false, stored_ffn = false;

  bool any() const { return residual || values || queries_keys || ffn || stored_ffn; }
};

// "none", "all" (r1,r2,r3,r4), "kv" (r2 and r3, online: for a quantized cache over mapped weights), or a list
// such as "r1,r2", whose words are `named`; "r4-exact" is r4 by one exact transform of the whole width. The
// error names the word.
Result<RotationOptions> parse_rotation(std::string_view text);
// "r1,r2,r3,r4" of what is asked for or stored; "none".
std::string rotation_names(const RotationOptions& options);

// Goes into the keys of what is kept of rotated weights. Raise it when the same options would give others.
inline constexpr int kRotationVersion = 2;

// A rotation that was asked for and found no place: "r1", and what stands in its way.
struct LeftOut {
  std::string name, reason;
};
using LeftOutList = std::shared_ptr<std::vector<LeftOut>>;
// "r1 (the stream ...), r2 (...)"
std::string left_out_text(const std::vector<LeftOut>& left_out);

// The six passes, in order. `left_out` (may be null) receives what finds no place.
std::vector<Pass> rotation_passes(const RotationOptions& options, const LeftOutList& left_out = nullptr);

// What was applied, by the reports of these passes: the options with each rotation that found no place
// switched off, and stored_* set for those now in the weights: the record of a checkpoint written from
// named_weights(graph). UNIMPLEMENTED tells the first that was left out and had been named.
Result<RotationOptions> applied_rotation(const RotationOptions& options, std::span<const PassReport> reports,
                                         const std::vector<LeftOut>& left_out);

// Runs them on a model's graph; returns applied_rotation().
Result<RotationOptions> rotate(Graph& graph, const RotationOptions& options,
                               const LeftOutList& left_out = nullptr);

// The record in config.json, under quantization_config.rotation. Reading checks every field; writing what was
// read gives the same. A record sets stored_* and queries_keys.
json::object rotation_record(const RotationOptions& applied);
Result<RotationOptions> read_rotation_record(const json::object& record);
// A checkpoint's record (nothing rotated when config.json has none) and what was asked for on top of it.
Result<RotationOptions> stored_rotation(const json::object& config);
RotationOptions merge_rotation(const RotationOptions& stored, const RotationOptions& wanted);

namespace passes {
// Whether the proof of R1 goes through, weights of norms being folded.
bool residual_is_free(const Graph& graph, const RotationOptions& options);
Result<int> fold_norms(Graph& graph, const RotationOptions& options);
// The same of every norm that may be folded, whether R1 applies or not.
Result<int> fold_each_norm(Graph& graph, const RotationOptions& options);
Result<int> rotate_residual(Graph& graph, const RotationOptions& options);
Result<int> rotate_values(Graph& graph, const RotationOptions& options);
Result<int> rotate_queries_keys(Graph& graph, const RotationOptions& options);
Result<int> rotate_ffn(Graph& graph, const RotationOptions& options);
Result<int> equalize_heads(Graph& graph, const RotationOptions& options);
// Why a pass left a graph as it is, of one that it has been over.
std::string why_not_residual(const Graph& graph, const RotationOptions& options);
std::string why_not_heads(const Graph& graph, const RotationOptions& options);
std::string why_not_ffn(const Graph& graph, const RotationOptions& options);
}  // namespace passes

// What the passes share.
namespace rotation {

// A node of linear layers and which of its operands are weights.
bool is_linear(const Node& n);
std::vector<size_t> weight_operands(const Node& n);
// Weight matrices behind one another in the output: 1 but for several segments.
size_t output_segments(const Node& n);

// The transform as attributes of the op `hadamard`.
Attrs transform(int64_t block, uint64_t seed = 0, bool columns = false);
// A new weight computed from `w`, under the same name.
Result<ValueId> rewrite(Graph& graph, std::string_view op, std::vector<ValueId> operands, Attrs attrs);
// Remembers on a linear or embedding node what its rewritten weight is to be stored as: as the weight it was
// made of, where that format can be written, else q8_0, else f32.
void keep_format(const Graph& graph, Node& node, ValueId weight);
// Whether all weights of the node are plain floats, or may be encoded anew.
bool may_rewrite(const Graph& graph, const Node& node, const RotationOptions& options);

// The block of a transform of `n` channels: all of them where a Hadamard matrix of that order exists, else
// the largest power of two that divides n.
int64_t whole_block(int64_t n);
int64_t ffn_block(int64_t n, const RotationOptions& options);

}  // namespace rotation

}  // namespace oar
