#include "tests/cuda/rounding_kernels.h"

#include "kernels/cuda/math.h"
#include "kernels/cuda/mma_rounded.h"
#include "tests/cuda/wgmma_kernels.h"

namespace oar_test {

using namespace oar::cuda;

namespace {

template <class Sum, class Multiply>
OAR_DEVICE void one_product(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                            Multiply multiply) {
  const int64_t block = blockIdx.x, l = lane();
  uint32_t left[4], right[2];
  Sum sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    left[i] = a[128 * block + 4 * l + i];
    memcpy(sum + i, c + 128 * block + 4 * l + i, sizeof(uint32_t));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) right[i] = b[64 * block + 2 * l + i];
  multiply(sum, left, right);
#pragma unroll
  for (int i = 0; i < 4; ++i) memcpy(d + 128 * block + 4 * l + i, sum + i, sizeof(uint32_t));
}

__global__ void multiplies_fragments(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                                     MmaOf type) {
  wait_for_launches();
  using Left = const uint32_t(&)[4];
  using Right = const uint32_t(&)[2];
  if (type == MmaOf::kBf16) {
    one_product<float>(d, a, b, c, [](float(&s)[4], Left x, Right y) { mma_bf16(s, x, y); });
  } else if (type == MmaOf::kF16) {
    one_product<float>(d, a, b, c, [](float(&s)[4], Left x, Right y) { mma_f16(s, x, y); });
  } else if (type == MmaOf::kTf32) {
    one_product<float>(d, a, b, c, [](float(&s)[4], Left x, Right y) { mma_tf32(s, x, y); });
  } else if (type == MmaOf::kE4m3) {
    one_product<float>(d, a, b, c, [](float(&s)[4], Left x, Right y) { mma_e4m3(s, x, y); });
  } else {
    one_product<int32_t>(d, a, b, c, [](int32_t(&s)[4], Left x, Right y) { mma_s8(s, x, y); });
  }
}

__global__ void loads_matrices(uint32_t* out, const uint4* rows, int valid) {
  wait_for_launches();
  auto* const s = SharedMemory().take<uint4>(kWarp);
  const int l = lane();
  copy_async16(s + l, rows + l, l < valid);
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();
  uint32_t plain[4], transposed[4];
  ldmatrix_x4<false>(plain, s + l);
  ldmatrix_x4<true>(transposed, s + l);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[8 * l + i] = plain[i];
    out[8 * l + 4 + i] = transposed[i];
  }
}

__global__ void rounds_operands(uint32_t* y, const float* x, int n) {
  wait_for_launches();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  y[2 * i] = pack_f16(x[i], -x[i]);
  y[2 * i + 1] = round_tf32(x[i]);
}

__global__ void rounds_functions(float* y, const float* x, int n) {
  wait_for_launches();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  y[3 * i] = expf(x[i]);
  y[3 * i + 1] = quotient(1.f, x[i]);
  y[3 * i + 2] = softmax_shrink(x[i], 0.f);
}

}  // namespace

int launch_fragments(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c, MmaOf type,
                     int cases) {
  return launch(multiplies_fragments, dim3(static_cast<unsigned>(cases)), dim3(kWarp), size_t{0}, nullptr, d,
                a, b, c, type);
}

int launch_matrices(uint32_t* out, const uint32_t* rows, int valid) {
  return launch(loads_matrices, dim3(1), dim3(kWarp), size_t{kWarp} * sizeof(uint4), nullptr, out,
                reinterpret_cast<const uint4*>(rows), valid);
}

int launch_groups(uint32_t* words, const uint32_t* a, const uint32_t* b, MmaOf type, int cases) {
  constexpr uint32_t kSwizzle = 128;
  const WgmmaOf of = type == MmaOf::kBf16   ? WgmmaOf::kBf16
                     : type == MmaOf::kE4m3 ? WgmmaOf::kE4m3
                                            : WgmmaOf::kS8;
  return launch(multiplies_group, dim3(static_cast<unsigned>(cases)), dim3(kWgmmaThreads),
                size_t{2 * 64 * kSwizzle}, nullptr, words, reinterpret_cast<const uint8_t*>(a),
                reinterpret_cast<const uint8_t*>(b), kSwizzle, of, WgmmaFault::kNone);
}

int launch_repeated(float* sums, int blocks, int groups, int rounds, bool bf16) {
  return launch(repeats_products, dim3(static_cast<unsigned>(blocks)),
                dim3(static_cast<unsigned>(groups * kWgmmaThreads)), kRepeatShared, nullptr, sums, rounds,
                bf16 ? WgmmaOf::kBf16 : WgmmaOf::kE4m3);
}
double repeated_operations(int blocks, int groups, int rounds, bool bf16) {
  const double of_product = 2.0 * 64 * 128 * (bf16 ? 16 : 32);
  return of_product * kProductsOfRound * rounds * groups * blocks;
}

int launch_operands(uint32_t* y, const float* x, int n) {
  return launch(rounds_operands, dim3(static_cast<unsigned>((n + 127) / 128)), dim3(128), size_t{0}, nullptr,
                y, x, n);
}

int launch_functions(float* y, const float* x, int n) {
  return launch(rounds_functions, dim3(static_cast<unsigned>((n + 127) / 128)), dim3(128), size_t{0}, nullptr,
                y, x, n);
}

}  // namespace oar_test
