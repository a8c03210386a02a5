// Numbers of a run, after the definitions of vLLM's benchmark: TTFT is send to first output, ITL the gaps
// between chunks with output, TPOT (end-to-end - TTFT) / (output tokens - 1). Each latency is kept twice:
// from the actual and from the intended send time. The second is what a user waited, and shows queueing in
// front of the client's own limits, which the first leaves out (coordinated omission).
#pragma once

#include <optional>
#include <string>

#include "clients/loadtest/run.h"

namespace oar::loadtest {

// Limits in milliseconds; requests that meet all that are set count as good.
struct Goodput {
  std::optional<double> ttft, tpot, e2el;
  bool any() const { return ttft || tpot || e2el; }
};
// "ttft:200 tpot:50 e2el:2000", separated by spaces or commas. INVALID_ARGUMENT names the word.
Result<Goodput> parse_goodput(const std::string& text);

struct Summary {
  int64_t requests = 0, completed = 0, failed = 0, cancelled = 0;
  double seconds = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  bool counted_by_server = true;  // every completed request brought `usage`
  int64_t good = 0;
  Histogram ttft, tpot, itl, e2el;         // nanoseconds, from the actual send
  Histogram ttft_intended, e2el_intended;  // from the intended one
  Histogram slip;                          // open loop: how late the client itself was
  double slip_p99_ms = 0;
  bool valid = true;  // slip at p99 within kMaxSlipMs
  double cpu_seconds = 0;
  int64_t chunks = 0;

  static constexpr double kMaxSlipMs = 1;
  double per_second(int64_t n) const { return seconds > 0 ? static_cast<double>(n) / seconds : 0; }
};

Summary summarize(const RunResult& run, const RunSpec& spec, const Goodput& limits);
double to_ms(double nanoseconds);

}  // namespace oar::loadtest
