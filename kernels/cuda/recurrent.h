// The steps of recurrent layers on a CUDA device (RecurrentArgs of kernels/recurrent.h). Roofline: of one
// sequence the weights of its direction in every step, which L2 holds, and its gates once.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/recurrent.h"

namespace oar::cuda {

// A sum over the state runs in ascending order in f32, whatever other entries there are. States to
// kMostState numbers. An entry whose length is not within [0, T] becomes NaN.
inline constexpr int64_t kMostState = 19 << 10;
CudaStatus recurrent(const RecurrentArgs& args, Stream stream);

}  // namespace oar::cuda
