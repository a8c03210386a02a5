// Attention of padded batches with all its operands, masks and lengths, for the tests of every backend.
#pragma once

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/matmul_problem.h"

namespace oar_test {

enum class Mask { kNone, kAdd, kBool, kKeys, kOne, kBlind, kLate };  // kLate: the first 40 keys are hidden

struct DenseCase {
  int64_t B = 1, H = 1, K = 1, S = 1, L = 1, D = 1, DV = 1;
  bool heads_last = false, causal = false;
  int64_t left = -1, right = -1, offset = 0;
  float softcap = 0;
  Mask mask = Mask::kNone;
  std::vector<int32_t> lengths;
  bool last = false, nan = false;
};

class DenseProblem {
 public:
  DenseProblem(const DenseCase& c, uint32_t seed) : c_(c) {
    q_ = fill(c.B * c.H * c.S * c.D, seed);
    k_ = fill(c.B * c.K * c.L * c.D, seed + 1);
    v_ = fill(c.B * c.K * c.L * c.DV, seed + 2);
    const auto steps = [&](int64_t heads, int64_t rows, int64_t width) {
      return c.heads_last ? oar::AttentionSteps{rows * heads * width, width, heads * width}
                          : oar::AttentionSteps{heads * rows * width, rows * width, width};
    };
    a_.q_steps = steps(c.H, c.S, c.D), a_.k_steps = steps(c.K, c.L, c.D);
    a_.v_steps = steps(c.K, c.L, c.DV), a_.out_steps = steps(c.H, c.S, c.DV);
    a_.q = q_.data(), a_.k = k_.data(), a_.v = v_.data();
    a_.B = c.B, a_.H = c.H, a_.K = c.K, a_.S = c.S, a_.L = c.L, a_.D = c.D, a_.DV = c.DV;
    a_.scale = 1 / std::sqrt(static_cast<float>(c.D)), a_.softcap = c.softcap;
    a_.causal = c.causal, a_.left = c.left, a_.right = c.right, a_.offset = c.offset;
    a_.last = c.last, a_.blind_is_nan = c.nan;
    if (!c.lengths.empty()) {
      lengths_ = Guarded<int32_t>(c.lengths.size());
      std::copy(c.lengths.begin(), c.lengths.end(), lengths_.begin());
      a_.lengths = lengths_.data();
    }
    if (c.mask == Mask::kNone) return;
    const int64_t rows = c.mask == Mask::kKeys ? c.B : c.mask == Mask::kOne ? 1 : c.B * c.H * c.S;
    const int64_t columns = c.mask == Mask::kOne ? 1 : std::max<int64_t>(1, c.L - (c.mask == Mask::kKeys));
    a_.mask_columns = c.mask == Mask::kOne ? c.L : columns, a_.mask_column = c.mask != Mask::kOne;
    if (c.mask == Mask::kKeys) a_.mask_steps = {columns, 0, 0};
    else if (c.mask != Mask::kOne) a_.mask_steps = {c.H * c.S * columns, c.S * columns, columns};
    mask_ = fill(rows * columns, seed + 3);
    for (size_t i = 0; i < mask_.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / columns;
      const bool early = static_cast<int64_t>(i) % columns < 40;
      if (i % 5 == 3 || (c.mask == Mask::kBlind && row % 2 == 0) || (c.mask == Mask::kLate && early))
        mask_[i] = -INFINITY;
    }
    a_.mask = mask_.data();
    if (c.mask != Mask::kBool) return;
    seen_ = Guarded<uint8_t>(mask_.size());
    for (size_t i = 0; i < mask_.size(); ++i) seen_[i] = std::isinf(mask_[i]) ? 0 : 1;
    a_.mask = seen_.data(), a_.mask_bool = 1;
  }

  // Chunks from the last to the first, or by `pool`.
  std::vector<float> run(Isa isa, oar::ThreadPool* pool = nullptr) const { return run(a_, isa, pool); }
  // Query i of every head and entry alone, at its position.
  std::vector<float> run_one(Isa isa, int64_t i) const {
    oar::DenseAttentionArgs a = a_;
    a.q += i * a.q_steps.row, a.S = 1, a.offset += i;
    if (a.mask != nullptr)
      a.mask = static_cast<const char*>(a.mask) + i * a.mask_steps.row * (a.mask_bool ? 1 : 4);
    return run(a, isa, nullptr);
  }

