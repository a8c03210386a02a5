// Finds activations and layer norms that a file spells in smaller ops. Products are matched as sets of
// factors and one number, so that the many spellings (x/2 first or last, a division or a multiplication) are
// one:
//
//   x (erf(x / sqrt 2) + 1) / 2             gelu
//   x sigmoid(x)                            silu
//   x hard_sigmoid(x), x clip(x+3, 0, 6)/6  hard_swish
//   (x - mean x) / sqrt(mean((x - mean x)^2) + eps) g + b     layer_norm over the last axis
#include "engine/graph/pass.h"
#include "engine/graph/passes/match.h"

namespace oar::passes {
namespace {

struct Product {
  std::vector<ValueId> factors;
  double scale = 1;
};

// Multiplies v into p, looking through products and quotients with numbers.
void factor(const Matcher& m, ValueId v, int depth, Product& p) {
  const Node* n = depth > 0 ? m.maker(v) : nullptr;
  if (n && named(*n, "mul") && !n->attrs.has("axis")) {
    for (ValueId in : n->inputs) {
      if (const auto c = m.number(in)) p.scale *= *c;
      else factor(m, in, depth - 1, p);
    }
    return;
  }
  if (n && named(*n, "div")) {
    if (const auto c = m.number(n->inputs[1]); c && *c != 0) {
      p.scale /= *c;
      return factor(m, n->inputs[0], depth - 1, p);
    }
  }
  p.factors.push_back(v);
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-5 * std::abs(b); }

// v = x + c for a number c.
bool is_sum(const Matcher& m, ValueId v, ValueId x, double c) {
  const Node* n = m.made_by(v, "add");
  if (!n) return false;
  return (n->inputs[0] == x && m.is_number(n->inputs[1], c)) ||
         (n->inputs[1] == x && m.is_number(n->inputs[0], c));
}

struct Found {
  const char* op = nullptr;
  std::vector<ValueId> inputs;
  Attrs attrs;
};

// The gate g(x) of a product x g(x) scale.
bool gate(const Matcher& m, ValueId x, ValueId g, double scale, Found& found) {
  const Node* n = m.maker(g);
  if (!n) return false;
  found.inputs = {x};
  if (named(*n, "sigmoid") && n->inputs[0] == x && scale == 1) return found.op = "silu", true;
  if (named(*n, "hard_sigmoid") && n->inputs[0] == x && scale == 1) {
    found.op = "hard_swish";
    found.attrs =
        Attrs{{"alpha", n->attrs.get_float("alpha", 0.2)}, {"beta", n->attrs.get_float("beta", 0.5)}};
    return true;
  }
  if (named(*n, "clip") && near(scale, 1.0 / 6) && is_sum(m, n->inputs[0], x, 3)) {
    const auto low = m.number(Matcher::operand(*n, 1));
    if (!low || *low != 0 || !m.is_number(Matcher::operand(*n, 2), 6)) return false;
    return found.op = "hard_swish", true;
  }
  if (named(*n, "add") && near(scale, 0.5)) {
    for (int side = 0; side < 2; ++side) {
      const Node* erf = m.made_by(n->inputs[static_cast<size_t>(side)], "erf");
      if (!erf || !m.is_number(n->inputs[static_cast<size_t>(1 - side)], 1)) continue;
      Product inner;
      factor(m, erf->inputs[0], 2, inner);
      if (inner.factors == std::vector<ValueId>{x} && near(inner.scale, 0.70710678))
        return found.op = "gelu", true;
    }
  }
  return false;
}

bool match_gated(const Matcher& m, const Node& root, Found& found) {
  if (!named(root, "mul") && !named(root, "div")) return false;
  Product p;
  factor(m, root.outputs[0], 3, p);
  if (p.factors.size() != 2) return false;
  return gate(m, p.factors[0], p.factors[1], p.scale, found) ||
         gate(m, p.factors[1], p.factors[0], p.scale, found);
}

// Whether n reduces the last axis alone and keeps it, as far as the attributes say.
bool over_last(const Matcher& m, const Node& n) {
  std::vector<int64_t> axes = n.attrs.get_ints("axes");
  if (const Tensor* t = m.constant(Matcher::operand(n, 1))) {
    axes.clear();
    for (int64_t k = 0; k < t->numel(); ++k) axes.push_back(element_as_int(*t, k));
  }
  return axes == std::vector<int64_t>{-1} && n.attrs.get_int("keepdims", 1) != 0;
}

// root = (x - mean x) / sqrt(mean((x - mean x)^2) + eps) g + b. Null where it is, else the first condition
// that fails; "" where root does not even end like a norm.
const char* match_layer_norm(const Matcher& m, const Node& root, Found& found) {
  const char* reason = "";
  if (!named(root, "add") || root.attrs.has("axis")) return reason;
  for (size_t side = 0; side < 2; ++side) {
    const Tensor* bias = m.f32_constant(root.inputs[1 - side]);
    const Node* scaled = m.made_by(root.inputs[side], "mul");
    if (!scaled || scaled->attrs.has("axis")) continue;
    for (size_t k = 0; k < 2; ++k) {
      const Tensor* gain = m.f32_constant(scaled->inputs[1 - k]);
      const Node* quotient = m.made_by(scaled->inputs[k], "div");
      const Node* root_of = quotient ? m.made_by(quotient->inputs[1], "sqrt") : nullptr;
      if (!quotient || !root_of) continue;
      const ValueId d = quotient->inputs[0];
      const Node* difference = m.made_by(d, "sub");
      const Node* sum = m.made_by(root_of->inputs[0], "add");
      if (!bias || !gain || bias->shape().rank() != 1 || gain->shape().rank() != 1 ||
          !(gain->shape() == bias->shape())) {
        reason = "gain and bias are not f32 constants of one axis";
        continue;
      }
      if (!difference || !sum) {
        reason = "the quotient is not of a difference and the root of a sum";
        continue;
      }
      const ValueId x = difference->inputs[0];
      const Node* mean = m.made_by(difference->inputs[1], "reduce_mean");
      if (!mean || mean->inputs[0] != x || !over_last(m, *mean)) {
        reason = "what is subtracted is not the mean over the last axis";
        continue;
      }
      for (size_t s = 0; s < 2; ++s) {
        const auto epsilon = m.number(sum->inputs[1 - s]);
        const Node* variance = m.made_by(sum->inputs[s], "reduce_mean");
        if (!epsilon || !variance || !over_last(m, *variance)) {
          reason = "below the root is not a mean over the last axis and a number";
          continue;
        }
        const Node* power = m.made_by(variance->inputs[0], "pow");
        const Node* square = m.made_by(variance->inputs[0], "mul");
        const Node* squared = m.made_by(variance->inputs[0], "square");
        if ((power && power->inputs[0] == d && m.is_number(power->inputs[1], 2)) ||
            (square && square->inputs[0] == d && square->inputs[1] == d) ||
            (squared && squared->inputs[0] == d)) {
          found = {"layer_norm",
                   {x, scaled->inputs[1 - k], root.inputs[1 - side]},
                   Attrs{{"axis", int64_t{-1}}, {"epsilon", *epsilon}}};
          return nullptr;
        }
        reason = "the variance is not of the difference squared";
      }
    }
  }
  return reason;
}

}  // namespace

Result<int> fuse_spelled(Graph& graph) {
  int fused = 0;
  // Nothing here outdates the matcher: a root is replaced in place and its operands stay until dce.
  const Matcher m(graph);
  for (Node& node : graph.nodes()) {
    Found found;
    if (!Matcher::whole(node) || node.outputs.size() != 1) continue;
    if (!match_gated(m, node, found) && match_layer_norm(m, node, found)) continue;
    node.op = find_op(found.op);
    OAR_CHECK(node.op && node.op->evaluate, "a fused op does not exist");
    node.inputs = found.inputs;
    node.attrs = found.attrs;
    ++fused;
  }
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  return fused;
}

std::vector<Refusal> explain_spelled(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& n : graph.nodes()) {
    if (!Matcher::whole(n) || n.outputs.size() != 1) continue;
    Found found;
    if (named(n, "erf"))
      out.push_back({node_label(n), "", "it does not stand in x (erf(x / sqrt 2) + 1) / 2"});
    const char* reason = match_layer_norm(m, n, found);
    if (reason && *reason != 0)
      out.push_back(
          {node_label(*m.maker(n.inputs[m.made_by(n.inputs[0], "mul") ? 0 : 1])), node_label(n), reason});
  }
  return out;
}

}  // namespace oar::passes
