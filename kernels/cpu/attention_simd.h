// Paged attention for one instruction set, over a codec (attention_float.h says what that is); included by
// attention_<isa>.cc. attention_partition.h says how the work divides and why results do not depend on it.
//
// A tile's rows are its (query, head) pairs, query major. For each span: logits of all rows (keys read once
// per register tile, panels outside a row's range skipped), softmax relative to the span's own maximum, then
// p . V into a zeroed accumulator; then the span is merged into the running result or stored for phase 1.
#pragma once

#include "kernels/cpu/attention_partition.h"
#include "kernels/cpu/vmath.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Softmax state of one row; exponents are of base 2. Empty: max = -inf, sum = 0, acc = 0.
struct RowState {
  float max, sum;
};

template <class Codec>
struct TileScratch {
  typename Codec::Query* q;  // [rows, D] prepared queries
  float* logits;             // [rows, kLogitStride]; probabilities take the same rows, in place
  float* acc;                // [rows, D] of the current span
  float* total;              // [rows, D] merged so far
  RowState* span;            // [rows]
  RowState* merged;          // [rows]

  OAR_INLINE static int64_t rows(const Partition& p) { return p.queries * p.group; }
  OAR_INLINE static size_t bytes(const PagedAttentionArgs& a, const Partition& p) {
    return static_cast<size_t>(rows(p)) *
           (static_cast<size_t>(3 * a.shape.head_dim + kLogitStride) * sizeof(float) + 2 * sizeof(RowState));
  }
  OAR_INLINE TileScratch(const PagedAttentionArgs& a, const Partition& p, void* memory) {
    const int64_t n = rows(p), D = a.shape.head_dim;
    logits = static_cast<float*>(memory);
    acc = logits + n * kLogitStride;
    total = acc + n * D;
    span = reinterpret_cast<RowState*>(total + n * D);
    merged = span + n;
    q = reinterpret_cast<typename Codec::Query*>(merged + n);
  }
};

// Adds a span's (state, acc) to the running (merged, total). Ascending spans only.
OAR_INLINE void merge_span(RowState state, const float* acc, RowState* merged, float* total, int64_t D) {
  const float max = merged->max > state.max ? merged->max : state.max;
  const float reference = max == -INFINITY ? 0.f : max;  // so that exp2(-inf - reference) is 0
  const Vf keep = exp2(set1(merged->max - reference)), add = exp2(set1(state.max - reference));
  for_lanes(D, [&](int64_t i, int64_t n) {
    store_part(total + i, fma(load_part(total + i, n), keep, load_part(acc + i, n) * add), n);
  });
  float sum[kLanes];
  store(sum, fma(set1(merged->sum), keep, set1(state.sum) * add));
  *merged = {max, sum[0]};
}

template <class Codec>
class TileAttention {
 public:
  TileAttention(const PagedAttentionArgs& a, const Partition& p, const KernelScratch& scratch)
      : a_(a), p_(p), layout_(a.shape), D_(a.shape.head_dim), s_(a, p, scratch.worker) {}

  // Spans [first, first + count) counted from the tile's first; a negative count means all. Results go to
  // args.out, or, when partials is given, to the row's slots there.
  void run(const Tile& tile, int64_t kv_head, int64_t part, float* partials) {
    tile_ = tile;
    kv_head_ = kv_head;
    rows_ = tile.queries * p_.group;
    const Range seen = {visible(a_, tile.position).lo, tile.position + tile.queries};
    Range spans = spans_of(seen);
    if (partials != nullptr) {
      const int64_t count = spans.hi - spans.lo, begin = spans.lo;
      spans = {begin + count * part / p_.parts, begin + count * (part + 1) / p_.parts};
      if (spans.lo == spans.hi) return;
    }
    prepare_queries();
    // One span ahead, whoever computes it: a worker's next chunk is most likely the next part of this
    // context.
    SpanPanels panels[2];
    find_panels(a_, layout_, tile.b, kv_head, spans.lo, seen, &panels[0]);
    for (int64_t span = spans.lo; span < spans.hi; ++span) {
      SpanPanels* current = &panels[(span - spans.lo) % 2];
      SpanPanels* next = &panels[(span - spans.lo + 1) % 2];
      find_panels(a_, layout_, tile.b, kv_head, span + 1, seen, next);
      attend(span, *current, next);
      for (int64_t r = row_begin_; r < row_end_; ++r) {
        if (partials != nullptr) {
          float* slot =
              partial(a_, p_, partials, tile_.t0 + r / p_.group, head(r), span - spans_of(range(r)).lo);
          memcpy(slot, s_.acc + r * D_, static_cast<size_t>(D_) * sizeof(float));
          slot[D_] = s_.span[r].max;
          slot[D_ + 1] = s_.span[r].sum;
        } else {
          merge_span(s_.span[r], s_.acc + r * D_, &s_.merged[r], s_.total + r * D_, D_);
        }
      }
    }
    if (partials != nullptr) return;
    for (int64_t r = 0; r < rows_; ++r) {
      write_row(a_, tile_.t0 + r / p_.group, head(r), s_.merged[r], s_.total + r * D_);
    }
  }

