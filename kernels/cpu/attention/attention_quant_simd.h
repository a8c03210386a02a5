// Paged attention over a quantized cache for one instruction set; included by attention_<isa>.cc. A 16-bit
// engine takes the first tokens and the open page, a codes engine all between.
//
// A tile's queries lie in one page, so that all of them see the same tokens in 16 bits. What a query sees is
// attended to in this order, whatever the tile, the chunk of the prompt or the split:
//   the first tokens | spans of 256 positions of quantized pages, ascending | spans of its own page
// each giving (max, sum, acc), which are merged in that order as in attention_simd.h. So decode equals
// prefill.
#pragma once

#include "kernels/cpu/attention/attention_quant_int.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Positions that a query, or a tile of one page, sees in each form; empty where hi <= lo.
struct QuantRanges {
  Range sinks, codes, own;
  bool has_sinks() const { return sinks.hi > sinks.lo; }
  Range code_spans() const { return codes.hi > codes.lo ? spans_of(codes) : Range{0, 0}; }
  Range own_spans() const { return spans_of(own); }
  // Items of work: the first tokens, if seen, then spans of codes, then spans of the own page.
  int64_t items() const {
    const Range c = code_spans(), o = own_spans();
    return (has_sinks() ? 1 : 0) + c.hi - c.lo + o.hi - o.lo;
  }
};
// Of queries at positions [first, last] of one page.
OAR_INLINE QuantRanges quant_ranges(const QuantPagedAttentionArgs& a, int64_t first, int64_t last) {
  const int64_t P = a.shape.page_tokens, page = first / P * P, lo = visible(a.common, first).lo;
  const int64_t sinks = kKvSinkTokens < page ? kKvSinkTokens : page;
  return {{lo, sinks}, {lo > kKvSinkTokens ? lo : kKvSinkTokens, page}, {lo > page ? lo : page, last + 1}};
}

// As attention_partition(), for tiles aligned to positions: `queries` is a power of two that divides P.
OAR_INLINE Partition quant_partition(const QuantPagedAttentionArgs& args) {
  const PagedAttentionArgs& a = args.common;
  const int64_t K = a.shape.kv_heads, P = args.shape.page_tokens;
  Partition p{};
  p.group = a.H / K;
  p.queries = 1;
  while (2 * p.queries * p.group <= kTileRows && P % (2 * p.queries) == 0) p.queries *= 2;
  const int64_t by_length = a.T / p.queries + 2 * a.B;
  p.tiles = a.T < by_length ? a.T : by_length;
  p.max_spans = ceil_div(a.max_blocks * P, kSpan);
  if (a.window > 0) {
    const int64_t in_window = ceil_div(a.window - 1, kSpan) + 1;
    p.max_spans = in_window < p.max_spans ? in_window : p.max_spans;
  }
  const int64_t code_spans = p.max_spans;
  p.max_spans += 2 + ceil_div(P, kSpan);  // the first tokens, the own page
  p.parts = 1;
  if (code_spans > 1) {
    const int64_t per_query = a.H * p.max_spans * partial_floats(a);
    int64_t limit = (kMinUnits - 1) / K;
    const int64_t by_bytes = kMaxSplitBytes / (per_query * static_cast<int64_t>(sizeof(float)));
    limit = by_bytes < limit ? by_bytes : limit;
    if (a.T > 0 && a.T <= limit) {
      const int64_t wanted = ceil_div(kSplitUnits, (p.tiles > 0 ? p.tiles : 1) * K);
      p.parts = wanted < code_spans ? wanted : code_spans;
    }
    p.split_floats = (a.T < limit ? a.T : limit) * per_query;
  }
  return p;
}

