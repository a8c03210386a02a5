// What checks of a device's kernels share (check_device*.cc): a backend's memory and
// launches, and what a case is.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cli/check_device.h"
#include "engine/tensor/backend.h"
#include "engine/tensor/plugin.h"

namespace oar::cli {

inline constexpr int kTimes = 3;  // of each launch, of which the fastest counts
inline constexpr double kUnit = 0x1p-24;
// Queries of attention: few, so many that they are computed in tiles of rows, and that are not split.
inline constexpr int64_t kFewQueries = 3, kManyQueries = 70, kMostQueries = 280;
inline std::string_view queries_name(int64_t queries) {
  return queries == kMostQueries ? ", most rows" : queries == kManyQueries ? ", many rows" : "";
}

inline size_t count(int64_t n) { return static_cast<size_t>(n); }

// One side of a comparison: memory and launches of a backend. The first thing that fails stays.
class Side {
 public:
  explicit Side(Backend& b) : b_(b) {}

  Backend& backend() const { return b_; }
  static std::vector<float> random(size_t n, uint64_t seed) {  // uniform in [-1, 1), the same everywhere
    std::vector<float> v(n);
    for (float& x : v) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      x = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
    }
    return v;
  }
  const float* floats(size_t n, uint64_t seed) {
    bytes_ += static_cast<double>(n * sizeof(float));
    return put(random(n, seed));
  }
  template <class T>
  const T* put(const std::vector<T>& v) {
    return static_cast<const T*>(take(v.data(), v.size() * sizeof(T)));
  }
  // What the case is compared by; not numbers before, but where a kernel adds to what is there.
  float* result(size_t n, float before = std::numeric_limits<float>::quiet_NaN()) {
    host_.assign(n, before);
    bytes_ += static_cast<double>(n * sizeof(float));
    out_ = static_cast<float*>(take(host_.data(), n * sizeof(float)));
    return out_;
  }
  void* pages(uint64_t bytes) {
    bytes_ += static_cast<double>(bytes);
    const std::vector<char> zeros(bytes);
    return take(zeros.data(), bytes);
  }
  // `blocks` of a format that has no encoder: bytes are drawn until their numbers are below 1, some above
  // 1/8.
  static void random_blocks(Format format, int64_t blocks, uint64_t seed, std::byte* to) {
    std::vector<float> numbers(count(format.block_elems()));
    for (int64_t b = 0; b < blocks; ++b, to += format.block_bytes()) {
      float most = 0;
      do {
        for (int i = 0; i < format.block_bytes(); ++i) {
          seed = seed * 6364136223846793005u + 1442695040888963407u;
          to[i] = static_cast<std::byte>(seed >> 56);
        }
        format.decode_row(to, format.block_elems(), numbers.data());
        most = 0;
        for (const float v : numbers) most = std::max(most, std::isfinite(v) ? std::fabs(v) : 2.f);
      } while (!(most > 0.125f && most < 1));
    }
  }
  // A weight of n rows of K as the backend's products read it.
  const void* weight(Format format, int64_t n, int64_t K, uint64_t seed, bool packs = true) {
    const std::vector<float> v = random(static_cast<size_t>(n * K), seed);
    const int64_t stride = format.stride(K);
    auto rows = Buffer::allocate(static_cast<uint64_t>(n * stride));
    if (!note(rows.status())) return nullptr;
    auto* to = static_cast<std::byte*>(rows->mutable_data());
    if (format.info().encode == nullptr) random_blocks(format, n * K / format.block_elems(), seed, to);
    else
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

  // False: there is no such kernel, or it failed. Launched kTimes times, on both sides, so what is added to
  // grows alike. `context`: tokens that each sequence has, of attention.
  bool launch(const KernelKey& key, const void* args, int64_t context = 0) {
    const Kernel* kernel = b_.find_kernel(key);
    if (kernel == nullptr) missing_ = true;
    if (kernel == nullptr || !status_.ok()) return false;
    DeviceLaunch& told = launches_.emplace_back();
    told.kernel = family_name(key.family);
    if (const auto cost = b_.cost(*kernel, args, context)) {
      told.bytes = cost->bytes;
      told.operations = cost->operations + cost->matrix_operations;
      told.computed = cost->seconds;
    }
    KernelPlan plan;
    if (!note(b_.plan(*kernel, args, &plan))) return false;
    b_.reserve_worker_scratch(plan.worker_scratch);
    void* scratch = nullptr;
    if (plan.shared_scratch > 0) {
      const std::vector<char> nothing(plan.shared_scratch);
      scratch = take(nothing.data(), nothing.size());
    }
    told.seconds = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTimes && status_.ok(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (!note(b_.launch(*kernel, args, plan, scratch)) || !note(b_.synchronize())) break;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      told.seconds = std::min(told.seconds, took.count());
    }
    return status_.ok();
  }
  std::vector<float> read() {
    if (status_.ok() && note(b_.download(host_.data(), out_, host_.size() * sizeof(float))))
      (void)note(b_.synchronize());
    return host_;
  }
  bool missing() const { return missing_; }
  double bytes() const { return bytes_; }  // of all that the case brought
  const std::vector<DeviceLaunch>& launches() const { return launches_; }
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
  std::vector<DeviceLaunch> launches_;
  bool missing_ = false;
  double bytes_ = 0;
};

// Of a cache, whose keys hold values where `latent` is not 0: a device is asked for such kernels by layout.
inline KernelKey cache_key(const Side& side, KernelFamily family, Format format, int32_t latent) {
  KernelKey key{.family = family, .weight = format};
  if (latent > 0 && side.backend().memory() == MemoryKind::kDevice)
    key.layout = static_cast<ImageLayout>(OAR_LAYOUT_KEYS_HOLD_VALUES);
  return key;
}

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
// check_device_serving.cc: what serving brings beside a model's layers, adapters and draws.
void serving_device_cases(std::vector<DeviceCase>& cases);

}  // namespace oar::cli
