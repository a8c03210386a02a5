// Products of warp groups on the emulated device, against loops and the PTX manual's figure of accumulators.
#include <cstring>
#include <vector>

#include "tests/cuda/emulated.h"
#include "tests/cuda/wgmma_kernels.h"

namespace emulation = oar::cuda::emulation;
using namespace oar_test;

namespace {

constexpr int kRows = 64;

// Small integers, so that every sum is exact in any order; `values` are what the bytes mean.
void fill(uint8_t* bytes, std::vector<int>& values, uint32_t swizzle, WgmmaOf type, int seed) {
  const uint32_t size = type == WgmmaOf::kBf16 ? 2 : 1;
  values.resize(kRows * swizzle / size);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int>((i * 31 + i / 13 + static_cast<size_t>(seed)) % 15) - 7;
    const auto x = static_cast<float>(values[i]);
    if (type == WgmmaOf::kBf16) {
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      const auto high = static_cast<uint16_t>(bits >> 16);
      std::memcpy(bytes + 2 * i, &high, sizeof high);
    } else {
      bytes[i] = type == WgmmaOf::kS8 ? static_cast<uint8_t>(values[i]) : __nv_fp8_e4m3(x).__x;
    }
  }
}

std::string multiply(uint32_t swizzle, WgmmaOf type, WgmmaFault fault) {
  DeviceValues<uint8_t> a(kRows * swizzle), b(kRows * swizzle);
  DeviceValues<uint32_t> words(32 * kWgmmaThreads);
  std::vector<int> va, vb;
  fill(a.data(), va, swizzle, type, 3);
  fill(b.data(), vb, swizzle, type, 5);
  emulation::run_grid(1, kWgmmaThreads, 2 * kRows * swizzle,
                      [&] { multiplies_group(words.data(), a.data(), b.data(), swizzle, type, fault); });
  if (std::string error = emulation::take_error(); !error.empty()) return error;
  const size_t K = va.size() / kRows;
  for (size_t t = 0; t < kWgmmaThreads; ++t) {
    for (size_t i = 0; i < 32; ++i) {
      // Figure "WGMMA .m64nNk16 register fragment layout for accumulator matrix D".
      const size_t row = t / 32 * 16 + t % 32 / 4 + (i % 4 >= 2 ? 8 : 0);
      const size_t column = i / 4 * 8 + t % 4 * 2 + (i & 1);
      int sum = 0;
      for (size_t k = 0; k < K; ++k) sum += va[row * K + k] * vb[column * K + k];
      float f;
      std::memcpy(&f, &words[32 * t + i], sizeof f);
      const bool same =
          type == WgmmaOf::kS8 ? static_cast<int>(words[32 * t + i]) == sum : f == static_cast<float>(sum);
      if (!same) return "wrong";
    }
  }
  return "";
}

}  // namespace

TEST_CASE("emulated device: products of a warp group, every type and swizzle") {
  for (const auto type : {WgmmaOf::kBf16, WgmmaOf::kE4m3, WgmmaOf::kS8}) {
    for (const uint32_t swizzle : {32u, 64u, 128u}) {
      in_every_order([&] { CHECK(multiply(swizzle, type, WgmmaFault::kNone) == ""); });
    }
  }
}

TEST_CASE("emulated device: misuse of warp groups' products is found") {
  in_every_order([] {
    CHECK(multiply(128, WgmmaOf::kBf16, WgmmaFault::kNoFence).find("without wgmma_fence") !=
          std::string::npos);
    CHECK(multiply(128, WgmmaOf::kBf16, WgmmaFault::kOneWarpLess).find("not done the same products") !=
          std::string::npos);
    CHECK(multiply(128, WgmmaOf::kBf16, WgmmaFault::kNoWait).find("has not waited for") != std::string::npos);
    CHECK(multiply(128, WgmmaOf::kBf16, WgmmaFault::kNoProxyFence).find("no proxy fence") !=
          std::string::npos);
  });
}
