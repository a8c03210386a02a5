// The bytes that attention reads next, fetched from memory while the current span is worked on.
//
// A span's phases need memory at very different rates: keys and values while they are multiplied, nothing in
// the softmax. So who multiplies does not prefetch what it will need, but takes its share of a list. The list
// is read at four places at once: the processor's own prefetcher follows each, but starts slowly and stops at
// 4 KiB. One core of Sapphire Rapids gets 1.4 times the bytes from four streams that it gets from one, and no
// more from eight; the distance (a span, 18 to 128 KB) matters less.
#pragma once

#include "kernels/cpu/attention/attention_partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// To the second-level cache with AMX, whose tiles read it well; to the first elsewhere (Zen 5: 3 to 8 %
// faster).
#ifdef __AMX_TILE__
inline constexpr int kPrefetchTo = 2;
#else
inline constexpr int kPrefetchTo = 3;
#endif
OAR_INLINE void prefetch(const char* p) { __builtin_prefetch(p, 0, kPrefetchTo); }

class SpanAhead {
 public:
  void clear() { count_ = 0; }
  void add(const char* bytes, int64_t size) {
    const int64_t n = (size - 1) / kUnit;
    for (int64_t i = 0; i < n; ++i) unit_[count_ + i] = bytes + i * kUnit;
    unit_[count_ + n] = bytes + (size > kUnit ? size - kUnit : 0);  // the last overlaps
    count_ += n + 1;
  }
  // The panels of a span of an unquantized cache: a page's keys, then its values.
  void add(const SpanPanels& next, int64_t panel_bytes) {
    for (int64_t i = next.lo, end; i < next.hi; i = end) {
      end = i + 1;
      while (end < next.hi && next.k[end] == next.k[end - 1] + panel_bytes) ++end;
      add(next.k[i], (end - i) * panel_bytes);
      if (next.v[i] != next.k[i]) add(next.v[i], (end - i) * panel_bytes);
    }
  }
  // The list in equal shares with each of `steps` calls of step().
  void begin(int64_t steps) {
    next_ = due_ = 0;
    stream_ = ceil_div(count_, kStreams);
    for (; count_ < kStreams * stream_; ++count_) unit_[count_] = unit_[count_ - 1];
    steps_ = steps;
  }
  // Between instructions that keep results in vector registers: no call, few registers.
  OAR_INLINE void step() {
    for (due_ += stream_; due_ >= steps_ && next_ < stream_; due_ -= steps_, ++next_) {
      OAR_UNROLL
      for (int64_t k = 0; k < kStreams; ++k) {
        OAR_UNROLL
        for (int64_t i = 0; i < kUnit; i += 64) prefetch(unit_[next_ + k * stream_] + i);
      }
    }
  }

 private:
  static constexpr int64_t kStreams = 4, kUnit = 2 * 64;  // bytes
  // Keys and values of a span in 16 bits, in at most three pieces per panel.
  static constexpr int64_t kMaxUnits = kSpan * kMaxHeadDim * 4 / kUnit + 3 * kSpanPanels + kStreams;

  const char* unit_[kMaxUnits];
  int64_t count_ = 0, next_ = 0;
  int64_t stream_ = 0;           // units of each stream
  int64_t due_ = 0, steps_ = 1;  // units due times steps
};

}  // namespace oar::OAR_SIMD_NAMESPACE
