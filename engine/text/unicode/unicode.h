// Unicode properties of code points, from the tables that generate.py writes: general category, case mapping,
// grapheme cluster boundaries, scripts. Normal forms are in normalize.h. Not here: locale-dependent anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/text/unicode/tables.h"

namespace oar {

// UAX #44, table 12.
enum class GeneralCategory : uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
};

// A set of general categories, one bit each: category_bit(kLu) | ...
using CategorySet = uint32_t;
constexpr CategorySet category_bit(GeneralCategory c) { return CategorySet{1} << static_cast<int>(c); }
constexpr CategorySet category_range(GeneralCategory first, GeneralCategory last) {
  return (category_bit(last) << 1) - category_bit(first);
}
inline constexpr CategorySet kLetters = category_range(GeneralCategory::kLu, GeneralCategory::kLo);
inline constexpr CategorySet kMarks = category_range(GeneralCategory::kMn, GeneralCategory::kMe);
inline constexpr CategorySet kNumbers = category_range(GeneralCategory::kNd, GeneralCategory::kNo);
inline constexpr CategorySet kPunctuation = category_range(GeneralCategory::kPc, GeneralCategory::kPo);
inline constexpr CategorySet kSymbols = category_range(GeneralCategory::kSm, GeneralCategory::kSo);
inline constexpr CategorySet kSeparators = category_range(GeneralCategory::kZs, GeneralCategory::kZp);
inline constexpr CategorySet kOthers =
    category_range(GeneralCategory::kCc, GeneralCategory::kCo) | category_bit(GeneralCategory::kCn);

namespace detail {
// Code points of a block of the property table, and the block of one: equal blocks have equal properties.
inline constexpr char32_t kPropertyBlock = 128;
inline uint8_t property_block(char32_t c) { return unicode_tables::kProperties_blocks[c / kPropertyBlock]; }
// Low 5 bits the general category, bit 5 Alphabetic, bit 6 White_Space. Code points past U+10FFFF: 0.
inline uint8_t unicode_properties(char32_t c) {
  namespace t = unicode_tables;
  if (c > 0x10FFFF) return 0;
  return t::kProperties_values[property_block(c) * kPropertyBlock + c % kPropertyBlock];
}
}  // namespace detail

inline GeneralCategory general_category(char32_t c) {
  return static_cast<GeneralCategory>(detail::unicode_properties(c) & 0x1F);
}
inline bool in_categories(char32_t c, CategorySet set) {
  return (set >> (detail::unicode_properties(c) & 0x1F)) & 1;
}
inline bool is_alphabetic(char32_t c) { return detail::unicode_properties(c) & 0x20; }
inline bool is_white_space(char32_t c) { return detail::unicode_properties(c) & 0x40; }
// \w of UTS #18: Alphabetic, marks, decimal numbers, connector punctuation, join controls.
inline bool is_word(char32_t c) {
  constexpr CategorySet kWord =
      kMarks | category_bit(GeneralCategory::kNd) | category_bit(GeneralCategory::kPc);
  return is_alphabetic(c) || in_categories(c, kWord) || c == 0x200C || c == 0x200D;
}
// ASCII punctuation and symbols, or any general category P: what BERT calls punctuation.
inline bool is_bert_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  return in_categories(c, kPunctuation);
}

// Simple (one to one) lower case and case folding. U+0130 alone lower-cases to two code points, "i" and
// U+0307: use append_lowercase() where that matters.
char32_t simple_lowercase(char32_t c);
char32_t simple_fold(char32_t c);

// The ranges of a script by its long name ("Han", "Hiragana"), sorted; empty when there is no such script.
std::span<const unicode_tables::CodePointRange> script_ranges(std::string_view name);

// Length in bytes of the extended grapheme cluster (UAX #29) at the start of well-formed, non-empty text.
size_t grapheme_length(std::string_view text);

// "15.0.0"
std::string_view unicode_version();

}  // namespace oar
