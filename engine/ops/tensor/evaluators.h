// Evaluations of ops that language models have too, under the same names: their OpDefs lie with their shape
// rules and kernels, their meaning for any dtype here.
#pragma once

#include "engine/graph/evaluate.h"
#include "kernels/activation.h"
#include "kernels/conv.h"

namespace oar::tensor {

#define OAR_EVALUATOR(name) Status name(EvalContext& ctx)
OAR_EVALUATOR(neg);
OAR_EVALUATOR(abs);
OAR_EVALUATOR(exp);
OAR_EVALUATOR(log);
OAR_EVALUATOR(sqrt);
OAR_EVALUATOR(rsqrt);
OAR_EVALUATOR(square);
OAR_EVALUATOR(reciprocal);
OAR_EVALUATOR(tanh);
OAR_EVALUATOR(sigmoid);
OAR_EVALUATOR(erf);
OAR_EVALUATOR(sin);
OAR_EVALUATOR(cos);
OAR_EVALUATOR(floor);
OAR_EVALUATOR(add);
OAR_EVALUATOR(sub);
OAR_EVALUATOR(mul);
OAR_EVALUATOR(div);
OAR_EVALUATOR(max);
OAR_EVALUATOR(min);
OAR_EVALUATOR(pow);
OAR_EVALUATOR(relu);
OAR_EVALUATOR(silu);
OAR_EVALUATOR(gelu);
OAR_EVALUATOR(celu);
OAR_EVALUATOR(elu);
OAR_EVALUATOR(hard_sigmoid);
OAR_EVALUATOR(hard_swish);
OAR_EVALUATOR(leaky_relu);
OAR_EVALUATOR(mish);
OAR_EVALUATOR(selu);
OAR_EVALUATOR(softplus);
OAR_EVALUATOR(softsign);
OAR_EVALUATOR(softmax);
OAR_EVALUATOR(reduce_sum);
OAR_EVALUATOR(reduce_mean);
OAR_EVALUATOR(reduce_max);
OAR_EVALUATOR(matmul);
OAR_EVALUATOR(transpose);
OAR_EVALUATOR(concat);
OAR_EVALUATOR(cast);
OAR_EVALUATOR(reshape);
OAR_EVALUATOR(slice);
OAR_EVALUATOR(gather);
#undef OAR_EVALUATOR

// Which elements a slice takes of each axis: start, start + step, ...
struct SliceBox {
  std::vector<int64_t> start, step, count;
  std::vector<bool> cut;  // axes that the slice names; the others are whole
};
// Axes default to the first ones, steps to 1; bounds are clamped to the axis, negative ones count from its
// end. INVALID_ARGUMENT where the lists do not fit.
Result<SliceBox> slice_box(std::span<const int64_t> dims, std::span<const int64_t> starts,
                           std::span<const int64_t> ends, std::vector<int64_t> axes,
                           std::vector<int64_t> steps);

// What a resize multiplies an axis with: f64 (out, in).
struct AxisMatrix {
  size_t axis;
  Tensor matrix;
};
// Of a node with these operands, whose sizes must be constants, and an x of this shape; the first axis first.
Result<std::vector<AxisMatrix>> resize_matrices(const Graph& g, std::span<const ValueId> in,
                                                const Attrs& attrs, const Shape& x);

Result<std::shared_ptr<const void>> prepare_matmul(PrepareContext& ctx);
// by_kernels() of matmul, and of cast.
Result<bool> products(KernelContext& ctx);
Result<bool> cast_by_kernel(KernelContext& ctx);
// Of cast on a device: integers of 8 and 32 bits to f32 (quantize.cc).
Lowered lower_cast(LowerContext& ctx);

// by_kernels() of f16 and bf16, by way of the kernels that f32 is lowered to.
Result<bool> unary_by_kernel(KernelContext& ctx, UnaryOp op);
template <UnaryOp kOp>
Result<bool> unary_by_kernel(KernelContext& ctx) {
  return unary_by_kernel(ctx, kOp);
}
Result<bool> silu_by_kernels(KernelContext& ctx);  // with a factor also of f32
Result<bool> activate_by_kernel(KernelContext& ctx, Epilogue kind, double alpha, double beta);
Lowered lower_activate(LowerContext& ctx, Epilogue kind, double alpha, double beta);
// And of f32 under leading axes that lower() does not take.
Result<bool> binary_by_kernel(KernelContext& ctx, BinaryOp op);
template <BinaryOp kOp>
Result<bool> binary_by_kernel(KernelContext& ctx) {
  return binary_by_kernel(ctx, kOp);
}

}  // namespace oar::tensor
