// Convolution as a product over gathered rows (kernels/conv.h) for one instruction set.
//
// The inner tile holds MR output pixels x NV vectors of output channels in registers and walks the taps of
// the window and their channels: per step NV loads of filters, MR broadcasts of x, MR * NV FMAs. With 32
// registers 6 x 4 needs 24 + 4 + 1, with 16 registers 6 x 2 needs 12 + 2 + 1.
//
// Work divides into blocks of pixels x groups of at most kMaxVectors panels. A group's filters stay in the
// second-level cache while the pixels of a block pass; where they are larger than kFilterBytes, the sum is
// split and partial sums rest in `out` between the parts. The order of additions of an output is that of
// (tap, channel) however the work is divided. A tap that lies in the padding for all pixels of a tile is
// passed over: windows that are dilated wider than a small image meet little else.
//
// Where small groups share panels, each lane has an input of its own group: a pixel's inputs are loaded at
// once and permuted for each channel.
#pragma once

#include <algorithm>

#include "kernels/cpu/conv/epilogue_simd.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kMaxVectors = 4;
inline constexpr int kTileRows[] = {0, 8, 8, 8, 6};
#else
inline constexpr int kMaxVectors = 2;
inline constexpr int kTileRows[] = {0, 8, 6};
#endif
inline constexpr int64_t kFilterBytes = 512 << 10;

struct ConvTile {
  const float* const* rows;  // pointers of the first tap's pixels; those of the next tap `table` further
  const float* zeros;        // what such a pointer is where the tap lies in the padding
  int64_t table, taps, C;
  int64_t channel;         // of each pixel, to start from
  int64_t inputs;          // that a panel which groups share reads of a pixel
  Vi lanes;                // which of them is each lane's first channel
  const float* b;          // filters of the first tap and channel in the first panel
  int64_t panel;           // floats from one panel to the next
  float* out;              // of the first of the NV vectors
  const int64_t* offsets;  // of each row's pixel in out
  const float* residual;   // as out, or null
  bool over;           // the residual lies in `out`: the sum starts from it, before parts of it are written
  const float* bias;   // or null
  int64_t last_lanes;  // of the last vector
  bool first, last;    // part of the sum
  Vf low, high;
  const char* ahead;   // fetched meanwhile: filters that come next, a line for each channel of each tap
  int64_t ahead_step;  // 64, or 0: nothing is
};

template <int MR, int NV, bool kShared = false>
void conv_tile(const ConvTile& t) {
  Vf acc[MR][NV];
  const auto lanes = [&](int v) { return v + 1 < NV ? kLanes : t.last_lanes; };
  if (t.first && !t.over) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = zero();
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = load_part(t.out + t.offsets[r] + v * kLanes, lanes(v));
    }
  }
  const float* b = t.b;
  const int64_t panel = t.panel, C = t.C, ahead_step = t.ahead_step;
  const char* ahead = t.ahead;
  for (int64_t tap = 0; tap < t.taps; ++tap) {
    const float* x[MR];
    bool seen = false;
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const float* pixel = t.rows[tap * t.table + r];
      seen |= pixel != t.zeros;
      x[r] = pixel + t.channel;
    }
    if (!seen) {
      b += C * kLanes, ahead += C * ahead_step;
      continue;
    }
    if constexpr (kShared) {
      Vf from[MR];
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) from[r] = load_part(x[r], t.inputs);
      Vi at = t.lanes;
      for (int64_t c = 0; c < C; ++c, b += kLanes) {
        const Vf w = load(b);
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) acc[r][0] = fma(permute(from[r], at), w, acc[r][0]);
        at = at + set1_int(1);
      }
      continue;
    }
    for (int64_t c = 0; c < C; ++c, b += kLanes) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += ahead_step;
      Vf w[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) w[v] = load(b + v * panel);
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
        const Vf a = set1(x[r][c]);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[r][v] = fma(a, w[v], acc[r][v]);
      }
    }
  }
  if (t.last) {
    if (t.bias) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        const Vf bias = load_part(t.bias + v * kLanes, lanes(v));
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) acc[r][v] = acc[r][v] + bias;
      }
    }
    if (t.residual && !t.over) {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v)
          acc[r][v] = acc[r][v] + load_part(t.residual + t.offsets[r] + v * kLanes, lanes(v));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = hold(acc[r][v], t.low, t.high);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) store_part(t.out + t.offsets[r] + v * kLanes, acc[r][v], lanes(v));
  }
}

