// What convolution of narrow operands (kernels/quantized_conv.h) does around its innermost product, the same
// for every instruction set: dividing the work, gathering windows into rows, scaling the sums. A Core gives
// the product:
//
//   static constexpr int64_t kRows, kPanels;       largest tile: rows of pixels, panels of 16 channels
//   static constexpr int64_t kWidth;               bytes of a value: 1, or 2 of bf16, whose sums are f32 bits
//   static constexpr int64_t kStep;                bytes of a row it takes at a time: 4, or a divisor of 64
//   static constexpr bool kTaps;                   takes windows tap by tap where they lie
//                                                  (QuantizedTile::taps)
//   static constexpr bool kStarts;                 sums begin with QuantizedTile::start; otherwise with 0
//   static constexpr bool kSignedX;                multiplies i8 x as they are; otherwise x arrives as u8, i8
//                                                  with its sign bit turned (128 more)
//   static void begin(), end();                    around a chunk
//   static void tile(Tile&)                        acc[r][panel 16 + lane] = sum over k of x[r][k] w[k][lane]
//
// Included by quantized_conv_<isa>.cc, which defines OAR_SIMD_NAMESPACE (simd.h) and is compiled with that
// set's flags; everything is local to the file.
#pragma once

#include <algorithm>
#include <cstring>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "kernels/cpu/conv/epilogue_simd.h"
#include "kernels/cpu/conv/quantized_depthwise.h"
#include "kernels/kernel_list.h"
#include "kernels/partition.h"
#include "kernels/quantized_conv.h"

