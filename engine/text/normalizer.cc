// The simple normalizers; SentencePiece's own are in charsmap.h and sentencepiece_normalizer.h.
#include "engine/text/normalizer.h"

#include "engine/base/format.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/unicode/unicode.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

// A normalizer from a function (text, out).
template <class F>
class FunctionNormalizer final : public Normalizer {
 public:
  explicit FunctionNormalizer(F f) : f_(std::move(f)) {}
  Status apply(std::string_view text, std::string& out) const override {
    if constexpr (std::is_same_v<std::invoke_result_t<const F&, std::string_view, std::string&>, Status>) {
      return f_(text, out);
    } else {
      f_(text, out);
      return ok_status();
    }
  }

 private:
  F f_;
};

template <class F>
NormalizerPtr make(F f) {
  return std::make_unique<FunctionNormalizer<F>>(std::move(f));
}

// Calls f(code point, its bytes) along the text.
template <class F>
void for_each_code_point(std::string_view text, F&& f) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    f(c.value, text.substr(i, c.length));
    i += c.length;
  }
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the one code point whose lower case has two
    out += "i\xCC\x87";
  } else {
    append_utf8(out, simple_lowercase(c));
  }
}

// The blocks of ideographs that BERT surrounds with spaces; Japanese syllables and Hangul are not among them.
bool is_bert_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// Control, format, surrogate, private use; unassigned code points stay.
bool is_bert_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return in_categories(c, kOthers & ~category_bit(GeneralCategory::kCn));
}

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(BertNormalizerOptions options) : o_(options) {}

  Status apply(std::string_view text, std::string& out) const override {
    std::string cleaned;
    cleaned.reserve(text.size());
    for_each_code_point(text, [&](char32_t c, std::string_view bytes) {
      if (o_.clean_text) {
        if (c == 0 || c == kReplacementCharacter || is_bert_control(c)) return;
        if (is_white_space(c)) {
          cleaned += ' ';
          return;
        }
      }
      const bool spaced = o_.handle_chinese_chars && is_bert_ideograph(c);
      if (spaced) cleaned += ' ';
      cleaned += bytes;
      if (spaced) cleaned += ' ';
    });
    if (o_.strip_accents) {
      const std::string decomposed = normalized(cleaned, NormalForm::kNfd);
      cleaned.clear();
      for_each_code_point(decomposed, [&](char32_t c, std::string_view bytes) {
        if (general_category(c) != GeneralCategory::kMn) cleaned += bytes;
      });
    }
    if (!o_.lowercase) {
      out += cleaned;
      return ok_status();
    }
    for_each_code_point(cleaned, [&](char32_t c, std::string_view) { append_lowercase(out, c); });
    return ok_status();
  }

 private:
  BertNormalizerOptions o_;
};

class PatternReplace final : public Normalizer {
 public:
  PatternReplace(SplitPattern pattern, std::string to) : pattern_(std::move(pattern)), to_(std::move(to)) {}

  Status apply(std::string_view text, std::string& out) const override {
    SplitPattern::Scratch scratch;
    scratch.refill(text.size());
    SplitPattern::Match match;
    size_t copied = 0, from = 0;
    bool any = false;
    for (;;) {
      const auto found = pattern_.find(text, from, scratch, match);
      if (found == SplitPattern::Found::kBudgetSpent)
        return resource_exhausted(cat("the tokenizer's pattern \"", pattern_.source(),
                                      "\" takes too long on this text; send a shorter text"));
      if (found == SplitPattern::Found::kNone) break;
      const bool empty = match.begin == match.end;
      if (!(empty && any && match.begin == copied)) {  // no empty match right behind another match
        out.append(text.substr(copied, match.begin - copied));
        out += to_;
        copied = match.end;
        any = true;
      }
      from = match.end;
      if (empty) {
        if (from >= text.size()) break;
        from += utf8_length(text[from]);
      }
    }
    out.append(text.substr(copied));
    return ok_status();
  }

 private:
  SplitPattern pattern_;
  std::string to_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  Status apply(std::string_view text, std::string& out) const override {
    std::string current(text), next;
    for (const NormalizerPtr& step : steps_) {
      next.clear();
      OAR_RETURN_IF_ERROR(step->apply(current, next));
      current.swap(next);
    }
    out += current;
    return ok_status();
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

}  // namespace

NormalizerPtr make_unicode_normalizer(NormalForm form) {
  return make([form](std::string_view text, std::string& out) { append_normalized(out, text, form); });
}

NormalizerPtr make_lowercase_normalizer() {
  return make([](std::string_view text, std::string& out) {
    for_each_code_point(text, [&](char32_t c, std::string_view) { append_lowercase(out, c); });
  });
}

NormalizerPtr make_strip_accents_normalizer() {
  return make([](std::string_view text, std::string& out) {
    for_each_code_point(text, [&](char32_t c, std::string_view bytes) {
      if (!in_categories(c, kMarks)) out += bytes;
    });
  });
}

NormalizerPtr make_strip_normalizer(bool left, bool right) {
  return make([left, right](std::string_view text, std::string& out) {
    while (left && !text.empty()) {
      const CodePoint c = decode_utf8(text, 0);
      if (!is_white_space(c.value)) break;
      text.remove_prefix(c.length);
    }
    while (right && !text.empty()) {
      const size_t last = previous_utf8(text, text.size());
      if (!is_white_space(decode_utf8(text, last).value)) break;
      text = text.substr(0, last);
    }
    out += text;
  });
}

NormalizerPtr make_prepend_normalizer(std::string prefix) {
  return make([prefix = std::move(prefix)](std::string_view text, std::string& out) {
    if (text.empty()) return;
    out += prefix;
    out += text;
  });
}

NormalizerPtr make_replace_normalizer(std::string from, std::string to) {
  return make([from = std::move(from), to = std::move(to)](std::string_view text, std::string& out) {
    size_t copied = 0;
    for (size_t hit; (hit = text.find(from, copied)) != std::string_view::npos; copied = hit + from.size()) {
      out.append(text.substr(copied, hit - copied));
      out += to;
    }
    out.append(text.substr(copied));
  });
}

NormalizerPtr make_replace_normalizer(SplitPattern pattern, std::string to) {
  return std::make_unique<PatternReplace>(std::move(pattern), std::move(to));
}

NormalizerPtr make_nmt_normalizer() {
  return make([](std::string_view text, std::string& out) {
    for_each_code_point(text, [&](char32_t c, std::string_view bytes) {
      if ((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
          c == 0x9F)
        return;
      const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                         c == 0xFEFF || c == kReplacementCharacter;
      if (space) out += ' ';
      else out += bytes;
    });
  });
}

NormalizerPtr make_byte_level_normalizer() {
  return make([](std::string_view text, std::string& out) { out += to_byte_alphabet(text); });
}

NormalizerPtr make_bert_normalizer(BertNormalizerOptions options) {
  return std::make_unique<BertNormalizer>(options);
}

NormalizerPtr make_normalizer_sequence(std::vector<NormalizerPtr> steps) {
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

}  // namespace oar
