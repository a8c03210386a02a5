// The way back: what bytes each token contributes to the text, and how a stream of them becomes well-formed
// UTF-8.
//
// The decoders of tokenizer.json are functions on lists of strings. Those in use treat each token by itself,
// apart from whether it is the first. So a Decoder is a table of bytes per token, with a second form for
// tokens at the start. A few rules treat the text as a whole. Decoding piecemeal and at once are the same
// code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace oar {

struct DecoderRules {
  // Which tokens take their first form.
  enum class Start {
    kFirstToken,  // the first one
    kUntilSpace,  // SentencePiece: until text has appeared or a token began with a space
    kUntilText,   // SentencePiece with remove_extra_whitespaces: until text has appeared
  };
  Start start = Start::kFirstToken;
  // Ill-formed bytes: one U+FFFD each, or one per maximal subpart.
  bool replace_each_byte = false;
  // Up to so many `strip` characters are removed at the two ends of the text.
  char32_t strip = ' ';
  size_t strip_left = 0, strip_right = 0;
  // A token that ends a word owes a space to the next one (BPE with an end-of-word suffix).
  bool space_after_word_end = false;
};

class Decoder {
 public:
  struct Token {
    std::string bytes;          // the contribution, except in first place
    std::string first;          // in first place
    bool special = false;       // left out when special tokens are skipped
    bool begins_space = false;  // kUntilSpace
    bool ends_word = false;     // space_after_word_end
    bool known = false;         // false: an id that no token has
  };
  // `describe(id)` is asked once for each id in [0, size).
  static Decoder build(int32_t size, const std::function<Token(int32_t)>& describe, DecoderRules rules);

  int32_t size() const { return static_cast<int32_t>(flags_.size()); }
  bool special(int32_t id) const { return flags_[static_cast<size_t>(id)] & kSpecial; }
  std::string_view bytes(int32_t id) const { return slice(static_cast<size_t>(id) * 2); }
  std::string_view first_bytes(int32_t id) const {
    return flags_[static_cast<size_t>(id)] & kSameFirst ? bytes(id) : slice(static_cast<size_t>(id) * 2 + 1);
  }
  const DecoderRules& rules() const { return rules_; }

 private:
  friend class DecodeStream;
  enum Flag : uint8_t { kSpecial = 1, kBeginsSpace = 2, kEndsWord = 4, kSameFirst = 8, kKnown = 16 };
  std::string_view slice(size_t i) const {
    return std::string_view(arena_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  DecoderRules rules_;
  std::string arena_;
  std::vector<uint64_t> offsets_;  // 2 * size + 1: bytes, first form
  std::vector<uint8_t> flags_;
};

// One decoding in progress. Holds at most three bytes and strip_right characters back; O(bytes of the token)
// a step.
class DecodeStream {
 public:
  // `decoder` must outlive the stream. `keep`: special tokens that are not skipped.
  DecodeStream(const Decoder& decoder, bool skip_special, std::vector<int32_t> keep = {})
      : decoder_(&decoder), skip_special_(skip_special), keep_(std::move(keep)) {
    strip_left_ = decoder.rules().strip_left;
  }
  // Appends the text that the token completes; ids that no token has contribute nothing.
  void push(int32_t id, std::string& out);
  // Appends what was held back: an incomplete code point becomes U+FFFD.
  void finish(std::string& out);
  // Forgets what was held back without writing it.
  void drop_pending();

 private:
  void append_text(std::string_view text, std::string& out);
  void append_bytes(std::string_view bytes, std::string& out);

  const Decoder* decoder_;
  bool skip_special_;
  std::vector<int32_t> keep_;
  bool first_ = true;
  bool owes_space_ = false;
  size_t strip_left_ = 0;  // characters that may still be removed
  size_t held_strip_ = 0;  // characters held at the end, which finish() drops
  std::string pending_;    // an incomplete code point
};

}  // namespace oar
