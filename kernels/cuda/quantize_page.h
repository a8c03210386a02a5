// A full page of one head brought to codes by a team of threads (attention_quant.cu, heads.cu), rounding by
// rounding as kernels/kv_codec.h does it, whatever the team.
#pragma once

#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/team.h"
#include "kernels/kv_quant.h"

namespace oar::cuda {

constexpr int kPanelTokens = 16;  // of QuantKvLayout

OAR_DEVICE bool finite(float x) { return x - x == 0.f; }

// As kv_scale() of kernels/kv_codec.h, rounding by rounding.
struct Scale {
  f16 scale, minimum;
  float inverse, offset;
};
OAR_DEVICE Scale scale_of(KvCode code, float lo, float hi, float poison, int D) {
  const float shrink = quant_kv_shrink(code, D);
  float scale = fmaxf(hi, -lo) / (code == KvCode::kInt8 ? 127.f : 448.f), minimum = 0.f;
  if (code == KvCode::kInt4Mean) {
    scale = __fmul_rn(fmaxf(hi, -lo), shrink) / 7.5f;
  } else if (code == KvCode::kInt4 || code == KvCode::kInt3) {
    const float half = __fmul_rn(__fadd_rn(hi, -lo), 0.5f), middle = __fadd_rn(lo, half);
    const float kept = __fmul_rn(half, shrink);
    minimum = __fadd_rn(middle, -kept);
    scale = kept / (code == KvCode::kInt3 ? 3.5f : 7.5f);
  }
  Scale s{to_f16(__fadd_rn(scale, poison)), to_f16(minimum), 0.f, 0.f};
  const float stored = to_f32(s.scale);
  s.inverse = stored > 0.f && finite(stored) ? 1.f / stored : 0.f;
  s.offset = code == KvCode::kInt4Mean ? kv_mean_minimum(stored) : to_f32(s.minimum);
  return s;
}

// The code of x; int8 in two's complement.
OAR_DEVICE uint32_t code_of(KvCode code, float inverse, float offset, float x) {
  const float y = __fmul_rn(__fadd_rn(x, -offset), inverse), z = y == y ? y : 0.f;
  if (code == KvCode::kFp8) return to_e4m3(z).bits;
  if (code == KvCode::kInt8)
    return static_cast<uint8_t>(static_cast<int>(rintf(fminf(fmaxf(z, -127.f), 127.f))));
  return static_cast<uint32_t>(rintf(fminf(fmaxf(z, 0.f), code == KvCode::kInt3 ? 7.f : 15.f)));
}

struct Range {
  float lo = INFINITY, hi = -INFINITY, poison = 0.f;
  OAR_DEVICE void add(float x) {
    lo = fminf(lo, x);
    hi = fmaxf(hi, x);
    poison = __fadd_rn(poison, __fadd_rn(x, -x));
  }
  // With those of lanes whose numbers differ in bits [first, end), powers of two.
  OAR_DEVICE void over_lanes(int first, int end) {
    for (int offset = first; offset < end; offset *= 2) {
      lo = fminf(lo, __shfl_xor_sync(kAllLanes, lo, offset));
      hi = fmaxf(hi, __shfl_xor_sync(kAllLanes, hi, offset));
      poison = __fadd_rn(poison, __shfl_xor_sync(kAllLanes, poison, offset));
    }
  }
};

inline QuantKvShape with_codes(QuantKvShape shape, KvCode keys, KvCode values) {
  shape.keys = keys;
  shape.values = values;
  return shape;
}

// What a team has beside the page.
struct PageShared {
  float *mean, *largest, *inverse, *offset;  // of keys, dims; of warps; of values, tokens: two

  OAR_DEVICE PageShared(float* at, int P, int D)
      : mean(at), largest(at + dims(D)), inverse(largest + kWarp), offset(inverse + P) {}
  OAR_HD static constexpr int floats(int P, int D) { return dims(D) + kWarp + 2 * P; }