// Tile `index` of the batch: each sequence cut at positions that are multiples of p.queries.
inline Tile find_quant_tile(const PagedAttentionArgs& a, const Partition& p, int64_t index) {
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t start = a.seq_start[b], length = a.seq_start[b + 1] - start;
    if (length == 0) continue;
    const int64_t first = a.context_len[b] - length;  // position of the sequence's first query
    const int64_t cut = first / p.queries, tiles = (first + length - 1) / p.queries - cut + 1;
    if (index < tiles) {
      const int64_t lo = index == 0 ? first : (cut + index) * p.queries;
      const int64_t end = (cut + index + 1) * p.queries, hi = end < first + length ? end : first + length;
      return {b, start + lo - first, hi - lo, lo};
    }
    index -= tiles;
  }
  return {};
}

// A chunk that has work: items [lo, hi) of one tile and key/value head.
struct QuantWork {
  int64_t chunk;  // its number; the end of the search when there is none
  Tile tile;
  int64_t kv_head;
  QuantRanges ranges;
  Range items;
};
inline QuantWork find_quant_work(const QuantPagedAttentionArgs& a, const Partition& p, int64_t begin,
                                 int64_t end) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t part = chunk % p.parts;
    const Tile tile = find_quant_tile(a.common, p, chunk / p.parts % p.tiles);
    if (tile.queries == 0) continue;
    const QuantRanges ranges = quant_ranges(a, tile.position, tile.position + tile.queries - 1);
    // Parts are of codes; the first tokens go with the first of them, the own page with the last.
    const Range codes = ranges.code_spans();
    const int64_t count = codes.hi - codes.lo, sinks = ranges.has_sinks() ? 1 : 0;
    const Range items = {part == 0 ? 0 : sinks + count * part / p.parts,
                         part + 1 == p.parts ? ranges.items() : sinks + count * (part + 1) / p.parts};
    if (items.lo < items.hi) return {chunk, tile, chunk / p.parts / p.tiles, ranges, items};
  }
  return {end, {}, 0, {}, {}};
}

inline void quant_panels(const QuantPagedAttentionArgs& a, const QuantKvLayout& layout, const QuantWork& w,
                         int64_t span, QuantPanels* out) {
  const int64_t first = span * kSpanPanels, last = first + kSpanPanels;  // in panels of the sequence
  const int64_t lo = w.ranges.codes.lo / kKvPanelTokens, hi = w.ranges.codes.hi / kKvPanelTokens;
  const int64_t begin = first > lo ? first : lo, end = last < hi ? last : hi;
  const int64_t per_page = layout.page_tokens / kKvPanelTokens;
  const int32_t* table = a.common.block_tables + w.tile.b * a.common.max_blocks;
  out->lo = begin - first;
  out->hi = end > begin ? end - first : out->lo;
  int64_t page = begin / per_page, in_page = begin % per_page;
  for (int64_t i = out->lo; i < out->hi; ++page, in_page = 0) {
    const char* head = static_cast<const char*>(a.common.pool) + table[page] * layout.block_bytes +
                       w.kv_head * layout.head_bytes;
    for (; i < out->hi && in_page < per_page; ++i, ++in_page) {
      out->head[i] = head;
      out->index[i] = in_page;
    }
  }
}

// The sources of 16 bits as attention over pools of their own.
OAR_INLINE PagedAttentionArgs sink_args(const QuantPagedAttentionArgs& a) {
  PagedAttentionArgs c = a.common;
  c.pool = a.sinks;
  c.block_tables = a.sink_tables;
  c.max_blocks = a.sink_max_blocks;
  c.shape = sink_kv_shape(a.shape);
  return c;
}
OAR_INLINE PagedAttentionArgs open_args(const QuantPagedAttentionArgs& a) {
  PagedAttentionArgs c = a.common;
  c.pool = a.open;
  c.block_tables = a.open_tables;
  c.max_blocks = a.open_max_blocks;
  c.shape = open_kv_shape(a.shape);
  return c;
}

