// 3x3 convolution of stride 1 by Winograd's minimal filtering F(4x4, 3x3) for one instruction set
// (kernels/conv.h says what and when). A tile of 4 x 4 output pixels reads 6 x 6 pixels d and computes
//
//   Y = A^T [ sum over c of (G g G^T) * (B^T d B) ] A          (* elementwise)
//
// with the points 0, +-a, +-b of kernels/conv.h (Lavin and Gray, https://arxiv.org/abs/1509.09308): 36
// multiplications where the sum over the window has 144. The elementwise products over channels are 36 matrix
// products, (tiles x C) . (C x M), which the tiles of conv_simd.h compute.
//
// Phases: B^T d B of every tile; the 36 products; A^T m A with bias, residual and activation. Tiles may be
// many and filters so few that they can be read anew for each strip of a dozen tiles or more. A worker then
// does all three for a strip, which stays in the second-level cache: one phase, and no scratch for images.
#pragma once

#include "kernels/cpu/conv/conv_simd.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kWinogradTile = 4, kWinogradPatch = 6, kWinogradPoints = 36;

struct WinogradWork {
  const ConvArgs& a;
  int64_t tiles_h, tiles_w, tiles;
  int64_t panels, groups_of_panels;
  int64_t block, blocks;       // tiles of one product
  int64_t strip;               // tiles that are transformed at once: all, or those of a chunk
  int64_t v_matrix, m_matrix;  // floats from one of the 36 matrices to the next
  int64_t ldm;
  explicit WinogradWork(const ConvArgs& args) : a(args) {
    const WindowShape& w = a.window;
    tiles_h = ceil_div(w.OH, kWinogradTile), tiles_w = ceil_div(w.OW, kWinogradTile);
    tiles = w.N * tiles_h * tiles_w;
    panels = ceil_div(a.M, kLanes);
    groups_of_panels = ceil_div(panels, kMaxVectors);
    // A product of some 4 MFLOP, of whole register tiles.
    const double row =
        2.0 * static_cast<double>(a.C * kLanes) * static_cast<double>(std::min<int64_t>(panels, kMaxVectors));
    ldm = panels * kLanes;
    constexpr int64_t kFilterBytes = 2600 << 10, kStripBytes = 384 << 10, kMinStrips = 32;
    const auto bytes = [](int64_t floats) {
      return kWinogradPoints * floats * static_cast<int64_t>(sizeof(float));
    };
    strip = std::max<int64_t>(12, kStripBytes / bytes(a.C + ldm) / 12 * 12);  // whole register tiles
    if (bytes(a.C * ldm) > kFilterBytes || tiles < kMinStrips * strip) strip = tiles;
    block = std::min(strip, std::max<int64_t>(24, static_cast<int64_t>(std::min(4e6 / row, 240.0))));
    blocks = ceil_div(strip, block);
    // A line more, so that the 36 streams of a tile do not meet in one set of the cache.
    v_matrix = ceil_div(strip * a.C, 16) * 16 + 16;
    m_matrix = strip * ldm + 16;
  }
  bool strips() const { return strip < tiles; }
  size_t transformed_bytes() const {
    return static_cast<size_t>(kWinogradPoints * (v_matrix + m_matrix)) * sizeof(float);
  }
  size_t table_bytes() const { return static_cast<size_t>(block) * (sizeof(void*) + sizeof(int64_t)); }
  // Chunks of the transforms: tiles together where there are many.
  int64_t per(int64_t channels) const {
    return rows_per_chunk(tiles, kWinogradPoints * channels * static_cast<int64_t>(sizeof(float)));
  }
};

inline void winograd_plan(const void* args, int, KernelPlan* out) {
  const WinogradWork w(*static_cast<const ConvArgs*>(args));
  *out = {};
  if (w.strips()) {
    out->chunks[0] = ceil_div(w.tiles, w.strip);
    out->worker_scratch = w.transformed_bytes() + w.table_bytes();
    return;
  }
  out->phases = 3;
  out->chunks[0] = row_chunks(w.tiles, w.per(w.a.C));
  out->chunks[1] = kWinogradPoints * w.groups_of_panels * w.blocks;
  out->chunks[2] = row_chunks(w.tiles, w.per(w.a.M));
  out->shared_scratch = w.transformed_bytes();
  out->worker_scratch = w.table_bytes();
}

