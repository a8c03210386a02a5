// For nvcc, which goes by the name.
#include "tests/cuda/wgmma_kernels.cc"
