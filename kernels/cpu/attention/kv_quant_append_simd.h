// The append to a quantized paged cache for one instruction set; included by attention_<isa>.cc. First rows
// go to the 16-bit pages, then pages that became full are coded from them, to the bytes that the reference
// writes.
//
// Keys of 16 tokens lie side by side, so lanes are tokens and a token's range needs no horizontal step; for
// values lanes are dims.
#pragma once

#include "kernels/cpu/attention/kv_append_simd.h"
#include "kernels/cpu/vmath.h"
#include "kernels/kv_codec.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Scales of a vector's lanes, or of one token in all lanes.
struct VecScale {
  Vf inverse, offset;
};

// |x| <= 448 to e4m3, ties to even. Normal numbers: rounded at bit 20 of f32, whose exponent is rebased;
// subnormal ones are multiples of 2^-9.
OAR_INLINE Vi encode_e4m3(Vf x) {
  const Vf a = min(abs(x), set1(448.f));
  const Vi u = bits(a), odd = shift_right<20>(u) & set1_int(1);
  const Vi normal = shift_right<20>(u + odd + set1_int(0x7ffff)) - set1_int(120 << 3);
  const Vi tiny = to_int(a * set1(512.f));
  const Vf code = select(a < set1(0x1p-6f), from_bits(tiny), from_bits(normal));
  return bits(code) | (shift_right<24>(bits(x)) & set1_int(0x80));
}

template <KvCode kCode>
OAR_INLINE Vi encode_kv(Vf x, const VecScale& s) {
  const Vf y = (x - s.offset) * s.inverse, z = select(is_nan(y), zero(), y);
  if constexpr (kCode == KvCode::kFp8) return encode_e4m3(z);
  if constexpr (kCode == KvCode::kInt8)
    return to_int(min(max(z, set1(-127.f)), set1(127.f))) & set1_int(0xff);
  return to_int(min(max(z, set1(0.f)), set1(kCode == KvCode::kInt3 ? 7.f : 15.f)));
}

// The two numbers of 16 bits in each lane of a bf16 panel.
struct PairOf {
  Vf even, odd;
};
OAR_INLINE PairOf load_pair(const char* p, int64_t n) {
  const Vi x = bits(load_part(reinterpret_cast<const float*>(p), n));
  return {from_bits(shift_left<16>(x)), from_bits(x & set1_int(static_cast<int32_t>(0xffff0000u)))};
}

class PageQuantizer {
 public:
  explicit PageQuantizer(const QuantKvShape& shape)
      : shape_(shape), layout_(shape), open_(open_kv_shape(shape)) {}

  const QuantKvLayout& layout() const { return layout_; }
  const KvLayout& open() const { return open_; }

  // One head of one page: `from` the head in its open page, `to` in the quantized one.
  void run(const char* from, char* to) {
    if (layout_.mean) store_mean(from, to);
    for (int64_t panel = 0; panel < open_.panels; ++panel) {
      const char* k = from + open_.k_panel(0, panel);
      const char* v = from + open_.v_panel(0, panel);
      switch (shape_.keys) {
        case KvCode::kInt8: keys<KvCode::kInt8>(k, panel, to); break;
        case KvCode::kFp8: keys<KvCode::kFp8>(k, panel, to); break;
        case KvCode::kInt4: keys<KvCode::kInt4>(k, panel, to); break;
        case KvCode::kInt4Mean: keys<KvCode::kInt4Mean>(k, panel, to); break;
        case KvCode::kInt3: break;  // of values alone
      }
      if (layout_.latent) continue;
      switch (shape_.values) {
        case KvCode::kInt8: values<KvCode::kInt8>(v, panel, to); break;
        case KvCode::kFp8: values<KvCode::kFp8>(v, panel, to); break;
        case KvCode::kInt3: values<KvCode::kInt3>(v, panel, to); break;
        default: values<KvCode::kInt4>(v, panel, to); break;
      }
    }
  }

