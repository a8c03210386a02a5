// Recurrent layers: every level against the double reference, operands ending at guard pages; values must not
// depend on how many entries go together.
#include "kernels/recurrent.h"

#include <cmath>

#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Problem {
  RecurrentArgs a;
  Guarded<float> gates, r, r_bias, h0, c0, h, c, y;
  std::vector<int64_t> lengths;

  Problem(RecurrentCell cell, int64_t T, int64_t B, int64_t D, int64_t H)
      : gates(size(T * B * D * recurrent_gates(cell) * H)),
        r(size(D * H * recurrent_gates(cell) * H)),
        r_bias(size(D * H)),
        h0(size(D * B * H)),
        c0(size(D * B * H)),
        h(h0.size()),
        c(h0.size()),
        y(size(T * B * D * H)) {
    const int64_t row = D * recurrent_gates(cell) * H;
    fill(gates, 1.5f, 1), fill(r, 1.f / std::sqrt(static_cast<float>(H)), 2), fill(r_bias, 0.5f, 3);
    fill(h0, 0.5f, 4), fill(c0, 0.5f, 5);
    a.cell = cell;
    a.T = T, a.B = B, a.D = D, a.H = H;
    a.gates = gates.data(), a.gates_t = B * row, a.gates_b = row;
    a.r = r.data();
    a.h0 = h0.data(), a.c0 = c0.data(), a.h = h.data(), a.c = c.data();
    a.state_d = B * H, a.state_b = H;
    a.y = y.data(), a.y_t = D * B * H, a.y_d = B * H, a.y_b = H;
  }
  void run(Isa isa, ThreadPool* pool) {
    std::fill(y.begin(), y.end(), NAN);
    std::fill(h.begin(), h.end(), NAN);
    std::fill(c.begin(), c.end(), NAN);
    const Kernel& k = *KernelRegistry::cpu().find({KernelFamily::kRecurrent, Format::f32()}, isa);
    REQUIRE(k.isa == isa);
    KernelPlan plan;
    k.plan(&a, pool ? pool->workers() : 1, &plan);
    if (pool) {
      pool->reserve_scratch(plan.worker_scratch);
      return pool->run(k, &a, plan, nullptr);
    }
    std::vector<float> own(plan.worker_scratch / 4 + 32, NAN);
    auto* scratch = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(own.data()) + 63) / 64 * 64);
    for (int64_t i = plan.chunks[0]; i-- > 0;) k.run(&a, 0, i, i + 1, {scratch, nullptr});
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  static void fill(Guarded<float>& to, float scale, uint64_t seed) {
    const std::vector<float> v = random_values(to.size(), Values::kNormal, seed);
    for (size_t i = 0; i < v.size(); ++i) to[i] = scale * v[i];
  }
};

std::vector<float> all_of(const Problem& p) {
  std::vector<float> v(p.y.begin(), p.y.end());
  v.insert(v.end(), p.h.begin(), p.h.end());
  if (p.a.c) v.insert(v.end(), p.c.begin(), p.c.end());
  return v;
}

// States stay below 1 (an LSTM's cell grows by at most 1 a step), weights here keep differences from growing,
// and each step adds some roundings of sums of H terms and of the activations' few ulp.
void require_near(const std::vector<float>& got, const std::vector<float>& exact, int64_t T, int64_t H) {
  const double eps = 6e-8, step = eps * (16 + std::sqrt(static_cast<double>(H)));
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("at " << i << ": " << got[i] << " for " << exact[i]);
    REQUIRE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(exact[i])) <=
            step * std::min(static_cast<double>(T), 8.0) * (1 + std::fabs(static_cast<double>(exact[i]))));
  }
}

constexpr RecurrentCell kCells[] = {RecurrentCell::kRnn, RecurrentCell::kGru, RecurrentCell::kLstm};

