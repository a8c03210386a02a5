#include "engine/capi/handles.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include "engine/base/format.h"

namespace oar::capi {
namespace {

// kind : 8 | how often the slot was given out : 24 | slot + 1 : 32
constexpr uint32_t kUses = 1 << 24;

struct Slot {
  std::shared_ptr<void> object;  // null: free
  uint32_t use = 0;
  Kind kind = Kind::kModel;
  uint64_t process = 0;  // Table::process when it was filled
};

struct Table {
  std::mutex mutex;
  std::vector<Slot> slots;
  std::deque<uint32_t> free;  // the longest free first, so that a stale handle stays recognizable for long
  uint64_t process = 0;       // counts the forks that lead here
  std::atomic<bool> closed{false};
  std::vector<std::weak_ptr<ThreadPool>> pools;
  uint64_t pools_process = 0;  // a forked child has no threads of its parent's pools
};

void before_fork();
void after_fork_in_parent();
void after_fork_in_child();

Table& table() {
  static Table* const t = [] {
    auto* made = new Table();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  return *t;
}

void before_fork() { table().mutex.lock(); }
void after_fork_in_parent() { table().mutex.unlock(); }
void after_fork_in_child() {
  ++table().process;
  table().mutex.unlock();
}

const char* kind_name(Kind kind) {
  constexpr const char* kNames[] = {"", "model", "generation", "predictor", "outputs", "encoder"};
  return kNames[static_cast<uint8_t>(kind)];
}

const char* with_article(Kind kind) {
  constexpr const char* kNames[] = {"", "a model", "a generation", "a predictor", "outputs", "an encoder"};
  return kNames[static_cast<uint8_t>(kind)];
}

uint64_t handle_of(uint32_t slot, uint32_t use, Kind kind) {
  return uint64_t{static_cast<uint8_t>(kind)} << 56 | uint64_t{use} << 32 | (uint64_t{slot} + 1);
}

// The slot that the handle names; the table is locked.
Result<uint32_t> slot_of(const Table& t, Kind kind, uint64_t handle) {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument(cat(kind_name(kind), ": ", handle, " ", why), kind_name(kind));
  };
  if (handle == 0) return refuse("is no handle; pass one that the library gave out");
  const uint64_t low = handle & UINT32_MAX;
  const auto use = static_cast<uint32_t>(handle >> 32) & (kUses - 1);
  const uint64_t its_kind = handle >> 56;
  const bool known = low >= 1 && low <= t.slots.size() && use <= t.slots[low - 1].use && its_kind >= 1 &&
                     its_kind <= static_cast<uint64_t>(kLastKind);
  if (!known) return refuse("is no handle that the library gave out");
  if (its_kind != static_cast<uint64_t>(kind))
    return refuse(
        cat("is the handle of ", with_article(static_cast<Kind>(its_kind)), ", not of ", with_article(kind)));
  const Slot& slot = t.slots[low - 1];
  if (use != slot.use || slot.object == nullptr || slot.kind != kind) return refuse("was closed already");
  if (slot.process != t.process)
    return Status(
        StatusCode::kFailedPrecondition,
        cat(kind_name(kind), ": ", handle,
            " was made before fork(), and its threads are not in this process; load the model again here"),
        kind_name(kind));
  return static_cast<uint32_t>(low - 1);
}

Status closed_status() {
  return {StatusCode::kFailedPrecondition,
          "the library was shut down with oar_shutdown(); start the process anew"};
}

}  // namespace

Status check_open() { return table().closed.load(std::memory_order_acquire) ? closed_status() : ok_status(); }

std::shared_ptr<ThreadPool> shared_pool(int threads) {
  if (threads == 1) return nullptr;
  Table& t = table();
  const int processors = usable_processors(), wanted = threads > 0 ? threads : processors;
  std::lock_guard lock(t.mutex);
  if (t.pools_process != t.process) t.pools.clear();
  t.pools_process = t.process;
  int busy = 0;
  std::shared_ptr<ThreadPool> large_enough;
  std::erase_if(t.pools, [&](const std::weak_ptr<ThreadPool>& known) {
    auto pool = known.lock();
    if (!pool) return true;
    busy += pool->capacity();
    if (pool->capacity() >= wanted) large_enough = std::move(pool);
    return false;
  });
  if (large_enough && busy + wanted > processors) return large_enough;
  auto pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 1, .capacity = wanted});
  t.pools.push_back(pool);
  return pool;
}

Result<uint64_t> put_handle(Kind kind, std::shared_ptr<void> object) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  if (t.closed) return closed_status();
  uint32_t index = 0;
  if (t.free.empty()) {
    index = static_cast<uint32_t>(t.slots.size());
    t.slots.emplace_back();
  } else {
    index = t.free.front();
    t.free.pop_front();
  }
  Slot& slot = t.slots[index];
  slot.object = std::move(object);
  slot.use = (slot.use + 1) % kUses;
  slot.kind = kind;
  slot.process = t.process;
  return handle_of(index, slot.use, kind);
}

Result<std::shared_ptr<void>> find_handle(Kind kind, uint64_t handle) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  if (t.closed) return closed_status();
  OAR_ASSIGN(const uint32_t index, slot_of(t, kind, handle));
  return t.slots[index].object;
}

Result<std::shared_ptr<void>> take_handle(Kind kind, uint64_t handle) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  if (t.closed) return closed_status();
  OAR_ASSIGN(const uint32_t index, slot_of(t, kind, handle));
  t.free.push_back(index);
  return std::move(t.slots[index].object);
}

std::vector<std::pair<uint64_t, std::shared_ptr<void>>> all_handles(Kind kind) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  std::vector<std::pair<uint64_t, std::shared_ptr<void>>> out;
  for (size_t i = 0; i < t.slots.size(); ++i) {
    const Slot& s = t.slots[i];
    if (s.object && s.kind == kind && s.process == t.process)
      out.emplace_back(handle_of(static_cast<uint32_t>(i), s.use, kind), s.object);
  }
  return out;
}

bool shut_down() { return !table().closed.exchange(true); }

void drop_handles() {
  Table& t = table();
  std::vector<std::shared_ptr<void>> objects;  // destroyed without the lock
  std::lock_guard lock(t.mutex);
  for (Slot& s : t.slots)
    if (s.object && s.process == t.process) objects.push_back(std::move(s.object));
}

}  // namespace oar::capi
