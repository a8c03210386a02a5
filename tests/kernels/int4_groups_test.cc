// The layouts of kernels/cpu/matmul/int4_groups.h and their kernels, bit by bit against what the header says,
// in plain loops here. (What both may lose beside exact weights is in matmul_test.cc.)
#include "kernels/cpu/matmul/int4_groups.h"

#include <cmath>
#include <random>

#include "tests/kernels/matmul_problem.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

// A token's 256 activations as bytes under one scale.
struct Block {
  int x[kGroupsBlock] = {};
  float scale = 0;

  Block(const float* v, int64_t count) {
    float most = 0;
    for (int64_t k = 0; k < count; ++k) most = std::max(most, std::fabs(v[k]));
    scale = most / 127.f;
    if (most <= 1e-30f) return;
    const float inverse = 127.f / most;
    for (int64_t k = 0; k < count; ++k) x[k] = static_cast<int>(std::nearbyint(v[k] * inverse));
  }
};

// What row `row` of a packed weight gives for a token.
template <int G, bool kOffsets>
float defined(const char* packed, int64_t row, const float* x, int64_t K, int shift) {
  using Panel = Int4GroupsPanel<G, kOffsets>;
  const int64_t lane = row % kGroupsRows;
  float sum = 0;
  for (int64_t b = 0; b < Panel::blocks(K); ++b) {
    const char* block = packed + row / kGroupsRows * Panel::bytes(K) + b * Panel::kBlock;
    const Block token(x + b * kGroupsBlock, std::min(kGroupsBlock, K - b * kGroupsBlock));
    int32_t S = 0;
    for (int64_t g = 0; g < Panel::groups(K, b); ++g) {
      int32_t dot = 0, total = 0;
      for (int64_t k = g * G; k < (g + 1) * G; ++k) {
        const int64_t step = k / kGroupsStep, in = k % kGroupsStep, j = in % 16 / 4, i = in % 4;
        const auto byte = static_cast<uint8_t>(
            block[Panel::kLevels + step * Panel::kStepBytes + (j * kGroupsRows + lane) * 4 + i]);
        const int level = in < 16 ? byte & 15 : byte >> 4;
        dot += (kOffsets ? level : level - 8) * token.x[k];
        total += token.x[k];
      }
      const char m = block[Panel::kMultipliers + g * kGroupsRows + lane];
      S += dot * (kOffsets ? static_cast<uint8_t>(m) : static_cast<int8_t>(m));
      if (kOffsets) {
        S += total * static_cast<int8_t>(block[Panel::kOffsets + (g / 2 * kGroupsRows + lane) * 2 + g % 2]) *
             (1 << shift);
      }
    }
    float scale;
    std::memcpy(&scale, block + lane * 4, 4);
    sum = std::fma(static_cast<float>(S), scale * token.scale, sum);
  }
  return sum;
}