namespace oar {
namespace {

struct QuantizedTile {
  const uint8_t* x;   // row r at x + r * ldx
  int64_t ldx, rows;  // rows <= kRows
  // With kTaps: where the first tap of each row lies, the next tap `table` pointers further, `per_tap` bytes
  // each; null: rows lie at x, one tap.
  const uint8_t* const* tap_rows;
  int64_t table, taps, per_tap;
  bool packed;            // rows are, as filters are: the next four bytes of a row lie in the next line
  uint64_t skip;          // taps of which every row has padding that adds nothing, a bit each
  bool flip, x_signed;    // flip: turn the sign bits of x; x_signed: of a Core with kSignedX
  const int8_t* w;        // the first panel; the next `panel` bytes further
  int64_t panel, panels;  // panels <= kPanels
  const int8_t* ahead;   // filters that come next, to be fetched meanwhile: one line for each four bytes of a
  int64_t ahead_step;    // row, this many bytes apart
  int64_t Kp;            // bytes of a row, a multiple of kStep
  const int32_t* start;  // [panels * 16], 64-byte aligned
  int32_t* acc;          // [rows][panels * 16], ldacc apart, 64-byte aligned
  int64_t ldacc;
  int64_t ldo;         // elements from pixel to pixel of the result
  int64_t configured;  // a Core's own: the rows its registers are set up for; kRows after begin()
};

// The input pixels that pixels [p0, p1) of the result see, and what may lie between them.
struct QuantizedSeen {
  int64_t begin = 0, end = 0;
  QuantizedSeen() = default;
  QuantizedSeen(const WindowShape& w, int64_t p0, int64_t p1) {
    const auto row = [&](int64_t p, int64_t more) {
      const int64_t image = p / w.OW / w.OH, y = p / w.OW % w.OH * w.stride_h - w.pad_top + more;
      return image * w.H + std::clamp<int64_t>(y, 0, w.H);
    };
    begin = row(p0, 0) * w.W;
    end = std::max(begin, row(p1 - 1, (w.KH - 1) * w.dilation_h + 1) * w.W);
  }
  // At most, of `n` pixels of the result.
  static int64_t most(const WindowShape& w, int64_t n) {
    const int64_t images = n / std::max<int64_t>(w.OH * w.OW, 1) + 1,
                  rows = n / std::max<int64_t>(w.OW, 1) + 2;
    const int64_t between = images * std::max<int64_t>(w.H - w.OH * w.stride_h, 0);
    return std::min(w.N * w.H, between + rows * w.stride_h + (w.KH - 1) * w.dilation_h + 1) * w.W;
  }
};

struct QuantizedWork {
  const QuantizedConvArgs& a;
  int64_t taps, C, K, Kp;  // the last three in bytes; Kp: K with what fills the last step
  int64_t panels, pixels;
  int64_t block, blocks;                       // of pixels
  int64_t group, groups;                       // of panels
  bool direct;                                 // rows are read where they lie
  bool many_filters;                           // too much of the second-level cache
  bool large_sum;                              // so is the tensor that is added
  bool groups_outer;                           // the order of chunks: a worker has few groups and all pixels
  bool packed;                                 // rows are, as filters are
  bool tabled;                                 // taps are
  bool summed;                                 // each window's bytes are: weights have zero points
  static constexpr int64_t kMuch = 512 << 10;  // half of a second-level cache
  QuantizedWork(const QuantizedConvArgs& args, int64_t width, int64_t step, int64_t rows, bool by_taps)
      : a(args) {
    const WindowShape& w = a.window;
    taps = w.KH * w.KW, C = a.C * width, K = taps * C, Kp = ceil_div(K, step) * step;
    panels = ceil_div(a.M, kQuantizedPanel);
    pixels = w.N * w.OH * w.OW;
    packed = width == 2 && Bf16ProductArgs::x_packed_of(a);
    direct = !packed && taps == 1 && w.stride_h == 1 && w.stride_w == 1 && Kp == K && w.H == w.OH &&
             w.W == w.OW && w.pad_top == 0 && w.pad_left == 0;
    tabled = by_taps && (packed || (!direct && C % step == 0 && a.x_zeros == nullptr));
    summed = width == 1 && RunConvArgs::w_zeros_of(a) != nullptr;
    many_filters = panels * kQuantizedPanel * Kp > kMuch;
    large_sum = a.sum.other != nullptr && pixels * a.M > kMuch;
    groups_outer = many_filters && (direct || tabled);
    // Enough chunks to balance, of whole tiles but for the last block. Where a worker keeps its filters, all
    // groups of four panels are chunks and blocks only as many as are wanted beside them. Otherwise blocks
    // come first, no larger than gathered rows that stay in the second-level cache, and groups only where
    // blocks are few.
    constexpr int64_t kMinChunks = 32, kLeast = 18, kMost = 192, kMostKept = 512, kGathered = 256 << 10;
    const int64_t fours = ceil_div(panels, 4);
    const int64_t most = groups_outer       ? kMostKept
                         : tabled || direct ? kMost
                                            : std::clamp<int64_t>(kGathered / Kp / 32 * 32, 32, kMost);
    const int64_t wanted = ceil_div(pixels, groups_outer ? ceil_div(kMinChunks, fours) : kMinChunks);
    block = std::max(std::max(kLeast, rows), ceil_div(wanted, rows) * rows);
    block = std::min(pixels, std::min(block, most / rows * rows));
    blocks = ceil_div(pixels, std::max<int64_t>(block, 1));
    group = groups_outer
                ? 4
                : ceil_div(panels, std::min(ceil_div(kMinChunks, std::max<int64_t>(blocks, 1)), fours));
    groups = ceil_div(panels, group);
  }
  // Of rows, or of the table of their taps; behind them the sums of windows.
  size_t row_bytes() const {
    const int64_t bytes = tabled   ? block * (taps + 1) * static_cast<int64_t>(sizeof(void*)) + C
                          : direct ? 0
                                   : block * Kp + kQuantizedStep;
    return static_cast<size_t>(ceil_div(bytes, kQuantizedStep) * kQuantizedStep);
  }
  size_t scratch_bytes() const {
    if (!summed) return row_bytes();
    return row_bytes() + static_cast<size_t>(block + QuantizedSeen::most(a.window, block)) * sizeof(int32_t);
  }
};

template <class Core>
void quantized_plan(const void* args, int, KernelPlan* out) {
  if (static_cast<const QuantizedConvArgs*>(args)->depthwise) return quantized_depthwise_plan(args, out);
  const QuantizedWork w(*static_cast<const QuantizedConvArgs*>(args), Core::kWidth, Core::kStep, Core::kRows,
                        Core::kTaps);
  *out = {1, {w.blocks * w.groups}};
  out->worker_scratch = w.scratch_bytes();
}

// n bytes, of which up to 31 behind may be read and written: `room` says whether that is so for the source.
[[gnu::always_inline]] inline void copy_short(uint8_t* to, const uint8_t* from, int64_t n, bool room) {
  struct Part {
    uint8_t bytes[32];
  };
  if (!room) {
    std::memcpy(to, from, static_cast<size_t>(n));
    return;
  }
  for (int64_t i = 0; i < n; i += sizeof(Part)) std::memcpy(to + i, from + i, sizeof(Part));
}

// Windows of pixels [p0, p1) as rows of Kp bytes.
inline void quantized_gather(const QuantizedWork& work, int64_t p0, int64_t p1, int32_t zero, uint8_t* rows) {
  const QuantizedConvArgs& a = work.a;
  const WindowShape& w = a.window;
  const int64_t C = work.C, line = w.KW * C;
  const uint8_t* end = a.x + w.N * w.H * w.W * C;
  int64_t ow = p0 % w.OW, oh = p0 / w.OW % w.OH, n = p0 / w.OW / w.OH;
  for (int64_t p = p0; p < p1; ++p) {
    uint8_t* to = rows + (p - p0) * work.Kp;
    const auto padding = static_cast<uint8_t>(a.x_zeros ? a.x_zeros[n] : zero);
    const int64_t y0 = oh * w.stride_h - w.pad_top, x0 = ow * w.stride_w - w.pad_left;
    const bool inside = w.dilation_w == 1 && x0 >= 0 && x0 + w.KW <= w.W;
    for (int64_t i = 0; i < w.KH; ++i, to += line) {
      const int64_t y = y0 + i * w.dilation_h;
      if (y < 0 || y >= w.H) {
        std::memset(to, padding, static_cast<size_t>(line));
        continue;
      }
      const uint8_t* row = a.x + (n * w.H + y) * w.W * C;
      if (inside) {
        copy_short(to, row + x0 * C, line, row + x0 * C + line + 31 < end);
        continue;
      }
      for (int64_t j = 0; j < w.KW; ++j) {
        const int64_t x = x0 + j * w.dilation_w;
        if (x >= 0 && x < w.W) std::memcpy(to + j * C, row + x * C, static_cast<size_t>(C));
        else std::memset(to + j * C, padding, static_cast<size_t>(C));
      }
    }
    // Also what a short copy wrote too far. Up to 31 bytes of the next row, which comes after, or of the room
    // behind the last.
    constexpr uint8_t kZeros[16] = {};
    for (int64_t i = 0; i < work.Kp - work.K; i += 16) std::memcpy(to + i, kZeros, 16);
    if (++ow == w.OW) {
      ow = 0;
      if (++oh == w.OH) oh = 0, ++n;
    }
  }
}

// f(r, image, row of the result, first column, number) for the parts of pixels [p0, p1) that lie in one row
// of the result; r counts from p0.
template <class F>
[[gnu::always_inline]] inline void each_part(const WindowShape& w, int64_t p0, int64_t p1, F&& f) {
  for (int64_t p = p0, n = 0; p < p1; p += n) {
    const int64_t ow = p % w.OW, row = p / w.OW;
    n = std::min(w.OW - ow, p1 - p);
    f(p - p0, row / w.OH, row % w.OH, ow, n);
  }
}

// Of columns [first, first + n) of the result those, counted from `first`, whose tap j lies inside the image.
struct QuantizedInside {
  int64_t begin, end;
  QuantizedInside(int64_t b, int64_t e) : begin(b), end(e) {}
  QuantizedInside(const WindowShape& w, int64_t j, int64_t first, int64_t n) {
    const int64_t outside = w.pad_left - j * w.dilation_w, last = w.W - 1 + outside;
    const bool dense = w.stride_w == 1;  // most are, and divisions take as long as some pixels
    const int64_t before = outside <= 0 ? 0 : dense ? outside : ceil_div(outside, w.stride_w);
    const int64_t behind = last < 0 ? 0 : dense ? last + 1 : last / w.stride_w + 1;
    begin = std::clamp<int64_t>(before - first, 0, n);
    end = std::clamp(behind - first, begin, n);
  }
};

// f(tap, inside, y, x) for every tap of columns [ow, ow + n) of a row of the result: where the first of those
// that lie inside is in the image. Of rows outside none does.
template <class F>
[[gnu::always_inline]] inline void each_tap(const WindowShape& w, int64_t oh, int64_t ow, int64_t n, F&& f) {
  const int64_t top = oh * w.stride_h - w.pad_top, left = ow * w.stride_w - w.pad_left;
  for (int64_t j = 0; j < w.KW; ++j) {
    const QuantizedInside in(w, j, ow, n);
    const int64_t x = left + in.begin * w.stride_w + j * w.dilation_w;
    for (int64_t i = 0, y = top; i < w.KH; ++i, y += w.dilation_h) {
      const bool inside = y >= 0 && y < w.H && in.begin < in.end;
      f(i * w.KW + j, inside ? in : QuantizedInside{n, n}, inside ? y : 0, inside ? x : 0);
    }
  }
}

// Where the taps of pixels [p0, p1) lie: [taps][p1 - p0]; `padding`: C bytes for those outside, which
// `missing` tells by a bit each, of the first 64.
inline void quantized_taps(const QuantizedWork& work, int64_t p0, int64_t p1, const uint8_t* padding,
                           const uint8_t** table, uint64_t* missing) {
  const QuantizedConvArgs& a = work.a;
  const WindowShape& w = a.window;
  const int64_t C = work.C, rows = p1 - p0, step = w.stride_w * C;
  std::fill_n(missing, rows, 0);
  each_part(w, p0, p1, [&](int64_t r, int64_t image, int64_t oh, int64_t ow, int64_t n) {
    each_tap(w, oh, ow, n, [&](int64_t tap, QuantizedInside in, int64_t y, int64_t x) {
      const uint8_t** const to = table + tap * rows + r;
      const uint64_t bit = tap < 64 ? uint64_t{1} << tap : 0;
      const uint8_t* const from = a.x + ((image * w.H + y) * w.W + x) * C;
      for (int64_t k = 0; k < in.begin; ++k) to[k] = padding, missing[r + k] |= bit;
      for (int64_t k = in.begin; k < in.end; ++k) to[k] = from + (k - in.begin) * step;
      for (int64_t k = in.end; k < n; ++k) to[k] = padding, missing[r + k] |= bit;
    });
  });
}

// Where rows [p0, p1) of a packed x begin.
inline void quantized_lanes_of_rows(const QuantizedWork& work, int64_t p0, int64_t p1, const uint8_t** table,
                                    uint64_t* missing) {
  const int64_t panel = kQuantizedPanel * quantized_k(work.K);
  for (int64_t p = p0; p < p1; ++p) {
    table[p - p0] = work.a.x + p / kQuantizedPanel * panel + p % kQuantizedPanel * 4;
    missing[p - p0] = 0;
  }
}
// The same rows of Kp bytes as they are without.
inline void quantized_unpack(const QuantizedWork& work, int64_t p0, int64_t p1, uint8_t* rows) {
  const int64_t panel = kQuantizedPanel * quantized_k(work.K);
  for (int64_t p = p0; p < p1; ++p) {
    const uint8_t* const from = work.a.x + p / kQuantizedPanel * panel + p % kQuantizedPanel * 4;
    uint8_t* const to = rows + (p - p0) * work.Kp;
    for (int64_t k = 0; k < work.Kp; k += 4) std::memcpy(to + k, from + k * kQuantizedPanel, 4);
  }
}

// The sum of n bytes, each with these bits turned.
inline uint32_t sum_of_bytes(const uint8_t* from, int64_t n, uint8_t turn) {
  uint32_t sum = 0;
#ifdef __SSE2__
  const __m128i turns = _mm_set1_epi8(static_cast<char>(turn));
  __m128i halves = _mm_setzero_si128();
  for (; n >= 16; n -= 16, from += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    halves = _mm_add_epi64(halves, _mm_sad_epu8(_mm_xor_si128(bytes, turns), _mm_setzero_si128()));
  }
  sum = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_add_epi64(halves, _mm_unpackhi_epi64(halves, halves))));
#endif
  for (; n > 0; --n, ++from) sum += *from ^ turn;
  return sum;
}

