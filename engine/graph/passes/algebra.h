// The canonical form in which passes compare what graphs compute: a value as a polynomial over values that it
// does not look into. Sums, products, quotients and powers by numbers are looked into, whoever spells them:
// x*x, square(x) and pow(x, 2) are one, as are a / sqrt(b), a * rsqrt(b) and a * (1 / sqrt(b)), and numbers
// multiply out wherever they stand.
#pragma once

#include <optional>
#include <vector>

#include "engine/graph/graph.h"

namespace oar::passes {

// scale * product of atom^power; atoms in the order of their ids.
struct Term {
  double scale = 1;
  std::vector<std::pair<ValueId, double>> powers;
};
using Poly = std::vector<Term>;  // like terms are one, none is 0

// A graph of one moment; replacing a node by another with the same result does not outdate the uses.
class Algebra {
 public:
  explicit Algebra(const Graph& g) : g_(g), producer_(g.producers()), uses_(g.use_counts()) {}
  const Graph& graph() const { return g_; }
  const Node* maker(ValueId v) const;
  int uses(ValueId v) const { return uses_[static_cast<size_t>(v)]; }
  // The value of a float constant of one element that does not raise the rank of what it meets.
  std::optional<double> number(ValueId v) const;
  // Whether v is computed by something that poly() looks into.
  bool arithmetic(ValueId v) const;
  // Of v, however many read it. Looks into what it reads where nobody else does: elsewhere values are atoms.
  Poly poly(ValueId v) const { return expand(v, kDepth); }

 private:
  static constexpr int kDepth = 10;  // a sum of a thousand values is not a pattern
  static constexpr size_t kMostTerms = 8;
  Poly operand(ValueId v, int depth) const;
  Poly expand(ValueId v, int depth) const;
  const Graph& g_;
  std::vector<int> producer_, uses_;
};

// As files round numbers: f32, f16, decimals.
bool near(double a, double b);

}  // namespace oar::passes
