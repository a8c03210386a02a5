// What q4_k and q5_k share: 256 elements in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum,
// packed into 12 bytes. Products of an f16 scale, a 6-bit scale and a code of at most 5 bits have no more
// than 22 significant bits. So a decoded element is rounded once, whatever the compiler contracts.
#pragma once

#include "quant/dtype.h"

namespace oar::formats {

inline constexpr int kSuperGroup = 256;

struct ScaleMin {
  int scale, min;
};

// Groups 0-3 lie in the low six bits of bytes 0-3 (scales) and 4-7 (minima). Groups 4-7 have their low four
// bits in bytes 8-11: the scale in the low nibble, the minimum in the high. Their top two are in the spare
// bits of bytes 0-7.
inline OAR_HD ScaleMin unpack_scale_min(const uint8_t* packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  return {(packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4,
          (packed[group + 4] >> 4) | (packed[group] >> 6) << 4};
}

}  // namespace oar::formats
