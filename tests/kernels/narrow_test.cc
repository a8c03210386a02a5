// Rounding of f32 rows to bf16 and 8-bit integers: every level equals the reference to the bit, and rounding
// stays within the bounds that kernels/narrow.h gives.
#include "kernels/narrow.h"

#include <cmath>
#include <limits>

#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Narrowed {
  std::vector<uint8_t> bytes;
  std::vector<float> scale;
  std::vector<int32_t> zero;
  bool operator==(const Narrowed& o) const {
    return bytes == o.bytes && zero == o.zero && scale.size() == o.scale.size() &&
           std::memcmp(scale.data(), o.scale.data(), scale.size() * sizeof(float)) == 0;
  }
};

Narrowed narrowed(Isa isa, const Guarded<float>& x, int64_t rows, int64_t n, bool to_bf16, float low = 1,
                  float high = 0, ThreadPool* pool = nullptr) {
  const Kernel* k = KernelRegistry::cpu().find({KernelFamily::kNarrow, Format::f32()}, isa);
  REQUIRE(k != nullptr);
  Guarded<uint8_t> out(static_cast<size_t>(rows * n * (to_bf16 ? 2 : 1)), 2);
  Guarded<float> scale(static_cast<size_t>(rows));
  Guarded<int32_t> zero(static_cast<size_t>(rows));
  NarrowArgs a;
  a.out = out.data(), a.x = x.data(), a.rows = rows, a.n = n, a.bf16 = to_bf16;
  a.scale = scale.data(), a.zero = zero.data(), a.low = low, a.high = high;
  if (pool) run_on_pool(*pool, *k, &a);
  else run_in_steps(*k, &a, 1, true);
  return {{out.begin(), out.end()}, {scale.begin(), scale.end()}, {zero.begin(), zero.end()}};
}

Guarded<float> guarded(const std::vector<float>& v) {
  Guarded<float> g(v.size());
  std::copy(v.begin(), v.end(), g.begin());
  return g;
}

}  // namespace

TEST_CASE("narrow: every level gives the reference's bits, whatever the chunks") {
  ThreadPool pool({.threads = 3});
  for (const auto& [rows, n] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {128, 40}, {1, 8192}, {2, 8193}, {1, 70001}}) {
    auto v = random_values(static_cast<size_t>(rows * n), Values::kNormal, 5);
    for (int64_t k = 0; k < n; ++k)
      v[static_cast<size_t>(k)] = std::abs(v[static_cast<size_t>(k)]);  // zero = 0
    const Guarded<float> x = guarded(v);
    for (const bool to_bf16 : {false, true}) {
      const Narrowed exact = narrowed(Isa::kReference, x, rows, n, to_bf16);
      const Narrowed held = narrowed(Isa::kReference, x, rows, n, to_bf16, -0.5f, 0.75f);
      for (Isa isa : levels()) {
        INFO(isa_name(isa) << " " << rows << " x " << n << (to_bf16 ? " bf16" : " u8"));
        CHECK(narrowed(isa, x, rows, n, to_bf16) == exact);
        CHECK(narrowed(isa, x, rows, n, to_bf16, 1, 0, &pool) == exact);
        CHECK(narrowed(isa, x, rows, n, to_bf16, -0.5f, 0.75f) == held);
      }
    }
  }
}