// A power product of the points, exact in f32.
template <int A, int B>
OAR_INLINE Vf point() {
  double v = 1;
  for (int k = 0; k < A; ++k) v *= kWinogradA;
  for (int k = 0; k < B; ++k) v *= kWinogradB;
  return set1(static_cast<float>(v));
}
// out[0..6) = B^T d: the rows are the coefficients of x (x^2 - a^2) (x^2 - b^2) without one factor each.
OAR_INLINE void winograd_input(const Vf (&d)[6], Vf (&out)[6]) {
  const Vf a = point<1, 0>(), b = point<0, 1>(), none = zero();
  const Vf a2 = none - point<2, 0>(), b2 = none - point<0, 2>(), sum = a2 + b2, product = point<2, 2>();
  out[0] = fma(product, d[0], fma(sum, d[2], d[4]));
  const Vf even_a = fma(b2, d[2], d[4]), odd_a = a * fma(b2, d[1], d[3]);
  out[1] = even_a + odd_a;
  out[2] = even_a - odd_a;
  const Vf even_b = fma(a2, d[2], d[4]), odd_b = b * fma(a2, d[1], d[3]);
  out[3] = even_b + odd_b;
  out[4] = even_b - odd_b;
  out[5] = fma(product, d[1], fma(sum, d[3], d[5]));
}
// out[0..4) = A^T m: powers 0 to 3 of the points.
OAR_INLINE void winograd_output(const Vf (&m)[6], Vf (&out)[4]) {
  const Vf s1 = m[1] + m[2], d1 = m[1] - m[2], s2 = m[3] + m[4], d2 = m[3] - m[4];
  out[0] = m[0] + s1 + s2;
  out[1] = fma(point<0, 1>(), d2, point<1, 0>() * d1);
  out[2] = fma(point<0, 2>(), s2, point<2, 0>() * s1);
  out[3] = fma(point<0, 3>(), d2, fma(point<3, 0>(), d1, m[5]));
}

// Where tile t lies.
struct WinogradPlace {
  int64_t n, oh, ow;
  WinogradPlace(const WinogradWork& w, int64_t t)
      : n(t / (w.tiles_h * w.tiles_w)),
        oh(t / w.tiles_w % w.tiles_h * kWinogradTile),
        ow(t % w.tiles_w * kWinogradTile) {}
};

// Of tile t, row `row` of the 36 matrices.
inline void winograd_transform(const WinogradWork& work, int64_t t, int64_t row, float* v) {
  const ConvArgs& a = work.a;
  const WindowShape& w = a.window;
  const WinogradPlace at(work, t);
  const float* pixel[6][6];  // null: padding
  for (int i = 0; i < 6; ++i) {
    const int64_t y = at.oh + i - w.pad_top;
    for (int j = 0; j < 6; ++j) {
      const int64_t x = at.ow + j - w.pad_left;
      pixel[i][j] =
          y >= 0 && y < w.H && x >= 0 && x < w.W ? a.x + ((at.n * w.H + y) * w.W + x) * a.ldx : nullptr;
    }
  }
  for_lanes(a.C, [&](int64_t c, int64_t lanes) {
    Vf half[6][6];  // B^T d, column by column
    for (int j = 0; j < 6; ++j) {
      Vf d[6], out[6];
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) d[i] = pixel[i][j] ? load_part(pixel[i][j] + c, lanes) : zero();
      winograd_input(d, out);
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) half[i][j] = out[i];
    }
    for (int i = 0; i < 6; ++i) {
      Vf out[6];
      winograd_input(half[i], out);
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j) store_part(v + (i * 6 + j) * work.v_matrix + row * a.C + c, out[j], lanes);
    }
  });
}

inline void winograd_finish(const WinogradWork& work, int64_t t, int64_t row, const float* m,
                            const EpilogueArgs& epilogue) {
  const ConvArgs& a = work.a;
  const WindowShape& w = a.window;
  const WinogradPlace at(work, t);
  const int64_t rows = std::min(kWinogradTile, w.OH - at.oh), columns = std::min(kWinogradTile, w.OW - at.ow);
  const int64_t line = a.out_row != 0 ? a.out_row : w.OW * a.ldo;
  const int64_t offset = (at.n * w.OH + at.oh) * line + at.ow * a.ldo;
  const Vf low = epilogue.low(), high = epilogue.high();
  for_lanes(a.M, [&](int64_t c, int64_t lanes) {
    Vf half[4][6];  // A^T m
    const float* from = m + row * work.ldm + c;
    for (int j = 0; j < 6; ++j) {
      Vf column[6], out[4];
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) column[i] = load(from + (i * 6 + j) * work.m_matrix);
      winograd_output(column, out);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) half[i][j] = out[i];
    }
    const Vf bias = a.bias ? load_part(a.bias + c, lanes) : zero();
    for (int64_t i = 0; i < rows; ++i) {
      Vf out[4];
      winograd_output(half[i], out);
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t to = offset + i * line + j * a.ldo + c;
        Vf y = out[j] + bias;
        if (a.residual) y = y + load_part(a.residual + to, lanes);
        store_part(a.out + to, hold(y, low, high), lanes);
      }
    }
  });
  if (!epilogue.later()) return;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      apply_epilogue(epilogue, a.out + offset + i * line + j * a.ldo, a.M);
  }
}

