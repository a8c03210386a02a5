// Rows of norms by one block, of any number of whole warps (norm.cu; matmul_tiles.h behind a product):
// squares, then the scaled result. LayerNorm has one pass more in front, for the mean.
//
// A row is shared by kNormThreads lanes, which the block's warps take in turn, 32 at a time. Lane t owns the
// elements 4 (t + k kNormThreads) + {0..3}, k = 0, 1, ..., in every pass and in either load width. So cols
// alone fix the order of every sum, and nobody reads a sum_out element that another thread wrote.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/moe.h"
#include "kernels/norm.h"

namespace oar::cuda {

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / kWarp;
constexpr int kNormWidth = 4;  // floats of one 16-byte access

struct Quad {
  float v[kNormWidth];
};

// Elements [i, i + 4) of a row of `cols`; beyond the end zeros, which add nothing to a sum of squares.
template <bool kAligned>
OAR_DEVICE Quad load_quad(const float* row, int64_t i, int64_t cols) {
  if constexpr (kAligned) {
    const float4 q = load(reinterpret_cast<const float4*>(row + i));
    return {{q.x, q.y, q.z, q.w}};
  } else {
    Quad q;
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j) q.v[j] = i + j < cols ? row[i + j] : 0.f;
    return q;
  }
}

template <bool kAligned>
OAR_DEVICE void store_quad(float* row, int64_t i, int64_t cols, const Quad& q) {
  if constexpr (kAligned) {
    store(reinterpret_cast<float4*>(row + i), make_float4(q.v[0], q.v[1], q.v[2], q.v[3]));
  } else {
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j)
      if (i + j < cols) row[i + j] = q.v[j];
  }
}

// h = x + residual, rounded to f32 as the stored sum is.
template <bool kAligned>
OAR_DEVICE Quad load_sum(const float* x, const float* residual, int64_t i, int64_t cols) {
  Quad h = load_quad<kAligned>(x, i, cols);
  if (residual != nullptr) {
    const Quad add = load_quad<kAligned>(residual, i, cols);
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j) h.v[j] = __fadd_rn(h.v[j], add.v[j]);
  }
  return h;
}

// Four elements of what experts' rows of a token are together.
template <bool kAligned>
OAR_DEVICE Quad combined(const MoeCombineArgs& a, int64_t t, int64_t i) {
  Quad sum{};
  for (int64_t p = t * a.top_k; p < (t + 1) * a.top_k; ++p) {
    const Quad y = load_quad<kAligned>(a.y + a.pair_slot[p] * a.E, i, a.E);
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j) sum.v[j] = __fmaf_rn(a.pair_weight[p], y.v[j], sum.v[j]);
  }
  return sum;
}

// f(row, first element, part of the row's sums) for this lane's share of `rows` rows.
template <class F>
OAR_DEVICE void for_norm_parts(int rows, const F& f) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int part = warp(); part < rows * kNormWarps; part += warps) {
    f(part / kNormWarps, int64_t{kNormWidth} * (part % kNormWarps * kWarp + lane()), part);
  }
}
// The sum of a row, once the block has met: a butterfly within each warp before, now the warps in order.
OAR_DEVICE float sum_of_parts(const float* partial, int row) {
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < kNormWarps; ++w) sum += partial[row * kNormWarps + w];
  return sum;
}

// Rows first .. first + rows - 1: put(row, first element, four of them) has what becomes of each. `partial`:
// rows * kNormWarps floats of shared memory that nobody else has.
template <bool kAligned, class Put>
OAR_DEVICE void rms_norm_rows(const RmsNormArgs& a, int64_t first, int rows, float* partial, const Put& put) {
  const auto h_at = [&](int64_t r, int64_t i) {
    return load_sum<kAligned>(a.x + r * a.ldx, a.residual != nullptr ? a.residual + r * a.cols : nullptr, i,
                              a.cols);
  };
  for_norm_parts(rows, [&](int row, int64_t begin, int part) {
    const int64_t r = first + row;
    float squares = 0.f;
    for (int64_t i = begin; i < a.cols; i += kNormWidth * kNormThreads) {
      const Quad h = h_at(r, i);
      if (a.sum_out != nullptr) store_quad<kAligned>(a.sum_out + r * a.cols, i, a.cols, h);
#pragma unroll
      for (int j = 0; j < kNormWidth; ++j) squares = __fmaf_rn(h.v[j], h.v[j], squares);
    }
    squares = warp_sum(squares);
    if (lane() == 0) partial[part] = squares;
  });
  __syncthreads();
  for_norm_parts(rows, [&](int row, int64_t begin, int) {
    const int64_t r = first + row;
    const float scale = 1.f / sqrtf(sum_of_parts(partial, row) / static_cast<float>(a.cols) + a.eps);
    for (int64_t i = begin; i < a.cols; i += kNormWidth * kNormThreads) {
      // sum_out may have replaced the residual; what this thread wrote there is h.
      Quad h = a.sum_out != nullptr ? load_quad<kAligned>(a.sum_out + r * a.cols, i, a.cols) : h_at(r, i);
      const Quad w = load_quad<kAligned>(a.w, i, a.cols);
#pragma unroll
      for (int j = 0; j < kNormWidth; ++j) h.v[j] = h.v[j] * scale * (w.v[j] + a.w_offset);
      put(r, i, h);
    }
  });
}
// To where they belong.
template <bool kAligned>
OAR_DEVICE void rms_norm_rows(const RmsNormArgs& a, int64_t first, int rows, float* partial) {
  rms_norm_rows<kAligned>(a, first, rows, partial, [&](int64_t r, int64_t i, const Quad& h) {
    store_quad<kAligned>(a.out + r * a.ldo, i, a.cols, h);
  });
}

// Whether accesses of 16 bytes will do.
inline bool norm_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % (kNormWidth * sizeof(float)) == 0;
}
template <class Args>
bool norm_rows_aligned(const Args& a) {
  return a.cols % kNormWidth == 0 && a.ldx % kNormWidth == 0 && a.ldo % kNormWidth == 0 &&
         norm_aligned(a.x) && norm_aligned(a.out) && norm_aligned(a.w) && norm_aligned(a.residual) &&
         norm_aligned(a.sum_out);
}

}  // namespace oar::cuda
