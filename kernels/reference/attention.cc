// Attention over the paged cache, scalar, in double: two passes over each query's positions, no tiling, no
// online softmax. Keys and values are read as the cache holds them, so the rounding of the cache's type is
// part of the truth.
#include "kernels/attention.h"

#include <cmath>

#include "kernels/kernel_list.h"
#include "kernels/kv_layout.h"

namespace oar {

size_t kv_block_bytes(const KvShape& shape) { return static_cast<size_t>(KvLayout(shape).block_bytes); }

namespace {

double read(DType type, const std::byte* panel, int64_t index) {
  switch (type) {
    case DType::kF16: return to_f32(reinterpret_cast<const f16*>(panel)[index]);
    case DType::kBF16: return to_f32(reinterpret_cast<const bf16*>(panel)[index]);
    default: return reinterpret_cast<const float*>(panel)[index];
  }
}

void write(DType type, std::byte* panel, int64_t index, float x) {
  switch (type) {
    case DType::kF16: reinterpret_cast<f16*>(panel)[index] = to_f16(x); break;
    case DType::kBF16: reinterpret_cast<bf16*>(panel)[index] = to_bf16(x); break;
    default: reinterpret_cast<float*>(panel)[index] = x; break;
  }
}

void append_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const KvAppendArgs*>(args)->T}};
}

void append_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const KvAppendArgs*>(args);
  const KvLayout layout(a.shape);
  const int64_t P = a.shape.page_tokens, K = a.shape.kv_heads, D = a.shape.head_dim;
  for (int64_t t = begin; t < end; ++t) {
    if (a.slots[t] < 0) continue;
    std::byte* block = static_cast<std::byte*>(a.pool) + a.slots[t] / P * layout.block_bytes;
    const int64_t panel = a.slots[t] % P / kKvPanelTokens, row = a.slots[t] % kKvPanelTokens;
    for (int64_t h = 0; h < K; ++h) {
      for (int64_t d = 0; d < D; ++d) {
        write(a.shape.type, block + layout.k_panel(h, panel), layout.k_index(row, d),
              a.k[t * a.ldk + h * D + d]);
        if (!layout.latent)
          write(a.shape.type, block + layout.v_panel(h, panel), layout.v_index(row, d),
                a.v[t * a.ldv + h * D + d]);
      }
    }
  }
}

struct Query {
  const PagedAttentionArgs& a;
  KvLayout layout;
  int64_t b;        // sequence
  int64_t kv_head;  // K head it reads

  const std::byte* block(int64_t position) const {
    const int32_t index = a.block_tables[b * a.max_blocks + position / a.shape.page_tokens];
    return static_cast<const std::byte*>(a.pool) + index * layout.block_bytes;
  }
  double key(int64_t position, int64_t d) const {
    const int64_t panel = position % a.shape.page_tokens / kKvPanelTokens;
    return read(a.shape.type, block(position) + layout.k_panel(kv_head, panel),
                layout.k_index(position % kKvPanelTokens, d));
  }
  double value(int64_t position, int64_t d) const {
    if (layout.latent) return key(position, d);
    const int64_t panel = position % a.shape.page_tokens / kKvPanelTokens;
    return read(a.shape.type, block(position) + layout.v_panel(kv_head, panel),
                layout.v_index(position % kKvPanelTokens, d));
  }
  double logit(const float* q, int64_t position) const {
    double dot = 0;
    for (int64_t d = 0; d < a.shape.head_dim; ++d) dot += q[d] * key(position, d);
    dot *= a.scale;
    return a.softcap > 0 ? a.softcap * std::tanh(dot / a.softcap) : dot;
  }
};

void attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const PagedAttentionArgs*>(args);
  *out = {1, {a.T * a.H}};
  // One row of sums over the head's dims.
  out->worker_scratch = static_cast<size_t>(a.shape.value_dim()) * sizeof(double);
}

void attention_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const PagedAttentionArgs*>(args);
  const int64_t D = a.shape.head_dim, DV = a.shape.value_dim();
  auto* sum = static_cast<double*>(scratch.worker);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = i / a.H, h = i % a.H;
    int64_t b = 0;
    while (a.seq_start[b + 1] <= t) ++b;
    const int64_t last = a.context_len[b] - a.seq_start[b + 1] + t;
    const int64_t first = first_seen(a, last);
    const Query query{a, KvLayout(a.shape), b, h / (a.H / a.shape.kv_heads)};
    const float* q = a.q + t * a.ldq + h * D;

    const double sink = a.sink_logits != nullptr ? a.sink_logits[h] : -INFINITY;
    double max = sink;
    for (int64_t s = first; s <= last; ++s) max = std::fmax(max, query.logit(q, s));
    double total = std::exp(sink - max);
    for (int64_t d = 0; d < DV; ++d) sum[d] = 0;
    for (int64_t s = first; s <= last; ++s) {
      const double p = std::exp(query.logit(q, s) - max);
      total += p;
      for (int64_t d = 0; d < DV; ++d) sum[d] += p * query.value(s, d);
    }
    for (int64_t d = 0; d < DV; ++d) a.out[t * a.ldo + h * DV + d] = static_cast<float>(sum[d] / total);
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kKvAppend, Isa::kReference, append_plan, append_run},
    {KernelFamily::kPagedAttention, Isa::kReference, attention_plan, attention_run},
};

}  // namespace

constinit const KernelTable kernels_attention_reference{kEntries};

}  // namespace oar
