// Products of integers whose left operand is quantized by its own range in the run, as quantize_dynamic
// writes them:
//
//   codes, scale, zero = dynamic_quantize_linear(x)
//   y = cast(matmul_integer(codes, w, zero, w_zero?)) * (scale * w_scale)
//
// become one layer of codes, whose scale and zero point are operands. What follows is then its epilogue.
#include "engine/graph/passes/match.h"

namespace oar::passes {
namespace {

struct Layer {
  const Node* product = nullptr;
  const Node* quantized = nullptr;
  ValueId w_scale = kNoValue;
  const char* reason = nullptr;  // why it stays apart; null: it does not
};

bool is_all_zero(const Tensor& t) {
  for (int64_t k = 0; k < t.numel(); ++k)
    if (element_as_int(t, k) != 0) return false;
  return true;
}

const char* why_no_weights(const Matcher& m, const Node& product, ValueId scale) {
  const Tensor *w = m.constant(product.inputs[1]), *s = m.f32_constant(scale);
  const ValueId zero = Matcher::operand(product, 3);
  const Tensor* z = m.constant(zero);
  if (!w || w->format().dtype() != DType::kI8 || w->shape().rank() != 2 || w->numel() == 0)
    return "the weights are no constant matrix of i8";
  if (zero != kNoValue && (!z || !is_all_zero(*z))) return "the weights' zero point is not 0";
  if (!s || s->shape().rank() > 1 || (s->numel() != 1 && s->numel() != w->shape()[1]))
    return "the weights' scale is no f32 constant, one for all or per column";
  return nullptr;
}

// Of `n`, a product by scales. Nothing where it is none of a product of integers.
std::optional<Layer> layer_of(const Matcher& m, const Node& n) {
  if (!named(n, "mul") || !Matcher::whole(n)) return {};
  for (const size_t at : {0, 1}) {
    const Node* cast = m.made_by(n.inputs[at], "cast");
    const Node* product = cast ? m.made_by(cast->inputs[0], "matmul_integer") : nullptr;
    if (!product || product->inputs.size() < 3) continue;
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
  for (Node& n : graph.nodes()) {
    const auto l = layer_of(m, n);
    if (!l || l->reason) continue;
    const std::vector<ValueId>& q = l->quantized->outputs;
    n.op = find_op("quantized_linear");
    n.inputs = {q[0], l->product->inputs[1], l->w_scale, kNoValue, kNoValue, q[1], q[2]};
    n.attrs = Attrs{{"input_major", int64_t{1}}, {"y_dtype", std::string("f32")}};
    n.name = l->product->name;
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