// The sums of the windows of pixels [p0, p1), x - zero each, by those of the pixels that they see. `seen`:
// room for these, where those of `known` lie, which becomes what was seen: blocks next to each other share
// rows.
inline void quantized_window_sums(const QuantizedWork& work, int64_t p0, int64_t p1, int32_t zero,
                                  QuantizedSeen& known, uint32_t* seen, uint32_t* sums) {
  const QuantizedConvArgs& a = work.a;
  const WindowShape& w = a.window;
  const QuantizedSeen pixels(w, p0, p1);
  const uint8_t turn = a.x_signed ? 0x80 : 0;
  const auto less = static_cast<uint32_t>(work.C) * static_cast<uint32_t>(zero + turn);
  int64_t p = pixels.begin;
  if (known.begin <= p && p < known.end) {
    p = std::min(known.end, pixels.end);
    std::memmove(seen, seen + (pixels.begin - known.begin),
                 static_cast<size_t>(p - pixels.begin) * sizeof(uint32_t));
  }
  for (; p < pixels.end; ++p) seen[p - pixels.begin] = sum_of_bytes(a.x + p * work.C, work.C, turn) - less;
  known = pixels;
  std::fill_n(sums, p1 - p0, 0u);
  each_part(w, p0, p1, [&](int64_t r, int64_t image, int64_t oh, int64_t ow, int64_t n) {
    each_tap(w, oh, ow, n, [&](int64_t, QuantizedInside in, int64_t y, int64_t x) {
      if (in.begin == in.end) return;
      const uint32_t* const from = seen + (image * w.H + y) * w.W + x - pixels.begin;
      uint32_t* const to = sums + r + in.begin;
      const int64_t some = in.end - in.begin, step = w.stride_w;
      if (step == 1)  // in vectors
        for (int64_t k = 0; k < some; ++k) to[k] += from[k];
      else
        for (int64_t k = 0; k < some; ++k) to[k] += from[k * step];
    });
  });
}

