// Layers of 8-bit integers on the device: the bits of the reference, but for functions behind their sums.
#include "kernels/integer_conv.h"

#include <random>

#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

template <class T>
std::vector<T> integers(int64_t n, int low, int high, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> any(low, high);
  std::vector<T> out(static_cast<size_t>(n));
  for (T& v : out) v = static_cast<T>(any(random));
  return out;
}

struct Case {
  int64_t N, C, H, W, M, KH, KW, stride, pad, dilation = 1;
  bool depthwise = false;
};

// What is there beside x and w.
struct With {
  QuantizedOut out = QuantizedOut::kU8;
  bool x_signed = false, bias = true, shift = true, sum = false, other_signed = false;
  bool of_images = false, residual = false;
  Epilogue epilogue = Epilogue::kNone;
  size_t askew = 0;  // bytes of x behind an aligned address
};

// The results' bytes on the device and by the reference.
struct Results {
  std::vector<uint8_t> got, want;
};

WindowShape window_of(const Case& c) {
  WindowShape w;
  w.N = c.N, w.H = c.H, w.W = c.W, w.KH = c.KH, w.KW = c.KW;
  w.stride_h = w.stride_w = c.stride, w.dilation_h = w.dilation_w = c.dilation;
  w.pad_top = w.pad_left = w.pad_right = c.pad, w.pad_bottom = 2 * c.pad;
  w.OH = (c.H + w.pad_top + w.pad_bottom - (c.KH - 1) * c.dilation - 1) / c.stride + 1;
  w.OW = (c.W + w.pad_left + w.pad_right - (c.KW - 1) * c.dilation - 1) / c.stride + 1;
  return w;
}

Results run(const Case& c, const With& o) {
  QuantizedConvArgs a;
  const WindowShape& w = a.window = window_of(c);
  const int64_t taps = c.KH * c.KW, outs = w.N * w.OH * w.OW * c.M;
  const auto x = integers<uint8_t>(c.N * c.H * c.W * c.C, 0, 255, 1);
  const auto filters = integers<int8_t>(c.depthwise ? taps * c.C : c.M * taps * c.C, -128, 127, 2);
  std::vector<int8_t> packed = filters;
  std::vector<int32_t> sums(static_cast<size_t>(c.M), 1 << 20);  // nobody's
  if (!c.depthwise) {
    packed.assign(static_cast<size_t>(quantized_filter_bytes(c.M, taps * c.C)), 0);
    pack_quantized_filters(packed.data(), sums.data(), filters.data(), c.M, taps, c.C, c.C * taps, 1, taps);
  }
  const auto bias = integers<int32_t>(c.M, -5000, 5000, 3);
  std::vector<float> scale, shift;
  for (int64_t m = 0; m < c.M; ++m) {
    const auto size = static_cast<float>(c.depthwise ? taps : taps * c.C);
    scale.push_back(0.02f / std::sqrt(size) * (1 + 0.01f * static_cast<float>(m)));
    shift.push_back(0.37f * static_cast<float>(m % 7));
  }
  const auto other = integers<uint8_t>(outs, 0, 255, 4);
  std::vector<float> of_image, residual = random_values(static_cast<size_t>(outs), Values::kNormal, 5);
  const auto zeros = integers<int32_t>(c.N, o.x_signed ? -128 : 0, o.x_signed ? 127 : 255, 6);
  for (int64_t n = 0; n < c.N; ++n) of_image.push_back(0.5f + 0.25f * static_cast<float>(n));
  const bool wide = o.out == QuantizedOut::kF32 || o.out == QuantizedOut::kI32;
  const size_t bytes = static_cast<size_t>(outs) * (wide ? 4 : 1);

  a.C = c.C, a.M = c.M, a.depthwise = c.depthwise;
  a.x_signed = o.x_signed, a.x_zero = o.x_signed ? -7 : 121;
  a.out_type = o.out;
  const bool u8 = o.out == QuantizedOut::kU8, i8 = o.out == QuantizedOut::kI8;
  a.y_zero = u8 ? 100 : i8 ? -20 : 0;
  a.low = u8 ? -100.f : i8 ? -108.f : -3.5f;
  a.high = wide ? 40.f : a.low + 255;
  a.epilogue = o.epilogue, a.alpha = 1.f / 6, a.beta = 0.5f, a.y_inverse = 0.7f;
  a.sum.other_signed = o.other_signed;
  a.sum.scale = 0.031f, a.sum.other_scale = 0.027f, a.sum.other_zero = o.other_signed ? -5.f : 110.f;
  a.sum.sum_scale = 0.05f, a.sum.zero = u8 ? 90 : -30;
  a.sum.low = u8 ? -90.f : -98.f, a.sum.high = a.sum.low + 255;

  Results r{{}, std::vector<uint8_t>(bytes, 0x55)};
  std::vector<uint8_t> before = r.want;  // of which the other operand, or the residual, may be the place
  if (o.sum) before = other;
  if (o.residual) std::memcpy(before.data(), residual.data(), bytes);
  r.want = before;
  a.x = x.data(), a.w = packed.data(), a.w_sums = c.depthwise ? nullptr : sums.data();
  a.bias = o.bias ? bias.data() : nullptr;
  a.scale = scale.data(), a.shift = o.shift ? shift.data() : nullptr;
  a.x_scale = o.of_images ? of_image.data() : nullptr, a.x_zeros = o.of_images ? zeros.data() : nullptr;
  const auto in_place = [&](void* out) {
    a.out = out;
    a.sum.other = o.sum ? static_cast<const uint8_t*>(out) : nullptr;
    a.residual = o.residual ? static_cast<const float*>(out) : nullptr;
  };
  in_place(r.want.data());
  const Kernel* reference = KernelRegistry::cpu().find(int8_conv_key(), Isa::kReference);
  REQUIRE(reference != nullptr);
  run_in_steps(*reference, &a, 1 << 20, false);

  DeviceCopy<uint8_t> dx(x, o.askew), out(before);
  DeviceCopy<int8_t> dw(packed);
  DeviceCopy<int32_t> d_sums(sums), d_bias(bias), d_zeros(zeros);
  DeviceArray d_scale(scale), d_shift(shift), d_images(of_image);
  a.x = dx.data(), a.w = dw.data(), a.w_sums = c.depthwise ? nullptr : d_sums.data();
  a.bias = o.bias ? d_bias.data() : nullptr;
  a.scale = d_scale.data(), a.shift = o.shift ? d_shift.data() : nullptr;
  a.x_scale = o.of_images ? d_images.data() : nullptr, a.x_zeros = o.of_images ? d_zeros.data() : nullptr;
  in_place(out.data());
  launch_on_device(KernelFamily::kQuantizedConv, "i8", &a);
  r.got = out.host();
  return r;
}

