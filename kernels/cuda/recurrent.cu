// A block has a direction of one entry, whose state stays in its shared memory; a thread has every
// kThreads-th number of the state and all its gates. A step ends where the next one's numbers may be read.
#include "kernels/cuda/recurrent.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/math.h"

namespace oar::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int64_t kVectors = 3;  // of a state's width: two to take turns, and c or what a reset gate leaves

template <RecurrentCell kCell>
constexpr int kGatesOf = static_cast<int>(recurrent_gates(kCell));

OAR_DEVICE int64_t steps_of(const RecurrentArgs& a, int64_t b) {
  if (a.lengths == nullptr) return a.T;
  return a.wide_lengths ? static_cast<const int64_t*>(a.lengths)[b]
                        : static_cast<const int32_t*>(a.lengths)[b];
}

// sums[i] += what the state adds to gate kFirst + i of number k; r: [H][G][H].
template <int kGates, int kFirst, int kCount>
OAR_DEVICE void add_state(float (&sums)[kCount], const float* r, const float* state, int64_t H, int64_t k) {
  const float* from = r + kFirst * H + k;
#pragma unroll 4
  for (int64_t j = 0; j < H; ++j, from += kGates * H) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = __fmaf_rn(from[i * H], state[j], sums[i]);
  }
}

template <RecurrentCell kCell>
__global__ void __launch_bounds__(kMostThreads) recurrent_kernel(RecurrentArgs a) {
  wait_for_launches();
  constexpr int G = kGatesOf<kCell>;
  const int64_t H = a.H, d = blockIdx.x / a.B, b = blockIdx.x % a.B;
  const auto width = static_cast<int>(H);
  SharedMemory shared;
  float* h = shared.take<float>(width);
  float* next = shared.take<float>(width);
  float* more = shared.take<float>(width);  // an LSTM's c; of a GRU what its reset gate leaves of h
  const float* r = a.r + d * H * G * H;
  const int64_t state = d * a.state_d + b * a.state_b, told = steps_of(a, b);
  const bool fits = told >= 0 && told <= a.T;
  const int64_t length = fits ? told : 0;
  for (int64_t k = threadIdx.x; k < H; k += blockDim.x) {
    h[k] = a.h0 != nullptr ? a.h0[state + k] : 0.f;
    if (kCell == RecurrentCell::kLstm) more[k] = a.c0 != nullptr ? a.c0[state + k] : 0.f;
  }
  __syncthreads();
  float* const y = a.y + b * a.y_b + d * a.y_d;
  for (int64_t s = 0; s < length; ++s) {
    const int64_t t = a.reverse || d == 1 ? length - 1 - s : s;
    const float* x = a.gates + t * a.gates_t + b * a.gates_b + d * G * H;
    if constexpr (kCell == RecurrentCell::kGru) {
      if (!a.linear_before_reset) {
        for (int64_t k = threadIdx.x; k < H; k += blockDim.x) {
          float reset[1] = {};
          add_state<G, 1>(reset, r, h, H, k);
          more[k] = sigmoid(x[H + k] + reset[0]) * h[k];
        }
        __syncthreads();
      }
    }
    for (int64_t k = threadIdx.x; k < H; k += blockDim.x) {
      float value;
      if constexpr (kCell == RecurrentCell::kRnn) {
        float sum[1] = {};
        add_state<G, 0>(sum, r, h, H, k);
        value = tanhf(x[k] + sum[0]);
      } else if constexpr (kCell == RecurrentCell::kLstm) {
        float sums[4] = {};
        add_state<G, 0>(sums, r, h, H, k);
        const float c = sigmoid(x[2 * H + k] + sums[2]) * more[k] +
                        sigmoid(x[k] + sums[0]) * tanhf(x[3 * H + k] + sums[3]);
        more[k] = c;
        value = sigmoid(x[H + k] + sums[1]) * tanhf(c);
      } else {
        float update, product;
        if (a.linear_before_reset) {
          float sums[3] = {};
          add_state<G, 0>(sums, r, h, H, k);
          update = sums[0];
          const float bias = a.r_bias != nullptr ? a.r_bias[d * H + k] : 0.f;
          product = sigmoid(x[H + k] + sums[1]) * (sums[2] + bias);
        } else {
          float sum[1] = {}, candidate[1] = {};
          add_state<G, 0>(sum, r, h, H, k);
          add_state<G, 2>(candidate, r, more, H, k);
          update = sum[0];
          product = candidate[0];
        }
        const float z = sigmoid(x[k] + update);
        value = (1.f - z) * tanhf(x[2 * H + k] + product) + z * h[k];
      }
      next[k] = value;
      y[t * a.y_t + k] = value;
    }
    __syncthreads();
    float* const old = h;
    h = next;
    next = old;
  }
  for (int64_t t = length; t < a.T; ++t) {
    for (int64_t k = threadIdx.x; k < H; k += blockDim.x) y[t * a.y_t + k] = fits ? 0.f : NAN;
  }
  for (int64_t k = threadIdx.x; k < H; k += blockDim.x) {
    if (a.h != nullptr) a.h[state + k] = fits ? h[k] : NAN;
    if (kCell == RecurrentCell::kLstm && a.c != nullptr) a.c[state + k] = fits ? more[k] : NAN;
  }
}

}  // namespace

CudaStatus recurrent(const RecurrentArgs& a, Stream stream) {
  if (a.D <= 0 || a.B <= 0 || a.H <= 0) return {};
  if (a.H > kMostState || a.D * a.B > 0x7fffffff) return {cudaErrorInvalidValue};
  const auto kernel = a.cell == RecurrentCell::kRnn   ? recurrent_kernel<RecurrentCell::kRnn>
                      : a.cell == RecurrentCell::kGru ? recurrent_kernel<RecurrentCell::kGru>
                                                      : recurrent_kernel<RecurrentCell::kLstm>;
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(kMostThreads, (a.H + kWarp - 1) / kWarp * kWarp));
  const auto vector = static_cast<size_t>((a.H * int64_t{sizeof(float)} + 127) / 128 * 128);
  return {launch(kernel, static_cast<unsigned>(a.D * a.B), threads, kVectors * vector, stream, a)};
}

}  // namespace oar::cuda
