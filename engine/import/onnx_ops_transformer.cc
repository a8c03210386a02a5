// Ops of com.microsoft that transformers are made of: by onnxruntime's optimizer (Attention,
// MultiHeadAttention, EmbedLayerNormalization) and by onnxruntime-genai (GroupQueryAttention, MatMulNBits,
// GatherBlockQuantized). All attention is head_attention (engine/ops/tensor/head_attention.cc). What is not
// honoured is refused by name. https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/import/onnx_ops.h"

namespace oar::onnx {
namespace {

// Operands that change what is computed, and that we do not know.
bool absent(OnnxNode& n, size_t i, const char* name, const char* remedy) {
  if (!n.in(i)) return true;
  n.fail(unimplemented(cat("operand '", name, "' is not supported: ", remedy)));
  return false;
}
bool refused(OnnxNode& n, bool wrong, const char* name, const std::string& why) {
  if (wrong) n.fail(unimplemented(cat("attribute '", name, "' ", why)));
  return wrong;
}
// A number of heads; 0, and an error, where there cannot be so many.
int64_t heads_of(OnnxNode& n, const char* name) {
  const int64_t heads = n.get_int(name, 0);
  if (heads >= 1 && heads <= 1 << 20) return heads;
  n.fail(invalid_argument(cat("attribute '", name, "' is ", heads)));
  return 0;
}
// The extent of an axis, (1).
Val extent_of(OnnxNode& n, Val x, int64_t axis) {
  return n.w().op("shape_of", {x}, {{"start", axis}, {"end", axis + 1}});
}
Val reshaped(OnnxNode& n, Val x, std::vector<int64_t> dims) {
  return n.w().op("reshape", {x, n.w().ints(dims)});
}
Val as_i64(OnnxNode& n, Val x) { return n.w().op("cast", {x}, {{"to", std::string("i64")}}); }

// Parts of an axis, by number or by size, each as (B, S, heads D).
std::vector<Val> parts_of(OnnxNode& n, Val x, int64_t axis, size_t count,
                          const std::vector<int64_t>& sizes = {}) {
  std::vector<Val> parts =
      n.w().ops("split", {x, sizes.empty() ? Val{} : n.w().ints(sizes)}, count, {{"axis", axis}});
  for (Val& p : parts) p = reshaped(n, p, {0, 0, -1});
  return parts;
}
// Results 0 to 2 of head_attention; the presents where the node asks for them.
std::vector<Val> attention_of(OnnxNode& n, std::vector<Val> operands, Attrs attrs, bool presents) {
  return n.w().ops("head_attention", std::move(operands), presents ? 3 : 1, std::move(attrs));
}
bool asks(OnnxNode& n, size_t output) { return output < n.num_outputs() && !n.msg().outputs[output].empty(); }
Val summed(OnnxNode& n, Val a, Val b) { return a && b ? n.w().op("add", {a, b}) : a ? a : b; }

// What is needed of a constant's values at import.
const Tensor* constant(OnnxNode& n, size_t i, const char* name) {
  const Tensor* t = n.w().constant_of(n.in(i));
  if (t == nullptr)
    n.fail(unimplemented(cat("operand '", name, "' is computed in the run; only a constant is supported")));
  return t;
}

}  // namespace

// GroupQueryAttention(query, key?, value?, past_key?, past_value?, seqlens_k, total_sequence_length,
// cos_cache?, sin_cache?, position_ids?, attention_bias?, ...): without a key the query holds all three side
// by side.
void group_query_attention(OnnxNode& n) {
  const int64_t heads = heads_of(n, "num_heads"), kv_heads = heads_of(n, "kv_num_heads");
  if (heads == 0 || kv_heads == 0) return;
  if (heads % kv_heads != 0)
    return n.fail(invalid_argument(cat("num_heads ", heads, " is no multiple of kv_num_heads ", kv_heads)));
  const int64_t window = n.get_int("local_window_size", -1), causal = n.get_int("causal", 1);
  const bool rotary = n.get_int("do_rotary", 0) != 0;
  n.get_float("qk_norm_epsilon", 0);  // of norms that are refused below
  for (const char* name : {"k_quant_type", "v_quant_type"}) {
    const std::string kind = n.get_string(name, "NONE");
    if (refused(n, kind != "NONE", name, cat("is '", kind, "'; export with a cache of floats"))) return;
  }
  if (refused(n, n.get_int("smooth_softmax", 0) > 0, "smooth_softmax", "is 1; only 0 is supported") ||
      refused(n, window > 0 && causal == 0, "local_window_size", "needs causal 1") ||
      !only(n, "qk_output", 0) || !only(n, "kv_cache_bit_width", 0) || !only(n, "sliding_window_cache", 0) ||
      !absent(n, 11, "head_sink", "export without attention sinks") ||
      !absent(n, 12, "k_scale", "export with a cache of floats") ||
      !absent(n, 13, "v_scale", "export with a cache of floats") ||
      !absent(n, 14, "q_norm_weight", "export with norms of their own before this op") ||
      !absent(n, 15, "k_norm_weight", "export with norms of their own before this op") ||
      !absent(n, 16, "query_seqlens", "give chunks without padding"))
    return;
  Val q = n.in(0), k = n.in(1), v = n.in(2);
  if (!k != !v) return n.fail(invalid_argument("operands 'key' and 'value' go together; one is missing"));
  if (!k) {
    const std::vector<Val> parts =
        parts_of(n, reshaped(n, q, {0, 0, heads + 2 * kv_heads, -1}), 2, 3, {heads, kv_heads, kv_heads});
    q = parts[0], k = parts[1], v = parts[2];
  }
  const Val lengths = n.w().op("add", {as_i64(n, n.in(5)), n.w().int_scalar(1)});
  if (rotary) {
    if (!n.in(7) || !n.in(8))
      return n.fail(invalid_argument("attribute 'do_rotary' needs operands 'cos_cache' and 'sin_cache'"));
    Val positions = n.in(9);
    if (!positions) {
      // Behind what is there; a first prompt, whose length is the total, begins at 0.
      const Val rows = extent_of(n, q, 1);
      const Val first = n.w().op("equal", {as_i64(n, n.in(6)), rows});
      const Val begin = n.w().op("where", {first, n.w().int_scalar(0), n.w().op("sub", {lengths, rows})});
      const Val steps =
          n.w().op("range", {n.w().int_scalar(0), n.w().op("squeeze", {rows}), n.w().int_scalar(1)});
      positions =
          n.w().op("add", {n.w().op("unsqueeze", {begin}, {{"axes", std::vector<int64_t>{1}}}), steps});
    }
    const auto turned = [&](Val x, int64_t count) {
      return padded_rope(n, x, n.in(7), n.in(8), positions,
                         {{"interleaved", n.get_int("rotary_interleaved", 0)},
                          {"num_heads", count},
                          {"rotary_dim", int64_t{-1}}});
    };
    q = turned(q, heads), k = turned(k, kv_heads);
  } else {
    n.get_int("rotary_interleaved", 0);
  }
  const Attrs attrs{{"q_num_heads", heads},
                    {"kv_num_heads", kv_heads},
                    {"is_causal", causal},
                    {"left_window_size", window > 0 ? window - 1 : int64_t{-1}},
                    {"softcap", n.get_float("softcap", 0)},
                    {"scale", n.get_float("scale", 0)},
                    {"ragged", int64_t{1}}};
  n.outs(attention_of(n, {q, k, v, n.in(10), n.in(3), n.in(4), lengths, n.in(6)}, attrs,
                      asks(n, 1) || asks(n, 2)));
}

// MultiHeadAttention(query, key?, value?, bias?, key_padding_mask?, attention_bias?, past_key?, past_value?,
// ...): without a key the query holds all three, (B, S, heads, 3, D); without a value the key holds two.
void multi_head_attention(OnnxNode& n) {
  const int64_t heads = heads_of(n, "num_heads");
  if (heads == 0) return;
  if (!absent(n, 8, "past_sequence_length", "export without buffers that past and present share") ||
      !absent(n, 9, "cache_indirection", "export without beam search inside of the model"))
    return;
  Val q = n.in(0), k = n.in(1), v = n.in(2);
  if (!k) {
    const std::vector<Val> parts = parts_of(n, q, 3, 3);
    q = parts[0], k = parts[1], v = parts[2];
  } else if (!v) {
    const std::vector<Val> parts = parts_of(n, k, 3, 2);
    k = parts[0], v = parts[1];
  }
  if (const Val bias = n.in(3)) {
    const Val width = extent_of(n, q, 2), two = n.w().op("add", {width, width});
    const auto biased = [&](Val x, Val from, Val to) {
      return n.w().op("add", {x, n.w().op("slice", {bias, from, to, {}, {}})});
    };
    q = biased(q, n.w().ints({0}), width), k = biased(k, width, two);
    v = biased(v, two, n.w().ints({std::numeric_limits<int64_t>::max()}));
  }
  const double filter = n.get_float("mask_filter_value", -10000);
  Val mask;
  if (n.in(4)) mask = n.w().op("padding_mask", {n.in(4), k, n.in(6)}, {{"filter", filter}});
  const Attrs attrs{{"q_num_heads", heads},
                    {"kv_num_heads", heads},
                    {"is_causal", n.get_int("unidirectional", 0)},
                    {"scale", n.get_float("scale", 0)}};
  n.outs(attention_of(n, {q, k, v, summed(n, n.in(5), mask), n.in(6), n.in(7)}, attrs,
                      asks(n, 1) || asks(n, 2)));
}

// Attention(input, weights, bias?, mask_index?, past?, attention_bias?, ...) -> y, present: with the
// projection of all three in front. past and present have keys and values in one tensor, (2, B, heads, T, D).
void contrib_attention(OnnxNode& n) {
  const int64_t heads = heads_of(n, "num_heads");
  if (heads == 0) return;
  n.get_int("rotary_embedding_dim", 0);  // of do_rotary
  if (!only(n, "do_rotary", 0) || !only(n, "past_present_share_buffer", 0) ||
      !absent(n, 6, "past_sequence_length", "export without buffers that past and present share"))
    return;
  const std::vector<int64_t> sizes = n.get_ints("qkv_hidden_sizes");
  if (!sizes.empty() && sizes.size() != 3)
    return n.fail(
        invalid_argument(cat("attribute 'qkv_hidden_sizes' has ", sizes.size(), " numbers, not 3")));
  const Val all = summed(n, n.w().op("matmul", {n.in(0), n.in(1)}), n.in(2));
  const std::vector<Val> parts =
      n.w().ops("split", {all, sizes.empty() ? Val{} : n.w().ints(sizes)}, 3, {{"axis", int64_t{2}}});
  Val past_k, past_v;
  const Attrs front{{"axes", std::vector<int64_t>{0}}};
  if (n.in(4)) {
    const std::vector<Val> past = n.w().ops("split", {n.in(4), {}}, 2, {{"axis", int64_t{0}}});
    past_k = n.w().op("squeeze", {past[0]}, front), past_v = n.w().op("squeeze", {past[1]}, front);
  }
  const double filter = n.get_float("mask_filter_value", -10000);
  Val mask;
  if (n.in(3)) mask = n.w().op("padding_mask", {n.in(3), parts[1], past_k}, {{"filter", filter}});
  const Attrs attrs{{"q_num_heads", heads},
                    {"kv_num_heads", heads},
                    {"is_causal", n.get_int("unidirectional", 0)},
                    {"scale", n.get_float("scale", 0)}};
  const std::vector<Val> y = attention_of(
      n, {parts[0], parts[1], parts[2], summed(n, n.in(5), mask), past_k, past_v}, attrs, asks(n, 1));
  n.out(0, y[0]);
  if (!asks(n, 1)) return;
  n.out(1, n.w().op("concat", {n.w().op("unsqueeze", {y[1]}, front), n.w().op("unsqueeze", {y[2]}, front)},
                    {{"axis", int64_t{0}}}));
}

// EmbedLayerNormalization(input_ids, segment_ids?, words, positions, segments?, gamma, beta, mask?,
// position_ids?)
// -> y, number of words, sum before the norm
void embed_layer_norm(OnnxNode& n) {
  n.get_int("mask_index_type", 0);  // says of which type result 1 is, where it is asked for
  const Attrs rows{{"axis", int64_t{0}}};
  const Val ids = n.in(0);
  const Val positions =
      n.in(8) ? n.w().op("gather", {n.in(3), n.in(8)}, rows)
              : n.w().op("slice", {n.in(3), n.w().ints({0}), extent_of(n, ids, 1), n.w().ints({0}), {}});
  Val sum = n.w().op("add", {n.w().op("gather", {n.in(2), ids}, rows), positions});
  if (!n.in(1) != !n.in(4))
    return n.fail(
        invalid_argument("operands 'segment_ids' and 'segment_embedding' go together; one is missing"));
  if (n.in(1)) sum = n.w().op("add", {sum, n.w().op("gather", {n.in(4), n.in(1)}, rows)});
  n.out(0, n.w().op("layer_norm", {sum, n.in(5), n.in(6)},
                    {{"axis", int64_t{-1}}, {"epsilon", n.get_float("epsilon", 1e-12)}}));
  const Attrs i32{{"to", std::string("i32")}};
  if (asks(n, 1) && n.in(7)) {
    const Val words = n.w().op("equal", {as_i64(n, n.in(7)), n.w().int_scalar(1)});
    n.out(1, n.w().op("reduce_sum", {n.w().op("cast", {words}, i32)},
                      {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}}));
  } else if (asks(n, 1)) {
    n.out(1, n.w().op("constant_of_shape",
                      {extent_of(n, ids, 0), n.w().op("cast", {n.w().int_scalar(0)}, i32)}));
  }
  n.out(2, sum);
}

