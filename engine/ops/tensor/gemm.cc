#include "engine/ops/tensor/gemm.h"

#include "engine/ops/tensor/kernel_call.h"
#include "kernels/matmul.h"

namespace oar::tensor {

Status gemm_nt(const KernelContext& ctx, int64_t M, int64_t N, int64_t K, const float* A, int64_t lda,
               const void* B, Format format, float* C, int64_t ldc) {
  if (M == 0 || N == 0) return ok_status();
  if (K == 0) {
    for (int64_t m = 0; m < M; ++m) std::fill_n(C + m * ldc, N, 0.0f);
    return ok_status();
  }
  const Kernel* const kernel = ctx.backend().find_kernel({KernelFamily::kMatmul, format});
  OAR_CHECK(kernel != nullptr, "no matmul kernel of a float format");
  const MatmulSegment segment{B, nullptr, N, 0};
  MatmulArgs args;
  args.out = C;
  args.x = A;
  args.segments = &segment;
  args.num_segments = 1;
  args.T = M, args.K = K, args.ldx = lda, args.ldo = ldc;
  args.format = format;
  return run_kernel(ctx, *kernel, &args, static_cast<double>(M * N) * static_cast<double>(K) / 6);
}

void transpose_f32(const float* src, float* dst, int64_t rows, int64_t cols) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) dst[c * rows + r] = src[r * cols + c];
      }
    }
  }
}

Status packed_products(const KernelContext& ctx, const Products& p) {
  const auto count = static_cast<int64_t>(p.at_a.size());
  if (count == 0 || p.M == 0 || p.N == 0) return ok_status();
  if (p.K == 0) {
    if (!p.add) std::fill_n(p.out, count * p.M * p.N, 0.0f);
    return ok_status();
  }
  const int64_t width = ctx.backend().filter_panel(), floats = packed_filter_floats(p.N, 1, 1, p.K, width);
  const int64_t workers = ctx.backend().workers(), slices = std::min(count, workers * 4);
  const auto pack = [&](int64_t product, float* to, int64_t n0, int64_t n1) {  // columns [n0, n1)
    pack_filters(to + n0 * p.K, p.b + p.at_b[static_cast<size_t>(product)] + n0 * p.b_col, n1 - n0, 1, 1, p.K,
                 p.b_col, p.b_row, 0, width);
  };
  const auto ns = [&](double rows) {
    return 0.02 * rows * static_cast<double>(p.N) * static_cast<double>(p.K);
  };
  // Few products: one after the other, each over all workers.
  if (count < 2 * workers) {
    OAR_ASSIGN(Tensor packed, ctx.allocate({floats}, DType::kF32));
    float* to = mutable_elements<float>(packed);
    for (int64_t e = 0; e < count; ++e) {
      const auto at = static_cast<size_t>(e);
      if (e == 0 || p.at_b[at] != p.at_b[at - 1]) {
        ctx.parallel(
            (p.N + width - 1) / width, static_cast<double>(p.K * width),
            [&](int64_t begin, int64_t end) { pack(e, to, begin * width, std::min(p.N, end * width)); });
      }
      PackedProduct c;
      c.rows = p.M, c.K = p.K, c.N = p.N, c.ldx = p.lda;
      c.x = p.a + p.at_a[at], c.w = to, c.out = p.out + e * p.M * p.N;
      c.residual = p.add ? c.out : nullptr;
      OAR_RETURN_IF_ERROR(packed_product(ctx, c));
    }
    return ok_status();
  }
  OAR_ASSIGN(const Shape scratch_shape, checked_shape(std::vector<int64_t>{slices, floats}));
  OAR_ASSIGN(Tensor scratch, ctx.allocate(scratch_shape, DType::kF32));
  const Kernel& kernel = f32_kernel(ctx.backend(), KernelFamily::kConv);
  ctx.uses(kernel);
  const double each = ns(static_cast<double>(p.M)) + static_cast<double>(p.N * p.K);
  ctx.parallel(slices, each * static_cast<double>(count) / static_cast<double>(slices),
               [&](int64_t begin, int64_t end) {
                 OneThread thread;
                 for (int64_t slice = begin; slice < end; ++slice) {
                   float* to = mutable_elements<float>(scratch) + slice * floats;
                   int64_t packed = -1;
                   for (int64_t e = count * slice / slices; e < count * (slice + 1) / slices; ++e) {
                     const auto at = static_cast<size_t>(e);
                     if (p.at_b[at] != packed) pack(e, to, 0, p.N);
                     packed = p.at_b[at];
                     ConvArgs a;
                     a.window.N = a.window.H = a.window.OH = 1;
                     a.window.W = a.window.OW = p.M;
                     a.panel = width;
                     a.x = p.a + p.at_a[at], a.w = to, a.out = p.out + e * p.M * p.N;
                     a.residual = p.add ? a.out : nullptr;
                     a.C = p.K, a.M = a.ldo = p.N, a.ldx = p.lda;
                     thread.run(kernel, &a);
                   }
                 }
               });
  return ok_status();
}

}  // namespace oar::tensor
