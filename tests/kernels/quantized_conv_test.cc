// Convolution of 8-bit integers: every level equals the reference to the bit, operands ending at guard pages,
// whatever the chunks. Of bf16: within the rounding of its sums.
#include "kernels/quantized_conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/kernels/matmul_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr auto kU8 = QuantizedOut::kU8;

struct QuantizedCase {
  int64_t N, C, H, W, M, KH, KW, stride, pad, dilation;
  bool x_signed;
  QuantizedOut out;
  bool bias, shift;
  bool sum = false, other_signed = false;
  bool empty_padding =
      false;  // the zero point is the lowest number: padding adds nothing, and may be skipped
};

template <class T>
Guarded<T> random_integers(size_t n, int low, int high, uint32_t seed, size_t align = 1) {
  std::mt19937 gen(seed);
  std::uniform_int_distribution<int> u(low, high);
  Guarded<T> g(n, align);
  for (size_t i = 0; i < n; ++i) g[i] = static_cast<T>(u(gen));
  return g;
}

class QuantizedProblem {
 public:
  explicit QuantizedProblem(const QuantizedCase& c)
      : x_(random_integers<uint8_t>(static_cast<size_t>(c.N * c.C * c.H * c.W), 0, 255, 1)),
        bias_(random_integers<int32_t>(static_cast<size_t>(c.M), -5000, 5000, 3, alignof(int32_t))),
        packed_(static_cast<size_t>(quantized_filter_bytes(c.M, c.C * c.KH * c.KW)), 64),
        sums_(static_cast<size_t>(c.M)),
        scale_(static_cast<size_t>(c.M)),
        shift_(static_cast<size_t>(c.M)) {
    a_.size = sizeof(QuantizedConvArgs);  // but for run()
    const int64_t taps = c.KH * c.KW;
    const auto w = random_integers<int8_t>(static_cast<size_t>(c.M * c.C * taps), -128, 127, 2);
    pack_quantized_filters(packed_.data(), sums_.data(), w.data(), c.M, taps, c.C, c.C * taps, 1, taps);
    for (size_t m = 0; m < scale_.size(); ++m) {
      // Sums spread over some ten times the range of a byte: many results, some at the bounds.
      scale_[m] = 0.02f / std::sqrt(static_cast<float>(c.C * taps)) * (1 + 0.01f * static_cast<float>(m));
      shift_[m] = 0.37f * static_cast<float>(m % 7);
    }
    WindowShape& v = a_.window;
    v.N = c.N, v.H = c.H, v.W = c.W, v.KH = c.KH, v.KW = c.KW;
    v.stride_h = v.stride_w = c.stride, v.dilation_h = v.dilation_w = c.dilation;
    v.pad_top = v.pad_left = v.pad_bottom = v.pad_right = c.pad;
    v.OH = (c.H + 2 * c.pad - (c.KH - 1) * c.dilation - 1) / c.stride + 1;
    v.OW = (c.W + 2 * c.pad - (c.KW - 1) * c.dilation - 1) / c.stride + 1;
    a_.x = x_.data(), a_.w = packed_.data(), a_.w_sums = sums_.data();
    a_.bias = c.bias ? bias_.data() : nullptr;
    a_.scale = scale_.data(), a_.shift = c.shift ? shift_.data() : nullptr;
    a_.C = c.C, a_.M = c.M;
    a_.x_signed = c.x_signed, a_.x_zero = c.x_signed ? -7 : 121;
    if (c.empty_padding) a_.x_zero = c.x_signed ? -128 : 0;
    a_.out_type = c.out;
    a_.y_zero = c.out == QuantizedOut::kU8 ? 100 : c.out == QuantizedOut::kI8 ? -20 : 0;
    a_.low = c.out == QuantizedOut::kU8 ? -100.f : c.out == QuantizedOut::kI8 ? -108.f : -3.5f;
    a_.high = c.out == QuantizedOut::kF32 ? 1e6f : a_.low + 255;
    if (c.sum) {
      other_ = random_integers<uint8_t>(static_cast<size_t>(v.N * v.OH * v.OW * c.M), 0, 255, 9);
      a_.sum.other = other_.data(), a_.sum.other_signed = c.other_signed;
      a_.sum.scale = 0.031f, a_.sum.other_scale = 0.027f, a_.sum.other_zero = c.other_signed ? -5.f : 110.f;
      a_.sum.sum_scale = 0.05f, a_.sum.zero = c.out == kU8 ? 90 : -30;
      a_.sum.low = c.out == kU8 ? -90.f : -98.f, a_.sum.high = a_.sum.low + 255;
      // Every other quotient lies between two integers.
      if (c.M == 40) a_.sum.scale = a_.sum.other_scale = 0.25f, a_.sum.sum_scale = 0.5f;
      if (c.M == 77) a_.sum.scale = -0.031f;  // odd, but nothing forbids it
    }
    width_ = c.out == QuantizedOut::kF32 || c.out == QuantizedOut::kI32 ? 4 : 1;
  }

