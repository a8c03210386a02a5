// Multi-head attention as exporters spell it becomes one op on (B, S, H, D) queries, keys and values:
//
//   transpose(softmax(transpose(q) . transpose(k)^T * scale + mask) . transpose(v))
//
// with q, k and v split into heads by a reshape before, joined by one after. Spellings differ in where the
// scale is (a product or quotient after the scores) and in how k is turned (one transpose or two).
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

struct Heads {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue, mask = kNoValue;
  double scale = 1;
};

// scores = q . k^T * scale (+ mask)
bool match_scores(const Matcher& m, ValueId scores, Heads& h) {
  if (const Node* sum = m.made_by(scores, "add"); sum && !sum->attrs.has("axis")) {
    if (m.uses(scores) != 1) return false;
    // The scores are whichever operand leads to the product.
    for (size_t side = 0; side < 2; ++side) {
      Heads inner;
      if (m.made_by(sum->inputs[side], "add") || !match_scores(m, sum->inputs[side], inner)) continue;
      h = inner;
      h.mask = sum->inputs[1 - side];
      return true;
    }
    return false;
  }
  for (int steps = 0; steps < 2; ++steps) {
    if (m.uses(scores) != 1) return false;
    const Node* n = m.maker(scores);
    if (!n) return false;
    if (named(*n, "matmul")) {
      h.q = turned_by(m, n->inputs[0], {0, 2, 1, 3});
      h.k = keys_of(m, n->inputs[1]);
      return h.q != kNoValue && h.k != kNoValue;
    }
    if (named(*n, "mul") && !n->attrs.has("axis")) {
      const auto a = m.number(n->inputs[0]), b = m.number(n->inputs[1]);
      if (!a && !b) return false;
      h.scale *= a ? *a : *b;
      scores = n->inputs[a ? 1 : 0];
    } else if (named(*n, "div")) {
      const auto c = m.number(n->inputs[1]);
      if (!c || *c == 0) return false;
      h.scale /= *c;
      scores = n->inputs[0];
    } else {
      return false;
    }
  }
  return false;
}

}  // namespace

Result<int> fuse_attention(Graph& graph) {
  const OpDef* op = find_op("head_attention");
  const Matcher m(graph);
  int fused = 0;
  for (Node& n : graph.nodes()) {
    if (!Matcher::whole(n) || !named(n, "transpose") || n.attrs.get_ints("perm") != Perm{0, 2, 1, 3})
      continue;
    const Node* product = m.made_by(n.inputs[0], "matmul");
    if (!product || m.uses(n.inputs[0]) != 1) continue;
    const Node* soft = m.made_by(product->inputs[0], "softmax");
    if (!soft || m.uses(product->inputs[0]) != 1 || soft->attrs.get_int("flatten") != 0) continue;
    const int64_t axis = soft->attrs.get_int("axis", -1);
    Heads h;
    if ((axis != -1 && axis != 3) || !match_scores(m, soft->inputs[0], h)) continue;
    h.v = turned_by(m, product->inputs[1], {0, 2, 1, 3});
    if (h.v == kNoValue) continue;
    n.op = op;
    n.inputs = {h.q, h.k, h.v, h.mask};
    n.attrs = Attrs{{"scale", h.scale}};
    ++fused;
  }
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  return fused;
}

}  // namespace oar::passes
