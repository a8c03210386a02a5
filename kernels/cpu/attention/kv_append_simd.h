// Storing keys and values in the paged cache for one instruction set; included by attention_<isa>.cc. A
// token's key is scattered over its panel, one element (or pair) per cache line, so the cost is stores; the
// unit of work is one token and head, 2 D of them.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/kv_layout.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

OAR_INLINE f16 narrow(float x, f16) {
#if defined(__F16C__)
  return {static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#else
  return to_f16(x);
#endif
}
OAR_INLINE bf16 narrow(float x, bf16) { return to_bf16(x); }
OAR_INLINE float narrow(float x, float) { return x; }

template <class T>
OAR_INLINE void append_head(const KvLayout& layout, const float* k, const float* v, int64_t row,
                            char* k_panel, char* v_panel) {
  T* keys = reinterpret_cast<T*>(k_panel) + layout.k_index(row, 0);
  constexpr bool kPaired = DTypeOf<T>::value == DType::kBF16;
  if constexpr (kPaired) {
    for (int64_t d = 0; d < layout.head_dim; d += 2) {
      keys[d * kKvPanelTokens] = narrow(k[d], T{});
      keys[d * kKvPanelTokens + 1] = narrow(k[d + 1], T{});
    }
    if (layout.latent) return;
    T* values = reinterpret_cast<T*>(v_panel) + layout.v_index(row, 0);
    for (int64_t d = 0; d < layout.head_dim; ++d) values[2 * d] = narrow(v[d], T{});
  } else {
    for (int64_t d = 0; d < layout.head_dim; ++d) keys[d * kKvPanelTokens] = narrow(k[d], T{});
    if (layout.latent) return;
    T* values = reinterpret_cast<T*>(v_panel) + layout.v_index(row, 0);
    for (int64_t d = 0; d < layout.head_dim; ++d) values[d] = narrow(v[d], T{});
  }
}

OAR_INLINE int64_t kv_append_per(const KvAppendArgs& a) {
  // Read once, and a cache line touched for each key element or pair.
  const int64_t lines = a.shape.type == DType::kBF16 ? a.shape.head_dim / 2 : a.shape.head_dim;
  return rows_per_chunk(a.T * a.shape.kv_heads, 8 * a.shape.head_dim + 64 * lines);
}

inline void kv_append_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const KvAppendArgs*>(args);
  *out = {1, {row_chunks(a.T * a.shape.kv_heads, kv_append_per(a))}};
}

inline void kv_append_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const KvAppendArgs*>(args);
  const KvLayout layout(a.shape);
  const int64_t P = a.shape.page_tokens, K = a.shape.kv_heads, D = a.shape.head_dim;
  const int64_t per = kv_append_per(a), last = end * per < a.T * K ? end * per : a.T * K;
  for (int64_t unit = begin * per; unit < last; ++unit) {
    const int64_t t = unit / K, h = unit % K, slot = a.slots[t];
    if (slot < 0) continue;
    char* block = static_cast<char*>(a.pool) + slot / P * layout.block_bytes;
    const int64_t panel = slot % P / kKvPanelTokens, row = slot % kKvPanelTokens;
    char *k_panel = block + layout.k_panel(h, panel), *v_panel = block + layout.v_panel(h, panel);
    const float *k = a.k + t * a.ldk + h * D, *v = layout.latent ? nullptr : a.v + t * a.ldv + h * D;
    switch (a.shape.type) {
      case DType::kF16: append_head<f16>(layout, k, v, row, k_panel, v_panel); break;
      case DType::kBF16: append_head<bf16>(layout, k, v, row, k_panel, v_panel); break;
      default: append_head<float>(layout, k, v, row, k_panel, v_panel); break;
    }
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
