// An implicit product by tensor cores: a block gathers what 64 output pixels see, kStep values of a window at
// a time; a warp multiplies 16 of them with the block's filters, whose packed words are fragments as they
// lie. Unsigned bytes become signed by 128 less, and so do their zero points. A window's values in the
// padding are the zero point; then the sum of (x - zero) w is that of x w, less zero times the sum of w:
// exact, and the same modulo 2^32 in any order. Where weights have zero points too, the sum of each window's
// (x - zero) is kept beside, and they are taken that many times.
#include "kernels/cuda/quantized_conv.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kPixels = 16 * kWarps;                // of a block
constexpr int kStep = 64, kWords = kStep / 4;       // bytes of a window between two barriers
constexpr int kEach = kPixels * kWords / kThreads;  // words that a thread gathers
constexpr int kPanel = static_cast<int>(kQuantizedPanel);
static_assert(kStep == kQuantizedStep && kPixels == kQuantizedPixels);

// Where word `word` of pixel `row` lies. Different banks are met by a word of 32 pixels, by the words of two,
// and by a fragment's lanes, which have four words of eight pixels.
OAR_DEVICE int x_place(int row, int word) {
  static_assert(kWords == 16);
  return row * kWords + (word ^ ((row / 2 % 4 << 2) | row / 8 % 4));
}
// The same of the sum of a pixel and filter, kFilters a pixel: of a filter of 32 pixels, of a pixel's
// filters, and of a fragment's lanes, which have each second of eight filters, of eight pixels.
template <int kFilters>
OAR_DEVICE int sum_place(int pixel, int filter) {
  static_assert(kFilters == 16 || kFilters % 32 == 0);
  const int mixed = (pixel % 2 << 4) | (pixel / 4 % 2 << 3) | (pixel / 8 % 4 << 1) | pixel / 2 % 2;
  return pixel * kFilters + (filter ^ (mixed & (kFilters - 1)));
}

// How a window's values come: words of channels that lie together, their bytes, or bytes of planes, which
// neighbours read of neighbouring pixels.
enum class Gather { kWords, kBytes, kPlanes };

// What a run brings beside the layer (IntegerConvArgs).
struct OfRun {
  const uint8_t* x_zero = nullptr;
  const int32_t* w_zeros = nullptr;
};

// What lies in the image of pixel p, whose zero point may be its own.
OAR_DEVICE int32_t zero_of(const QuantizedConvArgs& a, int64_t image) {
  return a.x_zeros != nullptr ? a.x_zeros[image] : a.x_zero;
}

OAR_DEVICE bool bends(const QuantizedConvArgs& a) {
  return a.epilogue != Epilogue::kNone && a.epilogue != Epilogue::kClamp;
}
OAR_DEVICE float rounded(float v, float low, float high) { return rintf(fminf(fmaxf(v, low), high)); }

OAR_DEVICE uint8_t byte_of(const QuantizedConvArgs& a, float t, int64_t at) {
  const float v = bends(a) ? __fmul_rn(epilogue(a.epilogue, t, a.alpha, a.beta), a.y_inverse) : t;
  const float r = rounded(v, a.low, a.high);
  const QuantizedSum& s = a.sum;
  if (s.other == nullptr) return static_cast<uint8_t>(static_cast<int32_t>(r) + a.y_zero);
  const uint8_t byte = s.other[at];
  const auto o = static_cast<float>(s.other_signed ? static_cast<int8_t>(byte) : static_cast<int32_t>(byte));
  const float mine = __fmul_rn(r, s.scale), others = __fmul_rn(__fadd_rn(o, -s.other_zero), s.other_scale);
  const float both = rounded(__fdiv_rn(__fadd_rn(mine, others), s.sum_scale), s.low, s.high);
  return static_cast<uint8_t>(static_cast<int32_t>(both) + s.zero);
}

// The result of sum `s` of pixel p and filter m.
OAR_DEVICE void put(const QuantizedConvArgs& a, int32_t s, int64_t image, int64_t p, int64_t m) {
  const int64_t at = p * a.M + m;
  if (a.out_type == QuantizedOut::kI32) {
    static_cast<int32_t*>(a.out)[at] = s;
    return;
  }
  const float scale = a.x_scale != nullptr ? __fmul_rn(a.scale[m], a.x_scale[image]) : a.scale[m];
  float t = __fmul_rn(static_cast<float>(s), scale);
  if (a.shift != nullptr) t = __fadd_rn(t, a.shift[m]);
  if (a.out_type != QuantizedOut::kF32) {
    static_cast<uint8_t*>(a.out)[at] = byte_of(a, t, at);
    return;
  }
  if (a.residual != nullptr) t = __fadd_rn(t, a.residual[at]);
  t = t < a.low ? a.low : t > a.high ? a.high : t;  // NaN stays
  static_cast<float*>(a.out)[at] = bends(a) ? epilogue(a.epilogue, t, a.alpha, a.beta) : t;
}

