// With u and v the two elements of all pairs, and tables c and s:
//
//   halves       concat(u c - v s, v c + u s), u and v halves of the last axis
//   a sum        x C + concat(-v, u) S, tables as wide as x; the pairs may be interleaved
//   a stack      (u c - v s, v c + u s) as a new last axis, which is flattened; u and v every second element,
//                or the two columns of x as pairs (complex numbers)
//   part of it   one of these of the first elements of a last axis, and the rest behind it
#include "engine/graph/passes/rope_spellings.h"

#include <algorithm>
#include <optional>

#include "engine/graph/op.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/algebra.h"
#include "engine/graph/passes/static_extents.h"

namespace oar::passes {
namespace {

// Entries begin, begin + step, ... before `end` of the last axis of x, which has `whole`.
struct Part {
  ValueId x = kNoValue;
  int64_t begin = 0, end = 0, step = 1, whole = 0;
};

// Where the pairs come from.
struct Pairs {
  ValueId x = kNoValue;  // its last axis holds them; or, as columns, (..., pairs, 2)
  int64_t turned = 0;    // elements of that axis, 0: of columns, all
  int64_t whole = 0;
  bool interleaved = false;
  int rank = 0;  // of x, where it is columns; else 0
};

struct Found {
  size_t node = 0;
  Pairs pairs;
  ValueId cos = kNoValue, sin = kNoValue;
  bool flattens = false;  // the node is the reshape behind a stack, and stays
};

class Finder {
 public:
  explicit Finder(const Graph& g) : g_(g), algebra_(g), extents_(g) {}

  std::optional<Found> found(size_t i) const {
    const Node& n = g_.nodes()[i];
    if (n.outputs.size() != 1 || n.inputs.empty() || g_.value(n.outputs[0]).type.known) return std::nullopt;
    std::optional<Found> f;
    if (n.is("concat")) f = halves(n);
    else if (n.is("reshape")) f = flattened(n);
    else if (n.is("add")) f = sum(n);
    if (f) f->node = i;
    return f;
  }

  // concat(rope(part), rest): the rope, and what both are parts of.
  std::optional<Part> partial(const Node& n, const Node** rope) const {
    if (n.outputs.size() != 1 || g_.value(n.outputs[0]).type.known || !joins_last(n, 2)) return std::nullopt;
    const Node* r = extents_.maker(n.inputs[0]);
    if (r == nullptr || !r->is("rope") || r->inputs.size() != 6 || r->attrs.has("rotary_dim") ||
        r->attrs.has("rows") || algebra_.uses(n.inputs[0]) != 1)
      return std::nullopt;
    const auto head = part(r->inputs[0]), rest = part(n.inputs[1]);
    if (!head || !rest || head->x != rest->x || head->begin != 0 || head->step != 1 || rest->step != 1 ||
        rest->begin != head->end || rest->end != rest->whole)
      return std::nullopt;
    *rope = r;
    return head;
  }

 private:
  // A concatenation of so many values along their last axis.
  bool joins_last(const Node& n, size_t count) const {
    if (!n.is("concat") || n.inputs.size() != count) return false;
    const int64_t axis = n.attrs.get_int("axis");
    return std::all_of(n.inputs.begin(), n.inputs.end(), [](ValueId v) { return v != kNoValue; }) &&
           std::any_of(n.inputs.begin(), n.inputs.end(),
                       [&](ValueId v) { return extents_.is_last(axis, v); });
  }

