// Convolution and pooling, scalar, sums in double: the truth for the fast ones.
#include "kernels/conv.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {

double epilogue_value(Epilogue kind, double x, double alpha, double beta) {
  const auto hold = [](double v, double lo, double hi) { return v < lo ? lo : v > hi ? hi : v; };
  switch (kind) {
    case Epilogue::kNone: return x;
    case Epilogue::kClamp: return hold(x, alpha, beta);
    case Epilogue::kSigmoid: return 1 / (1 + std::exp(-x));
    case Epilogue::kSilu: return x / (1 + std::exp(-x));
    case Epilogue::kHardSigmoid: return hold(alpha * x + beta, 0, 1);
    case Epilogue::kHardSwish: return x * hold(alpha * x + beta, 0, 1);
    case Epilogue::kLeakyRelu: return x < 0 ? alpha * x : x;
    case Epilogue::kTanh: return std::tanh(x);
    case Epilogue::kGelu: return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case Epilogue::kGeluTanh: {
      const double pi = 3.14159265358979323846;
      return x / 2 * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    }
    case Epilogue::kElu: return x < 0 ? alpha * std::expm1(x) : beta * x;
    case Epilogue::kSoftplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
    case Epilogue::kSoftsign: return x / (1 + std::fabs(x));
    case Epilogue::kMish: return x * std::tanh(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
  }
  return x;
}

namespace {

// f(tap, y, x) for the taps of output (oh, ow) that lie inside the operand.
template <class F>
void each_tap(const WindowShape& w, int64_t oh, int64_t ow, F&& f) {
  for (int64_t i = 0; i < w.KH; ++i) {
    const int64_t y = oh * w.stride_h - w.pad_top + i * w.dilation_h;
    if (y < 0 || y >= w.H) continue;
    for (int64_t j = 0; j < w.KW; ++j) {
      const int64_t x = ow * w.stride_w - w.pad_left + j * w.dilation_w;
      if (x >= 0 && x < w.W) f(i * w.KW + j, y, x);
    }
  }
}

void conv_plan(const void* args, int, KernelPlan* out) {
  const WindowShape& w = static_cast<const ConvArgs*>(args)->window;
  *out = {1, {w.N * w.OH}};
}

void conv_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ConvArgs*>(args);
  const WindowShape& w = a.window;
  const int64_t per = a.C / a.groups, filters = a.M / a.groups, taps = w.KH * w.KW;
  const bool shared = groups_share_panels(a.M, a.groups, per, a.panel);
  const int64_t panels = shared ? 0 : (filters + a.panel - 1) / a.panel,
                out_row = a.out_row != 0 ? a.out_row : w.OW * a.ldo;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t n = row / w.OH, oh = row % w.OH;
    for (int64_t ow = 0; ow < w.OW; ++ow) {
      for (int64_t m = 0; m < a.M; ++m) {
        const int64_t g = m / filters, f = shared ? m : m % filters;
        const float* filter = a.w + (g * panels + f / a.panel) * taps * per * a.panel + f % a.panel;
        double sum = 0;
        each_tap(w, oh, ow, [&](int64_t tap, int64_t y, int64_t x) {
          for (int64_t c = 0; c < per; ++c) {
            const int64_t ch = g * per + c;
            const float v = a.planar ? a.x[((n * a.C + ch) * w.H + y) * w.W + x]
                                     : a.x[((n * w.H + y) * w.W + x) * a.ldx + ch];
            sum += static_cast<double>(v) * static_cast<double>(filter[(tap * per + c) * a.panel]);
          }
        });
        const int64_t at = row * out_row + ow * a.ldo + m;
        if (a.bias) sum += static_cast<double>(a.bias[m]);
        if (a.residual) sum += static_cast<double>(a.residual[at]);
        a.out[at] = static_cast<float>(
            epilogue_value(a.epilogue, sum, static_cast<double>(a.alpha), static_cast<double>(a.beta)));
      }
    }
  }
}

void depthwise_plan(const void* args, int, KernelPlan* out) {
  const WindowShape& w = static_cast<const DepthwiseArgs*>(args)->window;
  *out = {1, {w.N * w.OH}};
}

