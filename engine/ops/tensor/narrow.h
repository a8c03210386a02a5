// Layers of f32 models computed in fewer bits on request (passes/lower_precision.cc): constant weights as
// bf16, or as 8-bit integers with one scale per filter; operands rounded to the same, sums in f32 or i32,
// results f32. On a device bf16, f16 or TF32, by one call that rounds x itself.
#pragma once

#include "engine/ops/tensor/kernel_call.h"

namespace oar::tensor {

// A layer's weights for kernels/quantized_conv.h, on a device for kConv of rounded operands.
struct NarrowWeights {
  Tensor packed;
  Tensor sums, scale;  // [M] of i32 and f32; 8-bit only
  Precision precision = Precision::kF32;
};

// What the attribute "precision" of a node says; kF32 where it has none.
Precision precision_of(const Attrs& attrs);

// The layer's M filters of `taps` taps and C channels: which operand of f32 they are and its strides (see
// pack_quantized_filters()).
struct NarrowFilters {
  size_t operand;  // of the node
  int64_t M, taps, C, stride_m, stride_tap, stride_c;
};
// False where such layers are computed in f32.
bool has_narrow_kernels(const Backend& backend, Precision precision);
Result<NarrowWeights> prepare_narrow(PrepareContext& ctx, const NarrowFilters& f);

// Result 0 (N, OH, OW, M) = activation(conv of x (N, H, W, C) + bias + residual), all f32: two calls, the
// first of which rounds x; a device's is one. Which operands of the node x, bias and residual are; the last
// two may be left out, and the residual may lie where the result does. 8-bit integers have a scale for each
// of the N images.
struct NarrowLayer {
  WindowShape window;
  int64_t C = 0, M = 0;
  uint8_t x = 0, bias = 0, residual = 0;
  Activation activation;
};
std::unique_ptr<LoweredOp> narrow_calls(const Backend& backend, const NarrowWeights& w, const NarrowLayer& c);

}  // namespace oar::tensor