  // With u = 2^-24, as of segment attention: of a score and its mask, of a weight, of a mean of values.
  double bound() const {
    const auto most = [](const Guarded<float>& x) {
      double m = 0;
      for (const float e : x)
        if (!std::isinf(e)) m = std::max(m, std::fabs(static_cast<double>(e)));
      return m;
    };
    const double u = std::ldexp(1.0, -24), d = static_cast<double>(c_.D);
    const double score =
        (d + 8) * u * (most(q_) * most(k_) * d * static_cast<double>(a_.scale) + most(mask_));
    return most(v_) * (4 * score + (2 * static_cast<double>(c_.L) + 16) * u);
  }

  // On the host.
  const oar::DenseAttentionArgs& args() const { return a_; }
  const Guarded<float>& q() const { return q_; }
  const Guarded<float>& k() const { return k_; }
  const Guarded<float>& v() const { return v_; }
  const Guarded<float>& mask() const { return mask_; }
  const Guarded<uint8_t>& seen() const { return seen_; }
  const Guarded<int32_t>& lengths() const { return lengths_; }

 private:
  static Guarded<float> fill(int64_t n, uint32_t seed) {
    const auto values = random_values(static_cast<size_t>(n), Values::kNormal, seed);
    Guarded<float> g(values.size());
    std::copy(values.begin(), values.end(), g.begin());
    return g;
  }
  // Queries of all heads side by side where heads lie last, else row after row: as `out` of S rows.
  std::vector<float> run(oar::DenseAttentionArgs a, Isa isa, oar::ThreadPool* pool) const {
    Guarded<float> out(static_cast<size_t>(a.B * a.H * a.S * a.DV));
    std::fill(out.begin(), out.end(), 12345.f);
    a.out = out.data();
    a.out_steps = {a.H * a.S * a.DV, a.S * a.DV, a.DV};
    const Kernel& k = *oar::KernelRegistry::cpu().find({KernelFamily::kDenseAttention}, isa);
    KernelPlan plan;
    k.plan(&a, pool ? pool->workers() : 1, &plan);
    if (pool) {
      pool->reserve_scratch(plan.worker_scratch);
      pool->run(k, &a, plan, nullptr);
    } else {
      Guarded<float> own(plan.worker_scratch / 4 + 16);
      std::fill(own.begin(), own.end(), NAN);
      const auto end = reinterpret_cast<uintptr_t>(own.data() + own.size()) - plan.worker_scratch;
      auto* const scratch = reinterpret_cast<void*>(end / 64 * 64);
      for (int64_t i = plan.chunks[0]; i-- > 0;) k.run(&a, 0, i, i + 1, {scratch, nullptr});
    }
    return {out.begin(), out.end()};
  }

  const DenseCase c_;
  oar::DenseAttentionArgs a_;
  Guarded<float> q_, k_, v_, mask_;
  Guarded<uint8_t> seen_;
  Guarded<int32_t> lengths_;
};

inline std::vector<DenseCase> dense_cases() {
  std::vector<DenseCase> all;
  const Mask masks[] = {Mask::kNone, Mask::kAdd, Mask::kBool, Mask::kKeys, Mask::kOne, Mask::kBlind};
  const int64_t sizes[][2] = {{1, 1}, {1, 300}, {3, 64}, {17, 17}, {130, 33}, {257, 200}, {2, 7}};
  uint32_t n = 0;
  for (const Mask mask : masks) {
    for (const auto& [S, L] : sizes) {
      DenseCase c;
      ++n;
      c.mask = mask, c.S = S, c.L = L;
      c.B = 1 + n % 2, c.K = 1 + n % 3, c.H = c.K * (n % 4 == 0 ? 4 : 1 + n % 2);
      c.D = std::array<int64_t, 5>{1, 7, 16, 33, 64}[n % 5], c.DV = n % 3 == 0 ? 20 : c.D;
      c.heads_last = n % 2 == 0, c.causal = n % 3 == 1;
      if (n % 4 == 1) c.left = 5;
      if (n % 7 == 2) c.right = 3;
      if (n % 5 == 3) c.softcap = 1.5f;
      c.offset = n % 3 == 1 && L > S ? L - S : 0;
      if (n % 4 == 3) {
        c.last = n % 8 == 3;
        for (int64_t b = 0; b < c.B; ++b)
          c.lengths.push_back(static_cast<int32_t>(b == 0 ? (L + 1) / 2 : L + 9));
      }
      c.nan = mask == Mask::kBlind && n % 2 == 0;
      all.push_back(c);
    }
  }
  return all;
}

}  // namespace oar_test
