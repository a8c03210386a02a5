// Recurrent state of sequences, as kernels of every family that has one see it in a step: causal
// convolutions, gated delta rules, state-space scans.
//
// A sequence's positions fall into chunks of P, the tokens of a page. What a layer keeps of it is
//   the border  its state behind the last chunk that is full: `border_floats` numbers. Behind nothing it is
//   zero. open rows   of each position of the chunk behind that border `row_floats` numbers: what the layer
//   needs of
//               it to compute the rows behind it and, once the chunk is full, the next border.
// Both are f32, in blocks of two pools whose insides are the kernel's own business. Every row is computed by
// one formula from the border and the rows of its own chunk up to itself, in an order fixed by its position
// alone, wherever those rows come from: out of a pool, or out of this step's operands. The next border is
// computed by one formula from the last and all P rows. So bits depend on positions, never on how a prompt is
// cut, and a row computed anew after a roll-back is the same.
//
// The kernel writes a row where `row_slots` says so, and a border where a chunk fills in this step and
// `border_tables` names a block for it. A border that nobody keeps it carries to the next chunk in its own
// scratch. Blocks that are written in a step are nobody else's; a border's block is written whole. Bytes that
// were not written may be anything, NaN included, and never reach arithmetic.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace oar {

// Part of the argument structs of such families. Row t of sequence b sits at position context_len[b] -
// (seq_start[b+1] - seq_start[b]) + (t - seq_start[b]).
struct StateArgs {
  float* borders = nullptr;  // [blocks][border_floats], 64-byte aligned
  float* rows = nullptr;     // [blocks][P][row_floats], 64-byte aligned
  const int32_t* border_tables =
      nullptr;                           // [B, max_borders]; entry j: the state behind chunk j; -1: not kept
  const int32_t* row_tables = nullptr;   // [B, max_row_blocks]; entry j: rows of chunk j, where it is open
  const int32_t* row_slots = nullptr;    // [T] block * P + row; -1: do not store
  const int32_t* seq_start = nullptr;    // [B + 1] first row of each sequence, ascending; 0 .. T
  const int32_t* context_len = nullptr;  // [B] tokens of each sequence once this step has run
  int64_t T = 0, B = 0, max_borders = 0, max_row_blocks = 0;
  int64_t border_floats = 0, row_floats = 0;
  int32_t page_tokens = 0;  // P
};

// Bytes of a block of each pool: of a border, and of the rows of a page.
inline constexpr uint64_t state_border_bytes(int64_t border_floats) {
  constexpr uint64_t kAligned = 64;
  const uint64_t bytes = static_cast<uint64_t>(border_floats) * sizeof(float);
  return (bytes + kAligned - 1) / kAligned * kAligned;
}
inline constexpr uint64_t state_rows_bytes(int64_t row_floats, int64_t page_tokens) {
  return static_cast<uint64_t>(row_floats * page_tokens) * sizeof(float);
}

// Rows of this step that lie in one chunk of one sequence.
struct StateChunk {
  int64_t first = 0, rows = 0;    // packed rows [first, first + rows)
  int64_t open = 0;               // rows of the chunk in front of them; at most P - rows
  const float* kept = nullptr;    // [open][row_floats] of those
  const float* border = nullptr;  // the state in front of the chunk; null: zero
  float* out = nullptr;  // the chunk fills: the state behind it goes here, which may be `border`; else null
};

// f(StateChunk) for the chunks of sequence b in order, for a worker that has floats [at, at + n) of the
// border to itself (a head, a range of channels): `border` and `out` begin at `at`, `kept` at the row's
// beginning. `carry`: n floats of scratch.
template <class F>
[[gnu::always_inline]] inline void for_each_state_chunk(const StateArgs& a, int64_t b, int64_t at,
                                                        float* carry, F&& f) {
  const int64_t P = a.page_tokens, end = a.context_len[b];
  const int64_t row0 = a.seq_start[b], from = end - (a.seq_start[b + 1] - row0);
  const int32_t* borders = a.border_tables + b * a.max_borders;
  const float* border = nullptr;
  if (from >= P) border = a.borders + borders[from / P - 1] * a.border_floats + at;
  for (int64_t p = from; p < end;) {
    const int64_t j = p / P, next = (j + 1) * P < end ? (j + 1) * P : end;
    StateChunk c;
    c.first = row0 + (p - from);
    c.rows = next - p;
    c.open = p - j * P;
    if (c.open > 0) c.kept = a.rows + int64_t{a.row_tables[b * a.max_row_blocks + j]} * P * a.row_floats;
    c.border = border;
    if (next == (j + 1) * P) {
      const int32_t block = borders[j];
      c.out = block < 0 ? carry : a.borders + block * a.border_floats + at;
    }
    f(c);
    border = c.out;
    p = next;
  }
}

// Where packed row t is stored, or null.
[[gnu::always_inline]] inline float* state_row(const StateArgs& a, int64_t t) {
  return a.row_slots[t] < 0 ? nullptr : a.rows + a.row_slots[t] * a.row_floats;
}

}  // namespace oar
