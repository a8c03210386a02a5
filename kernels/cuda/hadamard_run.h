// One run of a Hadamard transform by a team of threads (hadamard.cu, heads.cu): butterflies of the power of
// two, of neighbours between lanes, others in place; then each dense core from one buffer to the other.
// Whatever the team, an element goes through the same operations in the same order.
#pragma once

#include <cmath>

#include "kernels/cuda/team.h"
#include "kernels/hadamard.h"

namespace oar::cuda {

// Run `run` of a row. `buffers`: 2 * a.block floats that nobody else has; out may be x. The team has not met
// behind the last stores. Another run may use the buffers next: a thread reads last what it writes first.
template <class Team>
OAR_DEVICE void transform_run(const HadamardArgs& a, int64_t row, int64_t run, float* buffers, float scale) {
  constexpr int kThreads = Team::kThreads;
  const int block = static_cast<int>(a.block), thread = Team::thread();
  float* v = buffers;
  float* other = v + block;
  const float* x = a.x + row * a.ldx + run * block;
  const float* signs = a.signs != nullptr ? a.signs + run * block : nullptr;
  float* out = a.out + row * a.ldo + run * block;

  // Butterflies of neighbours are exchanged within warps: in shared memory their lanes would meet banks
  // twice.
  const int power = static_cast<int>(a.power);
  for (int first = 0; first < block; first += kThreads) {
    const int i = first + thread;
    float y = 0.f;
    if (i < block) y = signs != nullptr && a.inverse == 0 ? __fmul_rn(x[i], signs[i]) : x[i];
    for (int h = 1; h < min(power, kWarp); h *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, y, h);
      y = (thread & h) == 0 ? y + other : other - y;
    }
    if (i < block) v[i] = y;
  }
  Team::meet();
  for (int h = kWarp; h < power; h *= 2) {
    for (int i = thread; i < block / 2; i += kThreads) {
      const int at = i / h * 2 * h + i % h;  // the i-th index without bit h
      const float p = v[at], q = v[at + h];
      v[at] = p + q;
      v[at + h] = p - q;
    }
    Team::meet();
  }
  int stride = static_cast<int>(a.power);
  for (int c = 0; c < a.num_cores; ++c) {
    const int order = static_cast<int>(a.core_order[c]);
    for (int i = thread; i < block; i += kThreads) {
      const int r = i / stride % order, first = i - r * stride;
      float sum = 0.f;
      for (int k = 0; k < order; ++k) sum = __fmaf_rn(a.cores[c][r * order + k], v[first + k * stride], sum);
      other[i] = sum;
    }
    Team::meet();
    float* const made = other;
    other = v;
    v = made;
    stride *= order;
  }
  for (int i = thread; i < block; i += kThreads) {
    const float y = v[i] * scale;
    out[i] = signs != nullptr && a.inverse != 0 ? y * signs[i] : y;
  }
}

// What makes the transform of `block` elements orthonormal.
inline float hadamard_scale(int64_t block) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(block)));
}

}  // namespace oar::cuda
