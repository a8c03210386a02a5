// Rows that a norm or a gate makes, a transform turns and a launch rounds: all that they write is that of one
// launch each, to the bit.
#include "kernels/cuda/narrow.h"

#include <cstring>
#include <numeric>

#include "quant/transforms/hadamard.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Rows {
  int64_t count, cols;
  bool codes = false;  // e4m3 under scales; else bf16
  bool gated = false;
  int64_t block = 0;  // of a transform; 0: none
  bool inverse = false, signs = false;
  bool residual = false, sum_out = false, in_place = false;  // of a norm; of a transform: over what was made
  int64_t first = 0, rounded = -1;                           // -1: all from there on
  size_t shift = 0;                                          // elements behind a multiple of 16 bytes
  int64_t between = 4;                                       // elements between rows
};

class RowsProblem {
 public:
  explicit RowsProblem(const Rows& r) : r_(r), ld_(r.cols + r.between) {
    const auto values = [](int64_t n, uint32_t seed) {
      return random_values(static_cast<size_t>(n), Values::kNormal, seed);
    };
    x_ = values(r.count * ld_, 1);
    // Scales at their ends: a row of zeros, and one that e4m3 has at its largest.
    if (r.count > 2) std::fill_n(x_.begin() + ld_, ld_, 0.f);
    if (r.count > 3) std::fill_n(x_.begin() + 2 * ld_, r.cols / 2, 3e30f);
    other_ = values(r.count * ld_, 2);
    w_ = std::make_unique<DeviceArray>(values(r.cols, 3), r.shift);
    signs_ = std::make_unique<DeviceArray>(values(r.cols, 4), r.shift);
    if (r.block == 0) return;
    order_ = *hadamard_order(r.block);
    for (size_t c = order_.cores.size(); c-- > 0;) {
      const int64_t K = order_.cores[c];
      const std::vector<int8_t> core = hadamard_core(K);
      std::vector<float> matrix(core.begin(), core.end());
      if (r.inverse) {
        for (int64_t i = 0; i < K * K; ++i)
          matrix[static_cast<size_t>(i)] = core[static_cast<size_t>(i % K * K + i / K)];
      }
      cores_.push_back(std::make_unique<DeviceArray>(matrix));
      core_orders_.push_back(K);
    }
  }

  // All memory that is written, as one launch leaves it, or one for each step.
  std::vector<char> run(bool at_once) {
    DeviceArray x(x_, r_.shift), other(other_, r_.shift), made(nothing_yet(r_.count * ld_), r_.shift),
        turned(nothing_yet(r_.count * ld_), r_.shift), sum(nothing_yet(r_.count * r_.cols), r_.shift);
    cuda::RowSteps steps;
    if (r_.gated) {
      SwiGluArgs g;
      g.gate = other.data();
      g.up = x.data();
      g.out = r_.in_place ? x.data() : made.data();
      g.T = r_.count;
      g.F = r_.cols;
      g.ldo = g.ldg = g.ldu = ld_;
      g.act = UnaryOp::kGeluTanh;
      steps.made = g;
    } else {
      RmsNormArgs n;
      n.x = x.data();
      n.residual = r_.residual ? other.data() : nullptr;
      // Over the residual, where there is one.
      n.sum_out = !r_.sum_out ? nullptr : r_.residual ? other.data() : sum.data();
      n.out = r_.in_place ? x.data() : made.data();
      n.w = w_->data();
      n.rows = r_.count;
      n.cols = r_.cols;
      n.ldx = n.ldo = ld_;
      n.w_offset = 1.f;
      steps.made = n;
    }
    if (r_.block > 0) {
      HadamardArgs h;
      h.x = steps.out();
      h.out = r_.in_place ? x.data() : turned.data();
      h.signs = r_.signs ? signs_->data() : nullptr;
      h.inverse = r_.inverse ? 1 : 0;
      h.rows = r_.count;
      h.n = r_.cols;
      h.ldx = h.ldo = ld_;
      h.block = r_.block;
      h.power = order_.power;
      h.num_cores = static_cast<int32_t>(cores_.size());
      for (size_t c = 0; c < cores_.size(); ++c) {
        h.cores[c] = cores_[c]->data();
        h.core_order[c] = core_orders_[c];
      }
      REQUIRE(cuda::takes_transform(h));
      steps.transform = h;
    }
    CHECK(steps.rows() == r_.count);
    CHECK(steps.cols() == r_.cols);
    CHECK(steps.ld() == ld_);
    MatmulArgs m;
    m.x = steps.out() + r_.first * ld_;
    m.T = r_.rounded < 0 ? r_.count - r_.first : r_.rounded;
    m.K = r_.cols;
    m.ldx = ld_;
    DeviceCopy<char> rounded(
        std::vector<char>(r_.codes ? cuda::narrow_codes_bytes(m) : cuda::narrow_bytes(m), '\x7f'));
    const NextOrder order;
    if (!at_once) REQUIRE(cuda::make_rows(steps, nullptr) == 0);
    const cuda::Gate gate{nullptr, 0, UnaryOp::kSilu, at_once ? &steps : nullptr};
    REQUIRE((r_.codes ? cuda::narrow_rows_to_codes(cuda::narrow_codes(m, rounded.data()), m, gate, nullptr)
                      : cuda::narrow_rows(rounded.data(), m, gate, nullptr)) == 0);
    std::vector<char> all = rounded.host();
    for (DeviceArray* part : {&x, &other, &made, &turned, &sum}) {
      const std::vector<float> its = part->host();
      const auto* bytes = reinterpret_cast<const char*>(its.data());
      all.insert(all.end(), bytes, bytes + its.size() * sizeof(float));
    }
    return all;
  }

