// The row-wise kernels of every level against the double-precision reference, operands ending at a guard
// page, for sizes around the vector lengths; values must not depend on the batch, the chunks or the workers.
#include <cmath>

#include "kernels/activation.h"
#include "kernels/conv.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

const double kU = std::ldexp(1.0, -24);  // half an ulp of 1: the relative error of one rounding

const int64_t kSizes[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 80, 255, 1000, 2048};

const Kernel& kernel_of(KernelFamily family, Isa isa) {
  const Kernel* k = KernelRegistry::cpu().find({family, Format::f32()}, isa);
  REQUIRE(k != nullptr);
  return *k;
}

Guarded<float> guarded(const std::vector<float>& x) {
  Guarded<float> out(x.size());
  std::copy(x.begin(), x.end(), out.begin());
  return out;
}
Guarded<float> normal(int64_t n, uint32_t seed) {
  return guarded(random_values(static_cast<size_t>(n), Values::kNormal, seed));
}

std::vector<float> copy(const Guarded<float>& x) { return {x.begin(), x.end()}; }

bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// Distance in units of the last place of `want`; 0 when both are NaN or the same infinity.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : INFINITY;
  const auto rounded = static_cast<float>(want);
  if (got == rounded) return 0;
  if (!std::isfinite(got) || !std::isfinite(rounded)) return INFINITY;
  int exponent;
  std::frexp(want, &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

template <class Args>
void norm_args(Args& a, const Guarded<float>& x, const Guarded<float>& w, int64_t rows, int64_t cols,
               int64_t ldx) {
  a.x = x.data();
  a.w = w.data();
  a.rows = rows;
  a.cols = cols;
  a.ldx = ldx;
  a.ldo = cols;
}

}  // namespace

TEST_CASE("rms_norm: every level against the reference, with and without residual, in place") {
  for (int64_t cols : kSizes) {
    const int64_t rows = 3, ldx = cols + 3;
    const Guarded<float> x = normal((rows - 1) * ldx + cols, 1), w = normal(cols, 2),
                         residual = normal(rows * cols, 3);
    // The sum of cols squares, its root, and a handful of roundings of the result.
    const double bound = (static_cast<double>(cols) / 2 + 12) * kU;
    for (bool add : {false, true}) {
      Guarded<float> want(static_cast<size_t>(rows * cols)), want_sum(want.size());
      RmsNormArgs a;
      norm_args(a, x, w, rows, cols, ldx);
      a.w_offset = 1.f;
      a.residual = add ? residual.data() : nullptr;
      a.out = want.data();
      a.sum_out = add ? want_sum.data() : nullptr;
      run_in_steps(kernel_of(KernelFamily::kRmsNorm, Isa::kReference), &a, 1, false);
      for (Isa isa : levels()) {
        const Kernel& k = kernel_of(KernelFamily::kRmsNorm, isa);
        INFO(k.name << " cols=" << cols << " residual=" << add);
        Guarded<float> got(want.size()), sum(want.size());
        a.out = got.data();
        a.sum_out = add ? sum.data() : nullptr;
        run_in_steps(k, &a, 1, true);
        for (size_t i = 0; i < got.size(); ++i)
          REQUIRE(std::fabs(got[i] - want[i]) <= bound * std::fabs(want[i]));
        if (!add) continue;
        REQUIRE(same_bits(sum.data(), want_sum.data(), rows * cols));
        // The sum replaces the residual; without sum_out the result is the same.
        Guarded<float> stream = guarded(copy(residual)), again(want.size());
        a.out = again.data();
        a.residual = a.sum_out = stream.data();
        run_in_steps(k, &a, 1, true);
        CHECK(same_bits(again.data(), got.data(), rows * cols));
        CHECK(same_bits(stream.data(), want_sum.data(), rows * cols));
        a.residual = residual.data();
        a.sum_out = nullptr;
        run_in_steps(k, &a, 1, true);
        CHECK(same_bits(again.data(), got.data(), rows * cols));
      }
    }
  }
}

