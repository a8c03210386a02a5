// What attention of packed rows has in common, in f32 (attention.cc) and of bf16 (attention_narrow.cc): its
// heads, and segments in blocks of rows.
#pragma once

#include <span>
#include <vector>

#include "engine/graph/evaluate.h"

namespace oar::train {

// Rows of a segment that are computed together: what they do not see behind them is left out.
inline constexpr int64_t kRows = 64;
// Columns of a block begin at a multiple of this in their segment: a panel of kernels/quantized_conv.h.
inline constexpr int64_t kColumnStep = 16;

struct Heads {
  int64_t T = 0, H = 0, K = 0, D = 0;
  double scale = 1, softcap = 0;
  int64_t window = 0;
  bool causal = true, chunked = false;
  const int32_t* positions = nullptr;
  const float* sinks = nullptr;  // a logit for each head, or none
  int64_t group() const { return H / K; }
};

// Rows of one segment, and the columns that any of them sees: [from, from + cols) of the batch. Of these, row
// r sees [first[r], last[r]).
struct RowBlock {
  int64_t begin = 0, rows = 0, from = 0, cols = 0;
  std::vector<int32_t> first, last;
  // What row r sees of `row`, which has all columns.
  std::span<float> seen(float* row, int64_t r) const {
    return {row + first[static_cast<size_t>(r)], row + last[static_cast<size_t>(r)]};
  }
};

struct SegmentBlocks {
  int64_t begin = 0, rows = 0;
  std::vector<RowBlock> blocks;
};

// Operands 0 to 4 and `sinks` of segment_attention (ops.h), and its attributes.
Result<Heads> read_heads(const EvalContext& ctx, size_t sinks);
Result<std::vector<SegmentBlocks>> segment_blocks(const EvalContext& ctx, const Heads& h);

// What kernels of rows of scores have in common; `heads` matrices one below the other.
template <class Args>
Args rows_of_scores(const Heads& h, const RowBlock& b, int64_t heads) {
  Args a;
  a.n = b.cols, a.period = b.rows, a.rows = heads * b.rows;
  a.first = b.first.data(), a.last = b.last.data();
  a.scale = static_cast<float>(h.scale), a.softcap = static_cast<float>(h.softcap);
  return a;
}

// The weights of a row, what it sees, where its head has a sink, which is a part of the sum: with z = log sum
// exp of the row's scores all are 1 / (1 + exp(sink - z)) of what they were. z follows from the largest
// score, before its scale, and its weight, exp(score - z).
void share_with_sink(const Heads& h, int64_t head, float largest, std::span<float> row);

// By products of bf16 with f32 sums; weights and their gradients are rounded between. `in`: q, k, v, dy;
// `out`: dq, dk, dv; results are f32 or bf16.
Status narrow_attend(const KernelContext& ctx, const Heads& h, const std::vector<SegmentBlocks>& segments,
                     const Tensor& q, const Tensor& k, const Tensor& v, Tensor& y);
Status narrow_attend_back(const KernelContext& ctx, const Heads& h,
                          const std::vector<SegmentBlocks>& segments, std::span<const Tensor, 4> in,
                          std::span<Tensor, 3> out);

}  // namespace oar::train
