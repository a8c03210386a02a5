// The decoders of tokenizer.json, reduced to what a Decoder is built from: a function per token and rules for
// the text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/text/decoder.h"

namespace oar {

class DecoderChain {
 public:
  // (token text so far, whether the token is in first place) -> text. Bytes after ByteLevel or ByteFallback.
  using Step = std::function<std::string(std::string, bool first)>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  DecoderRules rules;
  bool fused = false;       // a Fuse or ByteLevel has joined the tokens: what follows works on the whole text
  std::string end_of_word;  // BPEDecoder's suffix; empty: none

  // Steps in use.
  static Step byte_level();
  static Step byte_fallback();
  static Step replace(std::string from, std::string to);
  static Step strip(char32_t content, size_t left, size_t right);
  static Step metaspace(std::string replacement, bool drop_at_start);
  static Step word_piece(std::string prefix, bool cleanup);
  static Step join_with_spaces();

  // What a token with this text contributes.
  Decoder::Token describe(std::string_view text, bool special) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace oar