void depthwise_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const DepthwiseArgs*>(args);
  const WindowShape& w = a.window;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t ow = 0; ow < w.OW; ++ow) {
      for (int64_t c = 0; c < a.C; ++c) {
        double sum = 0;
        each_tap(w, row % w.OH, ow, [&](int64_t tap, int64_t y, int64_t x) {
          sum += static_cast<double>(a.x[((row / w.OH * w.H + y) * w.W + x) * a.C + c]) *
                 static_cast<double>(a.w[tap * a.C + c]);
        });
        const int64_t at = (row * w.OW + ow) * a.C + c;
        if (a.bias) sum += static_cast<double>(a.bias[c]);
        if (a.residual) sum += static_cast<double>(a.residual[at]);
        a.out[at] = static_cast<float>(
            epilogue_value(a.epilogue, sum, static_cast<double>(a.alpha), static_cast<double>(a.beta)));
      }
    }
  }
}

void pool_plan(const void* args, int, KernelPlan* out) {
  const WindowShape& w = static_cast<const PoolArgs*>(args)->window;
  *out = {1, {w.N * w.OH}};
}

void pool_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const PoolArgs*>(args);
  const WindowShape& w = a.window;
  // Where a pixel of a channel lies in an image of `pixels`.
  const auto at = [&](int64_t n, int64_t c, int64_t pixel, int64_t pixels) {
    return a.planar != 0 ? (n * a.C + c) * pixels + pixel : (n * pixels + pixel) * a.C + c;
  };
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t ow = 0; ow < w.OW; ++ow) {
      int64_t padded = 0;  // taps within the operand and its pads
      for (int64_t i = 0; i < w.KH; ++i) {
        for (int64_t j = 0; j < w.KW; ++j) {
          const int64_t y = row % w.OH * w.stride_h - w.pad_top + i * w.dilation_h;
          const int64_t x = ow * w.stride_w - w.pad_left + j * w.dilation_w;
          padded += y < w.H + w.pad_bottom && x < w.W + w.pad_right;
        }
      }
      for (int64_t c = 0; c < a.C; ++c) {
        double sum = 0, best = -INFINITY;
        int64_t count = 0;
        each_tap(w, row % w.OH, ow, [&](int64_t, int64_t y, int64_t x) {
          const auto v = static_cast<double>(a.x[at(row / w.OH, c, y * w.W + x, w.H * w.W)]);
          sum += v;
          if (v > best || v != v) best = v;
          ++count;
        });
        if (a.count_pads) count = padded;
        if (a.op == PoolOp::kAverage) best = count > 0 ? sum / static_cast<double>(count) : 0;
        a.out[at(row / w.OH, c, row % w.OH * w.OW + ow, w.OH * w.OW)] = static_cast<float>(best);
      }
    }
  }
}

void softmax_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const SoftmaxArgs*>(args)->rows}};
}

void softmax_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SoftmaxArgs*>(args);
  for (int64_t r = begin; r < end; ++r) {
    const auto score = [&](int64_t j) {
      const double mask = a.mask ? static_cast<double>(a.mask[r * a.mask_row + j]) : 0;
      return static_cast<double>(a.x[r * a.n + j]) * static_cast<double>(a.scale) + mask;
    };
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < a.n; ++j) top = std::max(top, score(j));
    for (int64_t j = 0; j < a.n; ++j) sum += std::exp(score(j) - top);
    for (int64_t j = 0; j < a.n; ++j) a.out[r * a.n + j] = static_cast<float>(std::exp(score(j) - top) / sum);
  }
}

void activate_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const ActivateArgs*>(args)->n}};
}

void activate_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ActivateArgs*>(args);
  for (int64_t i = begin; i < end; ++i) {
    a.out[i] = static_cast<float>(epilogue_value(a.epilogue, static_cast<double>(a.x[i]),
                                                 static_cast<double>(a.alpha), static_cast<double>(a.beta)));
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kConv, Isa::kReference, conv_plan, conv_run},
    {KernelFamily::kDepthwise, Isa::kReference, depthwise_plan, depthwise_run},
    {KernelFamily::kSoftmax, Isa::kReference, softmax_plan, softmax_run},
    {KernelFamily::kActivate, Isa::kReference, activate_plan, activate_run},
    {KernelFamily::kPool, Isa::kReference, pool_plan, pool_run},
};

}  // namespace

constinit const KernelTable kernels_conv_reference{kEntries};

}  // namespace oar
