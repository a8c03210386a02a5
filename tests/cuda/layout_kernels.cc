#include "tests/cuda/layout_kernels.h"

#include "kernels/cuda/mma_rounded.h"
#include "kernels/cuda/wgmma.h"

namespace oar_test {

using namespace oar::cuda;

namespace {

int thread() { return static_cast<int>(threadIdx.x); }

template <class Sum, class Multiply>
void multiply_registers(uint32_t* d, const uint32_t* a, const uint32_t* b, Multiply multiply) {
  uint32_t ra[4], rb[2];
  for (int i = 0; i < 4; ++i) ra[i] = a[4 * thread() + i];
  for (int i = 0; i < 2; ++i) rb[i] = b[2 * thread() + i];
  Sum c[4] = {};
  multiply(c, ra, rb);
  memcpy(d + 4 * thread(), c, sizeof c);
}

template <class Sum, int kColumns, class Multiply>
void multiply_image(uint32_t* d, const uint64_t* descriptors, int steps, Multiply multiply) {
  Sum sums[kColumns / 2] = {};
  wgmma_fence();
  for (int i = 0; i < steps; ++i) multiply(sums, descriptors[2 * i], descriptors[2 * i + 1]);
  wgmma_commit();
  wgmma_wait<0>();
  memcpy(d + kColumns / 2 * thread(), sums, sizeof sums);
}

template <int kColumns>
void multiply_image(LayoutOf type, uint32_t* d, const uint64_t* descriptors, int steps) {
  if (type == LayoutOf::kBf16) {
    multiply_image<float, kColumns>(d, descriptors, steps,
                                    [](auto& c, uint64_t a, uint64_t b) { wgmma_bf16(c, a, b); });
  } else if (type == LayoutOf::kE4m3) {
    multiply_image<float, kColumns>(d, descriptors, steps,
                                    [](auto& c, uint64_t a, uint64_t b) { wgmma_e4m3(c, a, b); });
  } else {
    multiply_image<int32_t, kColumns>(d, descriptors, steps,
                                      [](auto& c, uint64_t a, uint64_t b) { wgmma_s8(c, a, b); });
  }
}

}  // namespace

void mma_of_registers(LayoutOf type, uint32_t* d, const uint32_t* a, const uint32_t* b) {
  if (type == LayoutOf::kBf16) {
    multiply_registers<float>(d, a, b, [](auto& c, auto& ra, auto& rb) { mma_bf16(c, ra, rb); });
  } else if (type == LayoutOf::kF16) {
    multiply_registers<float>(d, a, b, [](auto& c, auto& ra, auto& rb) { mma_f16(c, ra, rb); });
  } else if (type == LayoutOf::kTf32) {
    multiply_registers<float>(d, a, b, [](auto& c, auto& ra, auto& rb) { mma_tf32(c, ra, rb); });
  } else if (type == LayoutOf::kE4m3) {
    multiply_registers<float>(d, a, b, [](auto& c, auto& ra, auto& rb) { mma_e4m3(c, ra, rb); });
  } else {
    multiply_registers<int32_t>(d, a, b, [](auto& c, auto& ra, auto& rb) { mma_s8(c, ra, rb); });
  }
}

void ldmatrix_of_rows(uint32_t* out, const uint32_t* rows, bool transpose) {
  auto* s = SharedMemory().take<uint32_t>(128);
  for (int i = 0; i < 4; ++i) s[4 * thread() + i] = rows[4 * thread() + i];
  __syncwarp();
  uint32_t r[4];
  if (transpose) ldmatrix_x4<true>(r, s + 4 * thread());
  else ldmatrix_x4<false>(r, s + 4 * thread());
  for (int i = 0; i < 4; ++i) out[4 * thread() + i] = r[i];
}

void wgmma_of_image(LayoutOf type, int columns, uint32_t* d, const uint32_t* image, int words,
                    const uint64_t* descriptors, int steps) {
  auto* s = SharedMemory().take<uint32_t>(words);
  for (int i = thread(); i < words; i += 4 * kWarp) s[i] = image[i];
  fence_proxy_async();
  __syncthreads();
  if (columns == 64) multiply_image<64>(type, d, descriptors, steps);
  else multiply_image<128>(type, d, descriptors, steps);
}

void descriptors_of(uint64_t* out, int at, uint32_t swizzle) {
  SharedMemory shared;
  shared.take<uint8_t>(at);
  const auto* box = shared.take<uint8_t>(1);
  for (uint32_t k = 0; k < swizzle; k += 32) out[k / 32] = wgmma_operand(box, k, swizzle);
}

}  // namespace oar_test
