// Fusion by definition: every composite marked `pattern` is traced into a small pattern graph by its own
// `define`, and each place where the graph computes that becomes one node of the composite. There is no
// second list of patterns to keep in step with the ops. Both are compared as polynomials (algebra.h), so that
// the many spellings of a definition are one. Works on every graph, whether it knows its types or not.
//
// Scalar attributes of the composite (an epsilon) are matched by tracing the definition with a marker value
// no model uses and reading the value found in its place. Larger definitions are tried before smaller ones,
// because a layer_norm has an rms_norm inside, and those that name other composites last, so that swiglu sees
// the silu found just before.
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/graph/builder.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/algebra.h"
#include "engine/graph/passes/match.h"
#include "engine/graph/passes/rope_spellings.h"
#include "engine/graph/passes/static_extents.h"
#include "engine/tensor/element.h"

namespace oar::passes {
namespace {

// A float that is exactly representable, far from any constant a model uses, and survives the trip through
// f32.
constexpr double kMarker = 0x1.5a5a5ap-97;

struct Pattern {
  const OpDef* op = nullptr;
  Graph graph;
  std::vector<ValueId> inputs;
  ValueId output = kNoValue;
  Attrs attrs;            // of what is found
  std::string marked;     // attribute bound by the marker, if any
  bool weighted = false;  // operands behind the first are weights of the last axis
};

// How an op is looked for: by how many operands, with attributes that change its definition, and by another
// formula for the same where files have one.
struct Form {
  size_t operands = 1;
  Attrs attrs = {};
  std::vector<Val> (*define)(Builder& b, std::span<const Val> in, const Attrs& attrs) = nullptr;
};

// 1 + exp(-x), the inverse of sigmoid(x)
Val logistic(Builder& b, Val x) { return b.op("add", {b.op("exp", {b.op("neg", {x})}), b.scalar(1)}); }

std::vector<Form> forms_of(const OpDef& op) {
  using Vals = std::span<const Val>;
  const std::string_view name = op.name;
  if (name == "sigmoid") {
    return {{1, {}, [](Builder& b, Vals in, const Attrs&) {
               return std::vector{b.op("reciprocal", {logistic(b, in[0])})};
             }}};
  }
  if (!op.define || !op.pattern) return {};
  if (name == "layer_norm") return {{3}, {2}, {1}};
  if (name == "rms_norm") return {{2}};
  if (name == "gelu") return {{1}, {1, {{"approximate", std::string("tanh")}}}};
  if (name == "silu") {
    return {{1}, {1, {}, [](Builder& b, Vals in, const Attrs&) {
                    return std::vector{b.op("div", {in[0], logistic(b, in[0])})};
                  }}};
  }
  if (name == "swiglu") {
    return {{2}, {2, {}, [](Builder& b, Vals in, const Attrs&) {
                    return std::vector{b.op("mul", {b.op("mul", {in[0], b.op("sigmoid", {in[0]})}), in[1]})};
                  }}};
  }
  return {{1}};
}

// Traces `op` for matrices: definitions are over elementwise math and reductions of the last axis, so that
// other ranks look alike.
bool trace(const OpDef* op, const Form& form, Pattern* p) {
  p->op = op;
  p->weighted = std::string_view(op->name).ends_with("_norm");
  if (p->weighted) p->marked = "epsilon";
  DimVector shape;
  for (const char* axis : {"d0", "d1"}) shape.push_back(p->graph.dim(p->graph.add_symbol(axis, 1 << 20)));
  Builder b(p->graph);
  std::vector<Val> vals;
  for (size_t k = 0; k < form.operands; ++k) {
    const DimVector& own = k > 0 && p->weighted ? DimVector{shape.back()} : shape;
    p->inputs.push_back(p->graph.add_input("p" + std::to_string(k), {Format::f32(), own}));
    vals.push_back({p->inputs.back()});
  }
  p->attrs = form.attrs;
  Attrs attrs = form.attrs;
  if (!p->marked.empty()) attrs.set(p->marked, kMarker);
  const std::vector<Val> out = (form.define != nullptr ? form.define : op->define)(b, vals, attrs);
  if (!b.status().ok() || out.size() != 1) return false;
  p->output = out[0].id;
  return true;
}

std::vector<Pattern> make_patterns() {
  std::vector<Pattern> patterns;
  for (const OpDef* op : all_ops()) {
    for (const Form& form : forms_of(*op)) {
      Pattern p;
      if (trace(op, form, &p)) patterns.push_back(std::move(p));
    }
  }
  const auto builds_on_others = [](const Pattern& p) {
    return std::any_of(p.graph.nodes().begin(), p.graph.nodes().end(),
                       [](const Node& n) { return n.op->define != nullptr; });
  };
  std::stable_sort(patterns.begin(), patterns.end(), [&](const Pattern& a, const Pattern& b) {
    const bool x = builds_on_others(a), y = builds_on_others(b);
    return x != y ? y : a.graph.nodes().size() > b.graph.nodes().size();
  });
  return patterns;
}

// Whether n reduces the last axis alone and keeps it.
bool over_last(const StaticExtents& known, const Node& n) {
  if (n.inputs[0] == kNoValue) return false;
  const auto axes = known.ints(n, 1, "axes");
  return axes && axes->size() == 1 && known.is_last((*axes)[0], n.inputs[0]) &&
         n.attrs.get_int("keepdims", 1) != 0;
}

// Whether v is certainly shaped like x: elementwise math of it, and of what reductions keep of it.
bool shaped_like(const Algebra& g, ValueId v, ValueId x, int depth = 6) {
  if (v == x) return true;
  const Node* n = g.maker(v);
  if (n == nullptr || depth == 0) return false;
  const auto like = [&](ValueId in) { return shaped_like(g, in, x, depth - 1); };
  if (n->is("cast") || n->is("abs") || n->is("exp")) return like(n->inputs[0]);
  const auto fits = [&](ValueId in) {
    const Node* kept = g.maker(in);
    return g.number(in) || like(in) ||
           (kept != nullptr && std::string_view(kept->op->name).starts_with("reduce_") &&
            kept->attrs.get_int("keepdims", 1) != 0 && like(kept->inputs[0]));
  };
  return g.arithmetic(v) && std::ranges::any_of(n->inputs, like) && std::ranges::all_of(n->inputs, fits);
}

// How many entries the last axis has, as far as sums over it are concerned.
class Counts {
 public:
  explicit Counts(const Graph& graph) : algebra_(graph), known_(graph) {}
  // The sum of all entries of the last axis that v is; null for anything else.
  const Node* sum(ValueId v) const {
    const Node* n = algebra_.maker(v);
    return n != nullptr && n->is("reduce_sum") && over_last(known_, *n) ? n : nullptr;
  }
  // Whether n is how many a sum over x adds up: a number, or read from the shape of what x is made of.
  bool is(ValueId n, ValueId x) const {
    if (const auto number = algebra_.number(n)) return counts(*number, x);
    const Node* real = algebra_.maker(n);  // the quotient of integers would be another
    if (real == nullptr || !real->is("cast") || !real->attrs.get_string("to").starts_with("f")) return false;
    const auto read = known_.entries(n);
    return read && read->size() == 1 && (*read)[0].of != kNoValue &&
           known_.is_last((*read)[0].axis, (*read)[0].of) && shaped_like(algebra_, x, (*read)[0].of);
  }
  bool is_inverse(ValueId n, ValueId x) const {
    const auto number = algebra_.number(n);
    return number && *number != 0 && counts(1 / *number, x);
  }

