// Rotary embeddings on a CUDA device (kernels/rope.h). Roofline: memory, x and out once each.
#pragma once

#include <span>

#include "kernels/cuda/status.h"
#include "kernels/rope.h"

namespace oar::cuda {

inline constexpr int kMostRopes = 5;

CudaStatus rope(const RopeArgs& args, Stream stream);
// Up to kMostRopes in one launch; none writes what another reads or writes.
CudaStatus ropes(std::span<const RopeArgs> args, Stream stream);

}  // namespace oar::cuda
