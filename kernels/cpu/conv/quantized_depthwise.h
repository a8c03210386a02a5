// Depthwise convolution of 8-bit integers (kernels/quantized_conv.h) for one instruction set: 64 channels of
// a pixel at a time, sums in i32, finished by quantized_finish.h.
//
// A chunk is some output rows of one group of channels. Included by quantized_conv_driver.h; local to the
// file.
#pragma once

#include <algorithm>

#include "kernels/cpu/conv/quantized_finish.h"
#include "kernels/partition.h"
#ifdef __AVX512VNNI__
#include "kernels/cpu/conv/quantized_depthwise3.h"
#endif

namespace oar {
namespace {

struct DepthwiseQuantizedCore {  // what quantized_store() asks of a Core
  static constexpr int64_t kPanels = 4, kWidth = 1;
  static constexpr bool kStarts = false;
};

struct QuantizedDepthwiseWork {
  int64_t groups;           // of 64 channels
  int64_t rows, per, runs;  // output rows, of one chunk, chunks of a group
  explicit QuantizedDepthwiseWork(const QuantizedConvArgs& a) {
    const WindowShape& w = a.window;
    groups = ceil_div(a.M, DepthwiseQuantizedCore::kPanels * kQuantizedPanel);
    rows = w.N * w.OH;
    // Three taps of 64 channels take about as long as a line of memory; preparing a chunk, as ten pixels of 3
    // x 3.
    per = std::min<int64_t>(rows_per_chunk(rows, w.OW * ceil_div(w.KH * w.KW, 3) * 64),
                            std::max<int64_t>(rows, 1));
    runs = row_chunks(rows, per);
  }
};

inline void quantized_depthwise_plan(const void* args, KernelPlan* out) {
  const QuantizedDepthwiseWork w(*static_cast<const QuantizedConvArgs*>(args));
  *out = {1, {w.groups * w.runs}};
}

// sums[0, 16) = sum over the window of (x - zero) w for channels [c, c + n) of one pixel.
[[gnu::always_inline]] inline void depthwise_sums(const QuantizedConvArgs& a, const QuantizedRun& run,
                                                  int64_t image, int64_t y0, int64_t x0, int64_t c, size_t n,
                                                  int32_t* sums) {
  const WindowShape& w = a.window;
  // The bytes of an i8 with their sign bit turned are those of a u8 that is 128 more.
  constexpr uint8_t kTurn = 0x80;
  const uint8_t turn = a.x_signed ? kTurn : 0;
  const int32_t zero = run.x_zero + turn;
  QuantizedInts total = {}, w_zeros = {};
  if (run.w_zeros) load_lanes(w_zeros, run.w_zeros + c, n, sizeof(int32_t));
  w_zeros += kTurn;  // also what the weights are more, below
  for (int64_t i = 0; i < w.KH; ++i) {
    const int64_t y = y0 + i * w.dilation_h;
    if (y < 0 || y >= w.H) continue;
    for (int64_t j = 0; j < w.KW; ++j) {
      const int64_t x = x0 + j * w.dilation_w;
      if (x < 0 || x >= w.W) continue;
      QuantizedBytes pixel, filter;
      load_lanes(pixel, a.x + ((image * w.H + y) * w.W + x) * a.C + c, n, 1);
      load_lanes(filter, a.w + (i * w.KW + j) * a.C + c, n, 1);
      // The same turn makes bytes of weights, which g++ widens in vectors as it does not widen i8.
      add_wrapping(total, (__builtin_convertvector(pixel ^ turn, QuantizedInts) - zero) *
                              (__builtin_convertvector(filter ^ kTurn, QuantizedInts) - w_zeros));
    }
  }
  std::memcpy(sums, &total, sizeof total);
}

// The same for a chunk's channels one pixel after the other.
class DepthwiseSums {
 public:
  DepthwiseSums(const QuantizedConvArgs& a, const QuantizedRun& run, int64_t first, int64_t channels)
      : a_(a), run_(run), first_(first), channels_(channels) {}
  void sums(int64_t image, int64_t y0, int64_t x0, int32_t* sums) const {
    for (int64_t c = 0; c < channels_; c += kQuantizedPanel) {
      const auto n = static_cast<size_t>(std::min(kQuantizedPanel, channels_ - c));
      if (n == kQuantizedPanel)
        depthwise_sums(a_, run_, image, y0, x0, first_ + c, kQuantizedPanel, sums + c);
      else depthwise_sums(a_, run_, image, y0, x0, first_ + c, n, sums + c);
    }
  }

