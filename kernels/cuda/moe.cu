// A warp per token chooses experts and weights. Then each pair is given its place, behind those of experts
// before its own and those of tokens before it: of few pairs by whichever block comes last, of many in a
// launch of their own, a block per expert.
#include "kernels/cuda/moe.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/last_block.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/route_rows.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// A warp per token. `counter`: null where a launch of its own sorts.
__global__ void __launch_bounds__(kThreads)
    choose_kernel(MoeRouteArgs a, int32_t* experts, uint32_t* counter) {
  wait_for_launches();
  const int E = static_cast<int>(a.experts);
  SharedMemory shared;
  float* scores = shared.take<float>(kWarps * E) + warp() * E;
  float* keys = shared.take<float>(kWarps * E) + warp() * E;
  const int64_t t = int64_t{blockIdx.x} * kWarps + warp();
  if (t < a.T) choose(a, t, scores, keys, experts);
  if (counter == nullptr) return;
  auto* const flag = shared.take<uint32_t>(1);
  if (is_last_block(counter, static_cast<int>(gridDim.x), flag))
    sort_few(a, experts, shared.take<int32_t>(static_cast<int>(kSortWords * a.T * a.top_k)));
}

__global__ void __launch_bounds__(kThreads) sort_kernel(MoeRouteArgs a, const int32_t* experts) {
  wait_for_launches();
  SharedMemory shared;
  int* before = shared.take<int>(kWarps);  // pairs of lower experts, by warp
  int* own = shared.take<int>(kWarps);     // own pairs of a turn, by warp
  const int e = static_cast<int>(blockIdx.x), pairs = static_cast<int>(a.T * a.top_k);
  const int thread = static_cast<int>(threadIdx.x);

  int lower = 0;
  for (int first = 0; first < pairs; first += kThreads) {
    const int p = first + thread;
    lower += __popc(__ballot_sync(kAllLanes, p < pairs && experts[p] < e));
  }
  if (lane() == 0) before[warp()] = lower;
  __syncthreads();
  int next = 0;
  for (int w = 0; w < kWarps; ++w) next += before[w];
  if (thread == 0) a.expert_start[e] = next;

  for (int first = 0; first < pairs; first += kThreads) {
    const int p = first + thread;
    const bool mine = p < pairs && experts[p] == e;
    const uint32_t votes = __ballot_sync(kAllLanes, mine);
    if (lane() == 0) own[warp()] = __popc(votes);
    __syncthreads();
    int place = next + __popc(votes & ((1u << lane()) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp()) place += own[w];
      next += own[w];
    }
    if (mine) {
      a.pair_token[place] = p / static_cast<int>(a.top_k);
      a.pair_slot[p] = place;
    }
    __syncthreads();
  }
  if (e + 1 == static_cast<int>(a.experts) && thread == 0) a.expert_start[e + 1] = next;
}

__global__ void __launch_bounds__(kThreads) combine_kernel(MoeCombineArgs a) {
  wait_for_launches();
  const int64_t t = blockIdx.x, i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= a.E) return;
  float sum = 0.f;
  for (int64_t p = t * a.top_k; p < (t + 1) * a.top_k; ++p) {
    sum = __fmaf_rn(a.pair_weight[p], a.y[a.pair_slot[p] * a.E + i], sum);
  }
  a.out[t * a.E + i] = sum;
}

// The same, and a norm behind it: a block a row, whose lanes read what they have stored themselves.
template <bool kAligned>
__global__ void __launch_bounds__(kNormThreads) combine_norm_kernel(MoeCombineArgs a, RmsNormArgs norm) {
  wait_for_launches();
  const int64_t t = blockIdx.x;
  for_norm_parts(1, [&](int, int64_t begin, int) {
    for (int64_t i = begin; i < a.E; i += kNormWidth * kNormThreads) {
      store_quad<kAligned>(a.out + t * a.E, i, a.E, combined<kAligned>(a, t, i));
    }
  });
  rms_norm_rows<kAligned>(norm, t, 1, SharedMemory().take<float>(kNormWarps));
}

}  // namespace

uint64_t moe_route_scratch(const MoeRouteArgs& a) {
  return static_cast<uint64_t>(a.T * a.top_k) * sizeof(int32_t);
}

CudaStatus moe_route(const MoeRouteArgs& a, void* scratch, Stream stream) {
  if (a.experts > kMostExperts || a.groups > kMostExpertGroups || a.T * a.top_k > INT32_MAX)
    return {cudaErrorInvalidValue};
  if (a.experts <= 0) return {};
  auto* experts = static_cast<int32_t*>(scratch);
  if (a.T > 0) {
    const auto piece = [](int64_t words) {
      return (static_cast<size_t>(words) * sizeof(int32_t) + 127) / 128 * 128;
    };
    constexpr int64_t kFewPairs = 1024;
    const bool few = a.T * a.top_k <= kFewPairs;
    uint32_t* counter = nullptr;
    if (few) {
      if (const int error = counters_of(stream, &counter); error != 0) return {error};
    }
    const int error = launch(
        choose_kernel, static_cast<unsigned>((a.T + kWarps - 1) / kWarps), kThreads,
        2 * piece(kWarps * a.experts) + (few ? kLastBlockShared + piece(kSortWords * a.T * a.top_k) : 0),
        stream, a, experts, counter);
    if (error != 0 || few) return {error};
  }
  return {launch(sort_kernel, static_cast<unsigned>(a.experts), kThreads, 2 * 128, stream, a,
                 static_cast<const int32_t*>(experts))};
}

CudaStatus moe_combine(const MoeCombineArgs& a, Stream stream) {
  if (a.T <= 0 || a.E <= 0) return {};
  const dim3 grid(static_cast<unsigned>(a.T), static_cast<unsigned>((a.E + kThreads - 1) / kThreads));
  return {launch(combine_kernel, grid, kThreads, 0, stream, a)};
}

CudaStatus moe_combine_norm(const MoeCombineArgs& a, const RmsNormArgs& norm, Stream stream) {
  constexpr size_t kOfSums = 128;
  static_assert(kNormWarps * sizeof(float) <= kOfSums);
  const bool aligned = norm_rows_aligned(norm) && norm_aligned(a.y) && norm_aligned(a.out);
  return {launch(aligned ? combine_norm_kernel<true> : combine_norm_kernel<false>, static_cast<unsigned>(a.T),
                 kNormThreads, kOfSums, stream, a, norm)};
}

}  // namespace oar::cuda
