#include "engine/graph/dim.h"

#include <algorithm>
#include <limits>

#include "engine/base/format.h"

namespace oar {
namespace {

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();

int64_t saturating_add(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r)) return b > 0 ? kMax64 : -kMax64;
  return r;
}
int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return (a > 0) == (b > 0) ? kMax64 : -kMax64;
  return r;
}
int64_t floor_divide(int64_t a, int64_t b) {
  OAR_CHECK(b != 0, "division of a dim by zero");
  if (a == kMax64) return kMax64;
  int64_t q = a / b;
  if (a % b != 0 && (a < 0) != (b < 0)) --q;
  return q;
}

}  // namespace

Dim::Dim(int64_t value) : Dim(value == 0 ? std::vector<Term>{} : std::vector<Term>{{value, {}, ""}}) {}

Dim::Dim(std::vector<Term> terms) {
  std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.key < b.key; });
  auto poly = std::make_shared<Poly>();
  for (Term& t : terms) {
    if (!poly->terms.empty() && poly->terms.back().key == t.key) {
      poly->terms.back().coefficient = saturating_add(poly->terms.back().coefficient, t.coefficient);
      if (poly->terms.back().coefficient == 0) poly->terms.pop_back();
    } else if (t.coefficient != 0) {
      poly->terms.push_back(std::move(t));
    }
  }
  for (const Term& t : poly->terms) poly->key += cat(t.coefficient, "*", t.key, "+");
  poly_ = std::move(poly);
}

const std::string& Dim::key() const { return poly_->key; }

Dim Dim::atom(Atom a) {
  auto shared = std::make_shared<const Atom>(std::move(a));
  std::string key = shared->key;
  return Dim(std::vector<Term>{{1, {std::move(shared)}, std::move(key)}});
}

std::string Dim::key_of(const std::vector<std::shared_ptr<const Atom>>& atoms) {
  std::string key;
  for (const auto& atom : atoms) key += (key.empty() ? "" : ".") + atom->key;
  return key;
}

Dim Dim::symbol(SymbolId id) {
  Atom a{};
  a.kind = Atom::kSymbol;
  a.id = id;
  a.key = cat("s", id);
  return atom(std::move(a));
}

bool Dim::is_const() const {
  return poly_->terms.empty() || (poly_->terms.size() == 1 && poly_->terms[0].atoms.empty());
}
int64_t Dim::const_value() const {
  OAR_CHECK(is_const(), "dim is symbolic");
  return poly_->terms.empty() ? 0 : poly_->terms[0].coefficient;
}

Dim operator+(const Dim& a, const Dim& b) {
  std::vector<Dim::Term> terms = a.poly_->terms;
  terms.insert(terms.end(), b.poly_->terms.begin(), b.poly_->terms.end());
  return Dim(std::move(terms));
}
Dim operator-(const Dim& a, const Dim& b) { return a + b * Dim(-1); }

Dim operator*(const Dim& a, const Dim& b) {
  std::vector<Dim::Term> terms;
  for (const auto& x : a.poly_->terms) {
    for (const auto& y : b.poly_->terms) {
      Dim::Term t{saturating_mul(x.coefficient, y.coefficient), x.atoms, ""};
      t.atoms.insert(t.atoms.end(), y.atoms.begin(), y.atoms.end());
      std::sort(t.atoms.begin(), t.atoms.end(), [](const auto& p, const auto& q) { return p->key < q->key; });
      t.key = Dim::key_of(t.atoms);
      terms.push_back(std::move(t));
    }
  }
  return Dim(std::move(terms));
}