 private:
  const QuantizedConvArgs& a_;
  const QuantizedRun run_;
  int64_t first_, channels_;
};

template <class Sums, class T, QuantizedTail kTail>
void quantized_depthwise_rows(const QuantizedConvArgs& args, const QuantizedRun& run, int64_t first,
                              int64_t r0, int64_t r1) {
  const QuantizedConvArgs a = args;  // as in quantized_finish()
  constexpr int64_t kChannels = DepthwiseQuantizedCore::kPanels * kQuantizedPanel;
  const WindowShape& w = a.window;
  const int64_t channels = std::min(kChannels, a.M - first);
  QuantizedLanes<DepthwiseQuantizedCore::kPanels> lanes;
  copy_lanes(lanes.start, a.bias, first, channels, 0);
  lanes.scaled(a, run, first, channels);
  const float sum_inverse = quantized_inverse(a.sum.sum_scale);
  alignas(64) int32_t sums[kChannels];
  alignas(64) float row[kChannels];
  const Sums pixel(args, run, first, channels);
  const OAR_SIMD_NAMESPACE::EpilogueArgs epilogue{a.epilogue, a.alpha, a.beta};
  const bool activated = sizeof(T) == 1 && kTail == QuantizedTail::kPlain && epilogue.later();
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t image = r / w.OH, y0 = r % w.OH * w.stride_h - w.pad_top;
    for (int64_t ow = 0; ow < w.OW; ++ow) {
      const int64_t at = (r * w.OW + ow) * a.M + first, x0 = ow * w.stride_w - w.pad_left;
      pixel.sums(image, y0, x0, sums);
      for (int64_t c = 0; c < channels; c += kQuantizedPanel) {
        const auto n = static_cast<size_t>(std::min(kQuantizedPanel, channels - c));
        if (activated) {
          QuantizedFloats v;
          quantized_scaled<DepthwiseQuantizedCore, QuantizedTail::kPlain>(v, lanes, c, sums + c, {1.f, 0});
          std::memcpy(row + c, &v, sizeof v);
        } else {
          quantized_store<DepthwiseQuantizedCore, T, kTail>(a, lanes, c, sums + c, {1.f, 0}, at + c, n,
                                                            sum_inverse);
        }
      }
      if (activated) quantized_activated(args, row, at, channels);
      if (std::is_same_v<T, float> && epilogue.later())
        OAR_SIMD_NAMESPACE::apply_epilogue(epilogue, static_cast<float*>(a.out) + at, channels);
    }
  }
}

template <class Sums>
void quantized_depthwise_chunk(const QuantizedConvArgs& a, const QuantizedRun& run, int64_t first, int64_t r0,
                               int64_t r1) {
  constexpr QuantizedTail kPlain = QuantizedTail::kPlain;
  const auto bytes = [&]<class T>() {
    if (a.sum.other) quantized_depthwise_rows<Sums, T, QuantizedTail::kSum>(a, run, first, r0, r1);
    else quantized_depthwise_rows<Sums, T, kPlain>(a, run, first, r0, r1);
  };
  switch (a.out_type) {
    case QuantizedOut::kF32: return quantized_depthwise_rows<Sums, float, kPlain>(a, run, first, r0, r1);
    case QuantizedOut::kI32: return quantized_depthwise_rows<Sums, int32_t, kPlain>(a, run, first, r0, r1);
    case QuantizedOut::kU8: return bytes.template operator()<uint8_t>();
    case QuantizedOut::kI8: return bytes.template operator()<int8_t>();
    case QuantizedOut::kBF16: return;  // of products of bf16
  }
}

inline void quantized_depthwise_run(const void* args, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const QuantizedConvArgs*>(args);
  const QuantizedDepthwiseWork work(a);
  const auto run = QuantizedRun::of(a, 1);
  for (int64_t id = begin; id < end; ++id) {
    const int64_t first = id / work.runs * DepthwiseQuantizedCore::kPanels * kQuantizedPanel;
    const int64_t r0 = id % work.runs * work.per, r1 = std::min(work.rows, r0 + work.per);
#ifdef __AVX512VNNI__
    if (run.w_zeros == nullptr && VnniDepthwise3::fits(a)) {
      VnniDepthwise3(a, run.x_zero, first, std::min(VnniDepthwise3::kChannels, a.M - first)).rows(r0, r1);
      continue;
    }
    if (run.w_zeros == nullptr && VnniDepthwise::fits(a)) {
      quantized_depthwise_chunk<VnniDepthwise>(a, run, first, r0, r1);
      continue;
    }
#endif
    quantized_depthwise_chunk<DepthwiseSums>(a, run, first, r0, r1);
  }
}

}  // namespace
}  // namespace oar
