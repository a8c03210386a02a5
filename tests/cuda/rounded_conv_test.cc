// Convolutions and products whose operands are rounded to bf16, f16 or TF32, against the double-precision
// reference. Of the rounded operands: only sums in f32 differ, and integers give equal ones. Of those as they
// were: within what rounding them may cost (docs/predictor.md).
#include <bit>

#include "quant/dtype.h"
#include "tests/cuda/windows.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Type {
  const char* name;
  int bits, least, bytes;  // of precision; the exponent of the smallest step; of a filter's value
  bool away;               // between two: away from zero, not to even
};
const Type kTypes[] = {{"bf16", 8, -133, 2, false}, {"f16", 11, -24, 2, false}, {"tf32", 11, -136, 4, true}};

// As the type has it; finite numbers that the type has room for.
float rounded(const Type& t, float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(static_cast<double>(x), &exponent);
  const int step = std::max(exponent - t.bits, t.least);
  const double steps = std::ldexp(static_cast<double>(x), -step);
  return static_cast<float>(std::ldexp(t.away ? std::round(steps) : std::nearbyint(steps), step));
}
std::vector<float> rounded(const Type& t, std::vector<float> v) {
  for (float& x : v) x = rounded(t, x);
  return v;
}

// Filters of K values as the kernel reads them.
std::vector<uint8_t> filters_of(const Type& t, const std::vector<float>& w, int64_t K) {
  const auto values = static_cast<size_t>(K), bytes = static_cast<size_t>(t.bytes);
  const size_t row = (values * bytes + 63) / 64 * 64, filters = values == 0 ? 0 : w.size() / values;
  std::vector<uint8_t> out(filters * row);
  for (size_t m = 0; m < filters; ++m) {
    for (size_t k = 0; k < values; ++k) {
      const float x = rounded(t, w[m * values + k]);
      const uint16_t half = t.least == -24 ? to_f16(x).bits : to_bf16(x).bits;
      if (t.bytes == 4) std::memcpy(&out[m * row + k * bytes], &x, sizeof x);
      else std::memcpy(&out[m * row + k * bytes], &half, sizeof half);
    }
  }
  return out;
}

// Each addition in f32 may round as it likes.
double sum_error(int64_t terms, double magnitude) {
  return 4 * (static_cast<double>(terms) + 2) * kUnit * magnitude;
}

struct Case {
  Window window;
  int64_t C, M;
  Epilogue epilogue = Epilogue::kNone;
  bool residual = false;
  int64_t pad = 0;   // elements between rows of x and out
  size_t shift = 0;  // of x from where memory is aligned
};

// (rows, K) times (N, K).
Case product(int64_t rows, int64_t K, int64_t N) { return {{1, 1, rows, 1, 1, 1, 1, 1, 0, 0, 0, 0}, K, N}; }

ConvArgs args_of(const Case& c, const WindowShape& w) {
  ConvArgs a;
  a.window = w;
  a.C = c.C, a.M = c.M, a.groups = a.panel = 1;
  a.ldx = c.C + c.pad, a.ldo = c.M + c.pad;
  a.out_row = c.pad != 0 ? w.OW * a.ldo + 2 * c.pad : 0;
  return a;
}