// Takes the weights' zero points from a tile's sums, as often as its windows' values come to.
template <int64_t kPanels>
void quantized_less_zeros(const QuantizedTile& t, const QuantizedLanes<kPanels>& lanes,
                          const uint32_t* of_windows) {
  for (int64_t r = 0; r < t.rows; ++r) {
    const uint32_t less = 0u - of_windows[r];
    for (int64_t lane = 0; lane < t.panels * kQuantizedPanel; lane += kQuantizedPanel) {
      int32_t* const at = t.acc + r * t.ldacc + lane;
      QuantizedInts s, by;
      load_lanes(s, at), load_lanes(by, lanes.by + lane);
      add_wrapping(s, reinterpret_cast<QuantizedInts>(reinterpret_cast<QuantizedUnsigned>(by) * less));
      std::memcpy(at, &s, sizeof s);
    }
  }
}

template <class Core, class T, QuantizedTail kTail = QuantizedTail::kPlain>
void quantized_finish(const QuantizedConvArgs& args, const QuantizedTile& tile,
                      const QuantizedLanes<Core::kPanels>& lanes, int64_t pixel, int64_t panel0) {
  // Copies whose address nobody has: bytes that are stored might otherwise be theirs, and each of the sixteen
  // channels' constants would be read anew.
  const QuantizedConvArgs a = args;
  const QuantizedTile t = tile;
  const float sum_inverse = lanes.sum_inverse;
  const int64_t first = panel0 * kQuantizedPanel,
                channels = std::min(t.panels * kQuantizedPanel, a.M - first);
  const OAR_SIMD_NAMESPACE::EpilogueArgs epilogue{a.epilogue, a.alpha, a.beta};
#ifdef __AVX512BW__
  if constexpr (sizeof(T) == 1 && Core::kPanels == 4) {
    if (channels > 2 * kQuantizedPanel && !epilogue.later()) {  // fewer: 64 at once are no gain
      const QuantizedBytes64<std::is_signed_v<T>, kTail> bytes(a, lanes, channels);
      for (int64_t r = 0; r < t.rows; ++r)
        bytes.store(t.acc + r * t.ldacc, static_cast<uint8_t*>(a.out), (pixel + r) * a.M + first);
      return;
    }
  }
#endif
  for (int64_t r = 0; r < t.rows; ++r) {
    const int64_t at = (pixel + r) * t.ldo + first;
    QuantizedRow row = {1.f, 0};
    if constexpr (sizeof(T) == 1 && kTail == QuantizedTail::kPlain) {
      if (epilogue.later()) {
        alignas(64) float values[Core::kPanels * kQuantizedPanel];
        for (int64_t c = 0; c < channels; c += kQuantizedPanel) {
          QuantizedFloats v;
          quantized_scaled<Core, kTail>(v, lanes, c, t.acc + r * t.ldacc + c, row);
          std::memcpy(values + c, &v, sizeof v);
        }
        quantized_activated(args, values, at, channels);
        continue;
      }
    }
    if constexpr (kTail == QuantizedTail::kRows) {
      const int64_t n = (pixel + r) / (a.window.OH * a.window.OW);
      row = {a.x_scale[n], a.x_zeros[n]};
    }
    for (int64_t c = 0; c < channels; c += kQuantizedPanel) {
      quantized_store<Core, T, kTail>(a, lanes, c, t.acc + r * t.ldacc + c, row, at + c,
                                      static_cast<size_t>(std::min(kQuantizedPanel, channels - c)),
                                      sum_inverse);
    }
    if (std::is_same_v<T, float> && epilogue.later())
      OAR_SIMD_NAMESPACE::apply_epilogue(epilogue, static_cast<float*>(a.out) + at, channels);
  }
}

