// What a GGUF file says about its model, in Hugging Face's words: tensor names and config.json keys. One
// table row per architecture and name; the models themselves are in engine/models.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/loader/gguf.h"

namespace oar {

// "blk.3.attn_q.weight" of "llama" -> "model.layers.3.self_attn.q_proj.weight". A name that the
// architecture's table does not have stays as it is. Stacked experts ("ffn_gate_exps") become
// "model.layers.N.mlp.experts.gate_proj.weight", [experts, ffn, width], whatever the architecture; their
// router "model.layers.N.mlp.gate.weight", [experts, width].
std::string hugging_face_name(std::string_view architecture, std::string_view gguf_name);

// What the file recommends for sampling ("general.sampling.*"), in generation_config.json's words; what has
// none there is named in `notices`.
Status gguf_sampling(const GgufFile& file, json::object& generation, std::vector<std::string>* notices);

// config.json's keys from "<architecture>.*". Beyond Hugging Face's:
//   rope_interleaved   true where the converter laid out q and k for RoPE over neighbouring pairs: each
//   head's
//                      rows, (2, D/2) at Hugging Face, are (D/2, 2)
//   linear_out_in      true for GPT-2: its linear weights are [out, in] here, [in, out] at Hugging Face
//   rope_scaling       may have rope_type "freq_factors" with `factors`, D/2 numbers: llama.cpp's form of the
//                      llama3 scaling, which divides each inverse frequency by its factor
//   norm_weights_are_whole     of Gemma and Qwen: weights of norms have the 1 that is added elsewhere
//   linear_value_heads_tiled   of Qwen 3.5: the first value head of every key head comes first, then the
//                              second of every one, in all that has rows or columns by value head
//   multipliers_folded         of Falcon H1: its matrices have their multipliers in them
// Instead of `A_log` there is `A`, -exp(A_log), a number a head; of heads over a latent k_b_proj and v_b_proj
// instead of kv_b_proj.
// An architecture without a row of its own keeps its GGUF name as model_type and its GGUF tensor names: it
// can be inspected, and engine/models says that it cannot be run. A key that changes the computation and is
// not read is UNIMPLEMENTED by name; names that nobody knows are appended to `notices`.
Result<json::object> gguf_config(const GgufFile& file, std::vector<std::string>* notices = nullptr);

}  // namespace oar