  OAR_INLINE static float* partial(const PagedAttentionArgs& a, const Partition& p, float* partials,
                                   int64_t t, int64_t h, int64_t span) {
    return partials + ((t * a.H + h) * p.max_spans + span) * partial_floats(a);
  }
  OAR_INLINE static void write_row(const PagedAttentionArgs& a, int64_t t, int64_t h, RowState state,
                                   const float* total) {
    const int64_t D = a.shape.head_dim;
    float* out = a.out + t * a.ldo + h * D;
    for_lanes(
        D, [&](int64_t i, int64_t n) { store_part(out + i, load_part(total + i, n) / set1(state.sum), n); });
  }

 private:
  using Query = typename Codec::Query;
  using Prob = typename Codec::Prob;

  int64_t head(int64_t r) const { return kv_head_ * p_.group + r % p_.group; }
  Range range(int64_t r) const { return visible(a_, tile_.position + r / p_.group); }

  void prepare_queries() {
    constexpr float kLog2E = 1.44269504f;
    // With a soft cap the logits come out as the argument of tanh, otherwise as exponents of 2.
    const float scale = a_.softcap > 0 ? a_.scale / a_.softcap : a_.scale * kLog2E;
    for (int64_t r = 0; r < rows_; ++r) {
      Codec::prepare(a_.q + (tile_.t0 + r / p_.group) * a_.ldq + head(r) * D_, scale, D_, s_.q + r * D_);
      s_.merged[r] = {-INFINITY, 0.f};
    }
    memset(s_.total, 0, static_cast<size_t>(rows_ * D_) * sizeof(float));
  }

  // Positions of row r inside the span, relative to its begin, cut to [0, 256].
  Range in_span(int64_t r, int64_t span) const {
    const Range seen = range(r);
    const int64_t lo = seen.lo - span * kSpan, hi = seen.hi - span * kSpan;
    return {lo > 0 ? lo : 0, hi < kSpan ? hi : kSpan};
  }

  void attend(int64_t span, const SpanPanels& panels, const SpanPanels* next) {
    // Ranges ascend with the row, so the rows that see anything of the span are consecutive.
    row_begin_ = 0;
    while (in_span(row_begin_, span).hi <= 0) row_begin_ += p_.group;
    row_end_ = rows_;
    while (in_span(row_end_ - 1, span).lo >= kSpan) row_end_ -= p_.group;
    // Panels to prefetch: the next span's; those it lacks are replaced by this one's, already near.
    const char *ahead_k[kSpanPanels], *ahead_v[kSpanPanels];
    for (int64_t i = panels.lo; i < panels.hi; ++i) {
      const bool there = i >= next->lo && i < next->hi;
      ahead_k[i] = there ? next->k[i] : panels.k[i];
      ahead_v[i] = there ? next->v[i] : panels.v[i];
    }
    const bool any_ahead = next->hi > next->lo;
    all_logits(span, panels, any_ahead ? ahead_k : nullptr);
    for (int64_t r = row_begin_; r < row_end_; ++r) softmax(r, in_span(r, span));
    memset(s_.acc + row_begin_ * D_, 0, static_cast<size_t>((row_end_ - row_begin_) * D_) * sizeof(float));
    all_values(span, panels, any_ahead ? ahead_v : nullptr);
  }

  void all_logits(int64_t span, const SpanPanels& panels, const char* const* ahead) {
    for (int64_t g = panels.lo; g < panels.hi; g += Codec::kLogitPanels) {
      const int64_t n = panels.hi - g < Codec::kLogitPanels ? panels.hi - g : Codec::kLogitPanels;
      const char* const* prefetch_now = ahead != nullptr ? ahead + g : nullptr;
      for (int64_t r = row_begin_; r < row_end_;) {
        const int64_t rows = row_end_ - r < Codec::kLogitRows ? row_end_ - r : Codec::kLogitRows;
        const Range first = in_span(r, span), last = in_span(r + rows - 1, span);
        if (last.hi > g * kKvPanelTokens && first.lo < (g + n) * kKvPanelTokens) {
          logits_tile(rows, n, panels.k + g, prefetch_now, r, g);
          prefetch_now = nullptr;
        }
        r += rows;
      }
    }
  }

