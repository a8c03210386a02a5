// Device memory, shared memory, asynchronous copies, and what traced kernels let us see of each access.
// Never compiled with -fsanitize=thread: the functions at the end are what instrumented kernels call.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <unordered_map>
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

  // What lies in the MiB of an address that it holds: allocations are further apart.
  const Allocation* near(const std::byte* p) const { return in_gap_[gap_of(p)]; }
  void set(const Allocation& a, const Allocation* to) {
    const size_t last = gap_of(a.base + a.bytes + 2 * kGuardBytes - 1);
    for (size_t k = gap_of(a.base); k <= last; ++k) in_gap_[k] = to;
  }

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
  std::array<const Allocation*, kAddresses / kAddressGap> in_gap_ = {};
  size_t gap_of(const std::byte* p) const { return static_cast<size_t>(p - first) / kAddressGap; }
  // With its guards and the gap behind it.
  static size_t pages(size_t bytes) {
    return (bytes + 2 * kGuardBytes + kAddressGap + kPage - 1) / kPage * kPage;
  }
  static void* map(void* at, size_t bytes, int access) {
    return mmap(at, bytes, access,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  }
} g_addresses;

bool guard_holds(const std::byte* p) {
  static const auto kWhole = [] {
    std::array<std::byte, kGuardBytes> bytes;
    bytes.fill(kGuard);
    return bytes;
  }();
  return std::memcmp(p, kWhole.data(), kGuardBytes) == 0;
}
bool guards_hold(const Allocation& a) {
  return guard_holds(a.base) && guard_holds(a.base + kGuardBytes + a.bytes);
}