  // Bytes of the whole range behind an activation.
  void end_with(Epilogue e) {
    a_.epilogue = e, a_.alpha = 1.f / 6, a_.beta = 0.5f, a_.y_inverse = 0.7f;
    a_.low = a_.out_type == kU8 ? static_cast<float>(-a_.y_zero) : static_cast<float>(-128 - a_.y_zero);
    a_.high = a_.low + 255;
  }

  // What a run brings: the operand's scale and zero point, and weights with zero points.
  void run(bool scaled, bool zeros) {
    a_.size = sizeof(RunConvArgs);
    run_zero_ = static_cast<uint8_t>(a_.x_zero + 3);  // and what the arguments say is not read
    a_.run_zero = &run_zero_;
    if (scaled) a_.run_scale = &run_scale_;
    w_zeros_ = random_integers<int32_t>(scale_.size(), -255, 255, 7, alignof(int32_t));
    if (zeros) a_.w_zeros = w_zeros_.data();
  }

  std::vector<uint8_t> result(Isa isa, ThreadPool* pool) const {
    const Kernel* k = KernelRegistry::cpu().find(int8_conv_key(), isa);
    REQUIRE(k != nullptr);
    RunConvArgs a = a_;
    const WindowShape& v = a.window;
    Guarded<uint8_t> out(static_cast<size_t>(v.N * v.OH * v.OW * a.M * width_), 4);
    a.out = out.data();
    // The other operand may be the result's own memory.
    if (a.sum.other) std::copy(other_.begin(), other_.end(), out.begin()), a.sum.other = out.data();
    if (pool) run_on_pool(*pool, *k, &a);
    else run_in_steps(*k, &a, 1, true);
    return {out.begin(), out.end()};
  }

 private:
  RunConvArgs a_;
  float run_scale_ = 0.37f;
  uint8_t run_zero_ = 0;
  Guarded<uint8_t> x_, other_;
  Guarded<int32_t> bias_, w_zeros_;
  Guarded<int8_t> packed_;
  std::vector<int32_t> sums_;
  std::vector<float> scale_, shift_;
  int64_t width_ = 1;
};