void check(const Type& type, const Case& c, Values values, uint32_t seed) {
  const WindowShape w = shape_of(c.window);
  ConvArgs a = args_of(c, w);
  const int64_t K = w.KH * w.KW * c.C, out_row = a.out_row != 0 ? a.out_row : w.OW * a.ldo;
  const std::vector<float> x = filled(w.N * w.H * w.W * a.ldx, values, seed),
                           filters = filled(c.M * K, values, seed + 100),
                           bias = filled(c.M, values, seed + 200),
                           residual = filled(w.N * w.OH * out_row, values, seed + 300);
  const bool biased = seed % 3 != 0;
  const auto reference = [&](const std::vector<float>& of_x, const std::vector<float>& of_w,
                             const std::vector<float>& of_bias, const std::vector<float>& of_residual) {
    std::vector<float> out(residual.size(), kNobodys);
    a.out = out.data(), a.x = of_x.data(), a.w = of_w.data();
    a.bias = biased ? of_bias.data() : nullptr, a.residual = c.residual ? of_residual.data() : nullptr;
    run_reference(KernelFamily::kConv, Format::f32(), &a);
    return out;
  };
  const std::vector<float> sizes =
      reference(magnitudes(x), magnitudes(filters), magnitudes(bias), magnitudes(residual));
  if (values == Values::kNormal) a.epilogue = c.epilogue;
  a.alpha = c.epilogue == Epilogue::kClamp ? 0.f : 1.f / 6, a.beta = 0.5f;
  std::vector<float> want = reference(rounded(type, x), rounded(type, filters), bias, residual),
                     exact = reference(x, filters, bias, residual);

  DeviceArray dx(x, c.shift), db(bias),
      out(c.residual ? residual : std::vector<float>(want.size(), kNobodys));
  DeviceCopy<uint8_t> dw(filters_of(type, filters, K));
  if (c.residual) {  // in place; what lies between rows stays
    for (size_t i = 0; i < want.size(); ++i)
      if (want[i] == kNobodys) want[i] = exact[i] = residual[i];
  }
  a.out = out.data(), a.x = dx.data(), a.w = reinterpret_cast<const float*>(dw.data());
  a.bias = biased ? db.data() : nullptr, a.residual = c.residual ? out.data() : nullptr;
  launch_on_device(KernelFamily::kConv, type.name, &a);
  const std::vector<float> got = out.host();
  check_close(got, want, [&](size_t i) {
    return values == Values::kIntegers ? 0.0 : after(sum_error(K, sizes[i]), want[i]);
  });
  // Both operands within 2^-bits of their values; f16 of small ones within half a step.
  const double u = std::ldexp(1.0, -type.bits), step = std::ldexp(0.5, type.least);
  check_close(got, exact, [&](size_t i) {
    const double rounding = u * (2 + u) * sizes[i] + 16 * step * static_cast<double>(K);
    return after(rounding + sum_error(K, sizes[i]), exact[i]);
  });
}

}  // namespace

