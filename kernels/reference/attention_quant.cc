// The quantized KV cache, scalar: encoding of pages, and attention in double over what the cache holds
// (kv_quant.h states the rule of visibility and the codes).
#include <algorithm>
#include <cmath>

#include "kernels/kernel_list.h"
#include "kernels/kv_codec.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_quant.h"

namespace oar {

size_t quant_kv_block_bytes(const QuantKvShape& shape) {
  return static_cast<size_t>(QuantKvLayout(shape).block_bytes);
}

namespace {

using Place = QuantKvLayout::Place;

float read_16(const std::byte* panel, int64_t index) {
  return to_f32(reinterpret_cast<const bf16*>(panel)[index]);
}

f16 load_f16(const std::byte* p, int64_t i) { return reinterpret_cast<const f16*>(p)[i]; }
void store_f16(std::byte* p, int64_t i, f16 x) { reinterpret_cast<f16*>(p)[i] = x; }

void store_code(std::byte* head, Place at, bool nibbles, uint32_t code) {
  auto& byte = reinterpret_cast<uint8_t&>(head[at.byte]);
  if (!nibbles) {
    byte = static_cast<uint8_t>(code);
  } else if (at.high) {
    byte = static_cast<uint8_t>((byte & 0x0fu) | (code << 4));
  } else {
    byte = static_cast<uint8_t>((byte & 0xf0u) | code);
  }
}

uint32_t load_code(const std::byte* head, Place at, bool nibbles) {
  const auto byte = static_cast<uint32_t>(head[at.byte]);
  return !nibbles ? byte : at.high ? byte >> 4 : byte & 15u;
}

void store_bits(std::byte* head, QuantKvLayout::Bits at, uint32_t mask, uint32_t bits) {
  auto& byte = reinterpret_cast<uint8_t&>(head[at.byte]);
  byte = static_cast<uint8_t>((byte & ~(mask << at.shift)) | (bits & mask) << at.shift);
}

void store_value(const QuantKvLayout& layout, std::byte* head, int64_t t, int64_t d, uint32_t code) {
  if (!layout.value_threes) return store_code(head, layout.value(t, d), layout.value_nibbles, code);
  store_bits(head, layout.two_bits(t, d), 3, code);
  store_bits(head, layout.upper_bit(t, d), 1, code >> 2);
}

uint32_t load_value(const QuantKvLayout& layout, const std::byte* head, int64_t t, int64_t d) {
  if (!layout.value_threes) return load_code(head, layout.value(t, d), layout.value_nibbles);
  const QuantKvLayout::Bits two = layout.two_bits(t, d), upper = layout.upper_bit(t, d);
  return (static_cast<uint32_t>(head[two.byte]) >> two.shift & 3u) |
         (static_cast<uint32_t>(head[upper.byte]) >> upper.shift & 1u) << 2;
}

KvScale scale_of(KvCode code, const float* x, int64_t D) {
  float lo = x[0], hi = x[0], poison = 0;
  for (int64_t d = 0; d < D; ++d) {
    lo = std::min(lo, x[d]);
    hi = std::max(hi, x[d]);
    poison += x[d] - x[d];
  }
  return kv_scale(code, lo, hi, poison, D);
}

uint32_t encode(KvCode code, const KvScale& s, float x) {
  // A product that is not a number (its scale says so already) takes the code 0.
  const float y = (x - s.offset) * s.inverse, z = std::isnan(y) ? 0.f : y;
  if (code == KvCode::kFp8) return to_e4m3(z).bits;
  if (code == KvCode::kInt8) {
    return static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(std::clamp(z, -127.f, 127.f))));
  }
  return static_cast<uint32_t>(std::nearbyint(std::clamp(z, 0.f, code == KvCode::kInt3 ? 7.f : 15.f)));
}

double decode(KvCode code, uint32_t bits, double scale, double minimum) {
  if (code == KvCode::kFp8) return scale * to_f32(e4m3{static_cast<uint8_t>(bits)});
  if (code == KvCode::kInt8) return scale * static_cast<int8_t>(bits);
  return scale * bits + minimum;
}

void store_mean(const QuantKvLayout& layout, std::byte* head, const std::byte* open_head,
                const KvLayout& open) {
  const int64_t P = layout.page_tokens, D = layout.head_dim;
  float mean[kMaxHeadDim];
  for (int64_t d = 0; d < D; ++d) {
    mean[d] = 0;
    for (int64_t t = 0; t < P; ++t) {
      mean[d] += read_16(open_head + open.k_panel(0, t / 16), open.k_index(t % 16, d));
    }
  }
  const float scale = kv_mean_codes(mean, D, P, reinterpret_cast<int8_t*>(head + layout.mu));
  std::memcpy(head + layout.mu_scale, &scale, sizeof scale);
}

