// Convolution, depthwise convolution and pooling: every level against the double reference, operands ending
// at guard pages; values must not depend on the chunks or the workers.
#include "kernels/conv.h"

#include <algorithm>
#include <cmath>

#include "tests/kernels/matmul_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Case {
  int64_t N, C, H, W, M, KH, KW, stride, pad, dilation, groups;
  bool planar = false;
  Epilogue epilogue = Epilogue::kNone;
  bool residual = false;
};

WindowShape window_of(const Case& c) {
  WindowShape w;
  w.N = c.N, w.H = c.H, w.W = c.W, w.KH = c.KH, w.KW = c.KW;
  w.stride_h = w.stride_w = c.stride;
  w.dilation_h = w.dilation_w = c.dilation;
  w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = c.pad;
  w.OH = (c.H + 2 * c.pad - (c.KH - 1) * c.dilation - 1) / c.stride + 1;
  w.OW = (c.W + 2 * c.pad - (c.KW - 1) * c.dilation - 1) / c.stride + 1;
  return w;
}

Guarded<float> guarded(const std::vector<float>& v) {
  Guarded<float> g(v.size());
  std::copy(v.begin(), v.end(), g.begin());
  return g;
}
std::vector<float> magnitudes(std::vector<float> v) {
  for (float& x : v) x = std::fabs(x);
  return v;
}

// Runs on a pool, or chunk by chunk backwards on one thread.
void run(const Kernel& k, const void* args, ThreadPool* pool) {
  KernelPlan plan;
  k.plan(args, pool ? pool->workers() : 1, &plan);
  // 64-byte aligned as the contract says, filled with NaN: contents are undefined on entry.
  std::vector<float> shared(plan.shared_scratch / 4 + 32, NAN), own(plan.worker_scratch / 4 + 32, NAN);
  const auto align = [](std::vector<float>& v) {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(v.data()) + 63) / 64 * 64);
  };
  if (pool) {
    pool->reserve_scratch(plan.worker_scratch);
    return pool->run(k, args, plan, align(shared));
  }
  for (int phase = 0; phase < plan.phases; ++phase) {
    for (int64_t c = plan.chunks[phase]; c-- > 0;) k.run(args, phase, c, c + 1, {align(own), align(shared)});
  }
}

const Kernel& kernel(KernelFamily family, Isa isa) {
  const Kernel* k = KernelRegistry::cpu().find({family, Format::f32()}, isa);
  REQUIRE(k != nullptr);
  return *k;
}

class ConvProblem {
 public:
  ConvProblem(const Case& c, Values values) : c_(c) {
    const int64_t per = c.C / c.groups, taps = c.KH * c.KW;
    const WindowShape w = window_of(c);
    x_ = random_values(static_cast<size_t>(c.N * c.C * c.H * c.W), values, 1);
    w_ = random_values(static_cast<size_t>(c.M * per * taps), values, 2);
    bias_ = random_values(static_cast<size_t>(c.M), values, 3);
    residual_ = random_values(static_cast<size_t>(c.N * w.OH * w.OW * c.M), values, 4);
  }
  std::vector<float> result(Isa isa, ThreadPool* pool, bool absolute = false,
                            KernelFamily family = KernelFamily::kConv) const {
    const auto of = [&](const std::vector<float>& v) { return guarded(absolute ? magnitudes(v) : v); };
    const Guarded<float> x = of(x_), bias = of(bias_), residual = of(residual_);
    const std::vector<float> w = absolute ? magnitudes(w_) : w_;
    const int64_t per = c_.C / c_.groups, taps = c_.KH * c_.KW;
    ConvArgs a;
    a.panel = panel_width(isa);
    Guarded<float> packed(static_cast<size_t>(packed_filter_floats(c_.M, c_.groups, taps, per, a.panel)), 64);
    pack_filters(packed.data(), w.data(), c_.M, c_.groups, taps, per, per * taps, taps, 1, a.panel);
    if (family == KernelFamily::kWinograd) {
      packed = Guarded<float>(static_cast<size_t>(winograd_filter_floats(c_.M, c_.C, a.panel)), 64);
      pack_winograd(packed.data(), w.data(), c_.M, c_.C, a.panel);
    }
    Guarded<float> out(residual_.size());
    a.out = out.data(), a.x = x.data(), a.w = packed.data(), a.bias = bias.data();
    a.residual = c_.residual ? residual.data() : nullptr;
    a.window = window_of(c_);
    a.C = a.ldx = c_.C, a.M = a.ldo = c_.M, a.groups = c_.groups;
    a.planar = c_.planar;
    if (!absolute) a.epilogue = c_.epilogue, a.alpha = alpha(), a.beta = beta();
    run(kernel(family, isa), &a, pool);
    return {out.begin(), out.end()};
  }
  int64_t terms() const { return c_.C / c_.groups * c_.KH * c_.KW; }
  // Leaves the filters their middle alone; the rest is no number.
  void keep_middle() {
    const auto taps = static_cast<size_t>(c_.KH * c_.KW);
    for (size_t i = 0; i < w_.size(); ++i)
      if (i % taps != taps / 2) w_[i] = NAN;
  }

