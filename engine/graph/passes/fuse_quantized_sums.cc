// The sum that ends a residual block of 8-bit integers becomes part of the convolution before it: the kernel
// rounds to the convolution's scale, adds the other operand and rounds to the sum's
// (kernels/quantized_conv.h), so that results are the same to the bit and one pass over memory is saved.
#include "engine/graph/pass.h"
#include "engine/graph/passes/match.h"

namespace oar::passes {
namespace {

// Null where the convolution that makes operand `side` of a sum can take it over.
const char* why_not_sum(const Matcher& m, const Node& sum, size_t side) {
  const Node* conv = m.made_by(sum.inputs[side], "quantized_conv");
  if (!conv) return "the operand is made by no convolution";
  if (m.uses(sum.inputs[side]) != 1) return "others read the convolution too";
  if (sum.inputs[0] == sum.inputs[1]) return "both operands are the same";
  if (Matcher::operand(*conv, 4) != kNoValue) return "another sum went into the convolution";
  if (conv->attrs.get_string("y_dtype", "f32") == "f32") return "the convolution's result is f32";
  // What rounding to the convolution's scale leaves is what the sum takes it for.
  if (conv->attrs.get_float("y_scale", 1) != sum.attrs.get_float(side == 0 ? "a_scale" : "b_scale", 1) ||
      conv->attrs.get_int("y_zero") != sum.attrs.get_int(side == 0 ? "a_zero" : "b_zero"))
    return "the sum reads the convolution with another scale";
  return nullptr;
}

// Which operand's convolution takes the sum: of two the later one, which then runs last anyway. -1: none.
int side_of(const Matcher& m, const Node& sum) {
  int best = -1;
  for (size_t side = 0; side < 2; ++side) {
    if (why_not_sum(m, sum, side)) continue;
    if (best < 0 || m.producer(sum.inputs[side]) > m.producer(sum.inputs[1 - side]))
      best = static_cast<int>(side);
  }
  return best;
}

void take_sum(Node& sum, const Node& conv, size_t side) {
  const Attrs own = sum.attrs;
  const ValueId other = sum.inputs[1 - side];
  sum.op = conv.op, sum.name = conv.name;
  sum.inputs = conv.inputs;
  constexpr size_t kOther = 4;
  while (sum.inputs.size() <= kOther) sum.inputs.push_back(kNoValue);
  sum.inputs[kOther] = other;
  sum.attrs = conv.attrs;
  const char *mine = side == 0 ? "a" : "b", *others = side == 0 ? "b" : "a";
  sum.attrs.set("sum.a_scale", own.get_float(cat(mine, "_scale"), 1));
  sum.attrs.set("sum.a_zero", own.get_int(cat(mine, "_zero")));
  sum.attrs.set("sum.b_scale", own.get_float(cat(others, "_scale"), 1));
  sum.attrs.set("sum.b_zero", own.get_int(cat(others, "_zero")));
  for (const char* name : {"y_scale", "low", "high"}) sum.attrs.set(cat("sum.", name), own.get_float(name));
  sum.attrs.set("sum.y_zero", own.get_int("y_zero"));
  sum.attrs.set("sum.y_dtype", own.get_string("y_dtype"));
}

}  // namespace

Result<int> fuse_quantized_sums(Graph& graph) {
  const Matcher m(graph);
  int fused = 0;
  for (Node& n : graph.nodes()) {
    if (!named(n, "quantized_add") || n.inputs.size() != 2) continue;
    const int side = side_of(m, n);
    if (side < 0) continue;
    take_sum(n, *m.maker(n.inputs[static_cast<size_t>(side)]), static_cast<size_t>(side));
    ++fused;
  }
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  return fused;
}

std::vector<Refusal> explain_quantized_sums(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& n : graph.nodes()) {
    if (!named(n, "quantized_add") || n.inputs.size() != 2) continue;
    for (size_t side = 0; side < 2; ++side) {
      const int p = m.producer(n.inputs[side]);
      if (const char* reason = why_not_sum(m, n, side))
        out.push_back(
            {p < 0 ? "" : node_label(graph.nodes()[static_cast<size_t>(p)]), node_label(n), reason});
    }
  }
  return out;
}

}  // namespace oar::passes
