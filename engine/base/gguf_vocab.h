// GgufVocab: the tokenizer a GGUF file carries, as plain data. engine/loader fills it from the file's
// metadata, engine/text makes a tokenizer of it; neither includes the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace oar {

// Values of GgufVocab::types.
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // special: matched before tokenization, not printed
  kUserDefined = 4,  // added: matched before tokenization, printed
  kUnused = 5,
  kByte = 6,  // "<0xAB>"
};

struct GgufVocab {
  // tokenizer.ggml.model: "llama" (SentencePiece BPE), "gpt2" (byte-level BPE), "bert", "t5", ...
  std::string model;
  // tokenizer.ggml.pre: which pre-tokenizer ("llama-bpe", "qwen2", "gpt-2"); may be empty.
  std::string pre;

  std::vector<std::string> tokens;  // index = id; bytes as stored, not always UTF-8
  std::vector<float> scores;        // empty, or one per token
  std::vector<int32_t> types;       // empty, or one GgufTokenType per token; the file may hold other numbers
  std::vector<std::string> merges;  // "left right", best first; byte-level BPE only

  // Absent when the file has no such key, says 0xFFFFFFFF, or names an id outside `tokens`.
  std::optional<uint32_t> bos_id, eos_id, eot_id, eom_id, unknown_id, separator_id, padding_id, cls_id,
      mask_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;

  std::string precompiled_charsmap;  // SentencePiece normalizer bytes (unigram models); may be empty
  std::string chat_template;         // Jinja source; may be empty
};

}  // namespace oar