 private:
  float alpha() const { return c_.epilogue == Epilogue::kClamp ? 0.f : 1.f / 6; }
  float beta() const { return c_.epilogue == Epilogue::kClamp ? 6.f : 0.5f; }
  Case c_;
  std::vector<float> x_, w_, bias_, residual_;
};

const Case kCases[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1},
    {1, 16, 7, 7, 16, 1, 1, 1, 0, 1, 1},
    {2, 33, 5, 9, 67, 1, 1, 1, 0, 1, 1},
    {1, 64, 14, 13, 64, 3, 3, 1, 1, 1, 1, false, Epilogue::kClamp},
    {2, 20, 11, 8, 24, 3, 3, 2, 1, 1, 1, false, Epilogue::kHardSwish, true},
    {1, 8, 9, 9, 100, 5, 3, 1, 2, 2, 1, false, Epilogue::kSilu},
    {1, 3, 23, 21, 40, 7, 7, 2, 3, 1, 1, true, Epilogue::kClamp},
    {2, 3, 12, 10, 17, 3, 3, 2, 1, 1, 1, false},
    {1, 5, 8, 8, 9, 3, 3, 1, 1, 2, 1, true, Epilogue::kLeakyRelu},
    {1, 24, 6, 6, 36, 3, 3, 1, 1, 1, 3, false, Epilogue::kSigmoid, true},
    {1, 24, 6, 6, 36, 3, 3, 1, 1, 1, 3, true, Epilogue::kTanh},
    {1, 4, 6, 6, 8, 3, 3, 1, 1, 1, 4},
    // Groups that share panels: four outputs each, the last panel in part; two of one input; each its own;
    // 1x1.
    {1, 40, 9, 7, 40, 3, 3, 1, 1, 1, 10, false, Epilogue::kSilu, true},
    {2, 24, 11, 8, 48, 7, 7, 2, 3, 1, 24, false, Epilogue::kGelu},
    {1, 12, 6, 5, 24, 3, 3, 1, 2, 2, 6, true, Epilogue::kClamp},
    {1, 20, 5, 5, 20, 3, 3, 1, 1, 1, 20},
    {2, 64, 5, 6, 64, 1, 1, 1, 0, 1, 8, false, Epilogue::kNone, true},
    {1, 32, 5, 5, 16, 3, 3, 1, 1, 1, 4},
    {1, 12, 2, 2, 20, 3, 3, 1, 1, 1, 1, false, Epilogue::kGelu, true},
    {1, 4, 3, 3, 4, 3, 3, 1, 4, 1, 1, false, Epilogue::kGeluTanh},       // windows wholly in the padding
    {2, 24, 9, 8, 36, 3, 3, 1, 6, 6, 1, false, Epilogue::kClamp, true},  // most of a window, for most pixels
    {1, 600, 1, 37, 150, 1, 1, 1, 0, 1, 1},                              // a matrix product
    {9, 290, 10, 9, 470, 1, 1, 1, 0, 1, 1, false, Epilogue::kGelu, true},  // a large one
    {1, 8200, 1, 3, 20, 1, 1, 1, 0, 1, 1, false, Epilogue::kClamp, true},  // the sum in parts
    {1, 1030, 3, 3, 70, 3, 3, 1, 1, 1, 1, false, Epilogue::kHardSigmoid},  // the same, by taps
};

}  // namespace

