// What this processor, this kernel and this container allow: the instruction-set level and the number of
// processors. Asked once; nothing here is on a hot path.
#include <fcntl.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/thread_pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace oar {
namespace {

constexpr Isa kAllIsas[] = {Isa::kReference, Isa::kGeneric,    Isa::kNeon, Isa::kAvx2,
                            Isa::kAvx512,    Isa::kAvx512Vnni, Isa::kAmx};

#if defined(__x86_64__)

struct CpuidRegs {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidRegs cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidRegs r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr bool bit(uint32_t word, int n) { return ((word >> n) & 1u) != 0; }

// Register state the OS saves at a context switch (XCR0).
uint64_t enabled_state() {
  uint32_t lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (static_cast<uint64_t>(hi) << 32) | lo;
}

// Linux grants the 8 KB of AMX tile state per process and only when asked
// (Documentation/arch/x86/xstate.rst).
bool request_amx() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTiledata) == 0;
}

// Bit numbers: Intel SDM volume 2, CPUID.
Isa detect_isa() {
  const CpuidRegs l1 = cpuid(1, 0), l7 = cpuid(7, 0), l7s1 = cpuid(7, 1);
  const bool osxsave = bit(l1.ecx, 27);
  if (!osxsave) return Isa::kGeneric;
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  const uint64_t state = enabled_state();
  const auto os_saves = [state](uint64_t mask) { return (state & mask) == mask; };

  const bool avx2 = bit(l1.ecx, 12) /*FMA*/ && bit(l1.ecx, 29) /*F16C*/ && bit(l7.ebx, 5);
  if (!avx2 || !os_saves(kYmm)) return Isa::kGeneric;
  const bool avx512 =
      bit(l7.ebx, 16) /*F*/ && bit(l7.ebx, 17) /*DQ*/ && bit(l7.ebx, 30) /*BW*/ && bit(l7.ebx, 31) /*VL*/;
  if (!avx512 || !os_saves(kZmm)) return Isa::kAvx2;
  const bool vnni_bf16 = bit(l7.ecx, 11) && bit(l7s1.eax, 5);
  if (!vnni_bf16) return Isa::kAvx512;
#ifdef OAR_SOFTWARE_TILES
  // Slower than what stands in for them: only where OAR_ISA asks.
  const char* asked = std::getenv("OAR_ISA");
  const bool tiles = asked != nullptr && std::strcmp(asked, isa_name(Isa::kAmx)) == 0;
  return tiles && bit(l7.ecx, 1) /*AVX512_VBMI*/ ? Isa::kAmx : Isa::kAvx512Vnni;
#endif
  const bool amx = bit(l7.edx, 24) /*TILE*/ && bit(l7.edx, 22) /*BF16*/ && bit(l7.edx, 25) /*INT8*/ &&
                   bit(l7.ecx, 1) /*AVX512_VBMI, as all that have AMX*/;
  if (!amx || !os_saves(kTiles) || !request_amx()) return Isa::kAvx512Vnni;
  return Isa::kAmx;
}

bool detect_avx_vnni() { return detect_isa() >= Isa::kAvx2 && bit(cpuid(7, 1).eax, 4); }
bool detect_avx512_vbmi() { return detect_isa() >= Isa::kAvx512Vnni && bit(cpuid(7, 0).ecx, 1); }

#elif defined(__aarch64__)
bool detect_avx_vnni() { return false; }
bool detect_avx512_vbmi() { return false; }
Isa detect_isa() { return Isa::kNeon; }  // part of the baseline of the architecture
#else
bool detect_avx_vnni() { return false; }
bool detect_avx512_vbmi() { return false; }
Isa detect_isa() { return Isa::kGeneric; }
#endif

// Whether the kernel's word `capability` of this process has all of `mask`.
bool has_capability([[maybe_unused]] unsigned long capability, [[maybe_unused]] unsigned long mask) {
#if defined(__aarch64__)
  return (getauxval(capability) & mask) == mask;
#else
  return false;
#endif
}

