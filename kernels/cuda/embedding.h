// Rows by index on a CUDA device: embeddings of any storage format and gathers (kernels/embedding.h).
// Roofline: memory, the rows that are read and written.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/embedding.h"

namespace oar::cuda {

CudaStatus gather_rows(const GatherRowsArgs& args, Stream stream);

}  // namespace oar::cuda