  std::optional<Part> part(ValueId v) const {
    const Node* n = extents_.maker(v);
    if (n == nullptr || (!n->is("slice") && !n->is("split"))) return std::nullopt;
    const auto whole = extents_.extent(n->inputs[0]);
    if (!whole) return std::nullopt;
    Part p{n->inputs[0], 0, 0, 1, *whole};
    if (n->is("split")) {
      if (!extents_.is_last(n->attrs.get_int("axis"), p.x)) return std::nullopt;
      const auto k =
          static_cast<size_t>(std::find(n->outputs.begin(), n->outputs.end(), v) - n->outputs.begin());
      const auto sizes = extents_.part_sizes(*n, p.whole);
      if (!sizes || k >= sizes->size()) return std::nullopt;
      for (size_t j = 0; j < k; ++j) p.begin += (*sizes)[j];
      p.end = p.begin + (*sizes)[k];
      return p;
    }
    const auto starts = extents_.ints(*n, 1, "starts"), ends = extents_.ints(*n, 2, "ends"),
               axes = extents_.ints(*n, 3, "axes"), steps = extents_.ints(*n, 4, "steps");
    if (!starts || !ends || !axes || starts->size() != 1 || ends->size() != 1 || axes->size() != 1 ||
        !extents_.is_last((*axes)[0], p.x) || (steps && (steps->size() != 1 || (*steps)[0] < 1)) ||
        (!steps && n->inputs.size() > 4))
      return std::nullopt;
    const auto inside = [&](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + p.whole : at, 0, p.whole);
    };
    p.begin = inside((*starts)[0]), p.end = inside((*ends)[0]);
    if (steps) p.step = (*steps)[0];
    return p;
  }

  // Column k of (..., 2), without that axis; -1: v is none. Sets `of`.
  int column(ValueId v, ValueId* of) const {
    const Node* n = extents_.maker(v);
    if (n == nullptr) return -1;
    if (n->is("gather") && n->inputs.size() == 2) {
      *of = n->inputs[0];
      const Value& index = g_.value(n->inputs[1]);
      if (index.kind != ValueKind::kConstant || index.constant.shape().rank() != 0 ||
          !extents_.is_last(n->attrs.get_int("axis"), *of))
        return -1;
      const auto at = extents_.ints(*n, 1, "");
      return at && ((*at)[0] == 0 || (*at)[0] == 1) ? static_cast<int>((*at)[0]) : -1;
    }
    if (!n->is("squeeze")) return -1;
    const auto axes = extents_.ints(*n, 1, "axes");
    const auto p = part(n->inputs[0]);
    if (!p || !axes || axes->size() != 1 || !extents_.is_last((*axes)[0], n->inputs[0]) ||
        p->end - p->begin != 1 || p->begin > 1)
      return -1;
    *of = p->x;
    return static_cast<int>(p->begin);
  }

  // u and v as the first and the second elements of the same pairs.
  std::optional<Pairs> pairs(ValueId u, ValueId v) const {
    if (const auto a = part(u), b = part(v); a && b && a->x == b->x && a->step == b->step) {
      if (a->step == 1 && a->begin == 0 && b->begin == a->end && b->end == 2 * a->end && a->end > 0)
        return Pairs{a->x, b->end, a->whole, false, 0};
      if (a->step == 2 && a->begin == 0 && b->begin == 1 && a->end >= a->whole - 1 && b->end == a->whole &&
          a->whole % 2 == 0)
        return Pairs{a->x, a->whole, a->whole, true, 0};
      return std::nullopt;
    }
    ValueId of = kNoValue, other = kNoValue;
    if (column(u, &of) != 0 || column(v, &other) != 1 || of != other) return std::nullopt;
    const auto rank = extents_.rank(of);
    if (!rank || *rank < 2 || extents_.extent(of) != 2) return std::nullopt;
    return Pairs{of, 0, 0, true, *rank};
  }

  // The pairs, turned: first = u c - v s, second = v c + u s.
  std::optional<Found> turned(ValueId first, ValueId second) const {
    if (!algebra_.arithmetic(first) || !algebra_.arithmetic(second)) return std::nullopt;
    Poly p = algebra_.poly(first), q = algebra_.poly(second);
    const auto products = [](const Poly& poly) {
      return poly.size() == 2 && std::all_of(poly.begin(), poly.end(), [](const Term& t) {
               return t.powers.size() == 2 && t.powers[0].second == 1 && t.powers[1].second == 1;
             });
    };
    if (!products(p) || !products(q) || q[0].scale != 1 || q[1].scale != 1) return std::nullopt;
    if (p[0].scale == -1) std::swap(p[0], p[1]);
    if (p[0].scale != 1 || p[1].scale != -1) return std::nullopt;
    const auto is = [](const Term& t, ValueId a, ValueId b) {
      return (t.powers[0].first == a && t.powers[1].first == b) ||
             (t.powers[0].first == b && t.powers[1].first == a);
    };
    for (const size_t i : {size_t{0}, size_t{1}}) {
      for (const size_t j : {size_t{0}, size_t{1}}) {
        const ValueId u = p[0].powers[i].first, c = p[0].powers[1 - i].first;
        const ValueId v = p[1].powers[j].first, s = p[1].powers[1 - j].first;
        if (!((is(q[0], v, c) && is(q[1], u, s)) || (is(q[1], v, c) && is(q[0], u, s)))) continue;
        if (const auto found = pairs(u, v)) return Found{0, *found, c, s, false};
      }
    }
    return std::nullopt;
  }

