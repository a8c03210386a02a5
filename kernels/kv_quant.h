// Attention over a quantized KV cache, and the append that fills it: 8, 4 and 3 bits per element, one scale
// per token and head. The newest page and the first tokens of a sequence are kept in 16 bits.
//
// The rule of visibility. A query at position p sees the token at position t
//   in bf16       if t < kKvSinkTokens (attention sinks), or if t lies in p's own page,
//   quantized     otherwise: also when both belong to one chunk of a prompt.
// So what a query sees depends on positions alone, and decode, prefill, any chunking, prefix hits and
// preemption give the same bits.
//
// Three pools per layer, each with its own block tables:
//   pool    [blocks][quant_kv_block_bytes]   quantized pages; written when a page's last token arrives,
//                                            from the 16-bit values of the open page
//   open    [blocks][kv_block_bytes(open_kv_shape)]  bf16 pages, one or two per sequence, given up once full
//   sinks   [blocks][kv_block_bytes(sink_kv_shape)]  the first kKvSinkTokens tokens in bf16, one per sequence
//
// Codes, of a token's key (or value) x[D] of one head; scales and minima are f16, codes are made with the
// scale as stored:
//   int8        x ~ s q          s = max|x| / 127, q in [-127, 127]; keys are stored as q + 128, as the dot
//                                products of CPUs want one unsigned operand; values in two's complement
//   fp8         x ~ s q          s = max|x| / 448, q in e4m3
//   int4        x ~ s q + m      q in [0, 15]; the range is shrunk towards its middle where D is large, which
//                                trades rare clipping for a finer step (quant_kv_shrink)
//   int4_mean   keys only: x - mu ~ s (q - 7.5), mu the mean key of the page (int8 codes, one f32 scale), so
//               that a constant bias of the keys costs no resolution; q . mu is added to a page's logits.
//               What is left lies around 0: the minimum is not stored, which pays for the mean (at 64:
//               4.5 bits)
//   int3        values only: x ~ s q + m, q in [0, 7], the range shrunk as of int4 but further
// Keys that hold values (a latent) are kept as one of int8, fp8 and int4. A latent comes from a norm, so it
// lies around 0 by itself: their int4 has the code of int4_mean, x ~ s (q - 7.5), without a mean or minima,
// and every code but a factor is exact in bf16.
// Elements per token and head, both sides: int4 takes 4 + 32 / D bits (4.5 at 64, 4.25 at 128, 5 at 32, 8 at
// 8), int8 and fp8 take 8 + 16 / D; int4_mean keys beside int3 values 3.5 + 24 / D and the mean (4.0 at 64,
// 3.78 at 128).
#pragma once

#include "kernels/attention.h"

namespace oar {

inline constexpr int32_t kKvSinkTokens = 16;

struct QuantKvShape {
  KvCode keys, values;  // keys: not kInt3; values: not kInt4Mean
  uint16_t latent;      // as KvShape's; keys and values are then one, in int8, fp8 or kInt4Mean
  int32_t page_tokens;  // P, a multiple of 16
  int32_t kv_heads;     // K
  int32_t head_dim;     // D, any multiple of 8 up to kMaxHeadDim

  constexpr OAR_HD QuantKvShape(KvCode k = KvCode::kInt8, KvCode v = KvCode::kInt8, int32_t P = 64,
                                int32_t K = 0, int32_t D = 0, int32_t leading = 0)
      : keys(k),
        values(v),
        latent(static_cast<uint16_t>(leading)),
        page_tokens(P),
        kv_heads(K),
        head_dim(D) {}
};

inline KvShape open_kv_shape(const QuantKvShape& s) {
  return {DType::kBF16, s.page_tokens, s.kv_heads, s.head_dim, s.latent};
}
inline KvShape sink_kv_shape(const QuantKvShape& s) {
  return {DType::kBF16, kKvSinkTokens, s.kv_heads, s.head_dim, s.latent};
}
// Bytes of one quantized block, a multiple of 64.
size_t quant_kv_block_bytes(const QuantKvShape& shape);

// Factor on the half range of 4- and 3-bit codes over D elements. For Gaussian values 0.95 of int4 gains 0.3
// dB at D = 128 and 0.2 at 64; what is best for int3 gains 1.2 and 0.8. Short groups have no tails to give
// up.
constexpr OAR_HD float quant_kv_shrink(KvCode code, int64_t D) {
  if (code == KvCode::kInt3)
    return D >= 192 ? 0.75f : D >= 128 ? 0.8f : D >= 64 ? 0.85f : D >= 32 ? 0.9f : 1.f;
  return D >= 64 ? 0.95f : D >= 32 ? 0.97f : 1.f;
}

// The minimum of int4_mean: the value of the code 0 where 16 levels lie evenly around zero. Exact, as scales
// have 11 bits.
constexpr OAR_HD float kv_mean_minimum(float scale) { return -7.5f * scale; }

// Where codes and scales lie inside a quantized block: the one place that knows. Heads follow each other;
// within a head
//   [key codes P x D][value codes P x D][key scales P][key minima P][value scales P][value minima P]
//   [mu D][mu scale]
// of which minima exist for int4 and mu for int4_mean keys, and of keys that hold values there are codes and
// scales of keys alone. Codes lie in panels of 16 tokens as dwords, so
// that one vector holds a dword of 16 tokens (keys) or of 16 dims (values), ready for the dot products of
// bytes:
//   8 bits: key dword (dims 4i..4i+3) of token t at [i][t]; value dword (tokens 4i..4i+3) of dim d at [i][d]
//   4 bits: eight elements per dword; element e < 4 is the low nibble of byte e, e >= 4 the high
//   nibble of e - 4
//   3 bits: two planes, from which a mask each makes the two lines of nibbles of a panel. First the lower two
//   bits, one dword per dim: those of line 0 at 0x33333333, of line 1 two bits higher. Then the upper bits,
//   one dword for dims d and d + D / 2: of d's line 0 at 0x11111111, of its line 1 one bit higher, of the
//   other's two lines two and three bits higher.
// All members are bytes or byte offsets unless named otherwise.
struct QuantKvLayout {
  int64_t head_dim, page_tokens;
  bool latent;  // keys hold values
  bool key_nibbles,
      value_nibbles;  // 16 codes or fewer; those of values, and of keys without a mean, have minima
  bool value_threes;  // of which 8
  bool has_key_minima, mean;
  int64_t value_codes, key_scales, key_minima, value_scales, value_minima, mu, mu_scale;  // inside a head
  int64_t head_bytes, block_bytes;

