// When requests are sent. Open loop: times are drawn beforehand and kept whatever the server does, so that
// waiting shows up as latency and not as a lower rate. Closed loop (concurrency) needs no times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace oar::loadtest {

enum class ArrivalKind : uint8_t { kClosed, kConstant, kPoisson, kGamma, kRamp, kBurst, kTrace };
Result<ArrivalKind> parse_arrival(const std::string& name);
const char* arrival_name(ArrivalKind kind);

struct ArrivalSpec {
  ArrivalKind kind = ArrivalKind::kClosed;
  double rate = 1;        // requests per second, > 0
  double burstiness = 1;  // gamma: shape of the gaps; 1 is Poisson, below 1 burstier (as in vLLM's benchmark)
  double rate_end = 0;    // ramp: from `rate` to this, linearly over the requests' time
  int64_t burst = 10;     // burst: so many at once, at `rate` on average
  int64_t count = 100;    // requests
  uint64_t seed = 0;
};

// Seconds from the start, ascending, `count` of them. The same spec gives the same times on every machine.
// INVALID_ARGUMENT naming the option. Not for kClosed and kTrace.
Result<std::vector<double>> arrival_times(const ArrivalSpec& spec);

// splitmix64: a number from a state, which it advances. https://prng.di.unimi.it/splitmix64.c
uint64_t next_random(uint64_t& state);

}  // namespace oar::loadtest
