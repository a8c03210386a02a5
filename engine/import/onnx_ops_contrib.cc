// Ops of com.microsoft that onnxruntime's optimizer and quantizer write, spelled in ops of ai.onnx: the graph
// passes find the fused forms again. Those of transformers: onnx_ops_transformer.cc.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include <algorithm>

#include "engine/import/onnx_ops.h"

namespace oar::onnx {
namespace {

// ---- fused with what follows

Val activated(OnnxNode& n, Val y) {
  const std::string kind = n.get_string("activation");
  const std::vector<double> given = n.get_all("activation_params:F").get_floats("activation_params");
  const auto parameter = [&](size_t k, double fallback) { return k < given.size() ? given[k] : fallback; };
  if (kind.empty()) return y;
  if (kind == "Relu") return n.w().op("relu", {y});
  if (kind == "Tanh") return n.w().op("tanh", {y});
  if (kind == "Sigmoid") return n.w().op("sigmoid", {y});
  if (kind == "HardSwish") return n.w().op("hard_swish", {y});
  if (kind == "LeakyRelu") return n.w().op("leaky_relu", {y}, {{"alpha", parameter(0, 0.01)}});
  if (kind == "HardSigmoid")
    return n.w().op("hard_sigmoid", {y}, {{"alpha", parameter(0, 0.2)}, {"beta", parameter(1, 0.5)}});
  if (kind == "Clip" && given.size() == 2)
    return n.w().op("clip", {y, number_like(n, given[0], y), number_like(n, given[1], y)});
  n.fail(unimplemented(cat("attribute 'activation' is '", kind, "' with ", given.size(), " parameters")));
  return y;
}
// FusedConv(x, w, bias?, residual?)
void fused_conv(OnnxNode& n) {
  const Attrs attrs = n.get_all("auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I");
  Val y = n.w().op("conv", {n.in(0), n.in(1), n.in(2)}, attrs);
  if (n.in(3)) y = n.w().op("add", {y, n.in(3)});
  n.out(0, activated(n, y));
}
// FusedMatMul(a, b): alpha times the product, either with its last two axes swapped.
void fused_matmul(OnnxNode& n) {
  const auto operand = [&](size_t i, const char* swap) {
    if (n.get_int(swap, 0) == 0) return n.in(i);
    return n.w().op("einsum", {n.in(i)}, {{"equation", std::string("...ij->...ji")}});
  };
  if (!only(n, "transBatchA", 0) || !only(n, "transBatchB", 0)) return;
  Val y = n.w().op("matmul", {operand(0, "transA"), operand(1, "transB")});
  if (const double alpha = n.get_float("alpha", 1); alpha != 1)
    y = n.w().op("mul", {y, number_like(n, alpha, y)});
  n.out(0, y);
}
Val with_bias(OnnxNode& n, Val x, size_t i) { return n.in(i) ? n.w().op("add", {x, n.in(i)}) : x; }
void bias_gelu(OnnxNode& n) { n.out(0, n.w().op("gelu", {with_bias(n, n.in(0), 1)})); }
void fast_gelu(OnnxNode& n) {
  n.out(0, n.w().op("gelu", {with_bias(n, n.in(0), 1)}, {{"approximate", std::string("tanh")}}));
}
void quick_gelu(OnnxNode& n) {
  n.out(0, n.w().op("silu", {n.in(0)}, {{"alpha", n.get_float("alpha", 1.702)}}));
}
// SkipLayerNormalization(x, skip, gamma, beta?, bias?) -> y, mean, 1 / deviation, sum
void skip_layer_norm(OnnxNode& n) {
  const Val sum = with_bias(n, n.w().op("add", {n.in(0), n.in(1)}), 4);
  const Attrs attrs{{"axis", int64_t{-1}}, {"epsilon", n.get_float("epsilon", 1e-12)}};
  const size_t results = std::clamp<size_t>(n.num_outputs(), 1, 3);
  n.outs(n.w().ops("layer_norm", {sum, n.in(2), n.in(3)}, results, attrs));
  n.out(3, sum);
}
// SkipSimplifiedLayerNormalization(x, skip, gamma, bias?): by the root of the mean square.
void skip_rms_norm(OnnxNode& n) {
  const Val sum = with_bias(n, n.w().op("add", {n.in(0), n.in(1)}), 3);
  n.out(0, n.w().op("rms_norm", {sum, n.in(2)},
                    {{"axis", int64_t{-1}}, {"epsilon", n.get_float("epsilon", 1e-12)}}));
  n.out(3, sum);
}
// RotaryEmbedding(x, positions, cos, sin): ai.onnx has the positions last.
void rotary(OnnxNode& n) {
  if (!only(n, "is_packed_batching", 0)) return;
  if (const double scale = n.get_float("scale", 1); scale != 1)
    return n.fail(unimplemented(cat("attribute 'scale' is ", scale, "; only 1 is supported")));
  n.out(0, padded_rope(n, n.in(0), n.in(2), n.in(3), n.in(1),
                       {{"interleaved", n.get_int("interleaved", 0)},
                        {"num_heads", n.get_int("num_heads", 0)},
                        {"rotary_dim", n.get_int("rotary_embedding_dim", 0)}}));
}

// ---- on 8-bit integers: numbers, the op, and back

// Operands i, i + 1, i + 2: x, its scale, its zero point.
Val numbers(OnnxNode& n, size_t i, const Attrs& axis = {}) {
  return n.w().op("dequantize_linear", {n.in(i), n.in(i + 1), n.in(i + 2)}, axis);
}
// By scale i and zero point i + 1; without the latter zero, in the type of `like`.
Val integers(OnnxNode& n, Val y, size_t i, Val like) {
  Val zero = n.in(i + 1);
  if (!zero) {
    const Val scale_shape = n.w().op("shape_of", {n.in(i)});
    zero = n.w().op("constant_of_shape", {scale_shape, number_like(n, 0, like)});
  }
  return n.w().op("quantize_linear", {y, n.in(i), zero});
}
void qlinear_binary(OnnxNode& n, const char* op) {
  n.out(0, integers(n, n.w().op(op, {numbers(n, 0), numbers(n, 3)}), 6, n.in(0)));
}
void qlinear_add(OnnxNode& n) { qlinear_binary(n, "add"); }
void qlinear_mul(OnnxNode& n) { qlinear_binary(n, "mul"); }
void qlinear_sigmoid(OnnxNode& n) { n.out(0, integers(n, n.w().op("sigmoid", {numbers(n, 0)}), 3, n.in(0))); }
void qlinear_leaky_relu(OnnxNode& n) {
  const Val y = n.w().op("leaky_relu", {numbers(n, 0)}, {{"alpha", n.get_float("alpha", 0.01)}});
  n.out(0, integers(n, y, 3, n.in(0)));
}
void qlinear_global_average_pool(OnnxNode& n) {
  if (!only(n, "channels_last", 0)) return;
  n.out(0, integers(n, n.w().op("global_average_pool", {numbers(n, 0)}), 3, n.in(0)));
}
void qlinear_average_pool(OnnxNode& n) {
  if (!only(n, "channels_last", 0)) return;
  const Attrs attrs = n.get_all("auto_pad:s ceil_mode:i count_include_pad:i kernel_shape:I pads:I strides:I");
  n.out(0, integers(n, n.w().op("average_pool", {numbers(n, 0)}, attrs), 3, n.in(0)));
}
// QLinearConcat(scale, zero, then x, scale, zero of each part)
void qlinear_concat(OnnxNode& n) {
  if (n.num_inputs() < 5 || n.num_inputs() % 3 != 2)
    return n.fail(invalid_argument(cat(n.num_inputs(), " operands; two and three for each part are meant")));
  std::vector<Val> parts;
  for (size_t i = 2; i < n.num_inputs(); i += 3) parts.push_back(numbers(n, i));
  const Val y = n.w().op("concat", std::move(parts), {{"axis", n.get_int("axis", 0)}});
  n.out(0, integers(n, y, 0, n.in(2)));
}
// The product of two scales; known now where both are constants, as the passes want it.
Val scale_product(OnnxNode& n, Val a, Val b) {
  const Tensor *x = n.w().constant_of(a), *y = n.w().constant_of(b);
  const bool known =
      x && y && x->format() == Format::f32() && y->format() == Format::f32() && x->numel() == 1;
  if (!known) return n.w().op("mul", {a, b});
  auto made = allocate_elements(y->shape(), DType::kF32);
  if (!made.ok()) return n.fail(made.status()), a;
  for (int64_t k = 0; k < y->numel(); ++k)
    mutable_elements<float>(*made)[k] = elements<float>(*x)[0] * elements<float>(*y)[k];
  return n.w().constant(std::move(*made));
}
// QGemm(a, scale, zero, b, scale, zero, c?, y's scale?, y's zero?) = alpha (a' b' + c), a float without the
// last two. The scale and zero of b may be one per column; c is i32 in units of both scales.
void qgemm(OnnxNode& n) {
  const bool turned = n.get_int("transB", 0) != 0;
  const double alpha = n.get_float("alpha", 1);
  Val c = n.in(6);
  if (c) {
    const Val unit = scale_product(n, n.in(1), n.in(4));
    const Tensor* known = n.w().constant_of(c);
    if (known && known->shape().rank() == 1)
      c = n.w().op("dequantize_linear", {c, unit}, {{"axis", int64_t{0}}});
    else c = n.w().op("mul", {n.w().op("cast", {c, unit}), unit});
  }
  const Val y = gemm_of(n, numbers(n, 0), numbers(n, 3, {{"axis", int64_t{!turned}}}), c, alpha, alpha);
  if (n.in(7) && n.in(8)) return n.out(0, integers(n, y, 7, n.in(0)));
  if (n.in(7) || n.in(8))
    n.fail(invalid_argument("operands 'y_scale' and 'y_zero_point' go together; one is missing"));
  n.out(0, y);
}
// DynamicQuantizeMatMul(a, b, b's scale, b's zero?, bias?): a is quantized by its range in the run.
void dynamic_quantize_matmul(OnnxNode& n) {
  const auto a = n.w().ops("dynamic_quantize_linear", {n.in(0)}, 3);
  const Val product = n.w().op("matmul_integer", {a[0], n.in(1), a[2], n.in(3)});
  const Val scale = n.w().op("mul", {a[1], n.in(2)});
  n.out(0, with_bias(n, n.w().op("mul", {n.w().op("cast", {product, scale}), scale}), 4));
}
// MatMulIntegerToFloat(a, b, a's scale, b's scale, a's zero?, b's zero?, bias?)
void matmul_integer_to_float(OnnxNode& n) {
  const Val product = n.w().op("matmul_integer", {n.in(0), n.in(1), n.in(4), n.in(5)});
  const Val scale = n.w().op("mul", {n.in(2), n.in(3)});
  n.out(0, with_bias(n, n.w().op("mul", {n.w().op("cast", {product, scale}), scale}), 6));
}
// Integers (directions, inputs, gates' rows) by scales and zero points of a direction, or of its every row,
// as an LSTM has them: (directions, rows, inputs).
Val gate_weights(OnnxNode& n, size_t i, size_t scale) {
  const Tensor *w = n.w().constant_of(n.in(i)), *by = n.w().constant_of(n.in(scale)),
               *zero = n.w().constant_of(n.in(scale + 1));
  const auto fits = [&](const Tensor* t) {
    return t != nullptr && t->shape().rank() >= 1 && t->shape().rank() <= 2 &&
           t->shape()[0] == w->shape()[0] && (t->shape().rank() == 1 || t->shape()[1] == w->shape()[2]);
  };
  const bool bytes = w != nullptr && w->shape().rank() == 3 &&
                     (w->format() == Format::of(DType::kI8) || w->format() == Format::of(DType::kU8));
  if (!bytes || !fits(by) || !(by->format() == Format::f32()) || (n.in(scale + 1) && !fits(zero))) {
    n.fail(
        unimplemented(cat("operands ", i, ", ", scale, " and ", scale + 1,
                          " must be constants: bytes of three axes, and their scales and zero points, of a "
                          "direction or of its every row")));
    return {};
  }
  const int64_t D = w->shape()[0], inputs = w->shape()[1], rows = w->shape()[2];
  auto made = allocate_elements({D, rows, inputs}, DType::kF32);
  if (!made.ok()) return n.fail(made.status()), Val{};
  float* const out = mutable_elements<float>(*made);
  std::vector<float> factor(static_cast<size_t>(rows)), middle(static_cast<size_t>(rows), 0);
  const auto fill = [&](const auto* from) {
    for (int64_t d = 0; d < D; ++d) {
      for (int64_t r = 0; r < rows; ++r) {
        const auto of_row = [&](const Tensor& t) { return t.shape().rank() == 1 ? d : d * rows + r; };
        factor[static_cast<size_t>(r)] = elements<float>(*by)[of_row(*by)];
        if (zero != nullptr)
          middle[static_cast<size_t>(r)] = static_cast<float>(element_as_int(*zero, of_row(*zero)));
      }
      for (int64_t k = 0; k < inputs; ++k) {
        for (int64_t r = 0; r < rows; ++r) {
          const auto i = static_cast<size_t>(r);
          out[(d * rows + r) * inputs + k] =
              factor[i] * (static_cast<float>(from[(d * inputs + k) * rows + r]) - middle[i]);
        }
      }
    }
  };
  if (w->format() == Format::of(DType::kI8)) fill(elements<int8_t>(*w));
  else fill(elements<uint8_t>(*w));
  return n.w().constant(std::move(*made));
}
// DynamicQuantizeLSTM(x, w, r, bias?, lengths?, h?, c?, peepholes?, w's scale, w's zero, r's scale, r's
// zero): the layer of the numbers that the integers stand for. x and h stay as they are.
void dynamic_quantize_lstm(OnnxNode& n) {
  const Attrs attrs = n.get_all(
      "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i input_forget:i");
  n.outs(n.w().ops(
      "lstm",
      {n.in(0), gate_weights(n, 1, 8), gate_weights(n, 2, 10), n.in(3), n.in(4), n.in(5), n.in(6), n.in(7)},
      std::max<size_t>(1, n.num_outputs()), attrs));
}

constexpr OnnxOp kContrib[] = {
    {"Attention", 1, nullptr, nullptr, contrib_attention},
    {"BiasGelu", 1, nullptr, nullptr, bias_gelu},
    {"DynamicQuantizeMatMul", 1, nullptr, nullptr, dynamic_quantize_matmul},
    {"DynamicQuantizeLSTM", 1, nullptr, nullptr, dynamic_quantize_lstm},
    {"EmbedLayerNormalization", 1, nullptr, nullptr, embed_layer_norm},
    {"FastGelu", 1, nullptr, nullptr, fast_gelu},
    {"FusedConv", 1, nullptr, nullptr, fused_conv},
    {"FusedMatMul", 1, nullptr, nullptr, fused_matmul},
    {"GatherBlockQuantized", 1, nullptr, nullptr, gather_block_quantized},
    {"Gelu", 1, "gelu", "", nullptr},
    {"GroupQueryAttention", 1, nullptr, nullptr, group_query_attention},
    {"MatMulIntegerToFloat", 1, nullptr, nullptr, matmul_integer_to_float},
    {"MatMulNBits", 1, nullptr, nullptr, matmul_nbits},
    {"MultiHeadAttention", 1, nullptr, nullptr, multi_head_attention},
    {"QGemm", 1, nullptr, nullptr, qgemm},
    {"QLinearAdd", 1, nullptr, nullptr, qlinear_add},
    {"QLinearAveragePool", 1, nullptr, nullptr, qlinear_average_pool},
    {"QLinearConcat", 1, nullptr, nullptr, qlinear_concat},
    {"QLinearGlobalAveragePool", 1, nullptr, nullptr, qlinear_global_average_pool},
    {"QLinearLeakyRelu", 1, nullptr, nullptr, qlinear_leaky_relu},
    {"QLinearMul", 1, nullptr, nullptr, qlinear_mul},
    {"QLinearSigmoid", 1, nullptr, nullptr, qlinear_sigmoid},
    {"QuickGelu", 1, nullptr, nullptr, quick_gelu},
    {"RotaryEmbedding", 1, nullptr, nullptr, rotary},
    {"SimplifiedLayerNormalization", 1, "rms_norm", "axis:i epsilon:f stash_type:i", nullptr},
    {"SkipLayerNormalization", 1, nullptr, nullptr, skip_layer_norm},
    {"SkipSimplifiedLayerNormalization", 1, nullptr, nullptr, skip_rms_norm},
};

}  // namespace

bool only(OnnxNode& n, const char* name, int64_t value) {
  const int64_t given = n.get_int(name, value);
  if (given == value) return true;
  n.fail(unimplemented(cat("attribute '", name, "' is ", given, "; only ", value, " is supported")));
  return false;
}

const OnnxOp* find_contrib_op(std::string_view name) {
  for (const OnnxOp& op : kContrib) {
    if (name == op.name) return &op;
  }
  return nullptr;
}

}  // namespace oar::onnx
