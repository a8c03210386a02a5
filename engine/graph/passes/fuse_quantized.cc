// What files spell as DequantizeLinear, an op of floats and QuantizeLinear becomes one op of 8-bit integers,
// and so do QLinearConv and QLinearMatMul with constant weights:
//
//   quantize(act(conv(dequantize x, dequantize w, b)))    quantized_conv, also without the quantize: f32 out
//   quantize(act(dequantize x . dequantize w + b))        quantized_linear, from matmul and gemm
//   quantize(act(dequantize a + dequantize b))            quantized_add
//   quantize(move(dequantize x)) with equal scales        max pools, transposes and concatenations on
//                                                         integers:
//                                                         what is moved does not depend on its scale
//
// Scales and zero points must be constants, of weights one for all or one per filter. Weights of u8 become
// i8, 128 less, and so do their zero points. Activations in between are bounds (relu, clip). Runs before
// constants are folded, which would make floats of the weights.
#include <algorithm>
#include <limits>

#include "engine/graph/pass.h"
#include "engine/graph/passes/signed_weights.h"

namespace oar::passes {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A tensor of 8-bit integers whose real value is (q - zero) scale.
struct Integers {
  ValueId q = kNoValue;
  double scale = 1;
  int64_t zero = 0;
  DType dtype = DType::kU8;
};

const char* byte_name(DType t) { return t == DType::kI8 ? "i8" : "u8"; }

// A convolution of one group, or of one per channel with one filter each.
bool one_or_each(const Node& n, const Shape& weight) {
  const int64_t groups = n.attrs.get_int("group", 1);
  return groups == 1 || (weight[1] == 1 && weight[0] == groups);
}

class Quantizer {
 public:
  // weight_zeros: layers may have weights with zero points.
  Quantizer(Graph& g, bool weight_zeros)
      : g_(g), m_(g), signed_(g), weight_zeros_(weight_zeros), readers_(g.num_values()) {
    for (size_t i = 0; i < g.nodes().size(); ++i) {
      for (ValueId v : g.nodes()[i].inputs) {
        if (v != kNoValue) readers_[static_cast<size_t>(v)] = static_cast<int>(i);
      }
    }
  }

  // The first condition that failed for a node with a dequantized operand; null: it has none.
  const char* reason() const { return reason_; }

