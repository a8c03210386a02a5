// Convolution and products with packed matrices on a CUDA device (ConvArgs of kernels/conv.h, panels of one):
// every group count, stride, dilation and padding. Roofline: 2 N OH OW M KH KW C / groups over the FMA peak
// of f32.
#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

// A sum runs over taps and then channels in f32, an order of its own shape alone.
CudaStatus conv(const ConvArgs& args, Stream stream);

}  // namespace oar::cuda
