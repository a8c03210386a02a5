// How fast one core convolves: the layer shapes of common networks through the kernels of kernels/conv.h,
// beside the machine's f32 peak of the same minute. Products of rows also in bf16, beside that peak. Time is
// the thread's own CPU time, the best of several runs, so that a busy machine disturbs little.
//
//   conv_bench [FILTER]     only shapes whose name contains FILTER
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "engine/tune/measure/arithmetic_peak.h"
#include "kernels/conv.h"
#include "kernels/quantized_conv.h"

using namespace oar;

namespace {

struct Layer {
  const char* name;
  int64_t C, H, M, K, stride;  // -H rows of a product where it is negative
};
constexpr Layer kLayers[] = {
    {"resnet first 7x7/2", 3, 224, 64, 7, 2},        {"resnet 56 64-64 1x1", 64, 56, 64, 1, 1},
    {"resnet 56 64-64 3x3", 64, 56, 64, 3, 1},       {"resnet 56 64-256 1x1", 64, 56, 256, 1, 1},
    {"resnet 56 256-64 1x1", 256, 56, 64, 1, 1},     {"resnet 28 128-128 3x3", 128, 28, 128, 3, 1},
    {"resnet 28 128-512 1x1", 128, 28, 512, 1, 1},   {"resnet 28 512-128 1x1", 512, 28, 128, 1, 1},
    {"resnet 14 256-256 3x3", 256, 14, 256, 3, 1},   {"resnet 14 256-1024 1x1", 256, 14, 1024, 1, 1},
    {"resnet 14 1024-256 1x1", 1024, 14, 256, 1, 1}, {"resnet 7 512-512 3x3", 512, 7, 512, 3, 1},
    {"resnet 7 512-2048 1x1", 512, 7, 2048, 1, 1},   {"resnet 7 2048-512 1x1", 2048, 7, 512, 1, 1},
    {"resnet 56 128-128 3x3/2", 128, 56, 128, 3, 2}, {"mobilenet 112 16-96 1x1", 16, 112, 96, 1, 1},
    {"mobilenet 14 576-96 1x1", 576, 14, 96, 1, 1},  {"mobilenet 7 960-160 1x1", 960, 7, 160, 1, 1},
    {"rows 128 768-3072", 768, -128, 3072, 1, 1},    {"rows 128 3072-768", 3072, -128, 768, 1, 1},
    {"rows 1024 768-2048", 768, -1024, 2048, 1, 1},  {"rows 1024 2048-768", 2048, -1024, 768, 1, 1},
    {"rows 2048 1024-768", 1024, -2048, 768, 1, 1},
};

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::vector<float> values(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n) + 16);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 2654435761u % 1000) / 500 - 1;
  return v;
}

float* aligned(std::vector<float>& v) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(v.data()) + 63) / 64 * 64);
}

// Best seconds of one call.
template <class Args>
double time_of(const Kernel& kernel, const Args& a) {
  KernelPlan plan;
  kernel.plan(&a, 1, &plan);
  std::vector<float> shared(plan.shared_scratch / 4 + 32), own(plan.worker_scratch / 4 + 32);
  double best = 1e9;
  for (double begun = cpu_seconds(); cpu_seconds() - begun < 0.15;) {
    const double start = cpu_seconds();
    for (int phase = 0; phase < plan.phases; ++phase)
      kernel.run(&a, phase, 0, plan.chunks[phase], {aligned(own), aligned(shared)});
    best = std::min(best, cpu_seconds() - start);
  }
  return best;
}

// The same product of bf16: what the bits mean does not matter.
QuantizedConvArgs narrow_product(const WindowShape& window, const Layer& l, std::vector<float>& x,
                                 std::vector<float>& w, std::vector<float>& out) {
  QuantizedConvArgs a;
  a.x = reinterpret_cast<const uint8_t*>(aligned(x)), a.w = reinterpret_cast<const int8_t*>(aligned(w));
  a.out = aligned(out), a.window = window, a.C = l.C, a.M = l.M;
  a.out_type = QuantizedOut::kF32;
  a.low = -INFINITY, a.high = INFINITY;
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  ThreadPool one({.threads = 1});
  const int64_t width = panel_width(best_isa());
  std::printf("%-26s %9s %9s %6s %9s %9s\n", "layer", "ms", "GFLOP/s", "peak", "winograd", "speedup");
  double total = 0, total_best = 0;
  for (const Layer& l : kLayers) {
    if (argc > 1 && !std::strstr(l.name, argv[1])) continue;
    ConvArgs a;
    a.C = a.ldx = l.C, a.M = a.ldo = l.M, a.panel = width;
    WindowShape& w = a.window;
    w.N = 1, w.H = w.W = l.H, w.KH = w.KW = l.K, w.stride_h = w.stride_w = l.stride;
    w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = l.K / 2;
    if (l.H < 0) w.H = 1, w.W = -l.H;
    w.OH = (w.H + 2 * (l.K / 2) - l.K) / l.stride + 1, w.OW = (w.W + 2 * (l.K / 2) - l.K) / l.stride + 1;
    a.planar = l.C == 3;
    a.epilogue = Epilogue::kClamp, a.beta = INFINITY;
    auto x = values(w.H * w.W * l.C), filters = values(l.M * l.C * l.K * l.K), bias = values(l.M);
    std::vector<float> out(static_cast<size_t>(w.OH * w.OW * l.M) + 16);
    std::vector<float> packed(static_cast<size_t>(packed_filter_floats(l.M, 1, l.K * l.K, l.C, width)) + 16);
    pack_filters(aligned(packed), filters.data(), l.M, 1, l.K * l.K, l.C, l.C * l.K * l.K, l.K * l.K, 1,
                 width);
    a.x = aligned(x), a.out = aligned(out), a.bias = bias.data(), a.w = aligned(packed);
    const double flops = 2.0 * static_cast<double>(w.OH * w.OW * l.M * l.C * l.K * l.K);
    const double peak = arithmetic_peak(one, Arithmetic::kF32, best_isa());
    const double plain =
        time_of(*KernelRegistry::cpu().find({KernelFamily::kConv, Format::f32()}, best_isa()), a);
    std::printf("%-26s %9.3f %9.1f %5.0f%%", l.name, plain * 1e3, flops / plain / 1e9,
                100 * flops / plain / peak);
    double best = plain;
    const Kernel* winograd = KernelRegistry::cpu().find({KernelFamily::kWinograd, Format::f32()}, best_isa());
    if (l.K == 3 && l.stride == 1 && winograd) {
      std::vector<float> transformed(static_cast<size_t>(winograd_filter_floats(l.M, l.C, width)) + 16);
      pack_winograd(aligned(transformed), filters.data(), l.M, l.C, width);
      a.w = aligned(transformed);
      const double t = time_of(*winograd, a);
      std::printf(" %9.3f %9.2f", t * 1e3, plain / t);
      best = std::min(best, t);
    }
    const Kernel* narrow = KernelRegistry::cpu().find(bf16_conv_key(), best_isa());
    if (l.H < 0 && narrow) {
      const double t = time_of(*narrow, narrow_product(w, l, x, packed, out));
      std::printf(" %9.1f GFLOP/s in bf16, %.0f%%", flops / t / 1e9,
                  100 * flops / t / arithmetic_peak(one, Arithmetic::kBf16, best_isa()));
    }
    std::printf("\n");
    total += plain, total_best += best;
  }
  std::printf("all %.3f ms, with the better kernel each %.3f ms\n", total * 1e3, total_best * 1e3);
}
