// "/proc/thread-self/schedstat": nanoseconds run, nanoseconds waited, slices.
#include "kernels/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>

namespace oar {

RunDelay::~RunDelay() {
  if (fd_ >= 0) close(fd_);
}

void RunDelay::open() {
  if (fd_ < 0) fd_ = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

uint64_t RunDelay::total_ns() const {
  char text[96];
  const ssize_t n = fd_ < 0 ? -1 : pread(fd_, text, sizeof text, 0);
  if (n <= 0) return 0;
  const char *at = text, *const end = text + n;
  while (at < end && *at != ' ') ++at;  // the time it ran
  uint64_t waited = 0;
  if (at == end || std::from_chars(at + 1, end, waited).ec != std::errc()) return 0;
  return waited;
}

}  // namespace oar
