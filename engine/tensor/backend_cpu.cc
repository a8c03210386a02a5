// The CPU backend: device memory is host memory, copies are memcpy, and a launch runs to completion on the
// pool.
#include <algorithm>
#include <cstring>

#include "engine/base/format.h"
#include "engine/tensor/backend.h"
#include "kernels/conv.h"
#include "kernels/lora.h"

namespace oar {
namespace {

constexpr auto kFamilies = static_cast<size_t>(kLastFamily) + 1;

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<ThreadPool> pool, Isa isa)
      : pool_(std::move(pool)), isa_(isa), name_(cat("cpu.", isa_name(isa))) {
    for (size_t f = 0; f < kFamilies; ++f)
      f32_[f] = KernelRegistry::cpu().find({static_cast<KernelFamily>(f)}, isa);
  }

  const char* name() const override { return name_.c_str(); }
  MemoryKind memory() const override { return MemoryKind::kHost; }
  Result<Buffer> allocate(uint64_t bytes) override { return Buffer::allocate(bytes); }
  Status upload(void* to, const void* from, uint64_t bytes) override { return copy(to, from, bytes); }
  Status download(void* to, const void* from, uint64_t bytes) override { return copy(to, from, bytes); }
  Status copy(void* to, const void* from, uint64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status synchronize() override { return ok_status(); }

  const Kernel* find_kernel(const KernelKey& key) const override {
    // Ops of ordinary models ask in every run, for f32.
    if (key == KernelKey{key.family}) return f32_[static_cast<size_t>(key.family)];
    return KernelRegistry::cpu().find(key, isa_);
  }
  Result<uint64_t> packed_bytes(Format format, int64_t n, int64_t K) const override {
    const WeightLayout& layout = weight_layout(format, isa_);
    return layout.in_place ? uint64_t{0} : uint64_t{layout.bytes(n, K)};
  }
  bool packs_from(Format format, Format from, int64_t n, int64_t K) const override {
    const WeightLayout& layout = weight_layout(format, isa_);
    return layout.in_place ? format == from || format.info().encode != nullptr : layout.accepts(from, n, K);
  }
  Status pack(Format format, Format from, int64_t n, int64_t K, void* to, const void* rows) const override {
    const WeightLayout& layout = weight_layout(format, isa_);
    const int64_t granule = layout.row_granule;
    pool_->parallel_for((n + granule - 1) / granule, 4, [&](int64_t begin, int64_t end) {
      layout.pack(to, rows, from, n, K, begin * granule, std::min(n, end * granule));
    });
    return ok_status();
  }
  int64_t filter_panel() const override {
    return panel_width(f32_[static_cast<size_t>(KernelFamily::kConv)]->isa);
  }
  int workers() const override { return pool_->workers(); }
  void reserve_worker_scratch(size_t bytes) override { pool_->reserve_scratch(bytes); }
  Status launch(const Kernel& kernel, const void* args, const KernelPlan& plan, void* shared,
                const NextKernel& next) override {
    pool_->run(kernel, args, plan, shared, next);
    return ok_status();
  }
  ThreadPool& host_pool() override { return *pool_; }

 private:
  std::shared_ptr<ThreadPool> pool_;
  Isa isa_;
  std::string name_;
  const Kernel* f32_[kFamilies] = {};
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<ThreadPool> pool, Isa isa) {
  return std::make_unique<CpuBackend>(std::move(pool), isa);
}

Backend& calling_thread_backend() {
  static CpuBackend backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 1}), best_isa());
  return backend;
}

}  // namespace oar