Dim Dim::floordiv(const Dim& a, const Dim& b) {
  if (b == Dim(1)) return a;
  if (a == b) return Dim(1);
  if (a.is_const() && b.is_const()) return Dim(floor_divide(a.const_value(), b.const_value()));
  if (b.poly_->terms.size() == 1) {
    // Exact when every term has the divisor as a factor: (64 T) / (4 T) = 16.
    const Term& d = b.poly_->terms[0];
    std::vector<Term> terms;
    for (const Term& t : a.poly_->terms) {
      Term q{t.coefficient / d.coefficient, t.atoms, ""};
      bool divides = t.coefficient % d.coefficient == 0;
      for (const auto& atom : d.atoms) {
        const auto it =
            std::find_if(q.atoms.begin(), q.atoms.end(), [&](const auto& x) { return x->key == atom->key; });
        if (it == q.atoms.end()) divides = false;
        else q.atoms.erase(it);
      }
      if (!divides) break;
      q.key = key_of(q.atoms);
      terms.push_back(std::move(q));
    }
    if (terms.size() == a.poly_->terms.size()) return Dim(std::move(terms));
  }
  if (b.is_const() && b.const_value() > 0) {
    // Whole multiples leave the division: (63 + 1024 T) / 64 = 16 T + 63 / 64.
    const int64_t d = b.const_value();
    std::vector<Term> whole, rest;
    for (const Term& t : a.poly_->terms) {
      const bool divides = t.coefficient % d == 0;
      (divides ? whole : rest).push_back({divides ? t.coefficient / d : t.coefficient, t.atoms, t.key});
    }
    if (!whole.empty()) return Dim(std::move(whole)) + floordiv(Dim(std::move(rest)), b);
  }
  Atom x{};
  x.kind = Atom::kFloorDiv;
  x.a = a.poly_;
  x.b = b.poly_;
  x.key = cat("(", a.key(), ")/(", b.key(), ")");
  return atom(std::move(x));
}

Dim Dim::max(const Dim& a, const Dim& b) {
  // An extent is never negative, so a sum that only adds to another operand wins without a run-time test.
  const auto never_less = [](const Dim& x, const Dim& y) {
    const Dim more = x - y;
    return std::all_of(more.poly_->terms.begin(), more.poly_->terms.end(),
                       [](const Term& t) { return t.coefficient >= 0; });
  };
  std::vector<Dim> operands;  // none never less than another
  std::vector<std::shared_ptr<const Poly>> rest = {a.poly_, b.poly_};
  while (!rest.empty()) {
    const std::shared_ptr<const Poly> poly = std::move(rest.back());
    rest.pop_back();
    const auto& terms = poly->terms;
    if (terms.size() == 1 && terms[0].coefficient == 1 && terms[0].atoms.size() == 1 &&
        terms[0].atoms[0]->kind == Atom::kMax) {
      rest.push_back(terms[0].atoms[0]->a);
      rest.push_back(terms[0].atoms[0]->b);
      continue;
    }
    Dim d;
    d.poly_ = poly;
    if (std::any_of(operands.begin(), operands.end(), [&](const Dim& o) { return never_less(o, d); }))
      continue;
    std::erase_if(operands, [&](const Dim& o) { return never_less(d, o); });
    operands.push_back(std::move(d));
  }
  std::sort(operands.begin(), operands.end(), [](const Dim& x, const Dim& y) { return x.key() < y.key(); });
  Dim out = operands[0];
  for (size_t i = 1; i < operands.size(); ++i) {
    Atom x{};
    x.kind = Atom::kMax;
    x.a = out.poly_;
    x.b = operands[i].poly_;
    x.key = cat("max(", out.key(), ",", operands[i].key(), ")");
    out = atom(std::move(x));
  }
  return out;
}

int64_t Dim::evaluate(std::span<const int64_t> symbols) const {
  int64_t out = 0;
  const DimProgram program({this, 1});
  std::vector<int64_t> registers(program.num_registers());
  program.evaluate(symbols, {&out, 1}, registers);
  return out;
}

int64_t Dim::upper_bound(const SymbolTable& symbols) const {
  std::vector<int64_t> values;
  for (const Symbol& s : symbols) values.push_back(s.max);
  return evaluate(values);
}

