// Attention over an fp8 cache, and over keys that hold values in 8 or 4 bits: a codes engine of
// attention_quant_simd.h.
// It widens the codes of a span, exactly, into panels of bf16 in L1 or L2, once for all rows of a tile. It
// multiplies them as a 16-bit engine does (attention_register.h). A key's scale multiplies its logit, a
// value's scale its probability.
#pragma once

#include <type_traits>

#include "kernels/cpu/attention/attention_quant_codes.h"
#include "kernels/cpu/attention/attention_register.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Four codes per lane to pairs of bf16: those of bytes 0 and 1, and of 2 and 3. As a float the code's bits,
// put where f32 has them, are its value times 2^-120, subnormals included.
struct Bf16Pairs {
  Vi low, high;
};
OAR_INLINE Bf16Pairs widen_e4m3(Vi codes) {
  const Vi sign = set1_int(INT32_MIN), magnitude = set1_int(0x7f << 20);
  const Vf power = from_bits(set1_int((127 + 120) << 23));
  const auto value = [&](Vi at_top) __attribute__((always_inline)) {  // the code in the lane's upper byte
    const Vf x = from_bits(shift_right<4>(at_top) & magnitude) * power;
    return bits(x) | (at_top & sign);
  };
  const Vi b0 = value(shift_left<24>(codes)), b1 = value(shift_left<16>(codes)),
           b2 = value(shift_left<8>(codes)), b3 = value(codes);
  const Vi lower = set1_int(0xffff), upper = set1_int(static_cast<int32_t>(0xffff0000u));
  return {(shift_right<16>(b0) & lower) | (b1 & upper), (shift_right<16>(b2) & lower) | (b3 & upper)};
}

// The same of int8, kept with an offset of 128. Integers below 256 are bf16.
OAR_INLINE Bf16Pairs widen_int8(Vi codes) {
  const Vi byte = set1_int(0xff), offset = set1_int(128);
  const auto value = [&](Vi at_bottom) __attribute__((always_inline)) {
    return bits(to_float((at_bottom & byte) - offset));
  };
  const Vi b0 = value(codes), b1 = value(shift_right<8>(codes)), b2 = value(shift_right<16>(codes)),
           b3 = value(shift_right<24>(codes));
  const Vi lower = set1_int(0xffff), upper = set1_int(static_cast<int32_t>(0xffff0000u));
  return {(shift_right<16>(b0) & lower) | (b1 & upper), (shift_right<16>(b2) & lower) | (b3 & upper)};
}

// The same of int4 around 0: halves of odd integers.
OAR_INLINE Bf16Pairs widen_int4(Vi codes) {
  const Vi byte = set1_int(0xff);
  const Vf middle = set1(-kv_mean_minimum(1.f));
  const auto value = [&](Vi at_bottom) __attribute__((always_inline)) {
    return bits(to_float(at_bottom & byte) - middle);
  };
  const Vi b0 = value(codes), b1 = value(shift_right<8>(codes)), b2 = value(shift_right<16>(codes)),
           b3 = value(shift_right<24>(codes));
  const Vi lower = set1_int(0xffff), upper = set1_int(static_cast<int32_t>(0xffff0000u));
  return {(shift_right<16>(b0) & lower) | (b1 & upper), (shift_right<16>(b2) & lower) | (b3 & upper)};
}

// Near: the 16-bit engine that multiplies, of registers or of tiles. Codec: how it stores a probability.
template <class Near, class Codec>
class WidenedEngine : public CodesEngine {
 public:
  static size_t scratch_bytes(int64_t rows, int64_t D) {
    return wide_at(rows, D) + wide_bytes(D) + near_bytes(D);
  }
  WidenedEngine(const QuantKvShape& shape, int64_t rows, void* memory)
      : CodesEngine(shape, rows, memory),
        near_(shape.head_dim, open_kv_shape(shape).value_dim(),
              static_cast<char*>(memory) + wide_at(rows, shape.head_dim) + wide_bytes(shape.head_dim)),
        wide_layout_(open_kv_shape(shape)),
        integers_(shape.keys == KvCode::kInt8) {
    char* wide = static_cast<char*>(memory) + wide_at(rows, D_);
    const int64_t panel = kKvPanelTokens * D_ * static_cast<int64_t>(sizeof(bf16));
    for (int64_t i = 0; i < kSpanPanels; ++i) {
      wide_.k[i] = wide + i * panel;
      wide_.v[i] = wide + (kSpanPanels + i) * panel;
    }
  }

  void begin(int64_t) {}
  void prepare(int64_t, const float*, float) {}  // the 16-bit engine's queries serve