  [[gnu::always_inline]] explicit constexpr QuantKvLayout(const QuantKvShape& s)
      : head_dim(s.head_dim),
        page_tokens(s.page_tokens),
        latent(s.latent > 0),
        key_nibbles(s.keys >= KvCode::kInt4),
        value_nibbles(s.latent == 0 && s.values >= KvCode::kInt4),
        value_threes(s.latent == 0 && s.values == KvCode::kInt3),
        has_key_minima(s.keys == KvCode::kInt4),
        mean(s.latent == 0 && s.keys == KvCode::kInt4Mean),
        value_codes(page_tokens * head_dim / (key_nibbles ? 2 : 1)),
        key_scales(value_codes + (s.latent > 0 ? 0 : page_tokens / 16 * value_panel_bytes())),
        key_minima(key_scales + 2 * page_tokens),
        value_scales(s.latent > 0 ? key_scales : key_minima + (has_key_minima ? 2 * page_tokens : 0)),
        value_minima(value_scales + 2 * page_tokens),
        mu(value_minima + (value_nibbles ? 2 * page_tokens : 0)),
        mu_scale(mu + (mean ? head_dim : 0)),
        head_bytes((mu_scale + (mean ? 4 : 0) + 63) / 64 * 64),
        block_bytes(s.kv_heads * head_bytes) {}

  constexpr OAR_HD int64_t value_panel_bytes() const {
    return head_dim * (value_threes ? 6 : value_nibbles ? 8 : 16);
  }

  // Place of one code: its byte inside the head, and whether it is the upper nibble. Not of 3-bit values.
  struct Place {
    int64_t byte;
    bool high;
  };
  constexpr OAR_HD Place key(int64_t t, int64_t d) const {
    return place(0, key_nibbles, t / 16, 16, d, t % 16);
  }
  constexpr OAR_HD Place value(int64_t t, int64_t d) const {
    return place(value_codes, value_nibbles, t / 16, head_dim, t % 16, d);
  }
  // Bits of a 3-bit value: a byte inside the head and the lowest of them in it.
  struct Bits {
    int64_t byte;
    int shift;
  };
  constexpr OAR_HD Bits two_bits(int64_t t, int64_t d) const {
    return {three(t) + d * 4 + t % 4, static_cast<int>(t % 8 / 4 * 4 + t % 16 / 8 * 2)};
  }
  constexpr OAR_HD Bits upper_bit(int64_t t, int64_t d) const {
    const int64_t half = head_dim / 2;
    return {three(t) + (head_dim + d % half) * 4 + t % 4,
            static_cast<int>(t % 8 / 4 * 4 + d / half * 2 + t % 16 / 8)};
  }

 private:
  constexpr OAR_HD int64_t three(int64_t t) const { return value_codes + t / 16 * value_panel_bytes(); }
  // `along`: the index that shares a dword; `lane`: which dword of a line of `lanes`.
  constexpr OAR_HD Place place(int64_t base, bool nibbles, int64_t panel, int64_t lanes, int64_t along,
                               int64_t lane) const {
    const int64_t per = nibbles ? 8 : 4, begin = base + panel * 16 * head_dim * 4 / per;
    const int64_t e = along % per;
    return {begin + (along / per * lanes + lane) * 4 + e % 4, e >= 4};
  }
};

struct QuantKvAppendArgs {
  uint32_t size = sizeof(QuantKvAppendArgs);
  uint32_t version = 1;
  void *pool = nullptr, *open = nullptr, *sinks = nullptr;  // 64-byte aligned
  const float* k = nullptr;                                 // [T, K, D], row stride ldk
  const float* v = nullptr;                                 // [T, K, D], row stride ldv
  // [T] each, block * P + offset; negative: do not store. All rows of a sequence are stored in `open`; the
  // row that is a page's last quantizes the page into `pool`; of `sinks`, offsets beyond kKvSinkTokens are
  // ignored.
  const int32_t *slots = nullptr, *open_slots = nullptr, *sink_slots = nullptr;
  int64_t T = 0, ldk = 0, ldv = 0;
  QuantKvShape shape;
};

struct QuantPagedAttentionArgs {
  uint32_t size = sizeof(QuantPagedAttentionArgs);
  uint32_t version = 1;
  // As over an unquantized cache; `common.pool` and its tables are the quantized ones, `common.shape` is that
  // of open pages.
  PagedAttentionArgs common;
  const void *open = nullptr, *sinks = nullptr;
  const int32_t* open_tables = nullptr;  // [B, open_max_blocks]; only entries of pages with a query are read
  const int32_t* sink_tables = nullptr;  // [B, sink_max_blocks]; entry 0
  int64_t open_max_blocks = 0, sink_max_blocks = 0;
  QuantKvShape shape;
};

}  // namespace oar
