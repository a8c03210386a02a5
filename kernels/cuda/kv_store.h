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
template <KvType kType, bool kLatent>
using PageOf = CachePage<kLatent, kType == KvType::kF32 ? kKeyDims / 2 : kKeyDims>;

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
  OAR_DEVICE int slot(int64_t t) const { return a.slots[t]; }
  OAR_DEVICE void store(int64_t t, int h, int d) const {
    const int slot = a.slots[t];
    if (slot < 0) return;
    const PageOf<kType, kLatent> page(a.shape);
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
  OAR_DEVICE int slot(int64_t t) const { return a.open_slots[t]; }
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

// A token's 16 bytes of a key, and each of its values, lie beside the next token's: two tokens share sectors
// (kv_pages.h). Where rows t and t + 1 have such a pair, whoever has row t stores both.
template <class Rows>
OAR_DEVICE bool is_pair(const Rows& rows, int64_t t) {
  if (t < 0 || t + 1 >= rows.a.T) return false;
  const int slot = rows.slot(t);
  return slot >= 0 && slot % 2 == 0 && rows.slot(t + 1) == slot + 1;
}
// How many rows, from t on, whoever has row t stores: 0, where they come with row t - 1.
template <class Rows>
OAR_DEVICE int rows_together(const Rows& rows, int64_t t) {
  return is_pair(rows, t - 1) ? 0 : is_pair(rows, t) ? 2 : 1;
}
// Dims [first, end) of head h of `count` rows from t on, by a warp, of which each row has a part.
template <class Rows>
OAR_DEVICE void store_rows(const Rows& rows, int64_t t, int count, int h, int first, int end) {
  const int lanes = count == 2 ? kWarp / 2 : kWarp;  // of a row
  for (int d = first + (lane() & (lanes - 1)); d < end; d += lanes) rows.store(t + (lane() >= lanes), h, d);
}

// A warp for up to 32 dims of a head of a row: of warp `item`.
template <class Rows>
OAR_DEVICE void append_rows(const Rows& rows, int64_t item) {
  const int D = rows.a.shape.head_dim, K = rows.a.shape.kv_heads, parts = (D + kWarp - 1) / kWarp;
  const int64_t t = item / (K * parts);
  if (t >= rows.a.T) return;
  const int rest = static_cast<int>(item - t * (K * parts)), first = rest % parts * kWarp;
  const int count = rows_together(rows, t);
  if (count > 0) store_rows(rows, t, count, rest / parts, first, min(D, first + kWarp));
}
inline int64_t append_warps(int64_t T, int64_t K, int64_t D) { return T * K * ((D + kWarp - 1) / kWarp); }

}  // namespace oar::cuda