using ConvTileFn = void (*)(const ConvTile&);
template <int NV, bool kShared = false>
ConvTileFn conv_tile_of(int64_t rows) {
  constexpr int kSeven = kTileRows[NV] < 7 ? 6 : 7, kEight = kTileRows[NV] < 8 ? 6 : 8;
  static constexpr ConvTileFn kTable[] = {conv_tile<1, NV, kShared>,      conv_tile<2, NV, kShared>,
                                          conv_tile<3, NV, kShared>,      conv_tile<4, NV, kShared>,
                                          conv_tile<5, NV, kShared>,      conv_tile<6, NV, kShared>,
                                          conv_tile<kSeven, NV, kShared>, conv_tile<kEight, NV, kShared>};
  return kTable[rows - 1];
}
OAR_INLINE ConvTileFn conv_tile_of(int64_t rows, int64_t vectors) {
  switch (vectors) {
    case 1: return conv_tile_of<1>(rows);
    case 2: return conv_tile_of<2>(rows);
#if defined(__AVX512F__) || defined(__aarch64__)
    case 3: return conv_tile_of<3>(rows);
    default: return conv_tile_of<4>(rows);
#else
    default: return nullptr;
#endif
  }
}

// How one call divides. `x` is what the tiles gather from: the operand, or the padded copy of phase 0.
struct ConvWork {
  const ConvArgs& a;
  bool shared;                          // groups share panels, which then are those of one group
  int64_t groups;                       // whose panels follow each other
  bool copied;                          // phase 0 makes a padded (N, PH, PW, C) copy
  int64_t PH, PW;                       // of the copy
  int64_t taps_h, taps_w, per_tap;      // per_tap: floats gathered at each tap
  int64_t K, panels, groups_of_panels;  // of one convolution group
  int64_t pixels, block, blocks;        // of output pixels
  bool pixels_outer;                    // chunk order: pixel blocks outermost
  bool filters_ahead;                   // the next group's are fetched in time
  explicit ConvWork(const ConvArgs& args);
  int64_t chunks() const { return groups * groups_of_panels * blocks; }
  int64_t taps() const { return taps_h * taps_w; }
  int64_t zeros() const { return shared ? a.C : per_tap; }  // what is read of a pixel in the padding
  size_t copy_bytes() const {
    return copied ? static_cast<size_t>(a.window.N * PH * PW * a.C) * sizeof(float) : 0;
  }
  // Worker scratch: pointers per tap and pixel, offsets per pixel, zeros for padding.
  size_t scratch_bytes() const {
    return static_cast<size_t>(taps() * block + block) * sizeof(void*) +
           static_cast<size_t>(zeros()) * sizeof(float);
  }
};

