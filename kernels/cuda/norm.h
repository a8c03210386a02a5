// RMSNorm and LayerNorm on a CUDA device: the Args of kernels/norm.h with device pointers.
//
// Roofline: memory. x (and residual) are read and out (and sum_out) written once from HBM; the second look at
// a row comes from L1 or L2. One block per row, so a decode step of few rows is bound by launch latency
// instead.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/norm.h"

namespace oar::cuda {

// Asynchronous on `stream`; the pointers must stay valid until it has run. out may be x, and sum_out may be
// residual. A row's value depends on that row and cols alone, whatever the alignment and the number of rows.
// Refuses sizes below zero (cudaErrorInvalidValue); rows or cols of 0 are nothing to do.
CudaStatus rms_norm(const RmsNormArgs& args, Stream stream);
CudaStatus layer_norm(const LayerNormArgs& args, Stream stream);

}  // namespace oar::cuda
