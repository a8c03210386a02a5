#include "clients/loadtest/summary.h"

#include <charconv>
#include <cmath>

#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

bool within(const std::optional<double>& limit_ms, double nanoseconds) {
  return !limit_ms || nanoseconds * 1e-6 <= *limit_ms;
}

}  // namespace

double to_ms(double nanoseconds) { return nanoseconds * 1e-6; }

Result<Goodput> parse_goodput(const std::string& text) {
  Goodput g;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find_first_of(" ,");
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (word.empty()) continue;
    const size_t colon = word.find(':');
    const std::string_view name = word.substr(0, colon);
    const std::string_view value =
        colon == std::string_view::npos ? std::string_view() : word.substr(colon + 1);
    double ms = 0;
    const auto r = std::from_chars(value.data(), value.data() + value.size(), ms);
    auto* limit = name == "ttft" ? &g.ttft : name == "tpot" ? &g.tpot : name == "e2el" ? &g.e2el : nullptr;
    if (limit == nullptr || r.ec != std::errc() || r.ptr != value.data() + value.size() || !(ms > 0))
      return invalid_argument(
          cat("goodput: '", word, "' is none of ttft:MS, tpot:MS, e2el:MS with a number of milliseconds > 0"),
          "goodput");
    *limit = ms;
  }
  return g;
}

Summary summarize(const RunResult& run, const RunSpec& spec, const Goodput& limits) {
  Summary s;
  s.requests = static_cast<int64_t>(run.records.size());
  s.seconds = run.seconds;
  s.itl = run.gaps;
  s.cpu_seconds = run.cpu_seconds;
  s.chunks = run.chunks;
  for (const Record& r : run.records) {
    if (!spec.closed_loop && r.turn == 0) s.slip.record(r.dispatched - r.intended);
    if (r.cancelled) {
      ++s.cancelled;
      continue;
    }
    if (!r.error.empty()) {
      ++s.failed;
      continue;
    }
    ++s.completed;
    s.input_tokens += r.prompt_tokens;
    s.output_tokens += r.output_tokens;
    s.counted_by_server = s.counted_by_server && r.counted_by_server;
    const int64_t first =
        r.first >= 0 ? r.first : r.end;  // an answer without output: nothing came but its end
    s.ttft.record(first - r.sent);
    s.ttft_intended.record(first - r.intended);
    s.e2el.record(r.end - r.sent);
    s.e2el_intended.record(r.end - r.intended);
    double tpot = 0;
    if (r.output_tokens > 1) {
      tpot = static_cast<double>(r.end - first) / static_cast<double>(r.output_tokens - 1);
      s.tpot.record(std::llround(tpot));
    }
    s.good += within(limits.ttft, static_cast<double>(first - r.intended)) && within(limits.tpot, tpot) &&
              within(limits.e2el, static_cast<double>(r.end - r.intended));
  }
  s.slip_p99_ms = to_ms(static_cast<double>(s.slip.percentile(99)));
  s.valid = s.slip_p99_ms <= Summary::kMaxSlipMs;
  return s;
}

}  // namespace oar::loadtest