// Where a window begins, and what padding is there.
struct Corner {
  int64_t image;  // negative: there is no such pixel
  int top, left;
  uint32_t padding;
};
OAR_DEVICE Corner corner_of(const QuantizedConvArgs& a, int64_t p, int64_t pixels, int32_t zero) {
  const WindowShape& w = a.window;
  return {p < pixels ? p / (w.OH * w.OW) : -1, static_cast<int>(p / w.OW % w.OH * w.stride_h - w.pad_top),
          static_cast<int>(p % w.OW * w.stride_w - w.pad_left),
          (static_cast<uint32_t>(zero) & 0xffu) * 0x01010101u};
}

// Values [k, k + 4) of a window, the first in the lowest byte.
template <Gather kGather>
OAR_DEVICE uint32_t gathered(const QuantizedConvArgs& a, const Corner& at, int64_t k, int64_t K) {
  uint32_t bytes = at.padding;
  if (at.image < 0) return bytes;
  const WindowShape& w = a.window;
#pragma unroll
  for (int i = 0; i < (kGather == Gather::kWords ? 1 : 4); ++i) {
    const int64_t tap = (k + i) / a.C, c = (k + i) - tap * a.C;
    const int64_t y = at.top + tap / w.KW * w.dilation_h, x = at.left + tap % w.KW * w.dilation_w;
    if (k + i >= K || y < 0 || y >= w.H || x < 0 || x >= w.W) continue;
    const uint8_t* from = kGather == Gather::kPlanes ? a.x + ((at.image * a.C + c) * w.H + y) * w.W + x
                                                     : a.x + ((at.image * w.H + y) * w.W + x) * a.C + c;
    if constexpr (kGather == Gather::kWords) bytes = load(reinterpret_cast<const uint32_t*>(from));
    else bytes = (bytes & ~(0xffu << 8 * i)) | uint32_t{load(from)} << 8 * i;
  }
  return bytes;
}

OAR_DEVICE int32_t sum_of_bytes(uint32_t word) {
  int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(static_cast<uint8_t>(word >> 8 * i));
  return sum;
}

