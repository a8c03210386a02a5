#include "clients/loadtest/search.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"

namespace oar::loadtest {

bool meets(const Summary& s, double share) {
  return s.valid && s.requests > 0 && static_cast<double>(s.good) >= share * static_cast<double>(s.requests);
}

Result<SearchResult> search_rate(const SearchSpec& spec, const std::function<Result<Summary>(double)>& run) {
  if (!(spec.start > 0) || !(spec.highest >= spec.start) || !(spec.precision > 0) ||
      !(spec.share > 0 && spec.share <= 1))
    return invalid_argument("search: needs 0 < rate <= highest rate, precision > 0 and a share in (0, 1]",
                            "search");
  SearchResult out;
  double low = 0, high = 0;  // met; not met (0: none known)
  const auto attempt = [&](double rate) -> Status {
    OAR_ASSIGN(Summary summary, run(rate));
    if (low == 0 && !summary.valid) {
      return unavailable(cat("search: at ", rate, " requests/s this client was late by ", summary.slip_p99_ms,
                             " ms at p99, which says nothing about the server; leave it a CPU of its own, "
                             "or try --threads"));
    }
    const bool met = meets(summary, spec.share);
    (met ? low : high) = rate;
    out.steps.push_back({rate, met, std::move(summary)});
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(attempt(spec.start));
  constexpr int kMostHalvings = 10;  // from the start down: a thousandth of it
  for (int i = 0; low == 0 && i < kMostHalvings; ++i) OAR_RETURN_IF_ERROR(attempt(high / 2));
  if (low == 0) return out;
  while (high == 0 && low < spec.highest) OAR_RETURN_IF_ERROR(attempt(std::min(low * 2, spec.highest)));
  while (high > low * (1 + spec.precision)) OAR_RETURN_IF_ERROR(attempt(std::sqrt(low * high)));
  out.rate = low;
  return out;
}

}  // namespace oar::loadtest
