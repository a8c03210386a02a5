// Drawing tokens on a CUDA device (kernels/sample.h). A block per row, up to kSampleBlocks at a time. Every
// decision is made of sums of whole numbers, so the draw is the host's to the bit. Roofline: the rows over
// memory bandwidth; a row that is not greedy is read several times, from L2.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/sample.h"

namespace oar::cuda {

inline constexpr int64_t kSampleBlocks = 64;

uint64_t sample_scratch(const SampleArgs& args);
CudaStatus sample(const SampleArgs& args, void* scratch, Stream stream);
CudaStatus feed_tokens(const FeedTokensArgs& args, Stream stream);

}  // namespace oar::cuda
