// Hadamard matrices of every order offered, in exact integers.
#include "quant/transforms/hadamard.h"

#include <numeric>
#include <vector>

#include "tests/support/catch.h"

using namespace oar;

namespace {

// H H^T = n I: every two rows are orthogonal.
bool orthogonal(const std::vector<int8_t>& h, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      int64_t dot = 0;
      for (int64_t k = 0; k < n; ++k)
        dot += h[static_cast<size_t>(i * n + k)] * h[static_cast<size_t>(j * n + k)];
      if (dot != (i == j ? n : 0)) return false;
    }
  }
  return true;
}

std::vector<int64_t> unit_columns(const HadamardOrder& order, bool transposed) {
  // Column j of the matrix is the transform of unit vector j.
  std::vector<int64_t> m(static_cast<size_t>(order.n * order.n)), x(static_cast<size_t>(order.n));
  for (int64_t j = 0; j < order.n; ++j) {
    std::fill(x.begin(), x.end(), 0);
    x[static_cast<size_t>(j)] = 1;
    hadamard_transform(x.data(), order, transposed);
    for (int64_t i = 0; i < order.n; ++i) m[static_cast<size_t>(i * order.n + j)] = x[static_cast<size_t>(i)];
  }
  return m;
}

}  // namespace

TEST_CASE("every dense core satisfies H H^T = n I in integers and has no entry but +-1") {
  int cores = 0;
  for (int64_t K = 4; K <= kLargestHadamardCore; K += 4) {
    const auto order = hadamard_order(K);
    // A core of its own: not a power of two, nor made of smaller ones.
    if (!order || order->cores.size() != 1 || order->cores[0] != K) continue;
    const std::vector<int8_t> h = hadamard_core(K);
    INFO(K);
    REQUIRE(h.size() == static_cast<size_t>(K * K));
    bool signs = true;
    for (int8_t v : h) signs = signs && (v == 1 || v == -1);
    CHECK(signs);
    // The largest are checked in [slow]: n^3 additions.
    if (K <= 260) CHECK(orthogonal(h, K));
    ++cores;
  }
  CHECK(cores > 60);
}

TEST_CASE("large dense cores satisfy H H^T = n I", "[slow][.]") {
  for (int64_t K = 264; K <= kLargestHadamardCore; K += 4) {
    const auto order = hadamard_order(K);
    if (!order || order->cores != std::vector<int64_t>{K}) continue;
    INFO(K);
    CHECK(orthogonal(hadamard_core(K), K));
  }
}

TEST_CASE("the orders below 260 that Paley's constructions and products do not reach are known") {
  std::vector<int64_t> missing;
  for (int64_t n = 4; n < 260; n += 4) {
    if (!hadamard_order(n)) missing.push_back(n);
  }
  CHECK((missing == std::vector<int64_t>{92, 116, 156, 172, 184, 188, 232, 236}));
  for (int64_t n : {0, -4, 3, 5, 6, 7, 9, 10, 30, 42}) CHECK(!hadamard_order(n));
  CHECK(hadamard_order(1));
  CHECK(hadamard_order(2));
}

TEST_CASE("widths and head sizes of known models have an exact order") {
  // Feed-forward and hidden widths, head sizes: Llama, Qwen, TinyLlama, Gemma.
  for (int64_t n : {64,   80,    96,    112,   128,   192,   256,   576,   768,   896,   960,  1536,
                    2048, 2560,  3584,  4096,  5120,  8192,  3072,  4864,  5632,  6144,  8960, 9216,
                    9728, 11008, 12288, 13824, 14336, 17408, 18944, 25600, 27648, 28672, 29568}) {
    INFO(n);
    const auto order = hadamard_order(n);
    REQUIRE(order);
    int64_t product = order->power;
    for (int64_t K : order->cores) product *= K;
    CHECK(product == n);
  }
  // Three small cores instead of one of 924.
  CHECK((hadamard_order(29568)->cores == std::vector<int64_t>{44, 28, 12}));
}

TEST_CASE("transforms are the matrices, entry by entry; the transpose undoes n times") {
  for (int64_t n :
       {1, 2, 4, 8, 12, 16, 20, 24, 28, 36, 48, 52, 56, 64, 80, 96, 100, 112, 128, 144, 192, 240, 244, 256}) {
    INFO(n);
    const HadamardOrder order = *hadamard_order(n);
    const std::vector<int64_t> h = unit_columns(order, false), t = unit_columns(order, true);
    bool entries = true, transposed = true;
    std::vector<int8_t> signs(h.begin(), h.end());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<size_t>(i * n + j);
        // The entries of a core are made anew for each call: a sample of the larger ones.
        if (n <= 36 || (i + 3 * j) % 509 == 0) entries = entries && h[at] == hadamard_entry(order, i, j);
        transposed = transposed && h[at] == t[static_cast<size_t>(j * n + i)];
      }
    }
    CHECK(entries);
    CHECK(transposed);
    CHECK(orthogonal(signs, n));
    std::vector<int64_t> x(static_cast<size_t>(n));
    std::iota(x.begin(), x.end(), -3);
    auto y = x;
    hadamard_transform(y.data(), order);
    hadamard_transform(y.data(), order, true);
    bool undone = true;
    for (size_t k = 0; k < x.size(); ++k) undone = undone && y[k] == n * x[k];
    CHECK(undone);
  }
}

TEST_CASE("random signs follow from the seed alone") {
  int64_t sum = 0, changes = 0;
  for (uint64_t i = 0; i < 4096; ++i) {
    CHECK(random_sign(0, i) == 1);
    sum += random_sign(7, i);
    changes += random_sign(7, i) != random_sign(8, i);
  }
  // Six standard deviations of 4096 fair signs: 6 * 64, and of 4096 fair coins: 6 * 32.
  CHECK(std::abs(sum) < 384);
  CHECK(std::abs(changes - 2048) < 192);
  // Frozen: checkpoints are made with this sequence.
  std::vector<int> first;
  for (uint64_t i = 0; i < 8; ++i) first.push_back(random_sign(1, i));
  CHECK((first == std::vector<int>{-1, -1, 1, -1, -1, 1, -1, -1}));
}
