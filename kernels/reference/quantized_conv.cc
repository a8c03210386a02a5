// 8-bit convolution as kernels/quantized_conv.h defines it, window by window.
#include <cmath>

#include "kernels/kernel_list.h"
#include "kernels/quantized_conv.h"

namespace oar {
namespace {

void quantized_reference_plan(const void* args, int, KernelPlan* out) {
  const WindowShape& w = static_cast<const QuantizedConvArgs*>(args)->window;
  *out = {1, {w.N * w.OH * w.OW}};
}

int32_t weight_at(const QuantizedConvArgs& a, int64_t Kp, int64_t m, int64_t k) {
  return a.w[m / kQuantizedPanel * kQuantizedPanel * Kp +
             (k / 4 * kQuantizedPanel + m % kQuantizedPanel) * 4 + k % 4];
}

void quantized_reference_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const QuantizedConvArgs*>(args);
  const WindowShape& w = a.window;
  const int64_t Kp = quantized_k(w.KH * w.KW * a.C);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t ow = p % w.OW, oh = p / w.OW % w.OH, n = p / w.OW / w.OH;
    for (int64_t m = 0; m < a.M; ++m) {
      uint32_t sum = a.bias ? static_cast<uint32_t>(a.bias[m]) : 0;
      for (int64_t i = 0; i < w.KH; ++i) {
        const int64_t y = oh * w.stride_h - w.pad_top + i * w.dilation_h;
        for (int64_t j = 0; j < w.KW; ++j) {
          const int64_t x = ow * w.stride_w - w.pad_left + j * w.dilation_w;
          if (y < 0 || y >= w.H || x < 0 || x >= w.W) continue;  // padding is x_zero
          const uint8_t* pixel = a.x + ((n * w.H + y) * w.W + x) * a.C;
          for (int64_t c = 0; c < a.C; ++c) {
            const int32_t v = a.x_signed ? static_cast<int8_t>(pixel[c]) : pixel[c];
            sum += static_cast<uint32_t>((v - a.x_zero) * weight_at(a, Kp, m, (i * w.KW + j) * a.C + c));
          }
        }
      }
      const int64_t at = p * a.M + m;
      const auto s = static_cast<int32_t>(sum);
      if (a.out_type == QuantizedOut::kI32) {
        static_cast<int32_t*>(a.out)[at] = s;
        continue;
      }
      const float scaled = static_cast<float>(s) * a.scale[m];
      const float t = std::fmin(std::fmax(scaled + (a.shift ? a.shift[m] : 0.f), a.low), a.high);
      if (a.out_type == QuantizedOut::kF32) static_cast<float*>(a.out)[at] = t;
      else
        static_cast<uint8_t*>(a.out)[at] =
            static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(t)) + a.y_zero);
    }
  }
}

}  // namespace

void append_quantized_conv_reference(KernelList& list) {
  list.push_back({KernelFamily::kQuantizedConv, Isa::kReference, "quantized_conv.reference", std::nullopt,
                  quantized_reference_plan, quantized_reference_run});
}

}  // namespace oar