template <int G, bool kOffsets>
void check(const char* name, int shift) {
  const Format format = *Format::find(name);
  const WeightLayout* layout = int4_groups_layout(format);
  REQUIRE(layout != nullptr);
  INFO(name << ", " << layout->name);
  if (kOffsets) CHECK(int4_groups_shift(format) == shift);
  ThreadPool pool({.threads = 3});
  int64_t kernels = 0;
  oar_test::Sample sample(5);
  for (const Kernel* kernel : KernelRegistry::cpu().all()) {
    if (kernel->family != KernelFamily::kMatmul || kernel->format != format) continue;
    if (kernel->isa == Isa::kReference || kernel->isa > best_isa()) continue;
    if (&weight_layout(format, kernel->isa) != layout) continue;
    ++kernels;
    for (int64_t K : {G, 256, 256 + G, 2048 - G, 2304}) {
      // Every number of tiles and sizes of theirs, and more tokens than go together.
      for (int64_t T : {1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 18, 23, 64, 65, 131, 323}) {
        if ((T > 131 && K > 512) || !sample.take()) continue;
        const int64_t n = T % 2 == 0 ? 32 : 71;
        const auto seed = static_cast<uint32_t>(K + T);
        const Weight w(random_values(static_cast<size_t>(n * K), Values::kNormal, seed), format, kernel->isa,
                       n, K);
        Guarded<float> x(static_cast<size_t>(T * K)), out(static_cast<size_t>(T * n));
        std::ranges::copy(random_values(x.size(), Values::kNormal, seed + 1), x.begin());
        std::fill_n(x.begin(), std::min<int64_t>(K, 256), 0.f);  // a block of nothing
        const MatmulSegment segment{w.for_kernel, nullptr, n, 0};
        MatmulArgs a;
        a.out = out.data(), a.x = x.data(), a.segments = &segment, a.num_segments = 1;
        a.T = T, a.K = K, a.ldx = K, a.ldo = n, a.format = format;
        run_on_pool(pool, *kernel, &a);
        int64_t wrong = 0;
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t r = 0; r < n; ++r) {
            const float expected = defined<G, kOffsets>(w.packed.data(), r, x.data() + t * K, K, shift);
            wrong += std::memcmp(&expected, &out[static_cast<size_t>(t * n + r)], sizeof expected) != 0;
          }
        }
        INFO(kernel->name << " T=" << T << " K=" << K << " n=" << n);
        CHECK(wrong == 0);
      }
    }
  }
  if (kernels == 0) OAR_SKIP("no kernel of this processor reads the layout");
}

}  // namespace

// Random steps and zeros, whose products are far from bytes: the packed weights are bytes again, so that few
// tokens, who multiply levels, and many, who expand them, get the same.
TEST_CASE("int4 groups: w4a8 that is no bytes is the same for few tokens and for many") {
  const Format format = *Format::find("w4a8_g128");
  const WeightLayout& layout = weight_layout(format, best_isa());
  if (&layout != int4_groups_layout(format)) OAR_SKIP("no kernel of this processor reads the layout");
  const Kernel* kernel = KernelRegistry::cpu().find({KernelFamily::kMatmul, format}, best_isa());
  const int64_t K = 512, n = 64, T = 330, stride = format.stride(K);
  std::mt19937 gen(3);
  std::vector<char> rows(static_cast<size_t>(n * stride));
  for (char& c : rows) c = static_cast<char>(gen());
  const float scale = 0.25f;
  for (int64_t r = 0; r < n; ++r) std::memcpy(rows.data() + r * stride, &scale, sizeof scale);
  Guarded<char> packed(layout.bytes(n, K), 64);
  layout.pack(packed.data(), rows.data(), format, n, K, 0, n);
  Guarded<float> x(static_cast<size_t>(T * K));
  std::ranges::copy(random_values(x.size(), Values::kNormal, 7), x.begin());
  ThreadPool pool({.threads = 2});
  const MatmulSegment segment{packed.data(), nullptr, n, 0};
  for (int64_t tokens : {int64_t{3}, T}) {
    std::vector<float> out(static_cast<size_t>(tokens * n));
    MatmulArgs a;
    a.out = out.data(), a.x = x.data(), a.segments = &segment, a.num_segments = 1;
    a.T = tokens, a.K = K, a.ldx = K, a.ldo = n, a.format = format;
    run_on_pool(pool, *kernel, &a);
    int64_t wrong = 0;
    for (int64_t i = 0; i < tokens * n; ++i) {
      const float expected = defined<128, true>(packed.data(), i % n, x.data() + i / n * K, K, 0);
      wrong += std::memcmp(&expected, &out[static_cast<size_t>(i)], sizeof expected) != 0;
    }
    INFO(tokens << " tokens");
    CHECK(wrong == 0);
  }
}

TEST_CASE("int4 groups: kernels give the bits that the layout defines") {
  check<64, false>("i4_g64", 0);
  check<128, false>("i4_g128", 0);
  check<64, true>("u4_g64", 4);
  check<128, true>("u4_g128", 4);
  check<64, true>("w4a8_g64", 0);
  check<128, true>("w4a8_g128", 0);
}