float mean_of(const QuantKvLayout& layout, const std::byte* head, int64_t d) {
  float scale;
  std::memcpy(&scale, head + layout.mu_scale, sizeof scale);
  return scale * static_cast<float>(static_cast<int8_t>(head[layout.mu + d]));
}

// One full page of one head, from its 16-bit values.
void quantize_page(const QuantKvShape& shape, const QuantKvLayout& layout, std::byte* head,
                   const std::byte* open_head, const KvLayout& open) {
  const int64_t P = layout.page_tokens, D = layout.head_dim;
  float x[kMaxLatentDim];
  if (layout.mean) store_mean(layout, head, open_head, open);
  for (int64_t t = 0; t < P; ++t) {
    const int64_t panel = t / 16, row = t % 16;
    for (int64_t d = 0; d < D; ++d) {
      x[d] = read_16(open_head + open.k_panel(0, panel), open.k_index(row, d));
      if (layout.mean) x[d] -= mean_of(layout, head, d);
    }
    const KvScale k = scale_of(shape.keys, x, D);
    store_f16(head + layout.key_scales, t, k.scale);
    if (layout.has_key_minima) store_f16(head + layout.key_minima, t, k.minimum);
    for (int64_t d = 0; d < D; ++d) {
      store_code(head, layout.key(t, d), layout.key_nibbles,
                 encode(shape.keys, k, x[d]) ^ kv_key_offset(shape.keys));
    }
    if (layout.latent) continue;
    for (int64_t d = 0; d < D; ++d) {
      x[d] = read_16(open_head + open.v_panel(0, panel), open.v_index(row, d));
    }
    const KvScale v = scale_of(shape.values, x, D);
    store_f16(head + layout.value_scales, t, v.scale);
    if (layout.value_nibbles) store_f16(head + layout.value_minima, t, v.minimum);
    for (int64_t d = 0; d < D; ++d) { store_value(layout, head, t, d, encode(shape.values, v, x[d])); }
  }
}

// ---- append: 16-bit rows first, then the pages that became full

void append_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const QuantKvAppendArgs*>(args);
  *out = {2, {a.T, a.T * a.shape.kv_heads}};
}

void store_row(const QuantKvAppendArgs& a, const KvLayout& layout, void* pool, int64_t page, int64_t t,
               int64_t slot) {
  const int64_t K = a.shape.kv_heads, D = a.shape.head_dim, P = a.shape.page_tokens;
  const int64_t offset = slot % P;
  if (slot < 0 || offset >= page) return;
  std::byte* block = static_cast<std::byte*>(pool) + slot / P * layout.block_bytes;
  for (int64_t h = 0; h < K; ++h) {
    auto* k = reinterpret_cast<bf16*>(block + layout.k_panel(h, offset / 16));
    auto* v = reinterpret_cast<bf16*>(block + layout.v_panel(h, offset / 16));
    for (int64_t d = 0; d < D; ++d) {
      k[layout.k_index(offset % 16, d)] = to_bf16(a.k[t * a.ldk + h * D + d]);
      if (!layout.latent) v[layout.v_index(offset % 16, d)] = to_bf16(a.v[t * a.ldv + h * D + d]);
    }
  }
}

void append_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const QuantKvAppendArgs*>(args);
  const KvLayout open(open_kv_shape(a.shape)), sink(sink_kv_shape(a.shape));
  const int64_t P = a.shape.page_tokens, K = a.shape.kv_heads;
  if (phase == 0) {
    for (int64_t t = begin; t < end; ++t) {
      store_row(a, open, a.open, P, t, a.open_slots[t]);
      store_row(a, sink, a.sinks, kKvSinkTokens, t, a.sink_slots[t]);
    }
    return;
  }
  const QuantKvLayout layout(a.shape);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t t = unit / K, h = unit % K;
    const int64_t slot = a.slots[t], open_slot = a.open_slots[t];
    if (slot < 0 || slot % P != P - 1 || open_slot < 0) continue;
    quantize_page(
        a.shape, layout,
        static_cast<std::byte*>(a.pool) + slot / P * layout.block_bytes + h * layout.head_bytes,
        static_cast<const std::byte*>(a.open) + open_slot / P * open.block_bytes + h * open.head_bytes, open);
  }
}

// ---- attention

