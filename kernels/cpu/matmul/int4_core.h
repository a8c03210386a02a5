// Matmul of weights in int4.panel16 and int4z.panel16 (int4_panel.h), three ways that compute the same
// integers and the same floats from them:
//
//   one token, or as many as Arch::kTokens   codes are looked up in the group's table of bytes on their way
//                                            from memory to the dot product
//   a few, where Int8 can (int8_amx.h)       a step of 64 k is expanded to int8.panel16 in the first-level
//                                            cache while the step before it is multiplied
//   a few, up to Arch::kRegisterTokens       a group is expanded to registers and multiplied from there
//   any number                               panels are expanded in the worker's scratch, a piece at a time,
//                                            and multiplied there by the core of 8-bit weights
//
// An Arch works on vectors of 16-byte lanes, a row's 16 k in each:
//
//   struct Arch {
//     using Int8;                     // the Arch of int8_core.h with kLanes = 4 x the lanes of a vector
//     using Bytes, X, Dot;
//     static constexpr int kParts;    // vectors of a line: 1, 2 or 4
//     static constexpr int kStreams;  // panels in flight for one token
//     static constexpr int kTokens;   // how many tokens may share a lookup, each with four registers of dots
//     using Codebook;  static Codebook codebook(const int16_t*);  // int4_codebook()'s
//     // The sixteen weights of a group for rows 4 i + j of the vector's lanes i; m: the group's multipliers.
//     static Bytes table(const Codebook&, const char* m, int part, int j);
//     static Bytes biased(Bytes table);               // as dot() wants them
//     // With the group's offsets, and as dot() wants them if kBiased.
//     template <bool kBiased>
//     static Bytes table(const Codebook&, const char* m, const char* o, int part, int j);
//     static Bytes load(const char*);  static void store(char*, Bytes);
//     static Bytes low(Bytes);  static Bytes high(Bytes);      // codes of k = 0 .. 15 and 16 .. 31
//     static Bytes lookup(Bytes table, Bytes levels);
//     static X load_x(const int8_t*);                 // 16 bytes to all lanes
//     static Dot zero();  static Dot dot(Dot, Bytes w, X x);   // sums within lanes, four of four k each
//     static void transpose(Bytes v[4]);              // [j][dword] -> [dword][j] in each lane
//     static Int8::Dot total(const Dot[4], int32_t start);     // of the lanes' dwords, plus start
//   };
#pragma once

#include "kernels/cpu/matmul/int4_panel.h"
#include "kernels/cpu/matmul/int8_core.h"

namespace oar {

template <class Arch, class Int8, bool kOffsets = false>
struct Int4Core {
  using Panel = Int4Panel<kOffsets>;
  using Rows = typename Arch::Int8;  // arithmetic on kLanes outputs
  using Store = Int8Core<Rows>;
  static constexpr int64_t kAhead = 4096;                    // as in int8_core.h
  static constexpr int64_t kPieceRows = Int8::kTileRows;     // at least, and a multiple
  static constexpr int64_t kPieceBytes = Int8::kPieceBytes;  // expanded
  static constexpr int64_t kFewTokens = 32;
  static constexpr int64_t kFewBytes = 32 << 10;  // with few tokens a piece is read back at once
  static constexpr int64_t kSomeTokens = 128;     // chunks stay small, for the workers' balance

