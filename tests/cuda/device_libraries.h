// NVIDIA's libraries for the device that this program tests: the real ones, or the emulated device's fakes.
#pragma once

#include "kernels/cuda/libraries/cublas_lt.h"
#include "kernels/cuda/libraries/cudnn.h"

namespace oar_test {

// False: it is not there; *why says so.
bool find_cublas_lt(oar::cuda::CublasLtApi* api, std::string* why);
bool find_cudnn(oar::cuda::CudnnApi* api, std::string* why);

}  // namespace oar_test
