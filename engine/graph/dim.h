// Dim: a tensor extent as an integer expression over named symbols (T tokens, B sequences, R logit rows,
// ...), kept in a canonical form. Equal sizes compare equal, and a plan can be made before any size is known.
//
//   canonical form:  sum of  coefficient * product of atoms
//                    atom = symbol | floordiv(Dim, Dim) | max(Dim, Dim)
//
// A graph's SymbolTable gives each symbol an upper bound; upper bounds of expressions follow, because every
// expression built here is monotone in its symbols where extents use it. Evaluation per run is a DimProgram:
// a flat list of instructions that allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace oar {

using SymbolId = int32_t;

struct Symbol {
  std::string name;
  int64_t max = 0;  // largest value a run may use
};
using SymbolTable = std::vector<Symbol>;

class Dim {
 public:
  Dim(int64_t value = 0);  // NOLINT: implicit, so that shapes read {T, 64}
  static Dim symbol(SymbolId id);

  bool is_const() const;
  int64_t const_value() const;  // is_const()
  bool operator==(const Dim& o) const { return key() == o.key(); }

  friend Dim operator+(const Dim& a, const Dim& b);
  friend Dim operator-(const Dim& a, const Dim& b);
  friend Dim operator*(const Dim& a, const Dim& b);
  // Rounds towards minus infinity; exact when every coefficient divides.
  static Dim floordiv(const Dim& a, const Dim& b);
  static Dim max(const Dim& a, const Dim& b);
  // a rounded up to a multiple of `m`.
  static Dim align(const Dim& a, int64_t m) { return floordiv(a + Dim(m - 1), Dim(m)) * Dim(m); }

  // Saturates at INT64_MAX instead of overflowing.
  int64_t evaluate(std::span<const int64_t> symbols) const;
  int64_t upper_bound(const SymbolTable& symbols) const;
  std::string to_string(const SymbolTable& symbols) const;

 private:
  friend class DimProgram;
  struct Atom;
  struct Term {
    int64_t coefficient;
    std::vector<std::shared_ptr<const Atom>> atoms;  // sorted by key
    std::string key;
  };
  struct Poly {
    std::vector<Term> terms;  // sorted by key, no zero coefficients
    std::string key;
  };
  struct Atom {
    enum Kind : uint8_t { kSymbol, kFloorDiv, kMax } kind;
    SymbolId id = 0;
    std::shared_ptr<const Poly> a, b;
    std::string key;
  };
  explicit Dim(std::vector<Term> terms);
  static Dim atom(Atom a);
  static std::string key_of(const std::vector<std::shared_ptr<const Atom>>& atoms);
  const std::string& key() const;

  std::shared_ptr<const Poly> poly_;
};

// Several Dims compiled together: evaluate() fills `out` with one value each and allocates nothing.
class DimProgram {
 public:
  explicit DimProgram(std::span<const Dim> dims);
  size_t size() const { return results_.size(); }
  // What evaluate() needs to work in.
  size_t num_registers() const { return ops_.size(); }
  // `symbols` indexed by SymbolId.
  void evaluate(std::span<const int64_t> symbols, std::span<int64_t> out, std::span<int64_t> registers) const;

 private:
  struct Op {
    enum Kind : uint8_t { kConst, kSymbol, kAdd, kMul, kFloorDiv, kMax } kind;
    int32_t a, b;  // registers
    int64_t value;
  };
  int32_t compile(const Dim::Poly& p);
  int32_t compile(const Dim::Atom& a);
  int32_t emit(Op op);
  std::vector<Op> ops_;
  std::vector<std::string>
      keys_;  // of the expression each op computes, for sharing; dropped after construction
  std::vector<int32_t> results_;
};

}  // namespace oar
