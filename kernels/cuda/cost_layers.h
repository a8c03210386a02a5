// What layers of ordinary models, mixtures, recurrent states, attention without a cache and draws need at
// least: the part of cost.cu that language models' own kernels are not.
#pragma once

#include <cstdint>

#include "kernels/cuda/cost.h"

namespace oar::cuda {

// Adds up bytes and operations. False: the family is none of these. `rate`: of its products of tensor cores,
// times that of bf16. What lies in device memory is not looked at: lengths and segments are taken to be full,
// or as long as `context` says; taps of an interpolation to be two; rows to be drawn from to be greedy.
bool add_layer_cost(const DeviceKernel& kernel, const void* args, int64_t context, KernelCost& cost,
                    double& rate);

// What both files count in.
constexpr double kFloatBytes = sizeof(float);
constexpr double number(int64_t n) { return static_cast<double>(n); }
constexpr int64_t whole(int64_t n, int64_t each) { return (n + each - 1) / each; }
template <class Args>
const Args& as(const void* args) {
  return *static_cast<const Args*>(args);
}

}  // namespace oar::cuda