 private:
  const Rows r_;
  const int64_t ld_;
  std::vector<float> x_, other_;
  std::unique_ptr<DeviceArray> w_, signs_;
  HadamardOrder order_;
  std::vector<std::unique_ptr<DeviceArray>> cores_;
  std::vector<int64_t> core_orders_;
};

void check(const Rows& r) {
  INFO("rows " << r.count << " cols " << r.cols << " codes " << r.codes << " gated " << r.gated << " block "
               << r.block << " shift " << r.shift << " first " << r.first);
  RowsProblem p(r);
  CHECK((p.run(true) == p.run(false)));
}

}  // namespace

TEST_CASE("cuda: rows that are made and rounded at once are those of a launch each", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const bool gated : {false, true}) {
    for (const size_t shift : {0, 1}) {
      for (const int64_t cols : {8, 24, 40, 1000, 1032, 4104})
        check({.count = 3, .cols = cols, .gated = gated, .residual = true, .sum_out = true, .shift = shift});
      for (const int64_t cols : {128, 384, 1152, 4096})
        check({.count = 5, .cols = cols, .codes = true, .gated = gated, .residual = true, .shift = shift});
    }
    for (const bool codes : {false, true}) {
      check({.count = 67, .cols = 128, .codes = codes, .gated = gated, .sum_out = true});
      check({.count = 300, .cols = 128, .codes = codes, .gated = gated, .between = 0});
      check({.count = 1, .cols = 256, .codes = codes, .gated = gated, .in_place = true});
      check({.count = 4, .cols = 256, .codes = codes, .gated = gated, .in_place = true, .between = 3});
    }
  }
}

TEST_CASE("cuda: rows that are made, transformed and rounded at once are those of a launch each", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Turned {
    int64_t cols, block;
  };
  // Powers of two, one of several in a row, dense cores; those of bf16 alone.
  for (const Turned& t : {Turned{128, 128},
                          {384, 128},
                          {384, 384},
                          {1152, 128},
                          {1280, 640},
                          {2048, 2048},
                          {24, 12},
                          {40, 40},
                          {1000, 8}}) {
    for (const bool codes : {false, true}) {
      if (codes && t.cols % cuda::kNarrowGroup != 0) continue;
      for (int flags = 0; flags < 8; ++flags) {
        const bool gated = flags % 2 != 0, inverse = flags / 2 % 2 != 0, signs = flags / 4 != 0;
        if (t.cols != 384 && flags != 0 && flags != 7) continue;
        check({.count = 5,
               .cols = t.cols,
               .codes = codes,
               .gated = gated,
               .block = t.block,
               .inverse = inverse,
               .signs = signs,
               .residual = !inverse,
               .sum_out = signs,
               .in_place = inverse && signs,
               .shift = inverse ? size_t{1} : size_t{0}});
      }
    }
  }
}

TEST_CASE("cuda: of rows that are made at once some are rounded", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t block : {0, 128}) {
    for (const bool codes : {false, true}) {
      for (const auto& [first, rounded] : {std::pair<int64_t, int64_t>{3, -1}, {0, 2}, {2, 3}, {6, 1}})
        check({.count = 7,
               .cols = 256,
               .codes = codes,
               .block = block,
               .sum_out = true,
               .first = first,
               .rounded = rounded});
    }
  }
}

TEST_CASE("cuda: a transform that no block has room for is no part of rows that are made", "[cuda]") {
  HadamardArgs h;
  h.rows = 1;
  h.n = h.block = h.power = 57344;
  CHECK(!cuda::takes_transform(h));
  h.n = h.block = 28672;
  CHECK(cuda::takes_transform(h));
  h.block = 0;
  CHECK(!cuda::takes_transform(h));
}
