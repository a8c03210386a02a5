// Convolution of narrow operands as kernels/quantized_conv.h defines it, window by window.
#include <cmath>
#include <cstring>

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

// f(k, from) for every value of a window that lies in the operand: k counts taps and channels, `from` is the
// value's index in x.
template <class F>
void each_value(const QuantizedConvArgs& a, int64_t p, F&& f) {
  const WindowShape& w = a.window;
  const int64_t ow = p % w.OW, oh = p / w.OW % w.OH, n = p / w.OW / w.OH;
  for (int64_t i = 0; i < w.KH; ++i) {
    const int64_t y = oh * w.stride_h - w.pad_top + i * w.dilation_h;
    for (int64_t j = 0; j < w.KW; ++j) {
      const int64_t x = ow * w.stride_w - w.pad_left + j * w.dilation_w;
      if (y < 0 || y >= w.H || x < 0 || x >= w.W) continue;  // padding is the zero point
      for (int64_t c = 0; c < a.C; ++c) f((i * w.KW + j) * a.C + c, ((n * w.H + y) * w.W + x) * a.C + c);
    }
  }
}

// What follows the scaled sum where the result is f32.
bool bends(const QuantizedConvArgs& a) {
  return a.epilogue != Epilogue::kNone && a.epilogue != Epilogue::kClamp;
}
float bent(const QuantizedConvArgs& a, float t) {
  return static_cast<float>(epilogue_value(a.epilogue, static_cast<double>(t), static_cast<double>(a.alpha),
                                           static_cast<double>(a.beta)));
}
float finished(const QuantizedConvArgs& a, float t, int64_t at) {
  if (a.residual) t += a.residual[at];
  t = t < a.low ? a.low : t > a.high ? a.high : t;  // NaN stays
  return bends(a) ? bent(a, t) : t;
}

uint8_t byte_result(const QuantizedConvArgs& a, float t, int64_t at) {
  const auto rounded = [](float v, float low, float high) {
    return std::nearbyint(std::fmin(std::fmax(v, low), high));
  };
  const float r = rounded(bends(a) ? bent(a, t) * a.y_inverse : t, a.low, a.high);
  const QuantizedSum& s = a.sum;
  if (!s.other) return static_cast<uint8_t>(static_cast<int32_t>(r) + a.y_zero);
  const int32_t o = s.other_signed ? static_cast<int8_t>(s.other[at]) : s.other[at];
  const float mine = r * s.scale, others = (static_cast<float>(o) - s.other_zero) * s.other_scale;
  return static_cast<uint8_t>(static_cast<int32_t>(rounded((mine + others) / s.sum_scale, s.low, s.high)) +
                              s.zero);
}

void quantized_reference_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const QuantizedConvArgs*>(args);
  const WindowShape& w = a.window;
  const int64_t Kp = quantized_k(w.KH * w.KW * a.C);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t image = p / w.OW / w.OH;
    const int32_t zero = a.x_zeros ? a.x_zeros[image] : RunConvArgs::zero_of(a);
    const int32_t* const w_zeros = RunConvArgs::w_zeros_of(a);
    for (int64_t m = 0; m < a.M; ++m) {
      const int32_t w_zero = w_zeros ? w_zeros[m] : 0;
      uint32_t sum = a.bias ? static_cast<uint32_t>(a.bias[m]) : 0;
      each_value(a, p, [&](int64_t k, int64_t from) {
        // Every filter sees all channels, or its own.
        if (a.depthwise && k % a.C != m) return;
        const int32_t v = a.x_signed ? static_cast<int8_t>(a.x[from]) : a.x[from];
        sum += static_cast<uint32_t>((v - zero) * ((a.depthwise ? a.w[k] : weight_at(a, Kp, m, k)) - w_zero));
      });
      const int64_t at = p * a.M + m;
      const auto s = static_cast<int32_t>(sum);
      if (a.out_type == QuantizedOut::kI32) {
        static_cast<int32_t*>(a.out)[at] = s;
        continue;
      }
      const float scale = a.scale[m] * (a.x_scale ? a.x_scale[image] : RunConvArgs::scale_of(a));
      const float scaled = static_cast<float>(s) * scale, t = scaled + (a.shift ? a.shift[m] : 0.f);
      if (a.out_type == QuantizedOut::kF32) static_cast<float*>(a.out)[at] = finished(a, t, at);
      else static_cast<uint8_t*>(a.out)[at] = byte_result(a, t, at);
    }
  }
}

// Sums of bf16 in double.
void bf16_reference_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const QuantizedConvArgs*>(args);
  const int64_t Kp = quantized_k(a.window.KH * a.window.KW * a.C, 2);
  const auto value = [](const void* p) {
    bf16 v;
    std::memcpy(&v, p, sizeof(v));
    return static_cast<double>(to_f32(v));
  };
  for (int64_t p = begin; p < end; ++p) {
    for (int64_t m = 0; m < a.M; ++m) {
      double sum = 0;
      each_value(a, p, [&](int64_t k, int64_t from) {
        const int8_t* w = a.w + m / kQuantizedPanel * Bf16ProductArgs::panel_of(a, kQuantizedPanel * Kp) +
                          (k / 2 * kQuantizedPanel + m % kQuantizedPanel) * 4 + k % 2 * 2;
        const int64_t at = !Bf16ProductArgs::x_packed_of(a)
                               ? 2 * from
                               : p / kQuantizedPanel * kQuantizedPanel * Kp +
                                     (k / 2 * kQuantizedPanel + p % kQuantizedPanel) * 4 + k % 2 * 2;
        sum += value(a.x + at) * value(w);
      });
      const int64_t at = p * Bf16ProductArgs::ldo_of(a) + m;
      const float t = static_cast<float>(sum) + (a.shift ? a.shift[m] : 0.f);
      if (a.out_type == QuantizedOut::kBF16) static_cast<bf16*>(a.out)[at] = to_bf16(finished(a, t, at));
      else static_cast<float*>(a.out)[at] = finished(a, t, at);
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {.family = KernelFamily::kQuantizedConv,
     .plan = quantized_reference_plan,
     .run = quantized_reference_run,
     .format = "i8",
     .input = "u8",
     .sum = Accumulation::kI32},
    {.family = KernelFamily::kQuantizedConv,
     .plan = quantized_reference_plan,
     .run = bf16_reference_run,
     .format = "bf16",
     .input = "bf16"},
};

}  // namespace

constinit const KernelTable kernels_quantized_conv_reference{kEntries};

}  // namespace oar
