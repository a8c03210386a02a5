// How numbers of keys and values come into pages: those that attention reads in 16 or 32 bits, and the open
// pages and sinks of a quantized cache.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/kv_quant.h"

namespace oar::cuda {

template <KvType kType>
using Element = std::conditional_t<kType == KvType::kF32, float, uint16_t>;

template <KvType kType>
OAR_DEVICE Element<kType> encode(float x) {
  if constexpr (kType == KvType::kF32) return x;
  else if constexpr (kType == KvType::kF16) return to_f16(x).bits;
  else return to_bf16(x).bits;
}
// Dim d of head h of token t, its key and its value, from a row to its page.
template <KvType kType, bool kLatent>
struct PlainRows {
  KvAppendArgs a;
  OAR_DEVICE void store(int64_t t, int h, int d) const {
    const int slot = a.slots[t];
    if (slot < 0) return;
    const CachePage<kLatent> page(a.shape);
    const int p = slot % page.P;
    auto* to =
        static_cast<Element<kType>*>(a.pool) + slot / page.P * page.head(a.shape.kv_heads) + page.head(h);
    to[page.key(p, d)] = encode<kType>(a.k[t * a.ldk + h * page.D + d]);
    if constexpr (!kLatent) to[page.value(p, d)] = encode<kType>(a.v[t * a.ldv + h * page.D + d]);
  }
};

template <bool kLatent>
struct OpenRows {
  QuantKvAppendArgs a;
  OAR_DEVICE void store(int64_t t, int h, int d) const {
    to_pages(a.open, a.shape.page_tokens, a.open_slots[t], t, h, d);
    to_pages(a.sinks, kKvSinkTokens, a.sink_slots[t], t, h, d);
  }

 private:
  // A pool of bf16 pages of `tokens` tokens each, of which a slot counts those of a page (kv_quant.h).
  OAR_DEVICE void to_pages(void* pool, int tokens, int slot, int64_t t, int h, int d) const {
    const int offset = slot % a.shape.page_tokens;
    if (slot < 0 || offset >= tokens) return;
    const CachePage<kLatent> page({DType::kBF16, tokens, a.shape.kv_heads, a.shape.head_dim});
    auto* to = static_cast<uint16_t*>(pool) + slot / a.shape.page_tokens * page.head(a.shape.kv_heads) +
               page.head(h);
    to[page.key(offset, d)] = to_bf16(a.k[t * a.ldk + h * page.D + d]).bits;
    if constexpr (!kLatent) to[page.value(offset, d)] = to_bf16(a.v[t * a.ldv + h * page.D + d]).bits;
  }
};

}  // namespace oar::cuda
