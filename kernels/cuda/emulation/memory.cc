// Device memory, shared memory, asynchronous copies, and what traced kernels let us see of each access.
// Never compiled with -fsanitize=thread: the functions at the end are what instrumented kernels call.
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/cuda/emulation/machine.h"

namespace oar::cuda::emulation {
namespace {

constexpr std::byte kNan{0xff};    // every float, bf16 and f16 of these bytes is NaN
constexpr std::byte kGuard{0xa5};  // around each allocation
constexpr size_t kBanks = 32, kBankBytes = 4;

bool g_tracing = false;

struct Allocation {
  std::byte* base;  // with the guards
  size_t bytes;
};
std::map<const std::byte*, Allocation> g_allocations;  // by first byte
uint64_t g_allocated = 0;

// The device's addresses. Allocations lie far apart and addresses come again late, so that an access far
// beyond one meets no other, and neither does one behind its release. What lies between can be read alone.
struct Addresses {
  std::byte *first = nullptr, *next = nullptr, *end = nullptr;

  bool holds(const std::byte* p) const { return p >= first && p < end; }

  // Room for so many bytes between guards; null where the host has none.
  std::byte* take(size_t bytes) {
    const size_t whole = pages(bytes);
    if (first == nullptr) {
      void* all = map(nullptr, kAddresses, PROT_READ);
      if (all == MAP_FAILED) return nullptr;
      first = next = static_cast<std::byte*>(all), end = first + kAddresses;
    }
    for (int round = 0; round < 2; ++round, next = first) {
      while (whole <= static_cast<size_t>(end - next)) {
        const auto behind = g_allocations.lower_bound(next + kGuardBytes);
        if (behind == g_allocations.end() || behind->second.base >= next + whole) {
          std::byte* const at = std::exchange(next, next + whole);
          return mprotect(at, bytes + 2 * kGuardBytes, PROT_READ | PROT_WRITE) == 0 ? at : nullptr;
        }
        next = behind->second.base + pages(behind->second.bytes);
      }
    }
    return nullptr;
  }
  // A new mapping, which joins its neighbours: the host counts them.
  static void give_back(std::byte* at, size_t bytes) { map(at, bytes + 2 * kGuardBytes, PROT_READ); }

