// Low-rank adapters on a CUDA device (kernels/lora.h): two launches, x times A into scratch, that times B
// onto y. A block has up to 8 rows, and rows side by side that have one adapter share the loads of its
// numbers.
//
// Roofline: memory, the numbers of the adapters that are named, once for rows side by side that share one;
// many rows of one the operations, 2 rank (K + n) each.
//
// A row's sums follow from K and its own rank: over K in 32 lanes of four neighbours each, ascending; over
// the rank ascending, from what y had on. So company changes no bit.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/lora.h"

namespace oar::cuda {

enum class LoraNumbers { kF32, kBF16 };

inline constexpr int64_t kMostRank = 4096;
// cudaErrorInvalidValue: slots of more.
template <LoraNumbers kNumbers>
CudaStatus lora(const LoraArgs& args, void* scratch, Stream stream);
uint64_t lora_scratch(const LoraArgs& args);

}  // namespace oar::cuda