TEST_CASE("conv: equals the reference") {
  ThreadPool pool({.threads = 3});
  oar_test::Sample sample(3);
  for (const Case& c : kCases) {
    if (!sample.take()) continue;
    const ConvProblem p(c, Values::kNormal);
    const auto exact = p.result(Isa::kReference, nullptr), sizes = p.result(Isa::kReference, nullptr, true);
    for (Isa isa : levels()) {
      const auto got = p.result(isa, &pool);
      for (size_t i = 0; i < got.size(); ++i) {
        // A sum of K products in any order errs by at most (K + 2) eps/2 times the sum of magnitudes; no
        // epilogue here is steeper than 1.13 (gelu), and the transcendental ones add a few ulp.
        const double bound =
            1.13 * static_cast<double>(p.terms() + 3) * 6e-8 * static_cast<double>(sizes[i]) +
            8 * 6e-8 * std::fabs(static_cast<double>(exact[i])) + 1e-37;
        INFO(isa_name(isa) << " C " << c.C << " M " << c.M << " K " << c.KH << " at " << i);
        REQUIRE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(exact[i])) <= bound);
      }
      CHECK(p.result(isa, nullptr) == got);
    }
  }
}

// Such windows come with DeepLab and its kin: all taps but the middle one would be weights read and
// multiplied for nothing.
TEST_CASE("conv: a window dilated beyond the image takes its middle alone") {
  ConvProblem p({1, 40, 8, 8, 36, 3, 3, 1, 12, 12, 1}, Values::kNormal);
  p.keep_middle();
  for (Isa isa : levels()) {
    INFO(isa_name(isa));
    const auto got = p.result(isa, nullptr);
    CHECK(std::all_of(got.begin(), got.end(), [](float v) { return std::isfinite(v); }));
  }
}

// Winograd's sums err by the rounding of 36 products per output whose factors the transforms have scaled by
// up to 4.5 x 4.5 and 8.2 x 8.2 (row sums of |B^T| and |A^T|, each applied twice), mostly cancelling.
// Relative to the largest sum of magnitudes in reach a dozen roundings are seen; 60 is asked for.
TEST_CASE("winograd: equals the reference convolution") {
  ThreadPool pool({.threads = 3});
  const Case cases[] = {
      {1, 16, 4, 4, 16, 3, 3, 1, 1, 1, 1},
      {1, 1, 1, 1, 1, 3, 3, 1, 1, 1, 1},
      {2, 33, 9, 11, 67, 3, 3, 1, 1, 1, 1, false, Epilogue::kClamp, true},
      {1, 64, 14, 13, 100, 3, 3, 1, 0, 1, 1, false, Epilogue::kHardSwish},
      {3, 20, 5, 6, 24, 3, 3, 1, 2, 1, 1, false, Epilogue::kNone, true},
      {1, 130, 28, 28, 40, 3, 3, 1, 1, 1, 1, false, Epilogue::kSilu},
      {1, 90, 81, 83, 20, 3, 3, 1, 1, 1, 1, false, Epilogue::kHardSwish, true},  // in strips
  };
  oar_test::Sample sample(2);
  for (const Case& c : cases) {
    if (!sample.take()) continue;
    const ConvProblem p(c, Values::kNormal);
    const auto exact = p.result(Isa::kReference, nullptr), sizes = p.result(Isa::kReference, nullptr, true);
    const double largest = static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
    for (Isa isa : levels()) {
      if (!KernelRegistry::cpu().find({KernelFamily::kWinograd, Format::f32()}, isa)) continue;
      const auto got = p.result(isa, &pool, false, KernelFamily::kWinograd);
      for (size_t i = 0; i < got.size(); ++i) {
        INFO(isa_name(isa) << " C " << c.C << " M " << c.M << " at " << i);
        REQUIRE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(exact[i])) <=
                60 * 6e-8 * largest);
      }
      CHECK(p.result(isa, nullptr, false, KernelFamily::kWinograd) == got);
    }
  }
}