const QuantizedCase kQuantizedCases[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0, 1, false, kU8, false, false},
    {1, 64, 7, 7, 16, 1, 1, 1, 0, 1, false, kU8, true, false},
    {2, 128, 9, 5, 70, 1, 1, 1, 0, 1, true, QuantizedOut::kI8, true, true},
    {1, 3, 23, 21, 40, 7, 7, 2, 3, 1, false, kU8, true, false},
    {2, 20, 11, 8, 24, 3, 3, 2, 1, 1, true, kU8, false, true},
    {1, 64, 14, 13, 100, 3, 3, 1, 1, 1, false, QuantizedOut::kI8, true, false},
    {1, 33, 8, 8, 19, 3, 3, 1, 2, 2, false, QuantizedOut::kF32, true, true},
    {1, 5, 6, 6, 33, 3, 2, 1, 3, 1, true, QuantizedOut::kI32, false, false},  // windows wholly in the padding
    {1, 770, 1, 37, 50, 1, 1, 1, 0, 1, false, QuantizedOut::kF32, false, false},  // a matrix product
    {1, 64, 40, 41, 130, 1, 1, 1, 0, 1, false, kU8, true, false},
    {2, 64, 9, 9, 40, 1, 1, 1, 0, 1, false, kU8, true, false, true, false},
    {1, 20, 9, 7, 19, 3, 3, 1, 1, 1, true, QuantizedOut::kI8, true, true, true, true},
    {2, 64, 8, 7, 77, 3, 3, 1, 1, 1, false, kU8, true, false, false, false, true},
    {1, 64, 8, 7, 77, 3, 3, 1, 1, 1, true, QuantizedOut::kI8, true, false, true, true, true},
    {1, 512, 7, 7, 128, 3, 3, 1, 1, 1, false, kU8, true, false, false, false, true},  // many filters
    {1, 4160, 5, 7, 140, 1, 1, 1, 0, 1, false, kU8, true, false},                     // also where rows lie
    {1, 4, 64, 66, 130, 1, 1, 1, 0, 1, false, kU8, true, false, true, false},  // a sum larger than the cache
};

}  // namespace

TEST_CASE("quantized conv: every level gives the reference's bits") {
  ThreadPool pool({.threads = 3});
  for (const QuantizedCase& c : kQuantizedCases) {
    const QuantizedProblem p(c);
    const auto exact = p.result(Isa::kReference, nullptr);
    for (Isa isa : levels()) {
      INFO(isa_name(isa) << " C " << c.C << " M " << c.M << " K " << c.KH);
      CHECK(p.result(isa, &pool) == exact);
      CHECK(p.result(isa, nullptr) == exact);
    }
  }
}

TEST_CASE("quantized conv: scales and zero points that a run brings") {
  ThreadPool pool({.threads = 3});
  oar_test::Sample sample(3);
  for (QuantizedCase c : kQuantizedCases) {
    for (const QuantizedOut out :
         {QuantizedOut::kF32, QuantizedOut::kI32, QuantizedOut::kU8, QuantizedOut::kI8}) {
      if (c.sum && out != kU8 && out != QuantizedOut::kI8) continue;
      if (!c.sum && out != QuantizedOut::kF32 && !sample.take()) continue;
      for (const bool zeros : {false, true}) {
        c.out = out;
        QuantizedProblem p(c);
        p.run(out == QuantizedOut::kF32, zeros);
        const auto exact = p.result(Isa::kReference, nullptr);
        CHECK(exact != QuantizedProblem(c).result(Isa::kReference, nullptr));
        for (Isa isa : levels()) {
          INFO(isa_name(isa) << " C " << c.C << " M " << c.M << " K " << c.KH << " zeros " << zeros);
          CHECK(p.result(isa, &pool) == exact);
          CHECK(p.result(isa, nullptr) == exact);
        }
      }
    }
  }
}

namespace {

// Functions differ in the last places between instruction sets, so that a value at the border of two steps
// may fall to either: at most one step, for at most one value of a hundred (and one more).
void check_steps(const std::vector<uint8_t>& y, const std::vector<uint8_t>& wanted, bool is_signed) {
  REQUIRE(y.size() == wanted.size());
  size_t moved = 0;
  for (size_t k = 0; k < y.size(); ++k) {
    const auto whole = [&](uint8_t v) {
      return is_signed ? static_cast<int>(static_cast<int8_t>(v)) : int{v};
    };
    REQUIRE(std::abs(whole(y[k]) - whole(wanted[k])) <= 1);
    moved += y[k] != wanted[k];
  }
  CHECK(moved <= 1 + y.size() / 100);
}

}  // namespace

TEST_CASE("quantized conv: bytes behind an activation") {
  ThreadPool pool({.threads = 3});
  oar_test::Sample sample(5);
  for (const QuantizedCase& c : kQuantizedCases) {
    if (c.sum || (c.out != kU8 && c.out != QuantizedOut::kI8)) continue;
    for (const Epilogue e : {Epilogue::kHardSwish, Epilogue::kGelu, Epilogue::kSigmoid}) {
      if (!sample.take()) continue;
      QuantizedProblem p(c);
      p.end_with(e);
      const auto wanted = p.result(Isa::kReference, nullptr);
      for (Isa isa : levels()) {
        INFO(isa_name(isa) << " C " << c.C << " M " << c.M << " K " << c.KH << " activation "
                           << static_cast<int>(e));
        const auto y = p.result(isa, nullptr);
        CHECK(p.result(isa, &pool) == y);
        check_steps(y, wanted, c.out == QuantizedOut::kI8);
      }
    }
  }
}