 private:
  static constexpr size_t kAddresses = size_t{1} << 36, kAddressGap = size_t{1} << 20, kPage = 4096;
  // With its guards and the gap behind it.
  static size_t pages(size_t bytes) {
    return (bytes + 2 * kGuardBytes + kAddressGap + kPage - 1) / kPage * kPage;
  }
  static void* map(void* at, size_t bytes, int access) {
    return mmap(at, bytes, access,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  }
} g_addresses;

bool guards_hold(const Allocation& a) {
  const auto whole = [](const std::byte* p) {
    return std::all_of(p, p + kGuardBytes, [](std::byte b) { return b == kGuard; });
  };
  return whole(a.base) && whole(a.base + kGuardBytes + a.bytes);
}

// The allocation that holds the byte or has it in a guard; null: the host's memory.
const Allocation* allocation_of(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  auto it = g_allocations.upper_bound(at + kGuardBytes);
  if (it == g_allocations.begin()) return nullptr;
  const Allocation& a = std::prev(it)->second;
  return at >= a.base && at < a.base + a.bytes + 2 * kGuardBytes ? &a : nullptr;
}

bool in_shared(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  const Machine& m = machine();
  return at >= m.shared && at < m.shared + sizeof m.shared;
}
size_t shared_offset(const std::byte* p) { return static_cast<size_t>(p - machine().shared); }

// ---- races in shared memory ----

// An access is ordered before the one that comes now if a barrier of the block, or of the common warp, lies
// between them, or mbarriers that lead from one to the other. Two readers are kept: one that comes later may
// be ordered behind one of them alone.
struct Shadow {
  Touch write, read, other_read;
  bool mbarrier = false;
};
std::vector<Shadow> g_shadow;  // a byte of shared memory each, block behind block

Shadow& shadow_of(size_t offset) {
  return g_shadow[offset / kSharedStride * machine().shared_bytes + offset % kSharedStride];
}

std::string who(const Touch& t) {
  return t.thread < machine().threads ? "thread " + std::to_string(t.thread) : "a box copy";
}

// The touch of byte `k` that is not ordered before a write, or a read, of `f`; null: none.
const Touch* race_at(size_t k, bool write, const Fiber& f) {
  const Shadow& s = shadow_of(k);
  if (!ordered(s.write, f)) return &s.write;
  if (write && !ordered(s.read, f)) return &s.read;
  if (write && !ordered(s.other_read, f)) return &s.other_read;
  return nullptr;
}

void watch_shared(const std::byte* p, size_t bytes, bool write, const Fiber& f) {
  const Machine& m = machine();
  const size_t offset = shared_offset(p);
  const auto rank = static_cast<int>(offset / kSharedStride);
  if (rank >= m.blocks() || !m.within(p, bytes, rank)) {
    return fail(std::string(write ? "write" : "read") + " beyond the shared memory of the launch");
  }
  reach(rank, {"", 0});
  const Touch now = touch_now(f);
  for (size_t k = offset; k < offset + bytes; ++k) {
    Shadow& s = shadow_of(k);
    if (s.mbarrier) fail("an mbarrier is accessed as memory");
    if (const Touch* race = race_at(k, write, f); race != nullptr) {
      fail("race in shared memory at byte " + std::to_string(k) + ": " + (write ? "written" : "read") +
           " without a barrier behind " + who(*race));
    }
    if (write) s.write = now;
    else if (ordered(s.read, f)) s.read = now;
    else s.other_read = now;
  }
}

// ---- requests: the accesses of a warp's lanes by one instruction between two meetings ----

struct Request {
  std::vector<uintptr_t> address;  // of lanes in ascending order, whichever came first
  std::vector<int> lane;
  size_t bytes = 0;
  bool write = false, shared = false;
  uint64_t order = 0;  // of its first access
};
uint64_t g_order = 0;
std::map<std::tuple<int, const void*, uint32_t, int>, Request> g_requests;

void count_sectors(const Request& r) {
  std::vector<uintptr_t> sectors;
  for (uintptr_t a : r.address) {
    for (uintptr_t s = a / kSectorBytes; s <= (a + r.bytes - 1) / kSectorBytes; ++s) sectors.push_back(s);
  }
  std::sort(sectors.begin(), sectors.end());
  sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
  const uint64_t distinct = sectors.size();
  if (has_l2()) {
    for (uintptr_t s : sectors) l2_access(s, r.write);
  }
  std::vector<uintptr_t> addresses = r.address;
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  const uint64_t ideal = (addresses.size() * r.bytes + kSectorBytes - 1) / kSectorBytes;
  Counters& c = counters();
  (r.write ? c.store_ideal : c.load_ideal) += ideal;
  (r.write ? c.store_requests : c.load_requests) += 1;
  (r.write ? c.store_sectors : c.load_sectors) += distinct;
  (r.write ? c.store_bytes : c.load_bytes) += r.address.size() * r.bytes;
}

}  // namespace

bool tracing() { return g_tracing; }

Touch touch_now(const Fiber& f) {
  const Machine& m = machine();
  const auto self = static_cast<size_t>(f.number);
  return {.cluster_epoch = m.cluster_epoch,
          .block_epoch = m.block_epoch[static_cast<size_t>(f.rank)],
          .warp_epoch = m.warp_epoch[static_cast<size_t>(f.warp())],
          .thread = f.number,
          .time = m.clocks.empty() ? 1 : m.clocks[self][self],
          .fences = f.fences,
          .device_fences = f.device_fences};
}

bool behind_barrier(const Touch& touch, const Touch& later) {
  const Machine& m = machine();
  if (touch.cluster_epoch != later.cluster_epoch) return touch.cluster_epoch < later.cluster_epoch;
  if (m.rank_of(touch.thread) != m.rank_of(later.thread)) return false;
  if (touch.block_epoch != later.block_epoch) return touch.block_epoch < later.block_epoch;
  return touch.thread / kLanes == later.thread / kLanes && touch.warp_epoch < later.warp_epoch;
}

bool ordered(const Touch& before, const Fiber& now) {
  const Machine& m = machine();
  if (before.thread < 0 || before.thread == now.number) return true;
  if (!m.clocks.empty()) {
    const Clock& clock = m.clocks[static_cast<size_t>(now.number)];
    if (clock[static_cast<size_t>(before.thread)] >= before.time) return true;
  }
  // A barrier of the block does not wait for box copies.
  return before.thread < m.threads && behind_barrier(before, touch_now(now));
}

void reach(int rank, Place place) {
  Machine& m = machine();
  if (rank == m.now->rank) return;
  if (m.has_ended(rank)) fail("shared memory of a block that has ended", place);
  m.reached[static_cast<size_t>(rank)][m.now->number] = touch_now(*m.now);
}

bool fenced(const Touch& before) {
  const Machine& m = machine();
  if (before.thread < 0 || before.thread >= m.threads) return true;
  return m.fibers[static_cast<size_t>(before.thread)].fences > before.fences;
}

void watch_box(uint32_t offset, size_t bytes, bool write, const Touch& by, Place place) {
  for (size_t k = offset; k < offset + bytes; ++k) {
    Shadow& s = shadow_of(k);
    const Touch* race = race_at(k, write, *machine().now);
    const bool seen = fenced(s.write);
    if (!s.mbarrier && race == nullptr && seen) {
      (write ? s.write : s.read) = by;
      continue;
    }
    const std::string at = " at byte " + std::to_string(k) + " of shared memory";
    if (s.mbarrier) fail("a box copy meets an mbarrier" + at, place);
    if (race != nullptr) fail("race: a box copy without a barrier behind " + who(*race) + at, place);
    if (!seen) fail("a box copy may not see what " + who(s.write) + " wrote: no proxy fence" + at, place);
    return;
  }
}

void watch_mbarrier(const void* p) {
  const size_t offset = shared_offset(static_cast<const std::byte*>(p));
  for (size_t k = offset; k < offset + sizeof(uint64_t); ++k) shadow_of(k).mbarrier = true;
}

// 16-byte accesses are served 8 lanes at a time, 8-byte ones 16, narrower ones 32.
void count_wavefronts(const uintptr_t* address, int n, size_t bytes) {
  const int at_once = bytes == 16 ? 8 : bytes == 8 ? 16 : 32;
  for (int first = 0; first < n; first += at_once) {
    std::vector<uintptr_t> words[kBanks];
    for (int k = first; k < std::min(n, first + at_once); ++k) {
      for (uintptr_t w = address[k] / kBankBytes; w <= (address[k] + bytes - 1) / kBankBytes; ++w) {
        auto& bank = words[w % kBanks];
        if (std::find(bank.begin(), bank.end(), w) == bank.end()) bank.push_back(w);
      }
    }
    size_t most = 1;
    for (const auto& bank : words) most = std::max(most, bank.size());
    counters().shared_wavefronts += most;
    ++counters().shared_ideal;
  }
}

void watch_access(const void* p, size_t bytes, bool write, const void* instruction) {
  Fiber* f = machine().now;
  if (f == nullptr) return;
  const auto* at = static_cast<const std::byte*>(p);
  const bool shared = in_shared(p);
  if (shared) {
    watch_shared(at, bytes, write, *f);
  } else if (const Allocation* a = allocation_of(p); a == nullptr) {
    if (!g_addresses.holds(at)) return;  // the fiber's stack, arguments, constants
    return fail(std::string(write ? "write" : "read") + " outside of all allocations");
  } else if (at < a->base + kGuardBytes || at + bytes > a->base + kGuardBytes + a->bytes) {
    return fail(std::string(write ? "write" : "read") + " outside of an allocation of " +
                std::to_string(a->bytes) + " bytes");
  } else {
    check_waited(*f);
    if (!has_l2())
      watch_global(p, bytes, write, *f);  // that is for large shapes, of kernels that others test
  }
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) return fail("misaligned access");
  if (instruction == nullptr) return;  // counted by who asks
  const int nth = f->accesses[instruction]++;
  Request& r =
      g_requests[{f->warp(), instruction, machine().warp_meetings[static_cast<size_t>(f->warp())], nth}];
  if (r.address.empty()) r.order = ++g_order;
  const auto place = std::upper_bound(r.lane.begin(), r.lane.end(), f->lane()) - r.lane.begin();
  r.lane.insert(r.lane.begin() + place, f->lane());
  r.address.insert(r.address.begin() + place, reinterpret_cast<uintptr_t>(p));
  r.bytes = bytes;
  r.write = write;
  r.shared = shared;
}

void begin_block() {
  Machine& m = machine();
  const int blocks = m.blocks();
  for (int rank = 0; rank < blocks; ++rank) {
    std::memset(m.shared_of(rank), static_cast<int>(kNan), m.shared_bytes);
    std::memset(m.shared_of(rank) + m.shared_bytes, static_cast<int>(kGuard), kGuardBytes);
  }
  ++m.cluster_epoch;
  if (g_tracing) g_shadow.assign(static_cast<size_t>(blocks) * m.shared_bytes, {});
  begin_global_block();
  begin_bulk();
}

void finish_block() {
  Machine& m = machine();
  finish_bulk();
  for (int rank = 0; rank < m.blocks(); ++rank) {
    const std::byte* end = m.shared_of(rank) + m.shared_bytes;
    if (!std::all_of(end, end + kGuardBytes, [](std::byte b) { return b == kGuard; }))
      fail("write beyond the shared memory of the launch");
  }
  std::vector<const Request*> in_order;
  for (const auto& [key, r] : g_requests) {
    if (r.shared) count_wavefronts(r.address.data(), static_cast<int>(r.address.size()), r.bytes);
    else in_order.push_back(&r);
  }
  std::sort(in_order.begin(), in_order.end(),
            [](const Request* a, const Request* b) { return a->order < b->order; });
  for (const Request* r : in_order) count_sectors(*r);
  g_requests.clear();
  end_l2_block();
}

void check_guards() {
  for (const auto& [first, a] : g_allocations) {
    if (!guards_hold(a)) fail("write outside of an allocation of " + std::to_string(a.bytes) + " bytes");
  }
}

void* device_allocate(size_t bytes) {
  if (bytes > kDeviceBytes - g_allocated) return nullptr;
  static_assert(kGuardBytes % 256 == 0);  // what is promised
  std::byte* const base = g_addresses.take(bytes);
  if (base == nullptr) return nullptr;
  std::memset(base, static_cast<int>(kGuard), kGuardBytes);
  std::memset(base + kGuardBytes, static_cast<int>(kNan), bytes);
  std::memset(base + kGuardBytes + bytes, static_cast<int>(kGuard), kGuardBytes);
  g_allocations[base + kGuardBytes] = {base, bytes};
  g_allocated += bytes;
  return base + kGuardBytes;
}

bool device_release(void* p) {
  const auto it = g_allocations.find(static_cast<std::byte*>(p));
  if (it == g_allocations.end()) return false;
  g_allocated -= it->second.bytes;
  Addresses::give_back(it->second.base, it->second.bytes);
  g_allocations.erase(it);
  return true;
}

uint64_t device_bytes() { return g_allocated; }

bool device_holds(const void* p, uint64_t bytes) {
  const Allocation* a = allocation_of(p);
  if (a == nullptr) return false;
  const std::byte *at = static_cast<const std::byte*>(p), *first = a->base + kGuardBytes;
  return at >= first && bytes <= a->bytes && at + bytes <= first + a->bytes;
}

__attribute__((noinline)) void copy_traced(void* to, const void* from, size_t bytes, const void* place,
                                           bool write) {
  if (g_tracing) watch_access(place, bytes, write, __builtin_return_address(0));
  std::memcpy(to, from, bytes);
}

// ---- asynchronous copies ----

namespace {
void perform(const AsyncCopy& c) {
  if (c.from != nullptr) std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
  else std::memset(c.to, 0, static_cast<size_t>(c.bytes));
}
}  // namespace

void copy_async(void* shared, const void* global, int bytes) {
  Fiber& f = *machine().now;
  const auto size = static_cast<size_t>(bytes);
  if (reinterpret_cast<uintptr_t>(shared) % size != 0 || reinterpret_cast<uintptr_t>(global) % size != 0) {
    return fail("cp.async: an address is no multiple of its size");
  }
  check_waited(f);
  const auto* to = static_cast<const std::byte*>(shared);
  if (!machine().within(to, size, f.rank)) {
    return fail("cp.async: the target lies outside of the launch's shared memory");
  }
  if (g_tracing) {
    const auto* instruction = static_cast<const char*>(__builtin_return_address(0));
    watch_access(shared, size, true, instruction);
    if (global != nullptr) watch_access(global, size, false, instruction + 1);
  }
  const AsyncCopy copy{shared, global, bytes, !options().late_copies};
  if (copy.done) perform(copy);
  else std::memset(shared, static_cast<int>(kNan), size);
  f.open.push_back(copy);
}
void copy_async_commit() {
  Fiber& f = *machine().now;
  f.groups.push_back(std::exchange(f.open, {}));
}
void copy_async_wait(int left) { finish_copies(*machine().now, static_cast<size_t>(left)); }

void finish_copies(Fiber& f, size_t left) {
  for (; f.groups.size() > left; f.groups.pop_front()) {
    for (const AsyncCopy& c : f.groups.front()) {
      if (!c.done) perform(c);
    }
  }
}

}  // namespace oar::cuda::emulation