// Product `point` of rows [t0, t1) with a group of panels. `table`: table_bytes().
inline void winograd_product(const WinogradWork& work, int64_t point, int64_t group, int64_t t0, int64_t t1,
                             const float* v, float* m, void* table) {
  const ConvArgs& a = work.a;
  const int64_t panel0 = work.panels * group / work.groups_of_panels,
                panel1 = work.panels * (group + 1) / work.groups_of_panels, nv = panel1 - panel0;
  auto** rows = static_cast<const float**>(table);
  auto* offsets = reinterpret_cast<int64_t*>(rows + work.block);
  const int64_t count = t1 - t0;
  for (int64_t r = 0; r < count; ++r) {
    rows[r] = v + point * work.v_matrix + (t0 + r) * a.C;
    offsets[r] = (t0 + r) * work.ldm;
  }
  ConvTile t{};
  t.table = count, t.taps = 1, t.C = a.C;
  t.panel = a.C * kLanes;
  t.b = a.w + (point * work.panels + panel0) * t.panel;
  t.out = m + point * work.m_matrix + panel0 * kLanes;
  t.last_lanes = kLanes;
  t.first = t.last = true;
  t.low = set1(-INFINITY), t.high = set1(INFINITY);
  const int64_t tiles = ceil_div(count, kTileRows[nv]);
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t r0 = count * i / tiles, r1 = count * (i + 1) / tiles;
    t.rows = rows + r0;
    t.offsets = offsets + r0;
    conv_tile_of(r1 - r0, nv)(t);
  }
}

// All of tiles [t0, t1).
inline void winograd_strip(const WinogradWork& work, int64_t t0, int64_t t1, const EpilogueArgs& epilogue,
                           void* scratch) {
  auto* v = static_cast<float*>(scratch);
  float* m = v + kWinogradPoints * work.v_matrix;
  void* table = static_cast<char*>(scratch) + work.transformed_bytes();
  for (int64_t t = t0; t < t1; ++t) winograd_transform(work, t, t - t0, v);
  for (int64_t point = 0; point < kWinogradPoints; ++point) {
    for (int64_t group = 0; group < work.groups_of_panels; ++group) {
      for (int64_t r = 0; r < t1 - t0; r += work.block) {
        winograd_product(work, point, group, r, std::min(t1 - t0, r + work.block), v, m, table);
      }
    }
  }
  for (int64_t t = t0; t < t1; ++t) winograd_finish(work, t, t - t0, m, epilogue);
}

inline void winograd_run(const void* args, int phase, int64_t begin, int64_t end,
                         const KernelScratch& scratch) {
  const WinogradWork work(*static_cast<const ConvArgs*>(args));
  const ConvArgs& a = work.a;
  const EpilogueArgs epilogue{a.epilogue, a.alpha, a.beta};
  if (work.strips()) {
    for (int64_t id = begin; id < end; ++id) {
      winograd_strip(work, id * work.strip, std::min(work.tiles, (id + 1) * work.strip), epilogue,
                     scratch.worker);
    }
    return;
  }
  auto* v = static_cast<float*>(scratch.shared);
  float* m = v + kWinogradPoints * work.v_matrix;
  if (phase == 1) {
    // Neighbouring chunks share their filters.
    for (int64_t id = begin; id < end; ++id) {
      const int64_t which = id % work.blocks, rest = id / work.blocks;
      winograd_product(work, rest / work.groups_of_panels, rest % work.groups_of_panels,
                       work.tiles * which / work.blocks, work.tiles * (which + 1) / work.blocks, v, m,
                       scratch.worker);
    }
    return;
  }
  const int64_t per = work.per(phase == 0 ? a.C : a.M), last = std::min(end * per, work.tiles);
  for (int64_t t = begin * per; t < last; ++t) {
    if (phase == 0) winograd_transform(work, t, t, v);
    else winograd_finish(work, t, t, m, epilogue);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
