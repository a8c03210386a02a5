// Normal forms segment by segment. A segment is a starter (combining class 0) and the marks after it;
// composition can reach across a starter (Hangul, a few others), so the composing loop carries the last
// starter along.
#include "engine/text/unicode/normalize.h"

#include <algorithm>
#include <vector>

#include "engine/text/unicode/tables.h"
#include "engine/text/utf8.h"

namespace oar {
namespace t = unicode_tables;

namespace {

// Hangul syllables are arithmetic: The Unicode Standard 15.0, section 3.12.
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kNCount = kVCount * kTCount,
                   kSCount = kLCount * kNCount;

uint8_t combining_class(char32_t c) {
  return t::kCombiningClass_values[static_cast<size_t>(t::kCombiningClass_blocks[c >> 7]) * 128 + (c & 127)];
}

struct Mark {
  char32_t value;
  uint8_t combining;
};

char32_t compose(char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount)
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  if (a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0 && b > kTBase &&
      b < kTBase + kTCount)
    return a + (b - kTBase);
  const uint64_t key = (static_cast<uint64_t>(a) << 21) | b;
  const auto* end = t::kCompositions + t::kCompositionCount;
  const auto* found = std::lower_bound(t::kCompositions, end, key,
                                       [](const t::Composition& c, uint64_t k) { return c.key < k; });
  return found != end && found->key == key ? found->composed : 0;
}

class NormalizingWriter {
 public:
  NormalizingWriter(std::string& out, NormalForm form)
      : out_(out),
        compat_(form == NormalForm::kNfkc || form == NormalForm::kNfkd),
        compose_(form == NormalForm::kNfc || form == NormalForm::kNfkc) {}

  void push(char32_t c) {
    if (c >= kSBase && c < kSBase + kSCount) {
      const char32_t s = c - kSBase;
      emit(kLBase + s / kNCount);
      emit(kVBase + (s % kNCount) / kTCount);
      if (s % kTCount) emit(kTBase + s % kTCount);
      return;
    }
    const auto index =
        t::kDecompositionIndex_values[static_cast<size_t>(t::kDecompositionIndex_blocks[c >> 7]) * 128 +
                                      (c & 127)];
    const auto& r = t::kDecompositions[index];
    const uint16_t offset = compat_ ? r.compat_offset : r.canonical_offset;
    const uint16_t length = compat_ ? r.compat_length : r.canonical_length;
    if (length == 0) return emit(c);
    for (uint16_t i = 0; i < length; ++i) emit(t::kDecompositionData[offset + i]);
  }

  // Writes what is held back.
  void flush() {
    order_marks();
    if (!compose_) {
      for (const Mark& m : segment_) append_utf8(out_, m.value);
    } else if (!segment_.empty()) {
      compose_segment();
    }
    segment_.clear();
  }

 private:
  void emit(char32_t c) {
    const uint8_t combining = combining_class(c);
    if (combining == 0) {
      // A starter may compose with the starter before it when nothing stands between them, or only marks that
      // were themselves composed away.
      if (compose_ && !segment_.empty() && segment_[0].combining == 0) {
        order_marks();
        compose_marks();
        if (segment_.size() == 1) {
          if (const char32_t joined = compose(segment_[0].value, c)) {
            segment_[0].value = joined;
            return;
          }
        }
        write_segment();
      } else {
        flush();
      }
    }
    segment_.push_back({c, combining});
  }

  void order_marks() {
    const size_t first = !segment_.empty() && segment_[0].combining == 0 ? 1 : 0;
    if (segment_.size() - first < 2 || segment_.empty()) return;
    std::stable_sort(segment_.begin() + static_cast<ptrdiff_t>(first), segment_.end(),
                     [](const Mark& a, const Mark& b) { return a.combining < b.combining; });
  }

  // Joins each mark that is not blocked to the starter at segment_[0].
  void compose_marks() {
    size_t kept = 1;
    uint8_t last_class = 0;
    for (size_t i = 1; i < segment_.size(); ++i) {
      const Mark m = segment_[i];
      const bool blocked = kept > 1 && last_class >= m.combining;
      if (!blocked) {
        if (const char32_t joined = compose(segment_[0].value, m.value)) {
          segment_[0].value = joined;
          continue;
        }
      }
      last_class = m.combining;
      segment_[kept++] = m;
    }
    segment_.resize(kept);
  }

  void compose_segment() {
    if (segment_[0].combining == 0) compose_marks();
    write_segment();
  }

  void write_segment() {
    for (const Mark& m : segment_) append_utf8(out_, m.value);
    segment_.clear();
  }

  std::string& out_;
  const bool compat_, compose_;
  std::vector<Mark> segment_;
};

}  // namespace

void append_normalized(std::string& out, std::string_view text, NormalForm form) {
  NormalizingWriter writer(out, form);
  for (size_t i = 0; i < text.size();) {
    // ASCII is a starter that never decomposes; only the last of a run can meet a following mark.
    size_t run = i;
    while (run < text.size() && static_cast<unsigned char>(text[run]) < 0x80) ++run;
    if (run - i > 1) {
      writer.flush();
      out.append(text.substr(i, run - 1 - i));
      i = run - 1;
    }
    const CodePoint c = decode_utf8(text, i);
    writer.push(c.value);
    i += c.length;
  }
  writer.flush();
}

std::string normalized(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  append_normalized(out, text, form);
  return out;
}

}  // namespace oar
