#include "kernels/cuda/attention_codes.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_spans.h"

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
    if constexpr (kKeyMinima) {  // low nibbles, then high ones
      const auto pair = [&](int shift) {
        return pair_of_codes<kKeys>(first >> shift & 15u, first >> (shift + 8) & 15u);
      };
      return make_uint4(pair(0), pair(16), pair(4), pair(20));
    } else {
      constexpr uint32_t kOffset = kKeys == KvCode::kInt8 ? 0x80808080u : 0u;
      const uint32_t second = word(bytes + pages_.layout.key(p, d + 4).byte);
      const auto pair = [&](uint32_t four, int shift) {
        const uint32_t two = (four ^ kOffset) >> shift;
        return pair_of_codes<kKeys>(two & 255u, two >> 8 & 255u);
      };
      return make_uint4(pair(first, 0), pair(first, 16), pair(second, 0), pair(second, 16));
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

// Rows at a time.
int64_t rows_of_spans(const PagedAttentionArgs& a) {
  const int64_t rows = split_rows(a) > 1 ? split_rows(a) : 1;
  return a.T < rows ? a.T : rows;
}

template <int kDims32, class Cache>
int attend_by_spans(const PagedAttentionArgs& a, const QuantizedPages<false>& pages, void* scratch,
                    Stream stream, const HeadTransform& then) {
  const int64_t each = rows_of_spans(a);
  for (int64_t first = 0; first < a.T; first += each) {
    const int64_t rows = a.T - first < each ? a.T - first : each;
    const int error =
        launch_spans<kDims32, Cache>(a, pages, rows_aligned(a), first, rows, scratch, stream, then);
    if (error != 0) return error;
  }
  return 0;
}
template <KvCode kKeys, KvCode kValues>
int attend_tier(const PagedAttentionArgs& a, const QuantizedPages<false>& pages, void* scratch, Stream stream,
                const HeadTransform& then) {
  using Cache = CodeCache<kKeys, kValues>;
  switch (a.shape.head_dim / 32) {
    case 1: return attend_by_spans<1, Cache>(a, pages, scratch, stream, then);
    case 2: return attend_by_spans<2, Cache>(a, pages, scratch, stream, then);
    case 3: return attend_by_spans<3, Cache>(a, pages, scratch, stream, then);
    default: return attend_by_spans<4, Cache>(a, pages, scratch, stream, then);
  }
}

}  // namespace

uint64_t codes_attention_scratch(const PagedAttentionArgs& a) {
  return static_cast<uint64_t>(rows_of_spans(a) * partial_bytes(a)) + 16;
}

int attend_codes(const PagedAttentionArgs& a, const QuantizedPages<false>& pages, KvCode keys, KvCode values,
                 void* scratch, Stream stream, const HeadTransform& then) {
  if (spans_of(a) <= 0 || a.B <= 0) return 0;
  if (keys == KvCode::kFp8) return attend_tier<KvCode::kFp8, KvCode::kFp8>(a, pages, scratch, stream, then);
  if (keys == KvCode::kInt4)
    return attend_tier<KvCode::kInt4, KvCode::kInt4>(a, pages, scratch, stream, then);
  if (values == KvCode::kInt8)
    return attend_tier<KvCode::kInt8, KvCode::kInt8>(a, pages, scratch, stream, then);
  return attend_tier<KvCode::kInt8, KvCode::kInt4>(a, pages, scratch, stream, then);
}

}  // namespace oar::cuda