// kOfRun: sums alone, of a layer without bias, as IntegerConvArgs has them.
template <Gather kGather, int kPanels, bool kOfRun>
__global__ void __launch_bounds__(kThreads, kPanels == 4 ? 3 : 4)
    quantized_kernel(QuantizedConvArgs a, OfRun of_run, int64_t filter_tiles, int64_t Kp) {
  wait_for_launches();
  constexpr int kFilters = kPanels * kPanel;
  constexpr bool kPlanes = kGather == Gather::kPlanes;
  SharedMemory shared;
  uint32_t* const xs = shared.take<uint32_t>(kPixels * kWords);
  int32_t* const sums = shared.take<int32_t>(kPixels * kFilters);
  [[maybe_unused]] int32_t* const of_windows = kOfRun ? shared.take<int32_t>(kThreads) : nullptr;
  const WindowShape& w = a.window;
  const int64_t pixels = w.N * w.OH * w.OW, K = w.KH * w.KW * a.C;
  const int64_t first_pixel = blockIdx.x / filter_tiles * kPixels;
  const int64_t first_filter = blockIdx.x % filter_tiles * kFilters;
  // A warp gathers two pixels' words, or of planes a word of 32 pixels.
  const int thread = static_cast<int>(threadIdx.x);
  const int word = kPlanes ? thread / kPixels : thread % kWords;
  const int row = kPlanes ? thread % kPixels : thread / kWords;
  constexpr int kCorners = kPlanes ? 1 : kEach;
  constexpr int kNextWord = kPlanes ? kThreads / kPixels : 0, kNextRow = kPlanes ? 0 : kThreads / kWords;
  const uint32_t flip = a.x_signed ? 0 : 0x80808080u;
  int32_t zero_of_run = 0;
  if (kOfRun && of_run.x_zero != nullptr)
    zero_of_run = a.x_signed ? static_cast<int8_t>(*of_run.x_zero) : static_cast<int32_t>(*of_run.x_zero);

  Corner corners[kCorners];
#pragma unroll
  for (int e = 0; e < kCorners; ++e) {
    const int64_t p = first_pixel + row + e * kNextRow;
    const int32_t zero = kOfRun ? zero_of_run : p < pixels ? zero_of(a, p / (w.OH * w.OW)) : 0;
    corners[e] = corner_of(a, p, pixels, zero);
  }
  int32_t acc[2 * kPanels][4] = {};
  int32_t window = 0;  // half of what is seen of pixel thread % kPixels
  for (int64_t k0 = 0; k0 < K; k0 += kStep) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int its = word + e * kNextWord;
      xs[x_place(row + e * kNextRow, its)] =
          gathered<kGather>(a, corners[kPlanes ? 0 : e], k0 + 4 * its, K) ^ flip;
    }
    __syncthreads();
    if (kOfRun && of_run.w_zeros != nullptr) {
      const int pixel = thread % kPixels, half = thread / kPixels * (kWords / 2);
#pragma unroll
      for (int i = 0; i < kWords / 2; ++i) window += sum_of_bytes(xs[x_place(pixel, half + i)]);
    }
    const int g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int half = 0; half < kStep / 32; ++half) {
      const int its = 16 * warp() + g, first = 8 * half + t;
      const uint32_t of_x[4] = {xs[x_place(its, first)], xs[x_place(its + 8, first)],
                                xs[x_place(its, first + 4)], xs[x_place(its + 8, first + 4)]};
#pragma unroll
      for (int n = 0; n < 2 * kPanels; ++n) {
        const int64_t panel = first_filter / kPanel + n / 2;
        uint32_t of_w[2] = {};
        if (panel * kPanel < a.M) {
          const auto* words = reinterpret_cast<const uint32_t*>(a.w) + panel * kPanel * Kp / 4 +
                              (k0 / 4 + 8 * half + t) * kPanel + n % 2 * 8 + g;
          of_w[0] = load(words);
          of_w[1] = load(words + 4 * kPanel);
        }
        mma_s8(acc[n], of_x, of_w);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < 2 * kPanels; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = 16 * warp() + lane() / 4 + 8 * half, filter = 8 * n + lane() % 4 * 2;
      sums[sum_place<kFilters>(pixel, filter)] = acc[n][2 * half];
      sums[sum_place<kFilters>(pixel, filter + 1)] = acc[n][2 * half + 1];
    }
  }
  if constexpr (kOfRun) of_windows[thread] = window;
  __syncthreads();

  // Neighbours write neighbouring filters, or of planes pixels.
#pragma unroll 1
  for (int i = thread; i < kPixels * kFilters; i += kThreads) {
    const int pixel = kPlanes ? i % kPixels : i / kFilters, filter = kPlanes ? i / kPixels : i % kFilters;
    const int64_t p = first_pixel + pixel, m = first_filter + filter;
    if (p >= pixels || m >= a.M) continue;
    const int64_t outs = w.OH * w.OW, of_image = p / outs;
    const int32_t flipped = a.x_signed ? 0 : 128;  // less than x
    const int32_t zero = (kOfRun ? zero_of_run : zero_of(a, of_image)) - flipped;
    uint32_t sum = static_cast<uint32_t>(sums[sum_place<kFilters>(pixel, filter)]) -
                   static_cast<uint32_t>(zero) * static_cast<uint32_t>(a.w_sums[m]);
    if constexpr (kOfRun) {
      if (of_run.w_zeros != nullptr) {
        // Values behind K are zero points as padding is: of all Kp each is taken once.
        const auto seen = static_cast<uint32_t>(of_windows[pixel] + of_windows[pixel + kPixels]);
        sum -= static_cast<uint32_t>(of_run.w_zeros[m]) *
               (seen - static_cast<uint32_t>(zero) * static_cast<uint32_t>(Kp));
      }
      static_cast<int32_t*>(a.out)[(of_image * a.M + m) * outs + p % outs] = static_cast<int32_t>(sum);
    } else {
      if (a.bias != nullptr) sum += static_cast<uint32_t>(a.bias[m]);
      put(a, static_cast<int32_t>(sum), of_image, p, m);
    }
  }
}

