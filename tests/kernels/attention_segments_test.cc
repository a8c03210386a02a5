// Attention within segments at every level against the double-precision reference, operands ending at a guard
// page; what a segment gets must not depend on its place, its company, the chunks or the workers.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/matmul_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

struct SegmentHeads {
  int64_t H, K, D;
};

// Rows of segments of these lengths; q, k and v are columns of one matrix, as behind a fused projection.
struct SegmentProblem {
  SegmentProblem(const std::vector<int64_t>& lengths, SegmentHeads heads, uint32_t seed) : heads_(heads) {
    for (const int64_t n : lengths) rows += n;
    const int64_t width = (heads.H + 2 * heads.K) * heads.D;
    const std::vector<float> values = random_values(static_cast<size_t>(rows * width), Values::kNormal, seed);
    qkv = Guarded<float>(values.size());
    std::copy(values.begin(), values.end(), qkv.begin());
    segments = Guarded<int32_t>(static_cast<size_t>(rows));
    positions = Guarded<int32_t>(static_cast<size_t>(rows));
    size_t at = 0;
    for (size_t s = 0; s < lengths.size(); ++s)
      for (int64_t n = 0; n < lengths[s]; ++n, ++at) {
        segments[at] = static_cast<int32_t>(s % 2 == 0 ? s : 1000 - s);
        positions[at] = static_cast<int32_t>(7 + n + n / 10);  // with holes
      }
  }

  // Rows [first, last) alone; chunks from the last to the first, or by `pool`.
  std::vector<float> run(Isa isa, int64_t first, int64_t last, ThreadPool* pool = nullptr) const {
    SegmentAttentionArgs a;
    const int64_t width = (heads_.H + 2 * heads_.K) * heads_.D;
    Guarded<float> out(static_cast<size_t>((last - first) * heads_.H * heads_.D));
    std::fill(out.begin(), out.end(), NAN);
    a.out = out.data();
    a.q = qkv.data() + first * width, a.k = a.q + heads_.H * heads_.D, a.v = a.k + heads_.K * heads_.D;
    a.segments = segments.data() + first;
    a.T = last - first, a.H = heads_.H, a.K = heads_.K, a.D = heads_.D;
    a.ldq = a.ldk = a.ldv = width, a.ldo = heads_.H * heads_.D;
    a.scale = scale();
    a.window = window;
    if (window > 0) a.positions = positions.data() + first;
    const Kernel& k = *KernelRegistry::cpu().find({KernelFamily::kSegmentAttention}, isa);
    KernelPlan plan;
    k.plan(&a, pool ? pool->workers() : 1, &plan);
    if (pool) {
      pool->reserve_scratch(plan.worker_scratch);
      pool->run(k, &a, plan, nullptr);
    } else {
      std::vector<float> own(plan.worker_scratch / 4 + 32, NAN);
      auto* scratch = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(own.data()) + 63) / 64 * 64);
      for (int64_t i = plan.chunks[0]; i-- > 0;) k.run(&a, 0, i, i + 1, {scratch, nullptr});
    }
    return {out.begin(), out.end()};
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(heads_.D)); }

  // With u = 2^-24: a score is off by at most (D + 2) u of the sum of its absolute products, a weight by
  // twice that and the roundings of exp and of n sums, relative to itself; the result is a mean of values.
  double bound(int64_t longest) const {
    double most_qk = 0, most_v = 0;
    const int64_t H = heads_.H, K = heads_.K, D = heads_.D;
    const size_t width = static_cast<size_t>((H + 2 * K) * D);
    for (size_t i = 0; i < qkv.size(); ++i) {
      const double x = std::fabs(static_cast<double>(qkv[i]));
      if (i % width < static_cast<size_t>((H + K) * D)) most_qk = std::max(most_qk, x);
      else most_v = std::max(most_v, x);
    }
    const double u = std::ldexp(1.0, -24), d = static_cast<double>(D);
    const double score = (d + 2) * u * most_qk * most_qk * d * static_cast<double>(scale());
    return most_v * (4 * score + (2 * static_cast<double>(longest) + 16) * u);
  }

  int64_t rows = 0;
  Guarded<float> qkv;
  Guarded<int32_t> segments, positions;
  int64_t window = 0;

 private:
  const SegmentHeads heads_;
};

const SegmentHeads kSegmentHeads[] = {{4, 4, 8}, {12, 12, 32}, {2, 1, 64}, {3, 3, 80}, {2, 2, 7}, {1, 1, 1}};

bool equal_bits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("segment attention: every level equals the reference") {
  const std::vector<int64_t> lengths = {1, 3, 16, 17, 2, 31, 33, 130, 1, 7};
  for (const SegmentHeads& h : kSegmentHeads) {
    for (const int64_t window : {0, 1, 5, 16, 65}) {
      SegmentProblem p(lengths, h, 5);
      p.window = window;
      const std::vector<float> want = p.run(Isa::kReference, 0, p.rows);
      for (const Isa isa : levels()) {
        INFO(isa_name(isa) << " H=" << h.H << " K=" << h.K << " D=" << h.D << " window=" << window);
        const std::vector<float> got = p.run(isa, 0, p.rows);
        double worst = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          const double d = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
          worst = d <= worst ? worst : d;  // NaN stays
        }
        CHECK(worst <= p.bound(130));
      }
    }
  }
}

TEST_CASE("segment attention: a segment alone, in company and over workers is the same to the last bit") {
  oar_test::Sample sample(3);
  const std::vector<int64_t> lengths = {5, 1, 64, 200, 127, 16, 300, 2};
  ThreadPool pool({.threads = 3});
  for (const SegmentHeads& h : {SegmentHeads{12, 12, 32}, SegmentHeads{4, 2, 80}}) {
    for (const int64_t window : {0, 33}) {
      SegmentProblem p(lengths, h, 6);
      p.window = window;
      for (const Isa isa : levels()) {
        if (!sample.take()) continue;
        INFO(isa_name(isa) << " window=" << window);
        const std::vector<float> all = p.run(isa, 0, p.rows);
        CHECK(equal_bits(p.run(isa, 0, p.rows, &pool), all.data()));
        int64_t first = 0;
        for (const int64_t n : lengths) {
          CHECK(equal_bits(p.run(isa, first, first + n), all.data() + first * h.H * h.D));
          first += n;
        }
      }
    }
  }
}
