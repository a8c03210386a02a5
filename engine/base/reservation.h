// Bytes of memory that are spoken for. A MemoryBudget is what the models of a process may take together; a
// Reservation is a part of it that has an owner and goes back with it. A large Buffer takes its bytes out of
// the Reservation of whoever it is made for (engine/tensor/charge.h), so that a model too large is
// refused before its memory is touched.
//
// What is counted: bytes asked for, whether touched or not, and mapped weights that are read where they lie.
// What is not: buffers below Buffer::kCharged, code, stacks, what libraries keep.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/base/status.h"

namespace oar {

class MemoryBudget;

// Move-only. Calls for one Reservation may come from several threads; moving and destroying it may not.
class Reservation {
 public:
  Reservation() = default;  // of no budget: grows and gives as asked, and counts nothing
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  // Bytes it holds now; what was taken out of it apart.
  uint64_t bytes() const;
  // Asks the budget for more. RESOURCE_EXHAUSTED, with `what` they were for, changes nothing.
  Status grow(uint64_t bytes, const char* what);
  // Bytes for one buffer: of those held already, and where they do not suffice of the budget.
  Result<Reservation> take(uint64_t bytes);
  // Gives back what it holds, or all but `bytes`.
  void shrink(uint64_t bytes = 0);

 private:
  friend class MemoryBudget;
  Reservation(std::shared_ptr<MemoryBudget> budget, std::shared_ptr<const std::string> owner, uint64_t bytes)
      : budget_(std::move(budget)), owner_(std::move(owner)), bytes_(bytes) {}

  std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<const std::string> owner_;
  uint64_t bytes_ = 0;  // under the budget's mutex
};

// Any thread.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  static std::shared_ptr<MemoryBudget> make(uint64_t bytes) {
    return std::shared_ptr<MemoryBudget>(new MemoryBudget(bytes));
  }

  uint64_t bytes() const { return bytes_; }
  uint64_t reserved() const;
  uint64_t free() const { return bytes_ - reserved(); }
  // `owner` is a name for people: a model's.
  Result<Reservation> reserve(uint64_t bytes, std::string owner, const char* what = "memory");

 private:
  friend class Reservation;
  explicit MemoryBudget(uint64_t bytes) : bytes_(bytes) {}
  Status add(uint64_t bytes, const std::string& owner, const char* what);  // under the mutex
  void subtract(uint64_t bytes, const std::string& owner);                 // under the mutex

  const uint64_t bytes_;
  mutable std::mutex mutex_;
  uint64_t reserved_ = 0;
  std::map<std::string, uint64_t, std::less<>> by_owner_;
};

// Memory this process may still take: the machine's, or its cgroup's limit where that is less.
uint64_t available_memory();
// `percent` of it, from 1 to 100; beyond, the nearest of these.
uint64_t share_of(uint64_t bytes, double percent);

// Stands first in a function that loads a model. When the temporaries behind it are gone, the system gets
// back what the allocator keeps of them: up to their whole size, and counted by nobody.
class TrimMemoryAfter {
 public:
  TrimMemoryAfter() = default;
  ~TrimMemoryAfter();
  TrimMemoryAfter(const TrimMemoryAfter&) = delete;
  TrimMemoryAfter& operator=(const TrimMemoryAfter&) = delete;
};

}  // namespace oar