// The lanes of the tile's channels. `flip`: x is 128 more than it means.
template <int64_t kPanels>
void quantized_lanes(const QuantizedConvArgs& a, const QuantizedRun& run, int64_t panel, int64_t panels,
                     bool flip, QuantizedLanes<kPanels>& lanes) {
  const uint32_t zero = (a.x_zeros ? 0u : static_cast<uint32_t>(run.x_zero)) + (flip ? 128u : 0u);
  const int64_t first = panel * kQuantizedPanel, n = std::min(panels * kQuantizedPanel, a.M - first);
  lanes.sum_inverse = quantized_inverse(a.sum.sum_scale);
  lanes.products = quantized_products(a);
  lanes.scaled(a, run, first, n);
  copy_lanes(lanes.by, a.w_sums, first, n, 0);
  copy_lanes(lanes.start, a.bias, first, n, 0);
  for (int64_t i = 0; i < kPanels * kQuantizedPanel; ++i)
    lanes.start[i] = static_cast<int32_t>(static_cast<uint32_t>(lanes.start[i]) -
                                          zero * static_cast<uint32_t>(lanes.by[i]));
  if (run.w_zeros) copy_lanes(lanes.by, run.w_zeros, first, n, 0);
}

template <class Core>
void quantized_results(const QuantizedConvArgs& a, const QuantizedTile& t,
                       const QuantizedLanes<Core::kPanels>& lanes, int64_t pixel, int64_t panel) {
  if constexpr (Core::kWidth == 2) {
    if (a.out_type == QuantizedOut::kBF16) quantized_finish<Core, bf16>(a, t, lanes, pixel, panel);
    else quantized_finish<Core, float>(a, t, lanes, pixel, panel);
  } else {
    switch (a.out_type) {
      case QuantizedOut::kF32:
        if (a.x_zeros) quantized_finish<Core, float, QuantizedTail::kRows>(a, t, lanes, pixel, panel);
        else quantized_finish<Core, float>(a, t, lanes, pixel, panel);
        break;
      case QuantizedOut::kU8:
        if (a.sum.other) quantized_finish<Core, uint8_t, QuantizedTail::kSum>(a, t, lanes, pixel, panel);
        else quantized_finish<Core, uint8_t>(a, t, lanes, pixel, panel);
        break;
      case QuantizedOut::kI8:
        if (a.sum.other) quantized_finish<Core, int8_t, QuantizedTail::kSum>(a, t, lanes, pixel, panel);
        else quantized_finish<Core, int8_t>(a, t, lanes, pixel, panel);
        break;
      case QuantizedOut::kI32: quantized_finish<Core, int32_t>(a, t, lanes, pixel, panel); break;
      case QuantizedOut::kBF16: break;  // of products of bf16
    }
  }
}