TEST_CASE("winograd: strips of tiles have the bits of a whole image") {
  ThreadPool pool({.threads = 3});
  const Case batch{5, 90, 42, 40, 20, 3, 3, 1, 1, 1, 1};
  Case one = batch;
  one.N = 1;
  for (Isa isa : levels()) {
    const Kernel* kernel = KernelRegistry::cpu().find({KernelFamily::kWinograd, Format::f32()}, isa);
    if (!kernel) continue;
    const auto all = ConvProblem(batch, Values::kNormal).result(isa, &pool, false, KernelFamily::kWinograd);
    const auto alone = ConvProblem(one, Values::kNormal).result(isa, nullptr, false, KernelFamily::kWinograd);
    INFO(kernel->name);
    CHECK(std::equal(alone.begin(), alone.end(), all.begin()));
  }
}

TEST_CASE("conv: an image alone equals an image in a batch, bit for bit") {
  ThreadPool pool({.threads = 3});
  // The second batch has so many pixels and filters that it divides in another way than its first image.
  const Case batches[] = {{3, 19, 9, 11, 70, 3, 3, 1, 1, 1, 1}, {9, 290, 10, 9, 470, 1, 1, 1, 0, 1, 1}};
  for (Isa isa : levels()) {
    for (const Case& batch : batches) {
      const auto all = ConvProblem(batch, Values::kNormal).result(isa, &pool);
      Case one = batch;
      one.N = 1;
      // Generators are prefix-stable, so the first image and the filters are the same.
      const auto alone = ConvProblem(one, Values::kNormal).result(isa, nullptr);
      CHECK(std::equal(alone.begin(), alone.end(), all.begin()));
    }
  }
}

TEST_CASE("conv: output rows may lie apart") {
  for (Isa isa : levels()) {
    const int64_t C = 6, M = 10, H = 4, W = 5, gap = 7;
    ConvArgs a;
    a.panel = panel_width(isa);
    const auto x = random_values(static_cast<size_t>(C * H * W), Values::kIntegers, 1);
    const auto w = random_values(static_cast<size_t>(C * M), Values::kIntegers, 2);
    Guarded<float> packed(static_cast<size_t>(packed_filter_floats(M, 1, 1, C, a.panel)), 64);
    pack_filters(packed.data(), w.data(), M, 1, 1, C, 1, M, 0, a.panel);  // w is (C, M)
    std::vector<float> out(static_cast<size_t>(H * (W * M + gap)), -1.f);
    a.x = x.data(), a.w = packed.data(), a.out = out.data();
    a.window.N = 1, a.window.H = a.window.OH = H, a.window.W = a.window.OW = W;
    a.C = a.ldx = C, a.M = a.ldo = M, a.out_row = W * M + gap;
    run(kernel(KernelFamily::kConv, isa), &a, nullptr);
    for (int64_t y = 0; y < H; ++y) {
      for (int64_t k = 0; k < W * M + gap; ++k) {
        double want = k < W * M ? 0 : -1;
        for (int64_t c = 0; k < W * M && c < C; ++c) {
          want += static_cast<double>(x[static_cast<size_t>((y * W + k / M) * C + c)]) *
                  static_cast<double>(w[static_cast<size_t>(c * M + k % M)]);
        }
        REQUIRE(static_cast<double>(out[static_cast<size_t>(y * a.out_row + k)]) == want);
      }
    }
  }
}

