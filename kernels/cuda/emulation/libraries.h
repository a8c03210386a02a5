// Host fakes of NVIDIA's libraries over the emulated device's memory and streams, stricter than they are:
// what the documentation asks for is checked and answered with an error, not left to luck. While a thread
// captures, no handle is made or destroyed, and no plan is made. What was captured fails when it is replayed
// over memory that was released.
#pragma once

#include "kernels/cuda/libraries/cublas_lt.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/cuda/libraries/nccl.h"
#include "kernels/cuda/libraries/nvml.h"

namespace oar::cuda::emulation {

// Refuses operands that are not whole within an allocation or not aligned to 16 bytes, and leading dimensions
// below the rows or not of 16 bytes' multiples. Attributes must be of their size and known to our code; 8-bit
// products must be transposed times plain. Scales and a bias must be there and long enough, modes of scales
// a pair that the library has; of scales of 128, rows and outputs multiples of 4. The algorithm
// must have been given or checked for these sizes, with the workspace it asks for: 1 KiB. Sums are in double.
const CublasLtApi& fake_cublas_lt();

// All ranks are of this process and its one device, and of one thread at a time. Refuses what would wait for
// ever: a rank's call outside of a group, and a group without a call of every rank. Ranks may not differ in
// what they call or how much. An id is used once, and buffers are whole within an allocation.
const NcclApi& fake_nccl();

// Refuses attributes of another type, number or descriptor than our code sets, and what is not finalized;
// shapes that are not those of the operation; graphs out of order, or with a result that nobody reads. The
// first engine that it proposes rounds operands, the second does not. A run must bring every tensor and no
// other, whole within an allocation and aligned to 16 bytes, scalars in host memory, and the workspace: 512
// bytes. Sums are in double.
const CudnnApi& fake_cudnn();

// What the emulated device draws and does is what a test says; negative: it does not tell. A second one lies
// behind it and draws a watt more. Refuses calls before the initialization, which fails without a driver, and
// places that have no device.
inline constexpr const char *kFakePciBus = "00000000:0e:00.0", *kSecondFakePciBus = "00000000:0f:00.0";
struct FakeNvml {
  bool driver = true;
  long long percent = -1, milliwatts = -1, milliwatts_limit = -1, millijoules = -1, megahertz = -1,
            megahertz_of_memory = -1, celsius = -1;
};
NvmlApi fake_nvml(const FakeNvml& says);

}  // namespace oar::cuda::emulation
