// Packed repeated integers of a protobuf message; WireReader (engine/base) reads everything else.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace oar::paddle {

// Appends the varints that fill `bytes`. False when the last one is cut off or one is longer than ten bytes.
inline bool unpack_varints(std::string_view bytes, std::vector<int64_t>& out) {
  uint64_t value = 0;
  int shift = 0;
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    if (shift >= 70) return false;
    if (shift < 64) value |= static_cast<uint64_t>(b & 0x7F) << shift;
    shift += 7;
    if (b & 0x80) continue;
    out.push_back(static_cast<int64_t>(value));
    value = 0;
    shift = 0;
  }
  return shift == 0;
}

}  // namespace oar::paddle
