// The processor, with memory of its own for what is computed and packed: each block ends at a guard page and
// holds no numbers at first. A block is as aligned as the engine's are, so up to 63 bytes lie before its
// guard; these must stay.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/tensor/backend.h"
#include "tests/kernels/guarded.h"

namespace oar_test {

class GuardedBackend final : public oar::Backend {
 public:
  explicit GuardedBackend(std::shared_ptr<oar::Backend> processor) : processor_(std::move(processor)) {}
  // Blocks that were released and had been written beyond their end.
  size_t overwritten() const { return *overwritten_; }

  oar::Result<oar::Buffer> allocate(uint64_t bytes) override {
    if (bytes == 0) return oar::Buffer();
    const auto block = std::make_shared<Block>(bytes, overwritten_);
    std::fill(block->memory.begin(), block->memory.end(), kNone);
    return oar::Buffer::wrap(block->memory.data(), bytes, block);
  }

  const char* name() const override { return processor_->name(); }
  oar::MemoryKind memory() const override { return oar::MemoryKind::kHost; }
  oar::Status upload(void* to, const void* from, uint64_t n) override {
    return processor_->upload(to, from, n);
  }
  oar::Status download(void* to, const void* from, uint64_t n) override {
    return processor_->download(to, from, n);
  }
  oar::Status copy(void* to, const void* from, uint64_t n) override { return processor_->copy(to, from, n); }
  oar::Status synchronize() override { return processor_->synchronize(); }
  const oar::Kernel* find_kernel(const oar::KernelKey& key) const override {
    return processor_->find_kernel(key);
  }
  oar::Result<uint64_t> packed_bytes(oar::Format format, int64_t n, int64_t K) const override {
    return processor_->packed_bytes(format, n, K);
  }
  bool packs_from(oar::Format format, oar::Format from, int64_t n, int64_t K) const override {
    return processor_->packs_from(format, from, n, K);
  }
  oar::Status pack(oar::Format format, oar::Format from, int64_t n, int64_t K, void* to,
                   const void* rows) const override {
    return processor_->pack(format, from, n, K, to, rows);
  }
  int64_t filter_panel() const override { return processor_->filter_panel(); }
  int workers() const override { return processor_->workers(); }
  void reserve_worker_scratch(size_t bytes) override { processor_->reserve_worker_scratch(bytes); }
  oar::Status launch(const oar::Kernel& kernel, const void* args, const oar::KernelPlan& plan, void* shared,
                     const oar::NextKernel& next) override {
    return processor_->launch(kernel, args, plan, shared, next);
  }
  oar::ThreadPool& host_pool() override { return processor_->host_pool(); }

 private:
  static constexpr char kNone = '\xff';  // floats of such bytes are no numbers
  struct Block {
    static constexpr uint64_t kAlign = oar::Buffer::kAlignment;
    Guarded<char> memory;
    const uint64_t bytes;
    const std::shared_ptr<size_t> overwritten;
    Block(uint64_t n, std::shared_ptr<size_t> count)
        : memory((n + kAlign - 1) / kAlign * kAlign, kAlign), bytes(n), overwritten(std::move(count)) {}
    ~Block() {
      const bool kept = std::all_of(memory.begin() + bytes, memory.end(), [](char c) { return c == kNone; });
      if (!kept) ++*overwritten;
    }
  };
  std::shared_ptr<oar::Backend> processor_;
  std::shared_ptr<size_t> overwritten_ = std::make_shared<size_t>(0);
};

}  // namespace oar_test