std::string Dim::to_string(const SymbolTable& symbols) const {
  if (poly_->terms.empty()) return "0";
  auto poly_string = [&](const std::shared_ptr<const Poly>& p) {
    Dim d;
    d.poly_ = p;
    return d.to_string(symbols);
  };
  std::string out;
  for (const Term& t : poly_->terms) {
    if (!out.empty()) out += t.coefficient < 0 ? " - " : " + ";
    const int64_t c = out.empty() ? t.coefficient : std::abs(t.coefficient);
    std::string factors;
    for (const auto& a : t.atoms) {
      if (!factors.empty()) factors += "*";
      switch (a->kind) {
        case Atom::kSymbol:
          factors += a->id < static_cast<SymbolId>(symbols.size()) ? symbols[a->id].name : cat("s", a->id);
          break;
        case Atom::kFloorDiv: factors += cat("(", poly_string(a->a), ")/", poly_string(a->b)); break;
        case Atom::kMax: {
          const std::string left = poly_string(a->a);
          // Nested on the left: max(max(x, y), z) is written max(x, y, z).
          const bool nested =
              a->a->key.starts_with("1*max(") && a->a->terms.size() == 1 && a->a->terms[0].atoms.size() == 1;
          factors +=
              cat(nested ? left.substr(0, left.size() - 1) : "max(" + left, ", ", poly_string(a->b), ")");
          break;
        }
      }
    }
    if (factors.empty()) out += cat(c);
    else out += c == 1 ? factors : cat(c, "*", factors);
  }
  return out;
}

DimProgram::DimProgram(std::span<const Dim> dims) {
  for (const Dim& d : dims) results_.push_back(compile(*d.poly_));
  keys_.clear();
  keys_.shrink_to_fit();
}

int32_t DimProgram::emit(Op op) {
  // Value numbering: the same operation on the same registers is computed once.
  const std::string key = cat(static_cast<int>(op.kind), ",", op.a, ",", op.b, ",", op.value);
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i] == key) return static_cast<int32_t>(i);
  }
  ops_.push_back(op);
  keys_.push_back(key);
  return static_cast<int32_t>(ops_.size() - 1);
}

int32_t DimProgram::compile(const Dim::Atom& a) {
  if (a.kind == Dim::Atom::kSymbol) return emit({Op::kSymbol, 0, 0, a.id});
  const int32_t x = compile(*a.a), y = compile(*a.b);
  return emit({a.kind == Dim::Atom::kMax ? Op::kMax : Op::kFloorDiv, x, y, 0});
}

int32_t DimProgram::compile(const Dim::Poly& p) {
  int32_t sum = -1;
  for (const auto& t : p.terms) {
    int32_t product = -1;
    if (t.coefficient != 1 || t.atoms.empty()) product = emit({Op::kConst, 0, 0, t.coefficient});
    for (const auto& a : t.atoms) {
      const int32_t f = compile(*a);
      product = product < 0 ? f : emit({Op::kMul, product, f, 0});
    }
    sum = sum < 0 ? product : emit({Op::kAdd, sum, product, 0});
  }
  return sum < 0 ? emit({Op::kConst, 0, 0, 0}) : sum;
}

void DimProgram::evaluate(std::span<const int64_t> symbols, std::span<int64_t> out,
                          std::span<int64_t> registers) const {
  OAR_CHECK(out.size() == results_.size() && registers.size() >= ops_.size(), "one result per dim");
  int64_t* r = registers.data();
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    switch (op.kind) {
      case Op::kConst: r[i] = op.value; break;
      case Op::kSymbol:
        OAR_CHECK(op.value < static_cast<int64_t>(symbols.size()), "unbound symbol");
        r[i] = symbols[op.value];
        break;
      case Op::kAdd: r[i] = saturating_add(r[op.a], r[op.b]); break;
      case Op::kMul: r[i] = saturating_mul(r[op.a], r[op.b]); break;
      case Op::kFloorDiv: r[i] = floor_divide(r[op.a], r[op.b]); break;
      case Op::kMax: r[i] = std::max(r[op.a], r[op.b]); break;
    }
  }
  for (size_t i = 0; i < out.size(); ++i) out[i] = r[results_[i]];
}

}  // namespace oar
