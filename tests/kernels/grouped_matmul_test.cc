// The grouped matmul against the plain one: an expert's pairs are the rows of a matmul with that expert's
// weights, and must come out with the same bits.
#include <cstring>
#include <numeric>

#include "tests/kernels/matmul_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

// Random experts for T tokens; counts differ widely and some experts get none.
std::vector<int32_t> random_starts(int64_t P, int64_t experts, uint32_t seed) {
  std::mt19937 gen(seed);
  std::vector<int32_t> start(static_cast<size_t>(experts + 1), 0);
  for (int64_t p = 0; p < P; ++p) {
    const auto e = std::min(gen() % static_cast<uint64_t>(experts), gen() % static_cast<uint64_t>(experts));
    ++start[e + 1];
  }
  std::partial_sum(start.begin(), start.end(), start.begin());
  return start;
}

}  // namespace

TEST_CASE("grouped matmul: equals the plain matmul of each expert to the bit") {
  ThreadPool pool({.threads = 3});
  Sample sample(3);
  for (const char* name :
       {"f32", "f16", "bf16", "q8_0", "q4_0", "i4_s8_g32", "u4_g128", "w4a8_g128", "q4_k", "q6_k"}) {
    const Format format = *Format::find(name);
    for (Isa isa : levels()) {
      const Kernel* grouped = KernelRegistry::cpu().find({KernelFamily::kGroupedMatmul, format}, isa);
      const Kernel* plain = KernelRegistry::cpu().find({KernelFamily::kMatmul, format}, isa);
      REQUIRE(grouped != nullptr);
      if (grouped->isa != isa) continue;
      for (int64_t P : {1, 4, 37, 150, 1700}) {
        // w4a8 has another way for many tokens, and some experts have them.
        if (P > 150 && name != std::string_view("w4a8_g128")) continue;
        for (bool gather : {true, false}) {
          if (!sample.take()) continue;
          const int64_t experts = 5, K = format.block_elems() > 32 ? 512 : 160, n0 = P > 150 ? 200 : 48,
                        n1 = 21, tokens = 40, ldx = K + 1, ldo = n0 + n1 + 2;
          std::vector<Weight> w;
          std::vector<MatmulSegment> segments;
          const std::vector<float> bias = random_values(static_cast<size_t>(n0 + n1), Values::kNormal, 3);
          for (int64_t e = 0; e < experts; ++e) {
            const auto seed = static_cast<uint32_t>(100 + e);
            w.emplace_back(random_values(static_cast<size_t>(n0 * K), Values::kNormal, seed), format, isa, n0,
                           K);
            w.emplace_back(random_values(static_cast<size_t>(n1 * K), Values::kNormal, seed + 50), format,
                           isa, n1, K);
            segments.push_back({w[w.size() - 2].for_kernel, bias.data(), n0, 0});
            segments.push_back({w[w.size() - 1].for_kernel, nullptr, n1, n0});
          }
          const int64_t x_rows = gather ? tokens : P;
          Guarded<float> x(static_cast<size_t>((x_rows - 1) * ldx + K));
          const auto values = random_values(x.size(), Values::kNormal, 7);
          std::copy(values.begin(), values.end(), x.begin());
          std::mt19937 gen(11);
          Guarded<int32_t> token(static_cast<size_t>(P));
          for (int32_t& t : token) t = static_cast<int32_t>(gen() % static_cast<uint64_t>(tokens));
          const auto starts = random_starts(P, experts, static_cast<uint32_t>(P));
          Guarded<int32_t> start(starts.size());
          std::copy(starts.begin(), starts.end(), start.begin());
          Guarded<float> out(static_cast<size_t>((P - 1) * ldo + n0 + n1));
          std::fill(out.begin(), out.end(), -7.f);

          GroupedMatmulArgs a;
          a.out = out.data();
          a.x = x.data();
          a.pair_token = gather ? token.data() : nullptr;
          a.expert_start = start.data();
          a.segments = segments.data();
          a.segments_per_expert = 2;
          a.experts = experts;
          a.P = P;
          a.K = K;
          a.ldx = ldx;
          a.ldo = ldo;
          a.format = format;
          run_on_pool(pool, *grouped, &a);

          INFO(grouped->name << " P=" << P << (gather ? " gathered" : ""));
          int64_t different = 0;
          for (int64_t e = 0; e < experts; ++e) {
            for (int64_t p = starts[static_cast<size_t>(e)]; p < starts[static_cast<size_t>(e + 1)]; ++p) {
              std::vector<float> row(static_cast<size_t>(n0 + n1));
              MatmulArgs m;
              m.out = row.data();
              m.x = x.data() + (gather ? token[static_cast<size_t>(p)] : p) * ldx;
              m.segments = segments.data() + 2 * e;
              m.num_segments = 2;
              m.T = 1;
              m.K = K;
              m.ldx = ldx;
              m.ldo = n0 + n1;
              m.format = format;
              run_in_steps(*plain, &m, 1, false);
              different += std::memcmp(row.data(), out.data() + p * ldo, row.size() * sizeof(float)) != 0;
            }
          }
          CHECK(different == 0);
          for (int64_t p = 0; p + 1 < P; ++p) CHECK(out[static_cast<size_t>(p * ldo + n0 + n1)] == -7.f);
          // Again in single chunks backwards: chunks past the last block of tokens must be harmless.
          const std::vector<float> before(out.begin(), out.end());
          run_in_steps(*grouped, &a, 1, true);
          CHECK(std::memcmp(before.data(), out.data(), before.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}
