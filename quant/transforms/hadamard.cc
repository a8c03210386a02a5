// Paley cores over prime fields and their extensions, and the search for the cheapest product of an order.
#include "quant/transforms/hadamard.h"

#include <algorithm>

namespace oar {
namespace {

// q = p^k with p prime; p = 0 where q is no prime power.
struct PrimePower {
  int64_t p = 0;
  int k = 0;
};

PrimePower prime_power(int64_t q) {
  if (q < 2) return {};
  int64_t p = 2;
  while (p * p <= q && q % p != 0) ++p;
  if (q % p != 0) p = q;
  int k = 0;
  while (q % p == 0) q /= p, ++k;
  return q == 1 ? PrimePower{p, k} : PrimePower{};
}

// 1 for Paley I, 2 for Paley II, 0 where K is no core.
int paley_type(int64_t K) {
  if (K < 4 || K % 4 != 0 || K > kLargestHadamardCore) return 0;
  if (prime_power(K - 1).p != 0) return 1;  // K - 1 = 3 mod 4
  const int64_t q = K / 2 - 1;
  return q % 4 == 1 && prime_power(q).p != 0 ? 2 : 0;
}

// GF(p^k). An element is the integer whose base-p digits are the coefficients of its polynomial, lowest
// first.
class Field {
 public:
  explicit Field(int64_t q) : p_(prime_power(q).p), k_(prime_power(q).k), q_(q) {
    // x^k = reduction_ in the field; the polynomial is irreducible exactly when no two non-zero elements
    // multiply to 0.
    for (reduction_ = 0; k_ > 1 && reduction_ < q_; ++reduction_) {
      if (irreducible()) break;
    }
    square_.assign(static_cast<size_t>(q_), false);
    for (int64_t a = 1; a < q_; ++a) square_[static_cast<size_t>(multiply(a, a))] = true;
  }
  // Quadratic character of a - b.
  int chi(int64_t a, int64_t b) const {
    const int64_t d = subtract(a, b);
    return d == 0 ? 0 : square_[static_cast<size_t>(d)] ? 1 : -1;
  }

 private:
  int64_t subtract(int64_t a, int64_t b) const {
    int64_t out = 0, place = 1;
    for (int i = 0; i < k_; ++i, place *= p_, a /= p_, b /= p_) out += (a % p_ - b % p_ + p_) % p_ * place;
    return out;
  }
  int64_t add_multiple(int64_t a, int64_t b, int64_t times) const {  // a + times * b, digit by digit
    int64_t out = 0, place = 1;
    for (int i = 0; i < k_; ++i, place *= p_, a /= p_, b /= p_)
      out += (a % p_ + times * (b % p_)) % p_ * place;
    return out;
  }
  int64_t multiply(int64_t a, int64_t b) const {
    int64_t sum = 0;
    for (; b > 0; b /= p_) {
      sum = add_multiple(sum, a, b % p_);
      const int64_t top = a / (q_ / p_);  // a <- a x
      a = add_multiple(a % (q_ / p_) * p_, reduction_, top);
    }
    return sum;
  }
  bool irreducible() const {
    // A reducible polynomial has a monic factor of degree at most k/2, [p, 2 p^(k/2)) among others, and a
    // cofactor.
    int64_t half = 1;
    for (int i = 0; i < k_ / 2; ++i) half *= p_;
    for (int64_t a = p_; a < 2 * half; ++a) {
      for (int64_t b = 1; b < q_; ++b) {
        if (multiply(a, b) == 0) return false;
      }
    }
    return true;
  }

  int64_t p_;
  int k_;
  int64_t q_, reduction_ = 0;
  std::vector<bool> square_;
};

// Cores with product `n` / a power of two and the least sum; false where there are none. `largest` keeps the
// cores of a product in descending order.
bool cheapest(int64_t n, int64_t largest, std::vector<int64_t>& cores, int64_t* cost) {
  if ((n & (n - 1)) == 0) {
    cores.clear();
    *cost = 0;
    return true;
  }
  bool found = false;
  for (int64_t K = std::min(largest, n); K >= 12; K -= 4) {
    if (n % K != 0 || (K & (K - 1)) == 0 || paley_type(K) == 0) continue;
    std::vector<int64_t> rest;
    int64_t rest_cost = 0;
    if (!cheapest(n / K, K, rest, &rest_cost) || (found && K + rest_cost >= *cost)) continue;
    rest.insert(rest.begin(), K);
    cores = std::move(rest);
    *cost = K + rest_cost;
    found = true;
  }
  return found;
}

}  // namespace

std::optional<HadamardOrder> hadamard_order(int64_t n) {
  if (n < 1 || n > (int64_t{1} << 24)) return std::nullopt;
  HadamardOrder order;
  order.n = n;
  int64_t cost = 0;
  if (!cheapest(n, kLargestHadamardCore, order.cores, &cost)) return std::nullopt;
  order.power = n;
  for (int64_t K : order.cores) order.power /= K;
  return order;
}

std::vector<int8_t> hadamard_core(int64_t K) {
  const bool second = paley_type(K) == 2;
  const int64_t q = second ? K / 2 - 1 : K - 1, order = q + 1;
  const Field field(q);
  // The conference matrix, skew (type I) or symmetric (type II).
  const auto conference = [&](int64_t i, int64_t j) {
    if (i == j) return 0;
    if (i == 0) return 1;
    if (j == 0) return second ? 1 : -1;
    return field.chi(i - 1, j - 1);
  };
  std::vector<int8_t> out(static_cast<size_t>(K * K));
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j < order; ++j) {
      const int c = conference(i, j), one = i == j ? 1 : 0;
      if (!second) {
        out[static_cast<size_t>(i * K + j)] = static_cast<int8_t>(c + one);
        continue;
      }
      int8_t* top = out.data() + 2 * i * K + 2 * j;
      top[0] = static_cast<int8_t>(c + one);
      top[1] = static_cast<int8_t>(c - one);
      top[K] = static_cast<int8_t>(c - one);
      top[K + 1] = static_cast<int8_t>(-c - one);
    }
  }
  return out;
}

int hadamard_entry(const HadamardOrder& order, int64_t i, int64_t j) {
  int sign = 1;
  int64_t both = (i % order.power) & (j % order.power);
  for (; both != 0; both &= both - 1) sign = -sign;
  i /= order.power;
  j /= order.power;
  for (size_t c = order.cores.size(); c-- > 0;) {
    const int64_t K = order.cores[c];
    sign *= hadamard_core(K)[static_cast<size_t>(i % K * K + j % K)];
    i /= K;
    j /= K;
  }
  return sign;
}

}  // namespace oar
