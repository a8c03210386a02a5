// Definitions of ordinary ops, exact over the floats, in terms of primitives. They are emitted into a graph
// whose sizes are numbers, as they are when a run is bound to its inputs: a definition may ask for ranks and
// extents, never for values. Their evaluations, of any dtype, lie in engine/ops/tensor under the same themes.
#pragma once

#include <optional>

#include "engine/graph/builder.h"

namespace oar::definition {

#define OAR_DEFINITION(name) std::vector<Val> name(Builder& b, std::span<const Val> in, const Attrs& attrs)
// reduce.cc: {axes, keepdims, noop_with_empty_axes} as attributes
OAR_DEFINITION(reduce_l1);
OAR_DEFINITION(reduce_l2);
OAR_DEFINITION(reduce_log_sum);
OAR_DEFINITION(reduce_log_sum_exp);
OAR_DEFINITION(reduce_min);
OAR_DEFINITION(reduce_prod);
OAR_DEFINITION(reduce_sum_square);
OAR_DEFINITION(softmax);
OAR_DEFINITION(log_softmax);
OAR_DEFINITION(global_average_pool);
OAR_DEFINITION(global_lp_pool);
OAR_DEFINITION(global_max_pool);
// norm.cc
OAR_DEFINITION(batch_norm);
OAR_DEFINITION(group_norm);
OAR_DEFINITION(instance_norm);
OAR_DEFINITION(lp_normalization);
OAR_DEFINITION(lrn);
OAR_DEFINITION(mean_variance_normalization);
// attention.cc
OAR_DEFINITION(attention);
OAR_DEFINITION(causal_conv_with_state);
OAR_DEFINITION(head_attention);
OAR_DEFINITION(padding_mask);
// loss.cc
OAR_DEFINITION(nll_loss);
OAR_DEFINITION(softmax_cross_entropy_loss);
// einsum.cc
OAR_DEFINITION(einsum);
// moe.cc
OAR_DEFINITION(grouped_linear);
OAR_DEFINITION(moe_combine);
// pool.cc
OAR_DEFINITION(average_pool);
OAR_DEFINITION(lp_pool);
OAR_DEFINITION(max_pool);
// quantize.cc
OAR_DEFINITION(conv_integer);
OAR_DEFINITION(dequantize_linear);
OAR_DEFINITION(dynamic_quantize_linear);
OAR_DEFINITION(gather_nbits);
OAR_DEFINITION(matmul_integer);
OAR_DEFINITION(matmul_nbits);
OAR_DEFINITION(qlinear_conv);
OAR_DEFINITION(qlinear_matmul);
OAR_DEFINITION(quantize_linear);
OAR_DEFINITION(quantized_add);
OAR_DEFINITION(quantized_conv);
OAR_DEFINITION(quantized_linear);
// recurrent.cc
OAR_DEFINITION(gru);
OAR_DEFINITION(lstm);
OAR_DEFINITION(rnn);
#undef OAR_DEFINITION

using Ints = std::vector<int64_t>;

inline Val given(std::span<const Val> in, size_t k) { return k < in.size() ? in[k] : Val{}; }
// Extents as numbers; the builder keeps an error where one is a symbol.
Ints extents(Builder& b, Val v);
// v as f32, the type of values between ops, for ops that want operands of one type.
Val real(Builder& b, Val v);
Val reshaped(Builder& b, Val v, Ints shape);
Val turned(Builder& b, Val v, Ints perm);
Val cut(Builder& b, Val v, int64_t axis, int64_t begin, int64_t end);
Val joined(Builder& b, std::span<const Val> parts, int64_t axis);
// f32 of one value throughout.
Val filled(Builder& b, const Ints& shape, double value);
// Along `axes`, which stay with extent 1.
Val reduced(Builder& b, const char* op, Val v, Ints axes);
// Axes [from, rank).
Ints axes_from(int64_t from, int64_t rank);

}  // namespace oar::definition
