// How many blocks of a kernel a multiprocessor of an H100 has room for: arithmetic on sizes, on the host.
// Figures from the "Compute Capabilities" tables of the CUDA programming guide, 9.0.
#pragma once

#include <algorithm>
#include <cstddef>

namespace oar::cuda {

constexpr int kMultiprocessors = 132;  // of the SXM and NVL cards; the PCIe one has 114

// 0: not even one.
constexpr int blocks_of_multiprocessor(int threads, size_t shared_bytes, int registers) {
  constexpr int kMostBlocks = 32, kMostWarps = 64, kRegisters = 65536, kRegistersAtOnce = 256;
  constexpr size_t kShared = 228 << 10, kSharedOfBlock = 1 << 10, kSharedAtOnce = 128;
  const int warps = (threads + 31) / 32;
  if (warps <= 0) return 0;
  const int of_warp = (registers * 32 + kRegistersAtOnce - 1) / kRegistersAtOnce * kRegistersAtOnce;
  const size_t shared = (shared_bytes + kSharedAtOnce - 1) / kSharedAtOnce * kSharedAtOnce + kSharedOfBlock;
  const int by_registers = of_warp > 0 ? kRegisters / of_warp / warps : kMostBlocks;
  return std::min({kMostBlocks, kMostWarps / warps, by_registers, static_cast<int>(kShared / shared)});
}

}  // namespace oar::cuda