// Asks for what is added to pixels [p0, p1) and for where the results go. A line of 64 channels of each pixel
// is no order that a processor follows, and between two tiles there is not enough work to wait for memory.
inline constexpr int64_t kSumAhead = 4;  // tiles
inline void fetch_sum_lines(const QuantizedConvArgs& a, int64_t p0, int64_t p1, int64_t panel,
                            int64_t panels) {
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t at = p * a.M + panel * kQuantizedPanel;
    for (int64_t c = at; c < at + panels * kQuantizedPanel; c += 64) {
      __builtin_prefetch(a.sum.other + c, 0, 3);
      __builtin_prefetch(static_cast<uint8_t*>(a.out) + c, 1, 3);
    }
  }
}

// The same of where results of bf16 go next, and of what is added there.
inline void fetch_result_lines(const QuantizedConvArgs& a, int64_t ldo, int64_t p0, int64_t p1, int64_t panel,
                               int64_t panels) {
  constexpr int64_t kFloats = 16;  // of a line
  const int64_t step = a.out_type == QuantizedOut::kBF16 ? 2 * kFloats : kFloats;
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t first = p * ldo + panel * kQuantizedPanel, last = first + panels * kQuantizedPanel;
    for (int64_t c = first; c < last; c += step)
      __builtin_prefetch(static_cast<char*>(a.out) + c * 2 * (2 * kFloats / step), 1, 3);
    if (a.residual != nullptr && a.residual != a.out)
      for (int64_t c = first; c < last; c += kFloats) __builtin_prefetch(a.residual + c, 0, 3);
  }
}

