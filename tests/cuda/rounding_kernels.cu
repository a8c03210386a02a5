// For nvcc, which goes by the name.
#include "tests/cuda/rounding_kernels.cc"
