// The largest magnitude of a block of activations, for those that quantize blocks under one scale.
#pragma once

#include <cstdint>
#include <cstring>

namespace oar {
namespace {  // compiled with the flags of every instruction set

// Of n floats. An infinity or a NaN when there is one: magnitudes are compared as integers, which order
// numbers, infinities and NaNs alike.
inline float block_absmax(const float* v, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, v + i, 4);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  float absmax;
  std::memcpy(&absmax, &most, sizeof absmax);
  return absmax;
}

// Below this a block counts as zero: the reciprocal of its scale would overflow.
inline constexpr float kLeastAbsmax = 1e-30f;

}  // namespace
}  // namespace oar
