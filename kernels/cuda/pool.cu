// A thread has neighbouring channels of one output pixel and walks its window. Sums run over taps in order.
#include "kernels/cuda/pool.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"
#include "kernels/cuda/pack.h"

namespace oar::cuda {
namespace {

// The output pixel of a pack, and its first channel.
struct Place {
  int64_t c, n, oh, ow;
};
OAR_DEVICE Place place_of(const WindowShape& w, int64_t C, int64_t element) {
  const int64_t p = element / C;
  return {element % C, p / (w.OH * w.OW), p / w.OW % w.OH, p % w.OW};
}

// f(tap, element of x) for the taps that lie inside the image.
template <class F>
OAR_DEVICE void each_tap(const WindowShape& w, int64_t C, const Place& at, F&& f) {
  for (int64_t i = 0; i < w.KH; ++i) {
    const int64_t y = at.oh * w.stride_h - w.pad_top + i * w.dilation_h;
    if (y < 0 || y >= w.H) continue;
    for (int64_t j = 0; j < w.KW; ++j) {
      const int64_t x = at.ow * w.stride_w - w.pad_left + j * w.dilation_w;
      if (x >= 0 && x < w.W) f(i * w.KW + j, ((at.n * w.H + y) * w.W + x) * C + at.c);
    }
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) depthwise_kernel(DepthwiseArgs a, int64_t n) {
  wait_for_launches();
  const int64_t element = first_element<kWidth>();
  if (element >= n) return;
  const Place at = place_of(a.window, a.C, element);
  Pack<kWidth> sum = {};
  each_tap(a.window, a.C, at, [&](int64_t tap, int64_t from) {
    const Pack<kWidth> x = load_pack<kWidth>(a.x + from), w = load_pack<kWidth>(a.w + tap * a.C + at.c);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum.v[e] = __fmaf_rn(x.v[e], w.v[e], sum.v[e]);
  });
  const auto add = [&](const float* from) {
    const Pack<kWidth> more = load_pack<kWidth>(from);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum.v[e] += more.v[e];
  };
  if (a.bias != nullptr) add(a.bias + at.c);
  if (a.residual != nullptr) add(a.residual + element);
#pragma unroll
  for (float& v : sum.v) v = epilogue(a.epilogue, v, a.alpha, a.beta);
  store_pack<kWidth>(a.out + element, sum);
}

// How many of `taps` are before `end`, the first at `start` and `step` apart; of a window that begins behind
// the end none or less, and its sum is 0.
OAR_DEVICE int64_t taps_before(int64_t start, int64_t step, int64_t taps, int64_t end) {
  const int64_t n = (end - start + step - 1) / step;
  return n < taps ? n : taps;
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) pool_kernel(PoolArgs a, int64_t n) {
  wait_for_launches();
  const WindowShape& w = a.window;
  const int64_t element = first_element<kWidth>();
  if (element >= n) return;
  const Place at = place_of(w, a.C, element);
  const bool average = a.op == PoolOp::kAverage;
  Pack<kWidth> result;
#pragma unroll
  for (float& v : result.v) v = average ? 0.f : -INFINITY;
  int64_t count = 0;
  each_tap(w, a.C, at, [&](int64_t, int64_t from) {
    const Pack<kWidth> x = load_pack<kWidth>(a.x + from);
    ++count;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (average) result.v[e] += x.v[e];
      else if (x.v[e] > result.v[e] || x.v[e] != x.v[e]) result.v[e] = x.v[e];  // NaN stays
    }
  });
  if (average) {
    if (a.count_pads != 0) {
      count = taps_before(at.oh * w.stride_h - w.pad_top, w.dilation_h, w.KH, w.H + w.pad_bottom) *
              taps_before(at.ow * w.stride_w - w.pad_left, w.dilation_w, w.KW, w.W + w.pad_right);
    }
#pragma unroll
    for (float& v : result.v) v = count > 0 ? quotient(v, static_cast<float>(count)) : 0.f;
  }
  store_pack<kWidth>(a.out + element, result);
}

int64_t elements(const WindowShape& w, int64_t C) { return w.N * w.OH * w.OW * C; }

}  // namespace

CudaStatus depthwise(const DepthwiseArgs& a, Stream stream) {
  const int64_t n = elements(a.window, a.C);
  if (n <= 0) return {};
  const bool aligned =
      wide(a.x, a.C) && wide(a.w, a.C) && wide(a.out, a.C) && wide(a.bias, a.C) && wide(a.residual, a.C);
  return {launch(aligned ? depthwise_kernel<kWide> : depthwise_kernel<1>, blocks_of(n, aligned ? kWide : 1),
                 kPackThreads, 0, stream, a, n)};
}

CudaStatus pool(const PoolArgs& a, Stream stream) {
  const int64_t n = elements(a.window, a.C);
  if (n <= 0) return {};
  const bool aligned = wide(a.x, a.C) && wide(a.out, a.C);
  return {launch(aligned ? pool_kernel<kWide> : pool_kernel<1>, blocks_of(n, aligned ? kWide : 1),
                 kPackThreads, 0, stream, a, n)};
}

}  // namespace oar::cuda
