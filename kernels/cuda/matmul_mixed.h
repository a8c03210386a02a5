// Products behind each other whose weights are of different formats, in one launch, by a kernel that has them
// all. Each is multiplied as its format's own kernel does, so a row has the same bits.
//
// Products without tensor cores have a quarter of the blocks a multiprocessor there that their own kernels
// have, so only those come whose tiles all begin at once even so.
#pragma once

#include <algorithm>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/occupancy.h"
#include "oar_format_headers.inc"

namespace oar::cuda {

#define OAR_REGISTER(format) &formats::format::kInfo,
inline constexpr const FormatInfo* kFormatsOfProducts[] = {
#include "oar_formats.inc"
};
#undef OAR_REGISTER
// ChainKernel::kind of a format, with tensor cores or without.
template <const FormatInfo& kInfo, bool kTensor>
constexpr int kKind = static_cast<int>(std::ranges::find(kFormatsOfProducts, &kInfo) - kFormatsOfProducts) *
                          2 +
                      (kTensor ? 1 : 0);
constexpr bool is_tensor(int kind) { return kind % 2 == 1; }

// Whether it may be one of launch_mixed().
constexpr int kMixedBlocks = 2;  // of a multiprocessor, where some products are without tensor cores
constexpr bool mixes(const ChainKernel& k) {
  return k.launch != nullptr && (is_tensor(k.kind) || k.tiles <= kMixedBlocks * kMultiprocessors);
}
int launch_mixed(ProductChain& chain, Stream stream);

}  // namespace oar::cuda
