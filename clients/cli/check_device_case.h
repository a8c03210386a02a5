// What checks of a device's kernels share (check_device.cc, check_device_more.cc): a backend's memory and
// launches, and what a case is.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/tensor/backend.h"

namespace oar::cli {

inline constexpr int kLaunches = 3;  // timed
inline constexpr double kUnit = 0x1p-24;

// One side of a comparison: memory and launches of a backend. The first thing that fails stays.
class Side {
 public:
  explicit Side(Backend& b) : b_(b) {}

  Backend& backend() { return b_; }
  const float* floats(size_t n, uint64_t seed) {  // uniform in [-1, 1), the same everywhere
    std::vector<float> v(n);
    for (float& x : v) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      x = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
    }
    bytes_ += static_cast<double>(n * sizeof(float));
    return put(v);
  }
  template <class T>
  const T* put(const std::vector<T>& v) {
    return static_cast<const T*>(take(v.data(), v.size() * sizeof(T)));
  }
  // What the case is compared by; not numbers before.
  float* result(size_t n) {
    host_.assign(n, std::numeric_limits<float>::quiet_NaN());
    bytes_ += static_cast<double>(n * sizeof(float));
    out_ = static_cast<float*>(take(host_.data(), n * sizeof(float)));
    return out_;
  }
  void* pages(uint64_t bytes) {
    bytes_ += static_cast<double>(bytes);
    const std::vector<char> zeros(bytes);
    return take(zeros.data(), bytes);
  }
  // A weight of n rows of K as the backend's products read it.
  const void* weight(Format format, int64_t n, int64_t K, uint64_t seed, bool packs = true) {
    std::vector<float> v(static_cast<size_t>(n * K));
    for (float& x : v) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      x = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
    }
    const int64_t stride = format.stride(K);
    auto rows = Buffer::allocate(static_cast<uint64_t>(n * stride));
    if (!note(rows.status())) return nullptr;
    auto* to = static_cast<std::byte*>(rows->mutable_data());
    for (int64_t r = 0; r < n; ++r) format.encode_row(v.data() + r * K, K, to + r * stride);
    bytes_ += static_cast<double>(n * stride);
    const auto packed = packs ? b_.packed_bytes(format, n, K) : Result<uint64_t>(uint64_t{0});
    if (!note(packed.status())) return nullptr;
    if (*packed == 0) return take(to, rows->size());
    auto panels = Buffer::allocate(*packed);
    if (!note(panels.status()) || !note(b_.pack(format, format, n, K, panels->mutable_data(), to)))
      return nullptr;
    return take(panels->data(), panels->size());
  }

  // False: there is no such kernel. `context`: tokens that each sequence has, of attention.
  bool launch(const KernelKey& key, const void* args, int times = 1, int64_t context = 0) {
    const Kernel* kernel = b_.find_kernel(key);
    if (kernel == nullptr) missing_ = true;
    if (kernel == nullptr || !status_.ok()) return false;
    if (times > 1) cost_ = b_.cost(*kernel, args, context);
    KernelPlan plan;
    if (!note(b_.plan(*kernel, args, &plan))) return false;
    b_.reserve_worker_scratch(plan.worker_scratch);
    void* scratch = nullptr;
    if (plan.shared_scratch > 0) {
      const std::vector<char> nothing(plan.shared_scratch);
      scratch = take(nothing.data(), nothing.size());
    }
    for (int i = 0; i < times && status_.ok(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (!note(b_.launch(*kernel, args, plan, scratch)) || !note(b_.synchronize())) break;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      seconds_ = std::min(seconds_, took.count());
    }
    return status_.ok();
  }
  std::vector<float> read() {
    if (status_.ok() && note(b_.download(host_.data(), out_, host_.size() * sizeof(float))))
      (void)note(b_.synchronize());
    return host_;
  }
  bool missing() const { return missing_; }
  double seconds() const { return seconds_; }
  double bytes() const { return bytes_; }
  // Of the launches that are timed; nullopt: the device cannot tell.
  const std::optional<LaunchCost>& cost() const { return cost_; }
  const Status& status() const { return status_; }

 private:
  bool note(const Status& s) {
    if (status_.ok() && !s.ok()) status_ = s;
    return status_.ok();
  }
  void* take(const void* bytes, uint64_t size) {
    auto memory = b_.allocate(std::max<uint64_t>(size, 64));
    if (!note(memory.status())) return nullptr;
    void* at = memory->mutable_data();
    kept_.push_back(std::move(*memory));
    if (size > 0 && note(b_.upload(at, bytes, size))) (void)note(b_.synchronize());
    return at;
  }

  Backend& b_;
  std::vector<Buffer> kept_;
  std::vector<float> host_;
  float* out_ = nullptr;
  Status status_;
  std::optional<LaunchCost> cost_;
  bool missing_ = false;
  double seconds_ = std::numeric_limits<double>::infinity(), bytes_ = 0;
};

struct DeviceCase {
  std::string name;
  double bound, operations;
  std::function<void(Side&)> run;
};

// Sums of `terms` products of magnitudes up to 1 each.
inline double sum_bound(double terms) { return terms * (terms + 8) * kUnit; }
// The same of products whose magnitudes are a quarter in the mean and, of so many, at most a third: what
// rounding does to x, 2^-9 of a term, or where kernels of codes round it to 8 bits 1/254 of each weight.
inline double product_bound(double terms, Format f) {
  const double operands = f == Format::f32() ? 0 : f.plain() ? 0x1p-9 / 3 : 0.6 / 254;
  return terms * ((terms + 8) * kUnit / 3 + operands);
}

// check_device_more.cc: quantized caches, mixtures, states, attention without a cache.
void more_device_cases(std::vector<DeviceCase>& cases);

}  // namespace oar::cli