 private:
  bool counts(double n, ValueId x) const {
    const auto extent = known_.extent(x);
    return extent && near(n, static_cast<double>(*extent));
  }
  const Algebra algebra_;
  const StaticExtents known_;
};

// A sum over the last axis through how many it adds up is a mean.
int means_of_sums(Graph& graph) {
  const Counts counts(graph);
  int changed = 0;
  for (Node& n : graph.nodes()) {
    if (n.inputs.size() != 2 || n.attrs.has("axis")) continue;
    for (size_t side = 0; side < 2; ++side) {
      const Node* sum = counts.sum(n.inputs[side]);
      if (sum == nullptr) continue;
      const ValueId other = n.inputs[1 - side], x = sum->inputs[0];
      if (!(n.is("div") && side == 0 && counts.is(other, x)) && !(n.is("mul") && counts.is_inverse(other, x)))
        continue;
      n.op = find_op("reduce_mean");
      n.inputs = sum->inputs;
      n.attrs = sum->attrs;
      ++changed;
      break;
    }
  }
  return changed;
}

class DefinitionMatcher {
 public:
  DefinitionMatcher(const Pattern& p, const Algebra& pattern, const Algebra& graph,
                    const StaticExtents& known)
      : p_(p), pattern_(pattern), g_(graph), known_(known), bound_(p.graph.num_values(), kNoValue) {}

