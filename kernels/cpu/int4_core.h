// Matmul of weights in int4.panel16 (int4_panel.h). One token: levels are looked up in the group's table of
// bytes on their way from memory to the dot product. Several: panels are expanded to int8.panel16 in the
// worker's scratch, a piece at a time, and multiplied there by the core of 8-bit weights. Both compute the
// same integers and the same floats from them.
//
// An Arch works on vectors of 16-byte lanes, a row's 16 k in each:
//
//   struct Arch {
//     using Int8;                     // the Arch of int8_core.h with kLanes = 4 x the lanes of a vector
//     using Bytes, X, Dot;
//     static constexpr int kParts;    // vectors of a line: 1, 2 or 4
//     static constexpr int kStreams;  // panels in flight for one token
//     // The sixteen weights of a group for rows 4 i + j of the vector's lanes i; m: the group's multipliers.
//     static Bytes table(const char* m, int part, int j);
//     static Bytes biased(Bytes table);               // as dot() wants them
//     static Bytes load(const char*);  static void store(char*, Bytes);
//     static Bytes low(Bytes);  static Bytes high(Bytes);      // levels of k = 0 .. 15 and 16 .. 31
//     static Bytes lookup(Bytes table, Bytes levels);
//     static X load_x(const int8_t*);                 // 16 bytes to all lanes
//     static Dot zero();  static Dot dot(Dot, Bytes w, X x);   // sums within lanes, four of four k each
//     static void transpose(Bytes v[4]);              // [j][dword] -> [dword][j] in each lane
//     static Int8::Dot total(const Dot[4], int32_t start);     // of the lanes' dwords, plus start
//   };
#pragma once

#include "kernels/cpu/int4_panel.h"
#include "kernels/cpu/int8_core.h"

namespace oar {

template <class Arch, class Int8>
struct Int4Core {
  using Rows = typename Arch::Int8;  // arithmetic on kLanes outputs
  using Store = Int8Core<Rows>;
  static constexpr int64_t kAhead = 4096;    // as in int8_core.h
  static constexpr int64_t kPieceRows = 32;  // at least; a multiple of what the cores take at a time
  static constexpr int64_t kPieceBytes = Int8::kPieceBytes;  // expanded
  static constexpr int64_t kFewTokens = 32;
  static constexpr int64_t kFewBytes = 32 << 10;  // with few tokens a piece is read back at once

  static int64_t x_bytes(int64_t K) { return Int8::x_bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return int4_panel_bytes(v.K) / kPanelRows; }
  static int64_t piece_rows(int64_t K, int64_t budget) {
    return std::max(kPieceRows, budget / (panel_bytes(K) / kPanelRows) / kPieceRows * kPieceRows);
  }
  static int64_t scratch_bytes(const MatmulView& v) { return expanded_bytes(v.K) + Int8::scratch_bytes(v); }
  static int64_t expanded_bytes(int64_t K) {
    return piece_rows(K, kPieceBytes) / kPanelRows * panel_bytes(K);
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    if (v.P / v.runs <= kFewTokens) {
      return default_chunk_rows(v, total_rows, w_bytes(v),
                                std::max<int64_t>(kPieceRows, 16 * Arch::kStreams));
    }
    return std::clamp(total_rows / kManyTokensChunks / kPieceRows * kPieceRows, kPieceRows,
                      piece_rows(v.K, kPieceBytes));
  }
  static void pack(void* run, const PackTask& p) { Int8::pack(run, p); }

  static void panel(const PanelTask& p) {
    if (p.tokens == 1) return gemv(p);
    const int64_t bytes = int4_panel_bytes(p.K);
    const int64_t step = piece_rows(p.K, p.tokens <= kFewTokens ? kFewBytes : kPieceBytes);
    char* piece = static_cast<char*>(p.scratch);
    for (int64_t row = p.row_begin; row < p.row_end; row += step) {
      const int64_t n = std::min(step, p.row_end - row), panels = (n + kPanelRows - 1) / kPanelRows;
      const char* w = static_cast<const char*>(p.w) + row / kPanelRows * bytes;
      for (int64_t i = 0; i < panels; ++i) expand(w + i * bytes, p.K, piece + i * panel_bytes(p.K));
      PanelTask q = p;
      q.w = piece;
      q.scratch = piece + expanded_bytes(p.K);
      q.rows = q.row_end = n;
      q.row_begin = 0;
      q.out += row;
      if (q.bias != nullptr) q.bias += row;
      if (q.residual != nullptr) q.residual += row;
      // The next piece, of this chunk or most likely of this worker's next one.
      const int64_t next = row + n, panels_left = (p.rows - next + kPanelRows - 1) / kPanelRows;
      q.ahead = w + panels * bytes;
      q.ahead_bytes = std::clamp<int64_t>(panels_left, 0, panels) * bytes;
      Int8::panel(q);
    }
  }

 private:
  static constexpr int64_t kManyTokensChunks = 16;

