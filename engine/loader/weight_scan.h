// Reads every number of a checkpoint once and reports the first that is NaN or infinite: a damaged scale
// inside a mapped block, say. Loading does not read those: a model of 16 GB starts in less time than its
// bytes take to come from the disk. `oar check MODEL` asks for it; scales that lie in tensors of their own
// are read, and refused, at load (quantized_weight.h).
//
// What it is not: a check of zero scales. A block of zeros has one, in every format that is read from files.
#pragma once

#include "engine/base/log.h"
#include "engine/loader/safetensors.h"
#include "kernels/thread_pool.h"

namespace oar {

// DATA_LOSS names the tensor (the first by name), its format, the row and the block. Pages that were read
// from a mapped file are given back. CANCELLED when `progress`, told bytes of all bytes, says stop.
Status check_weights(const TensorMap& tensors, ThreadPool& pool, const Progress& progress = {});

}  // namespace oar