  // The value computes the definition, and nobody else reads what it computes on the way.
  bool match(ValueId root) {
    const Node &wanted = *pattern_.maker(p_.output), &n = *g_.maker(root);
    if (!pattern_.arithmetic(p_.output) && wanted.op != n.op) return false;
    return match_value(p_.output, root) && apart(root);
  }
  ValueId operand(size_t k) const { return bound_[static_cast<size_t>(p_.inputs[k])]; }
  double marked = 0;

 private:
  bool is_input(ValueId pv) const { return p_.graph.value(pv).kind == ValueKind::kInput; }

  bool bind(ValueId pv, ValueId gv) {
    ValueId& to = bound_[static_cast<size_t>(pv)];
    if (to != kNoValue) return to == gv;
    const Value& v = g_.graph().value(gv);
    if (p_.weighted && pv != p_.inputs[0]) {
      if (v.type.known && v.kind != ValueKind::kConstant ? v.type.shape.size() != 1 : !is_weight(v))
        return false;
    }
    to = gv;
    return true;
  }
  // Of one axis, so that it lies along the last of what it meets.
  static bool is_weight(const Value& v) {
    return v.kind == ValueKind::kConstant && v.constant.shape().rank() == 1 &&
           (!v.constant.format().plain() || dtype_is_float(v.constant.format().dtype()));
  }

  bool match_value(ValueId pv, ValueId gv) {
    if (gv == kNoValue) return false;
    if (is_input(pv)) return bind(pv, gv);
    if (pattern_.arithmetic(pv) || pattern_.number(pv)) return match_poly(pattern_.poly(pv), g_.poly(gv));
    return match_atom(pv, gv);
  }

  // An atom: an operand of the composite, a sum or product that several read, or another op.
  bool match_atom(ValueId pv, ValueId gv) {
    if (is_input(pv)) return bind(pv, gv);
    if (pattern_.arithmetic(pv)) return g_.arithmetic(gv) && match_poly(pattern_.poly(pv), g_.poly(gv));
    const Node *pn = pattern_.maker(pv), *gn = g_.maker(gv);
    if (pn == nullptr || gn == nullptr || pn->op != gn->op) return false;
    const size_t count = pn->inputs.size();
    if (std::string_view(pn->op->name).starts_with("reduce_")) {
      if (!over_last(known_, *gn)) return false;
    } else if (!(pn->attrs == gn->attrs) || gn->inputs.size() != count) {
      return false;
    }
    const auto saved = bound_;
    const auto operands = [&](bool swapped) {
      for (size_t k = 0; k < count; ++k) {
        if (!match_value(pn->inputs[k], gn->inputs[swapped ? count - 1 - k : k]))
          return bound_ = saved, false;
      }
      return true;
    };
    return operands(false) || ((pn->is("max") || pn->is("min")) && operands(true));
  }

  // Terms with something to recognize in them first, for they say which value an operand is.
  bool match_poly(Poly p, const Poly& g) {
    if (p.size() != g.size()) return false;
    const auto known = [&](const Term& t) {
      return std::count_if(t.powers.begin(), t.powers.end(),
                           [&](const auto& a) { return !is_input(a.first); });
    };
    std::stable_sort(p.begin(), p.end(), [&](const Term& a, const Term& b) { return known(a) > known(b); });
    std::vector<bool> used(g.size(), false);
    for (const Term& t : p) {
      size_t k = 0;
      while (k < g.size() && (used[k] || !match_term(t, g[k]))) ++k;
      if (k == g.size()) return false;
      used[k] = true;
    }
    return true;
  }

  bool match_term(const Term& p, const Term& g) {
    if (p.powers.size() != g.powers.size()) return false;
    if (p.scale != kMarker && !near(g.scale, p.scale)) return false;
    const auto saved = bound_;
    std::vector<bool> used(g.powers.size(), false);
    for (const bool inputs : {false, true}) {
      for (const auto& [atom, power] : p.powers) {
        if (is_input(atom) != inputs) continue;
        size_t k = 0;
        while (k < g.powers.size() &&
               (used[k] || !near(g.powers[k].second, power) || !match_atom(atom, g.powers[k].first)))
          ++k;
        if (k == g.powers.size()) return bound_ = saved, false;
        used[k] = true;
      }
    }
    if (p.scale == kMarker) marked = g.scale;
    return true;
  }

