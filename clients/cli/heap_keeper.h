// Gives back to the system what the allocator keeps of blocks that were freed between others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace oar::cli {

// One thread at a time.
class HeapKeeper {
 public:
  using Clock = std::chrono::steady_clock;
  // Before the first thread: all of them allocate from one arena. malloc_trim() gives back the end of that
  // one alone; of others up to 64 MiB each would stay.
  static void use_one_arena();
  // To be called now and then; looks once a second.
  void look(Clock::time_point now = Clock::now());

 private:
  void trim(Clock::time_point now, size_t unused);

  Clock::time_point looked_{}, trimmed_{};
  // Unused bytes: the fewest since the last trim, and at the last look.
  size_t least_ = SIZE_MAX, before_ = 0;
};

}  // namespace oar::cli
