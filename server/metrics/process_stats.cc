#include "server/metrics/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

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

}  // namespace oar
