// Weights that tensor cores multiply: how each of these formats lies on a device.
#pragma once

#include <type_traits>

#include "kernels/cuda/bf16_weights.h"
#include "kernels/cuda/block_weights.h"
#include "kernels/cuda/code_weights.h"
#include "oar_format_headers.inc"

namespace oar::cuda {

template <const FormatInfo& kInfo>
struct TensorWeights {
  using Type = void;  // none
};
#define OAR_WEIGHTS(format, ...)                 \
  template <>                                    \
  struct TensorWeights<formats::format::kInfo> { \
    using Type = __VA_ARGS__;                    \
  };
OAR_WEIGHTS(bf16, Bf16Rows<true>)
OAR_WEIGHTS(q4_0, Codes<Code::kInt4, 32>)
OAR_WEIGHTS(i4_g64, Codes<Code::kInt4, 64>)
OAR_WEIGHTS(i4_g128, Codes<Code::kInt4, 128>)
OAR_WEIGHTS(i4_s8_g32, Codes<Code::kInt4, 32, Scale::kF16, true>)
OAR_WEIGHTS(q8_0, Codes<Code::kInt8, 32>)
OAR_WEIGHTS(i8_g64, Codes<Code::kInt8, 64>)
OAR_WEIGHTS(i8_g128, Codes<Code::kInt8, 128>)
OAR_WEIGHTS(i8_channel, Codes<Code::kInt8, 0, Scale::kF32, true>)
OAR_WEIGHTS(e4m3_channel, Codes<Code::kE4m3, 0, Scale::kF32, true>)
OAR_WEIGHTS(e4m3_g128, Codes<Code::kE4m3, 128, Scale::kF32>)
OAR_WEIGHTS(q4_1, Blocks<4, 0, 0, 32, Factor::kF16Pair>)
OAR_WEIGHTS(q5_0, Blocks<4, 1, 16, 32, Factor::kF16>)
OAR_WEIGHTS(q5_1, Blocks<4, 1, 0, 32, Factor::kF16Pair>)
OAR_WEIGHTS(q2_k, Blocks<2, 0, 0, 16, Factor::kNibblePair>)
OAR_WEIGHTS(q3_k, Blocks<2, 1, 4, 16, Factor::kInteger>)
OAR_WEIGHTS(q4_k, Blocks<4, 0, 0, 32, Factor::kBytePair>)
OAR_WEIGHTS(q5_k, Blocks<4, 1, 0, 32, Factor::kBytePair>)
OAR_WEIGHTS(q6_k, Blocks<4, 2, 32, 16, Factor::kInteger>)
OAR_WEIGHTS(mxfp4, Blocks<4, 0, kE2m1, 32, Factor::kPower>)
#undef OAR_WEIGHTS

template <const FormatInfo& kInfo>
using TensorWeightsOf = typename TensorWeights<kInfo>::Type;
template <const FormatInfo& kInfo>
constexpr bool kHasTensorWeights = !std::is_void_v<TensorWeightsOf<kInfo>>;
// Whether they multiply all of a format's weights: those are packed whose blocks cannot make another K.
template <const FormatInfo& kInfo>
constexpr bool kAlwaysPacked = kHasTensorWeights<kInfo>&& packs(kInfo.block_elems);

}  // namespace oar::cuda
