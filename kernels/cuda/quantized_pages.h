// What a query sees of a quantized cache (kernels/kv_quant.h), as attention_kernel.h asks: quantized pages
// are QuantKvLayout's, open and sink pages lie as kv_pages.h says.
#pragma once

#include "kernels/cuda/attention_kernel.h"
#include "kernels/kv_quant.h"

namespace oar::cuda {

OAR_DEVICE float f16_at(const char* p, int64_t i) {
  return to_f32(load(reinterpret_cast<const f16*>(p) + i));
}

template <bool kLatent>
struct QuantizedPages {
  using Page = CachePage<kLatent>;
  static constexpr int kMostHeads = 4;  // decoding takes registers
  static constexpr int kTogether = 4;
  static constexpr bool kScaled = true, kLatents = kLatent;
  const void *pool, *open, *sinks;
  const int32_t *open_tables, *sink_tables;
  int64_t open_max_blocks, sink_max_blocks;
  QuantKvLayout layout;
  int P, D, K;
  KvCode keys, values_code;

  // A query at pos sees the token at `at` in 16 bits.
  OAR_DEVICE bool in_16_bits(int pos, int at) const { return at < kKvSinkTokens || at / P == pos / P; }
  OAR_DEVICE Page page_of(int pos, int at) const {
    return Page({DType::kBF16, at / P == pos / P ? P : kKvSinkTokens, K, D});
  }

  OAR_DEVICE const void* head(const PagedAttentionArgs& a, int64_t b, int kv, int pos, int at) const {
    if (!in_16_bits(pos, at)) {
      const int32_t block = a.block_tables[b * a.max_blocks + at / P];
      return static_cast<const char*>(pool) + block * layout.block_bytes + kv * layout.head_bytes;
    }
    const bool own = at / P == pos / P;
    const int32_t block = own ? open_tables[b * open_max_blocks + at / P] : sink_tables[b * sink_max_blocks];
    const Page page = page_of(pos, at);
    return static_cast<const uint16_t*>(own ? open : sinks) + block * page.head(K) + page.head(kv);
  }

  OAR_DEVICE KvScales scales(const void* head, int pos, int at) const {
    KvScales s = {};
    if (in_16_bits(pos, at)) return s;
    const auto* bytes = static_cast<const char*>(head);
    const int p = at % P;
    s.scale = f16_at(bytes + layout.key_scales, p);
    if (keys == KvCode::kInt4Mean) s.minimum = kv_mean_minimum(s.scale);
    if (layout.has_key_minima) s.minimum = f16_at(bytes + layout.key_minima, p);
    if constexpr (kLatent) {
      s.value = make_float2(s.scale, s.minimum);
    } else {
      if (layout.mean) s.mean = load(reinterpret_cast<const float*>(bytes + layout.mu_scale));
      s.value.x = f16_at(bytes + layout.value_scales, p);
      if (layout.value_nibbles) s.value.y = f16_at(bytes + layout.value_minima, p);
    }
    return s;
  }

  OAR_DEVICE void key(const void* head, int pos, int at, int d, const KvScales& s,
                      float (&k)[kKeyDims]) const {
    const int p = at % P;
    if (in_16_bits(pos, at)) {
      const uint4 u = load(
          reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(head) + page_of(pos, at).key(p, d)));
      const uint32_t words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
      for (int i = 0; i < kKeyDims; ++i) {
        k[i] = i % 2 == 0 ? low_bf16(words[i / 2]) : high_bf16(words[i / 2]);
      }
      return;
    }
    const auto* bytes = static_cast<const char*>(head);
    const uint32_t low = load(reinterpret_cast<const uint32_t*>(bytes + layout.key(p, d).byte));
    const uint32_t high =
        layout.key_nibbles ? 0 : load(reinterpret_cast<const uint32_t*>(bytes + layout.key(p, d + 4).byte));
#pragma unroll
    for (int i = 0; i < kKeyDims; ++i) {
      const uint32_t code = layout.key_nibbles ? low >> (8 * (i % 4) + i / 4 * 4) & 15u
                                               : (i < 4 ? low : high) >> 8 * (i % 4) & 255u;
      k[i] = number_of(keys, code ^ (keys == KvCode::kInt8 ? 0x80u : 0u), s.scale, s.minimum);
      if (!kLatent && layout.mean)
        k[i] += s.mean * static_cast<float>(static_cast<int8_t>(bytes[layout.mu + d + i]));
    }
  }

  OAR_DEVICE void values(const void* head, int pos, int at, int d, const float2 (&scales)[kTogether],
                         float (&v)[kTogether]) const {
    const int p = at % P;
    if (in_16_bits(pos, at)) {
      const Page page = page_of(pos, at);
#pragma unroll
      for (int j = 0; j < kTogether; j += 2) {
        const uint32_t pair = load(
            reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(head) + page.value(p + j, d)));
        v[j] = low_bf16(pair);
        v[j + 1] = high_bf16(pair);
      }
      return;
    }
    const auto* bytes = static_cast<const char*>(head);
    // A byte, or some of its bits, of each of four tokens.
    const auto four_at = [&](int64_t byte) { return load(reinterpret_cast<const uint32_t*>(bytes + byte)); };
    uint32_t codes, mask;
    if (layout.value_threes) {
      const QuantKvLayout::Bits two = layout.two_bits(p, d), upper = layout.upper_bit(p, d);
      mask = 7u;
      codes = (four_at(two.byte) >> two.shift & 0x03030303u) |
              (four_at(upper.byte) >> upper.shift & 0x01010101u) << 2;
    } else {
      const QuantKvLayout::Place place = layout.value(p, d);
      mask = layout.value_nibbles ? 15u : 255u;
      codes = four_at(place.byte) >> (place.high ? 4 : 0);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j)
      v[j] = number_of(values_code, codes >> 8 * j & mask, scales[j].x, scales[j].y);
  }

 private:
  OAR_DEVICE static float number_of(KvCode code, uint32_t bits, float scale, float minimum) {
    if (code == KvCode::kFp8) return scale * to_f32(e4m3{static_cast<uint8_t>(bits)});
    if (code == KvCode::kInt8) return scale * static_cast<float>(static_cast<int8_t>(bits));
    return __fmaf_rn(scale, static_cast<float>(bits), minimum);
  }
};

}  // namespace oar::cuda
