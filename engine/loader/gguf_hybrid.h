// What GGUF files of hybrids, of attention over a latent and of a few others say in words of their own: lists
// by layer, sizes of states and of latents. For gguf_model.cc.
#pragma once

#include "engine/base/status.h"
#include "engine/loader/gguf.h"
#include "engine/loader/gguf_architectures.h"
#include "engine/loader/gguf_metadata_reader.h"

namespace oar::gguf {

// Whether a layer's kind is told by lists of key heads and of MLP widths, one entry a layer, 0 for none.
bool has_layer_lists(const Architecture& arch);
// Whether keys and values are a latent.
bool has_latent(const Architecture& arch);

// Whether experts are scored by sigmoids: as the file says, or where it does not, as a correction tells.
bool scores_by_sigmoid(const GgufFile& file, MetadataReader& in);

// The kinds of layers, heads of keys and width of MLPs from such lists. UNIMPLEMENTED where layers that have
// some differ among themselves.
Status read_layer_lists(const GgufFile& file, const Architecture& arch, MetadataReader& in);

// The size of a head of Mamba-2 or of the delta rule's values, and what else of "ssm.*" is no key of its own.
Status read_scan_sizes(const GgufFile& file, const Architecture& arch, MetadataReader& in);

// Ranks and head sizes of a latent, whose "attention.key_length" is that of what is cached.
Status read_latent_sizes(const GgufFile& file, MetadataReader& in);

// Queries that grow with the logarithm of their position, by how much and in which periods: Mistral's.
Status read_position_scale(const GgufFile& file, const Architecture& arch, MetadataReader& in);

// Llama 4's two widths, its chunks, and whether it normalizes heads.
Status read_llama4(const GgufFile& file, MetadataReader& in);

// YaRN's `mscale_all_dim`, of which a file has a tenth, and `mscale`, which it does not tell from it.
void read_latent_yarn(MetadataReader& in);

}  // namespace oar::gguf