// MatMulNBits(x, codes, scales, zero_points?, g_idx?, bias?): attribute accuracy_level 4 allows activations
// of 8 bits, which our kernels for 4- and 8-bit weights take. Otherwise, and where no format holds the
// blocks, the weights become f32 when the model is loaded, and whoever opens it is told.
void matmul_nbits(OnnxNode& n) {
  const int64_t N = n.get_int("N", 0), K = n.get_int("K", 0), bits = n.get_int("bits", 4);
  const int64_t block = n.get_int("block_size", 0), level = n.get_int("accuracy_level", 0);
  if (!only(n, "weight_prepacked", 0) ||
      !absent(n, 4, "g_idx", "quantize without act-order (desc_act false)") ||
      refused(n, bits != 4 && bits != 8, "bits", cat("is ", bits, "; 4 and 8 are supported")))
    return;
  constexpr int64_t kMost = int64_t{1} << 30;
  if (N < 1 || K < 1 || N > kMost || K > kMost || block < 16 || block > kMost || (block & (block - 1)) != 0)
    return n.fail(invalid_argument(cat("N ", N, ", K ", K, ", block_size ", block, " cannot be")));
  const Tensor *codes = constant(n, 1, "B"), *scales = constant(n, 2, "scales");
  const Tensor* zeros = n.in(3) ? constant(n, 3, "zero_points") : nullptr;
  if (!codes || !scales || (n.in(3) && !zeros)) return;
  const int64_t blocks = (K + block - 1) / block;
  if (!dtype_is_float(scales->format().dtype()) || scales->numel() != N * blocks)
    return n.fail(
        invalid_argument(cat("operand 'scales' is no float for each of ", N, " times ", blocks, " blocks")));
  // Each number in an f16 as it is, or (scales) with 11 bits.
  const auto fits = [](const Tensor& t, bool exactly) {
    for (int64_t k = 0; k < t.numel(); ++k) {
      const double v = element_as_double(t, k),
                   stored = static_cast<double>(to_f32(to_f16(static_cast<float>(v))));
      if (!(std::abs(stored - v) <= (exactly ? 0 : std::ldexp(std::abs(v), -11)))) return false;
    }
    return true;
  };
  std::string format;
  const int64_t group = std::min<int64_t>(block, 128);
  const bool zeroed = zeros != nullptr, float_zeros = zeroed && dtype_is_float(zeros->format().dtype());
  if (level == 4 && block >= 32 && K % block == 0 && !(bits == 8 && zeroed) && fits(*scales, false) &&
      (!float_zeros || fits(*zeros, true))) {
    if (bits == 8) format = group == 32 ? "q8_0" : cat("i8_g", group);
    else if (zeroed) format = cat("u4_g", group);
    else format = group == 32 ? "q4_0" : cat("i4_g", group);
  }
  if (format.empty())
    n.widened(codes->bytes() + scales->bytes(), static_cast<uint64_t>(N * K) * sizeof(float));
  n.out(0, n.w().op("matmul_nbits", {n.in(0), n.in(1), n.in(2), n.in(3), n.in(5)},
                    {{"N", N}, {"K", K}, {"bits", bits}, {"block_size", block}, {"format", format}}));
}

// GatherBlockQuantized(codes, indices, scales, zero_points?): rows of a table.
void gather_block_quantized(OnnxNode& n) {
  const Tensor* codes = constant(n, 0, "data");
  if (!codes) return;
  const int64_t rank = codes->shape().rank(), bits = n.get_int("bits", 4);
  const int64_t gather = n.get_int("gather_axis", 0), quantize = n.get_int("quantize_axis", 1);
  if (rank != 2)
    return n.fail(unimplemented(cat("operand 'data' has ", rank, " axes; a table of 2 is supported")));
  const DType t = codes->format().dtype();
  if (refused(n, gather != 0 && gather != -2, "gather_axis", cat("is ", gather, "; only 0 is supported")) ||
      refused(n, quantize != 1 && quantize != -1, "quantize_axis",
              cat("is ", quantize, "; only the last is supported")) ||
      refused(n, t == DType::kU8 && bits != 4 && bits != 8, "bits",
              cat("is ", bits, "; 4 and 8 are supported")))
    return;
  n.out(0, n.w().op("gather_nbits", {n.in(0), n.in(1), n.in(2), n.in(3)},
                    {{"bits", bits}, {"block_size", n.get_int("block_size", 128)}}));
}

}  // namespace oar::onnx