inline ConvWork::ConvWork(const ConvArgs& args) : a(args) {
  const WindowShape& w = a.window;
  const int64_t per_group = a.C / a.groups;
  shared = groups_share_panels(a.M, a.groups, per_group, kLanes);
  groups = shared ? 1 : a.groups;
  // With few channels a tap is too short a run: rows of the padded copy make KW taps one run.
  const bool short_taps = a.C < 8 && w.KW > 1 && w.dilation_w == 1 && a.groups == 1;
  PH = (w.OH - 1) * w.stride_h + (w.KH - 1) * w.dilation_h + 1;
  PW = (w.OW - 1) * w.stride_w + (w.KW - 1) * w.dilation_w + 1;
  copied = a.planar || (short_taps && PH <= 2 * w.H + 64 && PW <= 2 * w.W + 64);
  const bool merged = copied && w.dilation_w == 1 && a.groups == 1;
  taps_h = w.KH;
  taps_w = merged ? 1 : w.KW;
  per_tap = merged ? w.KW * a.C : per_group;
  K = w.KH * w.KW * per_group;
  panels = ceil_div(a.M / groups, kLanes);
  groups_of_panels = shared ? panels : ceil_div(panels, kMaxVectors);
  pixels = w.N * w.OH * w.OW;
  // A chunk is worth some 4 MFLOP (tens of microseconds), fewer where the whole is small.
  const double row = 2.0 * static_cast<double>(K * kLanes) *
                     static_cast<double>(shared ? 1 : std::min<int64_t>(panels, kMaxVectors));
  const double whole = row * static_cast<double>(pixels) * static_cast<double>(groups_of_panels * groups);
  const double target = std::max(2.5e5, std::min(4e6, whole / 32));
  auto wanted = std::max<int64_t>(24, static_cast<int64_t>(std::min(target / row, 240.0)));
  // Pixels outermost: each worker reads and writes pixels of its own, which it mostly made in the op before
  // and will read in the next one; another core's may come at a fifth of the speed. That wants filters that
  // stay in the second-level cache, or blocks of so many pixels that it matters little where filters come
  // from (2 / block bytes an operation). Blocks are no larger than that cache either.
  constexpr int64_t kWide = 96, kWideBytes = 3 * kFilterBytes;  // what a part of the sum reads is half of it
  const auto bytes = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
  const bool wide = pixels >= 8 * kWide && bytes(kWide * a.C) <= kWideBytes;
  const bool many_filters = bytes(K * a.M) > kFilterBytes;
  // Where a worker has a few groups, most of what it fetched would be for another one.
  filters_ahead = many_filters && (wide || groups_of_panels >= 12);
  pixels_outer = !many_filters || wide;
  if (wide) wanted = std::max(wanted, kWide);
  block = std::min(pixels, wanted);
  blocks = ceil_div(pixels, block);
  block = ceil_div(pixels, blocks);
}

inline void conv_plan(const void* args, int, KernelPlan* out) {
  const ConvWork w(*static_cast<const ConvArgs*>(args));
  *out = {};
  out->worker_scratch = w.scratch_bytes();
  if (w.copied) {
    out->phases = 2;
    out->chunks[0] = w.a.window.N * w.PH;
    out->chunks[1] = w.chunks();
    out->shared_scratch = w.copy_bytes();
  } else {
    out->chunks[0] = w.chunks();
  }
}

// Rows [begin, end) of the padded copy, counted over the batch.
inline void conv_copy_rows(const ConvWork& work, int64_t begin, int64_t end, float* copy) {
  const ConvArgs& a = work.a;
  const WindowShape& w = a.window;
  // A negative pad crops: the copy then begins `skip` columns into the operand.
  const int64_t C = a.C, first = std::clamp<int64_t>(w.pad_left, 0, work.PW);
  const int64_t skip = std::max<int64_t>(0, -w.pad_left);
  const int64_t columns = std::max<int64_t>(0, std::min(w.W - skip, work.PW - first));
  for (int64_t r = begin; r < end; ++r) {
    const int64_t n = r / work.PH, y = r % work.PH - w.pad_top;
    float* row = copy + r * work.PW * C;
    if (y < 0 || y >= w.H) {
      std::fill_n(row, work.PW * C, 0.f);
      continue;
    }
    std::fill_n(row, first * C, 0.f);
    std::fill_n(row + (first + columns) * C, (work.PW - first - columns) * C, 0.f);
    float* to = row + first * C;
    if (a.planar) {
      for (int64_t c = 0; c < C; ++c) {
        const float* plane = a.x + ((n * C + c) * w.H + y) * w.W + skip;
        for (int64_t x = 0; x < columns; ++x) to[x * C + c] = plane[x];
      }
    } else {
      const float* pixel = a.x + ((n * w.H + y) * w.W + skip) * a.ldx;
      for (int64_t x = 0; x < columns; ++x)
        std::memcpy(to + x * C, pixel + x * a.ldx, static_cast<size_t>(C) * sizeof(float));
    }
  }
}

