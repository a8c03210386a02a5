// For tests of the emulated device: its memory, and its ways to run a kernel.
#pragma once

#include <functional>

#include "kernels/cuda/emulation/emulation.h"
#include "tests/support/catch.h"

namespace oar_test {

// `n` values of T in device memory.
template <class T>
class DeviceValues {
 public:
  explicit DeviceValues(size_t n)
      : data_(static_cast<T*>(oar::cuda::emulation::device_allocate(n * sizeof(T)))), size_(n) {}
  ~DeviceValues() { oar::cuda::emulation::device_release(data_); }
  DeviceValues(const DeviceValues&) = delete;
  DeviceValues& operator=(const DeviceValues&) = delete;
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  size_t size() const { return size_; }

 private:
  T* data_;
  size_t size_;
};

// Every order of threads, with copies that come late and at once.
inline void in_every_order(const std::function<void()>& test) {
  using oar::cuda::emulation::options;
  using oar::cuda::emulation::Order;
  for (const auto order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
    for (const bool late : {true, false}) {
      options() = {order, 7, late};
      INFO("order " << static_cast<int>(order) << ", late copies " << late);
      test();
    }
  }
  options() = {};
}

}  // namespace oar_test
