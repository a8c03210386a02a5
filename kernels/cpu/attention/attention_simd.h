// Paged attention for one instruction set, over an engine that multiplies; included by attention_<isa>.cc.
// attention_partition.h says how the work divides and why results do not depend on it.
//
// A tile's rows are its (query, head) pairs, query major. For each span: logits of all rows, softmax relative
// to the span's own maximum, p . V; then the span is merged into the running result or stored for phase 1.
//
// What an engine is (attention_register.h, attention_amx.h):
//   Query, Prob, kExpTerms     types of a prepared query and of a stored probability; accuracy of exp()
//   kRowPadding                rows it may read past the last
//   kProbAlign                 it reads probabilities in groups of this many tokens: zero if not visible
//   prepare(), store_probs()   conversions; the latter returns the probabilities as rounded
//   begin(tile)                before the first span of a tile
//   logits(tile, span)         t.logits of the rows and panels that see each other; the rest is undefined
//   values(tile, span)         t.acc = p . V of the span
#pragma once

#include "kernels/cpu/attention/attention_ahead.h"
#include "kernels/cpu/attention/attention_latent.h"
#include "kernels/cpu/vmath.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr float kLog2E = 1.44269504f;

// Softmax state of one row; exponents are of base 2. Empty: max = -inf, sum = 0, acc = 0.
struct RowState {
  float max, sum;
};

// One span of a tile. Panel arrays are indexed by panel of the span.
struct SpanWork {
  int64_t span;
  const SpanPanels* panels;
  int64_t row_begin, row_end;  // rows that see anything of the span
  // For engines that prefetch as they read: what to fetch beside each panel of keys and of values.
  const char *beside_k[kSpanPanels] = {}, *beside_v[kSpanPanels] = {};

  // The panel that is read kPanelsAhead later: keys, then values, then the keys of the next span. A page of
  // 64 tokens, 8 KB of 64 dims in 16 bits, is enough for memory to deliver, and stays in L1 with what is
  // being read. Half a span ahead, as much as L1 holds, one core of Zen 5 reads 17 % less.
  static constexpr int64_t kPanelsAhead = 4;
  void look_ahead(const SpanPanels& next) {
    const SpanPanels& now = *panels;
    for (int64_t i = now.lo; i < now.hi; ++i) {
      const int64_t past = i + kPanelsAhead - now.hi;  // >= 0: so far behind the last panel of its kind
      const int64_t value = now.lo + past < now.hi ? now.lo + past : i;
      beside_k[i] = past < 0 ? now.k[i + kPanelsAhead] : now.v[value];
      beside_v[i] = past < 0                   ? now.v[i + kPanelsAhead]
                    : past < next.hi - next.lo ? next.k[next.lo + past]
                                               : now.v[i];  // nothing: this one, near already
    }
  }
};

// A tile's rows and what of their scratch has the same type with every engine.
struct TileData {
  PagedAttentionArgs a;
  const Partition& p;
  int64_t D, DV;               // widths of keys and of values
  Range limits{0, INT64_MAX};  // positions outside are left to somebody else
  Tile tile{};
  int64_t kv_head = 0, rows = 0;

  float* logits;     // [rows + padding, kLogitStride]; probabilities take the same rows, in place
  float* acc;        // [rows, DV] of the current span
  float* total;      // [rows, DV] merged so far
  RowState* state;   // [rows] of the current span
  RowState* merged;  // [rows]
  void* engine;      // the engine's own
  char* values;      // of keys that hold values: the value panels of a span

  TileData(const PagedAttentionArgs& args, const Partition& partition)
      : a(args), p(partition), D(args.shape.head_dim), DV(args.shape.value_dim()) {}

  int64_t token(int64_t r) const { return tile.t0 + r / p.group; }
  int64_t head(int64_t r) const { return kv_head * p.group + r % p.group; }
  Range seen(int64_t r) const {
    const Range s = visible(a, tile.position + r / p.group);
    return {s.lo > limits.lo ? s.lo : limits.lo, s.hi < limits.hi ? s.hi : limits.hi};
  }
  // Positions of row r inside the span, relative to its begin, cut to [0, 256].
  Range in_span(int64_t r, int64_t span) const {
    const Range s = seen(r);
    const int64_t lo = s.lo - span * kSpan, hi = s.hi - span * kSpan;
    return {lo > 0 ? lo : 0, hi < kSpan ? hi : kSpan};
  }
};