// Pointers of pixels [p0, p1) for every tap, at the first channel of group g, and their offsets in out.
inline void conv_gather(const ConvWork& work, const float* copy, int64_t g, int64_t p0, int64_t p1,
                        const float* zeros, const float** table, int64_t* offsets) {
  const ConvArgs& a = work.a;
  const WindowShape& w = a.window;
  const int64_t rows = p1 - p0, out_row = a.out_row != 0 ? a.out_row : w.OW * a.ldo;
  const int64_t H = work.copied ? work.PH : w.H, W = work.copied ? work.PW : w.W;
  const int64_t ld = work.copied ? a.C : a.ldx, top = work.copied ? 0 : w.pad_top;
  const int64_t left = work.copied ? 0 : w.pad_left;
  const float* x = (work.copied ? copy : a.x) + g * (a.C / a.groups);
  // A product: pixels follow each other. Where a window is one of few values, finding the next one takes as
  // long as multiplying it.
  if (work.taps() == 1 && w.stride_h == 1 && w.stride_w == 1 && top == 0 && left == 0 && H == w.OH &&
      W == w.OW) {
    int64_t column = p0 % w.OW, out = p0 / w.OW * out_row + column * a.ldo;
    for (int64_t r = 0; r < rows; ++r, out += a.ldo) {
      table[r] = x + (p0 + r) * ld;
      offsets[r] = out;
      if (++column == w.OW) column = 0, out += out_row - w.OW * a.ldo;
    }
    return;
  }
  int64_t ow = p0 % w.OW, oh = p0 / w.OW % w.OH, n = p0 / w.OW / w.OH;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t y0 = oh * w.stride_h - top, x0 = ow * w.stride_w - left;
    offsets[r] = (n * w.OH + oh) * out_row + ow * a.ldo;
    const int64_t reach_x = x0 + (work.taps_w - 1) * w.dilation_w;
    const bool inside_x = x0 >= 0 && reach_x < W;
    const float** to = table + r;
    for (int64_t i = 0; i < work.taps_h; ++i) {
      const int64_t y = y0 + i * w.dilation_h;
      if (y < 0 || y >= H) {
        for (int64_t j = 0; j < work.taps_w; ++j, to += rows) *to = zeros;
        continue;
      }
      const float* row = x + (n * H + y) * W * ld;
      if (inside_x) {
        const float* at = row + x0 * ld;
        for (int64_t j = 0; j < work.taps_w; ++j, to += rows) *to = at + j * w.dilation_w * ld;
      } else {
        for (int64_t j = 0; j < work.taps_w; ++j, to += rows) {
          const int64_t xx = x0 + j * w.dilation_w;
          *to = xx >= 0 && xx < W ? row + xx * ld : zeros;
        }
      }
    }
    if (++ow == w.OW) {
      ow = 0;
      if (++oh == w.OH) oh = 0, ++n;
    }
  }
}

