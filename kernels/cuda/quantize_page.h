// A full page of one head brought to codes by a team of threads (attention_quant.cu, heads.cu), rounding by
// rounding as kernels/kv_codec.h does it, whatever the team.
#pragma once

#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/team.h"
#include "kernels/kv_quant.h"

namespace oar::cuda {

constexpr int kMaxQuantDims = 256;  // of a head whose values are its own
constexpr int kPanelTokens = 16;    // of QuantKvLayout

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
  OAR_DEVICE void over_warp() {
    hi = warp_max(hi);
    lo = -warp_max(-lo);
    poison = warp_sum(poison);
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

  OAR_DEVICE PageShared(float* at, int P)
      : mean(at), largest(at + kMaxQuantDims), inverse(largest + kWarp), offset(inverse + P) {}
  OAR_HD static constexpr int floats(int P) { return kMaxQuantDims + kWarp + 2 * P; }
};

// Whether row t is the last of a page whose codes are wanted.
OAR_DEVICE bool fills_page(const QuantKvAppendArgs& a, int64_t t) {
  const int slot = a.slots[t], P = a.shape.page_tokens;
  return slot >= 0 && slot % P == P - 1 && a.open_slots[t] >= 0;
}

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
  const auto key_at = [&](int p, int d) { return to_f32(bf16{from[page.key(p, d)]}); };
  [[maybe_unused]] const auto value_at = [&](int p, int d) {
    if constexpr (kLatent) return 0.f;
    else return to_f32(bf16{from[page.value(p, d)]});
  };
  constexpr int kThreads = Team::kThreads, kWarps = kThreads / kWarp;
  const int thread = Team::thread(), its_warp = thread / kWarp;

  if (!kLatent && layout.mean) {
    float most = 0.f;
    for (int d = thread; d < D; d += kThreads) {
      float sum = 0.f;
      for (int p = 0; p < P; ++p) sum = __fadd_rn(sum, key_at(p, d));
      sum /= static_cast<float>(P);
      mean[d] = finite(sum) ? sum : 0.f;
      most = fmaxf(most, fabsf(mean[d]));
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

  // Keys: a warp per token, lanes take eight dims in turn, whose codes are one word or two.
  constexpr int kTurnDims = kKeyDims * kWarp, kMost = kLatent ? kMaxLatentDim : kMaxQuantDims;
  constexpr int kTurns = (kMost + kTurnDims - 1) / kTurnDims;
  for (int p = its_warp; p < P; p += kWarps) {
    float x[kTurns][kKeyDims];
    Range range;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int d0 = turn * kTurnDims + kKeyDims * lane();
#pragma unroll
      for (int i = 0; i < kKeyDims; ++i) {
        if (d0 >= D) break;
        x[turn][i] = key_at(p, d0 + i);
        if (!kLatent && layout.mean) x[turn][i] = __fadd_rn(x[turn][i], -mean[d0 + i]);
        range.add(x[turn][i]);
      }
    }
    range.over_warp();
    const Scale s = scale_of(keys, range.lo, range.hi, range.poison, D);
    if (lane() == 0) {
      reinterpret_cast<f16*>(head + layout.key_scales)[p] = s.scale;
      if (layout.has_key_minima) reinterpret_cast<f16*>(head + layout.key_minima)[p] = s.minimum;
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int d0 = turn * kTurnDims + kKeyDims * lane();
      if (d0 >= D) break;
      uint32_t code[kKeyDims];
#pragma unroll
      for (int i = 0; i < kKeyDims; ++i) {
        code[i] = code_of(keys, s.inverse, s.offset, x[turn][i]) ^ (keys == KvCode::kInt8 ? 0x80u : 0u);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (layout.key_nibbles) {
          head[layout.key(p, d0 + i).byte] = static_cast<char>(code[i] | code[i + 4] << 4);
        } else {
          head[layout.key(p, d0 + i).byte] = static_cast<char>(code[i]);
          head[layout.key(p, d0 + i + 4).byte] = static_cast<char>(code[i + 4]);
        }
      }
    }
    // Scales of values; their codes lie across tokens.
    if constexpr (!kLatent) {
      Range of_values;
      for (int d = lane(); d < D; d += kWarp) of_values.add(value_at(p, d));
      of_values.over_warp();
      const Scale v = scale_of(values, of_values.lo, of_values.hi, of_values.poison, D);
      if (lane() == 0) {
        reinterpret_cast<f16*>(head + layout.value_scales)[p] = v.scale;
        if (layout.value_nibbles) reinterpret_cast<f16*>(head + layout.value_minima)[p] = v.minimum;
        inverse[p] = v.inverse;
        offset[p] = v.offset;
      }
    }
  }
  if constexpr (!kLatent) {
    Team::meet();

    // Values: a thread takes 4 bytes' worth of a panel's tokens j, j + 4, j + 8, j + 12 at dims d and d + D
    // / 2.
    const int half = D / 2;
    for (int unit = thread; unit < P / kPanelTokens * half * 4; unit += kThreads) {
      const int j = unit % 4, d = unit / 4 % half, first = unit / 4 / half * kPanelTokens + j;
      uint32_t code[2][4];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int p = first + 4 * i;
          code[side][i] = code_of(values, inverse[p], offset[p], value_at(p, d + side * half));
        }
        const int at = d + side * half;
        if (layout.value_threes) {
          // Tokens in the order of their bits: two_bits() has shifts 0, 4, 2, 6 for i = 0 .. 3.
          const uint32_t two = (code[side][0] & 3) | (code[side][1] & 3) << 4 | (code[side][2] & 3) << 2 |
                               (code[side][3] & 3) << 6;
          head[layout.two_bits(first, at).byte] = static_cast<char>(two);
        } else if (layout.value_nibbles) {
          head[layout.value(first, at).byte] = static_cast<char>(code[side][0] | code[side][1] << 4);
          head[layout.value(first + 8, at).byte] = static_cast<char>(code[side][2] | code[side][3] << 4);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            head[layout.value(first + 4 * i, at).byte] = static_cast<char>(code[side][i]);
        }
      }
      if (layout.value_threes) {
        // upper_bit(): shifts 0, 4, 1, 5 for i = 0 .. 3, two more for the other half of the dims.
        uint32_t upper = 0;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          upper |= (code[side][0] >> 2 | code[side][1] >> 2 << 4 | code[side][2] >> 2 << 1 |
                    code[side][3] >> 2 << 5)
                   << 2 * side;
        }
        head[layout.upper_bit(first, d).byte] = static_cast<char>(upper);
      }
    }
  }
}

}  // namespace oar::cuda