  static int64_t x_bytes(int64_t K) { return Int8::x_bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return Panel::bytes(v.K) / kPanelRows; }
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
                                std::max<int64_t>(kPieceRows, kPanelRows * Arch::kStreams));
    }
    return std::clamp(total_rows / kManyTokensChunks / kPieceRows * kPieceRows, kPieceRows,
                      v.P / v.runs <= kSomeTokens ? 2 * kPieceRows : piece_rows(v.K, kPieceBytes));
  }
  static void pack(void* run, const PackTask& p) { Int8::pack(run, p); }

  static void panel(const PanelTask& p) {
    if (p.tokens <= Arch::kTokens) return few_tokens<Arch::kTokens>(p);
    if constexpr (kTileUnit) {
      if (p.tokens <= Int8::kInPassingTokens) return Int8::in_passing(p, InPassing(p));
    } else if constexpr (requires { Arch::kRegisterTokens; }) {
      if (p.tokens <= Arch::kRegisterTokens) {
        for (int64_t t = 0; t < p.tokens; t += Int8Tokens::kBlock) {
          const Int8Tokens x(p.x, p.K, p.tokens, t);
          in_registers<Int8Tokens::kBlock>(p, x, t);
        }
        return;
      }
    }
    const int64_t bytes = Panel::bytes(p.K);
    const int64_t step = piece_rows(p.K, p.tokens <= kFewTokens ? kFewBytes : kPieceBytes);
    char* piece = static_cast<char*>(p.scratch);
    for (int64_t row = p.row_begin; row < p.row_end; row += step) {
      const int64_t n = std::min(step, p.row_end - row), panels = (n + kPanelRows - 1) / kPanelRows;
      const char* w = static_cast<const char*>(p.w) + row / kPanelRows * bytes;
      for (int64_t i = 0; i < panels; ++i) {
        expand(codebook(p), w + i * bytes, p.K, piece + i * panel_bytes(p.K));
      }
      PanelTask q = piece_of(p, row, n, piece);
      q.scratch = piece + expanded_bytes(p.K);
      // The next piece, of this chunk or most likely of this worker's next one.
      const int64_t next = row + n, panels_left = (p.rows - next + kPanelRows - 1) / kPanelRows;
      q.ahead = w + panels * bytes;
      q.ahead_bytes = std::clamp<int64_t>(panels_left, 0, panels) * bytes;
      Int8::panel(q);
    }
  }

 private:
  static constexpr bool kTileUnit = requires { Int8::kInPassingTokens; };
  // So many that the last of them is not waited for. A tile unit multiplies four times as fast: of chunks of
  // few rows each core would read its tokens at 50 GB/s.
  static constexpr int64_t kManyTokensChunks = kTileUnit ? 16 : 64;
  static constexpr int64_t kVectorBytes = kPanelLine / Arch::kParts;
  using Codebook = typename Arch::Codebook;

  static Codebook codebook(const PanelTask& p) { return Arch::codebook(int4_codebook(p.format)); }

  template <bool kBiased>
  [[gnu::always_inline]] static typename Arch::Bytes table(const Codebook& codes, const char* m, int part,
                                                           int j) {
    if constexpr (kOffsets) {
      return Arch::template table<kBiased>(codes, m, m + kInt4GroupsBytes, part, j);
    } else {
      const auto words = Arch::table(codes, m, part, j);
      return kBiased ? Arch::biased(words) : words;
    }
  }

  // What to add to an address in block b of a panel for one that is wanted kAhead later, when `panels` of
  // them are read side by side: behind the end of a panel comes the one that many further on.
  static int64_t ahead(int64_t K, int64_t b, int64_t panels) {
    const int64_t bytes = Panel::bytes(K);
    return Panel::block_at(b) + kAhead < bytes ? kAhead : kAhead + (panels - 1) * bytes;
  }

  // Part `part` of group g of a block: of the eight lines of int8.panel16 that it stands for, as dot() wants
  // them if kBiased.
  template <bool kBiased>
  [[gnu::always_inline]] static void expand_part(const Codebook& codes, const char* block, int64_t g,
                                                 int part, int64_t ahead, typename Arch::Bytes out[8]) {
    const char* lines = block + Panel::kHeadBytes + g * kInt4GroupBytes + part * kVectorBytes;
    const char* m = block + kPanelLine + g * kPanelRows;
    unrolled<4>([&](auto j) OAR_INLINE_BODY {
      const char* at = lines + j * kPanelLine;
      __builtin_prefetch(at + ahead, 0, 3);
      const auto levels = Arch::load(at);
      const auto table = Int4Core::table<kBiased>(codes, m, part, j);
      out[j] = Arch::lookup(table, Arch::low(levels));
      out[4 + j] = Arch::lookup(table, Arch::high(levels));
    });
    Arch::transpose(out);
    Arch::transpose(out + 4);
  }

  // Group g of a block to eight lines of int8.panel16.
  [[gnu::always_inline]] static void expand_group(const Codebook& codes, const char* block, int64_t g,
                                                  int64_t ahead, char* out) {
    for (int part = 0; part < Arch::kParts; ++part) {
      typename Arch::Bytes line[8];
      expand_part<false>(codes, block, g, part, ahead, line);
      unrolled<8>([&](auto l)
                      OAR_INLINE_BODY { Arch::store(out + l * kPanelLine + part * kVectorBytes, line[l]); });
    }
  }

  // Step s of a block of `groups` groups to 16 lines, 64 k; half of the last one may not exist.
  static void expand_step(const Codebook& codes, const char* block, int64_t groups, int64_t s, int64_t ahead,
                          char* out) {
    const int64_t end = std::min(2 * s + 2, groups);
    for (int64_t g = 2 * s; g < end; ++g, out += 8 * kPanelLine) expand_group(codes, block, g, ahead, out);
    if (end % 2 != 0) std::memset(out, 0, 8 * kPanelLine);
  }

  // One panel to int8.panel16.
  static void expand(const Codebook& codes, const char* from, int64_t K, char* to) {
    for (int64_t b = 0; b < panel_blocks(K); ++b) {
      const char* block = from + Panel::block_at(b);
      char* out = to + panel_block_at(b);
      std::memcpy(out, block, kPanelLine);
      for (int64_t s = 0; s < panel_steps(K, b); ++s) {
        expand_step(codes, block, int4_block_groups(K, b), s, kAhead,
                    out + kPanelLine + s * kStepLines * kPanelLine);
      }
    }
  }

  // The weights of a chunk as Int8::in_passing() asks for them: pairs of panels, step by step, each expanded
  // while the one before it is multiplied. What waits is no more than that, 2 KB of a pair in either half of
  // the buffer: sixteen tokens of K = 2048 and all of this share the first-level cache.
  class InPassing {
    static constexpr int64_t kBlockSteps = kPanelBlock / kPanelStep;
    static constexpr int64_t kStepBytes = kStepLines * kPanelLine;

   public:
    explicit InPassing(const PanelTask& p)
        : codes_(codebook(p)),
          w_(static_cast<const char*>(p.w) + p.row_begin / kPanelRows * Panel::bytes(p.K)),
          K_(p.K),
          steps_(panel_k(p.K) / kPanelStep),
          panels_((p.row_end - p.row_begin + kPanelRows - 1) / kPanelRows),
          buffer_(static_cast<char*>(p.scratch)) {
      for (int64_t i = 0; i < std::min<int64_t>(2, panels_); ++i) expand_ahead(i, 0);
    }
    const char* scales(int i, int64_t b) const { return w_ + i * Panel::bytes(K_) + Panel::block_at(b); }
    struct Steps {
      const char* buffer;
      int64_t first;
      const char* operator[](int64_t s) const { return buffer + (first + s) % 2 * 2 * kStepBytes; }
    };
    Steps steps(int i, int64_t b) const { return {buffer_ + i % 2 * kStepBytes, turn_ + b * kBlockSteps}; }
    // Once for panel i of NP and each step of block b.
    template <int NP>
    void during(int i, int64_t b, int64_t s) {
      const int64_t next = b * kBlockSteps + s + 1;
      if (next < steps_) {
        expand_ahead(i, next);
      } else if (next == steps_ && i + 2 < panels_) {
        expand_ahead(i + 2, 0);
      }
    }
    void next_pair() {
      w_ += 2 * Panel::bytes(K_);
      panels_ -= 2;
      turn_ += steps_;
    }

   private:
    char* at(int64_t turn, int64_t i) const { return buffer_ + (turn % 2 * 2 + i % 2) * kStepBytes; }
    // Step k of panel i counted from this pair.
    void expand_ahead(int64_t i, int64_t k) {
      const int64_t b = k / kBlockSteps;
      expand_step(codes_, w_ + i * Panel::bytes(K_) + Panel::block_at(b), int4_block_groups(K_, b),
                  k % kBlockSteps, ahead(K_, b, 2), at(turn_ + (i < 2 ? 0 : steps_) + k, i));
    }

    Codebook codes_;
    const char* w_;               // the pair that is multiplied
    int64_t K_, steps_, panels_;  // panels from w_ on
    char* buffer_;
    int64_t turn_ = 0;  // steps multiplied before this pair
  };

  // Up to a block of tokens with sixteen rows at a time: a group is expanded to registers and multiplied from
  // there. Nothing is written, and memory is read evenly.
  template <int NT>
  static void in_registers(const PanelTask& p, const Int8Tokens& x, int64_t t) {
    if constexpr (NT > 1) {
      if (x.size() < NT) return in_registers<NT - 1>(p, x, t);
    }
    for (int64_t row = p.row_begin; row < p.row_end; row += kPanelRows) panel_in_registers<NT>(p, x, row, t);
  }

  template <int NT>
  [[gnu::noinline]] static void panel_in_registers(const PanelTask& p, const Int8Tokens& x, int64_t row,
                                                   int64_t t) {
    static_assert(Arch::kParts == 1 && Rows::kLanes == kPanelRows);
    const Codebook codes = codebook(p);
    const char* w = static_cast<const char*>(p.w) + row / kPanelRows * Panel::bytes(p.K);
    alignas(64) float sums[NT][kPanelRows] = {};
    for (int64_t b = 0; b < panel_blocks(p.K); ++b) {
      const char* block = w + Panel::block_at(b);
      typename Rows::Dot dot[NT];
      const int32_t* starts = x.starts(b);
      unrolled<NT>([&](auto j) OAR_INLINE_BODY { dot[j] = Rows::start(Rows::kBiased ? starts[j] : 0); });
      for (int64_t g = 0; g < int4_block_groups(p.K, b); ++g) {
        typename Arch::Bytes line[8];
        expand_part<true>(codes, block, g, 0, kAhead, line);
        const int8_t* xs = x.at(0, b * (kPanelBlock / kPanelStep) + g / 2) + g % 2 * kInt4Group;
        unrolled<8>([&](auto l) OAR_INLINE_BODY {
          unrolled<NT>([&](auto j) OAR_INLINE_BODY {
            dot[j] = Rows::dot(dot[j], line[l], Rows::load_x(xs + j * kPanelStep + l * 4));
          });
        });
      }
      Store::template flush<NT>(dot, sums, reinterpret_cast<const float*>(block), x.scales(b));
    }
    for (int j = 0; j < NT; ++j) Store::store(p, row, t + j, Rows::load(sums[j]));
  }

  template <int NT>
  static void few_tokens(const PanelTask& p) {
    if constexpr (NT > 1) {
      if (p.tokens < NT) return few_tokens<NT - 1>(p);
    }
    constexpr int NP = std::max(1, Arch::kStreams / NT);
    int64_t row = p.row_begin;
    for (; row + (NP - 1) * kPanelRows < p.row_end; row += NP * kPanelRows) panels<NP, NT>(p, row);
    if constexpr (NP > 1) {
      for (; row < p.row_end; row += kPanelRows) panels<1, NT>(p, row);
    }
  }

  // NP panels from `row` times NT tokens. A part of the lines at a time where vectors are narrow.
  template <int NP, int NT>
  [[gnu::noinline]] static void panels(const PanelTask& p, int64_t row) {
    constexpr int64_t kLanes = Rows::kLanes;
    const Int8Tokens x(p.x, p.K, NT, 0);
    const Codebook codes = codebook(p);
    const char* w[NP];
    for (int i = 0; i < NP; ++i) {
      w[i] = static_cast<const char*>(p.w) + (row / kPanelRows + i) * Panel::bytes(p.K);
    }
    for (int part = 0; part < Arch::kParts; ++part) {
      alignas(64) float sums[NP][NT][kLanes] = {};
      for (int64_t b = 0; b < panel_blocks(p.K); ++b) {
        typename Arch::Dot dot[NP][NT][4];
        for (auto& panel : dot) {
          for (auto& token : panel) {
            for (auto& d : token) d = Arch::zero();
          }
        }
        const int64_t groups = int4_block_groups(p.K, b), at = Panel::block_at(b),
                      further = ahead(p.K, b, NP);
        const int64_t step = b * (kPanelBlock / kPanelStep);
        for (int64_t g = 0; g < groups; ++g) {
          typename Arch::X x_low[NT], x_high[NT];
#pragma GCC unroll 4
          for (int t = 0; t < NT; ++t) {
            const int8_t* xt = x.at(t, step + g / 2) + g % 2 * kInt4Group;
            x_low[t] = Arch::load_x(xt);
            x_high[t] = Arch::load_x(xt + kInt4Group / 2);
          }
#pragma GCC unroll 4
          for (int i = 0; i < NP; ++i) {
            const char* lines = w[i] + at + Panel::kHeadBytes + g * kInt4GroupBytes + part * kVectorBytes;
            const char* m = w[i] + at + kPanelLine + g * kPanelRows;
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
              const char* line = lines + j * kPanelLine;
              if (Arch::kParts == 1 || part == 0) __builtin_prefetch(line + further, 0, 3);
              const auto levels = Arch::load(line);
              const auto table = Int4Core::table<true>(codes, m, part, j);
              const auto low = Arch::lookup(table, Arch::low(levels)),
                         high = Arch::lookup(table, Arch::high(levels));
#pragma GCC unroll 4
              for (int t = 0; t < NT; ++t) {
                dot[i][t][j] = Arch::dot(dot[i][t][j], low, x_low[t]);
                dot[i][t][j] = Arch::dot(dot[i][t][j], high, x_high[t]);
              }
            }
          }
        }
#pragma GCC unroll 4
        for (int i = 0; i < NP; ++i) {
          const auto scale = Rows::load(reinterpret_cast<const float*>(w[i] + at) + part * kLanes);
#pragma GCC unroll 4
          for (int t = 0; t < NT; ++t) {
            const auto total = Arch::total(dot[i][t], Rows::kBiased ? x.starts(b)[t] : 0);
            Rows::store(sums[i][t], Rows::flush(Rows::load(sums[i][t]), total, scale, x.scales(b)[t]));
          }
        }
      }
      for (int i = 0; i < NP; ++i) {
        const int64_t r = row + i * kPanelRows + part * kLanes;
        if (r >= p.row_end) continue;
        for (int t = 0; t < NT; ++t) Store::store(p, r, t, Rows::load(sums[i][t]));
      }
    }
  }
};

// The core for every format that lies in int4.panel16 or int4z.panel16 at this level.
template <class Arch, class Int8>
constexpr auto int4_kernels(Isa isa, const char* level = nullptr) {
  return join(
      MatmulDriver<Int4Core<Arch, Int8, false>>::kernels(kInt4PanelFormats, isa, level, kInt4PanelLayoutName),
      MatmulDriver<Int4Core<Arch, Int8, true>>::kernels(kInt4OffsetFormats, isa, level,
                                                        kInt4OffsetLayoutName));
}

}  // namespace oar
