#include "engine/graph/passes/algebra.h"

#include <algorithm>
#include <cmath>

#include "engine/graph/op.h"
#include "engine/tensor/element.h"

namespace oar::passes {
namespace {

Term product(const Term& a, const Term& b) {
  Term out{a.scale * b.scale, a.powers};
  for (const auto& [atom, power] : b.powers) {
    const auto at = std::lower_bound(out.powers.begin(), out.powers.end(), atom,
                                     [](const auto& p, ValueId v) { return p.first < v; });
    if (at == out.powers.end() || at->first != atom) out.powers.insert(at, {atom, power});
    else if ((at->second += power) == 0) out.powers.erase(at);
  }
  return out;
}

void add(Poly& sum, const Term& t) {
  const auto like = std::find_if(sum.begin(), sum.end(), [&](const Term& s) { return s.powers == t.powers; });
  if (like == sum.end()) sum.push_back(t);
  else like->scale += t.scale;
  std::erase_if(sum, [](const Term& s) { return s.scale == 0; });
}

Poly power(ValueId v, double p) { return {{1, {{v, p}}}}; }

}  // namespace

bool near(double a, double b) { return std::abs(a - b) <= 1e-5 * std::abs(b); }

const Node* Algebra::maker(ValueId v) const {
  const int p = v == kNoValue ? -1 : producer_[static_cast<size_t>(v)];
  if (p < 0) return nullptr;
  const Node& n = g_.nodes()[static_cast<size_t>(p)];
  // A file may leave operands out.
  return !n.inputs.empty() && n.outputs.size() == 1 ? &n : nullptr;
}

std::optional<double> Algebra::number(ValueId v) const {
  if (v == kNoValue || g_.value(v).kind != ValueKind::kConstant) return std::nullopt;
  const Tensor& t = g_.value(v).constant;
  if (t.numel() != 1 || t.shape().rank() > 1 || !t.format().plain() || !dtype_is_float(t.format().dtype()))
    return std::nullopt;
  return element_as_double(t, 0);
}

bool Algebra::arithmetic(ValueId v) const {
  const Node* n = maker(v);
  if (n == nullptr || n->attrs.has("axis")) return false;
  for (const char* two : {"add", "sub", "mul", "div"}) {
    if (n->is(two)) return n->inputs.size() == 2 && n->inputs[0] != kNoValue && n->inputs[1] != kNoValue;
  }
  if (n->is("pow")) return n->inputs.size() == 2 && number(n->inputs[1]).has_value();
  for (const char* one : {"neg", "reciprocal", "sqrt", "rsqrt", "square"}) {
    if (n->is(one)) return n->inputs[0] != kNoValue;
  }
  return false;
}

Poly Algebra::operand(ValueId v, int depth) const {
  if (const auto c = number(v)) return *c == 0 ? Poly() : Poly{{*c, {}}};
  return uses(v) == 1 && depth > 0 && arithmetic(v) ? expand(v, depth - 1) : power(v, 1);
}

Poly Algebra::expand(ValueId v, int depth) const {
  if (const auto c = number(v)) return *c == 0 ? Poly() : Poly{{*c, {}}};
  if (!arithmetic(v)) return power(v, 1);
  const Node& n = *maker(v);
  const ValueId x = n.inputs[0];
  if (n.is("sqrt")) return power(x, 0.5);
  if (n.is("rsqrt")) return power(x, -0.5);
  if (n.is("square")) return power(x, 2);
  if (n.is("pow")) return power(x, *number(n.inputs[1]));
  const auto inverse = [&](ValueId of) {
    Poly p = operand(of, depth);
    if (p.size() != 1) return power(of, -1);
    p[0].scale = 1 / p[0].scale;
    for (auto& atom : p[0].powers) atom.second = -atom.second;
    return p;
  };
  if (n.is("reciprocal")) return inverse(x);
  Poly a = operand(x, depth);
  if (n.is("neg")) {
    for (Term& t : a) t.scale = -t.scale;
    return a;
  }
  const ValueId y = n.inputs[1];
  const Poly b = n.is("div") ? inverse(y) : operand(y, depth);
  Poly out;
  if (n.is("mul") || n.is("div")) {
    for (const Term& p : a) {
      for (const Term& q : b) add(out, product(p, q));
    }
  } else {
    out = std::move(a);
    for (Term t : b) {
      if (n.is("sub")) t.scale = -t.scale;
      add(out, t);
    }
  }
  return out.size() <= kMostTerms ? out : power(v, 1);
}

}  // namespace oar::passes
