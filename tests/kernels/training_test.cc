// What training adds to the kernels (kernels/softmax_grad.h, kernels/optimizer.h): every level against the
// reference in double, between guard pages, whatever the chunks and threads.
#include <cmath>

#include "kernels/optimizer.h"
#include "kernels/softmax_grad.h"
#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

const Kernel& at_level(KernelFamily family, Isa isa) {
  const Kernel* k = KernelRegistry::cpu().find({family, Format::f32()}, isa);
  REQUIRE(k != nullptr);
  return *k;
}

template <class T>
Guarded<T> guarded_copy(const std::vector<T>& v) {
  Guarded<T> g(v.size());
  std::copy(v.begin(), v.end(), g.begin());
  return g;
}

template <class Args>
void run_at(KernelFamily family, Isa isa, const Args& args, ThreadPool* pool) {
  if (pool != nullptr) run_on_pool(*pool, at_level(family, isa), &args);
  else run_in_steps(at_level(family, isa), &args, 1, true);
}

// |a - b| <= bound, and NaN where and only where the other has one.
void check_near(std::span<const float> a, std::span<const float> b, double bound) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  bool same_nans = true;
  for (size_t i = 0; i < a.size(); ++i) {
    same_nans = same_nans && std::isnan(a[i]) == std::isnan(b[i]);
    if (!std::isnan(a[i]))
      worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  CHECK(same_nans);
  CHECK(worst <= bound);
}

struct Masked {
  int64_t heads, rows, n;
  std::vector<int32_t> first, last;
};
Masked causal(int64_t heads, int64_t rows, int64_t n) {
  Masked m{heads, rows, n, {}, {}};
  for (int64_t r = 0; r < rows; ++r) {
    m.last.push_back(static_cast<int32_t>(std::min(n, n - rows + r + 1 > 0 ? n - rows + r + 1 : 1)));
    m.first.push_back(std::max(0, m.last.back() - 40));  // a window of 40
  }
  return m;
}

}  // namespace

