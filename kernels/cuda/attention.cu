#include "kernels/cuda/attention.h"

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/kv_store.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 128;

template <KvType kType>
OAR_DEVICE float decode(Element<kType> x) {
  if constexpr (kType == KvType::kF32) return x;
  else if constexpr (kType == KvType::kF16) return to_f32(f16{x});
  else return to_f32(bf16{x});
}

// Eight keys' dims of a token of a page of P; in f32 the second four lie P times four behind the first.
template <KvType kType>
OAR_DEVICE void load_key(const Element<kType>* p, [[maybe_unused]] int P, float (&k)[kKeyDims]) {
  if constexpr (kType == KvType::kF32) {
    const float4 a = load(reinterpret_cast<const float4*>(p)),
                 b = load(reinterpret_cast<const float4*>(p) + P);
    const float v[kKeyDims] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < kKeyDims; ++i) k[i] = v[i];
  } else {
    const uint4 u = load(reinterpret_cast<const uint4*>(p));
    const uint32_t words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < kKeyDims; ++i) {
      k[i] = decode<kType>(static_cast<uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16));
    }
  }
}

// The values of two tokens at one dim.
template <KvType kType>
OAR_DEVICE float2 load_values(const Element<kType>* p) {
  if constexpr (kType == KvType::kF32) {
    return load(reinterpret_cast<const float2*>(p));
  } else {
    const uint32_t pair = load(reinterpret_cast<const uint32_t*>(p));
    return make_float2(decode<kType>(static_cast<uint16_t>(pair)),
                       decode<kType>(static_cast<uint16_t>(pair >> 16)));
  }
}

template <KvType kType, bool kLatent>
__global__ void __launch_bounds__(kThreads) append_kernel(KvAppendArgs a) {
  wait_for_launches();
  append_rows(PlainRows<kType, kLatent>{a}, int64_t{blockIdx.x} * (kThreads / kWarp) + warp());
}

template <KvType kType, bool kLatent>
struct PagesOf16Or32Bits {
  static constexpr int kMostHeads = 8;
  static constexpr int kTogether = 2;
  static constexpr bool kScaled = false, kLatents = kLatent;
  using Page = PageOf<kType, kLatent>;
  OAR_DEVICE const void* head(const PagedAttentionArgs& a, int64_t b, int kv, int, int at) const {
    const Page page(a.shape);
    const int32_t block = a.block_tables[b * a.max_blocks + at / page.P];
    return static_cast<const Element<kType>*>(a.pool) + block * page.head(a.shape.kv_heads) + page.head(kv);
  }
  KvShape shape;
  OAR_DEVICE void key(const void* head, int, int at, int d, KvScales, float (&k)[kKeyDims]) const {
    const Page page(shape);
    load_key<kType>(static_cast<const Element<kType>*>(head) + page.key(at % page.P, d), page.P, k);
  }
  OAR_DEVICE void values(const void* head, int, int at, int d, const float2 (&)[kTogether],
                         float (&v)[kTogether]) const {
    const Page page(shape);
    const float2 pair =
        load_values<kType>(static_cast<const Element<kType>*>(head) + page.value(at % page.P, d));
    v[0] = pair.x;
    v[1] = pair.y;
  }
};

}  // namespace

template <KvType kType>
CudaStatus kv_append(const KvAppendArgs& a, Stream stream) {
  constexpr int kWarps = kThreads / kWarp;
  const int64_t warps = append_warps(a.T, a.shape.kv_heads, a.shape.head_dim);
  if (warps <= 0) return {};
  return {launch(a.shape.latent > 0 ? append_kernel<kType, true> : append_kernel<kType, false>,
                 static_cast<unsigned>((warps + kWarps - 1) / kWarps), kThreads, 0, stream, a)};
}

template <KvType kType>
uint64_t paged_attention_scratch(const PagedAttentionArgs& a) {
  return by_tensor_cores(kType, a.shape) ? tensor_attention_scratch(a) : attention_scratch(a);
}

template <KvType kType>
CudaStatus paged_attention(const PagedAttentionArgs& a, void* scratch, Stream stream) {
  if (a.T <= 0 || a.H <= 0) return {};
  using Pages = PagesOf16Or32Bits<kType, false>;
  if (a.shape.latent > 0) {
    if (a.shape.head_dim > kMaxLatentDim) return {cudaErrorInvalidValue};
    return {attend<PagesOf16Or32Bits<kType, true>, kLatentDims>(a, {a.shape}, scratch, stream)};
  }
  if (by_tensor_cores(kType, a.shape)) {
    switch (a.shape.head_dim / 32) {
      case 1: return {attend_by_tensor_cores<Bf16Cache, Bf16Steps<1>>(a, {}, scratch, stream)};
      case 2: return {attend_by_tensor_cores<Bf16Cache, Bf16Steps<2>>(a, {}, scratch, stream)};
      case 3: return {attend_by_tensor_cores<Bf16Cache, Bf16Steps<3>>(a, {}, scratch, stream)};
      default: return {attend_by_tensor_cores<Bf16Cache, Bf16Steps<4>>(a, {}, scratch, stream)};
    }
  }
  switch ((a.shape.head_dim + 127) / 128) {
    case 1: return {attend<Pages, 128>(a, {a.shape}, scratch, stream)};
    case 2: return {attend<Pages, 256>(a, {a.shape}, scratch, stream)};
    case 3:
    case 4: return {attend<Pages, 512>(a, {a.shape}, scratch, stream)};
    default: return {cudaErrorInvalidValue};
  }
}

#define OAR_KV_TYPE(type)                                                             \
  template CudaStatus kv_append<KvType::type>(const KvAppendArgs&, Stream);           \
  template uint64_t paged_attention_scratch<KvType::type>(const PagedAttentionArgs&); \
  template CudaStatus paged_attention<KvType::type>(const PagedAttentionArgs&, void*, Stream);
OAR_KV_TYPE(kF32)
OAR_KV_TYPE(kF16)
OAR_KV_TYPE(kBF16)
#undef OAR_KV_TYPE

}  // namespace oar::cuda