// The allocation that holds the byte or has it in a guard; null: the host's memory.
const Allocation* allocation_of(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  if (!g_addresses.holds(at)) return nullptr;
  const Allocation* a = g_addresses.near(at);
  return a != nullptr && at >= a->base && at < a->base + a->bytes + 2 * kGuardBytes ? a : nullptr;
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
using TouchNumber = uint32_t;
struct Shadow {
  TouchNumber write = 0, read = 0, other_read = 0;
  uint32_t cluster = 0;  // of an earlier one it is nothing
  bool mbarrier = false;
};
std::vector<Shadow> g_shadow;     // a byte of shared memory each, block behind block
uint32_t g_shadow_cluster = 0;    // counts on over launches
std::vector<Touch> g_touches(1);  // of the cluster, by number; the first is nobody's

TouchNumber number_of(const Touch& touch) {
  if (g_touches.back() != touch) g_touches.push_back(touch);
  return static_cast<TouchNumber>(g_touches.size() - 1);
}
TouchNumber number_of(Fiber& f) {
  const Touch now = touch_now(f);
  if (g_touches[f.touch] != now) f.touch = number_of(now);
  return f.touch;
}

// The first of `bytes` that lie side by side in a block's shared memory.
Shadow* shadows_of(size_t offset, size_t bytes) {
  Shadow* first = &g_shadow[offset / kSharedStride * machine().shared_bytes + offset % kSharedStride];
  for (size_t k = 0; k < bytes; ++k) {
    if (first[k].cluster != g_shadow_cluster) first[k] = {.cluster = g_shadow_cluster};
  }
  return first;
}

// Whether touches are ordered before what comes now; neighbours have most often the same.
class OrderedBefore {
 public:
  explicit OrderedBefore(const Touch& now) : now_(now) {}
  bool operator()(TouchNumber touch) {
    if (touch == known_[0] || touch == known_[1]) return true;
    if (!ordered(g_touches[touch], now_)) return false;
    known_[1] = std::exchange(known_[0], touch);
    return true;
  }

 private:
  const Touch now_;
  std::array<TouchNumber, 2> known_ = {};  // nobody's
};

std::string who(const Touch& t) {
  return t.thread < machine().threads ? "thread " + std::to_string(t.thread) : "a box copy";
}

// The touch of a byte that is not ordered before a write, or a read, that comes now; null: none.
const Touch* race_at(const Shadow& s, bool write, OrderedBefore& before) {
  if (!before(s.write)) return &g_touches[s.write];
  if (write && !before(s.read)) return &g_touches[s.read];
  if (write && !before(s.other_read)) return &g_touches[s.other_read];
  return nullptr;
}

void watch_shared(const std::byte* p, size_t bytes, bool write, Fiber& f) {
  const Machine& m = machine();
  const size_t offset = shared_offset(p);
  const auto rank = static_cast<int>(offset / kSharedStride);
  if (rank * m.block_threads >= m.threads || !m.within(p, bytes, rank)) {
    return fail(std::string(write ? "write" : "read") + " beyond the shared memory of the launch");
  }
  reach(rank, {"", 0});
  const TouchNumber now = number_of(f);
  OrderedBefore before(g_touches[now]);
  Shadow* const shadows = shadows_of(offset, bytes);
  for (size_t k = 0; k < bytes; ++k) {
    Shadow& s = shadows[k];
    if (s.mbarrier) fail("an mbarrier is accessed as memory");
    if (const Touch* race = race_at(s, write, before); race != nullptr) {
      fail("race in shared memory at byte " + std::to_string(offset + k) + ": " +
           (write ? "written" : "read") + " without a barrier behind " + who(*race));
    }
    if (write) s.write = now;
    else if (before(s.read)) s.read = now;
    else s.other_read = now;
  }
}

// ---- requests: the accesses of a warp's lanes by one instruction between two meetings ----

struct Request {
  uint32_t lanes = 0;  // that take part
  bool write = false, shared = false, streamed = false;
  size_t bytes = 0;
  uint64_t order = 0;  // of its first access
  std::array<uintptr_t, kLanes> address = {};
};
// By one instruction: the nth access of each lane since it met others.
struct Site {
  std::array<size_t, kLanes> count = {};
  std::vector<Request> requests;
  bool open = false;
};
struct Warp {
  std::unordered_map<const void*, Site> sites;
  std::vector<Site*> open;  // those with accesses
};
uint64_t g_order = 0;
std::array<Warp, kMaxTogether / kLanes> g_warps;
// Of the block's requests in global memory: sectors [first, end) of g_sectors.
struct Sectors {
  uint64_t order;
  size_t first, end;
  bool write, streamed;
};
std::vector<uintptr_t> g_sectors;
std::vector<Sectors> g_requests;

void note_access(const Fiber& f, const void* p, size_t bytes, bool write, bool shared, bool streamed,
                 const void* instruction) {
  Warp& warp = g_warps[static_cast<size_t>(f.warp())];
  Site& site = warp.sites[instruction];
  if (!site.open) warp.open.push_back(&site);
  site.open = true;
  const auto lane = static_cast<size_t>(f.lane());
  const size_t nth = site.count[lane]++;
  if (nth >= site.requests.size()) site.requests.resize(nth + 1);
  Request& r = site.requests[nth];
  if (r.lanes == 0) r.order = ++g_order;
  r.lanes |= 1u << lane;
  r.address[lane] = reinterpret_cast<uintptr_t>(p);
  r.bytes = bytes;
  r.write = write;
  r.shared = shared;
  r.streamed = streamed;
}

void count_sectors(const Request& r, std::span<uintptr_t> addresses) {
  const size_t lanes = addresses.size(), first = g_sectors.size();
  std::ranges::sort(addresses);
  for (const uintptr_t a : addresses) {
    uintptr_t s = a / kSectorBytes;
    if (g_sectors.size() > first) s = std::max(s, g_sectors.back() + 1);
    for (; s <= (a + r.bytes - 1) / kSectorBytes; ++s) g_sectors.push_back(s);
  }
  const auto distinct = static_cast<size_t>(std::ranges::unique(addresses).begin() - addresses.begin());
  Counters& c = counters();
  (r.write ? c.store_ideal : c.load_ideal) += (distinct * r.bytes + kSectorBytes - 1) / kSectorBytes;
  (r.write ? c.store_requests : c.load_requests) += 1;
  (r.write ? c.store_sectors : c.load_sectors) += g_sectors.size() - first;
  (r.write ? c.store_bytes : c.load_bytes) += lanes * r.bytes;
  g_requests.push_back({r.order, first, g_sectors.size(), r.write, r.streamed});
}

void count_request(const Request& r) {
  std::array<uintptr_t, kLanes> of_lanes;
  size_t n = 0;
  for (uint32_t left = r.lanes; left != 0; left &= left - 1)
    of_lanes[n++] = r.address[static_cast<size_t>(std::countr_zero(left))];
  if (r.shared) count_wavefronts(of_lanes.data(), static_cast<int>(n), r.bytes);
  else count_sectors(r, std::span(of_lanes).first(n));
}

}  // namespace

void end_requests(int number, uint32_t mask) {
  Warp& warp = g_warps[static_cast<size_t>(number)];
  for (Site* site : warp.open) {
    for (const Request& r : site->requests)
      if (r.lanes != 0) count_request(r);
    site->requests.clear();
    site->open = false;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if ((mask >> lane & 1) != 0) site->count[lane] = 0;
      site->open = site->open || site->count[lane] != 0;
    }
  }
  std::erase_if(warp.open, [](const Site* site) { return !site->open; });
}

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
  if (m.threads != m.block_threads && m.rank_of(touch.thread) != m.rank_of(later.thread)) return false;
  if (touch.block_epoch != later.block_epoch) return touch.block_epoch < later.block_epoch;
  return touch.thread / kLanes == later.thread / kLanes && touch.warp_epoch < later.warp_epoch;
}