  // Makes an integer op of node i where it can; its last node takes the result over. An error is one of
  // memory.
  Result<bool> rewrite(size_t i) {
    const Node n = g_.nodes()[i];
    reason_ = nullptr;
    if (!Matcher::whole(n) || n.outputs.size() != 1) return false;
    if (named(n, "conv")) return layer(i, n, "quantized_conv");
    if (named(n, "matmul") || named(n, "linear")) return layer(i, n, "quantized_linear");
    if (named(n, "add")) return sum(i, n);
    for (const char* name :
         {"max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "concat"}) {
      if (named(n, name)) return move(i, n);
    }
    if (named(n, "qlinear_conv")) return qlinear(i, n, "quantized_conv");
    if (named(n, "qlinear_matmul")) return qlinear(i, n, "quantized_linear");
    return false;
  }

 private:
  bool refuse(const char* reason) {
    reason_ = reason;
    return false;
  }

  // Scale and zero point of operands k and k + 1, both of one element.
  bool parameters(const Node& n, size_t k, Integers& to) const {
    const Tensor *s = m_.f32_constant(Matcher::operand(n, k)), *z = m_.constant(Matcher::operand(n, k + 1));
    if (!s || s->numel() != 1 || !z || z->numel() != 1 || !is_byte(z->format().dtype())) return false;
    to.scale = element_as_double(*s, 0);
    to.zero = element_as_int(*z, 0);
    to.dtype = z->format().dtype();
    return to.scale > 0 && std::isfinite(to.scale);
  }
  std::optional<Integers> dequantized(ValueId v) const {
    const Node* n = m_.made_by(v, "dequantize_linear");
    Integers x;
    if (!n || m_.constant(n->inputs[0]) || n->attrs.get_int("block_size") != 0 || !parameters(*n, 1, x))
      return {};
    x.q = n->inputs[0];
    return x;
  }
  // Constant weights of bytes with f32 scales, per tensor or per entry of `axis`. Sums of nothing are left to
  // the definitions.
  struct Weights {
    ValueId w = kNoValue, scale = kNoValue, zero = kNoValue;
  };
  std::optional<Weights> weights(ValueId w, ValueId scale, ValueId zero, int64_t axis,
                                 int64_t given_axis) const {
    const Tensor *t = m_.constant(w), *s = m_.f32_constant(scale), *z = m_.constant(zero);
    if (!t || !is_byte(*t) || t->numel() == 0 || !s || s->shape().rank() > 1) return {};
    const int rank = t->shape().rank();
    if (axis >= rank) return {};
    const int64_t M = t->shape()[static_cast<int>(axis)];
    const bool each = s->numel() != 1 || (z && z->numel() != 1);
    if (each && (given_axis < 0 ? given_axis + rank : given_axis) != axis) return {};
    if (s->numel() != 1 && s->numel() != M) return {};
    if ((zero != kNoValue && !z) || !are_zeros_of(*t, z, M)) return {};
    if (!weight_zeros_ && !are_symmetric(*t, z)) return {};
    return Weights{w, scale, zero};
  }
  static bool are_symmetric(const Tensor& w, const Tensor* zero) {
    if (w.format().dtype() != DType::kI8) return false;
    for (int64_t k = 0; zero && k < zero->numel(); ++k) {
      if (element_as_int(*zero, k) != 0) return false;
    }
    return true;
  }
  std::optional<Weights> dequantized_weights(ValueId v, int64_t axis) const {
    const Node* n = m_.made_by(v, "dequantize_linear");
    if (!n || n->attrs.get_int("block_size") != 0) return {};
    return weights(n->inputs[0], Matcher::operand(*n, 1), Matcher::operand(*n, 2), axis,
                   n->attrs.get_int("axis", 1));
  }
  // A bias of M values: i32 in units of x_scale w_scale, or f32. kNoValue in, kNoValue out.
  std::optional<ValueId> bias_of(ValueId v, const Integers& x, const Weights& w, int64_t M) const {
    if (v == kNoValue) return kNoValue;
    if (const Tensor* t = m_.f32_constant(v)) return t->numel() == M ? std::optional(v) : std::nullopt;
    const Node* n = m_.made_by(v, "dequantize_linear");
    const Tensor* q = n ? m_.constant(n->inputs[0]) : nullptr;
    const Tensor* s = n ? m_.f32_constant(Matcher::operand(*n, 1)) : nullptr;
    const Tensor *z = n ? m_.constant(Matcher::operand(*n, 2)) : nullptr, *ws = m_.f32_constant(w.scale);
    if (!q || !s || q->format().dtype() != DType::kI32 || q->numel() != M ||
        (s->numel() != 1 && s->numel() != M))
      return {};
    for (int64_t k = 0; k < M; ++k) {
      const double unit = x.scale * element_as_double(*ws, ws->numel() == 1 ? 0 : k);
      if (std::abs(element_as_double(*s, s->numel() == 1 ? 0 : k) - unit) > 1e-5 * unit) return {};
    }
    for (int64_t k = 0; z && k < z->numel(); ++k) {
      if (element_as_int(*z, k) != 0) return {};
    }
    return n->inputs[0];
  }

  // What follows a value that nobody else reads: bounds, then a quantize. `end` is the node whose result is
  // the op's; the node itself where nothing fits.
  struct Tail {
    double low = -kInfinity, high = kInfinity;
    bool integers = false;
    Integers y;
    size_t end = 0;
  };
  const Node* only_reader(size_t i) const {
    const ValueId v = g_.nodes()[i].outputs[0];
    const int r = m_.uses(v) == 1 ? readers_[static_cast<size_t>(v)] : -1;
    const Node* n = r < 0 ? nullptr : &g_.nodes()[static_cast<size_t>(r)];
    return n && Matcher::whole(*n) && n->inputs[0] == v && n->outputs.size() == 1 ? n : nullptr;
  }
  Tail tail_of(size_t i) const {
    Tail t;
    t.end = i;
    const Node* next = only_reader(i);
    if (next && named(*next, "relu")) t.low = 0;
    else if (next && named(*next, "clip")) {
      const ValueId lo = Matcher::operand(*next, 1), hi = Matcher::operand(*next, 2);
      const auto a = m_.number(lo), b = m_.number(hi);
      if ((lo != kNoValue && !a) || (hi != kNoValue && !b)) return t;
      t.low = a.value_or(-kInfinity), t.high = b.value_or(kInfinity);
    }
    if (t.low > -kInfinity || t.high < kInfinity) {
      t.end = static_cast<size_t>(next - g_.nodes().data());
      next = only_reader(t.end);
    }
    if (next && named(*next, "quantize_linear") && next->attrs.get_int("block_size") == 0 &&
        parameters(*next, 1, t.y)) {
      t.integers = true;
      t.end = static_cast<size_t>(next - g_.nodes().data());
    }
    return t;
  }

  static void describe(Attrs& attrs, const Tail& t) {
    attrs.set("low", t.low);
    attrs.set("high", t.high);
    attrs.set("y_dtype", std::string(t.integers ? byte_name(t.y.dtype) : "f32"));
    if (!t.integers) return;
    attrs.set("y_scale", t.y.scale);
    attrs.set("y_zero", t.y.zero);
  }
  // The node at `end` becomes the op.
  Result<bool> become_layer(size_t end, const Node& from, const char* op, ValueId x, const Weights& w,
                            ValueId bias, Attrs attrs) {
    OAR_ASSIGN(const ValueId codes, signed_.weights(w.w));
    OAR_ASSIGN(const ValueId zeros, signed_.zeros(w.w, w.zero));
    std::vector<ValueId> inputs{x, codes, w.scale, bias};
    if (zeros != kNoValue) inputs.insert(inputs.end(), {kNoValue, kNoValue, kNoValue, zeros});
    return become(end, from, op, std::move(inputs), std::move(attrs));
  }
  bool become(size_t end, const Node& from, const char* op, std::vector<ValueId> inputs, Attrs attrs) {
    Node& n = g_.nodes()[end];
    n.op = find_op(op);
    OAR_CHECK(n.op && n.op->evaluate, "a fused op does not exist");
    n.inputs = std::move(inputs);
    n.attrs = std::move(attrs);
    n.name = from.name;
    return true;
  }

  Result<bool> layer(size_t i, const Node& n, const char* op) {
    const auto x = dequantized(n.inputs[0]);
    if (!x) return false;
    const bool conv = named(n, "conv");
    if (!conv && n.inputs.size() > 4) return refuse("there are several weights");
    const LayerOperands at = layer_operands(n);
    const int axis = filter_axis(n);
    const auto w = dequantized_weights(Matcher::operand(n, at.weight), axis);
    const Tensor* t = w ? m_.constant(w->w) : nullptr;
    if (!t)
      return refuse(
          weight_zeros_
              ? "the weights are no constant bytes of one scale and zero point for all or per filter"
              : "the weights are no constant of i8 with zero point 0, one scale for all or per filter");
    if (t->shape().rank() != (conv ? 4 : 2)) return refuse("the weights are of no image or matrix");
    if (conv && !one_or_each(n, t->shape())) return refuse("there are groups of several channels");
    const auto bias = bias_of(Matcher::operand(n, at.bias), *x, *w, t->shape()[axis]);
    if (!bias) return refuse("the bias is no constant of f32, or i32 in units of the operands' scales");
    const Tail tail = tail_of(i);
    Attrs attrs =
        conv ? n.attrs : Attrs{{"input_major", int64_t{axis}}, {"matrix", n.attrs.get_int("matrix")}};
    attrs.set("x_scale", x->scale);
    attrs.set("x_zero", x->zero);
    describe(attrs, tail);
    return become_layer(tail.end, n, op, x->q, *w, *bias, std::move(attrs));
  }

  // (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias?)
  Result<bool> qlinear(size_t i, const Node& n, const char* op) {
    const bool conv = named(n, "qlinear_conv");
    Integers x;
    Tail tail;
    tail.end = i, tail.integers = true;
    if (n.inputs.size() < 8 || m_.constant(n.inputs[0]) || !parameters(n, 1, x) || !parameters(n, 6, tail.y))
      return false;
    const int64_t axis = conv ? 0 : 1;
    const auto w = weights(n.inputs[3], n.inputs[4], n.inputs[5], axis, axis);
    const Tensor* t = w ? m_.constant(w->w) : nullptr;
    if (!t || t->shape().rank() != (conv ? 4 : 2) || (conv && !one_or_each(n, t->shape()))) return false;
    const ValueId bias = Matcher::operand(n, 8);
    const Tensor* b = m_.constant(bias);
    if (bias != kNoValue &&
        (!b || b->format().dtype() != DType::kI32 || b->numel() != t->shape()[static_cast<int>(axis)]))
      return false;
    Attrs attrs = conv ? n.attrs : Attrs{{"input_major", int64_t{1}}};
    attrs.set("x_scale", x.scale);
    attrs.set("x_zero", x.zero);
    describe(attrs, tail);
    return become_layer(i, n, op, n.inputs[0], *w, bias, std::move(attrs));
  }

  bool sum(size_t i, const Node& n) {
    if (n.attrs.has("axis")) return false;
    const auto a = dequantized(n.inputs[0]), b = dequantized(n.inputs[1]);
    const Tail tail = tail_of(i);
    if (!a && !b) return false;
    if (!a || !b) return refuse("the other operand is not quantized");
    if (!tail.integers) return refuse("the sum is not quantized");
    Attrs attrs{{"a_scale", a->scale}, {"a_zero", a->zero}, {"b_scale", b->scale}, {"b_zero", b->zero}};
    describe(attrs, tail);
    return become(tail.end, n, "quantized_add", {a->q, b->q}, std::move(attrs));
  }

  bool move(size_t i, const Node& n) {
    const auto x = dequantized(n.inputs[0]);
    if (!x) return false;
    const Tail tail = tail_of(i);
    const auto same = [&](const Integers& o) {
      return o.scale == x->scale && o.zero == x->zero && o.dtype == x->dtype;
    };
    if (!tail.integers || tail.low > -kInfinity || tail.high < kInfinity || !same(tail.y))
      return refuse("the result is not quantized with the operand's scale");
    std::vector<ValueId> inputs = n.inputs;
    inputs[0] = x->q;
    for (size_t k = 1; named(n, "concat") && k < inputs.size(); ++k) {
      const auto o = dequantized(inputs[k]);
      if (!o || !same(*o)) return refuse("the operands are not quantized with one scale");
      inputs[k] = o->q;
    }
    return become(tail.end, n, n.op->name, std::move(inputs), n.attrs);
  }

  Graph& g_;
  const Matcher m_;
  SignedWeights signed_;
  const bool weight_zeros_;
  std::vector<int> readers_;
  const char* reason_ = nullptr;
};

Result<int> fuse(Graph& graph, bool weight_zeros) {
  int fused = 0;
  // A rewritten node takes the place of the last one of its pattern; what led there is dropped by dce, and
  // the matcher's producers of what others match stay as they were.
  Quantizer q(graph, weight_zeros);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    OAR_ASSIGN(const bool one, q.rewrite(i));
    fused += one;
  }
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  return fused;
}

std::vector<Refusal> explain(const Graph& graph, bool weight_zeros) {
  Graph scratch = graph;
  Quantizer q(scratch, weight_zeros);
  std::vector<Refusal> out;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    const auto made = q.rewrite(i);
    if (!made.ok() || *made || !q.reason()) continue;
    const int p = graph.producers()[static_cast<size_t>(n.inputs[0])];
    out.push_back(
        {p < 0 ? "" : node_label(graph.nodes()[static_cast<size_t>(p)]), node_label(n), q.reason()});
  }
  return out;
}

}  // namespace

Result<int> fuse_quantized(Graph& graph) { return fuse(graph, true); }
Result<int> fuse_quantized_symmetric(Graph& graph) { return fuse(graph, false); }
std::vector<Refusal> explain_quantized(const Graph& graph) { return explain(graph, true); }
std::vector<Refusal> explain_quantized_symmetric(const Graph& graph) { return explain(graph, false); }

}  // namespace oar::passes
