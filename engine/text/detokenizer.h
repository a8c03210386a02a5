// Text from tokens as they are generated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/text/decoder.h"
#include "engine/text/tokenizer.h"

namespace oar {

// One stream. What push() returns is always well-formed UTF-8: a character spread over tokens appears with
// its last byte, bytes that can no longer become a character appear as U+FFFD. All pushes and finish()
// together give Tokenizer::decode() of all ids. Each push costs the token's own bytes. Not thread-safe.
class IncrementalDetokenizer {
 public:
  // `keep`: special tokens that are part of the text all the same.
  explicit IncrementalDetokenizer(TokenizerPtr tokenizer, bool skip_special_tokens = true,
                                  std::vector<int32_t> keep = {})
      : tokenizer_(std::move(tokenizer)),
        stream_(tokenizer_->decoder(), skip_special_tokens, std::move(keep)) {}

  // The text continues these ids, which are not part of the output: with a prompt before it, a first token
  // "▁world" gives " world" and not "world". Call before the first push.
  void prime(std::span<const int32_t> prompt) {
    std::string dropped;
    for (const int32_t id : prompt) stream_.push(id, dropped);
    stream_.drop_pending();
  }

  // The text that this token completes, perhaps none.
  std::string push(int32_t id) {
    std::string out;
    stream_.push(id, out);
    return out;
  }

  // The rest: an incomplete character becomes U+FFFD. The stream is then over.
  std::string finish() {
    std::string out;
    stream_.finish(out);
    return out;
  }

 private:
  TokenizerPtr tokenizer_;
  DecodeStream stream_;
};

}  // namespace oar
