// Counters in a device's memory that are zero between launches: blocks of one launch add to them, and the
// last one leaves zero behind (last_block.h). A stream has its own, as its launches follow one another.
#pragma once

#include <cstdint>

#include "kernels/cuda/status.h"

namespace oar::cuda {

constexpr int64_t kCounters = 1 << 15;

// A cudaError_t. Made when a stream is seen first, which may not be within a capture. Null, while launches
// are only foreseen.
int counters_of(Stream stream, uint32_t** counters);
// Before a stream ends; no launch of it may be under way.
void release_counters(Stream stream);

}  // namespace oar::cuda
