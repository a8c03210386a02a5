// Layers with a recurrent state on a CUDA device: causal convolutions and state scans (kernels/causal_conv.h,
// state_scan.h; blocks lie inside as these say). Position by position, so a row's bits depend on what lies
// before it and never on how a prompt is cut. Roofline: as there.
#pragma once

#include "kernels/causal_conv.h"
#include "kernels/cuda/status.h"
#include "kernels/state_scan.h"

namespace oar::cuda {

CudaStatus causal_conv(const CausalConvArgs& args, Stream stream);
// cudaErrorInvalidValue: keys of more dims than a block's shared memory has columns for, 1,816.
CudaStatus state_scan(const StateScanArgs& args, Stream stream);

}  // namespace oar::cuda