  void logits_tile(int64_t rows, int64_t n, const char* const* k, const char* const* ahead, int64_t r,
                   int64_t g) {
    auto call = [&]<int R>() {
      const Query* q = s_.q + r * D_;
      float* out = s_.logits + r * kLogitStride + g * kKvPanelTokens;
      if (n == Codec::kLogitPanels) {
        Codec::template logits<R, Codec::kLogitPanels>(k, ahead, q, D_, out);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          Codec::template logits<R, 1>(k + i, ahead != nullptr ? ahead + i : nullptr, q, D_,
                                       out + i * kKvPanelTokens);
        }
      }
    };
    dispatch_rows<Codec::kLogitRows>(rows, call);
  }

  // Calls f.operator()<rows>(), 1 <= rows <= Max <= 4.
  template <int Max, class F>
  OAR_INLINE static void dispatch_rows(int64_t rows, F&& f) {
    if constexpr (Max >= 4) {
      if (rows == 4) return f.template operator()<4>();
    }
    if constexpr (Max >= 3) {
      if (rows == 3) return f.template operator()<3>();
    }
    if constexpr (Max >= 2) {
      if (rows == 2) return f.template operator()<2>();
    }
    f.template operator()<1>();
  }

  // Turns a row's logits into probabilities relative to the largest among them, zero in the rest of its
  // outermost panels. Lanes of those panels outside the range hold logits of undefined bytes: replaced before
  // use.
  void softmax(int64_t r, Range range) {
    float* x = s_.logits + r * kLogitStride;
    const int64_t begin = range.lo / kKvPanelTokens * kKvPanelTokens;
    const int64_t end = ceil_div(range.hi, kKvPanelTokens) * kKvPanelTokens;
    const Vf minus_inf = set1(-INFINITY), cap = set1(a_.softcap * 1.44269504f);
    alignas(64) static constexpr float kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Vf vmax = minus_inf;
    for (int64_t i = begin; i < end; i += kLanes) {
      Vf v = load(x + i);
      if (a_.softcap > 0) v = tanh(v) * cap;
      if (i < range.lo || i + kLanes > range.hi) {
        const Vf lane = load(kIota) + set1(static_cast<float>(i));
        v = select(lane < set1(static_cast<float>(range.lo)), minus_inf, v);
        v = select(lane < set1(static_cast<float>(range.hi)), v, minus_inf);
        store(x + i, v);
      } else if (a_.softcap > 0) {
        store(x + i, v);
      }
      vmax = max(v, vmax);
    }
    const float max = reduce_max(vmax);
    const Vf reference = set1(max == -INFINITY ? 0.f : max);
    Prob* p = reinterpret_cast<Prob*>(x);
    Vf sum[kKvPanelTokens / kLanes];
    for (Vf& s : sum) s = zero();
    for (int64_t i = begin; i < end; i += kKvPanelTokens) {
      for (int64_t j = 0; j < kKvPanelTokens / kLanes; ++j) {
        const Vf v = load(x + i + j * kLanes);
        sum[j] = sum[j] + Codec::store_probs(p + i + j * kLanes, exp2<Codec::kExpTerms>(v - reference));
      }
    }
    for (int64_t j = 1; j < kKvPanelTokens / kLanes; ++j) sum[0] = sum[0] + sum[j];
    s_.span[r] = {max, reduce_add(sum[0])};
  }

  // In blocks of 64 tokens, whose values stay in L1 for all rows. Rows of one register tile may see different
  // positions: what they share is done together, the rest row by row, each row in ascending order throughout.
  void all_values(int64_t span, const SpanPanels& panels, const char* const* ahead) {
    constexpr int64_t kBlock = 64;
    constexpr int64_t kStep = Codec::kPairs ? 2 : 1;
    for (int64_t b = panels.lo * kKvPanelTokens / kBlock * kBlock; b < panels.hi * kKvPanelTokens;
         b += kBlock) {
      const char* const* prefetch_now = ahead;
      for (int64_t r = row_begin_; r < row_end_;) {
        const int64_t rows = row_end_ - r < Codec::kValueRows ? row_end_ - r : Codec::kValueRows;
        auto in_block = [&](int64_t row) {
          const Range s = in_span(row, span);
          return Range{s.lo > b ? s.lo : b, s.hi < b + kBlock ? s.hi : b + kBlock};
        };
        const Range first = in_block(r), last = in_block(r + rows - 1);
        Range shared = {ceil_div(last.lo, kStep) * kStep, first.hi / kStep * kStep};
        if (shared.lo >= shared.hi) shared = {last.hi, last.hi};  // nothing in common
        for (int64_t i = 0; i < rows; ++i) {
          const Range own = in_block(r + i);
          values<1>(panels, nullptr, own.lo, own.hi < shared.lo ? own.hi : shared.lo, r + i);
        }
        if (shared.lo < shared.hi) {
          dispatch_rows<Codec::kValueRows>(
              rows, [&]<int R>() { values<R>(panels, prefetch_now, shared.lo, shared.hi, r); });
          prefetch_now = nullptr;
        }
        for (int64_t i = 0; i < rows; ++i) {
          const Range own = in_block(r + i);
          values<1>(panels, nullptr, own.lo > shared.hi ? own.lo : shared.hi, own.hi, r + i);
        }
        r += rows;
      }
    }
  }

  template <int R>
  OAR_INLINE void values(const SpanPanels& panels, const char* const* ahead, int64_t lo, int64_t hi,
                         int64_t r) {
    if (lo >= hi) return;
    const Prob* p = reinterpret_cast<const Prob*>(s_.logits + r * kLogitStride);
    Codec::template add_values<R>(panels.v, ahead, lo, hi, p, D_, s_.acc + r * D_);
  }

  const PagedAttentionArgs& a_;
  const Partition& p_;
  KvLayout layout_;
  int64_t D_;
  TileScratch<Codec> s_;
  Tile tile_{};
  int64_t kv_head_ = 0, rows_ = 0;
  int64_t row_begin_ = 0, row_end_ = 0;  // rows with positions in the current span
};