TEST_CASE("depthwise: equals the reference") {
  ThreadPool pool({.threads = 3});
  const Case cases[] = {{1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0},
                        {2, 35, 9, 11, 0, 3, 3, 1, 1, 1, 0, false, Epilogue::kClamp},
                        {1, 16, 12, 13, 0, 3, 3, 2, 1, 1, 0},
                        {1, 70, 10, 14, 0, 5, 5, 1, 2, 1, 0, false, Epilogue::kHardSwish, true},
                        {1, 9, 15, 15, 0, 5, 5, 2, 2, 1, 0},
                        {1, 20, 16, 16, 0, 7, 7, 1, 3, 1, 0, false, Epilogue::kSilu},
                        {1, 8, 9, 9, 0, 3, 3, 1, 2, 2, 0},
                        {1, 17, 2, 2, 0, 5, 5, 1, 2, 1, 0},
                        {1, 17, 2, 3, 0, 3, 3, 1, 4, 1, 0}};
  for (const Case& c : cases) {
    DepthwiseArgs a;
    a.window = window_of(c);
    const auto x = guarded(random_values(static_cast<size_t>(c.N * c.C * c.H * c.W), Values::kNormal, 1));
    const auto w = guarded(random_values(static_cast<size_t>(c.C * c.KH * c.KW), Values::kNormal, 2));
    const auto bias = guarded(random_values(static_cast<size_t>(c.C), Values::kNormal, 3));
    const auto n = static_cast<size_t>(c.N * a.window.OH * a.window.OW * c.C);
    const auto residual = guarded(random_values(n, Values::kNormal, 4));
    a.x = x.data(), a.w = w.data(), a.bias = bias.data(), a.C = c.C;
    if (c.residual) a.residual = residual.data();
    a.epilogue = c.epilogue;
    a.alpha = c.epilogue == Epilogue::kClamp ? 0.f : 1.f / 6;
    a.beta = c.epilogue == Epilogue::kClamp ? 6.f : 0.5f;
    Guarded<float> exact(n);
    a.out = exact.data();
    run(kernel(KernelFamily::kDepthwise, Isa::kReference), &a, nullptr);
    for (Isa isa : levels()) {
      Guarded<float> got(n), again(n);
      a.out = got.data();
      run(kernel(KernelFamily::kDepthwise, isa), &a, &pool);
      a.out = again.data();
      run(kernel(KernelFamily::kDepthwise, isa), &a, nullptr);
      CHECK(std::equal(got.begin(), got.end(), again.begin()));
      for (size_t i = 0; i < n; ++i) {
        // At most 49 products of two normals, each below 5 x 5, and as for conv above.
        const double bound = 51 * 6e-8 * 60 + 8 * 6e-8 * std::fabs(static_cast<double>(exact[i]));
        INFO(isa_name(isa) << " C " << c.C << " K " << c.KH << " at " << i);
        REQUIRE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(exact[i])) <= bound);
      }
    }
  }
}

