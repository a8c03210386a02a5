// Convolution and products with packed matrices on a CUDA device (ConvArgs of kernels/conv.h, panels of one):
// every group count, stride, dilation and padding. Roofline: 2 N OH OW M KH KW C / groups over the FMA peak
// of f32.
#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

// Pixels and filters of a block, by which its grid follows; it takes kConvStep products of a result at a
// time.
struct ConvTile {
  int64_t pixels, filters;
};
constexpr ConvTile conv_tile(int64_t pixels, int64_t filters) {
  if (filters <= 16) return {64, 16};
  return pixels <= 16 ? ConvTile{16, 64} : ConvTile{64, 64};
}
inline constexpr int64_t kConvStep = 16;

// A sum runs over taps and then channels in f32, an order of its own shape alone.
CudaStatus conv(const ConvArgs& args, Stream stream);

}  // namespace oar::cuda
