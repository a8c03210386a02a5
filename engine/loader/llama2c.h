// llama2.c's first checkpoint format: seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads,
// vocab_size, seq_len), then all weights as f32, stacked over the layers, with two RoPE tables that are
// skipped. A negative vocab_size says that the classifier is not the embedding.
// https://github.com/karpathy/llama2.c/blob/master/export.py The later "ak42" versions are refused by name.
#pragma once

#include <string>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/loader/load_options.h"
#include "engine/loader/safetensors.h"

namespace oar {

struct Llama2c {
  int64_t width = 0, ffn = 0, layers = 0, heads = 0, kv_heads = 0, vocab = 0, context = 0;
  bool tied = true;   // the classifier is the embedding
  TensorMap tensors;  // by their Hugging Face names; q and k are laid out for interleaved RoPE
};

// `file` holds the whole file; tensors share its owner. DATA_LOSS when the header and the file's size
// disagree.
Result<Llama2c> parse_llama2c(const Buffer& file, const std::string& name);
Result<Llama2c> open_llama2c(const std::string& path, const LoadOptions& options = {},
                             const Progress& progress = {});

}  // namespace oar
