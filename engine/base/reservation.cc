#include "engine/base/reservation.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "engine/base/format.h"

namespace oar {

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::move(other.budget_)),
      owner_(std::move(other.owner_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  shrink();
  budget_ = std::move(other.budget_);
  owner_ = std::move(other.owner_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Reservation::~Reservation() { shrink(); }

uint64_t Reservation::bytes() const {
  if (!budget_) return bytes_;
  const std::lock_guard lock(budget_->mutex_);
  return bytes_;
}

Status Reservation::grow(uint64_t bytes, const char* what) {
  if (!budget_) return ok_status();
  const std::lock_guard lock(budget_->mutex_);
  OAR_RETURN_IF_ERROR(budget_->add(bytes, *owner_, what));
  bytes_ += bytes;
  return ok_status();
}

Result<Reservation> Reservation::take(uint64_t bytes) {
  if (!budget_) return Reservation();
  const std::lock_guard lock(budget_->mutex_);
  const uint64_t held = std::min(bytes, bytes_);
  OAR_RETURN_IF_ERROR(budget_->add(bytes - held, *owner_, "a buffer"));
  bytes_ -= held;
  return Reservation(budget_, owner_, bytes);
}

void Reservation::shrink(uint64_t bytes) {
  if (!budget_) return;
  const std::lock_guard lock(budget_->mutex_);
  if (bytes >= bytes_) return;
  budget_->subtract(bytes_ - bytes, *owner_);
  bytes_ = bytes;
}

uint64_t MemoryBudget::reserved() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

Result<Reservation> MemoryBudget::reserve(uint64_t bytes, std::string owner, const char* what) {
  auto name = std::make_shared<const std::string>(std::move(owner));
  const std::lock_guard lock(mutex_);
  OAR_RETURN_IF_ERROR(add(bytes, *name, what));
  return Reservation(shared_from_this(), std::move(name), bytes);
}

Status MemoryBudget::add(uint64_t bytes, const std::string& owner, const char* what) {
  if (bytes > bytes_ - reserved_) {
    std::string held;
    for (const auto& [name, held_bytes] : by_owner_) {
      held += cat(held.empty() ? "" : ", ", name, " ", format_bytes(held_bytes));
    }
    return resource_exhausted(cat("the memory budget of ", format_bytes(bytes_), " does not hold ",
                                  format_bytes(bytes), " more for ", owner, " (", what, ")",
                                  held.empty() ? "" : cat("; it holds ", held),
                                  "; raise the memory, or serve fewer or smaller models"));
  }
  reserved_ += bytes;
  if (bytes > 0) by_owner_[owner] += bytes;
  return ok_status();
}

void MemoryBudget::subtract(uint64_t bytes, const std::string& owner) {
  reserved_ -= bytes;
  const auto it = by_owner_.find(owner);
  if (it != by_owner_.end() && (it->second -= bytes) == 0) by_owner_.erase(it);
}

uint64_t available_memory() {
  uint64_t available = UINT64_MAX;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    uint64_t kib = 0;
    std::string unit;
    if (key == "MemAvailable:" && meminfo >> kib >> unit) available = kib * 1024;
  }
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(path);
    uint64_t limit = 0;
    if (in >> limit && limit > 0) available = std::min(available, limit);
  }
  return available == UINT64_MAX ? uint64_t{1} << 32 : available;
}

uint64_t share_of(uint64_t bytes, double percent) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * std::clamp(percent, 1.0, 100.0) / 100.0);
}

TrimMemoryAfter::~TrimMemoryAfter() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace oar