  Range attend(TileRows<Near>& t, int64_t span, const QuantPanels& panels, const QuantPanels& next) {
    const Range rows = seeing(t, span);
    load_scales(panels);
    look_ahead(next, 2 * kSpanPanels + rows.hi - rows.lo);
    for (int64_t i = panels.lo; i < panels.hi; ++i) {
      ahead_.step();
      if (layout_.key_nibbles) widen_nibbles(key_panel(panels, i), wide_.k[i]);
      else if (integers_) widen<widen_int8>(key_panel(panels, i), 16, D_ / 4, wide_.k[i]);
      else widen<widen_e4m3>(key_panel(panels, i), 16, D_ / 4, wide_.k[i]);
      ahead_.step();
      if (!layout_.latent) widen<widen_e4m3>(value_panel(panels, i), D_, 4, wide_.v[i]);
    }
    wide_.lo = panels.lo;
    wide_.hi = panels.hi;
    SpanWork w{span, &wide_, rows.lo, rows.hi};
    w.look_ahead({});
    near_.begin(t);
    if constexpr (requires { near_.forget(); }) near_.forget();
    near_.logits(t, w);
    for (int64_t r = rows.lo; r < rows.hi; ++r) {
      ahead_.step();
      weigh(t, r, span);
    }
    if (layout_.latent) values_of_keys(wide_layout_, t.values, &wide_);
    near_.values(t, w);
    return rows;
  }

 private:
  using Prob = typename Near::Prob;

  // Behind what all codes engines keep: the keys and values of a span in 16 bits, then what `Near` wants.
  static size_t wide_at(int64_t rows, int64_t D) { return CodesEngine::scratch_bytes(rows, D); }
  static size_t wide_bytes(int64_t D) { return static_cast<size_t>(2 * kSpan * D) * sizeof(bf16); }
  static size_t near_bytes(int64_t D) { return Near::scratch_bytes(D); }

  // Lines of dwords with four codes each: twice as many with two numbers of 16 bits each.
  template <Bf16Pairs (*kWiden)(Vi)>
  OAR_INLINE static void widen(const char* codes, int64_t dwords, int64_t lines, const char* panel) {
    auto* out = reinterpret_cast<float*>(const_cast<char*>(panel));  // 32 bits are 32 bits
    for (int64_t i = 0; i < lines; ++i, out += 2 * dwords) {
      for_lanes(
          dwords, [&](int64_t d, int64_t n) __attribute__((always_inline)) {
            const int64_t at = (i * dwords + d) * 4;
            const Bf16Pairs x = kWiden(load_line(codes + at));
            store_part(out + d, from_bits(x.low), n);
            store_part(out + dwords + d, from_bits(x.high), n);
          });
    }
  }

  // Keys of eight dims a dword: four pairs of dims a line of 16 tokens.
  OAR_INLINE void widen_nibbles(const char* codes, const char* panel) const {
    auto* out = reinterpret_cast<float*>(const_cast<char*>(panel));
    for (int64_t i = 0; i < D_ / 8; ++i, codes += 64, out += 4 * kKvPanelTokens) {
      for (int64_t t = 0; t < kKvPanelTokens; t += kLanes) {
        const Vi x = load_line(codes + 4 * t);
        const Bf16Pairs low = widen_int4(low_nibbles(x)), high = widen_int4(high_nibbles(x));
        store(out + t, from_bits(low.low));
        store(out + kKvPanelTokens + t, from_bits(low.high));
        store(out + 2 * kKvPanelTokens + t, from_bits(high.low));
        store(out + 3 * kKvPanelTokens + t, from_bits(high.high));
      }
    }
  }

  OAR_INLINE static void store_prob(Prob* p, Vf w) {
    if constexpr (std::is_same_v<Prob, float>) {
      store(p, w);
    } else {
      Codec::store_bf16(p, w, kLanes);
    }
  }

  // As CodesEngine::softmax(), but for probabilities of the 16-bit engine.
  void weigh(TileRows<Near>& t, int64_t r, int64_t span) {
    Range range = t.in_span(r, span);
    if (range.lo > range.hi) range.lo = range.hi;
    float* x = t.logits + r * kLogitStride;
    const int64_t begin = range.lo / kKvPanelTokens * kKvPanelTokens, end = range.hi;
    Vf largest = set1(-INFINITY);
    for (int64_t i = begin; i < range.lo; ++i) x[i] = key_scale_[i] = 0.f;
    for (int64_t i = begin; i < end; i += kLanes) {
      Vf logit = load(x + i) * load(key_scale_ + i);
      if (t.a.softcap > 0) logit = tanh(logit) * set1(t.a.softcap * kLog2E);
      store(x + i, logit);
    }
    for (int64_t i = begin; i < range.lo; ++i) x[i] = -INFINITY;
    for (int64_t i = begin; i < end; i += kLanes) largest = max(load(x + i), largest);
    const float most = reduce_max(largest);
    const Vf reference = set1(most == -INFINITY ? 0.f : most);
    Prob* p = t.probs(r);
    Vf sum = zero();
    for (int64_t i = begin; i < end; i += kLanes) {
      const Vf e = exp2_nonpositive<4>(load(x + i) - reference);
      sum = sum + e;
      store_prob(p + i, e * load(value_scale_ + i));  // in place: never past its logits
    }
    // An engine of larger steps multiplies what other rows of its tile see as well.
    const int64_t first = Near::kProbAlign == kKvPanelTokens
                              ? begin
                              : wide_.lo * kKvPanelTokens / Near::kProbAlign * Near::kProbAlign;
    for (int64_t i = first; i < range.lo; ++i) p[i] = Prob{};
    t.state[r] = {most, reduce_add(sum)};
  }

  Near near_;
  KvLayout wide_layout_;
  bool integers_;
  SpanPanels wide_;
};

}  // namespace oar::OAR_SIMD_NAMESPACE