  // Operands of a stack along a new last axis.
  const Node* stack(ValueId v, ValueId* first, ValueId* second) const {
    const Node* n = extents_.maker(v);
    if (n == nullptr || n->inputs.size() != 2 || !n->is("concat") || algebra_.uses(v) != 1) return nullptr;
    ValueId* const out[] = {first, second};
    for (size_t k = 0; k < 2; ++k) {
      const Node* one = extents_.maker(n->inputs[k]);
      const auto axes =
          one != nullptr && one->is("unsqueeze") ? extents_.ints(*one, 1, "axes") : std::nullopt;
      if (!axes || axes->size() != 1 || !extents_.is_last((*axes)[0], n->inputs[k])) return nullptr;
      *out[k] = one->inputs[0];
    }
    return joins_last(*n, 2) ? n : nullptr;
  }

  std::optional<Found> halves(const Node& n) const {
    if (!joins_last(n, 2) && !joins_last(n, 3)) return std::nullopt;
    auto f = turned(n.inputs[0], n.inputs[1]);
    if (!f || f->pairs.interleaved) return std::nullopt;
    if (n.inputs.size() == 2) return f->pairs.turned == f->pairs.whole ? f : std::nullopt;
    const auto rest = part(n.inputs[2]);
    if (!rest || rest->x != f->pairs.x || rest->step != 1 || rest->begin != f->pairs.turned ||
        rest->end != rest->whole)
      return std::nullopt;
    return f;
  }

  // What flattens a stack keeps the order of elements, whatever it makes of the axes before.
  bool flattens(const Node& reshape, int rank) const {
    const auto to = extents_.target(reshape);
    if (!to || reshape.attrs.get_int("allowzero") != 0) return false;
    for (size_t k = static_cast<size_t>(rank) - 2; k < to->size(); ++k) {
      if ((*to)[k] == 0) return false;  // the extent of an axis that is another one behind rope
    }
    return true;
  }

  std::optional<Found> flattened(const Node& n) const {
    ValueId first = kNoValue, second = kNoValue;
    const Node* joined = stack(n.inputs[0], &first, &second);
    if (joined == nullptr) return std::nullopt;
    auto f = turned(first, second);
    if (!f || !f->pairs.interleaved) return std::nullopt;
    // At least so many axes: tables may have more.
    const auto axes = extents_.rank(f->pairs.x);
    if (!axes || !flattens(n, f->pairs.rank > 0 ? *axes : *axes + 1)) return std::nullopt;
    f->flattens = true;
    return f;
  }

