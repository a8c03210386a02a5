// Products and convolutions of integers whose left operand is quantized by its own range in the run, as
// quantize_dynamic writes them:
//
//   codes, scale, zero = dynamic_quantize_linear(x)
//   y = cast(matmul_integer(codes, w, zero, w_zero?)) * (scale * w_scale)      (or conv_integer)
//
// become one layer of codes, whose scale and zero point are operands. What follows is then its epilogue.
// Weights of u8 become i8, 128 less, and so do their zero points.
#include "engine/graph/passes/signed_weights.h"

namespace oar::passes {
namespace {

struct Layer {
  const Node* product = nullptr;
  const Node* quantized = nullptr;
  ValueId w_scale = kNoValue;
  const char* reason = nullptr;  // why it stays apart; null: it does not
};

bool is_conv(const Node& product) { return named(product, "conv_integer"); }

// One number for all, or one per filter: a vector, or of images' channels (M, 1, 1) or (1, M, 1, 1).
bool one_or_each(const Tensor& t, int64_t M, bool conv) {
  const Shape& s = t.shape();
  if (t.numel() == 1) return s.rank() <= 1;
  if (t.numel() != M) return false;
  return conv ? (s.rank() == 3 || s.rank() == 4) && s[s.rank() - 3] == M : s.rank() == 1;
}

const char* why_no_weights(const Matcher& m, const Node& product, ValueId scale) {
  const bool conv = is_conv(product);
  const Tensor *w = m.constant(product.inputs[1]), *s = m.f32_constant(scale);
  const ValueId zero = Matcher::operand(product, 3);
  const Tensor* z = m.constant(zero);
  if (!w || !is_byte(*w) || w->shape().rank() != (conv ? 4 : 2) || w->numel() == 0)
    return "the weights are no constant of 8-bit integers, a matrix or filters of images";
  const int64_t M = w->shape()[conv ? 0 : 1], groups = product.attrs.get_int("group", 1);
  if (conv && groups != 1 && (groups != M || w->shape()[1] != 1))
    return "there are groups of several channels";
  if ((zero != kNoValue && !z) || !are_zeros_of(*w, z, M))
    return "the weights' zero point is no constant of their type, one for all or per filter";
  if (!s || !one_or_each(*s, M, conv))
    return "the weights' scale is no f32 constant, one for all or per filter";
  return nullptr;
}

// Of `n`, a product by scales. Nothing where it is none of a product of integers.
std::optional<Layer> layer_of(const Matcher& m, const Node& n) {
  if (!named(n, "mul") || !Matcher::whole(n)) return {};
  for (const size_t at : {0, 1}) {
    const Node* cast = m.made_by(n.inputs[at], "cast");
    const Node* product = cast ? m.maker(cast->inputs[0]) : nullptr;
    if (!product || !(named(*product, "matmul_integer") || is_conv(*product)) || product->inputs.size() < 3)
      continue;
    Layer l;
    l.product = product;
    const auto refuse = [&](const char* reason) {
      l.reason = reason;
      return l;
    };
    if (cast->attrs.get_string("to", "f32") != "f32") return refuse("the sums become no f32");
    if (m.uses(n.inputs[at]) != 1 || m.uses(cast->inputs[0]) != 1) return refuse("others read the sums too");
    l.quantized = m.made_by(product->inputs[0], "dynamic_quantize_linear");
    if (!l.quantized || l.quantized->outputs.size() != 3 || product->inputs[0] != l.quantized->outputs[0] ||
        product->inputs[2] != l.quantized->outputs[2])
      return refuse("the operand and its zero point are of no DynamicQuantizeLinear");
    const Node* scales = m.made_by(n.inputs[1 - at], "mul");
    if (!scales || !Matcher::whole(*scales)) return refuse("the scale is no product of both operands'");
    const size_t own = scales->inputs[0] == l.quantized->outputs[1] ? 0 : 1;
    if (scales->inputs[own] != l.quantized->outputs[1]) return refuse("the scale is of another operand");
    l.w_scale = scales->inputs[1 - own];
    l.reason = why_no_weights(m, *product, l.w_scale);
    return l;
  }
  return {};
}

}  // namespace

Result<int> fuse_dynamic(Graph& graph) {
  int fused = 0;
  const Matcher m(graph);
  SignedWeights weights(graph);
  for (Node& n : graph.nodes()) {
    const auto l = layer_of(m, n);
    if (!l || l->reason) continue;
    const std::vector<ValueId>& q = l->quantized->outputs;
    const Node& product = *l->product;
    const bool conv = is_conv(product);
    const ValueId w = product.inputs[1];
    OAR_ASSIGN(const ValueId signed_w, weights.weights(w));
    OAR_ASSIGN(const ValueId zeros, weights.zeros(w, Matcher::operand(product, 3)));
    std::vector<ValueId> inputs{q[0], signed_w, l->w_scale, kNoValue, kNoValue, q[1], q[2]};
    if (zeros != kNoValue) inputs.push_back(zeros);
    Attrs attrs = conv ? product.attrs : Attrs{{"input_major", int64_t{1}}};
    attrs.set("y_dtype", std::string("f32"));
    n.name = product.name;
    n.op = find_op(conv ? "quantized_conv" : "quantized_linear");
    n.inputs = std::move(inputs);
    n.attrs = std::move(attrs);
    ++fused;
  }
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  return fused;
}

std::vector<Refusal> explain_dynamic(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& n : graph.nodes()) {
    const auto l = layer_of(m, n);
    if (l && l->reason) out.push_back({node_label(*l->product), node_label(n), l->reason});
  }
  return out;
}

}  // namespace oar::passes
