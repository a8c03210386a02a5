// Attention without a cache on a CUDA device: padded batches and segments of packed rows
// (kernels/attention.h). Roofline: 2 (D + DV) operations a query and key that it sees.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

CudaStatus dense_attention(const DenseAttentionArgs& args, Stream stream);
CudaStatus segment_attention(const SegmentAttentionArgs& args, Stream stream);

}  // namespace oar::cuda