const Case kCases[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0},
    {1, 64, 1, 67, 70, 1, 1, 1, 0},  // a product; tiles of 64 pixels and
                                     // filters, one more of each
    {1, 130, 1, 5, 17, 1, 1, 1, 0},  // channels in odd steps of 64
    {2, 20, 9, 7, 24, 3, 3, 1, 1},   // words of channels
    {2, 5, 11, 8, 16, 3, 3, 2, 1},   // bytes
    {1, 3, 13, 12, 40, 7, 5, 3, 2},
    {1, 8, 9, 9, 65, 3, 3, 1, 2, 2},
    {3, 7, 5, 4, 19, 2, 2, 2, 0},
    {1, 4, 3, 3, 4, 3, 3, 1, 4},  // windows wholly in the padding
};
const Case kDepthwise[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0, 1, true},
    {2, 33, 9, 7, 33, 3, 3, 1, 1, 1, true},
    {1, 16, 12, 11, 16, 5, 3, 2, 2, 2, true},
};

}  // namespace

TEST_CASE("cuda: layers of 8-bit integers have the bits of the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto check = [](const Case& c, const With& o) {
    INFO("C " << c.C << " M " << c.M << " window " << c.KH << " out " << static_cast<int>(o.out) << " signed "
              << o.x_signed << " sum " << o.sum << " of images " << o.of_images << " residual "
              << o.residual);
    const Results r = run(c, o);
    CHECK(r.got == r.want);
  };
  for (const bool x_signed : {false, true}) {
    for (const auto& cases : {std::span<const Case>(kCases), std::span<const Case>(kDepthwise)}) {
      for (const Case& c : cases) {
        for (const QuantizedOut out :
             {QuantizedOut::kU8, QuantizedOut::kI8, QuantizedOut::kF32, QuantizedOut::kI32})
          check(c, {.out = out, .x_signed = x_signed, .bias = c.M != 24, .shift = c.M != 16});
        check(c, {.out = QuantizedOut::kU8, .x_signed = x_signed, .sum = true, .other_signed = !x_signed});
        check(c, {.out = QuantizedOut::kI8, .x_signed = x_signed, .sum = true, .other_signed = x_signed});
        check(c, {.out = QuantizedOut::kF32, .x_signed = x_signed, .residual = true});
        if (!c.depthwise) check(c, {.out = QuantizedOut::kF32, .x_signed = x_signed, .of_images = true});
      }
    }
  }
  check(kDepthwise[1], {.bias = false, .shift = false});
  check(kCases[3], {.askew = 1});  // words that are not aligned
}

