// What the operating system says of this process, for the standard process_* metrics, and of the machine.
// Linux's /proc; zeros elsewhere.
#pragma once

#include <cstdint>

namespace oar {

struct ProcessStats {
  uint64_t resident_bytes = 0, virtual_bytes = 0;
  double cpu_seconds = 0, start_time_seconds = 0;
  uint64_t open_fds = 0, max_fds = 0;
};

ProcessStats read_process_stats();

// The machine's processors since it started, in ticks, and its memory now.
struct MachineStats {
  uint64_t busy = 0, ticks = 0;
  uint64_t memory_bytes = 0, used_bytes = 0;
};

MachineStats read_machine_stats();

}  // namespace oar
