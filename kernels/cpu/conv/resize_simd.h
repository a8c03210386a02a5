// Interpolation (kernels/resize.h) for one instruction set, an output row at a time: the line that its taps
// make of input rows, then the columns of that line.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/cpu/simd.h"
#include "kernels/resize.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline void resize_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const ResizeArgs*>(args);
  *out = {1, {std::max<int64_t>(1, a.outer * a.rows.out)}};
  if (a.rows.first != nullptr && a.cols.first != nullptr)
    out->worker_scratch = static_cast<size_t>(a.cols.in * a.inner) * sizeof(float);
}

OAR_INLINE bool resize_copies(const ResizeAxis& axis, int64_t k) {
  const int32_t t = axis.first[k];
  return axis.first[k + 1] - t == 1 && axis.weight[t] == 1.f;
}

// to [n] = the sum of taps [t0, t1), whose entries lie `stride` apart from `from` on.
inline void resize_sum(const ResizeAxis& axis, int32_t t0, int32_t t1, const float* from, int64_t stride,
                       float* to, int64_t n) {
  if (t1 - t0 == 2) {  // linear
    const float *a = from + axis.at[t0] * stride, *b = from + axis.at[t0 + 1] * stride;
    const Vf wa = set1(axis.weight[t0]), wb = set1(axis.weight[t0 + 1]);
    for_lanes(n, [&](int64_t i, int64_t lanes) {
      store_part(to + i, fma(wb, load_part(b + i, lanes), wa * load_part(a + i, lanes)), lanes);
    });
    return;
  }
  for_lanes(n, [&](int64_t i, int64_t lanes) {
    Vf sum = set1(0.f);
    for (int32_t t = t0; t < t1; ++t)
      sum = fma(set1(axis.weight[t]), load_part(from + axis.at[t] * stride + i, lanes), sum);
    store_part(to + i, sum, lanes);
  });
}

// Columns of a line of single values. Most have as many taps as the one in the middle: one that copies, or
// two of linear interpolation.
class ResizeValues {
 public:
  explicit ResizeValues(const ResizeAxis& axis) : axis_(axis) {
    const int64_t middle = axis.out / 2;
    taps_ = taps(middle);
    for (begin_ = middle; begin_ > 0 && taps(begin_ - 1) == taps_;) --begin_;
    for (end_ = middle; end_ < axis.out && taps(end_) == taps_;) ++end_;
    if (taps_ != 1 && taps_ != 2) end_ = begin_;
  }

  void run(const float* line, float* to) const {
    for (int64_t j = 0; j < begin_; ++j) to[j] = sum(line, j);
    const int32_t* const at = axis_.at + axis_.first[begin_];
    const float* const weight = axis_.weight + axis_.first[begin_];
    float* const own = to + begin_;
    const int64_t n = end_ - begin_;
    if (taps_ == 1) {
      for (int64_t j = 0; j < n; ++j) own[j] = line[at[j]];
    } else {
      for (int64_t j = 0; j < n; ++j)
        own[j] = weight[2 * j] * line[at[2 * j]] + weight[2 * j + 1] * line[at[2 * j + 1]];
    }
    for (int64_t j = end_; j < axis_.out; ++j) to[j] = sum(line, j);
  }

 private:
  // 0: one that is weighted.
  int32_t taps(int64_t j) const {
    const int32_t n = axis_.first[j + 1] - axis_.first[j];
    return n == 1 && !resize_copies(axis_, j) ? 0 : n;
  }
  float sum(const float* line, int64_t j) const {
    const int32_t t0 = axis_.first[j], t1 = axis_.first[j + 1];
    if (resize_copies(axis_, j)) return line[axis_.at[t0]];
    float sum = 0;
    for (int32_t t = t0; t < t1; ++t) sum += axis_.weight[t] * line[axis_.at[t]];
    return sum;
  }

  const ResizeAxis& axis_;
  int32_t taps_ = 0;
  int64_t begin_ = 0, end_ = 0;
};

inline void resize_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const ResizeArgs*>(args);
  const int64_t n = a.cols.in * a.inner, width = a.cols.out * a.inner;
  std::optional<ResizeValues> values;
  if (a.inner == 1 && a.cols.first != nullptr) values.emplace(a.cols);
  for (int64_t r = begin; r < end && r < a.outer * a.rows.out; ++r) {
    const int64_t i = r % a.rows.out;
    const float* const image = a.x + r / a.rows.out * a.rows.in * n;
    float* const to = a.out + r * width;
    const float* line = image + i * n;
    if (a.rows.first != nullptr) {
      const int32_t t0 = a.rows.first[i];
      if (resize_copies(a.rows, i)) {
        if (r > begin && i > 0 && resize_copies(a.rows, i - 1) &&
            a.rows.at[t0] == a.rows.at[a.rows.first[i - 1]]) {  // the row before
          std::memcpy(to, to - width, static_cast<size_t>(width) * sizeof(float));
          continue;
        }
        line = image + a.rows.at[t0] * n;
      } else {
        float* const made = a.cols.first != nullptr ? static_cast<float*>(scratch.worker) : to;
        resize_sum(a.rows, t0, a.rows.first[i + 1], image, n, made, n);
        line = made;
      }
    }
    if (a.cols.first == nullptr) {
      if (line != to) std::memcpy(to, line, static_cast<size_t>(n) * sizeof(float));
    } else if (values) {
      values->run(line, to);
    } else {
      for (int64_t j = 0; j < a.cols.out; ++j) {
        const int32_t t0 = a.cols.first[j];
        float* const pixel = to + j * a.inner;
        if (resize_copies(a.cols, j)) {
          std::memcpy(pixel, line + a.cols.at[t0] * a.inner, static_cast<size_t>(a.inner) * sizeof(float));
        } else {
          resize_sum(a.cols, t0, a.cols.first[j + 1], line, a.inner, pixel, a.inner);
        }
      }
    }
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