TEST_CASE("quantized conv: the reference is the definition, worked out by hand") {
  // x = 10 and 200 with zero point 10: 0 and 190; w = 3 and -2: a sum of -380, and 7 more.
  const uint8_t x[] = {10, 200};
  const int8_t w[] = {3, -2};
  alignas(64) int8_t packed[16 * 64];
  int32_t sum = 0;
  REQUIRE(quantized_filter_bytes(1, 2) == 16 * 64);
  pack_quantized_filters(packed, &sum, w, 1, 1, 2, 2, 0, 1);
  CHECK(sum == 1);
  const int32_t bias = 7;
  const float scale = 0.5f;
  uint8_t y = 0;
  QuantizedConvArgs a;
  a.out = &y, a.x = x, a.w = packed, a.w_sums = &sum, a.bias = &bias, a.scale = &scale;
  a.window.N = a.window.H = a.window.W = a.window.OH = a.window.OW = 1;
  a.C = 2, a.M = 1, a.x_zero = 10, a.y_zero = 200, a.low = -200, a.high = 55;
  std::vector<Isa> all = levels();
  all.push_back(Isa::kReference);
  for (Isa isa : all) {
    alignas(64) uint8_t own[1 << 16];
    y = 0;
    const Kernel* k = KernelRegistry::cpu().find(int8_conv_key(), isa);
    k->run(&a, 0, 0, 1, {own, nullptr});
    CHECK(y == 14);  // -186.5 rounds to the even -186
    // -186.5, the hundredth part of it behind a leaky relu, in steps of 1/4: -7.46
    QuantizedConvArgs bent = a;
    bent.epilogue = Epilogue::kLeakyRelu, bent.alpha = 0.01f, bent.y_inverse = 4;
    k->run(&bent, 0, 0, 1, {own, nullptr});
    CHECK(y == 193);
    // x - 11 = -1 and 189, w - 5 = -2 and -7: a sum of -1321, and 7 more, times 1/2 and 1/4.
    float value = 0;
    const int32_t w_zero = 5;
    const uint8_t run_zero = 11;
    const float run_scale = 0.25f;
    RunConvArgs run;
    static_cast<QuantizedConvArgs&>(run) = a;
    run.size = sizeof(RunConvArgs), run.out = &value, run.out_type = QuantizedOut::kF32, run.low = -1e6f;
    run.w_zeros = &w_zero, run.run_zero = &run_zero, run.run_scale = &run_scale;
    k->run(&run, 0, 0, 1, {own, nullptr});
    CHECK(value == -1314.f / 8);
  }
}

