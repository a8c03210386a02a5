#include "kernels/cuda/attention_codes.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_tiles.h"

namespace oar::cuda {
namespace {

// Two codes as bf16; int8 in two's complement.
template <KvCode kCode>
OAR_DEVICE uint32_t pair_of_codes(uint32_t first, uint32_t second) {
  if constexpr (kCode == KvCode::kFp8) {
    const float2 both = __half22float2(
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(first | second << 8), __NV_E4M3));
    return pack_bf16(both.x, both.y);
  } else if constexpr (kCode == KvCode::kInt8) {
    return pack_bf16(static_cast<float>(static_cast<int8_t>(first)),
                     static_cast<float>(static_cast<int8_t>(second)));
  } else {
    return pack_bf16(static_cast<float>(first), static_cast<float>(second));
  }
}

// Four codes, a byte each.
template <KvCode kCode>
OAR_DEVICE uint2 four_codes(uint32_t four) {
  const auto pair = [&](int shift) {
    return pair_of_codes<kCode>(four >> shift & 255u, four >> (shift + 8) & 255u);
  };
  return make_uint2(pair(0), pair(16));
}
// Eight codes of 4 bits: low nibbles, then high ones.
OAR_DEVICE uint4 eight_codes(uint32_t eight) {
  const uint2 low = four_codes<KvCode::kInt4>(eight & 0x0f0f0f0fu),
              high = four_codes<KvCode::kInt4>(eight >> 4 & 0x0f0f0f0fu);
  return make_uint4(low.x, low.y, high.x, high.y);
}
// Keys of int8 have 128 more than they mean.
constexpr uint32_t kKeyOffset = 0x80808080u;

// As Bf16Cache. A row sees each position in one form.
template <KvCode kKeys, KvCode kValues>
class CodeCache {
 public:
  static constexpr bool kScaled = true, kKeyMinima = kKeys == KvCode::kInt4,
                        kValueMinima = kValues == KvCode::kInt4;
  using Pages = QuantizedPages<false>;

  OAR_DEVICE CodeCache(const PagedAttentionArgs& a, const Pages& pages, int64_t b, int kv, int pos)
      : a_(a), pages_(pages), b_(b), kv_(kv), pos_(pos) {}
  OAR_DEVICE const void* key_place(int at, int) const { return head(at); }
  OAR_DEVICE uint4 key(const void* head, int at, int i) const {
    const int p = at % pages_.P, d = 32 * i + 8 * (lane() % 4);
    if (pages_.in_16_bits(pos_, at))
      return load_once(static_cast<const uint16_t*>(head) + pages_.page_of(pos_, at).key(p, d));
    const auto* bytes = static_cast<const char*>(head);
    const uint32_t first = word(bytes + pages_.layout.key(p, d).byte);
    if constexpr (kKeyMinima) {
      return eight_codes(first);
    } else {
      constexpr uint32_t kOffset = kKeys == KvCode::kInt8 ? kKeyOffset : 0u;
      const uint32_t second = word(bytes + pages_.layout.key(p, d + 4).byte);
      const uint2 low = four_codes<kKeys>(first ^ kOffset), high = four_codes<kKeys>(second ^ kOffset);
      return make_uint4(low.x, low.y, high.x, high.y);
    }
  }
  OAR_DEVICE uint4 values(int at, int seen, int d) const {
    const int p = at % pages_.P;
    const void* its = head(seen);
    if (pages_.in_16_bits(pos_, seen))
      return load_once(static_cast<const uint16_t*>(its) + pages_.page_of(pos_, seen).value(p, d));
    const QuantKvLayout::Place place = pages_.layout.value(p, d);
    // Four tokens of a dim share a word, or eight; its first byte is that of token 4 i.
    const uint4 words =
        load(reinterpret_cast<const uint4*>(static_cast<const char*>(its) + place.byte - p % 4));
    const auto pair = [&](uint32_t four) {
      const uint32_t two = four >> (8 * (p % 4));
      if constexpr (kValueMinima) {
        const uint32_t codes = place.high ? two >> 4 : two;
        return pair_of_codes<kValues>(codes & 15u, codes >> 8 & 15u);
      } else {
        return pair_of_codes<kValues>(two & 255u, two >> 8 & 255u);
      }
    };
    return make_uint4(pair(words.x), pair(words.y), pair(words.z), pair(words.w));
  }
  OAR_DEVICE float2 key_factor(int at) const {
    return factor(at, pages_.layout.key_scales, kKeyMinima ? pages_.layout.key_minima : -1);
  }
  OAR_DEVICE float2 value_factor(int at) const {
    return factor(at, pages_.layout.value_scales, kValueMinima ? pages_.layout.value_minima : -1);
  }