  // x C + y S, where y has the pairs of x turned by a quarter: (-v, u).
  std::optional<Found> sum(const Node& n) const {
    if (n.inputs.size() != 2 || n.attrs.has("axis")) return std::nullopt;
    const Node *left = extents_.maker(n.inputs[0]), *right = extents_.maker(n.inputs[1]);
    for (const Node* side : {left, right}) {
      if (side == nullptr || !side->is("mul") || side->inputs.size() != 2 || side->attrs.has("axis") ||
          side->inputs[0] == kNoValue || side->inputs[1] == kNoValue)
        return std::nullopt;
    }
    if (algebra_.uses(n.inputs[0]) != 1 || algebra_.uses(n.inputs[1]) != 1) return std::nullopt;
    for (const bool swapped : {false, true}) {
      const Node &plain = swapped ? *right : *left, &quarter = swapped ? *left : *right;
      for (const size_t k : {size_t{0}, size_t{1}}) {
        const auto f = quarter_of(quarter.inputs[k]);
        if (!f) continue;
        for (const size_t j : {size_t{0}, size_t{1}}) {
          if (plain.inputs[j] == f->x) return Found{0, *f, plain.inputs[1 - j], quarter.inputs[1 - k], false};
        }
      }
    }
    return std::nullopt;
  }
  // Of a whole last axis.
  std::optional<Pairs> quarter_of(ValueId y) const {
    if (algebra_.uses(y) != 1) return std::nullopt;
    const Node* n = extents_.maker(y);
    if (n == nullptr) return std::nullopt;
    ValueId first = kNoValue, second = kNoValue;
    const bool flat = n->is("reshape");
    if (flat) {
      if (stack(n->inputs[0], &first, &second) == nullptr) return std::nullopt;
    } else if (joins_last(*n, 2)) {
      first = n->inputs[0], second = n->inputs[1];
    } else {
      return std::nullopt;
    }
    if (!algebra_.arithmetic(first)) return std::nullopt;
    const Poly p = algebra_.poly(first);
    if (p.size() != 1 || p[0].scale != -1 || p[0].powers.size() != 1 || p[0].powers[0].second != 1)
      return std::nullopt;
    const auto f = pairs(second, p[0].powers[0].first);
    if (!f || f->rank > 0 || f->interleaved != flat || f->turned != f->whole) return std::nullopt;
    if (!flat) return f;
    // Shaped as x is: each axis kept, as long as that of x, or read from there.
    const auto to = extents_.target(*n);
    const auto rank = extents_.rank(f->x);
    if (!to || !rank || static_cast<int>(to->size()) != *rank || *rank < 1) return std::nullopt;
    int follow = 0;
    for (int k = 0; k < *rank; ++k) {
      const int64_t wanted = (*to)[static_cast<size_t>(k)];
      const auto own = extents_.extent(f->x, *rank - 1 - k);
      if (wanted == -1) ++follow;
      else if (wanted == 0 ? k == *rank - 1 : wanted != own && wanted != StaticExtents::kRead - k)
        return std::nullopt;
    }
    return follow <= 1 ? f : std::nullopt;
  }

  const Graph& g_;
  const Algebra algebra_;
  const StaticExtents extents_;
};

std::vector<ValueId> operands(ValueId x, ValueId cos, ValueId sin) {
  return {x, kNoValue, kNoValue, kNoValue, cos, sin};
}

void write_rope(Graph& graph, const Found& f) {
  const OpDef *rope = find_op("rope"), *reshape = find_op("reshape");
  Attrs attrs;
  if (f.pairs.interleaved) attrs.set("interleaved", int64_t{1});
  if (f.pairs.turned != f.pairs.whole) attrs.set("rotary_dim", f.pairs.turned);
  ValueId x = f.pairs.x;
  if (f.pairs.rank > 0) {  // the columns as one axis
    std::vector<int64_t> shape(static_cast<size_t>(f.pairs.rank) - 1, 0);
    shape.back() = -1;
    x = graph.append(reshape, {x}, 1, {{"shape", shape}})[0];
  }
  if (!f.flattens) {
    Node& n = graph.nodes()[f.node];
    n.op = rope, n.inputs = operands(x, f.cos, f.sin), n.attrs = attrs;
    return;
  }
  const ValueId y = graph.append(rope, operands(x, f.cos, f.sin), 1, attrs)[0];
  graph.nodes()[f.node].inputs[0] = y;
}

}  // namespace

Result<int> fuse_rope(Graph& graph) {
  std::vector<Found> all;
  {
    const Finder finder(graph);
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      if (const auto f = finder.found(i)) all.push_back(*f);
    }
  }
  if (all.empty()) return 0;
  for (const Found& f : all) write_rope(graph, f);
  OAR_RETURN_IF_ERROR(dce(graph).status());
  graph.sort();
  const Finder finder(graph);
  for (Node& n : graph.nodes()) {
    const Node* rope = nullptr;
    const auto head = finder.partial(n, &rope);
    if (!head) continue;
    Attrs attrs = rope->attrs;
    attrs.set("rotary_dim", head->end);
    n.op = rope->op, n.inputs = operands(head->x, rope->inputs[4], rope->inputs[5]), n.attrs = attrs;
  }
  OAR_RETURN_IF_ERROR(dce(graph).status());
  return static_cast<int>(all.size());
}

}  // namespace oar::passes