namespace {

void check_integers(const Case& c, bool x_signed, bool x_zeroed, bool w_zeroed, size_t askew = 0) {
  INFO("N " << c.N << " C " << c.C << " H " << c.H << " M " << c.M << " window " << c.KH << " signed "
            << x_signed << " zeros " << x_zeroed << w_zeroed << " askew " << askew);
  IntegerConvArgs a;
  const WindowShape& w = a.window = window_of(c);
  const int64_t taps = c.KH * c.KW;
  const auto x = integers<uint8_t>(c.N * c.C * c.H * c.W, 0, 255, 1);
  const auto filters = integers<int8_t>(c.M * taps * c.C, -128, 127, 2);
  std::vector<int8_t> packed(static_cast<size_t>(quantized_filter_bytes(c.M, taps * c.C)));
  std::vector<int32_t> sums(static_cast<size_t>(c.M));
  pack_quantized_filters(packed.data(), sums.data(), filters.data(), c.M, taps, c.C, c.C * taps, 1, taps);
  const auto w_zeros = integers<int32_t>(c.M, -128, 127, 3);
  const std::vector<uint8_t> x_zero{201};
  std::vector<int32_t> want(static_cast<size_t>(c.N * c.M * w.OH * w.OW), 0x55555555);
  DeviceCopy<int32_t> out(want), d_sums(sums), d_zeros(w_zeros);
  DeviceCopy<uint8_t> dx(x, askew), d_zero(x_zero);
  DeviceCopy<int8_t> dw(packed);
  a.C = c.C, a.M = c.M, a.x_signed = x_signed;
  a.out = want.data(), a.x = x.data(), a.w = packed.data(), a.w_sums = sums.data();
  if (x_zeroed) a.x_zero = x_zero.data();
  if (w_zeroed) a.w_zeros = w_zeros.data();
  const Kernel* reference = KernelRegistry::cpu().find(integer_conv_key(), Isa::kReference);
  REQUIRE(reference != nullptr);
  run_in_steps(*reference, &a, 1 << 20, false);
  a.out = out.data(), a.x = dx.data(), a.w = dw.data(), a.w_sums = d_sums.data();
  if (x_zeroed) a.x_zero = d_zero.data();
  if (w_zeroed) a.w_zeros = d_zeros.data();
  launch_on_device(KernelFamily::kQuantizedConv, "u8", &a);
  CHECK(out.host() == want);
}

// Rows of products.
const Case kProducts[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0},    {64, 64, 1, 1, 64, 1, 1, 1, 0}, {65, 68, 1, 1, 65, 1, 1, 1, 0},
    {63, 61, 1, 1, 15, 1, 1, 1, 0}, {5, 130, 1, 1, 17, 1, 1, 1, 0}, {3, 8, 1, 1, 20, 3, 3, 1, 1},
};

}  // namespace

TEST_CASE("cuda: layers of 8-bit integers whose zero points come with a run", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const auto& cases : {std::span<const Case>(kCases), std::span<const Case>(kProducts)}) {
    for (const Case& c : cases) {
      for (const bool x_signed : {false, true}) {
        check_integers(c, x_signed, true, true);
        check_integers(c, x_signed, false, true);
        check_integers(c, x_signed, true, false);
      }
    }
  }
  check_integers(kProducts[1], false, true, true, 1);  // words that are not aligned
}

TEST_CASE("cuda: functions behind layers of 8-bit integers", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Epilogue e : {Epilogue::kClamp, Epilogue::kSigmoid, Epilogue::kSilu, Epilogue::kHardSigmoid,
                           Epilogue::kHardSwish, Epilogue::kTanh, Epilogue::kGelu}) {
    for (const Case& c : {kCases[3], kDepthwise[1]}) {
      INFO("epilogue " << static_cast<int>(e) << " depthwise " << c.depthwise);
      const Results wide = run(c, {.out = QuantizedOut::kF32, .epilogue = e});
      std::vector<float> got(wide.got.size() / 4), want(got.size());
      std::memcpy(got.data(), wide.got.data(), wide.got.size());
      std::memcpy(want.data(), wide.want.data(), wide.want.size());
      check_close(got, want, [&](size_t i) { return 64 * kUnit * (1 + std::fabs(want[i])); });
      // A byte may round to its neighbour; few do.
      const Results bytes = run(c, {.out = QuantizedOut::kU8, .epilogue = e});
      size_t others = 0;
      for (size_t i = 0; i < bytes.want.size(); ++i) {
        CHECK(std::abs(int{bytes.got[i]} - int{bytes.want[i]}) <= 1);
        others += bytes.got[i] != bytes.want[i];
      }
      CHECK(others <= bytes.want.size() / 100);
    }
  }
}
