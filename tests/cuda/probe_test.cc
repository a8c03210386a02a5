// What the device's memory gives a copy: the ceiling beside which decoding is reported (./dev gpu).
#include <chrono>
#include <cstdio>

#include "tests/cuda/device_memory.h"

using namespace oar_test;

TEST_CASE("cuda: how fast the device copies its own memory", "[.probe]") {
  OAR_SKIP_WITHOUT_DEVICE();
  size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  const size_t bytes =
      total > (size_t{16} << 30) ? size_t{2} << 30 : size_t{16} << 20;  // far beyond any cache
  DeviceCopy<char> a(std::vector<char>(bytes, '\1')), b(std::vector<char>(bytes, '\2'));
  double best = 0;
  for (int round = 0; round < 12; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2e-9 * static_cast<double>(bytes) / took.count());
  }
  CHECK(b.host() == a.host());
  std::printf("copy_gb_per_second %.1f\n", best);  // read and written
}