TEST_CASE("narrow: f16 at every level has the reference's bits") {
  ThreadPool pool({.threads = 3});
  const float inf = std::numeric_limits<float>::infinity();
  auto v = random_values(20013, Values::kNormal, 9);
  for (size_t k = 0; k < 4000; ++k)
    v[k] *= std::ldexp(1.f, static_cast<int>(k % 50) - 32);  // subnormal to infinite
  v[5] = inf, v[6] = -inf, v[7] = std::numeric_limits<float>::quiet_NaN(), v[8] = 65520.f, v[9] = -0.f,
  v[10] = 65519.f;
  const Guarded<float> x = guarded(v);
  const auto run = [&](Isa isa, ThreadPool* on) {
    const Kernel* k = KernelRegistry::cpu().find({KernelFamily::kNarrow, Format::f32()}, isa);
    REQUIRE(k != nullptr);
    Guarded<uint16_t> out(v.size());
    NarrowArgs a;
    a.out = out.data(), a.x = x.data(), a.rows = 1, a.n = static_cast<int64_t>(v.size()), a.f16 = true;
    if (on) run_on_pool(*on, *k, &a);
    else run_in_steps(*k, &a, 1, true);
    return std::vector<uint16_t>(out.begin(), out.end());
  };
  const auto exact = run(Isa::kReference, nullptr);
  CHECK(exact[8] == 0x7c00);
  CHECK(exact[10] == 0x7bff);
  for (Isa isa : levels()) {
    INFO(isa_name(isa));
    CHECK(run(isa, &pool) == exact);
    CHECK(run(isa, nullptr) == exact);
  }
}

TEST_CASE("narrow: an own range of all values, which a run looks for") {
  ThreadPool pool({.threads = 3});
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  struct Coded {
    std::vector<uint8_t> bytes;
    float scale = 0;
    uint8_t zero = 0;
    bool operator==(const Coded&) const = default;
  };
  const auto coded = [](Isa isa, const std::vector<float>& v, ThreadPool* on) {
    const Kernel* k = KernelRegistry::cpu().find({KernelFamily::kNarrow, Format::f32()}, isa);
    REQUIRE(k != nullptr);
    const Guarded<float> x = guarded(v);
    Guarded<uint8_t> out(v.size());
    Coded c;
    NarrowArgs a;
    a.out = out.data(), a.x = x.data(), a.rows = 1, a.n = static_cast<int64_t>(v.size());
    a.own_scale = &c.scale, a.own_zero = &c.zero;
    if (on) run_on_pool(*on, *k, &a);
    else run_in_steps(*k, &a, 1, true);
    c.bytes.assign(out.begin(), out.end());
    return c;
  };
  // By hand: 510 of 255 steps, and a zero point of 127.5, which rounds to the even 128.
  CHECK(coded(Isa::kReference, {-255, 255, 1, 3, nan}, nullptr) == Coded{{0, 255, 128, 130, 0}, 2, 128});
  std::vector<std::vector<float>> all = {
      {3}, {-2}, {0, 0}, {nan}, {5, inf}, {-inf, 1, -1}, {3e38f, -3e38f, 1}, {1e-44f, -1e-45f}};
  for (const size_t n : {17, 8192, 8193, 70001}) {
    all.push_back(random_values(n, Values::kNormal, 5));
    all.push_back(all.back());
    for (float& x : all.back()) x = std::max(x, 0.f);  // as behind a ReLU
    all.push_back(all.back());
    for (size_t k = 0; k < n; k += 5) all.back()[k] = k % 2 == 0 ? nan : -1.f;
  }
  for (const std::vector<float>& v : all) {
    const Coded exact = coded(Isa::kReference, v, nullptr);
    for (const Isa isa : levels()) {
      INFO(isa_name(isa) << " " << v.size() << " from " << v[0]);
      CHECK(coded(isa, v, nullptr) == exact);
      CHECK(coded(isa, v, &pool) == exact);
    }
  }
}

