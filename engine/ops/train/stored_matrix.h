// Products with a layer's matrix (N, K) in whatever format it is stored, forwards and back; rounding; what
// the ops of ops.h share.
#pragma once

#include <algorithm>
#include <type_traits>

#include "engine/graph/evaluate.h"
#include "kernels/register_turn.h"
#include "quant/dtype.h"

namespace oar::train {

// A constant matrix in the layout of its kernel; null where that reads it in place.
struct StoredMatrix {
  Tensor packed;
};
Result<std::shared_ptr<const void>> prepare_matrix(PrepareContext& ctx, size_t operand);
template <size_t kOperand>
Result<std::shared_ptr<const void>> prepare_stored_matrix(PrepareContext& ctx) {
  return prepare_matrix(ctx, kOperand);
}

// out (rows, N) = x (rows, K) . w^T + bias. By the kernel that serves, but for f32, which is packed slice by
// slice as the way back has it: many rows at once are faster so. `stored`: as prepare_matrix() gave it.
Status stored_product(const KernelContext& ctx, const float* x, int64_t rows, const Tensor& w,
                      const StoredMatrix* stored, const float* bias, float* out);
// The same of rows in f32, or bf16: then by products of bf16, where there is a kernel and w is f32 or bf16.
// `out` is f32, or bf16 into which sums are rounded.
Status rows_there(const KernelContext& ctx, const Tensor& x, const Tensor& w, const StoredMatrix* stored,
                  const float* bias, Tensor& out);
// out (rows, K) = dy (rows, N) . w, or += it; rows of dy are `ldy` apart, 0: N.
Status product_back(const KernelContext& ctx, const float* dy, int64_t rows, const Tensor& w, float* out,
                    int64_t ldy = 0, bool add = false);
// The same of rows in f32, or bf16: then by products of bf16, where there is a kernel. `out` as above.
Status rows_back(const KernelContext& ctx, const Tensor& dy, const Tensor& w, Tensor& out);
// As f32: `t` itself, or of bf16 a copy.
Result<Tensor> widened(const KernelContext& ctx, const Tensor& t);
// The matrix beside rows `x`: f32 is rounded to bf16 where x is bf16 (and no kernel packs it so).
Result<Tensor> rounded_beside(const KernelContext& ctx, const Tensor& x, const Tensor& w);
// The kernel of products of bf16 with f32 sums; null on processors without.
const Kernel* narrow_kernel(const KernelContext& ctx);
// w (K, N), of any format and rounded to bf16, as that reads it: panels of 16 columns, pairs of rows.
Result<Tensor> pack_pairs(const KernelContext& ctx, const Tensor& w);
// The same of a matrix (N, K) of f32 or bf16.
Result<Tensor> pack_turned_pairs(const KernelContext& ctx, const Tensor& w);
// The same of rows of bf16 that lie `step` apart: w (K, N) into pair_count(K, N) pairs, and of a matrix (N,
// K) its transpose; by the calling thread, or with a context by all workers.
int64_t pair_count(int64_t K, int64_t N);
inline uint32_t* pairs_of(const Tensor& packed) { return static_cast<uint32_t*>(packed.mutable_data()); }
void pack_rows(uint32_t* to, const bf16* w, int64_t step, int64_t K, int64_t N);
void pack_rows(const EvalContext& ctx, uint32_t* to, const bf16* w, int64_t step, int64_t K, int64_t N);
void pack_turned_rows(uint32_t* to, const bf16* w, int64_t step, int64_t N, int64_t K);
// Where rows of a product go.
struct ProductRows {
  void* out = nullptr;         // (rows, N) of f32, or of bf16
  bool rounded = false;        // bf16
  const float* add = nullptr;  // (rows, N), may be an f32 `out`
  const float* bias = nullptr;
};
// to.out = x (rows, K) . w + bias + add; `pairs` is w as packed above, `w` its shape.
Status narrow_product(const KernelContext& ctx, const bf16* x, int64_t rows, const Tensor& pairs,
                      const Shape& w, const ProductRows& to);
// The same of the transpose of x (K, rows), packed as w is.
Status turned_product(const KernelContext& ctx, const uint32_t* x, int64_t rows, const Tensor& pairs,
                      const Shape& w, const ProductRows& to);

// The type of a node's result k: bf16 where round_results() (ops.h) said so.
inline constexpr const char* kRounded = "rounded";
inline DType result_type(const Attrs& attrs, size_t k) {
  return (attrs.get_int(kRounded) >> k & 1) != 0 ? DType::kBF16 : DType::kF32;
}
inline Format result_format(const Attrs& attrs, size_t k) { return Format::of(result_type(attrs, k)); }
// The same of what a definition makes.
std::vector<Val> rounded_results(Builder& b, std::vector<Val> results, const Attrs& attrs);
// For ways back, whose results are others.
Attrs without_rounding(const Attrs& attrs);

// n numbers to bf16, half to even, on all workers.
Status round_numbers(const KernelContext& ctx, const float* from, int64_t n, bf16* to);
// make(float*) fills `out`; of bf16, memory of its own, which is rounded.
template <class F>
Status make_result(const KernelContext& ctx, Tensor& out, F&& make) {
  if (out.format() == Format::f32()) return make(static_cast<float*>(out.mutable_data()));
  OAR_ASSIGN(Tensor wide, ctx.allocate(out.shape(), DType::kF32));
  auto* const numbers = static_cast<float*>(wide.mutable_data());
  OAR_RETURN_IF_ERROR(make(numbers));
  return round_numbers(ctx, numbers, out.numel(), static_cast<bf16*>(out.mutable_data()));
}

// Numbers [at, at + n) of an f32 or bf16 tensor as f32: where they lie, or in `room`.
const float* as_floats(const Tensor& t, int64_t at, int64_t n, float* room);
inline bool is_float(const Tensor& t) { return t.format() == Format::f32() || t.format() == Format::bf16(); }
// Where numbers [at, at + n) of such a result are made in f32: where they lie, or in `room`, which done()
// rounds.
class FloatsTo {
 public:
  FloatsTo(const KernelContext& ctx, Tensor& t, int64_t at, int64_t n, float* room);
  float* data() const { return data_; }
  void done() const;

