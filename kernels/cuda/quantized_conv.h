// Convolutions and products of 8-bit integers on a CUDA device (QuantizedConvArgs of
// kernels/quantized_conv.h), to the bits of every other kernel but for epilogues' functions. Roofline: 2 N OH
// OW M KH KW C over the peak of 8-bit tensor cores; depthwise: bytes.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/integer_conv.h"
#include "kernels/quantized_conv.h"

namespace oar::cuda {

// Pixels and filters of a block.
inline constexpr int64_t kQuantizedPixels = 64;
constexpr int64_t quantized_tile_filters(int64_t filters) {
  return filters <= kQuantizedPanel ? kQuantizedPanel : 4 * kQuantizedPanel;
}

CudaStatus quantized_conv(const QuantizedConvArgs& args, Stream stream);
// The same kernels where zero points come with a run: exact sums, whatever the order.
CudaStatus integer_conv(const IntegerConvArgs& args, Stream stream);

}  // namespace oar::cuda