// ---- what code compiled with -fsanitize=thread calls (gcc/sanitizer.def) ----

#define OAR_ACCESS(name, bytes, write)                                                  \
  extern "C" __attribute__((noinline, visibility("hidden"))) void name(void* p) {       \
    ::oar::cuda::emulation::watch_access(p, bytes, write, __builtin_return_address(0)); \
  }
#define OAR_ACCESSES(bytes)                    \
  OAR_ACCESS(__tsan_read##bytes, bytes, false) \
  OAR_ACCESS(__tsan_write##bytes, bytes, true)
OAR_ACCESSES(1)
OAR_ACCESSES(2)
OAR_ACCESSES(4)
OAR_ACCESSES(8)
OAR_ACCESSES(16)
OAR_ACCESS(__tsan_unaligned_read2, 2, false)
OAR_ACCESS(__tsan_unaligned_read4, 4, false)
OAR_ACCESS(__tsan_unaligned_read8, 8, false)
OAR_ACCESS(__tsan_unaligned_read16, 16, false)
OAR_ACCESS(__tsan_unaligned_write2, 2, true)
OAR_ACCESS(__tsan_unaligned_write4, 4, true)
OAR_ACCESS(__tsan_unaligned_write8, 8, true)
OAR_ACCESS(__tsan_unaligned_write16, 16, true)
#define OAR_IGNORED(signature) \
  extern "C" __attribute__((visibility("hidden"))) void signature {}
OAR_IGNORED(__tsan_func_entry(void*))
OAR_IGNORED(__tsan_func_exit())
OAR_IGNORED(__tsan_vptr_read(void**))
OAR_IGNORED(__tsan_vptr_update(void**, void*))
OAR_IGNORED(__tsan_read_range(void*, unsigned long))
OAR_IGNORED(__tsan_write_range(void*, unsigned long))
extern "C" __attribute__((visibility("hidden"))) void __tsan_init() {
  ::oar::cuda::emulation::g_tracing = true;
}