Isa capped_isa() {
  const Isa best = detect_isa();
  const char* cap = std::getenv("OAR_ISA");
  if (cap == nullptr) return best;
  for (Isa isa : kAllIsas) {
    if (std::strcmp(cap, isa_name(isa)) == 0) return std::min(isa, best);
  }
  return best;  // an unknown word caps nothing; `oar check` shows the level in use
}

// A small text file, or empty when it cannot be read.
std::string read_text(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text(16 * 1024, '\0');
  size_t used = 0;
  while (used < text.size()) {
    const ssize_t n = read(fd, text.data() + used, text.size() - used);
    if (n <= 0) break;
    used += static_cast<size_t>(n);
  }
  close(fd);
  text.resize(used);
  return text;
}

// Processors a quota of `quota` us per `period` us amounts to, rounded up; 0 when there is no limit.
int quota_processors(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<long long>((quota + period - 1) / period, 1 << 20));
}

// The tighter of two limits, 0 meaning none.
int tighter(int a, int b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

int quota_v2(const std::string& dir) {  // cpu.max: "max 100000" or "150000 100000"
  const std::string text = read_text(dir + "/cpu.max");
  char* end = nullptr;
  const long long quota = std::strtoll(text.c_str(), &end, 10);
  return end == text.c_str() ? 0 : quota_processors(quota, std::strtoll(end, nullptr, 10));
}

int quota_v1(const std::string& dir) {
  const std::string quota = read_text(dir + "/cpu.cfs_quota_us"),
                    period = read_text(dir + "/cpu.cfs_period_us");
  return quota_processors(std::strtoll(quota.c_str(), nullptr, 10),
                          std::strtoll(period.c_str(), nullptr, 10));
}

// The tightest quota from the group of this process up to the root of the mount. Inside a container the path
// in /proc/self/cgroup may not exist under the mount; the mount's root is then the container's own group.
template <class Quota>
int quota_along(const std::string& mount, std::string group, Quota quota) {
  int limit = 0;
  while (true) {
    limit = tighter(limit, quota(mount + group));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return limit;
    group.resize(slash);
  }
}

// /proc/self/cgroup has lines "id:controllers:/path"; v2 is the line "0::/path".
int cgroup_processors() {
  const std::string text = read_text("/proc/self/cgroup");
  int limit = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,") {
      limit = tighter(limit, quota_along("/sys/fs/cgroup", group, quota_v2));
      limit = tighter(limit, quota_along("/sys/fs/cgroup/unified", group, quota_v2));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      limit = tighter(limit, quota_along("/sys/fs/cgroup/cpu", group, quota_v1));
      limit = tighter(limit, quota_along("/sys/fs/cgroup/cpu,cpuacct", group, quota_v1));
    }
  }
  return limit;
}

int affinity_processors() {
  // The mask of a machine with more than 1024 processors does not fit cpu_set_t: grow until the kernel
  // accepts.
  for (int processors = 1024; processors <= 1 << 20; processors *= 4) {
    const size_t bytes = CPU_ALLOC_SIZE(processors);
    std::vector<unsigned long> mask((bytes + sizeof(unsigned long) - 1) / sizeof(unsigned long), 0ul);
    cpu_set_t* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) == 0) return CPU_COUNT_S(bytes, set);
  }
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kReference: return "reference";
    case Isa::kGeneric: return "generic";
    case Isa::kNeon: return "neon";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Vnni: return "avx512vnni";
    case Isa::kAmx: return "amx";
  }
  return "unknown";
}

Isa best_isa() {
  static const Isa isa = capped_isa();
  return isa;
}

bool has_avx_vnni() {
  static const bool has = detect_avx_vnni();
  return has;
}

bool has_avx512_vbmi() {
  static const bool has = detect_avx512_vbmi();
  return has;
}

// HWCAP_ASIMDDP and HWCAP2_I8MM of asm/hwcap.h.
bool has_neon_dot() { return has_capability(AT_HWCAP, 1ul << 20); }
bool has_neon_i8mm() { return has_neon_dot() && has_capability(AT_HWCAP2, 1ul << 13); }

int usable_processors() {
  static const int processors = std::max(1, tighter(cgroup_processors(), std::max(1, affinity_processors())));
  return processors;
}

}  // namespace oar
