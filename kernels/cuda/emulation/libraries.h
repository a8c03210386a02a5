// Host fakes of NVIDIA's libraries over the emulated device's memory and streams, stricter than they are:
// what the documentation asks for is checked and answered with an error, not left to luck.
#pragma once

#include "kernels/cuda/libraries/cublas_lt.h"
#include "kernels/cuda/libraries/nccl.h"

namespace oar::cuda::emulation {

// Refuses: operands that are not whole within an allocation or not aligned to 16 bytes, leading dimensions
// below the rows or not of 16 bytes' multiples, attributes of another size or that this code does not set,
// 8-bit products in another order than transposed times plain, scales or a bias that are missing or too
// short, an algorithm that was not given or checked for these sizes, and too little workspace. Its algorithm
// asks for 1 KiB of workspace. Sums are in double.
const CublasLtApi& fake_cublas_lt();

// All ranks are of this process and its one device, and of one thread at a time. Refuses: what would wait for
// ever (a rank's call outside of a group, a group without a call of every rank), ranks that differ in what
// they call or how much, an id used twice, buffers that are not whole within an allocation.
const NcclApi& fake_nccl();

}  // namespace oar::cuda::emulation
