// Elementwise kernels and softmax on the device against the double-precision reference: sizes around a
// thread's four elements and a block's, aligned and not, in place, every op.
#include <array>

#include "kernels/activation.h"
#include "kernels/conv.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

// A unit in the last place of the result per step, with what functions of the device promise (CUDA's
// mathematical functions: 2 for exp, log, tanh and erf, 4 for erfc, 2 for a quotient), and what an error of
// the argument becomes: exp(u) has |u| units for each of u's. `argument`: the largest |u|.
double bound_of(double want, double argument = 0) {
  return (16 + 8 * argument) * 2 * kUnit * std::fabs(want) + std::ldexp(1.0, -126);
}

constexpr int64_t kSizes[] = {0, 1, 3, 4, 5, 255, 1023, 1024, 1025, 3000};

std::vector<float> values_of(int64_t n, uint32_t seed) {
  std::vector<float> v = random_values(static_cast<size_t>(n), Values::kNormal, seed);
  const float special[] = {0.f, -0.f, 1e-30f, -1e30f, 88.f, -88.f, INFINITY, -INFINITY, NAN};
  for (size_t i = 0; i < std::size(special) && 7 * i < v.size(); ++i) v[7 * i] = special[i];
  return v;
}

}  // namespace

TEST_CASE("cuda: unary ops and activations against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (int op = 0; op <= static_cast<int>(UnaryOp::kFloor); ++op) {
    for (int64_t n : kSizes) {
      for (size_t shift : {0, 1}) {
        INFO("op " << op << " n " << n << " shift " << shift);
        std::vector<float> x = values_of(n, 1), want = nothing_yet(n);
        UnaryArgs a;
        a.out = want.data();
        a.x = x.data();
        a.n = n;
        a.op = static_cast<UnaryOp>(op);
        run_reference(KernelFamily::kUnary, Format::f32(), &a);
        DeviceArray in_place(x, shift);
        a.x = a.out = in_place.data();
        launch_on_device(KernelFamily::kUnary, "f32", &a);
        check_close(in_place.host(), want, [&](size_t i) {
          // exp's argument at most 88; gelu's and erfc's follow x^2 where the result is not 0.
          const double u = std::isfinite(x[i]) ? std::min(static_cast<double>(x[i]) * x[i], 200.0) : 0;
          return bound_of(want[i], u);
        });
      }
    }
  }
  for (int kind = 0; kind <= static_cast<int>(Epilogue::kGeluTanh); ++kind) {
    for (int64_t n : {5, 1024}) {
      INFO("activation " << kind << " n " << n);
      std::vector<float> x = values_of(n, 2), want = nothing_yet(n);
      for (float& v : x)
        if (std::isnan(v)) v = 0;  // a clamp of NaN is either bound
      ActivateArgs a;
      a.out = want.data();
      a.x = x.data();
      a.n = n;
      a.epilogue = static_cast<Epilogue>(kind);
      a.alpha = 0.2f;
      a.beta = 0.5f;
      run_reference(KernelFamily::kActivate, Format::f32(), &a);
      DeviceArray in(x), out(nothing_yet(n));
      a.x = in.data();
      a.out = out.data();
      launch_on_device(KernelFamily::kActivate, "f32", &a);
      check_close(out.host(), want, [&](size_t i) {
        const double u = std::isfinite(x[i]) ? std::min(static_cast<double>(x[i]) * x[i], 200.0) : 0;
        // alpha x + beta cancels: units of its terms, times what follows.
        const double terms = std::isfinite(x[i]) ? (std::fabs(0.2 * x[i]) + 0.5) * (1 + std::fabs(x[i])) : 0;
        return bound_of(want[i], u) + 4 * kUnit * terms;
      });
    }
  }
}

TEST_CASE("cuda: sines of angles near quarters of a turn, and of large ones", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<float> x;
  for (int k = 1; k < 1000; ++k) {
    const auto near = static_cast<float>(k * 1.5707963267948966);
    x.insert(x.end(), {near, std::nextafter(near, 0.f), -std::nextafter(near, INFINITY)});
  }
  for (int e = 10; e < 128; ++e) x.insert(x.end(), {std::ldexp(1.2345678f, e), -std::ldexp(1.9876543f, e)});
  for (const UnaryOp op : {UnaryOp::kSin, UnaryOp::kCos}) {
    INFO("op " << static_cast<int>(op));
    std::vector<float> want(x.size());
    UnaryArgs a;
    a.out = want.data();
    a.x = x.data();
    a.n = static_cast<int64_t>(x.size());
    a.op = op;
    run_reference(KernelFamily::kUnary, Format::f32(), &a);
    DeviceArray in_place(x);
    a.x = a.out = in_place.data();
    launch_on_device(KernelFamily::kUnary, "f32", &a);
    check_close(in_place.host(), want, [&](size_t i) { return bound_of(want[i]); });
  }
}