bool ordered(const Touch& before, const Touch& now) {
  const Machine& m = machine();
  if (before.thread < 0 || before.thread == now.thread) return true;
  if (!m.clocks.empty()) {
    const Clock& clock = m.clocks[static_cast<size_t>(now.thread)];
    if (clock[static_cast<size_t>(before.thread)] >= before.time) return true;
  }
  // A barrier of the block does not wait for box copies.
  return before.thread < m.threads && behind_barrier(before, now);
}
bool ordered(const Touch& before, const Fiber& now) { return ordered(before, touch_now(now)); }

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
  const TouchNumber number = number_of(by);
  OrderedBefore before(touch_now(*machine().now));
  Shadow* const shadows = shadows_of(offset, bytes);
  for (size_t k = 0; k < bytes; ++k) {
    Shadow& s = shadows[k];
    const Touch* race = race_at(s, write, before);
    const Touch& written = g_touches[s.write];
    const bool seen = fenced(written);
    if (!s.mbarrier && race == nullptr && seen) {
      (write ? s.write : s.read) = number;
      continue;
    }
    const std::string at = " at byte " + std::to_string(offset + k) + " of shared memory";
    if (s.mbarrier) fail("a box copy meets an mbarrier" + at, place);
    if (race != nullptr) fail("race: a box copy without a barrier behind " + who(*race) + at, place);
    if (!seen) fail("a box copy may not see what " + who(written) + " wrote: no proxy fence" + at, place);
    return;
  }
}

void watch_mbarrier(const void* p) {
  const size_t offset = shared_offset(static_cast<const std::byte*>(p));
  Shadow* const shadows = shadows_of(offset, sizeof(uint64_t));
  for (size_t k = 0; k < sizeof(uint64_t); ++k) shadows[k].mbarrier = true;
}

// 16-byte accesses are served 8 lanes at a time, 8-byte ones 16, narrower ones 32.
void count_wavefronts(const uintptr_t* address, int n, size_t bytes) {
  const int at_once = bytes == 16 ? 8 : bytes == 8 ? 16 : 32;
  static std::array<std::vector<uintptr_t>, kBanks> words;
  for (int first = 0; first < n; first += at_once) {
    for (auto& bank : words) bank.clear();
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

void watch_access(const void* p, size_t bytes, bool write, const void* instruction, bool streamed) {
  Fiber* f = machine().now;
  if (f == nullptr) return;
  const auto* at = static_cast<const std::byte*>(p);
  const bool shared = in_shared(p);
  if (shared) {
    watch_shared(at, bytes, write, *f);
  } else if (!g_addresses.holds(at)) {
    return;  // the fiber's stack, arguments, constants
  } else if (const Allocation* a = allocation_of(p); a == nullptr) {
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
  // Else it is counted by who asks, or nothing counts.
  if (instruction != nullptr && has_l2()) note_access(*f, p, bytes, write, shared, streamed, instruction);
}

void begin_block() {
  Machine& m = machine();
  const int blocks = m.blocks();
  for (int rank = 0; rank < blocks; ++rank) {
    std::memset(m.shared_of(rank), static_cast<int>(kNan), m.shared_bytes);
    std::memset(m.shared_of(rank) + m.shared_bytes, static_cast<int>(kGuard), kGuardBytes);
  }
  ++m.cluster_epoch;
  if (g_tracing) {
    ++g_shadow_cluster;
    const size_t bytes = static_cast<size_t>(blocks) * m.shared_bytes;
    if (g_shadow.size() < bytes) g_shadow.resize(bytes);
    g_touches.assign(1, {});
  }
  begin_global_block();
  begin_bulk();
}

void finish_block() {
  Machine& m = machine();
  finish_bulk();
  for (int rank = 0; rank < m.blocks(); ++rank) {
    if (!guard_holds(m.shared_of(rank) + m.shared_bytes))
      fail("write beyond the shared memory of the launch");
  }
  if (!has_l2()) return;
  for (int warp = 0; warp * kLanes < m.threads; ++warp) end_requests(warp, ~0u);
  std::ranges::sort(g_requests, {}, &Sectors::order);
  for (const Sectors& r : g_requests) {
    for (const uintptr_t s : std::span(g_sectors).subspan(r.first, r.end - r.first))
      l2_access(s, r.write, r.streamed);
  }
  g_requests.clear();
  g_sectors.clear();
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
  const Allocation& a = g_allocations[base + kGuardBytes] = {base, bytes};
  g_addresses.set(a, &a);
  g_allocated += bytes;
  return base + kGuardBytes;
}

bool device_release(void* p) {
  const auto it = g_allocations.find(static_cast<std::byte*>(p));
  if (it == g_allocations.end()) return false;
  g_allocated -= it->second.bytes;
  g_addresses.set(it->second, nullptr);
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
                                           bool write, bool streamed) {
  if (g_tracing) watch_access(place, bytes, write, __builtin_return_address(0), streamed);
  switch (bytes) {  // in one instruction, not by a call
    case 4: std::memcpy(to, from, 4); break;
    case 8: std::memcpy(to, from, 8); break;
    case 16: std::memcpy(to, from, 16); break;
    default: std::memcpy(to, from, bytes);
  }
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
  f.sends = true;
}
void copy_async_commit() {
  Fiber& f = *machine().now;
  f.groups.push_back(std::exchange(f.open, {}));
  f.sends = true;
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
