// What the loopback plug-in counts, for tests (oar_loopback_counter).
#pragma once

namespace loopback {

enum Counter {
  kOpenDevices,
  kAllocations,      // alive
  kHostAllocations,  // alive
  kLaunches,
  kAsyncCopies,
  kEvents,  // recorded
  kCaptures,
  kReplays,
  kNumCounters,
};

}  // namespace loopback
