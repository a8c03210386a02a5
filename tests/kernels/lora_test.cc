// Low-rank adapters: every level against the double reference, operands ending at a guard page; a row's bits
// depend on no other row, and rows without an adapter stay as they are.
#include "kernels/lora.h"

#include <algorithm>
#include <cmath>

#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

struct LoraProblem {
  LoraArgs a;
  Guarded<float> x, y;
  std::vector<float> before;  // y
  Guarded<int32_t> index, ranks;
  Guarded<char> low, high;  // A, B
  std::vector<float> a_values, b_values;

  LoraProblem(const std::vector<int32_t>& rows, const std::vector<int32_t>& rank_of, int64_t R, int64_t K,
              int64_t n, Format format, Values values = Values::kNormal) {
    const auto slots = static_cast<int64_t>(rank_of.size());
    a.T = static_cast<int64_t>(rows.size());
    a.K = K;
    a.n = n;
    a.R = R;
    a.ldx = K + 5;
    a.ldy = n + 3;
    a.format = format;
    fill(x, random_values(static_cast<size_t>((a.T - 1) * a.ldx + K), values, 1));
    before = random_values(static_cast<size_t>((a.T - 1) * a.ldy + n), values, 2);
    fill(y, before);
    fill(index, rows);
    fill(ranks, rank_of);
    const auto a_drawn = random_values(static_cast<size_t>(slots * R * K), values, 3);
    const auto b_drawn = random_values(static_cast<size_t>(slots * R * n), values, 4);
    low = encode(a_drawn, K, format);
    high = encode(b_drawn, n, format);
    a_values = decode(low, K, format);
    b_values = decode(high, n, format);
    a.x = x.data();
    a.y = y.data();
    a.index = index.data();
    a.ranks = ranks.data();
    a.a = low.data();
    a.b = high.data();
  }
  template <class T>
  static void fill(Guarded<T>& to, const std::vector<T>& from) {
    to = Guarded<T>(from.size());
    std::copy(from.begin(), from.end(), to.begin());
  }
  std::vector<float> run(const Kernel& k, int64_t step = 1, bool descending = true) {
    std::copy(before.begin(), before.end(), y.begin());
    run_in_steps(k, &a, step, descending);
    return {y.begin(), y.end()};
  }
  // Sum of |b| |a| |x| and |y|.
  double magnitude(int64_t t, int64_t j) const {
    double sum = std::fabs(before[static_cast<size_t>(t * a.ldy + j)]);
    const int64_t slot = index[static_cast<size_t>(t)];
    for (int64_t r = 0; slot >= 0 && r < ranks[static_cast<size_t>(slot)]; ++r) {
      double inner = 0;
      for (int64_t k = 0; k < a.K; ++k)
        inner += std::fabs(a_values[static_cast<size_t>((slot * a.R + r) * a.K + k)] * a.x[t * a.ldx + k]);
      sum += inner * std::fabs(b_values[static_cast<size_t>(slot * a.R * a.n + lora_b_at(a.R, a.n, r, j))]);
    }
    return sum;
  }
};

const Kernel& lora_kernel(Isa isa, Format format) {
  const Kernel* k = KernelRegistry::cpu().find({.family = KernelFamily::kLora, .weight = format}, isa);
  REQUIRE(k != nullptr);
  return *k;
}

// Rows of several adapters, of none, of one that leaves the layer alone (rank 0); more than one block of
// them.
std::vector<int32_t> mixed_rows(size_t count) {
  std::vector<int32_t> rows;
  for (size_t t = 0; t < count; ++t) rows.push_back(static_cast<int32_t>((t * 7 + t / 5) % 5) - 1);
  return rows;
}
const std::vector<int32_t> kSlotRanks = {1, 8, 0, 5};

struct LoraSize {
  int64_t R, K, n;
};
constexpr LoraSize kLoraSizes[] = {{8, 1, 1},   {8, 7, 33},    {8, 16, 64},    {8, 65, 31},
                                   {9, 64, 16}, {16, 200, 96}, {8, 129, 1025}, {64, 48, 512}};

}  // namespace

TEST_CASE("lora: every level against the reference") {
  for (const Format format : {Format::f32(), Format::bf16()}) {
    for (const LoraSize& size : kLoraSizes) {
      for (const size_t rows : {1, 2, 5, 32, 71}) {
        LoraProblem p(mixed_rows(rows), kSlotRanks, size.R, size.K, size.n, format);
        const std::vector<float> want = p.run(lora_kernel(Isa::kReference, format));
        for (const Isa isa : levels()) {
          const Kernel& k = lora_kernel(isa, format);
          INFO(k.name << " R=" << size.R << " K=" << size.K << " n=" << size.n << " rows=" << rows);
          const std::vector<float> got = p.run(k);
          bool good = true;
          for (int64_t t = 0; t < p.a.T; ++t) {
            for (int64_t j = 0; j < size.n; ++j) {
              const auto at = static_cast<size_t>(t * p.a.ldy + j);
              // A sum over K inside one over the rank, and the sum with y.
              const double bound = float_sum_bound(size.K + size.R + 1, p.magnitude(t, j));
              good = good && std::fabs(static_cast<double>(got[at]) - static_cast<double>(want[at])) <= bound;
            }
          }
          CHECK(good);
        }
      }
    }
  }
}

TEST_CASE("lora: integers are exact, so every level gives the reference's bits") {
  for (const Format format : {Format::f32(), Format::bf16()}) {
    LoraProblem p(mixed_rows(40), kSlotRanks, 8, 100, 70, format, Values::kIntegers);
    const std::vector<float> want = p.run(lora_kernel(Isa::kReference, format));
    for (const Isa isa : levels()) CHECK((p.run(lora_kernel(isa, format)) == want));
  }
}

TEST_CASE(
    "lora: a row's bits depend on no other row, nor on chunks; rows without an adapter are not written") {
  for (const Format format : {Format::f32(), Format::bf16()}) {
    for (const Isa isa : levels()) {
      const Kernel& k = lora_kernel(isa, format);
      INFO(k.name);
      const std::vector<int32_t> rows = mixed_rows(67);
      LoraProblem all(rows, kSlotRanks, 8, 77, 530, format);
      const std::vector<float> got = all.run(k);
      CHECK((all.run(k, 3, false) == got));
      for (size_t t = 0; t < rows.size(); ++t) {
        // The same row with every other left alone, and with every other asking for the same.
        for (const bool same : {false, true}) {
          std::vector<int32_t> others(rows.size(), same ? rows[t] : -1);
          others[t] = rows[t];
          std::copy(others.begin(), others.end(), all.index.begin());
          const std::vector<float> one = all.run(k);
          const auto begin = static_cast<std::ptrdiff_t>(t) * all.a.ldy;
          CHECK(std::equal(one.begin() + begin, one.begin() + begin + all.a.n, got.begin() + begin));
        }
        if (rows[t] < 0 || kSlotRanks[static_cast<size_t>(rows[t])] == 0) {
          const auto begin = static_cast<std::ptrdiff_t>(t) * all.a.ldy;
          CHECK(std::equal(got.begin() + begin, got.begin() + begin + all.a.n, all.before.begin() + begin));
        }
      }
    }
  }
}