TEST_CASE("cuda: binary ops and every broadcast against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (int op = 0; op <= static_cast<int>(BinaryOp::kPow); ++op) {
    for (auto [rows, cols] :
         {std::pair<int64_t, int64_t>{0, 8}, {3, 0}, {1, 1}, {3, 5}, {2, 1024}, {3, 1028}}) {
      for (int broadcast = 0; broadcast < 4; ++broadcast) {
        INFO("op " << op << " " << rows << " x " << cols << " broadcast " << broadcast);
        BinaryArgs a;
        a.rows = rows;
        a.cols = cols;
        a.b_row = broadcast % 2;
        a.b_col = broadcast / 2;
        a.op = static_cast<BinaryOp>(op);
        std::vector<float> x = values_of(rows * cols, 3),
                           y = values_of((a.b_row != 0 ? rows : 1) * (a.b_col != 0 ? cols : 1), 4);
        std::vector<float> want = nothing_yet(rows * cols);
        a.out = want.data();
        a.a = x.data();
        a.b = y.data();
        run_reference(KernelFamily::kBinary, Format::f32(), &a);
        DeviceArray dx(x), dy(y), out(nothing_yet(rows * cols));
        a.out = out.data();
        a.a = dx.data();
        a.b = dy.data();
        launch_on_device(KernelFamily::kBinary, "f32", &a);
        check_close(out.host(), want, [&](size_t i) { return bound_of(want[i]); });
      }
    }
  }
}

TEST_CASE("cuda: gates against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (UnaryOp act : {UnaryOp::kSilu, UnaryOp::kGeluTanh}) {
    for (int64_t F : {1, 5, 256, 1028}) {
      for (int64_t pad : {0, 3}) {
        INFO("act " << static_cast<int>(act) << " F " << F << " pad " << pad);
        const int64_t T = 3, ld = F + pad;
        std::vector<float> gate = random_values(static_cast<size_t>(T * ld), Values::kNormal, 5),
                           up = random_values(gate.size(), Values::kNormal, 6), want(gate.size(), -7.f);
        SwiGluArgs a;
        a.out = want.data();
        a.gate = gate.data();
        a.up = up.data();
        a.T = T;
        a.F = F;
        a.ldo = a.ldg = a.ldu = ld;
        a.act = act;
        run_reference(KernelFamily::kSwiGlu, Format::f32(), &a);
        DeviceArray dg(gate), du(up), out(std::vector<float>(gate.size(), -7.f));
        a.out = out.data();
        a.gate = dg.data();
        a.up = du.data();
        launch_on_device(KernelFamily::kSwiGlu, "f32", &a);
        check_close(out.host(), want,
                    [&](size_t i) { return bound_of(want[i], static_cast<double>(gate[i]) * gate[i]); });
      }
    }
  }
}

TEST_CASE("cuda: gates that are sharper, clamped or offset, each alone and all", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const int64_t T = 3, F = 68;
  const std::vector<float> gate = random_values(static_cast<size_t>(T * F), Values::kNormal, 5),
                           up = random_values(gate.size(), Values::kNormal, 6);
  DeviceArray dg(gate), du(up);
  for (const auto& [alpha, limit, offset] :
       {std::array{1.702f, 0.f, 0.f}, {1.f, 0.5f, 0.f}, {1.f, 0.f, 1.f}, {1.702f, 0.5f, 1.f}}) {
    INFO("alpha " << alpha << " limit " << limit << " offset " << offset);
    std::vector<float> want(gate.size());
    SwiGluArgs a;
    a.out = want.data();
    a.gate = gate.data();
    a.up = up.data();
    a.T = T;
    a.F = a.ldo = a.ldg = a.ldu = F;
    a.alpha = alpha, a.limit = limit, a.up_offset = offset;
    run_reference(KernelFamily::kSwiGlu, Format::f32(), &a);
    DeviceArray out(std::vector<float>(gate.size(), -7.f));
    a.out = out.data();
    a.gate = dg.data();
    a.up = du.data();
    launch_on_device(KernelFamily::kSwiGlu, "f32", &a);
    // The exponent is a product more, and the offset a sum.
    check_close(out.host(), want, [&](size_t i) {
      const double g = std::fabs(static_cast<double>(gate[i]));
      return 2 * bound_of(want[i], g * g) + 64 * kUnit * g * (std::fabs(up[i]) + 1);
    });
  }
}

TEST_CASE("cuda: softmax against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (int64_t n : {1, 3, 255, 257, 2000}) {
    for (int64_t mask_row : {int64_t{-1}, int64_t{0}, n}) {
      INFO("n " << n << " mask " << mask_row);
      const int64_t rows = 3;
      std::vector<float> x = random_values(static_cast<size_t>(rows * n), Values::kNormal, 7),
                         mask = random_values(static_cast<size_t>(rows * n), Values::kNormal, 8), want = x;
      for (size_t i = 1; i < mask.size(); i += 3) mask[i] = -INFINITY;
      SoftmaxArgs a;
      a.out = want.data();
      a.x = x.data();
      a.mask = mask_row >= 0 ? mask.data() : nullptr;
      a.rows = rows;
      a.n = n;
      a.mask_row = mask_row >= 0 ? mask_row : n;  // of no mask nobody reads it
      a.scale = 3.f;
      DeviceArray in_place(x), dmask(mask);
      std::vector<float> out = nothing_yet(rows * n);
      a.out = out.data();
      run_reference(KernelFamily::kSoftmax, Format::f32(), &a);
      a.x = a.out = in_place.data();
      a.mask = mask_row >= 0 ? dmask.data() : nullptr;
      launch_on_device(KernelFamily::kSoftmax, "f32", &a);
      // The exponent is at most 30 (scores of 3 N(0, 1) and a mask); a sum of n terms has n / 256 + 13
      // roundings.
      check_close(in_place.host(), out,
                  [&](size_t i) { return bound_of(out[i], 30 + static_cast<double>(n) / 256); });
    }
  }
}
