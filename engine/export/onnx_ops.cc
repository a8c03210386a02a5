// What ops of ours are in ONNX where more than names differ (https://onnx.ai/onnx/operators/). All others are
// lines of import/onnx_ops.inc.
#include "engine/import/onnx_ops.h"

#include <array>

#include "engine/export/onnx_writer.h"

namespace oar::onnx {
namespace {

using Attributes = std::vector<ProtoWriter>;

// One node under `op` with the attributes of `spec`.
void rename(NodeWriter& n, const char* op, std::string_view spec) {
  n.emit(op, n.ins(), n.outs(), n.attributes(spec));
}

// `saturate` came with opset 19 and is about 8-bit floats alone, `round_mode` with 24.
void add_rounding(NodeWriter& n, Attributes& a) {
  if (n.attrs().get_int("saturate", 1) == 0) a.push_back(int_attribute("saturate", 0));
  if (!n.attrs().has("round_mode")) return;
  n.file().require(24);
  a.push_back(string_attribute("round_mode", n.attrs().get_string("round_mode")));
}
constexpr std::string_view kRounding[] = {"to", "saturate", "round_mode"};
void cast(NodeWriter& n) {
  Attributes a = n.attributes("", kRounding);
  const bool like = n.has(1);
  if (!like) n.dtype_attribute("to", "to", a);
  add_rounding(n, a);
  if (like) n.emit("CastLike", {n.in(0), n.in(1)}, {n.out(0)}, a);
  else n.emit("Cast", {n.in(0)}, {n.out(0)}, a);
}
void bit_cast(NodeWriter& n) {
  n.file().require(26);
  Attributes a = n.attributes("", kRounding);
  n.dtype_attribute("to", "to", a);
  n.emit("BitCast", {n.in(0)}, {n.out(0)}, a);
}

void clip(NodeWriter& n) { rename(n, "Clip", ""); }
// Operand 1 of an op that broadcasts as frameworks did before NumPy's rule won: its axes are aligned with
// those of operand 0 from `axis` on. There it gets as many axes of extent 1 behind its own as are missing.
std::string aligned(NodeWriter& n) {
  const auto rank_of = [&](const std::string& x) {
    const std::string shape = n.fresh(), rank = n.fresh();
    n.emit("Shape", {x}, {shape});
    n.emit("Shape", {shape}, {rank});
    return std::pair(shape, rank);
  };
  const int64_t axis = n.attrs().get_int("axis");
  if (axis < 0) n.fail(cat("attribute 'axis' is ", axis));
  const auto [shape, rank] = rank_of(n.in(1));
  const std::string all = n.fresh(),
                    after = n.fresh();  // axes of operand 0 from `axis` on, and those missing
  n.emit("Sub", {rank_of(n.in(0)).second, n.ints({axis})}, {all});
  n.emit("Sub", {all, rank}, {after});
  const std::string ones = n.fresh(), target = n.fresh(), result = n.fresh();
  n.emit("Expand", {n.ints({1}), after}, {ones});
  n.emit("Concat", {shape, ones}, {target}, {int_attribute("axis", 0)});
  n.emit("Reshape", {n.in(1), target}, {result});
  return result;
}
// An elementwise op of two operands.
void binary(NodeWriter& n, const char* op, std::string_view spec) {
  constexpr std::array<std::string_view, 1> handled = {"axis"};
  const Attributes a = n.attributes(spec, handled);
  n.emit(op, {n.in(0), n.attrs().has("axis") ? aligned(n) : n.in(1)}, {n.out(0)}, a);
}
void max(NodeWriter& n) { binary(n, "Max", ""); }
void min(NodeWriter& n) { binary(n, "Min", ""); }
void pad(NodeWriter& n) { rename(n, "Pad", "mode:s"); }
void slice(NodeWriter& n) { rename(n, "Slice", ""); }
void top_k(NodeWriter& n) { rename(n, "TopK", "axis:i largest:i sorted:i"); }
void reshape(NodeWriter& n) { rename(n, "Reshape", "allowzero:i"); }
void flatten(NodeWriter& n) { rename(n, "Flatten", "axis:i"); }
void dropout(NodeWriter& n) { rename(n, "Dropout", "seed:i"); }
void batch_norm(NodeWriter& n) { rename(n, "BatchNormalization", "epsilon:f momentum:f training_mode:i"); }
void group_norm(NodeWriter& n) { rename(n, "GroupNormalization", "epsilon:f num_groups:i stash_type:i"); }
void roi_align(NodeWriter& n) {
  rename(n, "RoiAlign",
         "coordinate_transformation_mode:s mode:s output_height:i output_width:i sampling_ratio:i "
         "spatial_scale:f");
}
void resize(NodeWriter& n) {
  rename(
      n, "Resize",
      "mode:s coordinate_transformation_mode:s nearest_mode:s keep_aspect_ratio_policy:s antialias:i axes:I "
      "cubic_coeff_a:f exclude_outside:i extrapolation_value:f");
}
void dft(NodeWriter& n) { rename(n, "DFT", "inverse:i onesided:i"); }
void head_attention(NodeWriter& n) {
  n.file().require(n.attrs().has("left_window_size") || n.attrs().has("right_window_size") ? 27 : 23);
  rename(n, "Attention",
         "is_causal:i kv_num_heads:i q_num_heads:i qk_matmul_output_mode:i scale:f softcap:f "
         "softmax_precision:i "
         "left_window_size:i right_window_size:i");
}
// The one form that ONNX has: padded rows by tables. As much as tables turn is a number there.
void rope(NodeWriter& n) {
  n.file().require(23);
  if (n.attrs().get_string("rows") != "padded" || n.has(2) || n.has(3))
    return n.fail("packed rows, frequencies or norms of heads");
  constexpr std::array<std::string_view, 2> handled = {"rows", "rotary_dim"};
  Attributes a = n.attributes("interleaved:i num_heads:i", handled);
  int64_t turned = n.attrs().get_int("rotary_dim");
  const Tensor* table = n.constant_in(4);
  if (turned < 0 && table == nullptr)
    return n.fail("tables that are computed say how much of a head is turned");
  if (turned < 0) turned = 2 * table->shape().cols();
  a.push_back(int_attribute("rotary_embedding_dim", turned));
  std::vector<std::string> in{n.in(0), n.in(4), n.in(5)};
  if (n.has(1)) in.push_back(n.in(1));
  n.emit("RotaryEmbedding", in, n.outs(), a);
}

void split(NodeWriter& n) {
  Attributes a = n.attributes("axis:i");
  if (!n.has(1)) a.push_back(int_attribute("num_outputs", static_cast<int64_t>(n.node().outputs.size())));
  n.emit("Split", n.ins(), n.outs(), a);
}

// Old models take everything from `axis` on as one row: flattened, and shaped back.
void softmax_of(NodeWriter& n, const char* op) {
  constexpr std::array<std::string_view, 2> handled = {"axis", "flatten"};
  n.attributes("", handled);
  const ProtoWriter axis = int_attribute("axis", n.attrs().get_int("axis", -1));
  if (n.attrs().get_int("flatten", 0) == 0) return n.emit(op, {n.in(0)}, {n.out(0)}, {axis});
  const std::string shape = n.fresh(), rows = n.fresh(), result = n.fresh();
  n.emit("Shape", {n.in(0)}, {shape});
  n.emit("Flatten", {n.in(0)}, {rows}, {axis});
  n.emit(op, {rows}, {result}, {int_attribute("axis", -1)});
  n.emit("Reshape", {result, shape}, {n.out(0)});
}
void softmax(NodeWriter& n) { softmax_of(n, "Softmax"); }
void log_softmax(NodeWriter& n) { softmax_of(n, "LogSoftmax"); }
void hardmax(NodeWriter& n) { softmax_of(n, "Hardmax"); }

// x sigmoid(alpha x). Swish came with opset 24, SwiGLU with 28; spelled out they are understood everywhere.
void swish_to(NodeWriter& n, const std::string& out) {
  constexpr std::array<std::string_view, 1> handled = {"alpha"};
  n.attributes("", handled);
  const double alpha = n.attrs().get_float("alpha", 1);
  std::string x = n.in(0);
  if (alpha != 1) {
    const std::string factor = n.fresh(), scaled = n.fresh();
    n.emit("CastLike", {n.number(static_cast<float>(alpha)), x}, {factor});
    n.emit("Mul", {x, factor}, {scaled});
    x = scaled;
  }
  const std::string gate = n.fresh();
  n.emit("Sigmoid", {x}, {gate});
  n.emit("Mul", {n.in(0), gate}, {out});
}
void swish(NodeWriter& n) { swish_to(n, n.out(0)); }
void swiglu(NodeWriter& n) {
  const std::string gate = n.fresh();
  swish_to(n, gate);
  n.emit("Mul", {gate, n.in(1)}, {n.out(0)});
}

void not_equal(NodeWriter& n) {
  const std::string equal = n.fresh();
  n.emit("Equal", {n.in(0), n.in(1)}, {equal}, n.attributes(""));
  n.emit("Not", {equal}, {n.out(0)});
}

// The value is an attribute there, a tensor of one element; where it is computed, it is spread instead.
void constant_of_shape(NodeWriter& n) {
  const Tensor* value = n.constant_in(1);
  if (value == nullptr || value->numel() != 1) return n.emit("Expand", {n.in(1), n.in(0)}, {n.out(0)});
  auto flat = Tensor::make(Shape({1}), value->format(), value->buffer());
  auto bytes = flat.ok() ? write_onnx_tensor(*flat, "") : Result<std::string>(flat.status());
  if (!bytes.ok()) return n.fail(bytes.status().message());
  n.emit("ConstantOfShape", {n.in(0)}, {n.out(0)}, {tensor_attribute("value", *bytes)});
}

// Ops whose one peculiar attribute is an element type.
void with_dtype(NodeWriter& n, const char* op, std::string_view ours, std::string_view theirs,
                std::string_view spec) {
  Attributes a = n.attributes(spec, {&ours, 1});
  n.dtype_attribute(ours, theirs, a);
  n.emit(op, n.ins(), n.outs(), a);
}
void eye_like(NodeWriter& n) { with_dtype(n, "EyeLike", "dtype", "dtype", "k:i"); }
void bernoulli(NodeWriter& n) { with_dtype(n, "Bernoulli", "dtype", "dtype", "seed:f"); }
void multinomial(NodeWriter& n) { with_dtype(n, "Multinomial", "dtype", "dtype", "sample_size:i seed:f"); }
void sequence_empty(NodeWriter& n) { with_dtype(n, "SequenceEmpty", "dtype", "dtype", ""); }
void mel_weight_matrix(NodeWriter& n) {
  with_dtype(n, "MelWeightMatrix", "output_datatype", "output_datatype", "");
}
void quantize_linear(NodeWriter& n) {
  if (n.attrs().has("precision")) n.file().require(23);
  with_dtype(n, "QuantizeLinear", "output_dtype", "output_dtype",
             "axis:i saturate:i block_size:i precision:i");
}
void dequantize_linear(NodeWriter& n) {
  if (n.attrs().has("output_dtype")) n.file().require(23);
  with_dtype(n, "DequantizeLinear", "output_dtype", "output_dtype", "axis:i block_size:i");
}

void window(NodeWriter& n) {
  constexpr std::array<std::string_view, 2> handled = {"kind", "dtype"};
  Attributes a = n.attributes("periodic:i", handled);
  n.dtype_attribute("dtype", "output_datatype", a);
  const std::string kind = n.attrs().get_string("kind");
  n.emit(kind == "hann"      ? "HannWindow"
         : kind == "hamming" ? "HammingWindow"
                             : "BlackmanWindow",
         {n.in(0)}, {n.out(0)}, a);
}

// The shape is an attribute there, or another tensor's.
void random_of(NodeWriter& n, const char* op, const char* like) {
  constexpr std::array<std::string_view, 1> handled = {"dtype"};
  Attributes a = n.attributes("mean:f scale:f low:f high:f seed:f", handled);
  n.dtype_attribute("dtype", "dtype", a);
  if (const Tensor* shape = n.constant_in(0); shape != nullptr && shape->format().dtype() == DType::kI64) {
    a.push_back(ints_attribute("shape", {elements<int64_t>(*shape), static_cast<size_t>(shape->numel())}));
    return n.emit(op, {}, {n.out(0)}, a);
  }
  if (n.has(1)) return n.emit(like, {n.in(1)}, {n.out(0)}, a);
  const std::string model = n.fresh();
  n.emit("ConstantOfShape", {n.in(0)}, {model});
  n.emit(like, {model}, {n.out(0)}, a);
}
void random_normal(NodeWriter& n) { random_of(n, "RandomNormal", "RandomNormalLike"); }
void random_uniform(NodeWriter& n) { random_of(n, "RandomUniform", "RandomUniformLike"); }

// ---- control flow: operands behind the formal ones are what a body reads from around it ----

void write_if(NodeWriter& n) {
  const auto then_inputs = static_cast<size_t>(n.attrs().get_int("then_inputs"));
  auto yes = n.body(0, 0, 1), no = n.body(1, 0, 1 + then_inputs);
  for (const auto* body : {&yes, &no})
    if (!body->ok()) return n.fail(body->status());
  n.emit("If", {n.in(0)}, n.outs(),
         {graph_attribute("then_branch", *yes), graph_attribute("else_branch", *no)});
}

// The first `formal` operands, and the body.
void with_body(NodeWriter& n, const char* op, size_t formal, size_t own, Attributes a,
               const std::vector<IoSpec>& inputs = {}, const std::vector<IoSpec>& outputs = {}) {
  auto body = n.body(0, own, formal, inputs, outputs);
  if (!body.ok()) return n.fail(body.status());
  std::vector<std::string> in;
  for (size_t i = 0; i < formal; ++i) in.push_back(n.in(i));
  a.push_back(graph_attribute("body", *body));
  n.emit(op, in, n.outs(), a);
}
void loop(NodeWriter& n) {
  const auto formal = static_cast<size_t>(n.attrs().get_int("states")) + 2;
  // onnxruntime wants to know that the trip count and the condition are scalars; states are what the node is
  // given, of extents that may change.
  std::vector<IoSpec> inputs(2);
  inputs[0].dtype = DType::kI64;
  inputs[1].dtype = DType::kBool;
  for (IoSpec& io : inputs) io.typed = io.ranked = true;
  for (size_t k = 2; k < formal; ++k) inputs.push_back(n.operand_spec(k));
  IoSpec condition;
  condition.dtype = DType::kBool;
  condition.typed = true;
  with_body(n, "Loop", formal, formal, {}, inputs, {condition});
}
void scan(NodeWriter& n) {
  if (n.attrs().get_int("batched", 0) != 0) return n.fail("it has the batch axis of opset 8");
  constexpr std::array<std::string_view, 3> handled = {"states", "scans", "batched"};
  Attributes a = n.attributes(
      "scan_input_directions:I scan_output_directions:I scan_input_axes:I scan_output_axes:I", handled);
  const int64_t scans = n.attrs().get_int("scans");
  a.push_back(int_attribute("num_scan_inputs", scans));
  const auto formal = static_cast<size_t>(n.attrs().get_int("states") + scans);
  with_body(n, "Scan", formal, formal, std::move(a));
}
void sequence_map(NodeWriter& n) {
  const auto formal = static_cast<size_t>(n.attrs().get_int("items"));
  with_body(n, "SequenceMap", formal, formal, {});
}

struct OnnxExport {
  std::string_view ours;
  void (*write)(NodeWriter&);
};
// As importers write it: one weight and a bias that broadcasts.
void linear(NodeWriter& n) {
  constexpr std::array<std::string_view, 2> handled = {"input_major", "matrix"};
  Attributes a = n.attributes("", handled);
  if (n.attrs().get_int("matrix") == 0 || n.node().inputs.size() != 4 || n.node().inputs[1] != kNoValue)
    return n.fail("a layer of several weights, of a residual or of more than two axes");
  if (n.attrs().get_int("input_major") == 0) a.push_back(int_attribute("transB", 1));
  n.emit("Gemm", {n.in(0), n.in(2), n.in(3)}, {n.out(0)}, a);
}

constexpr OnnxExport kExports[] = {
    {"batch_norm", batch_norm},
    {"bernoulli", bernoulli},
    {"bit_cast", bit_cast},
    {"cast", cast},
    {"clip", clip},
    {"constant_of_shape", constant_of_shape},
    {"head_attention", head_attention},
    {"dequantize_linear", dequantize_linear},
    {"dft", dft},
    {"dropout", dropout},
    {"eye_like", eye_like},
    {"flatten", flatten},
    {"group_norm", group_norm},
    {"hardmax", hardmax},
    {"if", write_if},
    {"linear", linear},
    {"log_softmax", log_softmax},
    {"loop", loop},
    {"max", max},
    {"mel_weight_matrix", mel_weight_matrix},
    {"min", min},
    {"multinomial", multinomial},
    {"not_equal", not_equal},
    {"pad", pad},
    {"quantize_linear", quantize_linear},
    {"random_normal", random_normal},
    {"random_uniform", random_uniform},
    {"reshape", reshape},
    {"resize", resize},
    {"roi_align", roi_align},
    {"rope", rope},
    {"scan", scan},
    {"sequence_empty", sequence_empty},
    {"sequence_map", sequence_map},
    {"slice", slice},
    {"softmax", softmax},
    {"silu", swish},
    {"split", split},
    {"swiglu", swiglu},
    {"top_k", top_k},
    {"window", window},
};

// A line of the importer's table, from right to left. What was an attribute before opset 13 or 18 is an
// operand since.
void from_table(NodeWriter& n, const OnnxOp& op) {
  n.file().require(op.since);
  const std::string_view ours = n.node().op->name;
  if (n.node().inputs.size() == 2 && n.attrs().has("axis") &&
      std::string_view(op.attrs).find("axis:") == std::string_view::npos)
    return binary(n, op.name, op.attrs);
  const bool axes = ours.starts_with("reduce_") || ours == "squeeze" || ours == "unsqueeze";
  // A window too large for its operand is an error in ONNX, whether Paddle would have cut it or not.
  constexpr std::array<std::string_view, 2> handled = {"cut_windows", "axes"};
  const Attributes a = n.attributes(op.attrs, std::span(handled).first(axes ? 2 : 1));
  std::vector<std::string> in = n.ins();
  if (axes && n.attrs().has("axes") && !n.has(1)) {
    in.resize(1);
    in.push_back(n.ints(n.attrs().get_ints("axes")));
  }
  n.emit(op.name, in, n.outs(), a);
}

}  // namespace

Status write_onnx_node(GraphWriter& graph, const Node& node) {
  NodeWriter n(graph, node);
  for (const OnnxExport& e : kExports) {
    if (e.ours != node.op->name) continue;
    e.write(n);
    return n.status();
  }
  const OnnxOp* op = find_onnx_spelling(node.op->name, graph.file().opset);
  if (op == nullptr) return unimplemented("ONNX has no op for it");
  from_table(n, *op);
  return n.status();
}

}  // namespace oar::onnx