 private:
  OAR_DEVICE const void* head(int at) const { return pages_.head(a_, b_, kv_, pos_, at); }
  OAR_DEVICE static uint32_t word(const char* at) { return load(reinterpret_cast<const uint32_t*>(at)); }
  OAR_DEVICE float2 factor(int at, int64_t scales, int64_t minima) const {
    if (pages_.in_16_bits(pos_, at)) return make_float2(1.f, 0.f);
    const auto* bytes = static_cast<const char*>(head(at));
    return make_float2(f16_at(bytes + scales, at % pages_.P),
                       minima >= 0 ? f16_at(bytes + minima, at % pages_.P) : 0.f);
  }
  const PagedAttentionArgs& a_;
  const Pages& pages_;
  const int64_t b_;
  const int kv_, pos_;
};

// As Bf16Steps. Rows of a tile lie in one page, so they see each position in one form. Codes and their
// factors come as they lie in pages, panel by panel, and are decoded when they are there. The codes are
// arguments, so that tiers share one kernel: what multiplies sees bf16.
template <int kDims>
class CodeSteps {
 public:
  static constexpr int kDims32 = kDims, kD = 32 * kDims32;
  static constexpr bool kScaled = true, kByPages = true;
  using Pages = QuantizedPages<false>;
  using Step = StepShared<kDims32>;

 private:
  static constexpr int kFactors = 4, kFactorBytes = kPanel * static_cast<int>(sizeof(f16));
  // Of a panel, at most: keys, values, factors.
  static constexpr int kSide = kPanel * kD,
                       kPanelBytes = (2 * kSide + kFactors * kFactorBytes + 127) / 128 * 128;

 public:
  static constexpr size_t kShared = 4 * kPanelBytes + kFactors * kStep * sizeof(float);

  OAR_DEVICE CodeSteps(SharedMemory& shared, const PagedAttentionArgs& a, const Pages& pages, int64_t b,
                       int kv, int from, int to)
      : a_(a),
        pages_(pages),
        panels_(shared.take<unsigned char>(4 * kPanelBytes)),
        factors_(shared.take<float>(kFactors * kStep)),
        b_(b),
        kv_(kv),
        from_(from),
        to_(to) {}
  OAR_DEVICE bool key_minima() const { return pages_.layout.has_key_minima; }
  OAR_DEVICE bool value_minima() const { return pages_.layout.value_nibbles; }
  // Of a step's positions p and p + 1, p even.
  OAR_DEVICE float2 factors(Factor which, int p) const {
    return load(reinterpret_cast<const float2*>(factors_ + static_cast<int>(which) * kStep + p));
  }