// One query head; reads keys and values in the form its position prescribes.
struct Query {
  const QuantPagedAttentionArgs& a;
  int64_t b, kv_head, page;  // sequence, K head, the query's own page
  KvLayout open{open_kv_shape(a.shape)}, sink{sink_kv_shape(a.shape)};
  QuantKvLayout quant{a.shape};

  // Fills x with the key or value at `position`.
  void fetch(bool keys, int64_t position, double* x) const {
    const int64_t P = a.shape.page_tokens, D = a.shape.head_dim, t = position % P;
    if (position < kKvSinkTokens || position / P == page) {
      const bool own = position / P == page;
      const int32_t index =
          own ? a.open_tables[b * a.open_max_blocks + page] : a.sink_tables[b * a.sink_max_blocks];
      const KvLayout& layout = own ? open : sink;
      const auto* block = static_cast<const std::byte*>(own ? a.open : a.sinks) + index * layout.block_bytes;
      const std::byte* panel =
          block + (keys ? layout.k_panel(kv_head, t / 16) : layout.v_panel(kv_head, t / 16));
      for (int64_t d = 0; d < D; ++d) {
        x[d] = read_16(panel, keys ? layout.k_index(t % 16, d) : layout.v_index(t % 16, d));
      }
      return;
    }
    const int32_t index = a.common.block_tables[b * a.common.max_blocks + position / P];
    const std::byte* head =
        static_cast<const std::byte*>(a.common.pool) + index * quant.block_bytes + kv_head * quant.head_bytes;
    const KvCode code = keys ? a.shape.keys : a.shape.values;
    const float scale = to_f32(load_f16(head + (keys ? quant.key_scales : quant.value_scales), t));
    float minimum = code == KvCode::kInt4Mean ? kv_mean_minimum(scale) : 0;
    if (keys ? quant.has_key_minima : quant.value_nibbles) {
      minimum = to_f32(load_f16(head + (keys ? quant.key_minima : quant.value_minima), t));
    }
    for (int64_t d = 0; d < D; ++d) {
      const uint32_t bits = keys ? load_code(head, quant.key(t, d), quant.key_nibbles) ^ kv_key_offset(code)
                                 : load_value(quant, head, t, d);
      x[d] = decode(code, bits, double{scale}, double{minimum});
      if (keys && quant.mean) x[d] += mean_of(quant, head, d);
    }
  }
};

void attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const QuantPagedAttentionArgs*>(args);
  *out = {1, {a.common.T * a.common.H}};
}

// One pass with a running maximum: rescaling in double loses less than any kernel's own rounding.
void attention_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const QuantPagedAttentionArgs*>(args);
  const PagedAttentionArgs& c = a.common;
  const int64_t D = a.shape.head_dim, DV = c.shape.value_dim();
  double x[kMaxLatentDim], sum[kMaxLatentDim];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = i / c.H, h = i % c.H;
    int64_t b = 0;
    while (c.seq_start[b + 1] <= t) ++b;
    const int64_t last = c.context_len[b] - c.seq_start[b + 1] + t;
    const int64_t first = first_seen(c, last);
    const Query query{a, b, h / (c.H / a.shape.kv_heads), last / a.shape.page_tokens};
    const float* q = c.q + t * c.ldq + h * D;

    // A sink is what was seen first, of value zero.
    double max = c.sink_logits != nullptr ? c.sink_logits[h] : -INFINITY;
    double total = c.sink_logits != nullptr ? 1 : 0;
    std::fill_n(sum, DV, 0.0);
    for (int64_t s = first; s <= last; ++s) {
      query.fetch(true, s, x);
      double logit = 0;
      for (int64_t d = 0; d < D; ++d) logit += q[d] * x[d];
      logit *= c.scale;
      if (c.softcap > 0) logit = c.softcap * std::tanh(logit / c.softcap);
      if (logit > max) {
        const double keep = std::exp(max - logit);
        total *= keep;
        for (int64_t d = 0; d < DV; ++d) sum[d] *= keep;
        max = logit;
      }
      const double p = std::exp(logit - max);
      total += p;
      if (!query.quant.latent) query.fetch(false, s, x);
      for (int64_t d = 0; d < DV; ++d) sum[d] += p * x[d];
    }
    for (int64_t d = 0; d < DV; ++d) c.out[t * c.ldo + h * DV + d] = static_cast<float>(sum[d] / total);
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kQuantKvAppend, Isa::kReference, append_plan, append_run},
    {KernelFamily::kQuantPagedAttention, Isa::kReference, attention_plan, attention_run},
};

}  // namespace

constinit const KernelTable kernels_attention_quant_reference{kEntries};

}  // namespace oar
