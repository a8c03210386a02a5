// Text to token ids and back. A Tokenizer is built once from a model's files and then shared: immutable, safe
// for any number of threads, held as shared_ptr<const Tokenizer>.
//
//   tokenizer.json            tokenizer_from_json          (Hugging Face: BPE, Unigram, WordPiece, WordLevel)
//   vocab.txt                 tokenizer_from_vocab_txt     (BERT, ERNIE)
//   vocab.json, merges.txt    tokenizer_from_vocab_merges  (GPT-2, Qwen2: before there was a tokenizer.json)
//   tokenizer.model           tokenizer_from_sentencepiece (BPE, Unigram)
//   *.tiktoken, and some .model   tokenizer_from_tiktoken  (Llama 3 as first released, Qwen 1, Kimi K2)
//   GGUF metadata             tokenizer_from_gguf
//   llama2.c tokenizer.bin    tokenizer_from_llama2c
//
// encode() runs: added tokens -> normalizer -> added tokens in normalized text -> pre-tokenizer -> model ->
// special tokens around it. For output token by token see detokenizer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/gguf_vocab.h"
#include "engine/base/status.h"
#include "engine/text/text_span.h"

namespace oar {

class EncodeWatch;      // engine/text/encode_watch.h
struct TokenizerParts;  // engine/text/tokenizer_parts.h
class Decoder;

class Tokenizer {
 public:
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  struct EncodeOptions {
    bool add_special_tokens = true;  // BOS, EOS, [CLS] ... as the model's files say
    bool parse_special = true;       // the text of a special token in the input becomes that token
    // Ascending and apart: where a special token that lies there, even in part, stays text all the same.
    std::span<const TextSpan> plain = {};
    EncodeWatch* watch = nullptr;  // looks between the slices of a long text; borrowed
  };
  // Any bytes are accepted: ill-formed UTF-8 counts as U+FFFD. Errors: more than 2^30 bytes, or a split
  // pattern that takes too long on this text (patterns of published tokenizers never do).
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options) const;
  Result<std::vector<int32_t>> encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // Well-formed UTF-8; ids outside the vocabulary contribute nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  // No text of more bytes than this for each of its ids, special tokens around it apart; 0: nothing can be
  // said before it is tokenized, for instance where a normalizer shrinks texts.
  size_t max_token_bytes() const;
  int32_t vocab_size() const;  // one more than the largest id
  // The vocabulary's way of writing a token ("Ġhello", "▁hello", "<0x0A>"); empty for ids that no token has.
  std::string_view token_text(int32_t id) const;
  // The bytes the token contributes inside a text (" hello", "\n"), perhaps a part of a character.
  std::string_view token_bytes(int32_t id) const;
  std::optional<int32_t> token_to_id(std::string_view text) const;
  bool is_special(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  // Whether encode() with add_special_tokens begins with BOS ([CLS]), ends with EOS ([SEP]).
  bool adds_bos() const;
  bool adds_eos() const;

  const Decoder& decoder() const;

 private:
  std::unique_ptr<const TokenizerParts> parts_;
};

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

// Contents of tokenizer.json, and of tokenizer_config.json or empty.
Result<TokenizerPtr> tokenizer_from_json(std::string_view tokenizer_json,
                                         std::string_view tokenizer_config_json = {});
// Contents of vocab.json and merges.txt, and of tokenizer_config.json or empty (GPT-2's own pair needs none).
Result<TokenizerPtr> tokenizer_from_vocab_merges(std::string_view vocab_json, std::string_view merges_txt,
                                                 std::string_view tokenizer_config_json = {});
// Contents of vocab.txt, and of tokenizer_config.json or empty: WordPiece between [CLS] and [SEP].
Result<TokenizerPtr> tokenizer_from_vocab_txt(std::string_view vocab_txt,
                                              std::string_view tokenizer_config_json = {});
Result<TokenizerPtr> tokenizer_from_gguf(GgufVocab vocab);
// Bytes of a SentencePiece .model file.
Result<TokenizerPtr> tokenizer_from_sentencepiece(std::string_view model);
// Contents of a tiktoken file (Llama 3's original tokenizer.model, qwen.tiktoken, Kimi's tiktoken.model), and
// of tokenizer_config.json or empty. UNIMPLEMENTED when neither tells which encoding it is.
Result<TokenizerPtr> tokenizer_from_tiktoken(std::string_view file,
                                             std::string_view tokenizer_config_json = {});
// Whether a file is one: its first line is base64, a space and a number.
bool is_tiktoken(std::string_view file);
// Bytes of llama2.c's tokenizer.bin; the file does not say how many tokens it has, the model does.
Result<TokenizerPtr> tokenizer_from_llama2c(std::string_view file, int32_t vocab_size);

}  // namespace oar