TEST_CASE("layer_norm: every level against the reference") {
  for (int64_t cols : kSizes) {
    const int64_t rows = 3;
    Guarded<float> x = normal(rows * cols, 1);
    const Guarded<float> w = normal(cols, 2), b = normal(cols, 3), residual = normal(rows * cols, 4);
    for (float& v : x) v += 5.f;  // a mean well off zero
    for (bool affine : {false, true}) {
      Guarded<float> want(x.size());
      LayerNormArgs a;
      norm_args(a, x, w, rows, cols, cols);
      a.b = b.data();
      if (!affine) a.w = a.b = nullptr;
      a.residual = affine ? residual.data() : nullptr;
      a.out = want.data();
      run_in_steps(kernel_of(KernelFamily::kLayerNorm, Isa::kReference), &a, 1, false);
      for (Isa isa : levels()) {
        const Kernel& k = kernel_of(KernelFamily::kLayerNorm, isa);
        INFO(k.name << " cols=" << cols << " affine=" << affine);
        Guarded<float> got(want.size());
        a.out = got.data();
        run_in_steps(k, &a, 1, true);
        for (int64_t r = 0; r < rows; ++r) {
          double mean = 0, magnitude = 0, variance = 0;
          auto h = [&](int64_t c) {
            return x[static_cast<size_t>(r * cols + c)] +
                   (affine ? residual[static_cast<size_t>(r * cols + c)] : 0.f);
          };
          for (int64_t c = 0; c < cols; ++c) mean += h(c), magnitude += std::fabs(h(c));
          mean /= static_cast<double>(cols);
          magnitude /= static_cast<double>(cols);
          for (int64_t c = 0; c < cols; ++c) variance += (h(c) - mean) * (h(c) - mean);
          const double sigma = std::sqrt(variance / static_cast<double>(cols) + a.eps),
                       n = static_cast<double>(cols);
          for (int64_t c = 0; c < cols; ++c) {
            const auto i = static_cast<size_t>(r * cols + c);
            const double scale = affine ? std::fabs(w[static_cast<size_t>(c)]) : 1.0;
            const double offset = affine ? std::fabs(b[static_cast<size_t>(c)]) : 0.0;
            // The mean's error shifts every element, and the variance by its square; then the roundings of
            // the variance's sum and of the result.
            const double shift = (n + 4) * kU * magnitude + 2 * kU * std::fabs(h(c));
            const double z = std::fabs(h(c) - mean) / sigma;
            const double bound =
                scale * (shift / sigma + z * ((n / 2 + 12) * kU + shift * shift / (sigma * sigma))) +
                4 * kU * (scale * z + offset);
            REQUIRE(std::fabs(got[i] - want[i]) <= bound);
          }
        }
      }
    }
  }
}

TEST_CASE("norms: NaN and infinity stay in their row") {
  for (Isa isa : levels()) {
    Guarded<float> x = normal(3 * 40, 1), w = normal(40, 2), out(120);
    x[45] = NAN;
    x[90] = INFINITY;
    RmsNormArgs a;
    norm_args(a, x, w, 3, 40, 40);
    a.out = out.data();
    run_in_steps(kernel_of(KernelFamily::kRmsNorm, isa), &a, 1, false);
    for (size_t i = 0; i < 40; ++i) {
      REQUIRE(std::isfinite(out[i]));
      REQUIRE(std::isnan(out[40 + i]));
    }
    CHECK(std::isnan(out[90]));
  }
}