  OAR_DEVICE void start(const Step& step, int first) const {
#pragma unroll 1
    for (int panel = 0; panel < 2; ++panel) {
      const int at = first + panel * kPanel, p = at % pages_.P;
      const void* head = seen(at) ? pages_.head(a_, b_, kv_, to_, at) : nullptr;
      if (!coded(at)) {
        step.copy(pages_.page_of(to_, at), panel, at, from_, to_, static_cast<const uint16_t*>(head));
        continue;
      }
      unsigned char* const codes = panel_of(first, panel);
      const auto* bytes = static_cast<const char*>(head);
      copy(codes, bytes + pages_.layout.key(p, 0).byte, kSide / (pages_.layout.key_nibbles ? 2 : 1));
      copy(codes + kSide, bytes + pages_.layout.value(p, 0).byte,
           kSide / (pages_.layout.value_nibbles ? 2 : 1));
      const int which = thread() / 2, half = thread() % 2 * 16;
      if (which < kFactors && has(which)) {
        copy_async16(codes + 2 * kSide + which * kFactorBytes + half,
                     bytes + place_of(which) + p * static_cast<int>(sizeof(f16)) + half);
      }
    }
  }
  // Behind its copies, all threads of the block.
  OAR_DEVICE void finish(const Step& step, int first) const {
#pragma unroll 1
    for (int panel = 0; panel < 2; ++panel) {
      if (!coded(first + panel * kPanel)) continue;
      const unsigned char* const codes = panel_of(first, panel);
      if (pages_.layout.key_nibbles) decode_key_nibbles(step, panel, codes);
      else if (pages_.keys == KvCode::kFp8) decode_keys<KvCode::kFp8>(step, panel, codes);
      else decode_keys<KvCode::kInt8>(step, panel, codes);
      if (pages_.layout.value_nibbles) decode_value_nibbles(step, panel, codes + kSide);
      else if (pages_.values_code == KvCode::kFp8) decode_values<KvCode::kFp8>(step, panel, codes + kSide);
      else decode_values<KvCode::kInt8>(step, panel, codes + kSide);
    }
    static_assert(kAttentionThreads == kFactors * kStep);
    const int which = warp(), panel = lane() / kPanel;
    float factor = which % 2 == 0 ? 1.f : 0.f;
    if (coded(first + panel * kPanel) && has(which))
      factor =
          f16_at(reinterpret_cast<const char*>(panel_of(first, panel) + 2 * kSide + which * kFactorBytes),
                 lane() % kPanel);
    factors_[thread()] = factor;
  }

 private:
  OAR_DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  // Of a step; that of the next one is another.
  OAR_DEVICE unsigned char* panel_of(int first, int panel) const {
    return panels_ + (first / kStep % 2 * 2 + panel) * kPanelBytes;
  }
  OAR_DEVICE bool seen(int at) const { return at + kPanel > from_ && at <= to_; }
  OAR_DEVICE bool coded(int at) const { return seen(at) && !pages_.in_16_bits(to_, at); }
  OAR_DEVICE bool has(int which) const {
    return which % 2 == 0 || (which == static_cast<int>(Factor::kKeyMinimum) ? key_minima() : value_minima());
  }
  OAR_DEVICE int64_t place_of(int which) const {
    const QuantKvLayout& l = pages_.layout;
    switch (static_cast<Factor>(which)) {
      case Factor::kKeyScale: return l.key_scales;
      case Factor::kKeyMinimum: return l.key_minima;
      case Factor::kValueScale: return l.value_scales;
      default: return l.value_minima;
    }
  }
  OAR_DEVICE static void copy(unsigned char* to, const char* from, int bytes) {
    for (int i = 16 * thread(); i < bytes; i += 16 * kAttentionThreads) copy_async16(to + i, from + i);
  }