 private:
  const KernelContext& ctx_;
  float* data_;
  bf16* rounded_ = nullptr;
  int64_t n_;
};

inline void convert(float x, float& to) { to = x; }
inline void convert(bf16 x, bf16& to) { to = x; }
inline void convert(float x, bf16& to) { to = to_bf16(x); }
inline void convert(bf16 x, float& to) { to = to_f32(x); }

inline constexpr int64_t kTurnTile = 32;

// to (cols, rows) = from (rows, cols)^T of columns [first, last), rows `step` apart. By way of a small tile,
// so that each line of either side is touched once: rows that are powers of two apart would throw it out.
template <class From, class To>
void turn_columns(const From* from, int64_t rows, int64_t step, int64_t first, int64_t last, To* to) {
  alignas(64) To tile[kTurnTile][kTurnTile];
  for (int64_t c0 = first; c0 < last; c0 += kTurnTile) {
    const int64_t width = std::min(kTurnTile, last - c0);
    for (int64_t r0 = 0; r0 < rows; r0 += kTurnTile) {
      const int64_t height = std::min(kTurnTile, rows - r0);
      const From* const corner = from + r0 * step + c0;
      int64_t whole_rows = 0, whole_cols = 0;
      if constexpr (std::is_same_v<From, To>) {
        using Lanes = std::conditional_t<sizeof(To) == 2, Lanes16, Lanes32>;
        constexpr int64_t kBlock = 16 / sizeof(To);
        whole_rows = height / kBlock * kBlock, whole_cols = width / kBlock * kBlock;
        for (int64_t r = 0; r < whole_rows; r += kBlock) {
          for (int64_t c = 0; c < whole_cols; c += kBlock) {
            Lanes block[kBlock];
            for (int64_t i = 0; i < kBlock; ++i) block[i] = load_lanes<Lanes>(corner + (r + i) * step + c);
            turn_block(block);
            for (int64_t i = 0; i < kBlock; ++i) store_lanes(&tile[c + i][r], block[i]);
          }
        }
      }
      for (int64_t r = 0; r < height; ++r)
        for (int64_t c = r < whole_rows ? whole_cols : 0; c < width; ++c)
          convert(corner[r * step + c], tile[c][r]);
      for (int64_t c = 0; c < width; ++c) std::copy_n(tile[c], height, to + (c0 + c) * rows + r0);
    }
  }
}

// The same of all columns on all workers; ld 0: rows are dense.
template <class From, class To>
void turn(const EvalContext& ctx, const From* from, int64_t rows, int64_t cols, To* to, int64_t ld = 0) {
  ctx.parallel((cols + kTurnTile - 1) / kTurnTile, 0.4 * static_cast<double>(rows * kTurnTile),
               [&](int64_t begin, int64_t end) {
                 turn_columns(from, rows, ld > 0 ? ld : cols, begin * kTurnTile,
                              std::min(cols, end * kTurnTile), to);
               });
}

}  // namespace oar::train
