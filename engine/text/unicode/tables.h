// Declarations of the generated Unicode tables. Private to engine/text/unicode: everybody else includes
// unicode.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oar::unicode_tables {

// Offsets and lengths into kDecompositionData; a canonical length of 0 means compatibility only.
struct DecompositionRecord {
  uint16_t canonical_offset, canonical_length, compat_offset, compat_length;
};
// key = first << 21 | second; sorted by key.
struct Composition {
  uint64_t key;
  char32_t composed;
};
struct CodePointRange {
  char32_t first, last;
};
struct ScriptEntry {
  const char* name;
  uint32_t offset, count;  // in kScriptRanges
};

// Two-stage tables: X_values[X_blocks[c / 128] * 128 + c % 128].
extern const char kVersion[];
extern const size_t kCompositionCount;
extern const size_t kScriptCount;
extern const size_t kFoldDeltaCount;
extern const uint8_t kProperties_blocks[], kProperties_values[];
extern const uint8_t kCombiningClass_blocks[], kCombiningClass_values[];
extern const uint8_t kGraphemeBreak_blocks[], kGraphemeBreak_values[];
extern const uint8_t kDecompositionIndex_blocks[];
extern const uint16_t kDecompositionIndex_values[];
extern const DecompositionRecord kDecompositions[];
extern const char32_t kDecompositionData[];
extern const Composition kCompositions[];
extern const uint8_t kLowercase_blocks[], kLowercase_values[];
extern const int32_t kLowercase_deltas[];
extern const uint8_t kFold_blocks[], kFold_values[];
extern const int32_t kFold_deltas[];
extern const CodePointRange kScriptRanges[];
extern const ScriptEntry kScripts[];

}  // namespace oar::unicode_tables
