// Convolution of 8-bit integers as kernels/integer_conv.h defines it, window by window.
#include "kernels/integer_conv.h"

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void integer_reference_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const IntegerConvArgs*>(args);
  *out = {1, {a.window.N * a.M}};
}

void integer_reference_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const IntegerConvArgs*>(args);
  const WindowShape& v = a.window;
  const int64_t Kp = quantized_k(v.KH * v.KW * a.C);
  const auto of_x = [&](uint8_t byte) { return a.x_signed ? static_cast<int8_t>(byte) : int32_t{byte}; };
  const int32_t x_zero = a.x_zero != nullptr ? of_x(*a.x_zero) : 0;
  for (int64_t nm = begin; nm < end; ++nm) {
    const int64_t n = nm / a.M, m = nm % a.M;
    const int32_t w_zero = a.w_zeros != nullptr ? a.w_zeros[m] : 0;
    const int8_t* panel = a.w + m / kQuantizedPanel * kQuantizedPanel * Kp + m % kQuantizedPanel * 4;
    for (int64_t o = 0; o < v.OH * v.OW; ++o) {
      uint32_t sum = 0;
      for (int64_t tap = 0; tap < v.KH * v.KW; ++tap) {
        const int64_t y = o / v.OW * v.stride_h - v.pad_top + tap / v.KW * v.dilation_h,
                      x = o % v.OW * v.stride_w - v.pad_left + tap % v.KW * v.dilation_w;
        if (y < 0 || y >= v.H || x < 0 || x >= v.W) continue;
        for (int64_t c = 0; c < a.C; ++c) {
          const int64_t k = tap * a.C + c;
          const int32_t w = panel[k / 4 * kQuantizedPanel * 4 + k % 4] - w_zero;
          sum += static_cast<uint32_t>((of_x(a.x[((n * a.C + c) * v.H + y) * v.W + x]) - x_zero) * w);
        }
      }
      a.out[nm * v.OH * v.OW + o] = static_cast<int32_t>(sum);
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {.family = KernelFamily::kQuantizedConv,
     .plan = integer_reference_plan,
     .run = integer_reference_run,
     .format = "u8",
     .input = "u8",
     .sum = Accumulation::kI32},
};

}  // namespace

constinit const KernelTable kernels_integer_conv_reference{kEntries};

}  // namespace oar