OAR_INLINE int64_t merge_rows_per_chunk(const PagedAttentionArgs& a) { return ceil_div(a.T * a.H, 16); }

template <class Codec>
void attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const PagedAttentionArgs*>(args);
  const Partition p = attention_partition(a);
  *out = {};
  out->chunks[0] = a.T > 0 ? p.tiles * a.shape.kv_heads * p.parts : 1;
  if (p.parts > 1) {
    out->phases = 2;
    out->chunks[1] = ceil_div(a.T * a.H, merge_rows_per_chunk(a));
  }
  out->worker_scratch = TileScratch<Codec>::bytes(a, p);
  out->shared_scratch = static_cast<size_t>(p.split_floats) * sizeof(float);
}

// Phase 1 of a split batch: each (query, head) merges its spans.
template <class Codec>
void merge_partials(const PagedAttentionArgs& a, const Partition& p, int64_t begin, int64_t end,
                    const KernelScratch& scratch) {
  const int64_t per = merge_rows_per_chunk(a), D = a.shape.head_dim;
  const int64_t last = end * per < a.T * a.H ? end * per : a.T * a.H;
  float* total = TileScratch<Codec>(a, p, scratch.worker).total;
  int64_t b = 0;
  for (int64_t row = begin * per; row < last; ++row) {
    const int64_t t = row / a.H, h = row % a.H;
    while (a.seq_start[b + 1] <= t) ++b;
    const Range spans = spans_of(visible(a, a.context_len[b] - a.seq_start[b + 1] + t));
    RowState merged = {-INFINITY, 0.f};
    memset(total, 0, static_cast<size_t>(D) * sizeof(float));
    for (int64_t i = 0; i < spans.hi - spans.lo; ++i) {
      const float* slot = TileAttention<Codec>::partial(a, p, static_cast<float*>(scratch.shared), t, h, i);
      merge_span({slot[D], slot[D + 1]}, slot, &merged, total, D);
    }
    TileAttention<Codec>::write_row(a, t, h, merged, total);
  }
}

template <class Codec>
void attention_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const PagedAttentionArgs*>(args);
  if (a.T == 0) return;
  const Partition p = attention_partition(a);
  if (phase == 1) return merge_partials<Codec>(a, p, begin, end, scratch);
  TileAttention<Codec> attention(a, p, scratch);
  float* partials = p.parts > 1 ? static_cast<float*>(scratch.shared) : nullptr;
  // Head major: a worker's neighbouring chunks read the same keys and values of a prompt.
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t part = chunk % p.parts, index = chunk / p.parts % p.tiles,
                  kv_head = chunk / p.parts / p.tiles;
    const Tile tile = find_tile(a, p, index);
    if (tile.queries > 0) attention.run(tile, kv_head, part, partials);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
