// The tokenizer part of a GGUF file's metadata, as plain data: the loader fills it, tokenizer_from_gguf
// checks it and builds a tokenizer. Nothing here is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace oar {

struct GgufVocab {
  static constexpr uint32_t kAbsent = 0xFFFFFFFF;  // some files write this for "no such token"

  // Values of tokenizer.ggml.token_type.
  enum TokenType : int32_t {
    kUndefined = 0,
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };

  std::string model;                 // tokenizer.ggml.model: "llama", "gpt2", "bert", "t5"
  std::string pre;                   // tokenizer.ggml.pre: "default", "llama-bpe", ...; empty when absent
  std::vector<std::string> tokens;   // tokenizer.ggml.tokens
  std::vector<float> scores;         // tokenizer.ggml.scores; empty or one per token
  std::vector<int32_t> token_types;  // tokenizer.ggml.token_type; empty or one per token
  std::vector<std::string> merges;   // tokenizer.ggml.merges: "left right"

  // tokenizer.ggml.<name>_token_id; nullopt or kAbsent when the file does not have it.
  std::optional<uint32_t> bos_id, eos_id, unk_id, sep_id, pad_id, cls_id, mask_id;
  // tokenizer.ggml.add_<name>; nullopt: the default of the tokenizer model.
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;  // tokenizer.ggml.remove_extra_whitespaces (t5)
  std::string precompiled_charsmap;              // tokenizer.ggml.precompiled_charsmap (t5), raw bytes
};

}  // namespace oar
