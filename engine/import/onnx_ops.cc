// The op table: what each op of ai.onnx means in ours (https://onnx.ai/onnx/operators/). Most are ours under
// another name; where an op changed with the opset, its lines or its function here turn old spellings into
// the newest, so that evaluation knows one form.
#include <cmath>

#include "engine/import/onnx_ops.h"

namespace oar::onnx {
namespace {

void constant(OnnxNode& n) {
  auto emit = [&](Tensor t) { n.out(0, n.w().constant(std::move(t), std::string(n.msg().outputs[0]))); };
  if (n.num_outputs() != 1) return n.fail(invalid_argument("Constant has one output"));
  auto list = [&](DType dtype, const Shape& shape, auto&& at) {
    Tensor t = must(allocate_elements(shape, dtype));
    at(t);
    emit(std::move(t));
  };
  if (n.has("value")) {
    auto t = n.get_tensor("value");
    return t.ok() ? emit(std::move(*t)) : n.fail(t.status());
  }
  if (const AttrMsg* a = n.find("value_float")) {
    return list(DType::kF32, {}, [&](Tensor& t) { *mutable_elements<float>(t) = a->f; });
  }
  if (const AttrMsg* a = n.find("value_int")) {
    return list(DType::kI64, {}, [&](Tensor& t) { *mutable_elements<int64_t>(t) = a->i; });
  }
  if (const AttrMsg* a = n.find("value_string")) {
    return list(DType::kString, {}, [&](Tensor& t) { *mutable_elements<std::string>(t) = a->s; });
  }
  if (const AttrMsg* a = n.find("value_floats")) {
    return list(DType::kF32, {static_cast<int64_t>(a->floats.size())}, [&](Tensor& t) {
      std::copy(a->floats.begin(), a->floats.end(), mutable_elements<float>(t));
    });
  }
  if (const AttrMsg* a = n.find("value_ints")) {
    return list(DType::kI64, {static_cast<int64_t>(a->ints.size())},
                [&](Tensor& t) { std::copy(a->ints.begin(), a->ints.end(), mutable_elements<int64_t>(t)); });
  }
  if (const AttrMsg* a = n.find("value_strings")) {
    return list(DType::kString, {static_cast<int64_t>(a->strings.size())}, [&](Tensor& t) {
      std::copy(a->strings.begin(), a->strings.end(), mutable_elements<std::string>(t));
    });
  }
  if (const AttrMsg* a = n.find("sparse_value"); a && !a->sparse.empty()) {
    auto t = n.tensors().read(a->sparse[0]);
    return t.ok() ? emit(std::move(*t)) : n.fail(t.status());
  }
  n.fail(invalid_argument("Constant has no value"));
}

void constant_of_shape(OnnxNode& n) {
  Val value;
  if (n.has("value")) {
    auto t = n.get_tensor("value");
    if (!t.ok()) return n.fail(t.status());
    value = n.w().constant(std::move(*t));
  } else {
    value = n.w().float_scalar(0);
  }
  n.out(0, n.w().op("constant_of_shape", {n.in(0), value}));
}

// "f32" for TensorProto's 1 and so on, under `attr`.
bool dtype_attr(OnnxNode& n, const char* attr, Attrs& attrs, const char* as) {
  if (!n.has(attr)) return true;
  const int64_t type = n.get_int(attr, 0);
  const auto dtype = dtype_of_onnx(type);
  if (!dtype) return n.fail(unimplemented(cat("attribute '", attr, "': element type ", type))), false;
  attrs.set(as, std::string(dtype_name(*dtype)));
  return true;
}

void cast(OnnxNode& n) {
  Attrs attrs{{"saturate", n.get_int("saturate", 1)}};
  if (n.has("round_mode")) attrs.set("round_mode", n.get_string("round_mode"));
  if (!n.has("to")) return n.fail(invalid_argument("attribute 'to' is missing"));
  if (!dtype_attr(n, "to", attrs, "to")) return;
  n.out(0, n.w().op("cast", {n.in(0)}, attrs));
}
void cast_like(OnnxNode& n) {
  Attrs attrs{{"saturate", n.get_int("saturate", 1)}};
  if (n.has("round_mode")) attrs.set("round_mode", n.get_string("round_mode"));
  n.out(0, n.w().op("cast", {n.in(0), n.in(1)}, attrs));
}
void bit_cast(OnnxNode& n) {
  Attrs attrs;
  if (!dtype_attr(n, "to", attrs, "to")) return;
  n.out(0, n.w().op("bit_cast", {n.in(0)}, attrs));
}

// Sum, Mean, Max, Min of any number of operands.
Val folded(OnnxNode& n, const char* op) {
  if (n.num_inputs() == 0) return n.fail(invalid_argument("at least one operand is needed")), Val{};
  Val v = n.in(0);
  for (size_t k = 1; k < n.num_inputs(); ++k) v = n.w().op(op, {v, n.in(k)});
  return n.num_inputs() == 1 ? n.w().op("identity", {v}) : v;
}
void sum(OnnxNode& n) { n.out(0, folded(n, "add")); }
void max(OnnxNode& n) { n.out(0, folded(n, "max")); }
void min(OnnxNode& n) { n.out(0, folded(n, "min")); }
void mean(OnnxNode& n) {
  const Val total = folded(n, "add");
  const Val count = n.w().op("cast", {n.w().float_scalar(static_cast<double>(n.num_inputs())), n.in(0)});
  n.out(0, n.w().op("div", {total, count}));
}

void clip(OnnxNode& n) {
  Val low = n.in(1), high = n.in(2);
  if (n.opset() < 11) {
    if (n.has("min")) low = n.w().op("cast", {n.w().float_scalar(n.get_float("min", 0)), n.in(0)});
    if (n.has("max")) high = n.w().op("cast", {n.w().float_scalar(n.get_float("max", 0)), n.in(0)});
  }
  n.out(0, n.w().op("clip", {n.in(0), low, high}));
}

// Before opset 13 Softmax and its kin worked on a matrix: everything from `axis` on was one row.
void softmax_of(OnnxNode& n, const char* op) {
  const bool flat = n.opset() < 13;
  n.out(0, n.w().op(op, {n.in(0)}, {{"axis", n.get_int("axis", flat ? 1 : -1)}, {"flatten", int64_t{flat}}}));
}
void softmax(OnnxNode& n) { softmax_of(n, "softmax"); }
void log_softmax(OnnxNode& n) { softmax_of(n, "log_softmax"); }
void hardmax(OnnxNode& n) { softmax_of(n, "hardmax"); }

void dropout(OnnxNode& n) {
  Val ratio = n.in(1);
  if (n.opset() < 12) ratio = n.w().float_scalar(n.get_float("ratio", 0.5));
  n.outs(n.w().ops("dropout", {n.in(0), ratio, n.in(2)}, n.num_outputs(), {{"seed", n.get_int("seed", 0)}}));
}

void pad(OnnxNode& n) {
  Val pads = n.in(1), value = n.in(2);
  if (n.opset() < 11) {
    pads = n.w().ints(n.get_ints("pads"));
    value = n.w().op("cast", {n.w().float_scalar(n.get_float("value", 0)), n.in(0)});
  }
  n.out(0, n.w().op("pad", {n.in(0), pads, value, n.in(3)}, {{"mode", n.get_string("mode", "constant")}}));
}

void slice(OnnxNode& n) {
  if (n.opset() >= 10) {
    n.out(0, n.w().op("slice", {n.in(0), n.in(1), n.in(2), n.in(3), n.in(4)}));
    return;
  }
  const Val starts = n.w().ints(n.get_ints("starts")), ends = n.w().ints(n.get_ints("ends"));
  const Val axes = n.has("axes") ? n.w().ints(n.get_ints("axes")) : Val{};
  n.out(0, n.w().op("slice", {n.in(0), starts, ends, axes, {}}));
}

void top_k(OnnxNode& n) {
  const Val k = n.opset() < 10 ? n.w().ints({n.get_int("k", 0)}) : n.in(1);
  n.outs(n.w().ops("top_k", {n.in(0), k}, n.num_outputs(),
                   {{"axis", n.get_int("axis", -1)},
                    {"largest", n.get_int("largest", 1)},
                    {"sorted", n.get_int("sorted", 1)}}));
}

void split(OnnxNode& n) {
  Val sizes = n.in(1);
  if (n.opset() < 13 && n.has("split")) sizes = n.w().ints(n.get_ints("split"));
  n.get_int("num_outputs", 0);  // what the node's outputs say already
  n.outs(n.w().ops("split", {n.in(0), sizes}, n.num_outputs(), {{"axis", n.get_int("axis", 0)}}));
}

// Before opset 7 broadcasting had to be asked for, and could name the axis to start at.
void old_binary(OnnxNode& n, const char* op) {
  Attrs attrs;
  if (n.get_int("broadcast", 0) != 0 && n.has("axis")) attrs.set("axis", n.get_int("axis", 0));
  n.get_ints("consumed_inputs");
  n.out(0, n.w().op(op, {n.in(0), n.in(1)}, attrs));
}
void old_add(OnnxNode& n) { old_binary(n, "add"); }
void old_sub(OnnxNode& n) { old_binary(n, "sub"); }
void old_mul(OnnxNode& n) { old_binary(n, "mul"); }
void old_div(OnnxNode& n) { old_binary(n, "div"); }
void old_pow(OnnxNode& n) { old_binary(n, "pow"); }

void gemm(OnnxNode& n) {
  if (n.opset() < 7) n.get_int("broadcast", 0);  // had to be asked for, and is done all the same
  n.out(0, gemm_of(n, n.in(0), n.in(1), n.in(2), n.get_float("alpha", 1), n.get_float("beta", 1)));
}

void reshape(OnnxNode& n) {
  if (n.opset() < 5) {
    n.get_ints("consumed_inputs");
    return n.out(0, n.w().op("reshape", {n.in(0), n.w().ints(n.get_ints("shape"))}));
  }
  n.out(0, n.w().op("reshape", {n.in(0), n.in(1)}, {{"allowzero", n.get_int("allowzero", 0)}}));
}

// Upsample (opset 7 to 9) is Resize with "asymmetric" coordinates, nearest rounding down.
void upsample(OnnxNode& n) {
  Val scales = n.in(1);
  if (n.has("scales")) {
    const std::vector<double> list = n.get_all("scales:F").get_floats("scales");
    Tensor t = must(allocate_elements({static_cast<int64_t>(list.size())}, DType::kF32));
    std::copy(list.begin(), list.end(), mutable_elements<float>(t));
    scales = n.w().constant(std::move(t));
  }
  n.out(0, n.w().op("resize", {n.in(0), {}, scales, {}},
                    {{"mode", n.get_string("mode", "nearest")},
                     {"coordinate_transformation_mode", std::string("asymmetric")},
                     {"nearest_mode", std::string("floor")}}));
}
void resize(OnnxNode& n) {
  if (n.opset() < 11) {
    n.out(0, n.w().op("resize", {n.in(0), {}, n.in(1), {}},
                      {{"mode", n.get_string("mode", "nearest")},
                       {"coordinate_transformation_mode", std::string("asymmetric")},
                       {"nearest_mode", std::string("floor")}}));
    return;
  }
  const Attrs attrs = n.get_all(
      "mode:s coordinate_transformation_mode:s nearest_mode:s keep_aspect_ratio_policy:s antialias:i axes:I "
      "cubic_coeff_a:f exclude_outside:i extrapolation_value:f");
  n.out(0, n.w().op("resize", {n.in(0), n.in(1), n.in(2), n.in(3)}, attrs));
}

void batch_norm(OnnxNode& n) {
  n.get_int("spatial", 1);
  n.get_int("is_test", 1);  // opset 6 alone
  n.get_float("momentum", 0.9);
  Attrs attrs{{"epsilon", n.get_float("epsilon", 1e-5)}, {"momentum", n.get_float("momentum", 0.9)}};
  // Opset 14 says it is training; before that five outputs did, which inference models do not have.
  attrs.set("training_mode", n.opset() >= 14 ? n.get_int("training_mode", 0) : 0);
  n.outs(n.w().ops("batch_norm", n.ins(), n.opset() >= 14 ? n.num_outputs() : 1, attrs));
}

void group_norm(OnnxNode& n) {
  n.out(0, n.w().op("group_norm", n.ins(),
                    {{"epsilon", n.get_float("epsilon", 1e-5)},
                     {"num_groups", n.get_int("num_groups", 1)},
                     {"stash_type", n.get_int("stash_type", 1)}}));
}

void random_op(OnnxNode& n, const char* op, bool like) {
  Attrs attrs;
  for (const char* name : {"mean", "scale", "low", "high"}) {
    if (n.has(name)) attrs.set(name, n.get_float(name, 0));
  }
  if (n.has("seed")) attrs.set("seed", n.get_float("seed", 0));
  if (!dtype_attr(n, "dtype", attrs, "dtype")) return;
  std::vector<Val> in;
  if (like) in = {n.w().op("shape_of", {n.in(0)}), n.in(0)};
  else in = {n.w().ints(n.get_ints("shape"))};
  n.out(0, n.w().op(op, std::move(in), attrs));
}
void random_normal(OnnxNode& n) { random_op(n, "random_normal", false); }
void random_normal_like(OnnxNode& n) { random_op(n, "random_normal", true); }
void random_uniform(OnnxNode& n) { random_op(n, "random_uniform", false); }
void random_uniform_like(OnnxNode& n) { random_op(n, "random_uniform", true); }

// Ops whose one peculiar attribute is an element type.
void with_dtype(OnnxNode& n, const char* op, const char* attr, const char* others) {
  Attrs attrs = n.get_all(others);
  if (!dtype_attr(n, attr, attrs, attr)) return;
  n.outs(n.w().ops(op, n.ins(), n.num_outputs(), attrs));
}
void eye_like(OnnxNode& n) { with_dtype(n, "eye_like", "dtype", "k:i"); }
void bernoulli(OnnxNode& n) { with_dtype(n, "bernoulli", "dtype", "seed:f"); }
void multinomial(OnnxNode& n) { with_dtype(n, "multinomial", "dtype", "sample_size:i seed:f"); }
void sequence_empty(OnnxNode& n) { with_dtype(n, "sequence_empty", "dtype", ""); }
void quantize(OnnxNode& n) {
  with_dtype(n, "quantize_linear", "output_dtype", "axis:i saturate:i block_size:i precision:i");
}
void dequantize(OnnxNode& n) { with_dtype(n, "dequantize_linear", "output_dtype", "axis:i block_size:i"); }
void window(OnnxNode& n, const char* kind) {
  Attrs attrs{{"kind", std::string(kind)}, {"periodic", n.get_int("periodic", 1)}};
  if (!dtype_attr(n, "output_datatype", attrs, "dtype")) return;
  n.out(0, n.w().op("window", {n.in(0)}, attrs));
}
void hann(OnnxNode& n) { window(n, "hann"); }
void hamming(OnnxNode& n) { window(n, "hamming"); }
void blackman(OnnxNode& n) { window(n, "blackman"); }
void mel(OnnxNode& n) { with_dtype(n, "mel_weight_matrix", "output_datatype", ""); }

void dft(OnnxNode& n) {
  Val axis = n.in(2);
  if (n.opset() < 20) axis = n.w().int_scalar(n.get_int("axis", 1));
  n.out(0, n.w().op("dft", {n.in(0), n.in(1), axis},
                    {{"inverse", n.get_int("inverse", 0)}, {"onesided", n.get_int("onesided", 0)}}));
}

void optional(OnnxNode& n) {
  n.find("type");
  n.out(0, n.in(0) ? n.w().op("identity", {n.in(0)}) : n.w().op("none", {}));
}

// Opset 16 moved the samples by half a pixel, and lets files ask for the old way.
void roi_align(OnnxNode& n) {
  Attrs attrs = n.get_all("mode:s output_height:i output_width:i sampling_ratio:i spatial_scale:f");
  attrs.set("coordinate_transformation_mode",
            n.opset() < 16 ? std::string("output_half_pixel")
                           : n.get_string("coordinate_transformation_mode", "half_pixel"));
  n.out(0, n.w().op("roi_align", {n.in(0), n.in(1), n.in(2)}, attrs));
}

void flatten(OnnxNode& n) { n.out(0, n.w().op("flatten", {n.in(0)}, {{"axis", n.get_int("axis", 1)}})); }

void attention(OnnxNode& n) {
  const Attrs attrs = n.get_all(
      "is_causal:i kv_num_heads:i q_num_heads:i qk_matmul_output_mode:i scale:f softcap:f "
      "softmax_precision:i left_window_size:i right_window_size:i");
  n.outs(n.w().ops("head_attention", n.ins(), n.num_outputs(), attrs));
}

// RotaryEmbedding(x, cos, sin, positions?)
void rotary_embedding(OnnxNode& n) {
  n.out(0, padded_rope(n, n.in(0), n.in(1), n.in(2), n.in(3),
                       {{"interleaved", n.get_int("interleaved", 0)},
                        {"num_heads", n.get_int("num_heads", 0)},
                        {"rotary_dim", n.get_int("rotary_embedding_dim", 0)}}));
}

constexpr OnnxOp kOps[] = {
#include "engine/import/onnx_ops.inc"
};

}  // namespace

Val padded_rope(OnnxNode& n, Val x, Val cos, Val sin, Val positions, Attrs attrs) {
  attrs.set("rows", std::string("padded"));
  return n.w().op("rope", {x, positions, {}, {}, cos, sin}, std::move(attrs));
}

Val number_like(OnnxNode& n, double v, Val like) { return n.w().op("cast", {n.w().float_scalar(v), like}); }

Val gemm_of(OnnxNode& n, Val a, Val b, Val c, double alpha, double beta) {
  if (n.get_int("transA", 0) != 0) a = n.w().op("transpose", {a}, {{"perm", std::vector<int64_t>{1, 0}}});
  const bool plain = alpha == 1 && beta == 1;
  if (!plain && n.w().constant_of(b) != nullptr && !dtype_is_float(n.w().constant_of(b)->format().dtype())) {
    n.fail(unimplemented(cat("attributes 'alpha' and 'beta' are ", alpha, " and ", beta,
                             "; a product of integers has 1 for both")));
  }
  Val y = n.w().op("linear", {a, {}, b, plain ? c : Val{}},
                   {{"input_major", int64_t{n.get_int("transB", 0) == 0}}, {"matrix", int64_t{1}}});
  if (plain) return y;
  if (alpha != 1) y = n.w().op("mul", {y, number_like(n, alpha, b)});
  if (!c || beta == 0) return y;
  return n.w().op("add", {y, beta == 1 ? c : n.w().op("mul", {c, number_like(n, beta, c)})});
}

const OnnxOp* find_onnx_op(std::string_view name, int64_t opset, bool* newer) {
  const OnnxOp* best = nullptr;
  for (const OnnxOp& op : kOps) {
    if (name != op.name) continue;
    if (op.since > opset) *newer = true;
    else if (!best || op.since > best->since) best = &op;
  }
  return best;
}

const OnnxOp* find_onnx_spelling(std::string_view ours, int64_t opset) {
  const OnnxOp* best = nullptr;
  for (const OnnxOp& op : kOps) {
    if (op.graph_op == nullptr || ours != op.graph_op) continue;
    // The newest there is at `opset`, else the oldest after it.
    const bool better =
        best == nullptr || (op.since <= opset ? best->since > opset || op.since > best->since
                                              : best->since > opset && op.since < best->since);
    if (better) best = &op;
  }
  return best;
}

}  // namespace oar::onnx
