// Checkpoint: a model on disk as every other room sees it, whatever the file kind: a Hugging Face config,
// tensors by their Hugging Face names, and the tokenizer's sources. Nothing is interpreted here beyond
// renaming: engine/models reads the config and checks shapes, engine/text parses the tokenizer. Quantized
// checkpoints come out as tensors in our storage formats (quantization_config.h).
//
// Accepted: a folder in the Hugging Face layout (config.json with model.safetensors, or with
// model.safetensors.index.json and its shards); a folder whose only model is one .gguf file; a .gguf file, or
// one part of a split one; a .safetensors file, with config.json and tokenizer beside it, if any; a llama2.c
// .bin file, with tokenizer.bin or tok<vocab>.bin beside it, if any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/loader/load_options.h"
#include "engine/loader/safetensors.h"
#include "engine/loader/tokenizer_files.h"

namespace oar {

struct Checkpoint {
  std::string source_path;
  std::string kind;  // "safetensors", "gguf", "llama2c"

  // config.json's keys. Made from the metadata for GGUF (gguf_model.h lists our additions) and from the
  // header for llama2.c. Empty for a lone .safetensors file without a config.json.
  json::object config;

  // Hugging Face names: "model.layers.0.self_attn.q_proj.weight", "transformer.h.0.ln_1.weight". Files of a
  // bare base model, without the prefix, get it here. Stacked experts: see gguf_model.h.
  TensorMap tensors;
  // Of heads that draft tokens, apart from the model's: nothing runs them, and `oar quantize` keeps them.
  TensorMap drafts;

  TokenizerFiles tokenizer;
  uint64_t bytes = 0;  // of all tensors

  // What the user should know though it is no error: weights kept in a wider type than stored, say.
  std::vector<std::string> notices;
};

// `progress` is told bytes read of bytes to read; a mapped file counts as read at once. NOT_FOUND and
// INVALID_ARGUMENT say what is accepted and what was found; DATA_LOSS, which file is damaged and where.
Result<Checkpoint> load_checkpoint(const std::string& path, const LoadOptions& options = {},
                                   const Progress& progress = {});

}  // namespace oar