 private:
  // A warp stores four a lane at a time.
  OAR_HD static constexpr int dims(int D) { return (D + 4 * kWarp - 1) / (4 * kWarp) * (4 * kWarp); }
};

// Whether row t is the last of a page whose codes are wanted.
OAR_DEVICE bool fills_page(const QuantKvAppendArgs& a, int64_t t) {
  const int slot = a.slots[t], P = a.shape.page_tokens;
  return slot >= 0 && slot % P == P - 1 && a.open_slots[t] >= 0;
}

OAR_DEVICE void store_word(char* to, uint32_t word) { store(reinterpret_cast<uint32_t*>(to), word); }

// Head h of the page that row t fills.
template <class Team, bool kLatent>
OAR_DEVICE void quantize_page(const QuantKvAppendArgs& a, const QuantKvLayout& layout, KvCode keys,
                              KvCode values, int64_t t, int h, const PageShared& shared) {
  const int P = a.shape.page_tokens, D = a.shape.head_dim, K = a.shape.kv_heads, slot = a.slots[t],
            open_slot = a.open_slots[t];
  float *const mean = shared.mean, *const largest = shared.largest, *const inverse = shared.inverse,
               *const offset = shared.offset;
  char* head = static_cast<char*>(a.pool) + slot / P * layout.block_bytes + h * layout.head_bytes;
  const CachePage<kLatent> page({DType::kBF16, P, K, D});
  const auto* from = static_cast<const uint16_t*>(a.open) + open_slot / P * page.head(K) + page.head(h);
  // Eight dims of token p's key.
  const auto keys_at = [&](int p, int d) {
    return load(reinterpret_cast<const uint4*>(from + page.key(p, d)));
  };
  constexpr int kThreads = Team::kThreads, kWarps = kThreads / kWarp;
  const int thread = Team::thread(), its_warp = thread / kWarp;

  if (!kLatent && layout.mean) {
    // Keys are added up in the order of tokens. Two lanes read two tokens' eight dims, which are a sector,
    // and exchange four. Behind the dims there are zeros.
    float most = 0.f;
    for (int first = its_warp * kWarp; first < D / 4; first += kThreads) {
      const int unit = first + lane();
      const bool odd = unit % 2 != 0;
      float sums[4] = {};
      for (int p = 0; p < P; p += 2) {
        const uint4 its =
            unit < D / 4 ? keys_at(p + (odd ? 1 : 0), unit / 2 * kKeyDims) : make_uint4(0, 0, 0, 0);
        const uint32_t x = __shfl_xor_sync(kAllLanes, odd ? its.x : its.z, 1),
                       y = __shfl_xor_sync(kAllLanes, odd ? its.y : its.w, 1);
        const uint32_t of_two[2][2] = {{odd ? x : its.x, odd ? y : its.y},
                                       {odd ? its.z : x, odd ? its.w : y}};
#pragma unroll
        for (const auto& token : of_two) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            sums[i] = __fadd_rn(sums[i], i % 2 == 0 ? low_bf16(token[i / 2]) : high_bf16(token[i / 2]));
        }
      }
#pragma unroll
      for (float& sum : sums) {
        sum /= static_cast<float>(P);
        sum = finite(sum) ? sum : 0.f;
        most = fmaxf(most, fabsf(sum));
      }
      store(reinterpret_cast<float4*>(mean) + unit, make_float4(sums[0], sums[1], sums[2], sums[3]));
    }
    most = warp_max(most);
    if (lane() == 0) largest[its_warp] = most;
    Team::meet();
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, largest[w]);
    const float scale = most / 127.f, inverted = 1.f / scale,
                used = scale > 0.f && finite(inverted) ? inverted : 0.f;
    for (int d = thread; d < D; d += kThreads) {
      const float code = rintf(__fmul_rn(mean[d], used));
      head[layout.mu + d] = static_cast<char>(static_cast<int>(code));
      mean[d] = __fmul_rn(scale, code);
    }
    if (thread == 0) memcpy(head + layout.mu_scale, &scale, sizeof scale);
    Team::meet();
  }

  // Numbers and codes of eight tokens lie side by side: a warp has so many.
  constexpr int kTokens = 8, kTurnDims = kWarp / kTokens * kKeyDims;
  for (int first = kTokens * its_warp; first < P; first += kTokens * kWarps) {
    // Keys: four lanes have a token, and eight dims in turn, whose codes are one word or two.
    const int p = first + lane() % kTokens, first_dim = lane() / kTokens * kKeyDims;
    const auto numbers = [&](int d, float(&x)[kKeyDims]) {
      const uint4 u = keys_at(p, d);
      const uint32_t words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
      for (int i = 0; i < kKeyDims; ++i) {
        x[i] = i % 2 == 0 ? low_bf16(words[i / 2]) : high_bf16(words[i / 2]);
        if (!kLatent && layout.mean) x[i] = __fadd_rn(x[i], -mean[d + i]);
      }
    };
    Range range;
    for (int d = first_dim; d < D; d += kTurnDims) {
      float x[kKeyDims];
      numbers(d, x);
#pragma unroll
      for (const float number : x) range.add(number);
    }
    range.over_lanes(kTokens, kWarp);
    const Scale s = scale_of(keys, range.lo, range.hi, range.poison, D);
    if (lane() < kTokens) {
      reinterpret_cast<f16*>(head + layout.key_scales)[p] = s.scale;
      if (layout.has_key_minima) reinterpret_cast<f16*>(head + layout.key_minima)[p] = s.minimum;
    }
    for (int d = first_dim; d < D; d += kTurnDims) {
      float x[kKeyDims];
      numbers(d, x);
      uint32_t codes[2] = {};  // of four dims each
#pragma unroll
      for (int i = 0; i < kKeyDims; ++i)
        codes[i / 4] |= code_of(keys, s.inverse, s.offset, x[i]) << 8 * (i % 4);
      if (layout.key_nibbles) {
        store_word(head + layout.key(p, d).byte, codes[0] | codes[1] << 4);
      } else {
        const uint32_t flip = keys == KvCode::kInt8 ? 0x80808080u : 0u;
        store_word(head + layout.key(p, d).byte, codes[0] ^ flip);
        store_word(head + layout.key(p, d + 4).byte, codes[1] ^ flip);
      }
    }
    // Scales of values, whose codes lie across tokens: eight lanes have two tokens.
    if constexpr (!kLatent) {
      const int pair = first + lane() / kTokens * 2;
      Range of_two[2];
      for (int d = lane() % kTokens * 4; d < D; d += kTokens * 4) {
        const uint4 u = load(reinterpret_cast<const uint4*>(from + page.value(pair, d)));
        const uint32_t words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (const uint32_t both : words) {
          of_two[0].add(low_bf16(both));
          of_two[1].add(high_bf16(both));
        }
      }
      of_two[0].over_lanes(1, kTokens);
      of_two[1].over_lanes(1, kTokens);
      const bool odd = lane() % 2 != 0;
      const Scale v = scale_of(values, odd ? of_two[1].lo : of_two[0].lo, odd ? of_two[1].hi : of_two[0].hi,
                               odd ? of_two[1].poison : of_two[0].poison, D);
      if (lane() % kTokens < 2) {
        const int token = pair + lane() % kTokens;
        reinterpret_cast<f16*>(head + layout.value_scales)[token] = v.scale;
        if (layout.value_nibbles) reinterpret_cast<f16*>(head + layout.value_minima)[token] = v.minimum;
        inverse[token] = v.inverse;
        offset[token] = v.offset;
      }
    }
  }
  if constexpr (!kLatent) {
    Team::meet();

    // Values: a thread has a panel's tokens at dims d and d + D / 2, which share words of 3 bits. Codes of
    // four tokens from p on are bytes of one word.
    const auto four_codes = [&](int p, int d) {
      uint32_t codes = 0;
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t both = load(reinterpret_cast<const uint32_t*>(from + page.value(p + i, d)));
        codes |= code_of(values, inverse[p + i], offset[p + i], low_bf16(both)) << 8 * i;
        codes |= code_of(values, inverse[p + i + 1], offset[p + i + 1], high_bf16(both)) << 8 * (i + 1);
      }
      return codes;
    };
    const int half = D / 2;
    for (int unit = thread; unit < P / kPanelTokens * half; unit += kThreads) {
      const int first = unit / half * kPanelTokens;
      uint32_t upper = 0;
      for (int side = 0; side < 2; ++side) {
        const int d = unit % half + side * half;
        uint32_t two = 0;
        for (int i = 0; i < 4; ++i) {
          const int p = first + 4 * i;
          uint32_t codes = four_codes(p, d);
          if (layout.value_threes) {
            // Shifts of two_bits() and upper_bit().
            two |= (codes & 0x03030303u) << (i % 2 * 4 + i / 2 * 2);
            upper |= (codes >> 2 & 0x01010101u) << (i % 2 * 4 + side * 2 + i / 2);
            continue;
          }
          if (layout.value_nibbles) codes |= four_codes(first + 4 * ++i, d) << 4;
          store_word(head + layout.value(p, d).byte, codes);
        }
        if (layout.value_threes) store_word(head + layout.two_bits(first, d).byte, two);
      }
      if (layout.value_threes) store_word(head + layout.upper_bit(first, unit % half).byte, upper);
    }
  }
}

}  // namespace oar::cuda