namespace {

// f32 results with what may follow the sum, of 8-bit integers with a scale per image, or of bf16.
class NarrowProblem {
 public:
  NarrowProblem(const QuantizedCase& c, bool bf16, Values values, Epilogue epilogue)
      : x_(static_cast<size_t>(c.N * c.C * c.H * c.W) * (bf16 ? 2 : 1), 2),
        packed_(static_cast<size_t>(quantized_filter_bytes(c.M, c.C * c.KH * c.KW, bf16 ? 2 : 1)), 64),
        sums_(static_cast<size_t>(c.M)),
        scale_(static_cast<size_t>(c.M)),
        bf16_(bf16) {
    const int64_t taps = c.KH * c.KW;
    const auto x = random_values(static_cast<size_t>(c.N * c.C * c.H * c.W), values, 4);
    const auto w = random_values(static_cast<size_t>(c.M * c.C * taps), values, 5);
    for (size_t k = 0; k < x.size(); ++k) {
      const oar::bf16 rounded = to_bf16(x[k]);
      if (bf16) std::memcpy(x_.data() + 2 * k, &rounded, 2);
      else x_[k] = static_cast<uint8_t>(std::clamp(x[k] * 40 + 120, 0.f, 255.f));
    }
    if (bf16) pack_bf16_filters(packed_.data(), w.data(), c.M, taps, c.C, c.C * taps, 1, taps);
    else
      pack_rounded_filters(packed_.data(), sums_.data(), scale_.data(), w.data(), c.M, taps, c.C, c.C * taps,
                           1, taps);
    for (int64_t n = 0; n < c.N; ++n) {
      x_scale_.push_back(0.02f * static_cast<float>(n + 1));
      x_zeros_.push_back(static_cast<int32_t>(120 - 30 * n));
    }
    WindowShape& v = a_.window;
    v.N = c.N, v.H = c.H, v.W = c.W, v.KH = c.KH, v.KW = c.KW;
    v.stride_h = v.stride_w = c.stride, v.dilation_h = v.dilation_w = c.dilation;
    v.pad_top = v.pad_left = v.pad_bottom = v.pad_right = c.pad;
    v.OH = (c.H + 2 * c.pad - (c.KH - 1) * c.dilation - 1) / c.stride + 1;
    v.OW = (c.W + 2 * c.pad - (c.KW - 1) * c.dilation - 1) / c.stride + 1;
    const auto results = static_cast<size_t>(v.N * v.OH * v.OW * c.M);
    residual_ = random_values(results, values, 6),
    shift_ = random_values(static_cast<size_t>(c.M), values, 7);
    a_.x = x_.data(), a_.w = packed_.data();
    a_.shift = c.shift ? shift_.data() : nullptr;
    a_.residual = c.bias ? residual_.data() : nullptr;
    if (!bf16) a_.w_sums = sums_.data(), a_.scale = scale_.data();
    if (!bf16) a_.x_scale = x_scale_.data(), a_.x_zeros = x_zeros_.data();
    a_.C = c.C, a_.M = c.M, a_.out_type = QuantizedOut::kF32;
    a_.low = epilogue == Epilogue::kClamp ? -1.f : -INFINITY;
    a_.high = epilogue == Epilogue::kClamp ? 2.f : INFINITY;
    a_.epilogue = epilogue, a_.alpha = 1.f / 6, a_.beta = 0.5f;
  }

  std::vector<float> result(Isa isa, ThreadPool* pool) const {
    const Kernel* k = KernelRegistry::cpu().find(bf16_ ? bf16_conv_key() : int8_conv_key(), isa);
    REQUIRE(k != nullptr);
    QuantizedConvArgs a = a_;
    const WindowShape& v = a.window;
    Guarded<float> out(static_cast<size_t>(v.N * v.OH * v.OW * a.M));
    // A residual may be the result's own memory.
    if (a.residual) std::copy(residual_.begin(), residual_.end(), out.begin()), a.residual = out.data();
    a.out = out.data();
    if (pool) run_on_pool(*pool, *k, &a);
    else run_in_steps(*k, &a, 1, true);
    return {out.begin(), out.end()};
  }

 private:
  QuantizedConvArgs a_;
  Guarded<uint8_t> x_;
  Guarded<int8_t> packed_;
  std::vector<int32_t> sums_, x_zeros_;
  std::vector<float> scale_, x_scale_, residual_, shift_;
  bool bf16_;
};

}  // namespace

TEST_CASE("quantized conv: a scale per image, a residual and an activation") {
  ThreadPool pool({.threads = 3});
  oar_test::Sample sample;
  for (const QuantizedCase& c : kQuantizedCases) {
    if (c.x_signed) continue;
    for (const Epilogue e : {Epilogue::kNone, Epilogue::kClamp, Epilogue::kHardSwish, Epilogue::kGelu}) {
      if (!sample.take()) continue;
      const NarrowProblem p(c, false, Values::kNormal, e);
      const auto exact = p.result(Isa::kReference, nullptr);
      for (Isa isa : levels()) {
        INFO(isa_name(isa) << " C " << c.C << " M " << c.M << " K " << c.KH << " epilogue "
                           << static_cast<int>(e));
        const auto y = p.result(isa, &pool);
        CHECK(p.result(isa, nullptr) == y);
        if (e == Epilogue::kNone || e == Epilogue::kClamp) {
          CHECK(y == exact);
          continue;
        }
        // Activations in f32 instead of double: some units in the last place (2^-24) of their largest part.
        for (size_t k = 0; k < y.size(); ++k)
          REQUIRE(std::abs(y[k] - exact[k]) <= 1e-6f * (1 + std::abs(exact[k])));
      }
    }
  }
}