TEST_CASE("cuda: convolutions of rounded operands against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const Case cases[] = {
      product(1, 1, 1),
      product(15, 16, 63),
      product(16, 32, 64),
      product(17, 33, 65),
      product(63, 64, 8),
      product(64, 100, 64),
      {{1, 1, 130, 1, 1, 1, 1, 1, 0, 0, 0, 0}, 36, 70, Epilogue::kGelu, true},
      {{1, 1, 3, 1, 1, 1, 1, 1, 0, 0, 0, 0}, 300, 100, Epilogue::kGeluTanh, false, 5},
      {{2, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 20, 24, Epilogue::kClamp, true},
      {{2, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 20, 24, Epilogue::kHardSigmoid, true, 4, 1},
      {{2, 11, 8, 3, 3, 2, 1, 1, 0, 1, 1, 2}, 5, 17, Epilogue::kHardSwish},
      {{1, 13, 12, 7, 5, 2, 3, 1, 3, 2, 3, 2}, 3, 40, Epilogue::kSilu},
      {{1, 9, 9, 3, 3, 1, 1, 2, 2, 2, 2, 2}, 8, 65, Epilogue::kLeakyRelu},
      {{1, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 24, 36, Epilogue::kSigmoid, true},
      {{1, 3, 3, 3, 3, 1, 1, 1, 4, 4, 4, 4}, 4, 4, Epilogue::kTanh},  // windows wholly in the padding
      {{3, 5, 4, 2, 2, 2, 2, 1, 0, 0, 0, 0}, 7, 19, Epilogue::kNone, true, 3},
      {{1, 5, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 12, 9, Epilogue::kNone, true, 4},
  };
  for (const Type& type : kTypes) {
    uint32_t seed = 0;
    for (const Case& c : cases) {
      for (const Values values : {Values::kIntegers, Values::kNormal}) {
        INFO(type.name << " case " << seed << " C " << c.C << " M " << c.M);
        check(type, c, values, ++seed);
      }
    }
  }
}

TEST_CASE("cuda: convolutions of rounded operands give the same bits in every tile", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  // Enough for tiles of 128 x 128, beside the first rows of it in smaller ones, and one by one.
  for (const Type& type : kTypes) {
    for (const int64_t K : {36, 18}) {
      if (K == 18 && &type != kTypes) continue;  // gathered one by one, in each
      const Case c = product(132 * 128 + 5, K, 70);
      // The same rows come again, each time at another place of a tile: there are so many different ones.
      constexpr int64_t kDifferent = 509;
      std::vector<float> x = filled(kDifferent * K, Values::kNormal, 1);
      for (int64_t i = kDifferent * K; i < c.window.W * K; ++i)
        x.push_back(x[static_cast<size_t>(i - kDifferent * K)]);
      const std::vector<float> filters = filled(c.M * K, Values::kNormal, 2);
      DeviceCopy<uint8_t> w(filters_of(type, filters, K));
      const auto rows_of = [&](int64_t rows, size_t shift) {
        const Case part = product(rows, K, c.M);
        ConvArgs a = args_of(part, shape_of(part.window));
        DeviceArray dx({x.begin(), x.begin() + rows * K}, shift), out(nothing_yet(rows * c.M));
        a.out = out.data(), a.x = dx.data(), a.w = reinterpret_cast<const float*>(w.data());
        launch_on_device(KernelFamily::kConv, type.name, &a);
        return out.host();
      };
      const std::vector<float> all = rows_of(c.window.W, 0);
      std::vector<float> want = nothing_yet(kDifferent * c.M), sizes = want;
      const Case different = product(kDifferent, K, c.M);
      ConvArgs a = args_of(different, shape_of(different.window));
      const std::vector<float> xs = rounded(type, x), ws = rounded(type, filters);
      a.out = want.data(), a.x = xs.data(), a.w = ws.data();
      run_reference(KernelFamily::kConv, Format::f32(), &a);
      const std::vector<float> xm = magnitudes(xs), wm = magnitudes(ws);
      a.out = sizes.data(), a.x = xm.data(), a.w = wm.data();
      run_reference(KernelFamily::kConv, Format::f32(), &a);
      check_close({all.begin(), all.begin() + kDifferent * c.M}, want,
                  [&](size_t i) { return sum_error(K, sizes[i]); });
      CHECK(std::equal(all.begin() + std::ssize(want), all.end(), all.begin()));
      for (const int64_t rows : {1, 16, 100}) {
        for (const size_t shift : {0, 1}) {
          INFO(type.name << " K " << K << " rows " << rows << " shift " << shift);
          const std::vector<float> some = rows_of(rows, shift);
          CHECK(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda: rounded operands that are no numbers, too large, or none", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr int64_t kK = 40, kM = 24;
  for (const Type& type : kTypes) {
    INFO(type.name);
    const Case c = product(4, kK, kM);
    std::vector<float> x(4 * kK, 1.f);
    x[kK + 3] = NAN;  // seen by no other row, also where K ends
    x[2 * kK + 7] = INFINITY;
    x[3 * kK + 39] = 65520.f;  // the first that f16 has no room for
    DeviceArray dx(x), out(nothing_yet(4 * kM));
    DeviceCopy<uint8_t> w(filters_of(type, std::vector<float>(kM * kK, 0.5f), kK));
    ConvArgs a = args_of(c, shape_of(c.window));
    a.out = out.data(), a.x = dx.data(), a.w = reinterpret_cast<const float*>(w.data());
    launch_on_device(KernelFamily::kConv, type.name, &a);
    const std::vector<float> got = out.host();
    const float large = type.least == -24 ? INFINITY : rounded(type, 65520.f) / 2 + 19.5f;
    for (size_t m = 0; m < kM; ++m) {
      CHECK(got[m] == 20.f);
      CHECK(std::isnan(got[kM + m]));
      CHECK(got[2 * kM + m] == INFINITY);
      CHECK(got[3 * kM + m] == large);
    }
    // Sums of nothing.
    const Case none = product(4, 0, kM);
    const std::vector<float> bias = filled(kM, Values::kNormal, 1);
    DeviceArray db(bias);
    a = args_of(none, shape_of(none.window));
    a.out = out.data(), a.bias = db.data();
    launch_on_device(KernelFamily::kConv, type.name, &a);
    const std::vector<float> biases = out.host();
    for (size_t i = 0; i < biases.size(); ++i) CHECK(biases[i] == bias[i % kM]);
  }
}