 private:
  static constexpr int64_t kVectors = kKvPanelTokens / kLanes;

  // Sums in the order of tokens, as the reference.
  void store_mean(const char* from, char* to) {
    float mean[kMaxHeadDim] = {};
    for (int64_t panel = 0; panel < open_.panels; ++panel) {
      const auto* k = reinterpret_cast<const bf16*>(from + open_.k_panel(0, panel));
      for (int64_t d = 0; d < layout_.head_dim; ++d) {
        for (int64_t t = 0; t < kKvPanelTokens; ++t) mean[d] += to_f32(k[open_.k_index(t, d)]);
      }
    }
    auto* codes = reinterpret_cast<int8_t*>(to + layout_.mu);
    const float scale = kv_mean_codes(mean, layout_.head_dim, layout_.page_tokens, codes);
    memcpy(to + layout_.mu_scale, &scale, sizeof scale);
    for (int64_t d = 0; d < layout_.head_dim; ++d) mean_[d] = scale * static_cast<float>(codes[d]);
  }

  // Dims 2i and 2i + 1 of kLanes tokens, less the page's mean.
  OAR_INLINE PairOf key_pair(const char* k, int64_t i, int64_t vec) const {
    PairOf x = load_pair(k + i * 64 + vec * kLanes * 4, kLanes);
    if (layout_.mean) x = {x.even - set1(mean_[2 * i]), x.odd - set1(mean_[2 * i + 1])};
    return x;
  }

  void store_scale(char* to, int64_t scales, int64_t minima, bool has_minima, int64_t t,
                   const KvScale& s) const {
    reinterpret_cast<f16*>(to + scales)[t] = s.scale;
    if (has_minima) reinterpret_cast<f16*>(to + minima)[t] = s.minimum;
  }

  template <KvCode kCode>
  void keys(const char* k, int64_t panel, char* to) const {
    constexpr bool kNibbles = kCode >= KvCode::kInt4;
    const int64_t D = layout_.head_dim;
    for (int64_t vec = 0; vec < kVectors; ++vec) {
      Vf lo = set1(INFINITY), hi = set1(-INFINITY), poison = zero();
      for (int64_t i = 0; i < D / 2; ++i) {
        const PairOf x = key_pair(k, i, vec);
        lo = min(x.odd, min(x.even, lo));
        hi = max(x.odd, max(x.even, hi));
        poison = poison + (x.even - x.even) + (x.odd - x.odd);
      }
      float los[kLanes], his[kLanes], poisons[kLanes], inverse[kLanes], offset[kLanes];
      store(los, lo);
      store(his, hi);
      store(poisons, poison);
      for (int64_t j = 0; j < kLanes; ++j) {
        const KvScale s = kv_scale(kCode, los[j], his[j], poisons[j], D);
        store_scale(to, layout_.key_scales, layout_.key_minima, layout_.has_key_minima,
                    panel * kKvPanelTokens + vec * kLanes + j, s);
        inverse[j] = s.inverse;
        offset[j] = s.offset;
      }
      const VecScale s{load(inverse), load(offset)};
      char* out = to + layout_.key(panel * kKvPanelTokens, 0).byte + vec * kLanes * 4;
      // A line of dwords takes two or four pairs of dims.
      for (int64_t i = 0; i < D / 2; i += kNibbles ? 4 : 2, out += 64) {
        const auto four = [&](int64_t at) __attribute__((always_inline)) {
          const PairOf a = key_pair(k, at, vec), b = key_pair(k, at + 1, vec);
          return pack(encode_kv<kCode>(a.even, s), encode_kv<kCode>(a.odd, s), encode_kv<kCode>(b.even, s),
                      encode_kv<kCode>(b.odd, s));
        };
        Vi line = four(i);
        if constexpr (kNibbles) line = line | shift_left<4>(four(i + 2));
        if constexpr (kCode == KvCode::kInt8) line = flip_signs(line);
        memcpy(out, &line, sizeof line);
      }
    }
  }