TEST_CASE("bf16 conv: sums of rounded operands") {
  ThreadPool pool({.threads = 3});
  oar_test::Sample sample(3);
  for (const QuantizedCase& c : kQuantizedCases) {
    if (!sample.take()) continue;
    // Integers and their sums are exact in f32: results equal the reference's to the bit.
    const NarrowProblem integers(c, true, Values::kIntegers, Epilogue::kClamp);
    const auto exact = integers.result(Isa::kReference, nullptr);
    const NarrowProblem p(c, true, Values::kNormal, Epilogue::kNone);
    const auto wanted = p.result(Isa::kReference, nullptr);
    // K additions of products of which few exceed 4 x 4, each rounded by 2^-24 of a sum below 16 sqrt(K):
    const auto K = static_cast<float>(c.C * c.KH * c.KW);
    const float bound = K * 16 * std::sqrt(K) * 0x1p-24f + 1e-6f;
    for (Isa isa : levels()) {
      INFO(isa_name(isa) << " C " << c.C << " M " << c.M << " K " << c.KH);
      CHECK(integers.result(isa, &pool) == exact);
      const auto y = p.result(isa, nullptr);
      CHECK(p.result(isa, &pool) == y);
      for (size_t k = 0; k < y.size(); ++k) REQUIRE(std::abs(y[k] - wanted[k]) <= bound);
    }
  }
}

TEST_CASE("bf16 products: rounded results, rows apart, packed rows, the first values of longer filters") {
  // rows, values of which so many are multiplied, filters, distance of results
  const std::vector<std::array<int64_t, 5>> cases{{1, 64, 64, 16, 16},
                                                  {7, 128, 64, 17, 40},
                                                  {64, 256, 160, 64, 192},
                                                  {13, 96, 32, 70, 70},
                                                  {37, 70, 70, 33, 33}};
  ThreadPool pool({.threads = 3});
  for (const auto& [rows, all, K, M, ldo] : cases) {
    const auto w = random_values(static_cast<size_t>(M * all), Values::kNormal, 5),
               x32 = random_values(static_cast<size_t>(rows * K), Values::kNormal, 4),
               residual = random_values(static_cast<size_t>(rows * ldo), Values::kNormal, 6);
    Guarded<int8_t> packed(static_cast<size_t>(quantized_filter_bytes(M, all, 2)), 64);
    pack_bf16_filters(packed.data(), w.data(), M, 1, all, all, 0, 1);
    Guarded<oar::bf16> x(x32.size());
    for (size_t k = 0; k < x32.size(); ++k) x.data()[k] = to_bf16(x32[k]);
    Guarded<int8_t> x_packed(static_cast<size_t>(quantized_filter_bytes(rows, K, 2)), 64);
    pack_bf16_filters(x_packed.data(), x32.data(), rows, 1, K, K, 0, 1);
    const auto results = static_cast<size_t>((rows - 1) * ldo + M);
    const auto result = [&](Isa isa, bool rounded, bool on_pool, bool turned = false) {
      Bf16ProductArgs a;
      a.x = reinterpret_cast<const uint8_t*>(x.data()), a.w = packed.data();
      if (turned) a.x = reinterpret_cast<const uint8_t*>(x_packed.data()), a.x_packed = true;
      a.window.W = a.window.OW = rows;
      a.window.N = a.window.H = a.window.OH = 1;
      a.C = K, a.M = M, a.panel = kQuantizedPanel * quantized_k(all, 2), a.ldo = ldo;
      a.residual = residual.data();
      a.low = -INFINITY, a.high = INFINITY;
      a.out_type = rounded ? QuantizedOut::kBF16 : QuantizedOut::kF32;
      Guarded<float> wide(results);
      Guarded<oar::bf16> narrow(results);
      std::fill(wide.begin(), wide.end(), 3.f);
      std::fill(narrow.begin(), narrow.end(), to_bf16(3.f));
      a.out = rounded ? static_cast<void*>(narrow.data()) : wide.data();
      const Kernel& k = *KernelRegistry::cpu().find(bf16_conv_key(), isa);
      if (on_pool) run_on_pool(pool, k, &a);
      else run_in_steps(k, &a, 1, true);
      std::vector<float> out(wide.begin(), wide.end());
      for (size_t i = 0; i < results && rounded; ++i) out[i] = to_f32(narrow.data()[i]);
      return out;
    };
    const auto exact = result(Isa::kReference, false, false);
    for (const Isa isa : levels()) {
      INFO(isa_name(isa) << ' ' << rows << " x " << K << " of " << all << " x " << M);
      const auto y = result(isa, false, false), rounded = result(isa, true, false);
      CHECK(result(isa, false, true) == y);
      CHECK(result(isa, true, true) == rounded);
      CHECK(result(isa, false, true, true) == y);
      for (size_t i = 0; i < results; ++i) {
        const bool inside = static_cast<int64_t>(i) % ldo < M;
        if (!inside) REQUIRE(y[i] == 3.f);
        REQUIRE(std::abs(y[i] - exact[i]) <= static_cast<float>(K) * 16 * std::sqrt(K) * 0x1p-24f + 1e-6f);
        REQUIRE(rounded[i] == to_f32(to_bf16(y[i])));
      }
    }
  }
}

