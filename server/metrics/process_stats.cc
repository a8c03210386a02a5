#include "server/metrics/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace oar {

ProcessStats read_process_stats() {
  ProcessStats s;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t virtual_pages = 0, resident_pages = 0;
  if (std::ifstream statm("/proc/self/statm"); statm >> virtual_pages >> resident_pages) {
    s.virtual_bytes = virtual_pages * page;
    s.resident_bytes = resident_pages * page;
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    s.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  // This function's first call is close enough to the start, and never jumps with the clock.
  static const double start =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  s.start_time_seconds = start;
  std::error_code ec;
  for (std::filesystem::directory_iterator it("/proc/self/fd", ec), end; !ec && it != end; it.increment(ec))
    ++s.open_fds;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) s.max_fds = limit.rlim_cur;
  return s;
}

MachineStats read_machine_stats() {
  MachineStats s;
  std::ifstream stat("/proc/stat");
  std::string word;
  if (stat >> word && word == "cpu") {
    uint64_t ticks = 0;
    // user nice system idle iowait irq softirq steal; guests are part of user and nice.
    for (int k = 0; k < 8 && stat >> ticks; ++k) {
      s.ticks += ticks;
      if (k != 3 && k != 4) s.busy += ticks;
    }
  }
  uint64_t available = 0, kib = 0;
  std::ifstream meminfo("/proc/meminfo");
  while (meminfo >> word >> kib && available == 0) {
    if (word == "MemTotal:") s.memory_bytes = kib * 1024;
    if (word == "MemAvailable:") available = kib * 1024;
    std::getline(meminfo, word);
  }
  s.used_bytes = s.memory_bytes - std::min(available, s.memory_bytes);
  return s;
}

}  // namespace oar
