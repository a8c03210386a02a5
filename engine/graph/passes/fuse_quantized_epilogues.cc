// What follows an 8-bit layer with an f32 result becomes part of its call: bias and residual, bounds and
// activations, and the quantization of the result, which then never exists as floats. After
// fuse_definitions, which makes one op of activations that files spell; relu and clip alone fuse_quantized
// takes by itself.
#include <algorithm>
#include <limits>

#include "engine/graph/passes/absorb.h"

namespace oar::passes {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

bool is_quantized_layer(const Node& n) {
  return (named(n, "quantized_conv") || named(n, "quantized_linear")) &&
         n.attrs.get_string("y_dtype") == "f32";
}
bool bounded(const Node& n) {
  return n.attrs.get_float("low", -kUnbounded) > -kUnbounded ||
         n.attrs.get_float("high", kUnbounded) < kUnbounded;
}
bool has_residual(const Node& n) { return Matcher::operand(n, 4) != kNoValue; }

// One number per filter: along the last axis of a product, along the channels of images.
bool is_layer_bias(const Matcher& m, const Node& n, const Tensor& t) {
  const Tensor* w = m.constant(Matcher::operand(n, 1));
  const int64_t M = w ? w->shape()[filter_axis(n)] : 0;
  const bool images = named(n, "quantized_conv");
  const int rank = t.shape().rank(), axis = rank - (images ? 3 : 1);
  return t.numel() == M && axis >= 0 && !(images && rank > 4) && t.shape()[axis] == M;
}

const char* why_not_sum(const Matcher& m, const Node& n, const Node& sum) {
  if (sum.attrs.has("axis")) return "the sum names an axis";
  if (sum.inputs[0] == sum.inputs[1]) return "both operands are the same";
  if (n.attrs.has("activation") || bounded(n)) return "bounds or an activation end the call already";
  if (has_residual(n)) return "a residual was added before";
  const ValueId other = sum.inputs[sum.inputs[0] == n.outputs[0] ? 1 : 0];
  if (other == kNoValue) return "the other operand is missing";
  if (!m.constant(other)) return nullptr;
  const Tensor* t = m.f32_constant(other);
  if (!t || !is_layer_bias(m, n, *t)) return "the constant added is not one f32 number per filter";
  return Matcher::operand(n, 3) == kNoValue ? nullptr : "there is a bias already";
}

// A quantization with one constant scale and zero point.
const char* why_not_quantize(const Matcher& m, const Node& n, const Node& q) {
  if (Matcher::operand(n, 5) != kNoValue) return "the operand's scale is known in the run alone";
  const Tensor *s = m.f32_constant(Matcher::operand(q, 1)), *z = m.constant(Matcher::operand(q, 2));
  if (!s || s->numel() != 1 || !z || z->numel() != 1 || q.attrs.get_int("block_size") != 0)
    return "the scale or the zero point is no constant, or not one for all";
  if (z->format().dtype() != DType::kU8 && z->format().dtype() != DType::kI8)
    return "the integers are not of 8 bits";
  const double scale = element_as_double(*s, 0);
  return scale > 0 && std::isfinite(scale) ? nullptr : "the scale is not positive";
}

// Null where `reader`, the only one of n's result, can become part of n.
const char* why_not(const Matcher& m, const Node& n, const Node& reader) {
  if (!Matcher::whole(reader) || reader.outputs.size() != 1) return "the reader has other than one result";
  if (named(reader, "add")) return why_not_sum(m, n, reader);
  if (reader.inputs[0] != n.outputs[0]) return "the reader has the result as another operand";
  if (named(reader, "quantize_linear"))
    return has_residual(n) ? "a residual was added before" : why_not_quantize(m, n, reader);
  const auto e = ending_of(m, reader);
  if (!e) return "no call ends with this op";
  if (n.attrs.has("activation")) return "an activation ends the call already";
  if (e->kind != "relu" && e->kind != "clip" && has_residual(n))
    return "behind a residual a call ends with bounds alone";
  if (e->kind != "relu" && e->kind != "clip" && bounded(n)) return "bounds end the call already";
  return nullptr;
}

Result<bool> take(Graph&, const Matcher& m, Node& n, const Node& reader) {
  if (!is_quantized_layer(n) || why_not(m, n, reader)) return false;
  if (named(reader, "add")) {
    const ValueId other = reader.inputs[reader.inputs[0] == n.outputs[0] ? 1 : 0];
    const size_t at = m.constant(other) ? 3 : 4;
    while (n.inputs.size() <= at) n.inputs.push_back(kNoValue);
    n.inputs[at] = other;
    return true;
  }
  if (named(reader, "quantize_linear")) {
    const Tensor& zero = *m.constant(reader.inputs[2]);
    n.attrs.set("y_dtype", std::string(zero.format().dtype() == DType::kI8 ? "i8" : "u8"));
    n.attrs.set("y_scale", element_as_double(*m.constant(reader.inputs[1]), 0));
    n.attrs.set("y_zero", element_as_int(zero, 0));
    return true;
  }
  const Ending e = *ending_of(m, reader);
  if (e.kind == "relu" || e.kind == "clip") {
    const bool relu = e.kind == "relu";
    n.attrs.set("low", std::max(n.attrs.get_float("low", -kUnbounded), relu ? 0 : e.alpha));
    n.attrs.set("high", std::min(n.attrs.get_float("high", kUnbounded), relu ? kUnbounded : e.beta));
  } else {
    n.attrs.set("activation", e.kind);
    n.attrs.set("act_alpha", e.alpha);
    n.attrs.set("act_beta", e.beta);
  }
  return true;
}

}  // namespace

Result<int> fuse_quantized_epilogues(Graph& graph) { return absorb_readers(graph, take); }

std::vector<Refusal> explain_quantized_epilogues(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& reader : graph.nodes()) {
    for (const ValueId v : reader.inputs) {
      const Node* n = m.maker(v);
      if (!n || n->outputs.size() != 1 || !is_quantized_layer(*n)) continue;
      if (!named(reader, "add") && !named(reader, "quantize_linear") && !ending_of(m, reader)) continue;
      const char* reason = m.uses(v) != 1 ? "others read the result too" : why_not(m, *n, reader);
      out.push_back(
          {node_label(*n), node_label(reader), reason ? reason : "the sum went into its other operand"});
    }
  }
  return out;
}

}  // namespace oar::passes
