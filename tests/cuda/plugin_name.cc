// The one thing in which the programs for the two devices differ.
#include "tests/cuda/device_memory.h"

namespace oar_test {
const char* const kCudaPlugin = OAR_CUDA_PLUGIN;
}  // namespace oar_test
