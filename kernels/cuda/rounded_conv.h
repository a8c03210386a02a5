// Convolutions and products of ordinary models by tensor cores (ConvArgs of kernels/conv.h, one group,
// channels together): operands are rounded to bf16, f16 or TF32, sums are f32. Roofline: 2 N OH OW M KH KW C
// over the matrix peak of the type; few pixels or filters wait for bytes of x, filters and results.
//
// A filter is its K = KH KW C values in the type, TF32 as f32, and zeros up to a multiple of 64 bytes. x is
// rounded on its way to shared memory.
#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

enum class Rounding { kBf16, kF16, kTf32 };

// Large tiles read least, once there is one for each multiprocessor whose filters are at least half there.
constexpr ConvTile rounded_conv_tile(int64_t pixels, int64_t filters) {
  if (pixels <= 16) return {16, 64};
  return pixels / 128 * ((filters + 63) / 128) >= kMultiprocessors ? ConvTile{128, 128} : ConvTile{64, 64};
}
// Of a pixel or filter that a block takes at a time.
inline constexpr int64_t kRoundedStepBytes = 64;

// A sum runs over taps and then channels, in products of 16 k (TF32: 8), whatever the tile. Groups, and x in
// planes, are refused.
template <Rounding kTo>
CudaStatus rounded_conv(const ConvArgs& args, Stream stream);

}  // namespace oar::cuda