  // A word has four dims of a token, words of 16 tokens lie side by side.
  template <KvCode kCode>
  OAR_DEVICE void decode_keys(const Step& step, int panel, const unsigned char* codes) const {
    for (int i = thread(); i < kPanel * kD / 4; i += kAttentionThreads) {
      const int chunk = i / kWarp, token = i % kWarp / 2, half = i % 2;
      const uint32_t four =
          load(reinterpret_cast<const uint32_t*>(codes) + (2 * chunk + half) * kPanel + token);
      store(reinterpret_cast<uint2*>(step.key_place(chunk, panel * kPanel + token)) + half,
            four_codes<kCode>(kCode == KvCode::kInt8 ? four ^ kKeyOffset : four));
    }
  }
  OAR_DEVICE void decode_key_nibbles(const Step& step, int panel, const unsigned char* codes) const {
    for (int i = thread(); i < kPanel * kD / 8; i += kAttentionThreads) {
      store(reinterpret_cast<uint4*>(step.key_place(i / kPanel, panel * kPanel + i % kPanel)),
            eight_codes(load(reinterpret_cast<const uint32_t*>(codes) + i)));
    }
  }
  // A word has four tokens of a dim, or eight: pairs of tokens lie together in a step.
  template <KvCode kCode>
  OAR_DEVICE void decode_values(const Step& step, int panel, const unsigned char* codes) const {
    for (int i = thread(); i < kPanel / 4 * kD / 4; i += kAttentionThreads) {
      const int d = i % (kD / 4) * 4, pair = panel * kPanel / 2 + i / (kD / 4) * 2;
      store_pairs<kCode>(step, pair, d, load(reinterpret_cast<const uint4*>(codes) + i));
    }
  }
  OAR_DEVICE void decode_value_nibbles(const Step& step, int panel, const unsigned char* codes) const {
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    for (int i = thread(); i < kPanel / 8 * kD / 4; i += kAttentionThreads) {
      const int d = i % (kD / 4) * 4, pair = panel * kPanel / 2 + i / (kD / 4) * 4;
      const uint4 w = load(reinterpret_cast<const uint4*>(codes) + i);
      store_pairs<KvCode::kInt4>(step, pair, d, w & kLow);
      store_pairs<KvCode::kInt4>(step, pair + 2, d,
                                 make_uint4(w.x >> 4, w.y >> 4, w.z >> 4, w.w >> 4) & kLow);
    }
  }
  // Four tokens of dims d .. d + 3.
  template <KvCode kCode>
  OAR_DEVICE static void store_pairs(const Step& step, int pair, int d, uint4 w) {
    const uint2 x = four_codes<kCode>(w.x), y = four_codes<kCode>(w.y), z = four_codes<kCode>(w.z),
                v = four_codes<kCode>(w.w);
    store(reinterpret_cast<uint4*>(step.value_place(pair, d)), make_uint4(x.x, y.x, z.x, v.x));
    store(reinterpret_cast<uint4*>(step.value_place(pair + 1, d)), make_uint4(x.y, y.y, z.y, v.y));
  }

  const PagedAttentionArgs& a_;
  const Pages& pages_;
  unsigned char* const panels_;
  float* const factors_;
  const int64_t b_;
  const int kv_, from_, to_;
};

template <KvCode kKeys, KvCode kValues>
int attend_tier(const PagedAttentionArgs& a, const QuantizedPages<false>& pages, void* scratch, Stream stream,
                const HeadTransform& then) {
  using Cache = CodeCache<kKeys, kValues>;
  switch (a.shape.head_dim / 32) {
    case 1: return attend_by_tensor_cores<Cache, CodeSteps<1>>(a, pages, scratch, stream, then);
    case 2: return attend_by_tensor_cores<Cache, CodeSteps<2>>(a, pages, scratch, stream, then);
    case 3: return attend_by_tensor_cores<Cache, CodeSteps<3>>(a, pages, scratch, stream, then);
    default: return attend_by_tensor_cores<Cache, CodeSteps<4>>(a, pages, scratch, stream, then);
  }
}

}  // namespace

int attend_codes(const PagedAttentionArgs& a, const QuantizedPages<false>& pages, KvCode keys, KvCode values,
                 void* scratch, Stream stream, const HeadTransform& then) {
  if (keys == KvCode::kFp8) return attend_tier<KvCode::kFp8, KvCode::kFp8>(a, pages, scratch, stream, then);
  if (keys == KvCode::kInt4)
    return attend_tier<KvCode::kInt4, KvCode::kInt4>(a, pages, scratch, stream, then);
  if (values == KvCode::kInt8)
    return attend_tier<KvCode::kInt8, KvCode::kInt8>(a, pages, scratch, stream, then);
  return attend_tier<KvCode::kInt8, KvCode::kInt4>(a, pages, scratch, stream, then);
}

}  // namespace oar::cuda
