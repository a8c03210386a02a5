// Convolutions, pools and interpolation on the device against the double-precision reference. Integers give
// equal sums, so each tap must be the right one; the roundings of other numbers stay within a bound.
#include "kernels/conv.h"
#include "kernels/reduce.h"
#include "kernels/resize.h"
#include "kernels/strided_copy.h"
#include "tests/cuda/windows.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("cuda: convolutions of every kind against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Case {
    Window window;
    int64_t C, M, groups = 1;
    bool planar = false;
    Epilogue epilogue = Epilogue::kNone;
    bool residual = false;
    int64_t pad = 0;  // elements between rows of x and out
  };
  const Case cases[] = {
      {{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0}, 1, 1},
      {{1, 1, 130, 1, 1, 1, 1, 1, 0, 0, 0, 0}, 33, 70, 1, false, Epilogue::kGelu, true},  // a product
      {{1, 1, 3, 1, 1, 1, 1, 1, 0, 0, 0, 0}, 300, 100, 1, false, Epilogue::kGeluTanh, false, 5},
      {{2, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 20, 24, 1, false, Epilogue::kClamp, true},
      {{2, 11, 8, 3, 3, 2, 1, 1, 0, 1, 1, 2}, 5, 17, 1, true, Epilogue::kHardSwish},
      {{1, 13, 12, 7, 5, 2, 3, 1, 3, 2, 3, 2}, 3, 40, 1, true, Epilogue::kSilu},
      {{1, 9, 9, 3, 3, 1, 1, 2, 2, 2, 2, 2}, 8, 65, 1, false, Epilogue::kLeakyRelu},
      {{1, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 24, 36, 3, false, Epilogue::kSigmoid, true},
      {{1, 6, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 24, 72, 3, true, Epilogue::kTanh},
      {{2, 4, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1}, 6, 12, 6, false, Epilogue::kHardSigmoid},
      {{1, 3, 3, 3, 3, 1, 1, 1, 4, 4, 4, 4}, 4, 4},  // windows wholly in the padding
      {{3, 5, 4, 2, 2, 2, 2, 1, 0, 0, 0, 0}, 7, 19, 1, false, Epilogue::kNone, true, 3},
  };
  uint32_t seed = 0;
  for (const Case& c : cases) {
    const WindowShape w = shape_of(c.window);
    const int64_t per = c.C / c.groups, taps = w.KH * w.KW, terms = taps * per;
    const int64_t ldx = c.planar ? c.C : c.C + c.pad, ldo = c.M + c.pad, out_row = w.OW * ldo + 2 * c.pad;
    for (const Values values : {Values::kIntegers, Values::kNormal}) {
      INFO("case " << seed << " C " << c.C << " M " << c.M << " groups " << c.groups);
      ++seed;
      const std::vector<float> x = filled(w.N * w.H * w.W * ldx, values, seed),
                               filters = filled(c.M * terms, values, seed + 100),
                               bias = filled(c.M, values, seed + 200),
                               residual = filled(w.N * w.OH * out_row, values, seed + 300);
      ConvArgs a;
      a.window = w;
      a.C = c.C, a.M = c.M, a.groups = c.groups;
      a.ldx = ldx, a.ldo = ldo, a.out_row = c.pad != 0 ? out_row : 0;
      a.panel = 1;
      a.planar = c.planar;
      // Sums of magnitudes, for the bound.
      std::vector<float> want(residual.size(), kNobodys), sizes(residual.size(), 0.f);
      const std::vector<float> xs = magnitudes(x), ws = magnitudes(filters), bs = magnitudes(bias),
                               rs = magnitudes(residual);
      const bool biased = seed % 3 != 0;
      a.out = sizes.data(), a.x = xs.data(), a.w = ws.data(), a.bias = biased ? bs.data() : nullptr;
      a.residual = c.residual ? rs.data() : nullptr;
      run_reference(KernelFamily::kConv, Format::f32(), &a);
      if (values == Values::kNormal) a.epilogue = c.epilogue;
      a.alpha = c.epilogue == Epilogue::kClamp ? 0.f : 1.f / 6, a.beta = 0.5f;
      a.out = want.data(), a.x = x.data(), a.w = filters.data(), a.bias = biased ? bias.data() : nullptr;
      a.residual = c.residual ? residual.data() : nullptr;
      run_reference(KernelFamily::kConv, Format::f32(), &a);

      DeviceArray dx(x), dw(filters), db(bias),
          out(c.residual ? residual : std::vector<float>(want.size(), kNobodys));
      if (c.residual && c.pad != 0) {  // in place; what lies between rows stays
        for (size_t i = 0; i < want.size(); ++i)
          if (want[i] == kNobodys) want[i] = residual[i];
      }
      a.out = out.data(), a.x = dx.data(), a.w = dw.data(), a.bias = biased ? db.data() : nullptr;
      a.residual = c.residual ? out.data() : nullptr;
      launch_on_device(KernelFamily::kConv, "f32", &a);
      check_close(out.host(), want, [&](size_t i) {
        if (values == Values::kIntegers) return 0.0;
        return after((static_cast<double>(terms) + 2) * kUnit * sizes[i], want[i]);
      });
    }
  }
}

TEST_CASE("cuda: convolutions of channels by themselves, and pools, against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const Window windows[] = {{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0}, {2, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 1},
                            {1, 8, 9, 3, 3, 2, 2, 1, 0, 0, 1, 1}, {1, 12, 11, 5, 3, 2, 1, 2, 4, 2, 4, 2},
                            {2, 7, 6, 7, 6, 1, 1, 1, 0, 0, 0, 0}, {1, 2, 2, 3, 3, 1, 1, 1, 3, 3, 3, 3}};
  uint32_t seed = 0;
  for (const Window& window : windows) {
    for (const int64_t C : {1, 6, 8}) {
      for (const size_t shift : {0, 1}) {
        const WindowShape w = shape_of(window);
        const int64_t n = w.N * w.OH * w.OW * C;
        INFO("window " << w.KH << " x " << w.KW << " C " << C << " shift " << shift);
        for (const Values values : {Values::kIntegers, Values::kNormal}) {
          ++seed;
          std::vector<float> x = filled(w.N * w.H * w.W * C, values, seed), want = nothing_yet(n),
                             sizes = want;
          const std::vector<float> filters = filled(w.KH * w.KW * C, values, seed + 100),
                                   bias = filled(C, values, seed + 200),
                                   residual = filled(n, values, seed + 300), xs = magnitudes(x),
                                   ws = magnitudes(filters), bs = magnitudes(bias), rs = magnitudes(residual);
          DepthwiseArgs a;
          a.window = w;
          a.C = C;
          a.out = sizes.data(), a.x = xs.data(), a.w = ws.data(),
          a.bias = seed % 3 != 0 ? bs.data() : nullptr, a.residual = seed % 4 != 0 ? rs.data() : nullptr;
          run_reference(KernelFamily::kDepthwise, Format::f32(), &a);
          a.alpha = 1.f / 6, a.beta = 0.5f;
          if (values == Values::kNormal) a.epilogue = Epilogue::kHardSwish;
          a.out = want.data(), a.x = x.data(), a.w = filters.data(),
          a.bias = seed % 3 != 0 ? bias.data() : nullptr;
          a.residual = seed % 4 != 0 ? residual.data() : nullptr;
          run_reference(KernelFamily::kDepthwise, Format::f32(), &a);
          DeviceArray dx(x, shift), dw(filters, shift), db(bias, shift), out(residual, shift);
          a.out = out.data(), a.x = dx.data(), a.w = dw.data(), a.bias = seed % 3 != 0 ? db.data() : nullptr,
          a.residual = seed % 4 != 0 ? out.data() : nullptr;
          launch_on_device(KernelFamily::kDepthwise, "f32", &a);
          const double terms = static_cast<double>(w.KH * w.KW) + 2;
          check_close(out.host(), want, [&](size_t i) {
            return values == Values::kIntegers ? 0.0 : after(terms * kUnit * sizes[i], want[i]);
          });
        }
        WindowShape beyond = w;  // some windows begin behind the padded image
        beyond.OH += 3, beyond.OW += 3;
        const int64_t results = w.N * beyond.OH * beyond.OW * C;
        std::vector<float> x = filled(w.N * w.H * w.W * C, Values::kIntegers, seed),
                           want = nothing_yet(results);
        if (x.size() > 10) x[7] = NAN, x[3] = -INFINITY;
        for (const PoolOp op : {PoolOp::kMax, PoolOp::kAverage}) {
          for (const int32_t count_pads : {0, 1}) {
            PoolArgs a;
            a.window = beyond;
            a.C = C;
            a.op = op;
            a.count_pads = count_pads;
            a.out = want.data(), a.x = x.data();
            run_reference(KernelFamily::kPool, Format::f32(), &a);
            DeviceArray dx(x, shift), out(nothing_yet(results), shift);
            a.out = out.data(), a.x = dx.data();
            launch_on_device(KernelFamily::kPool, "f32", &a);
            // Sums of integers are exact; the quotient is within 2 units.
            check_close(out.host(), want,
                        [&](size_t i) { return op == PoolOp::kMax ? 0.0 : 4 * kUnit * std::fabs(want[i]); });
          }
        }
      }
    }
  }
}

TEST_CASE("cuda: interpolation against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  // Taps of every output entry: none for some, one of weight 1 for others, up to four.
  struct Axis {
    std::vector<int32_t> first, at;
    std::vector<float> weight;
  };
  const auto axis = [](int64_t in, int64_t out, uint32_t seed) {
    Axis a;
    const std::vector<float> weights = filled(4 * out, Values::kNormal, seed);
    for (int64_t k = 0; k < out; ++k) {
      a.first.push_back(static_cast<int32_t>(a.at.size()));
      for (int64_t t = 0; t < (k + seed) % 5; ++t) {
        a.at.push_back(static_cast<int32_t>((k * 3 + t) % in));
        a.weight.push_back((k + seed) % 5 == 1 ? 1.f : weights[static_cast<size_t>(4 * k + t)]);
      }
    }
    a.first.push_back(static_cast<int32_t>(a.at.size()));
    return a;
  };
  const auto set = [](ResizeAxis& to, const int32_t* first, const int32_t* at, const float* weight) {
    to.first = first, to.at = at, to.weight = weight;
  };
  for (const int64_t inner : {1, 3, 8}) {
    for (const int kept : {0, 1, 2, 3}) {  // rows, columns or both stay as they are
      for (const size_t shift : {0, 1}) {
        INFO("inner " << inner << " kept " << kept << " shift " << shift);
        ResizeArgs a;
        a.outer = 2, a.inner = inner;
        a.rows.in = 5, a.rows.out = (kept & 1) != 0 ? 5 : 11;
        a.cols.in = 7, a.cols.out = (kept & 2) != 0 ? 7 : 6;
        const Axis rows = axis(a.rows.in, a.rows.out, 1), cols = axis(a.cols.in, a.cols.out, 3);
        std::vector<float> x = filled(a.outer * a.rows.in * a.cols.in * inner, Values::kNormal, 9);
        for (size_t i = 0; i < x.size(); i += 5) x[i] = -0.f;
        std::vector<float> want = nothing_yet(a.outer * a.rows.out * a.cols.out * inner);
        if ((kept & 1) == 0) set(a.rows, rows.first.data(), rows.at.data(), rows.weight.data());
        if ((kept & 2) == 0) set(a.cols, cols.first.data(), cols.at.data(), cols.weight.data());
        a.x = x.data(), a.out = want.data();
        run_reference(KernelFamily::kResize, Format::f32(), &a);
        DeviceArray dx(x, shift), out(nothing_yet(static_cast<int64_t>(want.size())), shift);
        DeviceCopy<int32_t> rf(rows.first), ra(rows.at), cf(cols.first), ca(cols.at);
        DeviceArray rw(rows.weight), cw(cols.weight);
        if ((kept & 1) == 0) set(a.rows, rf.data(), ra.data(), rw.data());
        if ((kept & 2) == 0) set(a.cols, cf.data(), ca.data(), cw.data());
        a.x = dx.data(), a.out = out.data();
        launch_on_device(KernelFamily::kResize, "f32", &a);
        const std::vector<float> got = out.host();
        // Two sums of up to four terms, of weights and numbers below 5.
        check_close(got, want, [&](size_t) { return 2 * 5 * kUnit * 16 * 125; });
        if (kept == 3) CHECK(std::memcmp(got.data(), x.data(), x.size() * sizeof(float)) == 0);
      }
    }
  }
  // One tap of weight 1 is a copy, of -0 too.
  const std::vector<float> x = {-0.f, 1.f, -2.f, -0.f};
  const std::vector<int32_t> first = {0, 1, 2}, at = {1, 0};
  const std::vector<float> weight = {1, 1};
  DeviceArray dx(x), dw(weight), out(nothing_yet(4));
  DeviceCopy<int32_t> df(first), da(at);
  ResizeArgs a;
  a.inner = 2;
  a.cols = {df.data(), da.data(), dw.data(), 2, 2};
  a.x = dx.data(), a.out = out.data();
  launch_on_device(KernelFamily::kResize, "f32", &a);
  const std::vector<float> got = out.host();
  CHECK((got[0] == -2.f && std::signbit(got[1]) && std::signbit(got[2]) && got[3] == 1.f));
}

TEST_CASE("cuda: reductions of rows and of columns, NaN, infinities and none", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t n : {0, 1, 7, 8, 33, 255, 256, 257, 1030}) {
    for (const int64_t inner : {1, 2, 31, 32, 33}) {
      ReduceArgs a;
      a.outer = 3, a.n = n, a.inner = inner;
      // What is read outside is a NaN, and shows.
      std::vector<float> x(static_cast<size_t>(a.outer * n * inner) + 64, NAN);
      const auto values = filled(a.outer * n * inner, Values::kNormal, static_cast<uint32_t>(n * 40 + inner));
      std::copy(values.begin(), values.end(), x.begin() + 32);
      for (const bool odd : {false, true}) {  // the last entry of the last column is no number
        if (odd && n == 0) continue;
        if (odd) x[x.size() - 33] = NAN;
        DeviceCopy<float> dx(x);
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kSumOfSquares, ReduceOp::kMax, ReduceOp::kMin}) {
          INFO("n " << n << " inner " << inner << " op " << static_cast<int>(op) << " odd " << odd);
          a.op = op;
          std::vector<float> want(static_cast<size_t>(a.outer * inner + 40), kNobodys);
          DeviceCopy<float> out(want);
          a.x = x.data() + 32, a.out = want.data();
          run_reference(KernelFamily::kReduce, Format::f32(), &a);
          a.x = dx.data() + 32, a.out = out.data();
          launch_on_device(KernelFamily::kReduce, "f32", &a);
          const std::vector<float> got = out.host();
          int64_t wrong = 0;
          for (size_t e = 0; e < want.size(); ++e) {
            // Sums in double, rounded once each; in another order they may differ by a place of f32.
            const bool same = got[e] == want[e] || (std::isnan(got[e]) && std::isnan(want[e]));
            wrong += !(same || std::fabs(got[e] - want[e]) <= 2 * kUnit * std::fabs(want[e]) + 1e-10f);
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda: boxes of elements of every size move, wide where they may", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  // `gap`: elements between rows of x, and `behind` between its boxes; `shift`: of both ends from where
  // memory is aligned.
  const auto check = [](int element, bool turned, int64_t cols, bool zeros, int64_t gap, size_t shift,
                        int64_t behind = 0) {
    INFO("element " << element << " turned " << turned << " cols " << cols << " zeros " << zeros << " gap "
                    << gap << " shift " << shift << " behind " << behind);
    StridedCopyArgs a;
    a.element = element;
    a.rank = 3;
    const int64_t dims[] = {2, turned ? cols : 5, turned ? 5 : cols}, row = cols + gap;
    std::copy(dims, dims + 3, a.dims);
    a.x_steps[0] = 5 * row + behind, a.x_steps[1] = turned ? 1 : row, a.x_steps[2] = turned ? row : 1;
    a.out_steps[0] = 8 * cols, a.out_steps[1] = turned ? 8 : cols, a.out_steps[2] = 1;
    std::vector<uint8_t> x(static_cast<size_t>((10 * row + behind) * element));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i * 31 + i / 256);
    std::vector<uint8_t> want(static_cast<size_t>(16 * cols * element), 0xA5);
    const size_t bytes = shift * static_cast<size_t>(element);
    DeviceCopy<uint8_t> dx(x, bytes), out(want, bytes);
    a.x = zeros ? nullptr : x.data(), a.out = want.data();
    run_reference(KernelFamily::kStridedCopy, Format::f32(), &a);
    a.x = zeros ? nullptr : dx.data(), a.out = out.data();
    launch_on_device(KernelFamily::kStridedCopy, "f32", &a);
    CHECK(out.host() == want);
  };
  for (const int element : {1, 2, 4, 8}) {
    check(element, false, 16, false, 1, 0, 11);  // boxes begin where memory is aligned, rows do not
    for (const bool turned : {false, true}) {
      for (const int64_t cols : {16, 19}) {
        for (const bool zeros : {false, true}) check(element, turned, cols, zeros, 0, 0);
        check(element, turned, cols, false, 1, 0);
        check(element, turned, cols, false, 0, 1);
      }
    }
  }
}