TEST_CASE("narrow: quotients by a given scale round as divisions do") {
  ThreadPool pool({.threads = 3});
  // Halves of steps and their neighbours among other values; what is far out, infinite and no number.
  const float inf = std::numeric_limits<float>::infinity();
  for (const float scale : {0.125f, 0.0123f, 3.7f, 1e-39f, 2e-37f}) {
    struct Place {
      int32_t offset, least;
    };
    for (const Place p : {Place{0, 0}, {131, 0}, {255, 0}, {-7, -128}, {127, -128}}) {
      auto v = random_values(20011, Values::kNormal, 8);
      for (float& x : v) x *= 60 * scale;
      for (int k = 0; k < 600; ++k) {
        const float half = (static_cast<float>(k - 300) + 0.5f) * scale;
        v[static_cast<size_t>(20 * k)] = half;
        v[static_cast<size_t>(20 * k + 1)] = std::nextafter(half, inf);
        v[static_cast<size_t>(20 * k + 2)] = std::nextafter(half, -inf);
      }
      v[5] = inf, v[6] = -inf, v[7] = std::numeric_limits<float>::quiet_NaN(), v[8] = 3e38f, v[9] = -0.f;
      const Guarded<float> x = guarded(v);
      const auto run = [&](Isa isa, ThreadPool* on) {
        const Kernel* k = KernelRegistry::cpu().find({KernelFamily::kNarrow, Format::f32()}, isa);
        REQUIRE(k != nullptr);
        Guarded<uint8_t> out(v.size(), 1);
        NarrowArgs a;
        a.out = out.data(), a.x = x.data(), a.rows = 1, a.n = static_cast<int64_t>(v.size());
        a.divisor = scale, a.offset = p.offset, a.least = p.least;
        if (on) run_on_pool(*on, *k, &a);
        else run_in_steps(*k, &a, 1, true);
        return std::vector<uint8_t>(out.begin(), out.end());
      };
      const auto exact = run(Isa::kReference, nullptr);
      CHECK(exact[7] == 0);
      CHECK(exact[5] == static_cast<uint8_t>(p.least + 255));
      CHECK(exact[6] == static_cast<uint8_t>(p.least));
      for (Isa isa : levels()) {
        INFO(isa_name(isa) << " scale " << scale << " offset " << p.offset);
        CHECK(run(isa, &pool) == exact);
        CHECK(run(isa, nullptr) == exact);
      }
    }
  }
}

TEST_CASE("narrow: errors stay within one step, zero is exact") {
  const auto v = random_values(5000, Values::kNormal, 6);
  auto with_zero = v;
  with_zero[77] = 0;
  const Guarded<float> x = guarded(with_zero);
  for (Isa isa : levels()) {
    const Narrowed q = narrowed(isa, x, 1, 5000, false);
    double worst = 0;
    for (size_t k = 0; k < 5000; ++k) {
      const double back = (q.bytes[k] - q.zero[0]) * static_cast<double>(q.scale[0]);
      worst = std::max(worst, std::abs(back - static_cast<double>(x[k])));
    }
    // One step, and the roundings of scale and quotient.
    CHECK(worst <= static_cast<double>(q.scale[0]) * (1 + 1e-4));
    CHECK(worst >= static_cast<double>(q.scale[0]) * 0.4);
    CHECK(q.bytes[77] == q.zero[0]);
  }
}

TEST_CASE("narrow: what has no range") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Guarded<float> x = guarded({0, 0, 0, 1, nan, 2, -inf, 1, 3, 3e38f, -3e38f, 0, 1e-44f, 0, 0});
  std::vector<Isa> all = levels();
  all.push_back(Isa::kReference);
  for (Isa isa : all) {
    INFO(isa_name(isa));
    const Narrowed q = narrowed(isa, x, 5, 3, false);
    CHECK(q.scale[0] == 1);  // nothing but zeros
    CHECK(std::isnan(q.scale[1]));
    CHECK(std::isnan(q.scale[2]));
    CHECK(std::isnan(q.scale[3]));  // a range beyond f32
    CHECK(q.scale[4] == 1);         // too small to divide by: counts as 0
    CHECK(q.bytes[12] == 0);
    const Narrowed b = narrowed(isa, x, 5, 3, true);
    bf16 v[15];
    std::memcpy(v, b.bytes.data(), sizeof v);
    CHECK(std::isnan(to_f32(v[4])));
    CHECK(to_f32(v[6]) == -inf);
    CHECK(to_f32(v[3]) == 1);
  }
}