std::vector<Isa> recurrent_levels() {
  std::vector<Isa> out;
  for (const Kernel* k : KernelRegistry::cpu().all())
    if (k->family == KernelFamily::kRecurrent && k->isa != Isa::kReference && k->isa <= best_isa())
      out.push_back(k->isa);
  return out;
}

}  // namespace

TEST_CASE("recurrent: every cell, width and number of entries equals the reference") {
  ThreadPool pool({.threads = 3});
  REQUIRE(!recurrent_levels().empty());
  for (const RecurrentCell cell : kCells) {
    for (const int64_t H : {1, 3, 8, 16, 17, 48, 50, 100}) {
      for (const int64_t B : {1, 2, 3, 5, 9}) {
        for (const bool reset : {false, true}) {
          if (reset && cell != RecurrentCell::kGru) continue;
          Problem p(cell, 7, B, 1 + H % 2, H);
          p.a.linear_before_reset = reset;
          if (reset && B != 2) p.a.r_bias = p.r_bias.data();
          p.run(Isa::kReference, nullptr);
          const std::vector<float> exact = all_of(p);
          for (const Isa isa : recurrent_levels()) {
            INFO(isa_name(isa) << " gates " << recurrent_gates(cell) << " H " << H << " B " << B);
            p.run(isa, &pool);
            require_near(all_of(p), exact, p.a.T, H);
          }
        }
      }
    }
  }
}

TEST_CASE("recurrent: lengths, direction, missing states and strides") {
  for (const RecurrentCell cell : kCells) {
    Problem p(cell, 6, 9, 1, 20);
    p.a.reverse = true;
    p.lengths = {6, 6, 3, 3, 3, 0, 6, 1, 1};
    p.a.lengths = p.lengths.data(), p.a.wide_lengths = true;
    p.a.h0 = p.a.c0 = nullptr;
    // Entries first instead of steps.
    p.a.gates_b = 6 * p.a.gates_b, p.a.gates_t = recurrent_gates(cell) * 20;
    p.a.y_b = 6 * 20, p.a.y_t = 20;
    p.run(Isa::kReference, nullptr);
    const std::vector<float> exact = all_of(p);
    for (int64_t t = 0; t < 6; ++t)  // nothing is written behind an entry's last step
      CHECK((p.y[static_cast<size_t>((2 * 6 + t) * 20)] != 0) == (t < 3));
    for (const Isa isa : recurrent_levels()) {
      INFO(isa_name(isa));
      p.run(isa, nullptr);
      require_near(all_of(p), exact, 6, 20);
    }
  }
}

TEST_CASE("recurrent: an entry's bits are those it has alone") {
  for (const RecurrentCell cell : kCells) {
    const int64_t B = 11, H = 37, T = 5, G = recurrent_gates(cell);
    Problem p(cell, T, B, 2, H);
    for (const Isa isa : recurrent_levels()) {
      p.run(isa, nullptr);
      const std::vector<float> together(p.y.begin(), p.y.end());
      Problem one(cell, T, 1, 2, H);
      std::copy(p.r.begin(), p.r.end(), one.r.begin());
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t t = 0; t < T; ++t)
          std::copy_n(p.gates.data() + (t * B + b) * 2 * G * H, 2 * G * H, one.gates.data() + t * 2 * G * H);
        for (int64_t d = 0; d < 2; ++d) {
          std::copy_n(p.h0.data() + (d * B + b) * H, H, one.h0.data() + d * H);
          std::copy_n(p.c0.data() + (d * B + b) * H, H, one.c0.data() + d * H);
        }
        one.run(isa, nullptr);
        for (int64_t t = 0; t < T; ++t)
          for (int64_t d = 0; d < 2; ++d)
            for (int64_t k = 0; k < H; ++k)
              REQUIRE(one.y[static_cast<size_t>((t * 2 + d) * H + k)] ==
                      together[static_cast<size_t>(((t * 2 + d) * B + b) * H + k)]);
      }
    }
  }
}
