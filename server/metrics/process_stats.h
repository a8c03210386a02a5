// What the operating system says of this process, for the standard process_* metrics. Linux's /proc; zeros
// elsewhere.
#pragma once

#include <cstdint>

namespace oar {

struct ProcessStats {
  uint64_t resident_bytes = 0, virtual_bytes = 0;
  double cpu_seconds = 0, start_time_seconds = 0;
  uint64_t open_fds = 0, max_fds = 0;
};

ProcessStats read_process_stats();

}  // namespace oar
