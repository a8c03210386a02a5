// Short depthwise convolutions over packed rows of sequences that go on from a state: each channel of a row
// is the weighted sum of that channel in the last L rows of its sequence.
//
//   out[t] = bias + sum over i of w[i] x[t - (L - 1) + i]       rows in front of the sequence are zero
//
// A row's state is its input (state.row_floats = C); a border is the last L - 1 rows in front of it, [L -
// 1][C]. Sums run from the oldest row to the newest, whoever brings them.
//
// Roofline: 2 * T * C * 4 bytes; a row that comes alone reads L - 1 rows of state as well.
#pragma once

#include "kernels/state.h"

namespace oar {

struct CausalConvArgs {
  uint32_t size = sizeof(CausalConvArgs);
  uint32_t version = 1;
  float* out = nullptr;         // [T, C], row stride ldo
  const float* x = nullptr;     // [T, C], row stride ldx
  const float* w = nullptr;     // [L][C]
  const float* bias = nullptr;  // [C] or null
  int64_t T = 0, C = 0, L = 0, ldx = 0, ldo = 0;
  StateArgs state;  // L - 1 <= state.page_tokens
};

// Where the rows lie that row t of a step needs.
struct CausalConvRow {
  const CausalConvArgs& a;
  int64_t b = 0, row0 = 0, from = 0;  // its sequence, the step's first row and first position of it

  [[gnu::always_inline]] CausalConvRow(const CausalConvArgs& args, int64_t t) : a(args) {
    const StateArgs& s = a.state;
    int64_t end = s.B;  // the last b whose rows begin at or before t
    while (end - b > 1) {
      const int64_t middle = (b + end) / 2;
      (s.seq_start[middle] <= t ? b : end) = middle;
    }
    find();
  }
  // Of row t, not in front of the one asked for before.
  [[gnu::always_inline]] int64_t position(int64_t t) {
    while (t >= a.state.seq_start[b + 1]) {
      ++b;
      find();
    }
    return from + t - row0;
  }
  // The row at position q of the sequence, q >= 0, at most L - 1 in front of the step or in it.
  [[gnu::always_inline]] const float* input(int64_t q) const {
    const StateArgs& s = a.state;
    if (q >= from) return a.x + (row0 + q - from) * a.ldx;
    const int64_t P = s.page_tokens, chunk = from / P;
    if (q >= chunk * P) {
      const int64_t block = s.row_tables[b * s.max_row_blocks + chunk];
      return s.rows + (block * P + q - chunk * P) * s.row_floats;
    }
    const int64_t block = s.border_tables[b * s.max_borders + chunk - 1];
    return s.borders + block * s.border_floats + (q - chunk * P + a.L - 1) * a.C;
  }
  // Where the border goes that ends with position p, or null.
  [[gnu::always_inline]] float* border(int64_t p) const {
    const StateArgs& s = a.state;
    if ((p + 1) % s.page_tokens != 0) return nullptr;
    const int64_t block = s.border_tables[b * s.max_borders + p / s.page_tokens];
    return block < 0 ? nullptr : s.borders + block * s.border_floats;
  }

 private:
  [[gnu::always_inline]] void find() {
    const StateArgs& s = a.state;
    row0 = s.seq_start[b];
    from = s.context_len[b] - (s.seq_start[b + 1] - row0);
  }
};

}  // namespace oar
