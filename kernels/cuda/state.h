// Layers with a recurrent state on a CUDA device: causal convolutions and state scans (kernels/causal_conv.h,
// state_scan.h; blocks lie inside as these say). Position by position, so a row's bits depend on what lies
// before it and never on how a prompt is cut. Roofline: as there.
#pragma once

#include "kernels/causal_conv.h"
#include "kernels/cuda/status.h"
#include "kernels/state_scan.h"

namespace oar::cuda {

CudaStatus causal_conv(const CausalConvArgs& args, Stream stream);
// Dims of a key: a block's 227 KB of shared memory have as many rows of a warp's columns.
inline constexpr int32_t kMostKeyDims = 1816;
// cudaErrorInvalidValue: keys of more dims.
CudaStatus state_scan(const StateScanArgs& args, Stream stream);

}  // namespace oar::cuda