TEST_CASE("pool: equals the reference, NaN passes a maximum") {
  ThreadPool pool({.threads = 3});
  const Case cases[] = {{1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0},     {2, 35, 9, 11, 0, 3, 3, 2, 1, 1, 0},
                        {1, 64, 8, 8, 0, 2, 2, 2, 0, 1, 0},    {1, 300, 7, 7, 0, 7, 7, 1, 0, 1, 0},
                        {1, 5, 6, 6, 0, 3, 3, 1, 1, 2, 0},     {3, 530, 3, 5, 0, 3, 5, 1, 0, 1, 0},
                        {2, 37, 40, 41, 0, 40, 41, 1, 0, 1, 0}};
  for (const Case& c : cases) {
    for (int way = 0; way < 6; ++way) {
      const int mode = way % 3;
      PoolArgs a;
      a.window = window_of(c);
      a.op = mode == 0 ? PoolOp::kMax : PoolOp::kAverage;
      a.count_pads = mode == 2;
      a.planar = way / 3;
      a.C = c.C;
      auto x = guarded(random_values(static_cast<size_t>(c.N * c.C * c.H * c.W), Values::kNormal, 1));
      if (mode == 0) x[0] = NAN;
      const auto n = static_cast<size_t>(c.N * a.window.OH * a.window.OW * c.C);
      Guarded<float> exact(n), got(n);
      a.x = x.data(), a.out = exact.data();
      run(kernel(KernelFamily::kPool, Isa::kReference), &a, nullptr);
      for (Isa isa : levels()) {
        a.out = got.data();
        run(kernel(KernelFamily::kPool, isa), &a, &pool);
        for (size_t i = 0; i < n; ++i) {
          if (std::isnan(exact[i])) {
            REQUIRE(std::isnan(got[i]));
            continue;
          }
          INFO(isa_name(isa) << (a.planar ? " planes" : "") << " C " << c.C << " at " << i);
          // Means of values below 5, in chains of at most 49 additions, or 52 where bands of an image are
          // added; planes have 81, of magnitudes that are below 1 on average.
          REQUIRE(std::fabs(got[i] - exact[i]) <= (mode == 0 ? 0.f : 64 * 6e-8f * 5));
        }
      }
    }
  }
}

TEST_CASE("softmax: probabilities are never subnormal") {
  const int64_t n = 301;  // logits 0, -0.4, ... -120
  auto x = guarded(std::vector<float>(static_cast<size_t>(n)));
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = -0.4f * static_cast<float>(i);
  Guarded<float> got(x.size());
  SoftmaxArgs a;
  a.rows = 1, a.n = n, a.scale = 1, a.x = x.data(), a.out = got.data();
  for (Isa isa : levels()) {
    INFO(isa_name(isa));
    run(kernel(KernelFamily::kSoftmax, isa), &a, nullptr);
    for (float p : got) REQUIRE((p == 0 || std::isnormal(p)));
    CHECK(got[170] > 0);  // e^-68
    CHECK(got[175] == 0);
  }
}

TEST_CASE("softmax: equals the reference, with scale and mask") {
  ThreadPool pool({.threads = 3});
  for (int64_t n : {1, 5, 16, 17, 100, 1000}) {
    for (int mode = 0; mode < 3; ++mode) {  // no mask, one row for all, a row each
      SoftmaxArgs a;
      a.rows = 37, a.n = n, a.scale = 0.3f, a.mask_row = mode == 2 ? n : 0;
      const auto x = guarded(random_values(static_cast<size_t>(a.rows * n), Values::kNormal, 1));
      auto mask = guarded(random_values(static_cast<size_t>(mode == 2 ? a.rows * n : n), Values::kNormal, 2));
      if (n > 1) mask[0] = -INFINITY;
      Guarded<float> exact(x.size()), got(x.size());
      a.x = x.data(), a.mask = mode == 0 ? nullptr : mask.data(), a.out = exact.data();
      run(kernel(KernelFamily::kSoftmax, Isa::kReference), &a, nullptr);
      for (Isa isa : levels()) {
        a.out = got.data();
        run(kernel(KernelFamily::kSoftmax, isa), &a, &pool);
        for (size_t i = 0; i < got.size(); ++i) {
          // exp() errs by 2 ulp and by the rounding of its argument, below 8 eps here; the sum by n / lanes
          // eps.
          const double bound =
              (12 + static_cast<double>(n) / 4) * 6e-8 * static_cast<double>(exact[i]) + 1e-38;
          INFO(isa_name(isa) << " n " << n << " at " << i);
          REQUIRE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(exact[i])) <= bound);
        }
      }
    }
  }
}