template <class Near, class Codes>
class QuantTileAttention {
 public:
  static size_t near_bytes(const QuantPagedAttentionArgs& a, const Partition& p) {
    return (TileRows<Near>::bytes(open_args(a), p) + 63) / 64 * 64;
  }
  static size_t bytes(const QuantPagedAttentionArgs& a, const Partition& p) {
    return near_bytes(a, p) + Codes::scratch_bytes(p.queries * p.group, a.shape.head_dim);
  }
  QuantTileAttention(const QuantPagedAttentionArgs& a, const Partition& p, const KernelScratch& scratch)
      : a_(a),
        p_(p),
        sink_args_(sink_args(a)),
        open_args_(open_args(a)),
        near_(open_args_, p, {scratch.worker, nullptr}),
        codes_(a.shape, p.queries * p.group, static_cast<char*>(scratch.worker) + near_bytes(a, p)) {}

  const QuantKvLayout& layout() const { return codes_.layout(); }

  // `after`: the first pages this worker most likely reads next.
  void run(const QuantWork& w, const QuantPanels& after, float* partials) {
    near_.select(open_args_, {0, INT64_MAX});
    near_.begin(w.tile, w.kv_head);
    auto& t = near_.rows();
    const QuantRanges& ranges = w.ranges;
    const Range codes = ranges.code_spans(), own = ranges.own_spans();
    const int64_t sinks = ranges.has_sinks() ? 1 : 0, own_begin = sinks + codes.hi - codes.lo;
    const auto cut = [&](int64_t lo, int64_t hi) {  // of this chunk's items
      return Range{w.items.lo > lo ? w.items.lo : lo, w.items.hi < hi ? w.items.hi : hi};
    };
    if (w.items.lo < sinks) {
      near_.select(sink_args_, {0, kKvSinkTokens});
      attend_near(w, 0, ranges.sinks, Part::kSinks, partials);
    }
    const Range spans = cut(sinks, own_begin);
    if (spans.lo < spans.hi) {
      near_.select(a_.common, ranges.codes);
      const float scale =
          a_.common.softcap > 0 ? a_.common.scale / a_.common.softcap : a_.common.scale * kLog2E;
      for (int64_t r = 0; r < t.rows; ++r) {
        codes_.prepare(r, a_.common.q + t.token(r) * a_.common.ldq + t.head(r) * t.D, scale);
      }
      codes_.begin(t.rows);
      QuantPanels panels[2];
      const int64_t shift = codes.lo - sinks;
      quant_panels(a_, layout(), w, spans.lo + shift, &panels[0]);
      for (int64_t i = spans.lo; i < spans.hi; ++i) {
        const bool last = i + 1 == spans.hi;
        const QuantPanels& current = panels[(i - spans.lo) % 2];
        QuantPanels& next = panels[(i - spans.lo + 1) % 2];
        if (!last) quant_panels(a_, layout(), w, i + 1 + shift, &next);
        const Range rows = codes_.attend(t, i + shift, current, last ? after : next);
        keep(rows, i + shift, Part::kCodes, partials);
      }
    }
    const Range near = cut(own_begin, own_begin + own.hi - own.lo);
    if (near.lo < near.hi) {
      near_.select(open_args_, {ranges.own.lo, INT64_MAX});
      for (int64_t i = near.lo; i < near.hi; ++i) {
        attend_near(w, own.lo + i - own_begin, ranges.own, Part::kOwn, partials);
      }
    }
    if (partials == nullptr) near_.finish();
  }

 private:
  enum class Part { kSinks, kCodes, kOwn };

  void attend_near(const QuantWork& w, int64_t span, Range positions, Part part, float* partials) {
    SpanPanels panels;
    auto& t = near_.rows();
    find_panels(t.a, near_.layout(), w.tile.b, w.kv_head, span, positions, &panels);
    keep(near_.attend(span, panels, {}), span, part, partials);
  }

