// Multi-head attention as exporters spell it becomes one head_attention:
//
//   softmax(q . k^T * scale + mask) . v
//
// of heads (B, H, S, D); or, where q, k and v are turned to that from (B, S, H, D) and the result is turned
// back, of these without any turn. Spellings differ in where the scale is (a product or quotient after the
// scores, or of queries and keys), in how k is turned (one transpose or two, or by way of heads as batches),
// in masks that choose between 0 and -infinity, and in whether a row without any key is made zeros behind the
// softmax. (There a NaN among a row's scores would become zeros as well; here it stays.)
#include "engine/graph/pass.h"
#include "engine/graph/passes/match.h"
#include "engine/graph/passes/static_extents.h"

namespace oar::passes {
namespace {

using Perm = std::vector<int64_t>;

// The operand of a transpose by exactly `perm`.
ValueId turned_by(const Matcher& m, ValueId v, const Perm& perm) {
  const Node* t = m.made_by(v, "transpose");
  return t && t->attrs.get_ints("perm") == perm ? t->inputs[0] : kNoValue;
}

// A value of heads (B, H, S, D), or (B, S, H, D) before it was turned to that; or both.
struct Side {
  ValueId heads = kNoValue, rows = kNoValue;
};
Side side_of(const Matcher& m, ValueId v) { return {v, turned_by(m, v, {0, 2, 1, 3})}; }

// Keys that are turned with heads as batches: reshaped to (B H, S, D), turned, and reshaped to (B, H, D, S).
// Extents are read from the keys or are numbers: then the keys' own must be known, but for S.
ValueId keys_by_batches(const Matcher& m, const StaticExtents& extents, ValueId v) {
  const Node* apart = m.made_by(v, "reshape");
  const ValueId turned = apart != nullptr ? turned_by(m, apart->inputs[0], {0, 2, 1}) : kNoValue;
  const Node* together = m.made_by(turned, "reshape");
  if (together == nullptr || extents.rank(together->inputs[0]) != 4) return kNoValue;
  const ValueId k = together->inputs[0];
  const auto three = extents.wanted(*together), four = extents.wanted(*apart);
  if (!three || three->size() != 3 || !four || four->size() != 4) return kNoValue;
  const auto is = [&](const StaticExtents::Entry& e, int64_t axis) {
    if (e.of != kNoValue) return e.of == k && e.axis == axis;
    const auto own = extents.extent(k, static_cast<int>(3 - axis));
    return own && *own == e.number;
  };
  if (!is((*four)[0], 0) || !is((*four)[1], 1) || !is((*four)[2], 3) || !is((*three)[2], 3)) return kNoValue;
  // S follows from the others where it is one number on both sides.
  const bool same = (*three)[1] == (*four)[3];
  const bool read = is((*three)[1], 2) && is((*four)[3], 2);
  return read || (same && (*three)[1].of == kNoValue && (*three)[1].number > 0) ? k : kNoValue;
}

// Keys as the scores' product has them, (B, H, D, S).
Side keys_of(const Matcher& m, const StaticExtents& extents, ValueId v) {
  if (const ValueId k = turned_by(m, v, {0, 2, 3, 1}); k != kNoValue) return {kNoValue, k};
  ValueId heads = turned_by(m, v, {0, 1, 3, 2});
  if (heads == kNoValue) heads = keys_by_batches(m, extents, v);
  return heads == kNoValue ? Side{} : side_of(m, heads);
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
  Side q, k, v;
  ValueId mask = kNoValue;
  double scale = 1;
  bool blind_is_zero = false;
};

// The mask itself, or what a mask of 0 and -infinity chooses by.
ValueId chosen_keys(const Matcher& m, ValueId mask) {
  const Node* choice = m.made_by(mask, "where");
  if (choice == nullptr || choice->inputs.size() != 3) return mask;
  const auto seen = m.number(choice->inputs[1]), hidden = m.number(choice->inputs[2]);
  return seen && hidden && *seen == 0 && *hidden == -INFINITY ? choice->inputs[0] : mask;
}

// scores = q . k^T * scale (+ mask). Null where they match, else the first condition that fails.
const char* match_scores(const Matcher& m, const StaticExtents& extents, ValueId scores, Heads& h) {
  if (const Node* sum = m.made_by(scores, "add"); sum && !sum->attrs.has("axis")) {
    if (m.uses(scores) != 1) return "others read the masked scores too";
    // The scores are whichever operand leads to the product.
    const char* reason = "no operand of the sum before the softmax is a product";
    for (size_t side = 0; side < 2; ++side) {
      Heads inner;
      if (m.made_by(sum->inputs[side], "add")) continue;
      const char* why = match_scores(m, extents, sum->inputs[side], inner);
      if (why) {
        if (m.made_by(sum->inputs[side], "matmul")) reason = why;
        continue;
      }
      h = inner;
      h.mask = chosen_keys(m, sum->inputs[1 - side]);
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
      h.q = side_of(m, q.value);
      h.k = keys_of(m, extents, k.value);
      return h.k.heads == kNoValue && h.k.rows == kNoValue
                 ? "the keys are not transposed by (0, 2, 3, 1), in one step or several"
                 : nullptr;
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

// product = softmax(scores) . v.
const char* match_attention(const Matcher& m, const StaticExtents& extents, const Node& product, Heads& h) {
  ValueId weights = product.inputs[0];
  // where(is_nan(w), 0, w)
  if (const Node* guard = m.made_by(weights, "where"); guard && guard->inputs.size() == 3) {
    const Node* odd = m.made_by(guard->inputs[0], "is_nan");
    const auto none = m.number(guard->inputs[1]);
    if (!odd || odd->inputs[0] != guard->inputs[2] || !none || *none != 0 || m.uses(weights) != 1 ||
        m.uses(guard->inputs[0]) != 1 || m.uses(guard->inputs[2]) != 2)
      return "no softmax before the product with the values";
    weights = guard->inputs[2];
    h.blind_is_zero = true;
  } else if (m.uses(weights) != 1) {
    return "others read the softmax too";
  }
  const Node* soft = m.made_by(weights, "softmax");
  if (!soft) return "no softmax before the product with the values";
  const int64_t axis = soft->attrs.get_int("axis", -1);
  if (soft->attrs.get_int("flatten") != 0 || (axis != -1 && axis != 3))
    return "the softmax is not over the last axis";
  const bool zero = h.blind_is_zero;
  if (const char* why = match_scores(m, extents, soft->inputs[0], h)) return why;
  h.blind_is_zero = zero;
  h.v = side_of(m, product.inputs[1]);
  return nullptr;
}
bool of_rows(const Heads& h) { return h.q.rows != kNoValue && h.k.rows != kNoValue && h.v.rows != kNoValue; }
const char* known_heads(const StaticExtents& extents, const Heads& h) {
  for (const Side* s : {&h.q, &h.k, &h.v}) {
    if (s->heads == kNoValue) return "of queries, keys and values some are turned to heads and some are not";
    if (extents.rank(s->heads) != 4) return "queries, keys or values are not known to have four axes";
  }
  return nullptr;
}

// By value: the only reader that turns it by (0, 2, 1, 3).
std::vector<int> turns_back(const Graph& g, const Matcher& m) {
  std::vector<int> out(g.num_values(), -1);
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& n = g.nodes()[i];
    if (Matcher::whole(n) && named(n, "transpose") && n.attrs.get_ints("perm") == Perm{0, 2, 1, 3} &&
        m.uses(n.inputs[0]) == 1)
      out[static_cast<size_t>(n.inputs[0])] = static_cast<int>(i);
  }
  return out;
}

}  // namespace

Result<int> fuse_attention(Graph& graph) {
  const OpDef* op = find_op("head_attention");
  const Matcher m(graph);
  const StaticExtents extents(graph);
  const std::vector<int> turned = turns_back(graph, m);
  int fused = 0;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& product = graph.nodes()[i];
    Heads h;
    if (!named(product, "matmul") || !Matcher::whole(product) || match_attention(m, extents, product, h))
      continue;
    const int turn = turned[static_cast<size_t>(product.outputs[0])];
    const bool rows = turn >= 0 && of_rows(h);
    if (!rows && known_heads(extents, h)) continue;
    Node& n = graph.nodes()[rows ? static_cast<size_t>(turn) : i];
    n.op = op;
    n.attrs = Attrs{{"scale", h.scale}, {"spelled", int64_t{1}}};
    if (rows) n.inputs = {h.q.rows, h.k.rows, h.v.rows, h.mask}, n.attrs.set("layout", std::string("bshd"));
    else n.inputs = {h.q.heads, h.k.heads, h.v.heads, h.mask};
    if (h.blind_is_zero) n.attrs.set("blind_is_zero", int64_t{1});
    ++fused;
  }
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  return fused;
}

std::vector<Refusal> explain_attention(const Graph& graph) {
  const Matcher m(graph);
  const StaticExtents extents(graph);
  std::vector<Refusal> out;
  for (const Node& product : graph.nodes()) {
    const Node* soft = named(product, "matmul") && Matcher::whole(product)
                           ? m.made_by(product.inputs[0], "softmax")
                           : nullptr;
    if (!soft) continue;
    Heads h;
    const char* reason = match_attention(m, extents, product, h);
    if (!reason) reason = known_heads(extents, h);
    if (reason) out.push_back({node_label(*soft), node_label(product), reason});
  }
  return out;
}

}  // namespace oar::passes