template <class Engine>
struct TileRows : TileData {
  typename Engine::Query* q;  // [rows + padding, D] prepared queries

  static size_t bytes(const PagedAttentionArgs& a, const Partition& p) {
    const int64_t rows = p.queries * p.group, padded = rows + Engine::kRowPadding, D = a.shape.head_dim;
    const int64_t DV = a.shape.value_dim();
    return static_cast<size_t>(padded * kLogitStride + 2 * rows * DV) * sizeof(float) +
           static_cast<size_t>(2 * rows) * sizeof(RowState) +
           static_cast<size_t>(padded * D) * sizeof(typename Engine::Query) + engine_bytes(D) +
           (a.shape.latent > 0 ? static_cast<size_t>(kSpanPanels * KvLayout(a.shape).v_panel_bytes()) : 0) +
           64;
  }
  static size_t engine_bytes(int64_t D) { return (Engine::scratch_bytes(D) + 63) / 64 * 64; }
  TileRows(const PagedAttentionArgs& args, const Partition& partition, void* memory)
      : TileData(args, partition) {
    const int64_t n = p.queries * p.group, padded = n + Engine::kRowPadding;
    logits = static_cast<float*>(memory);
    acc = logits + padded * kLogitStride;
    total = acc + n * DV;
    state = reinterpret_cast<RowState*>(total + n * DV);
    merged = state + n;
    q = reinterpret_cast<typename Engine::Query*>(merged + n);
    const auto end = reinterpret_cast<uintptr_t>(q + padded * D);
    engine = reinterpret_cast<void*>((end + 63) / 64 * 64);
    values = static_cast<char*>(engine) + engine_bytes(D);
  }

  typename Engine::Prob* probs(int64_t r) const {
    return reinterpret_cast<typename Engine::Prob*>(logits + r * kLogitStride);
  }
};

// Adding a span's (state, acc) to the running (merged, total), in ascending order of spans: both are scaled
// to the larger maximum. The factors are exponentials, made for kLanes additions at once; whose they are
// (those of as many rows, or as many spans of one row) does not change their bits.
struct MergeFactors {
  alignas(64) float before[kLanes] = {}, item[kLanes] = {}, reference[kLanes] = {};  // maxima
  alignas(64) float keep[kLanes], add[kLanes];

  // Addition i of one with maximum `span` to what has `merged`. Returns the maximum of both.
  OAR_INLINE float set(int64_t i, float merged, float span) {
    const float most = merged > span ? merged : span;
    before[i] = merged;
    item[i] = span;
    reference[i] = most == -INFINITY ? 0.f : most;  // so that exp2(-inf - reference) is 0
    return most;
  }
  OAR_INLINE void make() {
    const Vf most = load(reference);
    store(keep, exp2_nonpositive<6>(load(before) - most));
    store(add, exp2_nonpositive<6>(load(item) - most));
  }
  OAR_INLINE void merge_acc(int64_t i, const float* acc, float* total, int64_t D) const {
    const Vf k = set1(keep[i]), a = set1(add[i]);
    for_lanes(D, [&](int64_t d, int64_t n) {
      store_part(total + d, fma(load_part(total + d, n), k, load_part(acc + d, n) * a), n);
    });
  }
};

// The spans of one row, `items` of them, `stride` floats apart, each (acc[D], max, sum).
OAR_INLINE void merge_items(const float* slot, int64_t stride, int64_t items, RowState* merged, float* total,
                            int64_t D) {
  for (int64_t first = 0; first < items; first += kLanes) {
    const int64_t n = items - first < kLanes ? items - first : kLanes;
    MergeFactors f;
    for (int64_t i = 0; i < n; ++i) merged->max = f.set(i, merged->max, slot[i * stride + D]);
    f.make();
    Vf sum = set1(merged->sum);
    for (int64_t i = 0; i < n; ++i, slot += stride) {
      sum = fma(sum, set1(f.keep[i]), set1(slot[D + 1]) * set1(f.add[i]));
      f.merge_acc(i, slot, total, D);
    }
    float sums[kLanes];
    store(sums, sum);
    merged->sum = sums[0];
  }
}