  // Merges the rows' results of one item, or stores each in its slot: numbered as the row's own items.
  void keep(Range rows, int64_t span, Part part, float* partials) {
    if (partials == nullptr) return near_.merge(rows);
    auto& t = near_.rows();
    for (int64_t r = rows.lo; r < rows.hi; r += p_.group) {  // the rows of a query
      const int64_t position = t.tile.position + r / p_.group;
      const QuantRanges ranges = quant_ranges(a_, position, position);
      const Range codes = ranges.code_spans(), own = ranges.own_spans();
      const Range all = part == Part::kSinks   ? Range{0, ranges.has_sinks() ? 1 : 0}
                        : part == Part::kCodes ? codes
                                               : own;
      if (span < all.lo || span >= all.hi) continue;  // a window has passed it
      int64_t slot = span - all.lo;
      if (part != Part::kSinks) slot += ranges.has_sinks() ? 1 : 0;
      if (part == Part::kOwn) slot += codes.hi - codes.lo;
      for (int64_t i = r; i < r + p_.group; ++i) {
        near_.store_partial(i, partial(a_.common, p_, partials, t.token(i), t.head(i), slot));
      }
    }
  }

  const QuantPagedAttentionArgs& a_;
  const Partition& p_;
  PagedAttentionArgs sink_args_, open_args_;
  TileAttention<Near> near_;
  Codes codes_;
};

template <class Near, class Codes>
void quant_attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const QuantPagedAttentionArgs*>(args);
  const Partition p = quant_partition(a);
  *out = {};
  out->chunks[0] = a.common.T > 0 ? p.tiles * a.common.shape.kv_heads * p.parts : 1;
  if (p.parts > 1) {
    out->phases = 2;
    out->chunks[1] = ceil_div(a.common.T * a.common.H, merge_rows_per_chunk(a.common));
  }
  out->worker_scratch = QuantTileAttention<Near, Codes>::bytes(a, p);
  out->shared_scratch = static_cast<size_t>(p.split_floats) * sizeof(float);
}

// Phase 1 of a split batch: each (query, head) merges its items.
inline void merge_quant_partials(const QuantPagedAttentionArgs& args, const Partition& p, int64_t begin,
                                 int64_t end, const KernelScratch& scratch) {
  const PagedAttentionArgs& a = args.common;
  const int64_t per = merge_rows_per_chunk(a), D = a.shape.value_dim();
  const int64_t last = end * per < a.T * a.H ? end * per : a.T * a.H;
  auto* total = static_cast<float*>(scratch.worker);
  int64_t b = 0;
  for (int64_t row = begin * per; row < last; ++row) {
    const int64_t t = row / a.H, h = row % a.H;
    while (a.seq_start[b + 1] <= t) ++b;
    const int64_t position = a.context_len[b] - a.seq_start[b + 1] + t;
    const int64_t items = quant_ranges(args, position, position).items();
    RowState merged = {-INFINITY, 0.f};
    memset(total, 0, static_cast<size_t>(D) * sizeof(float));
    merge_items(partial(a, p, static_cast<float*>(scratch.shared), t, h, 0), partial_floats(a), items,
                &merged, total, D);
    write_row(a, t, h, merged, total);
  }
}

template <class Near, class Codes>
void quant_attention_run(const void* args, int phase, int64_t begin, int64_t end,
                         const KernelScratch& scratch) {
  const auto& a = *static_cast<const QuantPagedAttentionArgs*>(args);
  if (a.common.T == 0) return;
  const Partition p = quant_partition(a);
  if (phase == 1) return merge_quant_partials(a, p, begin, end, scratch);
  const int64_t chunks = p.tiles * a.common.shape.kv_heads * p.parts;
  QuantTileAttention<Near, Codes> attention(a, p, scratch);
  float* partials = p.parts > 1 ? static_cast<float*>(scratch.shared) : nullptr;
  QuantWork work = find_quant_work(a, p, begin, end);
  while (work.chunk < end) {
    // What follows is prefetched even if it turns out to be another worker's.
    const QuantWork next = find_quant_work(a, p, work.chunk + 1, chunks);
    QuantPanels after;
    if (next.chunk < chunks) {
      const int64_t sinks = next.ranges.has_sinks() ? 1 : 0,
                    first = next.items.lo > sinks ? next.items.lo : sinks;
      const Range codes = next.ranges.code_spans();
      if (first - sinks < codes.hi - codes.lo) {
        quant_panels(a, attention.layout(), next, codes.lo + first - sinks, &after);
      }
    }
    attention.run(work, after, partials);
    work = next;
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
