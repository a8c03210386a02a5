// Matmul on AMX tiles: q8_0 weights in int8.panel16.
//
// A tile holds 16 tokens x 32 k of the packed activations as they lie (the A operand), another the eight
// lines of a panel's group (B), and their product is the int32 dots [16 tokens][16 rows] of one group. They
// pass through a small buffer to the vector unit, which scales and adds them: 16 sums of 16 rows stay in
// registers over all of K. Dots of a group are exact, so the values are those of the vector kernel, which
// takes what is left of a run.
//
// Roofline: scaling takes 48 vector instructions for the 8192 products of a tile, 24 cycles on two ports
// beside the 16 of the tile product; that, not the tiles, is the limit, and the price of a scale for every 32
// k.
#include "kernels/cpu/amx.h"
#include "kernels/cpu/int8_vnni.h"

namespace oar {
namespace {

constexpr int64_t kTile = 16;

// Tile `dots` = activations of group `group` times its lines, stored to the buffer. Tile numbers must be
// literals.
#define OAR_GROUP_DOTS(dots_tile, x_tile, w_tile, group)                            \
  {                                                                                 \
    _tile_zero(dots_tile);                                                          \
    _tile_loadd(x_tile, x + (group)*kPanelGroup, static_cast<size_t>(token_bytes)); \
    _tile_loadd(w_tile, w + panel_lines_at(group), kPanelLine);                     \
    _tile_dpbssd(dots_tile, x_tile, w_tile);                                        \
    _tile_stored(dots_tile, dots[dots_tile], 64);                                   \
  }

struct AmxInt8Core {
  using Vnni = Int8Core<VnniInt8Streams>;
  // From here on a tile of 16 tokens costs less than the vector kernel even when it is not full.
  static constexpr int64_t kTileFrom = 8;
  static constexpr int64_t kInFlight = 4;  // groups whose dots are on their way

  static int64_t x_bytes(int64_t K) { return Vnni::x_bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return Vnni::w_bytes(v); }
  static int64_t scratch_bytes(const MatmulView& v) {
    return panel_groups(v.K) * kTile * static_cast<int64_t>(sizeof(float));
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return Vnni::chunk_rows(v, total_rows);
  }
  static void pack(void* run, const PackTask& p) { Vnni::pack(run, p); }

  static void panel(const PanelTask& p) {
    int64_t t = 0, configured = 0;
    for (; p.tokens - t >= kTileFrom; t += std::min(kTile, p.tokens - t)) {
      const int64_t tokens = std::min(kTile, p.tokens - t);
      if (tokens != configured) configure(configured = tokens);
      gather_scales(p, t, tokens);
      for (int64_t row = p.row_begin; row < p.row_end; row += kPanelRows) {
        if (t == 0) {
          block<true>(p, row, t, tokens);
        } else {
          block<false>(p, row, t, tokens);
        }
      }
    }
    if (configured != 0) _tile_release();
    if (t < p.tokens) Vnni::rest(p, t);
  }

  // The scales of a block of tokens as [groups][16], in the worker's scratch: one stream for all rows to
  // come.
  static void gather_scales(const PanelTask& p, int64_t t, int64_t tokens) {
    const int64_t groups = panel_groups(p.K), token_bytes = x_bytes(p.K);
    const char* x = static_cast<const char*>(p.x) + t * token_bytes + groups * kPanelGroup;
    float* scales = static_cast<float*>(p.scratch);
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t j = 0; j < kTile; ++j) {
        scales[g * kTile + j] = 0.f;
        if (j < tokens) std::memcpy(&scales[g * kTile + j], x + j * token_bytes + g * 4, 4);
      }
    }
  }

  // Tiles 0..3 receive dots, 4..5 hold activations, 6..7 weights; two of each so that loads run ahead.
  static void configure(int64_t tokens) {
    TileConfig c;
    for (int i = 0; i < 4; ++i) c.set(i, tokens, 64);
    for (int i = 4; i < 6; ++i) c.set(i, tokens, kPanelGroup);
    for (int i = 6; i < 8; ++i) c.set(i, kPanelLines, kPanelLine);
    load_config(c);
  }

  // One panel times one block of tokens.
  template <bool kPrefetch>
  static void block(const PanelTask& p, int64_t row, int64_t t, int64_t tokens) {
    const int64_t groups = panel_groups(p.K), token_bytes = x_bytes(p.K);
    const char* w = static_cast<const char*>(p.w) + row / kPanelRows * panel_bytes(p.K);
    const char* x = static_cast<const char*>(p.x) + t * token_bytes;
    // Rows of absent tokens are never stored to by the tiles; they count as zero.
    alignas(64) int32_t dots[kInFlight][kTile][kTile];
    if (tokens < kTile) std::memset(dots, 0, sizeof dots);
    __m512 sum[kTile];
    for (__m512& s : sum) s = _mm512_setzero_ps();
    const float* scales = static_cast<const float*>(p.scratch);
    for (int64_t g = 0; g < groups; g += kInFlight) {
      __asm__ volatile("" ::: "memory");
      const int64_t n = std::min(kInFlight, groups - g);
      OAR_GROUP_DOTS(0, 4, 6, g)
      if (n > 1) OAR_GROUP_DOTS(1, 5, 7, g + 1)
      if (n > 2) OAR_GROUP_DOTS(2, 4, 6, g + 2)
      if (n > 3) OAR_GROUP_DOTS(3, 5, 7, g + 3)
      for (int64_t i = 0; i < n; ++i) {
        const __m512 scale_w = VnniInt8::load_scales(w + panel_scales_at(g + i));
        if constexpr (kPrefetch) {
          for (int64_t l = 0; l <= kPanelLines; ++l) {
            _mm_prefetch(w + panel_lines_at(g + i) + (l - 1) * kPanelLine + Vnni::kAhead, _MM_HINT_T0);
          }
        }
#pragma GCC unroll 16
        for (int64_t j = 0; j < kTile; ++j) {
          sum[j] =
              VnniInt8::flush(sum[j], _mm512_load_si512(dots[i][j]), scale_w, scales[(g + i) * kTile + j]);
        }
      }
    }
#pragma GCC unroll 16
    for (int64_t j = 0; j < kTile; ++j) {  // constant indices keep the sums in registers
      if (j < tokens) Vnni::store(p, row, t + j, sum[j]);
    }
  }
};

#undef OAR_GROUP_DOTS

}  // namespace

void append_matmul_amx_int8(KernelList& list) {
  MatmulDriver<AmxInt8Core>::append(list, Format::find("q8_0"), Isa::kAmx, "matmul.q8_0.amx",
                                    "grouped_matmul.q8_0.amx");
}

}  // namespace oar
