// Counter-based random numbers: Philox4x32-10,
// https://www.thesalmons.org/john/random123/papers/random123sc11.pdf. The n-th number of a stream is a pure
// function of (seed, n). So a token's draw depends on its position alone, not on its batch nor on how often
// its sequence was preempted.
#pragma once

#include <array>
#include <cstdint>

namespace oar {

// Four 32-bit words for a 128-bit counter and a 64-bit key.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return c;
}

// Uniform in [0, 2^64).
inline uint64_t uniform_bits(uint64_t seed, uint64_t n) {
  const auto r = philox4x32({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 0},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<uint64_t>(r[0]) << 32 | r[1];
}

// Uniform in [0, 1) with 53 bits.
inline double uniform(uint64_t seed, uint64_t n) {
  return static_cast<double>(uniform_bits(seed, n) >> 11) * 0x1p-53;
}

}  // namespace oar