// One block of pixels x one group of panels of convolution group g; meanwhile [ahead, ahead_end) is fetched.
inline void conv_block(const ConvWork& work, int64_t g, int64_t panel0, int64_t panel1, int64_t rows,
                       const float* const* table, const int64_t* offsets, const float* zeros,
                       const float* ahead, const float* ahead_end) {
  const ConvArgs& a = work.a;
  const EpilogueArgs epilogue{a.epilogue, a.alpha, a.beta};
  const int64_t per = a.M / work.groups, nv = panel1 - panel0, m0 = panel0 * kLanes;
  const int64_t m1 = std::min(per, panel1 * kLanes), channel0 = g * per + m0;
  ConvTile t;
  t.zeros = zeros;
  t.table = rows;
  t.panel = work.K * kLanes;
  t.out = a.out + channel0;
  t.residual = a.residual ? a.residual + channel0 : nullptr;
  t.over = a.residual == a.out;
  t.bias = a.bias ? a.bias + channel0 : nullptr;
  t.last_lanes = m1 - (panel1 - 1) * kLanes;
  t.low = epilogue.low(), t.high = epilogue.high();
  // Of a panel that groups share. Its inputs are few: all channels of a tap are one part of the sum.
  const int64_t outs = a.M / a.groups, ins = a.C / a.groups, first_input = m0 / outs * ins;
  if (work.shared) {
    int32_t lanes[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = static_cast<int32_t>(i / outs * ins);
    t.lanes = load_int(lanes);
    t.inputs = t.last_lanes / outs * ins;
  }
  t.ahead = reinterpret_cast<const char*>(ahead);
  const float* b = a.w + (g * work.panels + panel0) * t.panel;
  const int64_t tiles = ceil_div(rows, kTileRows[nv]);
  // Parts of the sum: whole taps, or channels of the only tap.
  const int64_t step =
      std::max<int64_t>(1, kFilterBytes / (nv * kLanes * static_cast<int64_t>(sizeof(float))));
  const bool by_channel = work.taps() == 1;
  const int64_t total = by_channel ? work.per_tap : work.taps();
  const int64_t parts = ceil_div(total, by_channel ? step : std::max<int64_t>(1, step / work.per_tap));
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t from = total * part / parts, to = total * (part + 1) / parts;
    t.first = part == 0, t.last = part + 1 == parts;
    t.taps = by_channel ? 1 : to - from;
    t.C = by_channel ? to - from : work.per_tap;
    t.channel = work.shared ? first_input : by_channel ? from : 0;
    t.b = b + (by_channel ? from : from * work.per_tap) * kLanes;
    const float* const* part_table = table + (by_channel ? 0 : from * rows);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t r0 = rows * i / tiles, r1 = rows * (i + 1) / tiles;
      t.rows = part_table + r0;
      t.offsets = offsets + r0;
      t.ahead_step = t.ahead < reinterpret_cast<const char*>(ahead_end) ? 64 : 0;
      (work.shared ? conv_tile_of<1, true>(r1 - r0) : conv_tile_of(r1 - r0, nv))(t);
      t.ahead += t.taps * t.C * t.ahead_step;
      if (t.last && epilogue.later()) {
        for (int64_t r = r0; r < r1; ++r) apply_epilogue(epilogue, t.out + offsets[r], m1 - m0);
      }
    }
  }
}

inline void conv_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const ConvWork work(*static_cast<const ConvArgs*>(args));
  auto* copy = static_cast<float*>(scratch.shared);
  if (work.copied && phase == 0) return conv_copy_rows(work, begin, end, copy);
  auto** table = static_cast<const float**>(scratch.worker);
  auto* offsets = reinterpret_cast<int64_t*>(table + work.taps() * work.block);
  auto* zeros = reinterpret_cast<float*>(offsets + work.block);
  std::fill_n(zeros, work.zeros(), 0.f);
  const int64_t G = work.groups_of_panels;
  int64_t gathered = -1, gathered_group = -1;
  for (int64_t id = begin; id < end; ++id) {
    const int64_t g = id / (G * work.blocks), rest = id % (G * work.blocks);
    const int64_t which = work.pixels_outer ? rest / G : rest % work.blocks;
    const int64_t group = work.pixels_outer ? rest % G : rest / work.blocks;
    const int64_t p0 = work.pixels * which / work.blocks, p1 = work.pixels * (which + 1) / work.blocks;
    if (gathered != which || gathered_group != g) {
      conv_gather(work, copy, g, p0, p1, zeros, table, offsets);
      gathered = which, gathered_group = g;
    }
    const int64_t panel0 = work.panels * group / G, panel1 = work.panels * (group + 1) / G;
    // The filters of the next group: all of them where it comes next, this block's share where all blocks are
    // taken first. Without that the first rows wait for memory: they want 60 GB/s of a core's 25.
    const ConvArgs& a = work.a;
    const float *ahead = a.w, *ahead_end = a.w;
    if (const int64_t next = group + 1; work.filters_ahead && next < G) {
      const int64_t first = g * work.panels + work.panels * next / G;
      const int64_t floats = (g * work.panels + work.panels * (next + 1) / G - first) * work.K * kLanes;
      const int64_t share = work.pixels_outer ? 0 : which, shares = work.pixels_outer ? 1 : work.blocks;
      const float* filters = a.w + first * work.K * kLanes;
      ahead = filters + floats * share / shares, ahead_end = filters + floats * (share + 1) / shares;
    }
    conv_block(work, g, panel0, panel1, p1 - p0, table, offsets, zeros, ahead, ahead_end);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
