// Hadamard matrices: +-1 matrices with H H^T = n I, the rotations that spread an outlier over a whole block
// before it is quantized. An order is a Kronecker product of dense Paley cores with a Sylvester power of two,
//
//   H_n = C_1 (x) C_2 (x) ... (x) [[1, 1], [1, -1]]^(x)m        n = K_1 K_2 ... 2^m
//
// so a transform costs n (sum K + m) additions instead of n^2. Cores, https://doi.org/10.1002/sapm1933121311:
//   Paley I   order q + 1, q = 3 mod 4 a prime power: I + [[0, 1], [-1, Q]]; the inverse is the transpose
//   Paley II  order 2(q + 1), q = 1 mod 4 a prime power, symmetric:
//             C (x) [[1, 1], [1, -1]] + I (x) [[1, -1], [-1, -1]] with C = [[0, 1], [1, Q]]
//
// with Q_ij = chi(a_i - a_j), chi the quadratic character of GF(q).
// What it is not: fast (kernels/hadamard.h is), nor a decision where to rotate
// (engine/graph/passes/rotate.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace oar {

// Largest dense core offered; past it the n K additions of a transform no longer pay.
inline constexpr int64_t kLargestHadamardCore = 1024;

struct HadamardOrder {
  int64_t n = 1;
  std::vector<int64_t> cores;  // K_1, K_2, ...: outermost first; empty for a power of two
  int64_t power = 1;           // 2^m, the innermost factor
};
// The cheapest way to make order n of cores and a power of two; nullopt where there is none (n < 1; 3; 92,
// ...).
std::optional<HadamardOrder> hadamard_order(int64_t n);

// The dense core of order K as signs, row-major [K, K]. K must be one that hadamard_order() names.
std::vector<int8_t> hadamard_core(int64_t K);

// Entry (i, j) of the matrix of that order, +1 or -1: the definition, entry by entry, for tests.
int hadamard_entry(const HadamardOrder& order, int64_t i, int64_t j);

// The largest power of two that divides n: the block of a grouped transform. 1 for odd n.
constexpr int64_t power_of_two_factor(int64_t n) { return n > 0 ? n & -n : 1; }

// Random sign i of the sequence `seed`; seed 0 has +1 everywhere. splitmix64's finalizer on seed and i, so
// that a rotation can be made again from the seed alone. https://doi.org/10.1145/2714064.2660195
constexpr int random_sign(uint64_t seed, uint64_t i) {
  if (seed == 0) return 1;
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (i + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return ((z ^ (z >> 31)) & 1) != 0 ? -1 : 1;
}

// x <- H x, or H^T x, not normalized: exact for integers that do not overflow. `x` has order.n elements.
template <class T>
void hadamard_transform(T* x, const HadamardOrder& order, bool transposed = false) {
  for (int64_t h = 1; h < order.power; h *= 2) {
    for (int64_t base = 0; base < order.n; base += 2 * h) {
      for (int64_t i = base; i < base + h; ++i) {
        const T a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
  int64_t stride = order.power;
  std::vector<T> column;
  for (size_t c = order.cores.size(); c-- > 0;) {
    const int64_t K = order.cores[c];
    const std::vector<int8_t> core = hadamard_core(K);
    column.resize(static_cast<size_t>(K));
    for (int64_t base = 0; base < order.n; base += K * stride) {
      for (int64_t j = 0; j < stride; ++j) {
        T* p = x + base + j;
        for (int64_t k = 0; k < K; ++k) column[static_cast<size_t>(k)] = p[k * stride];
        for (int64_t r = 0; r < K; ++r) {
          T sum = 0;
          for (int64_t k = 0; k < K; ++k) {
            const int8_t sign = core[static_cast<size_t>(transposed ? k * K + r : r * K + k)];
            sum = sign > 0 ? sum + column[static_cast<size_t>(k)] : sum - column[static_cast<size_t>(k)];
          }
          p[r * stride] = sum;
        }
      }
    }
    stride *= K;
  }
}

}  // namespace oar
