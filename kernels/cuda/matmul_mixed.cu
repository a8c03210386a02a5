#include "kernels/cuda/matmul_mixed.h"

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/cuda/matmul_formats.h"
#include "kernels/cuda/matmul_weights.h"

namespace oar::cuda {
namespace {

// A step by tensor cores, or without them.
struct MultiplyAny {
  SharedMemory shared;

  template <const FormatInfo& kInfo, bool kTensor, class Weight, class Wait>
  OAR_DEVICE void by(const ProductChain::Step& p, const float* x, const Tile& tile,
                     const ProductMatrix& matrix, const Weight& weight, const Wait& wait) const {
    if constexpr (!kTensor && !kAlwaysPacked<kInfo>) {
      multiply_general<kInfo.decode, kInfo.block_elems, kInfo.block_bytes, kInfo.head_bytes>(
          p, x, tile, matrix, shared, weight, wait);
    } else if constexpr (kTensor && kHasTensorWeights<kInfo>) {
      using Weights = TensorWeightsOf<kInfo>;
      SharedMemory its = shared;
      multiply_few<Weights, true, true>(p, x, tile, matrix, TileWarps(p.tile_a_warp), FewShared<Weights>(its),
                                        weight, wait);
    }
  }
  template <class Weight, class Wait>
  OAR_DEVICE void operator()(const ProductChain::Step& p, const float* x, const Tile& tile,
                             const ProductMatrix& matrix, const Weight& weight, const Wait& wait) const {
    switch (p.kind) {
#define OAR_REGISTER(format)                                                    \
  case kKind<formats::format::kInfo, false>:                                    \
    return by<formats::format::kInfo, false>(p, x, tile, matrix, weight, wait); \
  case kKind<formats::format::kInfo, true>:                                     \
    return by<formats::format::kInfo, true>(p, x, tile, matrix, weight, wait);
#include "oar_formats.inc"
#undef OAR_REGISTER
    }
  }
};

__global__ void __launch_bounds__(kTensorWarps* kWarp, 1) mixed_products(ProductChain c) {
  wait_for_launches();
  SharedMemory shared;
  uint32_t* const word = shared.take<uint32_t>(1);
  float* const spare = SharedMemory(shared).take<float>(kXElements / 2);
  follow_chain<true>(c, word, spare, spare, MultiplyAny{shared});
}

// Shared memory of a block of so many warps.
using BlockBytes = size_t (*)(unsigned warps);
template <const FormatInfo& kInfo>
size_t bytes_of_general(unsigned) {
  return general_bytes<kInfo.block_elems, kInfo.block_bytes, kInfo.head_bytes>();
}
template <const FormatInfo& kInfo>
constexpr BlockBytes bytes_of_tensor() {
  if constexpr (kHasTensorWeights<kInfo>) return few_bytes<TensorWeightsOf<kInfo>>;
  else return nullptr;
}
// Of each kind.
#define OAR_REGISTER(format) \
  bytes_of_general<formats::format::kInfo>, bytes_of_tensor<formats::format::kInfo>(),
constexpr BlockBytes kBytes[] = {
#include "oar_formats.inc"
};
#undef OAR_REGISTER

}  // namespace

int launch_mixed(ProductChain& c, Stream stream) {
  const std::span steps(c.steps, static_cast<size_t>(c.count));
  unsigned warps = 1;
  bool general = false;
  for (ProductChain::Step& s : steps) {
    if (s.elements > 0) continue;
    const bool tensor = is_tensor(s.kind);
    s.tile_a_warp = tensor && s.x_step != 0 && warps_of(s.K) == 1;
    if (tensor) warps = std::max(warps, warps_of(s.K));
    else general = true;
  }
  if (general) warps = kGeneralThreads / kWarp;
  size_t bytes = 0;
  for (const ProductChain::Step& s : steps)
    if (s.elements == 0) bytes = std::max(bytes, kBytes[s.kind](warps));
  const int64_t blocks = lay_chain(c, warps);
  return launch_blocks(mixed_products, c, blocks, static_cast<int>(warps) * kWarp, kLastBlockShared + bytes,
                       stream);
}

}  // namespace oar::cuda
