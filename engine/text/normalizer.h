// The first stage of a tokenizer: text to normalized text. Each normalizer is a pure function on well-formed
// UTF-8; the names are those of tokenizer.json. Offsets into the original text are not kept: nothing
// downstream asks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/split_pattern.h"
#include "engine/text/unicode/normalize.h"

namespace oar {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Appends the normalized text to `out`. An error only when a pattern of the tokenizer is too slow for this
  // text.
  virtual Status apply(std::string_view text, std::string& out) const = 0;
};

using NormalizerPtr = std::unique_ptr<const Normalizer>;

NormalizerPtr make_unicode_normalizer(NormalForm form);
NormalizerPtr make_lowercase_normalizer();
// Removes combining marks (of any kind); does not decompose first.
NormalizerPtr make_strip_accents_normalizer();
NormalizerPtr make_strip_normalizer(bool left, bool right);
NormalizerPtr make_prepend_normalizer(std::string prefix);
NormalizerPtr make_replace_normalizer(std::string from, std::string to);  // `from` is not empty
NormalizerPtr make_replace_normalizer(SplitPattern pattern, std::string to);
NormalizerPtr make_nmt_normalizer();
NormalizerPtr make_byte_level_normalizer();

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
NormalizerPtr make_bert_normalizer(BertNormalizerOptions options);

// Applies each in turn.
NormalizerPtr make_normalizer_sequence(std::vector<NormalizerPtr> steps);

}  // namespace oar
