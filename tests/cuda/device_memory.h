// Device memory of a test, and whether there is a device at all.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace oar_test {

// Why nothing can run here; empty when a device is there.
inline std::string no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

#define OAR_SKIP_WITHOUT_DEVICE() \
  if (const std::string why = ::oar_test::no_device(); !why.empty()) OAR_SKIP(why)

// `values` on the device, `shift` elements behind a 256-byte boundary.
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<float>& values, size_t shift = 0)
      : size_(values.size()), shift_(shift) {
    REQUIRE(cudaMalloc(&base_, (size_ + shift_ + 1) * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~DeviceArray() { cudaFree(base_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  float* data() { return static_cast<float*>(base_) + shift_; }
  // Waits for the device.
  std::vector<float> host() {
    std::vector<float> values(size_);
    REQUIRE(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  size_t bytes() const { return size_ * sizeof(float); }
  size_t size_, shift_;
  void* base_ = nullptr;
};

}  // namespace oar_test