  template <KvCode kCode>
  void values(const char* v, int64_t panel, char* to) const {
    constexpr bool kNibbles = kCode >= KvCode::kInt4;
    const int64_t D = layout_.head_dim, pair_bytes = D * 4;
    VecScale s[kKvPanelTokens];
    for (int64_t i = 0; i < kKvPanelTokens / 2; ++i) {
      // Lanes beyond D load as zero, which is no member of the range.
      Vf lo[2] = {set1(INFINITY), set1(INFINITY)}, hi[2] = {set1(-INFINITY), set1(-INFINITY)};
      Vf poison[2] = {zero(), zero()};
      for_lanes(
          D, [&](int64_t d, int64_t n) __attribute__((always_inline)) {
            const PairOf pair = load_pair(v + i * pair_bytes + d * 4, n);
            const Vf x[2] = {pair.even, pair.odd};
            for (int j = 0; j < 2; ++j) {
              poison[j] = poison[j] + (x[j] - x[j]);
              if (n == kLanes) {
                lo[j] = min(x[j], lo[j]);
                hi[j] = max(x[j], hi[j]);
              } else {
                float part[kLanes];
                store(part, x[j]);
                for (int64_t l = n; l < kLanes; ++l) part[l] = part[0];
                lo[j] = min(load(part), lo[j]);
                hi[j] = max(load(part), hi[j]);
              }
            }
          });
      for (int64_t j = 0; j < 2; ++j) {
        const int64_t t = 2 * i + j;
        const KvScale scale =
            kv_scale(kCode, -reduce_max(-lo[j]), reduce_max(hi[j]), reduce_add(poison[j]), D);
        store_scale(to, layout_.value_scales, layout_.value_minima, kNibbles, panel * kKvPanelTokens + t,
                    scale);
        s[t] = {set1(scale.inverse), set1(scale.offset)};
      }
    }
    char* out = to + layout_.value_codes + panel * layout_.value_panel_bytes();
    constexpr int64_t kTokens = kNibbles ? 8 : 4;  // of one line
    // The line of tokens from t on, of n dims from d on.
    const auto line = [&](int64_t t, int64_t d, int64_t n) __attribute__((always_inline)) {
      const auto four = [&](int64_t at) __attribute__((always_inline)) {
        const char* pair = v + at / 2 * pair_bytes + d * 4;
        const PairOf a = load_pair(pair, n), b = load_pair(pair + pair_bytes, n);
        return pack(encode_kv<kCode>(a.even, s[at]), encode_kv<kCode>(a.odd, s[at + 1]),
                    encode_kv<kCode>(b.even, s[at + 2]), encode_kv<kCode>(b.odd, s[at + 3]));
      };
      Vi codes = four(t);
      if constexpr (kNibbles) codes = codes | shift_left<4>(four(t + 4));
      return codes;
    };
    const auto put = [&](Vi x, int64_t at, int64_t n) __attribute__((always_inline)) {
      store_part(reinterpret_cast<float*>(out + at * 4), from_bits(x), n);
    };
    if constexpr (kCode == KvCode::kInt3) {
      const Vi two = set1_int(0x33333333), upper = set1_int(0x44444444);
      for_lanes(
          D / 2, [&](int64_t d, int64_t n) __attribute__((always_inline)) {
            const auto both = [&](int64_t at) __attribute__((always_inline)) {  // returns the upper bits
              const Vi a = line(0, at, n), b = line(8, at, n);
              put((a & two) | shift_left<2>(b & two), at, n);
              return shift_right<2>(a & upper) | shift_right<1>(b & upper);
            };
            put(both(d) | shift_left<2>(both(D / 2 + d)), D + d, n);
          });
      return;
    }
    for (int64_t t = 0; t < kKvPanelTokens; t += kTokens, out += D * 4) {
      for_lanes(
          D, [&](int64_t d, int64_t n) __attribute__((always_inline)) { put(line(t, d, n), d, n); });
    }
  }