  // One panel to int8.panel16.
  static void expand(const char* from, int64_t K, char* to) {
    constexpr int64_t kBytes = kPanelLine / Arch::kParts;
    for (int64_t b = 0; b < panel_blocks(K); ++b) {
      const char* block = from + int4_block_at(b);
      char* out = to + panel_block_at(b);
      std::memcpy(out, block, kPanelLine);
      out += kPanelLine;
      const int64_t groups = int4_block_groups(K, b);
      for (int64_t g = 0; g < groups; ++g) {
        const char* lines = block + kInt4HeadBytes + g * kInt4GroupBytes;
        const char* m = block + kPanelLine + g * kPanelRows;
        for (int part = 0; part < Arch::kParts; ++part) {
          typename Arch::Bytes low[4], high[4];
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const char* at = lines + j * kPanelLine + part * kBytes;
            __builtin_prefetch(at + kAhead, 0, 3);
            const auto levels = Arch::load(at);
            const auto table = Arch::table(m, part, j);
            low[j] = Arch::lookup(table, Arch::low(levels));
            high[j] = Arch::lookup(table, Arch::high(levels));
          }
          Arch::transpose(low);
          Arch::transpose(high);
#pragma GCC unroll 4
          for (int l = 0; l < 4; ++l) {
            Arch::store(out + (8 * g + l) * kPanelLine + part * kBytes, low[l]);
            Arch::store(out + (8 * g + 4 + l) * kPanelLine + part * kBytes, high[l]);
          }
        }
      }
      if (groups % 2 != 0) std::memset(out + 8 * groups * kPanelLine, 0, 8 * kPanelLine);  // a half step
    }
  }

  static void gemv(const PanelTask& p) {
    int64_t row = p.row_begin;
    for (; row + (Arch::kStreams - 1) * kPanelRows < p.row_end; row += Arch::kStreams * kPanelRows) {
      panels<Arch::kStreams>(p, row);
    }
    if constexpr (Arch::kStreams > 1) {
      for (; row < p.row_end; row += kPanelRows) panels<1>(p, row);
    }
  }

  // NP panels from `row` times the token. A part of the lines at a time where vectors are narrow.
  template <int NP>
  static void panels(const PanelTask& p, int64_t row) {
    constexpr int64_t kBytes = kPanelLine / Arch::kParts, kLanes = Rows::kLanes;
    const Int8Tokens x(p.x, p.K, 1, 0);
    const char* w[NP];
    for (int i = 0; i < NP; ++i) {
      w[i] = static_cast<const char*>(p.w) + (row / kPanelRows + i) * int4_panel_bytes(p.K);
    }
    for (int part = 0; part < Arch::kParts; ++part) {
      alignas(64) float sums[NP][kLanes] = {};
      for (int64_t b = 0; b < panel_blocks(p.K); ++b) {
        typename Arch::Dot dot[NP][4];
        for (auto& panel : dot) {
          for (auto& d : panel) d = Arch::zero();
        }
        const int64_t groups = int4_block_groups(p.K, b), at = int4_block_at(b);
        const int8_t* xb = x.at(0, b * (kPanelBlock / kPanelStep));
        for (int64_t g = 0; g < groups; ++g) {
          const auto x_low = Arch::load_x(xb + g * kInt4Group),
                     x_high = Arch::load_x(xb + g * kInt4Group + 16);
#pragma GCC unroll 4
          for (int i = 0; i < NP; ++i) {
            const char* lines = w[i] + at + kInt4HeadBytes + g * kInt4GroupBytes + part * kBytes;
            const char* m = w[i] + at + kPanelLine + g * kPanelRows;
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
              const char* line = lines + j * kPanelLine;
              if (Arch::kParts == 1 || part == 0) __builtin_prefetch(line + kAhead, 0, 3);
              const auto levels = Arch::load(line);
              const auto table = Arch::biased(Arch::table(m, part, j));
              dot[i][j] = Arch::dot(dot[i][j], Arch::lookup(table, Arch::low(levels)), x_low);
              dot[i][j] = Arch::dot(dot[i][j], Arch::lookup(table, Arch::high(levels)), x_high);
            }
          }
        }
#pragma GCC unroll 4
        for (int i = 0; i < NP; ++i) {
          const auto total = Arch::total(dot[i], Rows::kBiased ? x.starts(b)[0] : 0);
          const auto scale = Rows::load(reinterpret_cast<const float*>(w[i] + at) + part * kLanes);
          Rows::store(sums[i], Rows::flush(Rows::load(sums[i]), total, scale, x.scales(b)[0]));
        }
      }
      for (int i = 0; i < NP; ++i) {
        const int64_t r = row + i * kPanelRows + part * kLanes;
        if (r < p.row_end) Store::store(p, r, 0, Rows::load(sums[i]));
      }
    }
  }
};

// Registers Core for every format that lies in int8.panel16, and the int4 core over it for int4.panel16's.
template <class Core>
void append_int8(KernelList& list, Isa isa, const char* level = nullptr) {
  for (const char* name : kInt8PanelFormats) {
    MatmulDriver<Core>::append(list, Format::find(name), isa, level);
  }
}
template <class Arch, class Int8>
void append_int4(KernelList& list, Isa isa, const char* level = nullptr) {
  for (const char* name : {"i4_s8_g32", "q4_0", "i4_g64", "i4_g128"}) {
    MatmulDriver<Int4Core<Arch, Int8>>::append(list, Format::find(name), isa, level);
  }
}

}  // namespace oar