  // An inner value someone else reads would have to be kept, and then nothing is gained.
  bool apart(ValueId root) const {
    std::vector<ValueId> inner{root};
    for (size_t k = 0; k < inner.size(); ++k) {
      for (ValueId v : g_.maker(inner[k])->inputs) {
        if (v == kNoValue || std::find(bound_.begin(), bound_.end(), v) != bound_.end()) continue;
        if (g_.maker(v) != nullptr && std::find(inner.begin(), inner.end(), v) == inner.end())
          inner.push_back(v);
      }
    }
    std::vector<int> reads(inner.size(), 0);
    for (ValueId v : inner) {
      for (ValueId in : g_.maker(v)->inputs) {
        const auto at = std::find(inner.begin(), inner.end(), in);
        if (at != inner.end()) ++reads[static_cast<size_t>(at - inner.begin())];
      }
    }
    for (size_t k = 1; k < inner.size(); ++k) {
      if (reads[k] != g_.uses(inner[k])) return false;
    }
    return true;
  }

  const Pattern& p_;
  const Algebra &pattern_, &g_;
  const StaticExtents& known_;
  std::vector<ValueId> bound_;  // by value of the pattern
};

// One node for the result of node i of a graph that knows its types. False where the op's own shape rule does
// not take the operands (a broadcast that the definition allows).
bool replace_typed(Graph& graph, size_t i, const OpDef* op, const std::vector<ValueId>& inputs,
                   const Attrs& attrs) {
  const ValueId result = graph.nodes()[i].outputs[0];
  const auto out = graph.add_node(op, inputs, attrs);
  if (!out.ok()) return false;
  if (!(graph.value((*out)[0]).type == graph.value(result).type)) {
    std::vector<bool> dead(graph.nodes().size(), false);
    dead.back() = true;
    graph.remove_nodes(dead);
    return false;
  }
  graph.replace_uses(result, (*out)[0]);
  return true;
}

// hard_swish is defined by hard_sigmoid, and spelled with a clip as well: x clip(x + 3, 0, 6) / 6.
bool is_hard_swish(const Algebra& g, ValueId root, ValueId* x, Attrs* attrs) {
  if (!g.arithmetic(root)) return false;
  const Poly p = g.poly(root);
  if (p.size() != 1 || p[0].powers.size() != 2) return false;
  for (size_t side = 0; side < 2; ++side) {
    *x = p[0].powers[side].first;
    const ValueId gate = p[0].powers[1 - side].first;
    const Node* n = g.maker(gate);
    if (n == nullptr || p[0].powers[0].second != 1 || p[0].powers[1].second != 1 || g.uses(gate) != 1)
      continue;
    if (n->is("hard_sigmoid") && n->inputs[0] == *x && p[0].scale == 1) {
      *attrs = {{"alpha", n->attrs.get_float("alpha", 0.2)}, {"beta", n->attrs.get_float("beta", 0.5)}};
      return true;
    }
    if (!n->is("clip") || !near(p[0].scale, 1.0 / 6) || n->inputs.size() != 3) continue;
    const auto low = g.number(n->inputs[1]), high = g.number(n->inputs[2]);
    const Poly in = g.arithmetic(n->inputs[0]) ? g.poly(n->inputs[0]) : Poly();
    const auto is = [](const Term& t, double scale) { return t.powers.empty() && near(t.scale, scale); };
    const auto own = [&](const Term& t) { return t.scale == 1 && t.powers == decltype(t.powers){{*x, 1.0}}; };
    if (low && high && *low == 0 && near(*high, 6) && in.size() == 2 &&
        ((own(in[0]) && is(in[1], 3)) || (own(in[1]) && is(in[0], 3))))
      return true;
  }
  return false;
}

Result<int> fuse_hard_swish(Graph& graph) {
  int fused = 0;
  const Algebra algebra(graph);
  for (Node& n : graph.nodes()) {
    ValueId x = kNoValue;
    Attrs attrs;
    if (n.outputs.size() != 1 || graph.value(n.outputs[0]).type.known ||
        !is_hard_swish(algebra, n.outputs[0], &x, &attrs))
      continue;
    n.op = find_op("hard_swish");
    n.inputs = {x};
    n.attrs = attrs;
    ++fused;
  }
  return fused;
}

// pow(x, 2), which has no kernel in a run: a square has. A scalar, so that the result is shaped like x.
int squares_of_powers(Graph& graph) {
  int changed = 0;
  for (Node& n : graph.nodes()) {
    if (!n.is("pow") || n.inputs.size() != 2 || n.inputs[1] == kNoValue || n.attrs.has("axis")) continue;
    const Value& power = graph.value(n.inputs[1]);
    if (power.kind != ValueKind::kConstant || power.constant.shape().rank() != 0 ||
        !dtype_is_float(power.constant.format().dtype()) || element_as_double(power.constant, 0) != 2)
      continue;
    n.op = find_op("square");
    n.inputs.resize(1);
    ++changed;
  }
  return changed;
}

Result<int> fuse_pattern(Graph& graph, const Pattern& p) {
  int fused = 0;
  const Algebra pattern(p.graph);
  auto algebra = std::make_unique<Algebra>(graph);
  auto known = std::make_unique<StaticExtents>(graph);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& root = graph.nodes()[i];
    if (root.outputs.size() != 1 || root.op == p.op || root.inputs.empty()) continue;
    const ValueId result = root.outputs[0];
    if (pattern.arithmetic(p.output) && !algebra->arithmetic(result)) continue;
    DefinitionMatcher m(p, pattern, *algebra, *known);
    if (!m.match(result)) continue;
    std::vector<ValueId> inputs;
    for (size_t k = 0; k < p.inputs.size(); ++k) {
      if (m.operand(k) == kNoValue)
        return internal_error(std::string(p.op->name) + ": its definition ignores an operand");
      inputs.push_back(m.operand(k));
    }
    Attrs attrs = p.attrs;
    if (!p.marked.empty()) attrs.set(p.marked, m.marked);
    if (graph.value(result).type.known) {
      if (!replace_typed(graph, i, p.op, inputs, attrs)) continue;
      algebra = std::make_unique<Algebra>(graph);
      known = std::make_unique<StaticExtents>(graph);
    } else {  // its operands stay until dce, so that nothing is outdated
      Node& node = graph.nodes()[i];
      node.op = p.op, node.inputs = std::move(inputs), node.attrs = std::move(attrs);
    }
    ++fused;
  }
  return fused;
}

}  // namespace

