// What the models of a process have in common: its processors and its memory. Passed to everything that
// loads a model; a model that is given none has a pool and a budget of its own.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/base/reservation.h"

namespace oar {

class ThreadPool;  // kernels/thread_pool.h

// Budgets of devices with memory of their own, by name. Any thread.
class DeviceBudgets {
 public:
  // The device's; of `bytes` where none has asked before.
  std::shared_ptr<MemoryBudget> of(const std::string& device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    auto& budget = budgets_[device];
    if (!budget) budget = MemoryBudget::make(bytes);
    return budget;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<MemoryBudget>> budgets_;
};

struct Resources {
  std::shared_ptr<ThreadPool> pool;      // each model takes a share of its own (ThreadPool::share)
  std::shared_ptr<MemoryBudget> memory;  // of the host
  std::shared_ptr<DeviceBudgets> devices = std::make_shared<DeviceBudgets>();

  // For what `owner` is about to allocate; of no budget where there is none.
  Result<Reservation> reserve(std::string owner) const {
    if (!memory) return Reservation();
    return memory->reserve(0, std::move(owner));
  }
};

}  // namespace oar