TEST_CASE("rope: both layouts, partial rotation, far positions, head norm, in place") {
  for (int64_t D : {8, 24, 64, 80, 128}) {
    for (int64_t rot : {D, D / 2, int64_t{4}}) {
      for (int32_t interleaved : {0, 1}) {
        for (bool with_norm : {false, true}) {
          const int64_t heads = 3, ldx = heads * D + 5;
          const std::vector<int32_t> positions = {0, 1, 2, 100, 4095, 131071, 1000003, INT32_MAX};
          const auto T = static_cast<int64_t>(positions.size());
          Guarded<float> inv_freq(static_cast<size_t>(rot / 2));
          for (size_t i = 0; i < inv_freq.size(); ++i) {
            inv_freq[i] = static_cast<float>(
                std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rot)));
          }
          const Guarded<float> x = normal((T - 1) * ldx + heads * D, 1), w = normal(D, 2);
          Guarded<float> want(static_cast<size_t>(T * heads * D));
          RopeArgs a;
          a.x = x.data();
          a.positions = positions.data();
          a.inv_freq = inv_freq.data();
          a.norm_w = with_norm ? w.data() : nullptr;
          a.T = T;
          a.heads = heads;
          a.D = D;
          a.rot_dim = rot;
          a.ldx = ldx;
          a.ldo = heads * D;
          a.mscale = 1.25f;
          a.interleaved = interleaved;
          a.out = want.data();
          run_in_steps(kernel_of(KernelFamily::kRope, Isa::kReference), &a, 1, false);
          for (Isa isa : levels()) {
            const Kernel& k = kernel_of(KernelFamily::kRope, isa);
            INFO(k.name << " D=" << D << " rot=" << rot << " interleaved=" << interleaved
                        << " norm=" << with_norm);
            Guarded<float> got(want.size());
            a.out = got.data();
            run_in_steps(k, &a, 1, true);
            for (int64_t t = 0; t < T; ++t) {
              for (int64_t h = 0; h < heads; ++h) {
                const auto base = static_cast<size_t>((t * heads + h) * D);
                double largest = 0;
                for (int64_t d = 0; d < D; ++d) {
                  largest =
                      std::max(largest, static_cast<double>(std::fabs(want[base + static_cast<size_t>(d)])));
                }
                // cos and sin to 2^-23, two products and a sum, on a pair no longer than sqrt(2) times the
                // largest element of the head; the norm adds the sum of D squares and three roundings.
                const double bound =
                    2 * largest * (6 + (with_norm ? static_cast<double>(D) / 2 + 8 : 0)) * kU;
                for (int64_t d = 0; d < D; ++d) {
                  const size_t i = base + static_cast<size_t>(d);
                  REQUIRE(std::fabs(got[i] - want[i]) <= bound);
                }
              }
            }
            // Heads among columns of wider ones, which stay as they are.
            const int64_t apart = D + 3, wide = (heads - 1) * apart + D;
            Guarded<float> spread = normal(T * wide, 3);
            for (int64_t t = 0; t < T; ++t)
              for (int64_t h = 0; h < heads; ++h)
                std::copy_n(x.data() + t * ldx + h * D, D, spread.data() + t * wide + h * apart);
            Guarded<float> expected = guarded(copy(spread));
            for (int64_t t = 0; t < T; ++t)
              for (int64_t h = 0; h < heads; ++h)
                std::copy_n(got.data() + (t * heads + h) * D, D, expected.data() + t * wide + h * apart);
            RopeArgs c = a;
            c.version = 2;
            c.x = c.out = spread.data();
            c.ldx = c.ldo = wide;
            c.x_step = c.out_step = apart;
            run_in_steps(k, &c, 1, true);
            REQUIRE(same_bits(spread.data(), expected.data(), T * wide));
            Guarded<float> inplace = guarded(copy(x));
            RopeArgs b = a;
            b.x = b.out = inplace.data();
            b.ldo = ldx;
            run_in_steps(k, &b, 1, true);
            for (int64_t t = 0; t < T; ++t) {
              REQUIRE(same_bits(inplace.data() + t * ldx, got.data() + t * heads * D, heads * D));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("swiglu: every level against the reference, strided, narrow and wide") {
  for (int64_t F : {1, 15, 16, 17, 100, 2047, 2048, 2049, 5000}) {
    const int64_t T = 3, ld = 2 * F + 1;
    Guarded<float> both = normal((T - 1) * ld + 2 * F, 1), want(static_cast<size_t>(T * F));
    both[0] = 200.f;  // silu is the identity there, and exp(-x) must not spoil it
    if (F > 1) both[1] = -200.f;
    SwiGluArgs a;
    a.gate = both.data();
    a.up = both.data() + F;
    a.T = T;
    a.F = F;
    a.ldg = a.ldu = ld;
    a.ldo = F;
    if (F > 2) both[2] = NAN;
    struct Form {
      UnaryOp act;
      float alpha, limit, up_offset;
    };
    for (const Form& form : {Form{UnaryOp::kSilu, 1, 0, 0}, Form{UnaryOp::kGeluTanh, 1, 0, 0},
                             Form{UnaryOp::kSilu, 1.702f, 0.75f, 1}, Form{UnaryOp::kSilu, 2, 0, -0.5f}}) {
      const UnaryOp act = a.act = form.act;
      a.alpha = form.alpha, a.limit = form.limit, a.up_offset = form.up_offset;
      a.out = want.data();
      run_in_steps(kernel_of(KernelFamily::kSwiGlu, Isa::kReference), &a, 1, false);
      // exp to 2 ulp, a sum, a quotient and a product; gelu's sum of 1 and tanh cancels where x is negative.
      // So does the sum of up and its offset, times a gate of at most 4.
      const double around_zero = act == UnaryOp::kGeluTanh ? 32 * kU : form.up_offset != 0 ? 8 * kU : 0;
      for (Isa isa : levels()) {
        Guarded<float> got(want.size());
        a.out = got.data();
        const Kernel& k = kernel_of(KernelFamily::kSwiGlu, isa);
        INFO(k.name << " F=" << F << (act == UnaryOp::kSilu ? " silu" : " gelu"));
        run_in_steps(k, &a, 1, true);
        for (size_t i = 0; i < got.size(); ++i) {
          if (std::isnan(want[i])) REQUIRE(std::isnan(got[i]));
          else REQUIRE(std::fabs(got[i] - want[i]) <= 8 * kU * std::fabs(want[i]) + around_zero + 1e-37);
        }
      }
    }
  }
}

namespace {

// Every magnitude from the smallest subnormal to infinity, dense around one, both signs, and the special
// values.
Guarded<float> all_magnitudes() {
  std::vector<float> values = {0.f, -0.f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f};
  for (uint32_t b = 1; b < 0x7f800000u; b += 0x7f800000u / 4001) values.push_back(detail::float_of(b));
  for (float x = 0.01f; x < 110.f; x *= 1.003f) values.push_back(x);
  for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back(-values[i]);
  return guarded(values);
}

}  // namespace

TEST_CASE("activations by themselves: every level within a few roundings") {
  struct Case {
    Epilogue kind;
    float alpha, beta;
    double max_ulps;
  };
  // Of an elu: tanh within 3, a quotient, a sum and a product; the others as many roundings behind exp.
  const Case cases[] = {{Epilogue::kElu, 1, 1, 6},          {Epilogue::kElu, 1.7580993f, 1.050701f, 6},
                        {Epilogue::kSoftplus, 0, 0, 5},     {Epilogue::kSoftsign, 0, 0, 1.5},
                        {Epilogue::kMish, 0, 0, 6},         {Epilogue::kSigmoid, 0, 0, 3},
                        {Epilogue::kLeakyRelu, 0.01f, 0, 1}};
  const Guarded<float> x = all_magnitudes();
  for (const Case& c : cases) {
    for (Isa isa : levels()) {
      const Kernel& k = kernel_of(KernelFamily::kActivate, isa);
      Guarded<float> got(x.size()), inplace = guarded(copy(x));
      ActivateArgs a;
      a.out = got.data();
      a.x = x.data();
      a.n = static_cast<int64_t>(x.size());
      a.epilogue = c.kind, a.alpha = c.alpha, a.beta = c.beta;
      run_in_steps(k, &a, 1, true);
      a.out = inplace.data(), a.x = inplace.data();
      ThreadPool pool({.threads = 3});
      run_on_pool(pool, k, &a);
      CHECK(same_bits(got.data(), inplace.data(), a.n));
      double worst = 0;
      float where = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = epilogue_value(c.kind, x[i], c.alpha, c.beta);
        // Results below the smallest normal number may be flushed, and so may what they are made of.
        if (std::fabs(got[i] - want) <= std::ldexp(1.0, -125)) continue;
        const double e = ulps(got[i], want);
        if (!(e <= worst)) worst = e, where = x[i];
      }
      INFO(k.name << " kind " << static_cast<int>(c.kind) << " worst at " << where);
      CHECK(worst <= c.max_ulps);
    }
  }
}

TEST_CASE("unary: every operation of every level to its documented accuracy") {
  struct Case {
    UnaryOp op;
    double max_ulps;
    double absolute;  // of |x|: where cancellation makes the relative error of a tiny result meaningless
    double (*exact)(double);
  };
  const Case cases[] = {
      {UnaryOp::kNeg, 0, 0, [](double x) { return -x; }},
      {UnaryOp::kAbs, 0, 0, [](double x) { return std::fabs(x); }},
      {UnaryOp::kExp, 2, 0, [](double x) { return std::exp(x); }},
      {UnaryOp::kLog, 2, 0, [](double x) { return std::log(x); }},
      {UnaryOp::kSqrt, 0.5, 0, [](double x) { return std::sqrt(x); }},
      {UnaryOp::kRsqrt, 1.5, 0, [](double x) { return 1 / std::sqrt(x); }},
      {UnaryOp::kSquare, 0.5, 0, [](double x) { return x * x; }},
      {UnaryOp::kReciprocal, 0.5, 0, [](double x) { return 1 / x; }},
      {UnaryOp::kTanh, 3, 0, [](double x) { return std::tanh(x); }},
      {UnaryOp::kSigmoid, 3, 0, [](double x) { return 1 / (1 + std::exp(-x)); }},
      // Where sigmoid is below the smallest normal number it is flushed, and x times it is lost.
      {UnaryOp::kSilu, 4, std::ldexp(1.0, -127), [](double x) { return x / (1 + std::exp(-x)); }},
      {UnaryOp::kRelu, 0, 0, [](double x) { return std::isnan(x) ? x : std::max(x, 0.0); }},
      {UnaryOp::kErf, 3, 0, [](double x) { return std::erf(x); }},
      {UnaryOp::kGeluErf, 3, 4 * kU, [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }},
      {UnaryOp::kGeluTanh, 3, 4 * kU,
       [](double x) {
         return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
       }},
      {UnaryOp::kSin, 1, 0, [](double x) { return std::sin(x); }},
      {UnaryOp::kCos, 1, 0, [](double x) { return std::cos(x); }},
      {UnaryOp::kFloor, 0, 0, [](double x) { return std::floor(x); }},
  };
  const Guarded<float> x = all_magnitudes();
  for (const Case& c : cases) {
    for (Isa isa : levels()) {
      const Kernel& k = kernel_of(KernelFamily::kUnary, isa);
      Guarded<float> got(x.size());
      UnaryArgs a;
      a.out = got.data();
      a.x = x.data();
      a.n = static_cast<int64_t>(x.size());
      a.op = c.op;
      run_in_steps(k, &a, 1, true);
      double worst = 0;
      float where = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = c.exact(x[i]);
        // Results below the smallest normal number may be flushed.
        if (std::fabs(got[i] - want) <= std::ldexp(1.0, -126) + c.absolute * std::fabs(x[i])) continue;
        const double e = ulps(got[i], want);
        if (!(e <= worst)) worst = e, where = x[i];
      }
      INFO(k.name << " op " << static_cast<int>(c.op) << " worst at " << where);
      CHECK(worst <= c.max_ulps);
    }
  }
}

TEST_CASE("unary: any length, in place, in any chunks") {
  for (int64_t n : {1, 2, 3, 5, 15, 16, 17, 100, 4095, 4096, 4097, 70001}) {
    const Guarded<float> x = normal(n, 1);
    for (Isa isa : levels()) {
      const Kernel& k = kernel_of(KernelFamily::kUnary, isa);
      Guarded<float> out(x.size()), inplace = guarded(copy(x));
      UnaryArgs a;
      a.out = out.data();
      a.x = x.data();
      a.n = n;
      a.op = UnaryOp::kSilu;
      run_in_steps(k, &a, 1, true);
      a.out = inplace.data();
      a.x = inplace.data();
      ThreadPool pool({.threads = 3});
      run_on_pool(pool, k, &a);
      CHECK(same_bits(out.data(), inplace.data(), n));
    }
  }
}

TEST_CASE("binary: operations and broadcasts, NaN through max and min") {
  const BinaryOp ops[] = {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv,
                          BinaryOp::kMax, BinaryOp::kMin, BinaryOp::kPow};
  for (int64_t cols : {1, 15, 16, 17, 70}) {
    for (int32_t b_row : {0, 1}) {
      for (int32_t b_col : {0, 1}) {
        const int64_t rows = 4;
        Guarded<float> x = normal(rows * cols, 1), y = normal((b_row ? rows : 1) * (b_col ? cols : 1), 2);
        x[0] = NAN;
        if (y.size() > 1) y[1] = NAN;
        for (BinaryOp op : ops) {
          Guarded<float> want(x.size());
          BinaryArgs a;
          a.out = want.data();
          a.a = x.data();
          a.b = y.data();
          a.rows = rows;
          a.cols = cols;
          a.b_row = b_row;
          a.b_col = b_col;
          a.op = op;
          run_in_steps(kernel_of(KernelFamily::kBinary, Isa::kReference), &a, 1, false);
          for (Isa isa : levels()) {
            const Kernel& k = kernel_of(KernelFamily::kBinary, isa);
            INFO(k.name << " op " << static_cast<int>(op) << " cols=" << cols << " b " << b_row << b_col);
            Guarded<float> got(want.size());
            a.out = got.data();
            run_in_steps(k, &a, 1, true);
            // One correctly rounded operation; pow is libm's.
            for (size_t i = 0; i < got.size(); ++i)
              REQUIRE(ulps(got[i], want[i]) <= (op == BinaryOp::kPow ? 1 : 0));
          }
        }
      }
    }
  }
}

TEST_CASE("embedding and gather_rows: any format, scale, repeated rows") {
  for (const char* name : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    const Format format = *Format::find(name);
    for (int64_t E : {32, 96, 2048}) {
      const int64_t V = 7;
      const Guarded<char> table =
          encode(random_values(static_cast<size_t>(V * E), Values::kNormal, 1), E, format);
      const std::vector<float> decoded = decode(table, E, format);
      const int32_t ids[] = {6, 0, 3, 3, 6};
      for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
        const Kernel* k =
            KernelRegistry::cpu().find({KernelFamily::kEmbedding, format}, static_cast<Isa>(level));
        REQUIRE(k != nullptr);
        INFO(k->name << " " << name << " E=" << E);
        for (float scale : {1.f, 22.627417f}) {
          Guarded<float> out(static_cast<size_t>(5 * E));
          EmbeddingArgs a;
          a.out = out.data();
          a.table = table.data();
          a.ids = ids;
          a.T = 5;
          a.E = E;
          a.V = V;
          a.format = format;
          a.scale = scale;
          run_in_steps(*k, &a, 1, true);
          for (int64_t t = 0; t < 5; ++t) {
            for (int64_t e = 0; e < E; ++e) {
              REQUIRE(out[static_cast<size_t>(t * E + e)] ==
                      decoded[static_cast<size_t>(ids[t] * E + e)] * scale);
            }
          }
        }
      }
    }
  }
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    const Guarded<float> x = normal(6 * 33, 1);
    const int32_t rows[] = {5, 0, 5};
    Guarded<float> out(3 * 33);
    GatherRowsArgs a;
    a.out = out.data();
    a.x = x.data();
    a.rows = rows;
    a.R = 3;
    a.E = 33;
    run_in_steps(kernel_of(KernelFamily::kGatherRows, static_cast<Isa>(level)), &a, 1, true);
    for (int64_t r = 0; r < 3; ++r) CHECK(same_bits(out.data() + r * 33, x.data() + rows[r] * 33, 33));
  }
}

TEST_CASE("row-wise kernels: a batch equals its rows alone for any workers, and nothing runs on no rows") {
  constexpr int64_t kRows = 70, kCols = 300;
  const Guarded<float> x = normal(kRows * kCols, 1), w = normal(kCols, 2);
  for (Isa isa : levels()) {
    const Kernel& k = kernel_of(KernelFamily::kRmsNorm, isa);
    Guarded<float> alone(x.size()), batch(x.size());
    RmsNormArgs a;
    norm_args(a, x, w, 1, kCols, kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      a.x = x.data() + r * kCols;
      a.out = alone.data() + r * kCols;
      run_in_steps(k, &a, 1, false);
    }
    norm_args(a, x, w, kRows, kCols, kCols);
    a.out = batch.data();
    for (int workers = 1; workers <= 5; ++workers) {
      ThreadPool pool({.threads = workers});
      std::ranges::fill(batch, -1.f);
      run_on_pool(pool, k, &a);
      CHECK(same_bits(batch.data(), alone.data(), kRows * kCols));
    }
    a.rows = 0;
    a.out = nullptr;
    run_in_steps(k, &a, 1, false);
  }
}
