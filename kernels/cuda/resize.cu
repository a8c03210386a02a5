// A thread has neighbouring results of one pixel. What an entry of the rows gives is computed anew for every
// column that takes it: cubic filters take four.
#include "kernels/cuda/resize.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/pack.h"

namespace oar::cuda {
namespace {

// The sum of weight times value(entry) over the taps of entry k, in their order. The first product stands by
// itself, so that one tap of weight 1 is a copy, of -0 too.
template <int kWidth, class Value>
OAR_DEVICE Pack<kWidth> weighted(const ResizeAxis& axis, int64_t k, Value&& value) {
  if (axis.first == nullptr) return value(k);
  Pack<kWidth> sum = {};
  const int32_t begin = axis.first[k], end = axis.first[k + 1];
  for (int32_t t = begin; t < end; ++t) {
    const Pack<kWidth> x = value(int64_t{axis.at[t]});
    const float weight = axis.weight[t];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      sum.v[e] = t == begin ? __fmul_rn(weight, x.v[e]) : __fmaf_rn(weight, x.v[e], sum.v[e]);
    }
  }
  return sum;
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) resize_kernel(ResizeArgs a) {
  wait_for_launches();
  const int64_t element = first_element<kWidth>();
  const int64_t pixel = element / a.inner, e = element % a.inner;
  const int64_t j = pixel % a.cols.out, i = pixel / a.cols.out % a.rows.out,
                o = pixel / a.cols.out / a.rows.out;
  if (o >= a.outer) return;
  const float* image = a.x + o * a.rows.in * a.cols.in * a.inner + e;
  store_pack<kWidth>(a.out + element, weighted<kWidth>(a.cols, j, [&](int64_t column) {
                       return weighted<kWidth>(a.rows, i, [&](int64_t row) {
                         return load_pack<kWidth>(image + (row * a.cols.in + column) * a.inner);
                       });
                     }));
}

}  // namespace

CudaStatus resize(const ResizeArgs& a, Stream stream) {
  const int64_t n = a.outer * a.rows.out * a.cols.out * a.inner;
  if (n <= 0) return {};
  const bool aligned = wide(a.x, a.inner) && wide(a.out, a.inner);
  return {launch(aligned ? resize_kernel<kWide> : resize_kernel<1>, blocks_of(n, aligned ? kWide : 1),
                 kPackThreads, 0, stream, a)};
}

}  // namespace oar::cuda
