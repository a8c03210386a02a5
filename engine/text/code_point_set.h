// Sets of code points: built once by set algebra on sorted ranges, then asked for membership through a
// two-stage bitmap. Equal blocks of 256 code points are stored once: \p{L} takes about 20 KiB.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/text/unicode/unicode.h"

namespace oar {

// Sorted, disjoint, non-adjacent ranges. A value type for building; lookups go through CodePointSet.
class CodePointRanges {
 public:
  using Range = unicode_tables::CodePointRange;

  CodePointRanges() = default;
  CodePointRanges(char32_t first, char32_t last) : ranges_{{first, last}} {}
  static CodePointRanges of_categories(CategorySet set);
  static CodePointRanges of_white_space();
  static CodePointRanges of_alphabetic();
  static CodePointRanges of_word();                         // \w
  static CodePointRanges of_script(std::string_view name);  // empty when unknown
  static CodePointRanges of(std::vector<Range> ranges);     // in any order
  static CodePointRanges all() { return {0, 0x10FFFF}; }

  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }

  CodePointRanges united(const CodePointRanges& other) const;
  CodePointRanges intersected(const CodePointRanges& other) const;
  CodePointRanges complement() const;
  // Adds everything with the same simple case folding as a member.
  CodePointRanges case_closed() const;

 private:
  template <class Predicate>
  static CodePointRanges where(Predicate&& wanted);  // wanted(property byte)
  void append(char32_t first, char32_t last);
  std::vector<Range> ranges_;
};

class CodePointSet {
 public:
  explicit CodePointSet(const CodePointRanges& ranges);

  bool contains(char32_t c) const {
    if (c < 128) return (ascii_[c >> 6] >> (c & 63)) & 1;
    if (c > 0x10FFFF) return false;
    return (bits_[static_cast<size_t>(blocks_[c >> 8]) * 4 + ((c >> 6) & 3)] >> (c & 63)) & 1;
  }
  bool contains_ascii(unsigned char c) const { return (ascii_[c >> 6] >> (c & 63)) & 1; }  // c < 128

 private:
  std::array<uint64_t, 2> ascii_{};
  std::array<uint16_t, 0x1100> blocks_{};  // c / 256 -> block
  std::vector<uint64_t> bits_;             // 4 words per block
};

}  // namespace oar
