// The highest rate that a server sustains within given limits, found by doubling and then halving.
#pragma once

#include <functional>
#include <vector>

#include "clients/loadtest/summary.h"

namespace oar::loadtest {

struct SearchSpec {
  double start = 1;         // requests per second to begin with
  double highest = 1e5;     // never beyond
  double share = 0.99;      // of the requests must be good (and none may fail beyond the rest)
  double precision = 0.05;  // ends when the bounds are this close, relatively
};

struct SearchStep {
  double rate = 0;
  bool met = false;
  Summary summary;
};

struct SearchResult {
  double rate = 0;  // the highest that met the limits; 0: not even the lowest tried did
  std::vector<SearchStep> steps;
};

// A rate is met when `share` of its requests are good and the client kept its schedule.
bool meets(const Summary& summary, double share);

// `run` makes one run at a rate. Ends with the first error of a run, and UNAVAILABLE when the client was late
// before any rate was met: at lower rates it would be late as well, in longer and longer runs. Once a rate
// was met a late client bounds the search like a slow server.
Result<SearchResult> search_rate(const SearchSpec& spec, const std::function<Result<Summary>(double)>& run);

}  // namespace oar::loadtest