  OAR_INLINE static Vi pack(Vi a, Vi b, Vi c, Vi d) {
    return a | shift_left<8>(b) | shift_left<16>(c) | shift_left<24>(d);
  }
  // Adds 128 to every byte.
  OAR_INLINE static Vi flip_signs(Vi x) {
    const Vi top = set1_int(static_cast<int32_t>(0x80808080u));
    return (x | top) - (x & top);
  }

  QuantKvShape shape_;
  QuantKvLayout layout_;
  KvLayout open_;
  float mean_[kMaxHeadDim];
};

OAR_INLINE int64_t quant_append_rows_per(const QuantKvAppendArgs& a) {
  const int64_t D = a.shape.head_dim;
  return rows_per_chunk(a.T * a.shape.kv_heads, 8 * D + 64 * (D / 2));
}
// Of the second phase: a row whose page is full is worth a chunk of its own.
OAR_INLINE int64_t quant_append_pages_per(const QuantKvAppendArgs& a) {
  return ceil_div(a.T * a.shape.kv_heads, kMaxRowChunks) > 1 ? ceil_div(a.T * a.shape.kv_heads, kMaxRowChunks)
                                                             : 1;
}

inline void quant_kv_append_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const QuantKvAppendArgs*>(args);
  const int64_t units = a.T * a.shape.kv_heads;
  *out = {2, {row_chunks(units, quant_append_rows_per(a)), row_chunks(units, quant_append_pages_per(a))}};
}

OAR_INLINE void append_16(const QuantKvAppendArgs& a, const KvLayout& layout, void* pool, int64_t page,
                          int64_t t, int64_t h, int64_t slot) {
  const int64_t D = a.shape.head_dim, offset = slot % a.shape.page_tokens;
  if (slot < 0 || offset >= page) return;
  char* block = static_cast<char*>(pool) + slot / a.shape.page_tokens * layout.block_bytes;
  const float* v = layout.latent ? nullptr : a.v + t * a.ldv + h * D;
  append_head<bf16>(layout, a.k + t * a.ldk + h * D, v, offset % kKvPanelTokens,
                    block + layout.k_panel(h, offset / kKvPanelTokens),
                    block + layout.v_panel(h, offset / kKvPanelTokens));
}

inline void quant_kv_append_run(const void* args, int phase, int64_t begin, int64_t end,
                                const KernelScratch&) {
  const auto& a = *static_cast<const QuantKvAppendArgs*>(args);
  const int64_t P = a.shape.page_tokens, K = a.shape.kv_heads, units = a.T * K;
  const int64_t per = phase == 0 ? quant_append_rows_per(a) : quant_append_pages_per(a);
  const int64_t last = end * per < units ? end * per : units;
  if (phase == 0) {
    const KvLayout open(open_kv_shape(a.shape)), sink(sink_kv_shape(a.shape));
    for (int64_t unit = begin * per; unit < last; ++unit) {
      const int64_t t = unit / K, h = unit % K;
      append_16(a, open, a.open, P, t, h, a.open_slots[t]);
      append_16(a, sink, a.sinks, kKvSinkTokens, t, h, a.sink_slots[t]);
    }
    return;
  }
  PageQuantizer quantizer(a.shape);
  for (int64_t unit = begin * per; unit < last; ++unit) {
    const int64_t t = unit / K, h = unit % K, slot = a.slots[t], open_slot = a.open_slots[t];
    if (slot < 0 || slot % P != P - 1 || open_slot < 0) continue;
    const KvLayout& open = quantizer.open();
    const QuantKvLayout& layout = quantizer.layout();
    quantizer.run(static_cast<const char*>(a.open) + open_slot / P * open.block_bytes + h * open.head_bytes,
                  static_cast<char*>(a.pool) + slot / P * layout.block_bytes + h * layout.head_bytes);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