// The head's sink comes last of all: it adds to the sum and nothing to the result.
OAR_INLINE void write_row(const PagedAttentionArgs& a, int64_t t, int64_t h, RowState state,
                          const float* total) {
  const int64_t D = a.shape.value_dim();
  float* out = a.out + t * a.ldo + h * D;
  float factor = 1.f / state.sum;
  if (a.sink_logits != nullptr) {
    MergeFactors f;
    f.set(0, state.max, a.sink_logits[h] * kLog2E);
    f.make();
    factor = f.keep[0] / (state.sum * f.keep[0] + f.add[0]);
  }
  const Vf inverse = set1(factor);
  for_lanes(D, [&](int64_t i, int64_t n) { store_part(out + i, load_part(total + i, n) * inverse, n); });
}

// Where span number `span` of a query's own spans is kept between the phases of a split batch.
OAR_INLINE float* partial(const PagedAttentionArgs& a, const Partition& p, float* partials, int64_t t,
                          int64_t h, int64_t span) {
  return partials + ((t * a.H + h) * p.max_spans + span) * partial_floats(a);
}

// Of a panel's logits, those before (or from) token `at` on become minus infinity. By whole vectors: they are
// read as such next, which would wait for parts of them to be written.
template <bool kBefore>
OAR_INLINE void hide_logits(float* x, int64_t at) {
  static constexpr float kIndex[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vf limit = set1(static_cast<float>(at)), hidden = set1(-INFINITY);
  for (int64_t i = 0; i < kKvPanelTokens; i += kLanes) {
    const Mask before = load(kIndex + i) < limit;
    const Vf y = load(x + i);
    store(x + i, kBefore ? select(before, hidden, y) : select(before, y, hidden));
  }
}

template <class Engine>
class TileAttention {
 public:
  TileAttention(const PagedAttentionArgs& a, const Partition& p, const KernelScratch& scratch)
      : layout_(a.shape), t_(a, p, scratch.worker), engine_(t_.D, t_.DV, t_.engine) {}

  // The spans of one chunk, results to args.out; or, when `partials` is given, each span to its rows' slots
  // there. `after`: the panels that this worker most likely reads next.
  void run(const ChunkWork& work, const SpanPanels& after, float* partials) {
    begin(work.tile, work.kv_head);
    SpanPanels panels[2];
    chunk_panels(t_.a, layout_, work, work.spans.lo, &panels[0]);
    for (int64_t span = work.spans.lo; span < work.spans.hi; ++span) {
      const SpanPanels& current = panels[(span - work.spans.lo) % 2];
      SpanPanels& next = panels[(span - work.spans.lo + 1) % 2];
      const bool last = span + 1 == work.spans.hi;
      if (!last) chunk_panels(t_.a, layout_, work, span + 1, &next);
      const Range rows = attend(span, current, last ? after : next);
      if (partials == nullptr) {
        merge(rows);
        continue;
      }
      for (int64_t r = rows.lo; r < rows.hi; ++r) {
        const int64_t slot = span - spans_of(t_.seen(r)).lo;
        store_partial(r, partial(t_.a, t_.p, partials, t_.token(r), t_.head(r), slot));
      }
    }
    if (partials == nullptr) finish();
  }

  // The steps of run(), for who walks over several pools (attention_quant_simd.h): a tile begins, spans of
  // one pool after the other are attended to and each merged or stored, and the result is written.
  void begin(const Tile& tile, int64_t kv_head) {
    t_.tile = tile;
    t_.kv_head = kv_head;
    t_.rows = tile.queries * t_.p.group;
    prepare_queries();
    engine_.begin(t_);
  }
  // Spans from now on: the part within `limits` of what args' pool and tables hold.
  void select(const PagedAttentionArgs& args, Range limits) {
    t_.a = args;
    t_.limits = limits;
    layout_ = KvLayout(args.shape);
    if constexpr (requires { engine_.forget(); }) engine_.forget();
  }
  const KvLayout& layout() const { return layout_; }
  TileRows<Engine>& rows() { return t_; }
  void merge(Range rows) {
    for (int64_t r = rows.lo; r < rows.hi; r += kLanes) {
      const int64_t n = rows.hi - r < kLanes ? rows.hi - r : kLanes;
      MergeFactors f;
      alignas(64) float merged[kLanes] = {}, span[kLanes] = {};
      for (int64_t i = 0; i < n; ++i) {
        RowState& m = t_.merged[r + i];
        merged[i] = m.sum;
        span[i] = t_.state[r + i].sum;
        m.max = f.set(i, m.max, t_.state[r + i].max);
      }
      f.make();
      store(merged, fma(load(merged), load(f.keep), load(span) * load(f.add)));
      for (int64_t i = 0; i < n; ++i) {
        t_.merged[r + i].sum = merged[i];
        f.merge_acc(i, t_.acc + (r + i) * t_.DV, t_.total + (r + i) * t_.DV, t_.DV);
      }
    }
  }
  void store_partial(int64_t r, float* slot) const {
    memcpy(slot, t_.acc + r * t_.DV, static_cast<size_t>(t_.DV) * sizeof(float));
    slot[t_.DV] = t_.state[r].max;
    slot[t_.DV + 1] = t_.state[r].sum;
  }
  void finish() {
    for (int64_t r = 0; r < t_.rows; ++r) {
      write_row(t_.a, t_.token(r), t_.head(r), t_.merged[r], t_.total + r * t_.DV);
    }
  }
  // Returns the rows whose state and acc are now those of the span.
  Range attend(int64_t span, const SpanPanels& panels, const SpanPanels& next) {
    SpanWork w{span, &panels, 0, t_.rows};
    // Ranges ascend with the row, so the rows that see anything of the span are consecutive.
    while (t_.in_span(w.row_begin, span).hi <= 0) w.row_begin += t_.p.group;
    while (t_.in_span(w.row_end - 1, span).lo >= kSpan) w.row_end -= t_.p.group;
    if constexpr (requires { engine_.look_ahead(t_, w, next, layout_.panel_bytes); }) {
      engine_.look_ahead(t_, w, next, layout_.panel_bytes);
    } else {
      w.look_ahead(next);
    }
    engine_.logits(t_, w);
    for (int64_t r = w.row_begin; r < w.row_end; ++r) softmax(r, w);
    SpanPanels with_values;
    if (layout_.latent) {
      with_values = panels;
      values_of_keys(layout_, t_.values, &with_values);
      w.panels = &with_values;
    }
    engine_.values(t_, w);
    return {w.row_begin, w.row_end};
  }

 private:
  using Prob = typename Engine::Prob;

  void prepare_queries() {
    // With a soft cap the logits come out as the argument of tanh, otherwise as exponents of 2.
    const PagedAttentionArgs& a = t_.a;
    const float scale = a.softcap > 0 ? a.scale / a.softcap : a.scale * kLog2E;
    for (int64_t r = 0; r < t_.rows; ++r) {
      Engine::prepare(a.q + t_.token(r) * a.ldq + t_.head(r) * t_.D, scale, t_.D, t_.q + r * t_.D);
      t_.merged[r] = {-INFINITY, 0.f};
    }
    memset(t_.total, 0, static_cast<size_t>(t_.rows * t_.DV) * sizeof(float));
  }

  // Turns a row's logits into probabilities relative to the largest among them. Lanes of its outermost panels
  // outside its range hold logits of undefined bytes: replaced before use, and zero as probabilities.
  void softmax(int64_t r, const SpanWork& w) {
    const Range range = t_.in_span(r, w.span);
    float* x = t_.logits + r * kLogitStride;
    const int64_t begin = range.lo / kKvPanelTokens * kKvPanelTokens;
    const int64_t end = ceil_div(range.hi, kKvPanelTokens) * kKvPanelTokens;
    if (const float softcap = t_.a.softcap; softcap > 0) {
      const Vf cap = set1(softcap * kLog2E);
      for (int64_t i = begin; i < end; i += kLanes) store(x + i, tanh(load(x + i)) * cap);
    }
    if (begin != range.lo) hide_logits<true>(x + begin, range.lo - begin);
    if (end != range.hi) hide_logits<false>(x + end - kKvPanelTokens, range.hi + kKvPanelTokens - end);
    // A panel is 1, 2 or 4 vectors; the order of taking maxima does not matter.
    Vf largest[2] = {set1(-INFINITY), set1(-INFINITY)};
    for (int64_t i = begin, k = 0; i < end; i += kLanes, k ^= 1) largest[k] = max(load(x + i), largest[k]);
    const float max = reduce_max(oar::OAR_SIMD_NAMESPACE::max(largest[0], largest[1]));
    const Vf reference = set1(max == -INFINITY ? 0.f : max);
    // In place: a panel's probabilities never reach past its logits.
    Prob* p = t_.probs(r);
    t_.state[r] = {
        max, reduce_add(Engine::weigh(x + begin, p + begin, (end - begin) / kKvPanelTokens, reference))};
    if constexpr (Engine::kProbAlign > kKvPanelTokens) {
      constexpr int64_t kAlign = Engine::kProbAlign;
      const int64_t all_begin = w.panels->lo * kKvPanelTokens / kAlign * kAlign;
      const int64_t all_end = ceil_div(w.panels->hi * kKvPanelTokens, kAlign) * kAlign;
      constexpr size_t kPanel = kKvPanelTokens * sizeof(Prob);  // known, so that no function is called
      for (int64_t i = all_begin; i < begin; i += kKvPanelTokens) memset(p + i, 0, kPanel);
      for (int64_t i = end; i < all_end; i += kKvPanelTokens) memset(p + i, 0, kPanel);
    }
  }

  KvLayout layout_;
  TileRows<Engine> t_;
  Engine engine_;
};

OAR_INLINE int64_t merge_rows_per_chunk(const PagedAttentionArgs& a) { return ceil_div(a.T * a.H, 16); }

template <class Engine>
void attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const PagedAttentionArgs*>(args);
  const Partition p = attention_partition(a);
  *out = {};
  out->chunks[0] = a.T > 0 ? p.tiles * a.shape.kv_heads * p.parts : 1;
  if (p.parts > 1) {
    out->phases = 2;
    out->chunks[1] = ceil_div(a.T * a.H, merge_rows_per_chunk(a));
  }
  out->worker_scratch = TileRows<Engine>::bytes(a, p);
  out->shared_scratch = static_cast<size_t>(p.split_floats) * sizeof(float);
}

