// Multi-head attention as exporters spell it becomes one head_attention of (B, S, H, D) queries, keys and
// values:
//
//   transpose(softmax(transpose(q) . transpose(k)^T * scale + mask) . transpose(v))
//
// with q, k and v split into heads by a reshape before, joined by one after. Spellings differ in where the
// scale is (a product or quotient after the scores, or of queries and keys) and in how k is turned (one
// transpose or two).
#include "engine/graph/pass.h"
#include "engine/graph/passes/match.h"

namespace oar::passes {
namespace {

using Perm = std::vector<int64_t>;

// The operand of a transpose by exactly `perm`.
ValueId turned_by(const Matcher& m, ValueId v, const Perm& perm) {
  const Node* t = m.made_by(v, "transpose");
  return t && t->attrs.get_ints("perm") == perm ? t->inputs[0] : kNoValue;
}

// Keys: (B, S, H, D) to (B, H, D, S), in one turn or in two.
ValueId keys_of(const Matcher& m, ValueId v) {
  if (const ValueId k = turned_by(m, v, {0, 2, 3, 1}); k != kNoValue) return k;
  const ValueId half = turned_by(m, v, {0, 1, 3, 2});
  return half == kNoValue ? kNoValue : turned_by(m, half, {0, 2, 1, 3});
}

// A value less the number it is multiplied with: some exporters scale queries and keys, not scores.
struct Split {
  ValueId value = kNoValue;
  double scale = 1;
};
const char* unscaled(const Matcher& m, ValueId v, Split& out) {
  out.value = v;
  const Node* n = m.maker(v);
  if (!n || m.uses(v) != 1) return nullptr;
  if (named(*n, "mul") && !n->attrs.has("axis")) {
    const auto a = m.number(n->inputs[0]), b = m.number(n->inputs[1]);
    if (!a && !b) return "queries or keys are multiplied with no number";
    out.scale = a ? *a : *b;
    out.value = n->inputs[a ? 1 : 0];
  } else if (named(*n, "div")) {
    const auto c = m.number(n->inputs[1]);
    if (!c || *c == 0) return "queries or keys are divided by no number";
    out.scale = 1 / *c;
    out.value = n->inputs[0];
  }
  return nullptr;
}

struct Heads {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue, mask = kNoValue;
  double scale = 1;
};

// scores = q . k^T * scale (+ mask). Null where they match, else the first condition that fails.
const char* match_scores(const Matcher& m, ValueId scores, Heads& h) {
  if (const Node* sum = m.made_by(scores, "add"); sum && !sum->attrs.has("axis")) {
    if (m.uses(scores) != 1) return "others read the masked scores too";
    // The scores are whichever operand leads to the product.
    const char* reason = "no operand of the sum before the softmax is a product";
    for (size_t side = 0; side < 2; ++side) {
      Heads inner;
      if (m.made_by(sum->inputs[side], "add")) continue;
      const char* why = match_scores(m, sum->inputs[side], inner);
      if (why) {
        if (m.made_by(sum->inputs[side], "matmul")) reason = why;
        continue;
      }
      h = inner;
      h.mask = sum->inputs[1 - side];
      return nullptr;
    }
    return reason;
  }
  for (int steps = 0; steps < 3; ++steps) {
    if (m.uses(scores) != 1) return "others read the scores too";
    const Node* n = m.maker(scores);
    if (!n) return "the scores come from outside";
    if (named(*n, "matmul")) {
      Split q, k;
      if (const char* why = unscaled(m, n->inputs[0], q)) return why;
      if (const char* why = unscaled(m, n->inputs[1], k)) return why;
      h.scale *= q.scale * k.scale;
      h.q = turned_by(m, q.value, {0, 2, 1, 3});
      h.k = keys_of(m, k.value);
      if (h.q == kNoValue) return "the queries are not transposed by (0, 2, 1, 3)";
      return h.k == kNoValue ? "the keys are not transposed by (0, 2, 3, 1), in one step or two" : nullptr;
    }
    if (named(*n, "mul") && !n->attrs.has("axis")) {
      const auto a = m.number(n->inputs[0]), b = m.number(n->inputs[1]);
      if (!a && !b) return "the scores are multiplied with no number";
      h.scale *= a ? *a : *b;
      scores = n->inputs[a ? 1 : 0];
    } else if (named(*n, "div")) {
      const auto c = m.number(n->inputs[1]);
      if (!c || *c == 0) return "the scores are divided by no number";
      h.scale /= *c;
      scores = n->inputs[0];
    } else {
      return "the scores come from no product";
    }
  }
  return "the scores are scaled more than twice";
}

// n = transpose(softmax(scores) . transpose(v)).
const char* match_attention(const Matcher& m, const Node& n, Heads& h) {
  const Node* product = m.made_by(n.inputs[0], "matmul");
  if (!product) return "no product before the transpose";
  if (m.uses(n.inputs[0]) != 1) return "others read the product with the values too";
  const Node* soft = m.made_by(product->inputs[0], "softmax");
  if (!soft) return "no softmax before the product with the values";
  if (m.uses(product->inputs[0]) != 1) return "others read the softmax too";
  const int64_t axis = soft->attrs.get_int("axis", -1);
  if (soft->attrs.get_int("flatten") != 0 || (axis != -1 && axis != 3))
    return "the softmax is not over the last axis";
  if (const char* why = match_scores(m, soft->inputs[0], h)) return why;
  h.v = turned_by(m, product->inputs[1], {0, 2, 1, 3});
  return h.v == kNoValue ? "the values are not transposed by (0, 2, 1, 3)" : nullptr;
}

}  // namespace

Result<int> fuse_attention(Graph& graph) {
  const OpDef* op = find_op("head_attention");
  const Matcher m(graph);
  int fused = 0;
  for (Node& n : graph.nodes()) {
    Heads h;
    if (!Matcher::whole(n) || !named(n, "transpose") || n.attrs.get_ints("perm") != Perm{0, 2, 1, 3} ||
        match_attention(m, n, h)) {
      continue;
    }
    n.op = op;
    n.inputs = {h.q, h.k, h.v, h.mask};
    n.attrs = Attrs{{"layout", std::string("bshd")}, {"scale", h.scale}, {"spelled", int64_t{1}}};
    ++fused;
  }
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  return fused;
}

std::vector<Refusal> explain_attention(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& product : graph.nodes()) {
    const Node* soft = named(product, "matmul") && Matcher::whole(product)
                           ? m.made_by(product.inputs[0], "softmax")
                           : nullptr;
    if (!soft) continue;
    // As the pass sees it: from the turn of the product.
    const char* reason = "the result is not transposed by (0, 2, 1, 3)";
    for (const Node& n : graph.nodes()) {
      if (!named(n, "transpose") || n.inputs.empty() || n.inputs[0] != product.outputs[0]) continue;
      Heads h;
      if (n.attrs.get_ints("perm") == Perm{0, 2, 1, 3}) reason = match_attention(m, n, h);
    }
    if (reason) out.push_back({node_label(*soft), node_label(product), reason});
  }
  return out;
}

}  // namespace oar::passes