template <class Core>
void quantized_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  if (static_cast<const QuantizedConvArgs*>(args)->depthwise)
    return quantized_depthwise_run(args, begin, end);
  const QuantizedWork work(*static_cast<const QuantizedConvArgs*>(args), Core::kWidth, Core::kStep,
                           Core::kRows, Core::kTaps);
  const QuantizedConvArgs& a = work.a;
  if (work.pixels == 0) return;
  const bool flip = a.x_signed && !Core::kSignedX;
  alignas(64) int32_t acc[Core::kRows * Core::kPanels * kQuantizedPanel];
  QuantizedLanes<Core::kPanels> lanes;
  QuantizedTile t;
  t.flip = flip, t.x_signed = a.x_signed;
  t.panel = kQuantizedPanel * quantized_k(work.K), t.ldo = a.M;
  if constexpr (Core::kWidth == 2)
    t.panel = Bf16ProductArgs::panel_of(a, t.panel), t.ldo = Bf16ProductArgs::ldo_of(a);
  t.Kp = work.Kp;
  t.configured = Core::kRows;
  t.start = lanes.start;
  t.acc = acc, t.ldacc = Core::kPanels * kQuantizedPanel;
  t.packed = work.packed;
  t.tap_rows = nullptr, t.taps = 1, t.per_tap = work.Kp, t.skip = 0;
  const auto run = QuantizedRun::of(a, Core::kWidth);
  uint32_t* const sums =
      work.summed ? reinterpret_cast<uint32_t*>(static_cast<std::byte*>(scratch.worker) + work.row_bytes())
                  : nullptr;
  auto** table = static_cast<const uint8_t**>(scratch.worker);
  auto* missing = reinterpret_cast<uint64_t*>(table + work.block * work.taps);
  auto* padding = reinterpret_cast<uint8_t*>(missing + work.block);
  const auto pad = static_cast<uint8_t>(run.x_zero);
  const bool skips = work.taps <= 64 && (flip ? pad ^ 0x80 : pad) == 0;
  if (work.tabled && !work.packed) {
    std::memset(padding, pad, static_cast<size_t>(work.C));
    t.taps = work.taps, t.per_tap = work.C;
  }
  Core::begin();
  int64_t gathered = -1, summed = -1;
  QuantizedSeen known;
  for (int64_t id = begin; id < end; ++id) {
    const int64_t which = work.groups_outer ? id % work.blocks : id / work.groups;
    const int64_t g = work.groups_outer ? id / work.blocks : id % work.groups;
    const int64_t p0 = which * work.block, p1 = std::min(work.pixels, p0 + work.block);
    const uint8_t* rows = a.x + p0 * work.C;
    t.ldx = work.C;
    if (Core::kTaps && work.tabled) {
      if (gathered != which) {
        if (Core::kWidth == 2 && work.packed) quantized_lanes_of_rows(work, p0, p1, table, missing);
        else quantized_taps(work, p0, p1, padding, table, missing);
      }
      gathered = which, t.table = p1 - p0;
    } else if (!work.direct) {
      rows = static_cast<const uint8_t*>(scratch.worker);
      t.ldx = work.Kp;
      auto* const to = static_cast<uint8_t*>(scratch.worker);
      if (gathered != which) {
        if (Core::kWidth == 2 && work.packed) quantized_unpack(work, p0, p1, to);
        else quantized_gather(work, p0, p1, run.x_zero, to);
      }
      gathered = which;
    }
    if (Core::kWidth == 1 && work.summed && summed != which)
      quantized_window_sums(work, p0, p1, run.x_zero, known, sums + work.block, sums);
    summed = which;
    const int64_t last = std::min(work.panels, (g + 1) * work.group);
    for (int64_t panel = g * work.group; panel < last; panel += Core::kPanels) {
      t.panels = std::min(Core::kPanels, last - panel);
      t.w = a.w + panel * t.panel;
      // The filters after these, in parts by rows: without that the first rows wait for memory.
      const int64_t tiles = ceil_div(p1 - p0, Core::kRows), after = panel + t.panels;
      const bool own_next = work.groups_outer ? (end - 1) / work.blocks > g : id + 1 < end;
      const bool more = work.many_filters && after < work.panels && (after < last || own_next);
      const int64_t next = more ? std::min(Core::kPanels, work.panels - after) : 0;
      const int64_t parts = work.groups_outer ? work.blocks : 1;
      t.ahead_step = ceil_div(4 * kQuantizedPanel * next, tiles * parts);
      t.ahead = t.w + (more ? t.panels * t.panel + which % parts * tiles * t.ahead_step * (t.Kp / 4) : 0);
      quantized_lanes(a, run, panel, t.panels, flip, lanes);
      for (int64_t r = 0; r < p1 - p0; r += Core::kRows, t.ahead += t.ahead_step * (t.Kp / 4)) {
        t.rows = std::min(Core::kRows, p1 - p0 - r);
        if (work.large_sum) {
          const int64_t soon = r + kSumAhead * Core::kRows;
          fetch_sum_lines(a, p0 + (r == 0 ? 0 : soon), std::min(p1, p0 + soon + Core::kRows), panel,
                          t.panels);
        }
        if constexpr (Core::kWidth == 2)
          fetch_result_lines(a, t.ldo, p0 + r + Core::kRows, std::min(p1, p0 + r + 2 * Core::kRows), panel,
                             t.panels);
        t.x = rows + r * t.ldx;
        if (work.tabled) {
          t.tap_rows = table + r;
          t.skip = skips ? ~uint64_t{0} : 0;
          for (int64_t i = 0; i < t.rows; ++i) t.skip &= missing[r + i];
        }
        Core::tile(t);
        if (Core::kWidth == 1 && work.summed) quantized_less_zeros(t, lanes, sums + r);
        quantized_results<Core>(a, t, lanes, p0 + r, panel);
      }
    }
  }
  Core::end();
}

template <class Core>
constexpr KernelEntry quantized_conv(Isa isa) {
  constexpr bool kBytes = Core::kWidth == 1;
  return {.family = KernelFamily::kQuantizedConv,
          .isa = isa,
          .plan = quantized_plan<Core>,
          .run = quantized_run<Core>,
          .format = kBytes ? "i8" : "bf16",
          .input = kBytes ? "u8" : "bf16",
          .sum = kBytes ? Accumulation::kI32 : Accumulation::kF32};
}

}  // namespace
}  // namespace oar