Result<int> fuse_definitions(Graph& graph) {
  static const std::vector<Pattern> patterns = make_patterns();
  int fused = means_of_sums(graph);
  if (fused > 0) OAR_RETURN_IF_ERROR(dce(graph).status());  // else the sums still read what they add up
  for (const Pattern& p : patterns) {
    OAR_ASSIGN(const int more, fuse_pattern(graph, p));
    fused += more;
    if (more == 0) continue;
    OAR_RETURN_IF_ERROR(dce(graph).status());
    graph.sort();
  }
  OAR_ASSIGN(const int swishes, fuse_hard_swish(graph));
  if (swishes > 0) OAR_RETURN_IF_ERROR(dce(graph).status());
  OAR_ASSIGN(const int ropes, fuse_rope(graph));
  return fused + swishes + ropes + squares_of_powers(graph);
}

std::vector<Refusal> explain_definitions(const Graph& graph) {
  std::vector<Refusal> out;
  const Algebra algebra(graph);
  const StaticExtents known(graph);
  for (const Node& n : graph.nodes()) {
    if (n.is("erf")) out.push_back({node_label(n), "", "it does not stand in x (erf(x / sqrt 2) + 1) / 2"});
    const bool root = n.is("sqrt") || n.is("rsqrt");
    const Node* sum = root && !n.inputs.empty() ? algebra.maker(n.inputs[0]) : nullptr;
    if (sum == nullptr || !sum->is("add") || sum->inputs.size() != 2) continue;
    for (ValueId v : sum->inputs) {
      const Node* mean = algebra.maker(v);
      if (mean == nullptr || !mean->is("reduce_mean")) continue;
      out.push_back({node_label(*mean), node_label(n),
                     over_last(known, *mean)
                         ? "around the root is neither an RMS norm nor a layer norm with weights of one axis"
                         : "the mean is not known to be over the last axis alone"});
    }
  }
  return out;
}

}  // namespace oar::passes
