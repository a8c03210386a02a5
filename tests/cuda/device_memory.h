// Device memory of a test, and whether there is a device at all.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"

namespace oar_test {

// Of the device that this program tests: the GPU's, or the emulated one's.
extern const char* const kCudaPlugin;

// While one is there, launches on the emulated device take its next order of threads and blocks, and copies
// come late or at once. Options that a test has set stay. A test case begins with the first order.
class NextOrder {
 public:
  NextOrder();
  ~NextOrder();
  NextOrder(const NextOrder&) = delete;
  NextOrder& operator=(const NextOrder&) = delete;

 private:
  bool changed_ = false;
};

// Where each thread of a kernel takes turns with all others.
inline bool is_emulated() { return std::string_view(kCudaPlugin) == "cuda_emulated"; }

// Why nothing can run here; empty when a device is there.
inline std::string no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

#define OAR_SKIP_WITHOUT_DEVICE() \
  if (const std::string why = ::oar_test::no_device(); !why.empty()) OAR_SKIP(why)

// What a device that is opened meanwhile is told of libraries.
class WithLibraries {
 public:
  explicit WithLibraries(const char* which) { setenv("OAR_CUDA_LIBRARIES", which, 1); }
  ~WithLibraries() { unsetenv("OAR_CUDA_LIBRARIES"); }
  WithLibraries(const WithLibraries&) = delete;
  WithLibraries& operator=(const WithLibraries&) = delete;
};

// What the emulated device is asked for by who opens it meanwhile (emulation/runtime.h); a GPU is as it is.
class EmulatedWith {
 public:
  explicit EmulatedWith(const char* words) { setenv("OAR_CUDA_EMULATED", words, 1); }
  ~EmulatedWith() { unsetenv("OAR_CUDA_EMULATED"); }
  EmulatedWith(const EmulatedWith&) = delete;
  EmulatedWith& operator=(const EmulatedWith&) = delete;
};

// `values` on the device, `shift` elements behind a 256-byte boundary.
template <class T>
class DeviceCopy {
 public:
  explicit DeviceCopy(const std::vector<T>& values, size_t shift = 0) : size_(values.size()), shift_(shift) {
    REQUIRE(cudaMalloc(&base_, (size_ + shift_) * sizeof(T) + 1) == cudaSuccess);
    REQUIRE(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~DeviceCopy() { cudaFree(base_); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  T* data() { return static_cast<T*>(base_) + shift_; }
  size_t size() const { return size_; }
  // Waits for the device.
  std::vector<T> host() {
    std::vector<T> values(size_);
    REQUIRE(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  size_t bytes() const { return size_ * sizeof(T); }
  size_t size_, shift_;
  void* base_ = nullptr;
};
using DeviceArray = DeviceCopy<float>;

}  // namespace oar_test