// Phase 1 of a split batch: each (query, head) merges its spans.
inline void merge_partials(const PagedAttentionArgs& a, const Partition& p, int64_t begin, int64_t end,
                           const KernelScratch& scratch) {
  const int64_t per = merge_rows_per_chunk(a), D = a.shape.value_dim();
  const int64_t last = end * per < a.T * a.H ? end * per : a.T * a.H;
  auto* total = static_cast<float*>(scratch.worker);
  int64_t b = 0;
  for (int64_t row = begin * per; row < last; ++row) {
    const int64_t t = row / a.H, h = row % a.H;
    while (a.seq_start[b + 1] <= t) ++b;
    const Range spans = spans_of(visible(a, a.context_len[b] - a.seq_start[b + 1] + t));
    RowState merged = {-INFINITY, 0.f};
    memset(total, 0, static_cast<size_t>(D) * sizeof(float));
    merge_items(partial(a, p, static_cast<float*>(scratch.shared), t, h, 0), partial_floats(a),
                spans.hi - spans.lo, &merged, total, D);
    write_row(a, t, h, merged, total);
  }
}

template <class Engine>
void attention_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const PagedAttentionArgs*>(args);
  if (a.T == 0) return;
  const Partition p = attention_partition(a);
  if (phase == 1) return merge_partials(a, p, begin, end, scratch);
  const KvLayout layout(a.shape);
  const int64_t chunks = p.tiles * a.shape.kv_heads * p.parts;
  TileAttention<Engine> attention(a, p, scratch);
  float* partials = p.parts > 1 ? static_cast<float*>(scratch.shared) : nullptr;
  ChunkWork work = find_work(a, p, begin, end);
  while (work.chunk < end) {
    // What follows is prefetched even if it turns out to be another worker's.
    const ChunkWork next = find_work(a, p, work.chunk + 1, chunks);
    SpanPanels after;
    if (next.chunk < chunks) chunk_panels(a, layout, next, next.spans.lo, &after);
    attention.run(work, after, partials);
    work = next;
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
