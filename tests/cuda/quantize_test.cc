// Linear quantization on the device: the bits of the reference, both ways, with ranges given and own.
#include "kernels/quantize.h"

#include <limits>

#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(),
                kNoNumber = std::numeric_limits<float>::quiet_NaN();

// Numbers, and among them halves of steps of 1 / 16, what is beyond every code, and what is none.
std::vector<float> numbers(int64_t n, bool wild) {
  std::vector<float> v = random_values(static_cast<size_t>(n), Values::kNormal, static_cast<uint32_t>(n));
  const float special[] = {0.f,       -0.f,   3.5f / 16, -2.5f / 16, 1e30f,  -1e30f,
                           kNoNumber, 127.5f, kInf,      -kInf,      1e-42f, 254.5f / 16};
  for (size_t i = 0; wild && i < v.size(); i += 3) v[i] = special[i / 3 % std::size(special)];
  return v;
}

std::vector<uint8_t> codes_of(int64_t n) {
  std::vector<uint8_t> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<uint8_t>(i * 37 + i / 251);
  return v;
}

template <class T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

struct Quantization {
  int64_t n, count = 1, inner = 1;
  bool is_signed = false, scaled = true, zeroed = true;
  size_t askew = 0;  // elements of what is read behind an aligned address
};

void check_quantization(const Quantization& c, bool to_values) {
  INFO("n " << c.n << " count " << c.count << " inner " << c.inner << " signed " << c.is_signed
            << " to values " << to_values << " askew " << c.askew);
  std::vector<float> scale;
  for (int64_t k = 0; k < c.count; ++k)
    scale.push_back(k % 5 == 3 ? 1.f / 16 : 0.013f * static_cast<float>(k + 1));
  if (c.count == 1) scale[0] = 1.f / 16;
  std::vector<uint8_t> zero = codes_of(c.count);
  for (uint8_t& z : zero) z = static_cast<uint8_t>(z + 131);
  std::vector<float> x = to_values ? std::vector<float>(static_cast<size_t>(c.n), -7.f) : numbers(c.n, true);
  std::vector<uint8_t> q = to_values ? codes_of(c.n) : std::vector<uint8_t>(static_cast<size_t>(c.n), 0x55);
  DeviceArray dx(x, to_values ? 0 : c.askew), d_scale(scale);
  DeviceCopy<uint8_t> dq(q, to_values ? c.askew : 0), d_zero(zero);
  QuantizeArgs a;
  a.n = c.n, a.count = c.count, a.inner = c.inner, a.is_signed = c.is_signed, a.to_values = to_values;
  a.values = x.data(), a.codes = q.data();
  if (c.scaled) a.scale = scale.data();
  if (c.zeroed) a.zero = zero.data();
  run_reference(KernelFamily::kNarrow, Format::of(DType::kU8), &a);
  a.values = dx.data(), a.codes = dq.data();
  if (c.scaled) a.scale = d_scale.data();
  if (c.zeroed) a.zero = d_zero.data();
  launch_on_device(KernelFamily::kNarrow, "u8", &a);
  if (to_values) CHECK(equal_bits(dx.host(), x));
  else CHECK(dq.host() == q);
}

void check_own(const std::vector<float>& x, size_t askew = 0) {
  INFO(x.size() << " numbers, the first " << x[0] << ", askew " << askew);
  std::vector<uint8_t> q(x.size(), 0x55), zero{0x55};
  std::vector<float> scale{-7.f};
  DeviceArray dx(x, askew), d_scale(scale);
  DeviceCopy<uint8_t> dq(q), d_zero(zero);
  QuantizeArgs a;
  a.n = static_cast<int64_t>(x.size());
  a.values = const_cast<float*>(x.data()), a.codes = q.data();
  a.own_scale = scale.data(), a.own_zero = zero.data();
  run_reference(KernelFamily::kNarrow, Format::of(DType::kU8), &a);
  a.values = dx.data(), a.codes = dq.data();
  a.own_scale = d_scale.data(), a.own_zero = d_zero.data();
  launch_on_device(KernelFamily::kNarrow, "u8", &a);
  CHECK(equal_bits(d_scale.host(), scale));
  CHECK(d_zero.host() == zero);
  CHECK(dq.host() == q);
}

}  // namespace

TEST_CASE("cuda: quantization both ways has the bits of the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const bool to_values : {false, true}) {
    for (const bool is_signed : {false, true}) {
      for (const int64_t n : {1, 3, 4, 256, 1023, 1024, 1028, 5000})
        check_quantization({.n = n, .is_signed = is_signed}, to_values);
      check_quantization({.n = 2 * 7 * 12, .count = 7, .inner = 12, .is_signed = is_signed}, to_values);
      check_quantization({.n = 3 * 5 * 3, .count = 5, .inner = 3, .is_signed = is_signed}, to_values);
      check_quantization({.n = 4 * 9, .count = 9, .is_signed = is_signed}, to_values);
      check_quantization({.n = 100, .is_signed = is_signed, .askew = 1}, to_values);
      check_quantization({.n = 100, .is_signed = is_signed, .scaled = false}, to_values);
      check_quantization({.n = 100, .is_signed = is_signed, .zeroed = false}, to_values);
    }
  }
}

TEST_CASE("cuda: quantization by an own range has the bits of the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t n : {1, 4, 255, 4096, 4097, 12289}) check_own(numbers(n, false));
  check_own(numbers(1000, false), 1);
  check_own({0, 0, 0, 0, 0});
  check_own({1, 2, 3, 4.5f});                            // all above 0
  check_own({-1, -2, -3, -0.25f, -5});                   // and below
  check_own({kNoNumber, -1, kNoNumber, 2, 0.3f, 0.5f});  // NaN is no end of the range
  check_own({kNoNumber, kNoNumber});                     // and by itself none
  check_own({1e-44f, 0, 3e-45f, -1e-45f});               // a range whose scale is 0
  check_own({1e-38f, -1e-38f, 3e-39f, 7e-39f});          // and one below normal numbers
  check_own({kInf, 1, -1, 0});                           // and one that is infinite
  check_own({-kInf, kInf, 1, -1, 0, kNoNumber});
  // The largest in the last block alone, the least in the first.
  std::vector<float> far(9000, 0.5f);
  far.front() = -3.f, far.back() = 12.f;
  check_own(far);
}

TEST_CASE("cuda: quantization: integers become values", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t n : {1, 4, 1023, 1024, 1028}) {
    std::vector<int32_t> v{2147483647};
    for (int64_t i = 1; i < n; ++i) v.push_back(static_cast<int32_t>(i * 2654435761));
    std::vector<float> y(v.size(), -7.f);
    for (const size_t askew : {size_t{0}, size_t{1}}) {
      INFO("n " << n << " askew " << askew);
      DeviceCopy<int32_t> dv(v, askew);
      DeviceArray dy(y);
      QuantizeArgs a;
      a.n = n, a.to_values = true;
      a.codes = v.data(), a.values = y.data();
      run_reference(KernelFamily::kNarrow, Format::of(DType::kI32), &a);
      a.codes = dv.data(), a.values = dy.data();
      launch_on_device(KernelFamily::kNarrow, "i32", &a);
      CHECK(dy.host() == y);
    }
  }
}