constexpr int kDepthwiseThreads = 256;
__global__ void __launch_bounds__(kDepthwiseThreads)
    quantized_depthwise_kernel(QuantizedConvArgs a, int64_t n) {
  wait_for_launches();
  const int64_t i = int64_t{blockIdx.x} * kDepthwiseThreads + threadIdx.x;
  if (i >= n) return;
  const WindowShape& w = a.window;
  const int64_t p = i / a.M, m = i % a.M, image = p / (w.OH * w.OW), oh = p / w.OW % w.OH, ow = p % w.OW;
  uint32_t sum = a.bias != nullptr ? static_cast<uint32_t>(a.bias[m]) : 0;
  for (int64_t r = 0; r < w.KH; ++r) {
    const int64_t y = oh * w.stride_h - w.pad_top + r * w.dilation_h;
    if (y < 0 || y >= w.H) continue;
    for (int64_t c = 0; c < w.KW; ++c) {
      const int64_t x = ow * w.stride_w - w.pad_left + c * w.dilation_w;
      if (x < 0 || x >= w.W) continue;
      const uint8_t byte = a.x[((image * w.H + y) * w.W + x) * a.C + m];
      const int32_t v = a.x_signed ? static_cast<int8_t>(byte) : static_cast<int32_t>(byte);
      sum += static_cast<uint32_t>((v - a.x_zero) * a.w[(r * w.KW + c) * a.C + m]);
    }
  }
  put(a, static_cast<int32_t>(sum), image, p, m);
}

template <Gather kGather, int kPanels, bool kOfRun>
CudaStatus run(const QuantizedConvArgs& a, const OfRun& of_run, Stream stream) {
  constexpr int kFilters = kPanels * kPanel;
  constexpr size_t kShared = (kPixels * (kWords + kFilters) + (kOfRun ? kThreads : 0)) * sizeof(int32_t);
  const int64_t pixels = a.window.N * a.window.OH * a.window.OW, tiles = (a.M + kFilters - 1) / kFilters,
                blocks = (pixels + kPixels - 1) / kPixels * tiles;
  if (blocks > 0x7fffffff) return {cudaErrorInvalidValue};
  return {launch(quantized_kernel<kGather, kPanels, kOfRun>, static_cast<unsigned>(blocks), kThreads, kShared,
                 stream, a, of_run, tiles, quantized_k(a.window.KH * a.window.KW * a.C))};
}
template <Gather kGather, bool kOfRun>
CudaStatus run(const QuantizedConvArgs& a, const OfRun& of_run, Stream stream) {
  return quantized_tile_filters(a.M) == kPanel ? run<kGather, 1, kOfRun>(a, of_run, stream)
                                               : run<kGather, 4, kOfRun>(a, of_run, stream);
}

bool has_words(const QuantizedConvArgs& a) {
  return a.C % 4 == 0 && reinterpret_cast<uintptr_t>(a.x) % 4 == 0;
}

}  // namespace

CudaStatus quantized_conv(const QuantizedConvArgs& a, Stream stream) {
  const int64_t pixels = a.window.N * a.window.OH * a.window.OW;
  if (pixels <= 0 || a.M <= 0) return {};
  if (a.depthwise) {
    const int64_t n = pixels * a.M, blocks = (n + kDepthwiseThreads - 1) / kDepthwiseThreads;
    if (blocks > 0x7fffffff) return {cudaErrorInvalidValue};
    return {launch(quantized_depthwise_kernel, static_cast<unsigned>(blocks), kDepthwiseThreads, 0, stream, a,
                   n)};
  }
  return has_words(a) ? run<Gather::kWords, false>(a, {}, stream) : run<Gather::kBytes, false>(a, {}, stream);
}

CudaStatus integer_conv(const IntegerConvArgs& i, Stream stream) {
  const WindowShape& w = i.window;
  if (w.N * w.OH * w.OW <= 0 || i.M <= 0) return {};
  QuantizedConvArgs a;
  a.out = i.out, a.x = i.x, a.w = i.w, a.w_sums = i.w_sums;
  a.window = w;
  a.C = i.C, a.M = i.M, a.x_signed = i.x_signed;
  const OfRun of_run{i.x_zero, i.w_zeros};
  if (w.H * w.W * w.OH * w.OW > 1) return run<Gather::kPlanes, true>(a, of_run, stream);
  return has_words(a) ? run<Gather::kWords, true>(a, of_run, stream)
                      : run<Gather::kBytes, true>(a, of_run, stream);
}

}  // namespace oar::cuda
