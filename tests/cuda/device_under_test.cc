// In what the programs for the two devices differ.
#include "tests/cuda/device_libraries.h"
#include "tests/cuda/device_memory.h"

#ifdef OAR_CUDA_FAKES
#include "kernels/cuda/emulation/libraries.h"
#endif

namespace oar_test {

const char* const kCudaPlugin = OAR_CUDA_PLUGIN;

#ifdef OAR_CUDA_FAKES
bool find_cublas_lt(oar::cuda::CublasLtApi* api, std::string*) {
  *api = oar::cuda::emulation::fake_cublas_lt();
  return true;
}
bool find_cudnn(oar::cuda::CudnnApi* api, std::string*) {
  *api = oar::cuda::emulation::fake_cudnn();
  return true;
}
#else
bool find_cublas_lt(oar::cuda::CublasLtApi* api, std::string* why) {
  return oar::cuda::load_cublas_lt(api, why);
}
bool find_cudnn(oar::cuda::CudnnApi* api, std::string* why) { return oar::cuda::load_cudnn(api, why); }
#endif

}  // namespace oar_test