TEST_CASE("quantized depthwise: every level gives the reference's bits") {
  ThreadPool pool({.threads = 3});
  struct Case {
    int64_t N, C, H, W, K, stride, pad, dilation;
    bool x_signed;
    QuantizedOut out;
    bool sum;
    Epilogue epilogue = Epilogue::kNone;
    bool run = false, zeros = false;  // of a run's operand, of weights that have zero points
  };
  const Case cases[] = {
      {1, 1, 5, 5, 3, 1, 1, 1, false, kU8, false},
      {2, 64, 9, 8, 3, 1, 1, 1, false, kU8, true},
      {1, 72, 12, 7, 5, 2, 2, 1, true, QuantizedOut::kI8, false},
      {1, 133, 8, 9, 3, 1, 2, 2, false, QuantizedOut::kF32, false},
      {1, 40, 6, 6, 3, 2, 0, 1, true, QuantizedOut::kI32, false},
      {3, 17, 2, 2, 3, 1, 3, 1, true, QuantizedOut::kI8, true},
      {1, 72, 12, 7, 5, 2, 2, 1, true, QuantizedOut::kI8, false, Epilogue::kHardSwish},
      {2, 133, 9, 8, 3, 1, 1, 1, false, kU8, false, Epilogue::kSilu},
      {1, 20, 9, 9, 7, 1, 3, 1, false, kU8, false},
      {1, 70, 9, 9, 8, 1, 4, 1, true, kU8, false},
      {1, 133, 8, 9, 3, 1, 1, 1, false, QuantizedOut::kF32, false, Epilogue::kNone, true},
      {1, 72, 8, 9, 3, 1, 1, 1, false, kU8, false, Epilogue::kNone, true},
      {2, 37, 8, 9, 5, 2, 2, 1, true, QuantizedOut::kF32, false, Epilogue::kNone, true, true}};
  for (const Case& c : cases) {
    const auto x = random_integers<uint8_t>(static_cast<size_t>(c.N * c.C * c.H * c.W), 0, 255, 1);
    const auto w = random_integers<int8_t>(static_cast<size_t>(c.C * c.K * c.K), -128, 127, 2);
    const auto bias = random_integers<int32_t>(static_cast<size_t>(c.C), -900, 900, 3, alignof(int32_t));
    std::vector<float> scale, shift;
    for (int64_t m = 0; m < c.C; ++m) {
      scale.push_back(0.004f * (1 + 0.01f * static_cast<float>(m)));
      shift.push_back(0.37f * static_cast<float>(m % 7));
    }
    RunConvArgs a;
    const auto w_zeros = random_integers<int32_t>(static_cast<size_t>(c.C), -255, 255, 6, alignof(int32_t));
    const float run_scale = 0.37f;
    const uint8_t run_zero = 118;
    if (!c.run) a.size = sizeof(QuantizedConvArgs);
    a.run_zero = &run_zero, a.w_zeros = c.zeros ? w_zeros.data() : nullptr;
    a.run_scale = c.out == QuantizedOut::kF32 ? &run_scale : nullptr;
    WindowShape& v = a.window;
    v.N = c.N, v.H = c.H, v.W = c.W, v.KH = v.KW = c.K;
    v.stride_h = v.stride_w = c.stride, v.dilation_h = v.dilation_w = c.dilation;
    v.pad_top = v.pad_left = v.pad_bottom = v.pad_right = c.pad;
    v.OH = (c.H + 2 * c.pad - (c.K - 1) * c.dilation - 1) / c.stride + 1;
    v.OW = (c.W + 2 * c.pad - (c.K - 1) * c.dilation - 1) / c.stride + 1;
    a.x = x.data(), a.w = w.data(), a.bias = bias.data(), a.scale = scale.data(), a.shift = shift.data();
    a.depthwise = true, a.C = a.M = c.C, a.x_signed = c.x_signed, a.x_zero = c.x_signed ? -7 : 121,
    a.out_type = c.out;
    const bool bytes = c.out == kU8 || c.out == QuantizedOut::kI8;
    a.y_zero = c.out == kU8 ? 100 : c.out == QuantizedOut::kI8 ? -20 : 0;
    a.low = c.out == kU8 ? -100.f : c.out == QuantizedOut::kI8 ? -108.f : -3.5f;
    a.high = bytes ? a.low + 255 : 1e6f;
    if (c.epilogue != Epilogue::kNone) {
      a.epilogue = c.epilogue, a.alpha = 1.f / 6, a.beta = 0.5f, a.y_inverse = 1.7f;
      a.low = static_cast<float>((c.out == kU8 ? 0 : -128) - a.y_zero), a.high = a.low + 255;
    }
    const auto results = static_cast<size_t>(v.N * v.OH * v.OW * c.C);
    const auto other = random_integers<uint8_t>(results, 0, 255, 4);
    if (c.sum) {
      a.sum.other = other.data(), a.sum.other_signed = c.x_signed, a.sum.scale = 0.031f;
      a.sum.other_scale = 0.027f, a.sum.other_zero = 3, a.sum.sum_scale = 0.05f, a.sum.zero = a.y_zero;
      a.sum.low = a.low, a.sum.high = a.high;
    }
    const auto result = [&](Isa isa, ThreadPool* on) {
      const Kernel* k = KernelRegistry::cpu().find(int8_conv_key(), isa);
      REQUIRE(k != nullptr);
      Guarded<uint8_t> out(results * (bytes ? 1 : 4), 4);
      RunConvArgs call = a;
      call.out = out.data();
      KernelPlan plan;
      k->plan(&call, on ? on->workers() : 1, &plan);
      if (on) {
        on->run(*k, &call, plan, nullptr);
      } else {
        for (int64_t chunk = plan.chunks[0]; chunk-- > 0;)
          k->run(&call, 0, chunk, chunk + 1, {nullptr, nullptr});
      }
      return std::vector<uint8_t>(out.begin(), out.end());
    };
    const auto exact = result(Isa::kReference, nullptr);
    for (Isa isa : levels()) {
      INFO(isa_name(isa) << " C " << c.C << " K " << c.K << " stride " << c.stride);
      const auto y = result(isa, nullptr);
      CHECK(result(isa, &pool) == y);
      if (c.epilogue == Epilogue::kNone) CHECK(y == exact);
      else check_steps(y, exact, c.out == QuantizedOut::kI8);
    }
  }
}
