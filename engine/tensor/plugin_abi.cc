// Proves at compile time that the argument structs of the public plug-in header are those of kernels/*.h,
// which Oar passes through as they are. Where an assertion fails: a struct may only grow at its end, and then
// the one in plugin.h (with OAR_PLUGIN_MINOR) grows as well; a changed meaning raises the struct's version.
#include <cstddef>
#include <type_traits>

#include "engine/tensor/plugin.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/causal_conv.h"
#include "kernels/conv.h"
#include "kernels/embedding.h"
#include "kernels/hadamard.h"
#include "kernels/integer_conv.h"
#include "kernels/kv_quant.h"
#include "kernels/lora.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/quantize.h"
#include "kernels/quantized_conv.h"
#include "kernels/recurrent.h"
#include "kernels/reduce.h"
#include "kernels/resize.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/state_scan.h"
#include "kernels/strided_copy.h"

namespace oar {
namespace {

#define OAR_SAME_SIZE(Ours, Theirs)                                                  \
  static_assert(sizeof(Ours) == sizeof(Theirs) && std::is_standard_layout_v<Ours> && \
                std::is_trivially_copyable_v<Ours>)
#define OAR_SAME_FIELD(Ours, Theirs, field)                         \
  static_assert(offsetof(Ours, field) == offsetof(Theirs, field) && \
                sizeof(Ours::field) == sizeof(Theirs::field))
// The fields of a struct, two at least.
#define OAR_F1(O, T, a) OAR_SAME_FIELD(O, T, a);
#define OAR_F2(O, T, a, ...) \
  OAR_SAME_FIELD(O, T, a);   \
  OAR_F1(O, T, __VA_ARGS__)
#define OAR_F3(O, T, a, ...) \
  OAR_SAME_FIELD(O, T, a);   \
  OAR_F2(O, T, __VA_ARGS__)
#define OAR_F4(O, T, a, ...) \
  OAR_SAME_FIELD(O, T, a);   \
  OAR_F3(O, T, __VA_ARGS__)
#define OAR_F5(O, T, a, ...) \
  OAR_SAME_FIELD(O, T, a);   \
  OAR_F4(O, T, __VA_ARGS__)
#define OAR_F6(O, T, a, ...) \
  OAR_SAME_FIELD(O, T, a);   \
  OAR_F5(O, T, __VA_ARGS__)
#define OAR_F7(O, T, a, ...) \
  OAR_SAME_FIELD(O, T, a);   \
  OAR_F6(O, T, __VA_ARGS__)
#define OAR_F8(O, T, a, ...) \
  OAR_SAME_FIELD(O, T, a);   \
  OAR_F7(O, T, __VA_ARGS__)

static_assert(static_cast<int>(ImageLayout::kChannelsFirst) == OAR_LAYOUT_CHANNELS_FIRST);
static_assert(static_cast<int>(RowClass::kPrompt) == OAR_ROWS_PROMPT &&
              static_cast<int>(RowClass::kGenerated) == OAR_ROWS_GENERATED);
static_assert(static_cast<int>(Accumulation::kI32) == OAR_SUM_I32);

OAR_SAME_SIZE(MatmulSegment, oar_matmul_segment);
OAR_F4(MatmulSegment, oar_matmul_segment, w, bias, n, out_col)

OAR_SAME_SIZE(MatmulArgs, oar_matmul_args);
OAR_F6(MatmulArgs, oar_matmul_args, size, version, out, x, residual, segments)
OAR_F5(MatmulArgs, oar_matmul_args, num_segments, T, K, ldx, ldo)

OAR_SAME_SIZE(GatedMatmulArgs, oar_gated_matmul_args);
OAR_F4(GatedMatmulArgs, oar_gated_matmul_args, matmul, gate, ld_gate, act)

OAR_SAME_SIZE(GroupedMatmulArgs, oar_grouped_matmul_args);
OAR_F6(GroupedMatmulArgs, oar_grouped_matmul_args, out, x, pair_token, expert_start, segments, experts)
OAR_F5(GroupedMatmulArgs, oar_grouped_matmul_args, segments_per_expert, P, K, ldx, ldo)

OAR_SAME_SIZE(MoeRouteArgs, oar_moe_route_args);
OAR_F5(MoeRouteArgs, oar_moe_route_args, pair_token, pair_slot, pair_weight, expert_start, logits)
OAR_F4(MoeRouteArgs, oar_moe_route_args, T, experts, top_k, normalize)
OAR_F7(MoeRouteArgs, oar_moe_route_args, score, bias, scale, groups, top_groups, expert_scale, group_best)

OAR_SAME_SIZE(MoeCombineArgs, oar_moe_combine_args);
OAR_F7(MoeCombineArgs, oar_moe_combine_args, out, y, pair_slot, pair_weight, T, top_k, E)

OAR_SAME_SIZE(RmsNormArgs, oar_rms_norm_args);
OAR_F5(RmsNormArgs, oar_rms_norm_args, out, sum_out, x, residual, w)
OAR_F6(RmsNormArgs, oar_rms_norm_args, rows, cols, ldx, ldo, eps, w_offset)

OAR_SAME_SIZE(LayerNormArgs, oar_layer_norm_args);
OAR_F6(LayerNormArgs, oar_layer_norm_args, out, sum_out, x, residual, w, b)
OAR_F5(LayerNormArgs, oar_layer_norm_args, rows, cols, ldx, ldo, eps)

OAR_SAME_SIZE(RopeArgs, oar_rope_args);
OAR_F6(RopeArgs, oar_rope_args, out, x, positions, inv_freq, norm_w, T)
OAR_F8(RopeArgs, oar_rope_args, heads, D, rot_dim, ldx, ldo, norm_eps, mscale, interleaved)
OAR_F2(RopeArgs, oar_rope_args, x_step, out_step)

OAR_SAME_SIZE(KvShape, oar_kv_shape);
OAR_F5(KvShape, oar_kv_shape, type, latent, page_tokens, kv_heads, head_dim)

OAR_SAME_SIZE(KvAppendArgs, oar_kv_append_args);
OAR_F8(KvAppendArgs, oar_kv_append_args, pool, k, v, slots, T, ldk, ldv, shape)

OAR_SAME_SIZE(PagedAttentionArgs, oar_paged_attention_args);
OAR_F8(PagedAttentionArgs, oar_paged_attention_args, out, q, pool, block_tables, seq_start, context_len, T, B)
OAR_F8(PagedAttentionArgs, oar_paged_attention_args, H, ldq, ldo, max_blocks, shape, scale, softcap, window)
OAR_F2(PagedAttentionArgs, oar_paged_attention_args, sink_logits, chunked)

OAR_SAME_SIZE(SegmentAttentionArgs, oar_segment_attention_args);
OAR_F8(SegmentAttentionArgs, oar_segment_attention_args, out, q, k, v, segments, T, H, K)
OAR_F7(SegmentAttentionArgs, oar_segment_attention_args, version, D, ldq, ldk, ldv, ldo, scale)
OAR_F2(SegmentAttentionArgs, oar_segment_attention_args, positions, window)

OAR_SAME_SIZE(AttentionSteps, oar_attention_steps);
OAR_F3(AttentionSteps, oar_attention_steps, batch, head, row)

OAR_SAME_SIZE(DenseAttentionArgs, oar_dense_attention_args);
OAR_F8(DenseAttentionArgs, oar_dense_attention_args, version, out, q, k, v, mask, lengths, out_steps)
OAR_F8(DenseAttentionArgs, oar_dense_attention_args, q_steps, k_steps, v_steps, mask_steps, mask_column,
       mask_columns, B, H)
OAR_F8(DenseAttentionArgs, oar_dense_attention_args, K, S, L, D, DV, offset, left, right)
OAR_F7(DenseAttentionArgs, oar_dense_attention_args, scale, softcap, causal, last, mask_bool, wide_lengths,
       blind_is_nan)

OAR_SAME_SIZE(QuantKvShape, oar_quant_kv_shape);
OAR_F6(QuantKvShape, oar_quant_kv_shape, keys, values, latent, page_tokens, kv_heads, head_dim)

OAR_SAME_SIZE(QuantKvAppendArgs, oar_quant_kv_append_args);
OAR_F8(QuantKvAppendArgs, oar_quant_kv_append_args, pool, open, sinks, k, v, slots, open_slots, sink_slots)
OAR_F4(QuantKvAppendArgs, oar_quant_kv_append_args, T, ldk, ldv, shape)

OAR_SAME_SIZE(QuantPagedAttentionArgs, oar_quant_paged_attention_args);
OAR_F8(QuantPagedAttentionArgs, oar_quant_paged_attention_args, common, open, sinks, open_tables, sink_tables,
       open_max_blocks, sink_max_blocks, shape)

OAR_SAME_SIZE(LoraArgs, oar_lora_args);
OAR_F8(LoraArgs, oar_lora_args, version, y, x, index, ranks, a, b, T)
OAR_F5(LoraArgs, oar_lora_args, K, n, R, ldx, ldy)

OAR_SAME_SIZE(SwiGluArgs, oar_swiglu_args);
OAR_F8(SwiGluArgs, oar_swiglu_args, out, gate, up, T, F, ldo, ldg, ldu)
OAR_F4(SwiGluArgs, oar_swiglu_args, act, alpha, limit, up_offset)

OAR_SAME_SIZE(UnaryArgs, oar_unary_args);
OAR_F4(UnaryArgs, oar_unary_args, out, x, n, op)
static_assert(static_cast<int>(UnaryOp::kFloor) == OAR_UNARY_FLOOR &&
              static_cast<int>(UnaryOp::kSilu) == OAR_UNARY_SILU);

OAR_SAME_SIZE(BinaryArgs, oar_binary_args);
OAR_F8(BinaryArgs, oar_binary_args, out, a, b, rows, cols, b_row, b_col, op)
static_assert(static_cast<int>(BinaryOp::kPow) == OAR_BINARY_POW);

OAR_SAME_SIZE(EmbeddingArgs, oar_embedding_args);
OAR_F7(EmbeddingArgs, oar_embedding_args, out, table, ids, T, E, V, scale)

OAR_SAME_SIZE(GatherRowsArgs, oar_gather_rows_args);
OAR_F5(GatherRowsArgs, oar_gather_rows_args, out, x, rows, R, E)

OAR_SAME_SIZE(HadamardArgs, oar_hadamard_args);
OAR_F7(HadamardArgs, oar_hadamard_args, out, x, signs, cores, core_order, num_cores, inverse)
OAR_F6(HadamardArgs, oar_hadamard_args, rows, n, ldx, ldo, block, power)

OAR_SAME_SIZE(WindowShape, oar_window);
OAR_F8(WindowShape, oar_window, N, H, W, OH, OW, KH, KW, stride_h)
OAR_F7(WindowShape, oar_window, stride_w, dilation_h, dilation_w, pad_top, pad_left, pad_bottom, pad_right)

OAR_SAME_SIZE(ConvArgs, oar_conv_args);
OAR_F8(ConvArgs, oar_conv_args, out, x, w, bias, residual, window, C, M)
OAR_F8(ConvArgs, oar_conv_args, groups, ldx, ldo, out_row, panel, planar, epilogue, alpha)
OAR_F2(ConvArgs, oar_conv_args, version, beta)

OAR_SAME_SIZE(DepthwiseArgs, oar_depthwise_args);
OAR_F8(DepthwiseArgs, oar_depthwise_args, out, x, w, bias, residual, window, C, epilogue)
OAR_F3(DepthwiseArgs, oar_depthwise_args, version, alpha, beta)

OAR_SAME_SIZE(PoolArgs, oar_pool_args);
OAR_F8(PoolArgs, oar_pool_args, version, out, x, window, C, op, count_pads, planar)

OAR_SAME_SIZE(SoftmaxArgs, oar_softmax_args);
OAR_F8(SoftmaxArgs, oar_softmax_args, version, out, x, mask, rows, n, mask_row, scale)

OAR_SAME_SIZE(QuantizedSum, oar_quantized_sum);
OAR_F8(QuantizedSum, oar_quantized_sum, other, other_signed, scale, other_scale, other_zero, sum_scale, low,
       high)
OAR_SAME_FIELD(QuantizedSum, oar_quantized_sum, zero);
OAR_SAME_SIZE(QuantizedConvArgs, oar_quantized_conv_args);
OAR_F8(QuantizedConvArgs, oar_quantized_conv_args, version, out, x, w, w_sums, bias, scale, shift)
OAR_F8(QuantizedConvArgs, oar_quantized_conv_args, window, C, M, x_zero, y_zero, x_signed, depthwise,
       out_type)
OAR_F8(QuantizedConvArgs, oar_quantized_conv_args, low, high, sum, x_scale, x_zeros, residual, epilogue,
       alpha)
OAR_F2(QuantizedConvArgs, oar_quantized_conv_args, beta, y_inverse)
static_assert(static_cast<int>(QuantizedOut::kI32) == OAR_OUT_I32);

OAR_SAME_SIZE(ResizeAxis, oar_resize_axis);
OAR_F5(ResizeAxis, oar_resize_axis, first, at, weight, in, out)
OAR_SAME_SIZE(ResizeArgs, oar_resize_args);
OAR_F8(ResizeArgs, oar_resize_args, size, version, out, x, rows, cols, outer, inner)

OAR_SAME_SIZE(ActivateArgs, oar_activate_args);
OAR_F7(ActivateArgs, oar_activate_args, version, out, x, n, epilogue, alpha, beta)
static_assert(static_cast<int>(Epilogue::kGeluTanh) == OAR_EPILOGUE_GELU_TANH &&
              static_cast<int>(Epilogue::kHardSwish) == OAR_EPILOGUE_HARD_SWISH &&
              static_cast<int>(PoolOp::kAverage) == OAR_POOL_AVERAGE);

OAR_SAME_SIZE(StateArgs, oar_state_args);
OAR_F8(StateArgs, oar_state_args, borders, rows, border_tables, row_tables, row_slots, seq_start, context_len,
       T)
OAR_F6(StateArgs, oar_state_args, B, max_borders, max_row_blocks, border_floats, row_floats, page_tokens)
OAR_SAME_SIZE(CausalConvArgs, oar_causal_conv_args);
OAR_F8(CausalConvArgs, oar_causal_conv_args, version, out, x, w, bias, T, C, L)
OAR_F3(CausalConvArgs, oar_causal_conv_args, ldx, ldo, state)
OAR_SAME_SIZE(StateScanArgs, oar_state_scan_args);
OAR_F8(StateScanArgs, oar_state_scan_args, version, out, q, k, v, g, beta, T)
OAR_F8(StateScanArgs, oar_state_scan_args, ldq, ldk, ldv, ldg, ldb, ldo, state, segments)
OAR_F2(StateScanArgs, oar_state_scan_args, shape, delta)

OAR_SAME_SIZE(StridedCopyArgs, oar_strided_copy_args);
OAR_F8(StridedCopyArgs, oar_strided_copy_args, version, out, x, dims, x_steps, out_steps, rank, element)

OAR_SAME_SIZE(IntegerConvArgs, oar_integer_conv_args);
OAR_F8(IntegerConvArgs, oar_integer_conv_args, version, out, x, w, w_sums, w_zeros, x_zero, window)
OAR_F3(IntegerConvArgs, oar_integer_conv_args, C, M, x_signed)
OAR_SAME_SIZE(QuantizeArgs, oar_quantize_args);
OAR_F8(QuantizeArgs, oar_quantize_args, version, values, codes, n, scale, zero, count, inner)
OAR_F4(QuantizeArgs, oar_quantize_args, to_values, is_signed, own_scale, own_zero)

OAR_SAME_SIZE(RecurrentArgs, oar_recurrent_args);
OAR_F8(RecurrentArgs, oar_recurrent_args, version, cell, reverse, linear_before_reset, T, B, D, H)
OAR_F8(RecurrentArgs, oar_recurrent_args, gates, gates_t, gates_b, r, r_bias, lengths, wide_lengths, h0)
OAR_F8(RecurrentArgs, oar_recurrent_args, c0, h, c, state_d, state_b, y, y_t, y_b)
OAR_SAME_FIELD(RecurrentArgs, oar_recurrent_args, y_d);
static_assert(static_cast<int>(RecurrentCell::kRnn) == OAR_CELL_RNN &&
              static_cast<int>(RecurrentCell::kGru) == OAR_CELL_GRU &&
              static_cast<int>(RecurrentCell::kLstm) == OAR_CELL_LSTM);

OAR_SAME_SIZE(ReduceArgs, oar_reduce_args);
OAR_F7(ReduceArgs, oar_reduce_args, version, out, x, outer, n, inner, op)
static_assert(static_cast<int>(ReduceOp::kSum) == OAR_REDUCE_SUM &&
              static_cast<int>(ReduceOp::kMean) == OAR_REDUCE_MEAN &&
              static_cast<int>(ReduceOp::kSumOfSquares) == OAR_REDUCE_SUM_OF_SQUARES &&
              static_cast<int>(ReduceOp::kMax) == OAR_REDUCE_MAX &&
              static_cast<int>(ReduceOp::kMin) == OAR_REDUCE_MIN);

OAR_SAME_SIZE(SampleRow, oar_sample_row);
OAR_F8(SampleRow, oar_sample_row, logit_row, token, logprobs, greedy, top_k, has_top_p, bias_at, bias_count)
OAR_F8(SampleRow, oar_sample_row, seen_at, seen_count, banned_at, banned_count, mask_at, repetition, presence,
       frequency)
OAR_F5(SampleRow, oar_sample_row, inverse, span, top_p, min_p, draw)
OAR_SAME_SIZE(SampleDraw, oar_sample_draw);
OAR_F5(SampleDraw, oar_sample_draw, token, status, logit, largest, sum)
OAR_SAME_SIZE(SampleTop, oar_sample_top);
OAR_F2(SampleTop, oar_sample_top, token, logit)
OAR_SAME_SIZE(SampleArgs, oar_sample_args);
OAR_F8(SampleArgs, oar_sample_args, version, draws, tops, logits, rows, words, num_rows, V)
OAR_F2(SampleArgs, oar_sample_args, V, max_logprobs)
OAR_SAME_SIZE(FeedTokensArgs, oar_feed_tokens_args);
OAR_F4(FeedTokensArgs, oar_feed_tokens_args, version, tokens, draws, T)
static_assert(static_cast<int>(SampleStatus::kNothingLeft) == OAR_SAMPLE_NOTHING_LEFT &&
              static_cast<int>(SampleStatus::kNoLogits) == OAR_SAMPLE_NO_LOGITS);

#define OAR_SAME_FAMILY(ours, theirs) static_assert(static_cast<int>(KernelFamily::ours) == theirs)
OAR_SAME_FAMILY(kMatmul, OAR_FAMILY_MATMUL);
OAR_SAME_FAMILY(kGroupedMatmul, OAR_FAMILY_GROUPED_MATMUL);
OAR_SAME_FAMILY(kMoeRoute, OAR_FAMILY_MOE_ROUTE);
OAR_SAME_FAMILY(kMoeCombine, OAR_FAMILY_MOE_COMBINE);
OAR_SAME_FAMILY(kRmsNorm, OAR_FAMILY_RMS_NORM);
OAR_SAME_FAMILY(kLayerNorm, OAR_FAMILY_LAYER_NORM);
OAR_SAME_FAMILY(kRope, OAR_FAMILY_ROPE);
OAR_SAME_FAMILY(kKvAppend, OAR_FAMILY_KV_APPEND);
OAR_SAME_FAMILY(kPagedAttention, OAR_FAMILY_PAGED_ATTENTION);
OAR_SAME_FAMILY(kSwiGlu, OAR_FAMILY_SWIGLU);
OAR_SAME_FAMILY(kUnary, OAR_FAMILY_UNARY);
OAR_SAME_FAMILY(kBinary, OAR_FAMILY_BINARY);
OAR_SAME_FAMILY(kEmbedding, OAR_FAMILY_EMBEDDING);
OAR_SAME_FAMILY(kGatherRows, OAR_FAMILY_GATHER_ROWS);
OAR_SAME_FAMILY(kHadamard, OAR_FAMILY_HADAMARD);
OAR_SAME_FAMILY(kConv, OAR_FAMILY_CONV);
OAR_SAME_FAMILY(kDepthwise, OAR_FAMILY_DEPTHWISE);
OAR_SAME_FAMILY(kPool, OAR_FAMILY_POOL);
OAR_SAME_FAMILY(kSoftmax, OAR_FAMILY_SOFTMAX);
OAR_SAME_FAMILY(kActivate, OAR_FAMILY_ACTIVATE);
OAR_SAME_FAMILY(kSegmentAttention, OAR_FAMILY_SEGMENT_ATTENTION);
OAR_SAME_FAMILY(kDenseAttention, OAR_FAMILY_DENSE_ATTENTION);
OAR_SAME_FAMILY(kQuantKvAppend, OAR_FAMILY_QUANT_KV_APPEND);
OAR_SAME_FAMILY(kQuantPagedAttention, OAR_FAMILY_QUANT_PAGED_ATTENTION);
OAR_SAME_FAMILY(kCausalConv, OAR_FAMILY_CAUSAL_CONV);
OAR_SAME_FAMILY(kStateScan, OAR_FAMILY_STATE_SCAN);
OAR_SAME_FAMILY(kStridedCopy, OAR_FAMILY_STRIDED_COPY);
OAR_SAME_FAMILY(kReduce, OAR_FAMILY_REDUCE);
OAR_SAME_FAMILY(kRecurrent, OAR_FAMILY_RECURRENT);
OAR_SAME_FAMILY(kQuantizedConv, OAR_FAMILY_QUANTIZED_CONV);
OAR_SAME_FAMILY(kNarrow, OAR_FAMILY_NARROW);
OAR_SAME_FAMILY(kSample, OAR_FAMILY_SAMPLE);
OAR_SAME_FAMILY(kFeedTokens, OAR_FAMILY_FEED_TOKENS);
OAR_SAME_FAMILY(kGatedMatmul, OAR_FAMILY_GATED_MATMUL);
OAR_SAME_FAMILY(kLora, OAR_FAMILY_LORA);

}  // namespace
}  // namespace oar