TEST_CASE("softmax over what rows see, and its way back: every level is close to the reference") {
  ThreadPool pool({.threads = 3});
  for (const Masked& m : {causal(1, 1, 1), causal(3, 17, 17), causal(2, 5, 300), causal(1, 64, 64)}) {
    for (const float softcap : {0.f, 5.f}) {
      const auto count = static_cast<size_t>(m.heads * m.rows * m.n);
      auto raw = random_values(count, Values::kNormal, 3);
      if (m.heads > 1) raw[static_cast<size_t>(m.first[0])] = NAN;  // the first row sees it
      const auto upstream = random_values(count, Values::kNormal, 4);
      const auto softmax = [&](Isa isa, ThreadPool* on) {
        Guarded<float> x = guarded_copy(raw);
        SeenSoftmaxArgs a;
        a.x = x.data(), a.rows = m.heads * m.rows, a.n = m.n, a.period = m.rows;
        a.first = m.first.data(), a.last = m.last.data(), a.scale = 0.7f, a.softcap = softcap;
        run_at(KernelFamily::kSeenSoftmax, isa, a, on);
        return std::vector<float>(x.begin(), x.end());
      };
      const std::vector<float> p = softmax(Isa::kReference, nullptr);
      const auto back = [&](Isa isa, ThreadPool* on) {
        Guarded<float> g = guarded_copy(upstream);
        const Guarded<float> x = guarded_copy(raw), weights = guarded_copy(p);
        SoftmaxGradArgs a;
        a.p = weights.data(), a.g = g.data(), a.x = x.data();
        a.rows = m.heads * m.rows, a.n = m.n, a.period = m.rows;
        a.first = m.first.data(), a.last = m.last.data(), a.scale = 0.7f, a.softcap = softcap;
        run_at(KernelFamily::kSoftmaxGrad, isa, a, on);
        return std::vector<float>(g.begin(), g.end());
      };
      const std::vector<float> d = back(Isa::kReference, nullptr);
      for (Isa isa : levels()) {
        INFO(isa_name(isa) << " " << m.heads << " x " << m.rows << " x " << m.n << " cap " << softcap);
        check_near(softmax(isa, nullptr), p, 4e-6);
        check_near(back(isa, nullptr), d, 4e-6);
        const auto alone = softmax(isa, nullptr), together = softmax(isa, &pool);
        CHECK(std::memcmp(alone.data(), together.data(), count * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("cross entropy of rows: losses, hits and gradients are the reference's") {
  ThreadPool pool({.threads = 3});
  for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {2, 1024}, {5, 5003}}) {
    for (const float softcap : {0.f, 8.f}) {
      auto logits = random_values(static_cast<size_t>(rows * n), Values::kNormal, 7);
      std::vector<int32_t> target;
      for (int64_t r = 0; r < rows; ++r) target.push_back(static_cast<int32_t>((r * 977 + n / 2) % n));
      logits[static_cast<size_t>(target[0])] = 9;                      // found
      if (rows > 2) logits[static_cast<size_t>(2 * n + n - 1)] = NAN;  // in the last of its row
      const auto run = [&](Isa isa, ThreadPool* on, std::vector<double>& loss, std::vector<int32_t>& hit) {
        Guarded<float> z = guarded_copy(logits);
        loss.assign(static_cast<size_t>(rows), 0), hit.assign(static_cast<size_t>(rows), -1);
        CrossEntropyArgs a;
        a.z = z.data(), a.rows = rows, a.n = n, a.target = target.data();
        a.loss = loss.data(), a.hit = hit.data(), a.factor = 0.3f, a.scale = 1.5f, a.softcap = softcap;
        run_at(KernelFamily::kCrossEntropy, isa, a, on);
        return std::vector<float>(z.begin(), z.end());
      };
      std::vector<double> loss, own_loss;
      std::vector<int32_t> hit, own_hit;
      const auto exact = run(Isa::kReference, nullptr, loss, hit);
      CHECK(hit[0] == 1);
      for (Isa isa : levels()) {
        INFO(isa_name(isa) << " " << rows << " x " << n << " cap " << softcap);
        check_near(run(isa, nullptr, own_loss, own_hit), exact, 2e-6);
        CHECK(own_hit == hit);
        for (size_t r = 0; r < loss.size(); ++r) {
          CHECK(std::isnan(own_loss[r]) == std::isnan(loss[r]));
          if (!std::isnan(loss[r])) CHECK(std::abs(own_loss[r] - loss[r]) <= 4e-6);
        }
        const std::vector<double> alone = own_loss;
        const auto one = run(isa, nullptr, own_loss, own_hit), many = run(isa, &pool, own_loss, own_hit);
        CHECK(std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0);
        CHECK(std::memcmp(alone.data(), own_loss.data(), alone.size() * sizeof(double)) == 0);
      }
    }
  }
}

TEST_CASE("optimizer steps and sums of squares are the reference's") {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{2500}}) {
    const auto p = random_values(n, Values::kNormal, 1), m = random_values(n, Values::kNormal, 2),
               g = random_values(n, Values::kNormal, 3);
    auto v = random_values(n, Values::kNormal, 4);
    for (float& x : v) x *= x;
    const auto step = [&](Isa isa, bool clear) {
      std::vector<Guarded<float>> t;
      for (const std::vector<float>& list : {p, m, v, g}) t.push_back(guarded_copy(list));
      AdamwArgs a;
      a.p = t[0].data(), a.m = t[1].data(), a.v = t[2].data(), a.g = t[3].data();
      a.n = static_cast<int64_t>(n), a.clip = 0.5f, a.beta1 = 0.9f, a.beta2 = 0.99f;
      a.rest1 = 0.1f, a.rest2 = 0.01f, a.keep = 0.999f, a.step = 1e-2f, a.root = 3, a.epsilon = 1e-8f;
      a.clear = clear;
      run_at(KernelFamily::kAdamw, isa, a, nullptr);
      std::vector<float> out;
      for (auto& list : t) out.insert(out.end(), list.begin(), list.end());
      return out;
    };
    const auto squares = [&](Isa isa) {
      const Guarded<float> x = guarded_copy(g);
      double sum = -1;
      SquaresArgs a;
      a.x = x.data(), a.n = static_cast<int64_t>(n), a.sum = &sum;
      run_at(KernelFamily::kSquares, isa, a, nullptr);
      return sum;
    };
    const auto exact = step(Isa::kReference, true);
    const double sum = squares(Isa::kReference);
    for (Isa isa : levels()) {
      INFO(isa_name(isa) << " " << n);
      const auto cleared = step(isa, true), kept = step(isa, false);
      check_near(cleared, exact, 2e-6);
      CHECK(std::equal(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(n), cleared.begin()));
      CHECK(std::equal(g.begin(), g.end(), kept.end() - static_cast<std::ptrdiff_t>(n)));
      CHECK(std::abs(squares(isa) - sum) <= 1e-14 * sum);
    }
  }
}

TEST_CASE("moments of parameters without gradients come to zero and are never subnormal") {
  const std::vector<float> first = {1e-36f, -1e-36f, 1e-20f, 1.f, 3e-38f, 0.f, 1e-37f, -5e-38f, 1e-30f};
  for (Isa isa : levels()) {
    INFO(isa_name(isa));
    auto p = guarded_copy(first), m = guarded_copy(first), v = guarded_copy(first), g = guarded_copy(first);
    for (float& x : v) x = std::fabs(x);
    AdamwArgs a;
    a.p = p.data(), a.m = m.data(), a.v = v.data(), a.g = g.data();
    a.n = static_cast<int64_t>(first.size()), a.beta1 = 0.5f, a.beta2 = 0.9f;
    a.rest1 = 0.5f, a.rest2 = 0.1f, a.step = 1e-2f;
    for (int step = 0; step < 300; ++step) {
      for (size_t i = 0; i < first.size(); ++i) g[i] = step == 0 ? first[i] : 0.f;
      a.epsilon = step % 2 == 0 ? 1e-8f : 1e-30f;
      run_at(KernelFamily::kAdamw, isa, a, nullptr);
      for (const auto* moments : {&m, &v}) {
        for (float x : *moments) REQUIRE((x == 0 || std::isnormal(x)));
      }
      for (float x : p) REQUIRE(std::isfinite(x));
    }
    for (float x : m) CHECK(x == 0);
  }
}
