// How long the calling thread has waited for a processor while it was ready to run: what tells a worker that
// was kept from its work from one whose work was long. Linux counts it for every thread (schedstat); asking
// is a system call of about a microsecond, so the pool asks only when something took suspiciously long.
#pragma once

#include <cstdint>

namespace oar {

class RunDelay {
 public:
  RunDelay() = default;  // not open: total_ns() is 0
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;
  ~RunDelay();
  // For the calling thread, which alone may ask from then on. Where the kernel does not say, or no
  // descriptor is free, nothing is opened.
  void open();
  uint64_t total_ns() const;

 private:
  int fd_ = -1;
};

}  // namespace oar
