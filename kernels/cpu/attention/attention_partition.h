// How attention divides: tiles of queries, spans of positions, parts of a context. Arithmetic only.
//
// The sums over a query's context are always formed the same way: positions are cut in spans of 256 aligned
// to multiples of 256; each span gives (max, sum, acc) on its own; spans are merged in ascending order. A
// query's result thus depends on its position, window and cache alone. It does not matter what shared its
// tile, which worker took which span, or when spans were merged: as they came (many tiles) or in a second
// phase (few: decode of a small batch).
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/simd.h"
#include "kernels/kv_layout.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kSpan = 256;
inline constexpr int64_t kSpanPanels = kSpan / kKvPanelTokens;
// Rows (query, head) of a tile: keys and values are read once per tile, and its logits (64 x 1 KB) stay in
// L2.
inline constexpr int64_t kTileRows = 64;
// Fewer (query, key/value head) pairs than this leave workers idle on long contexts, so their spans are dealt
// out too: in at least kSplitUnits chunks.
inline constexpr int64_t kMinUnits = 32, kSplitUnits = 64;
inline constexpr int64_t kMaxSplitBytes = int64_t{64} << 20;
inline constexpr int64_t kLogitStride =
    kSpan + 16;  // off the power of two, so that rows do not share cache sets

struct Partition {
  int64_t group;         // G = H / K query heads per key/value head
  int64_t queries;       // per tile, of one sequence
  int64_t tiles;         // upper bound; those past the real number are empty
  int64_t max_spans;     // upper bound of spans one query touches
  int64_t parts;         // chunks per tile and head; 1: spans are merged as they come
  int64_t split_floats;  // shared scratch of the largest batch that is split, at most this T
};

// Floats of one stored (acc[value_dim], max, sum), a multiple of 8.
OAR_INLINE int64_t partial_floats(const PagedAttentionArgs& a) { return a.shape.value_dim() + 8; }

OAR_INLINE Partition attention_partition(const PagedAttentionArgs& a) {
  const int64_t K = a.shape.kv_heads;
  Partition p{};
  p.group = a.H / K;
  p.queries = p.group < kTileRows ? kTileRows / p.group : 1;
  const int64_t by_length =
      (a.T + a.B * (p.queries - 1)) / p.queries;  // sum of ceil(length / queries) at most
  p.tiles = a.T < by_length ? a.T : by_length;
  p.max_spans = ceil_div(a.max_blocks * a.shape.page_tokens, kSpan);
  if (a.window > 0) {
    const int64_t in_window = ceil_div(a.window - 1, kSpan) + 1;
    p.max_spans = in_window < p.max_spans ? in_window : p.max_spans;
  }
  p.parts = 1;
  if (p.max_spans > 1) {
    const int64_t per_query = a.H * p.max_spans * partial_floats(a);
    int64_t limit = (kMinUnits - 1) / K;  // queries of the largest batch that is split
    const int64_t by_bytes = kMaxSplitBytes / (per_query * static_cast<int64_t>(sizeof(float)));
    limit = by_bytes < limit ? by_bytes : limit;
    if (a.T > 0 && a.T <= limit) {
      const int64_t wanted = ceil_div(kSplitUnits, (p.tiles > 0 ? p.tiles : 1) * K);
      p.parts = wanted < p.max_spans ? wanted : p.max_spans;
    }
    p.split_floats = (a.T < limit ? a.T : limit) * per_query;
  }
  return p;
}

// What one chunk works on.
struct Tile {
  int64_t b;         // sequence
  int64_t t0;        // first row of args.q
  int64_t queries;   // 0: empty
  int64_t position;  // of query 0
};

// Tile `index` of the batch: sequences in order, each cut from its first query on.
inline Tile find_tile(const PagedAttentionArgs& a, const Partition& p, int64_t index) {
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t start = a.seq_start[b], length = a.seq_start[b + 1] - start;
    const int64_t tiles = ceil_div(length, p.queries);
    if (index < tiles) {
      const int64_t first = index * p.queries, rest = length - first;
      return {b, start + first, rest < p.queries ? rest : p.queries, a.context_len[b] - length + first};
    }
    index -= tiles;
  }
  return {};
}

// Positions [lo, hi) that the query at `position` sees.
struct Range {
  int64_t lo, hi;
};
OAR_INLINE Range visible(const PagedAttentionArgs& a, int64_t position) {
  const int64_t lo = first_seen(a, position);
  return {lo, position + 1};
}
OAR_INLINE Range spans_of(Range positions) { return {positions.lo / kSpan, (positions.hi - 1) / kSpan + 1}; }

// The panels of one span of one head, found through the block table. Only pages with a position in [lo, hi)
// are looked up: entries of pages that left the window may be stale.
struct SpanPanels {
  int64_t lo = 0, hi = 0;  // panels [lo, hi) of the span are set
  const char* k[kSpanPanels];
  const char* v[kSpanPanels];
};
inline void find_panels(const PagedAttentionArgs& a, const KvLayout& layout, int64_t b, int64_t kv_head,
                        int64_t span, Range positions, SpanPanels* out) {
  const int64_t first = span * kSpanPanels, last = first + kSpanPanels;  // in panels of the sequence
  const int64_t seen_first = positions.lo / kKvPanelTokens,
                seen_last = ceil_div(positions.hi, kKvPanelTokens);
  const int64_t begin = first > seen_first ? first : seen_first, end = last < seen_last ? last : seen_last;
  out->lo = begin - first;
  out->hi = end > begin ? end - first : out->lo;
  const int32_t* table = a.block_tables + b * a.max_blocks;
  int64_t page = begin / layout.panels, in_page = begin % layout.panels;
  for (int64_t i = out->lo; i < out->hi; ++i) {
    const char* block = static_cast<const char*>(a.pool) + table[page] * layout.block_bytes;
    out->k[i] = block + layout.k_panel(kv_head, in_page);
    // Keys that hold values are found twice; who multiplies puts values in their place.
    out->v[i] = layout.latent ? out->k[i] : block + layout.v_panel(kv_head, in_page);
    if (++in_page == layout.panels) {
      in_page = 0;
      ++page;
    }
  }
}

// A chunk that has work: spans of one tile and key/value head.
struct ChunkWork {
  int64_t chunk;  // its number; the end of the search when there is none
  Tile tile;
  int64_t kv_head;
  Range seen;   // positions that any query of the tile sees
  Range spans;  // of these, the chunk's part
};

// The first chunk with work in [begin, end). Chunks are numbered head major, then tile, then part: a worker's
// neighbouring chunks read the same keys and values of a prompt, or the next piece of a context.
inline ChunkWork find_work(const PagedAttentionArgs& a, const Partition& p, int64_t begin, int64_t end) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t part = chunk % p.parts, index = chunk / p.parts % p.tiles;
    const Tile tile = find_tile(a, p, index);
    if (tile.queries == 0) continue;
    const Range seen = {visible(a, tile.position).lo, tile.position + tile.queries};
    const Range all = spans_of(seen);
    const int64_t count = all.hi - all.lo;
    const Range spans = {all.lo + count * part / p.parts, all.lo + count * (part + 1) / p.parts};
    if (spans.lo < spans.hi) return {chunk, tile, chunk / p.parts / p.tiles, seen, spans};
  }
  return {end, {}, 0, {}, {}};
}

inline void chunk_panels(const PagedAttentionArgs& a, const KvLayout& layout, const ChunkWork& w,
                         int64_t span, SpanPanels* out) {
  find_panels(a, layout, w.tile.b, w.kv_head, span, w.seen, out);
}

}  // namespace oar::OAR_SIMD_NAMESPACE
