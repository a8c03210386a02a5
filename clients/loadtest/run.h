// One run against one server: requests go out at their times, every answer is read and timed. Nothing here
// prints.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "clients/loadtest/histogram.h"
#include "clients/loadtest/link.h"
#include "clients/loadtest/workload.h"
#include "engine/base/status.h"

namespace oar::loadtest {

using Clock = std::chrono::steady_clock;

struct Server {
  std::string host;
  std::string port;
  std::string base;  // path in front of the endpoint's, "" as a rule
  std::string url;   // as given
  bool tls = false;
  TlsOptions tls_options;
  std::shared_ptr<const LinkMaker> links;
};
// "http[s]://host[:port][/base]". INVALID_ARGUMENT; for https also what LinkMaker::tls says.
Result<Server> parse_server(const std::string& url, const TlsOptions& tls = {});

struct RunSpec {
  Server server;
  std::vector<std::string> headers;  // "Name: value", added to every request
  bool closed_loop = false;
  int64_t concurrency = 1;      // closed loop: requests under way
  int64_t max_in_flight = 0;    // open loop: more wait in the client, and their waiting counts; 0: no limit
  int threads = 1;              // of the client
  bool spin = false;            // they look for answers all the time: whoever sends one need not wake them
  int connections = 4;          // gRPC: calls are spread over so many; HTTP opens what it needs
  double duration = 0;          // seconds after which nothing new is sent; 0: until the plans are used up
  double timeout = 600;         // seconds of one request
  double stall_timeout = 60;    // seconds without a byte
  double connect_timeout = 10;  // seconds
  bool keep_texts = false;      // answers, for checks and conversations
  bool keep_gaps = false;       // gaps between chunks of every request
  int64_t slow_bytes_per_second = 2048;     // of a slow reader
  const std::atomic<bool>* stop = nullptr;  // set: nothing new, what is under way is dropped
};

// One request, in nanoseconds from the start of the run. -1: did not happen.
struct Record {
  int64_t index = 0, turn = 0;
  int64_t intended = 0;    // when it should have been sent
  int64_t dispatched = 0;  // when the client got round to it: minus `intended`, the client's own lateness
  int64_t sent = -1;       // first byte handed to the kernel
  int64_t first = -1;      // first output arrived
  int64_t last = -1;       // last output arrived
  int64_t end = -1;        // response complete
  int64_t prompt_tokens = 0, output_tokens = 0;
  bool counted_by_server = false;  // token numbers are the server's `usage`; else chunks were counted
  bool cancelled = false, slow = false;
  int64_t chunks = 0;
  unsigned http_status = 0;  // gRPC: its status code
  std::string error;         // empty: it went well
  std::string text;
  std::vector<float> gaps;  // milliseconds between chunks with output
  bool ok() const { return error.empty() && !cancelled; }
};

struct RunResult {
  std::vector<Record> records;  // in the order of `index`, then `turn`
  Histogram gaps;               // ITL, nanoseconds
  double seconds = 0;           // first intended time to last end
  int64_t bytes = 0;            // of bodies
  int64_t chunks = 0;
  double cpu_seconds = 0;  // of this process
};

// What a live view shows.
struct LoadProgress {
  std::atomic<int64_t> dispatched{0}, in_flight{0}, finished{0}, failed{0}, tokens{0};
};

// Blocks until every request has ended. UNAVAILABLE when the server's name cannot be resolved; failures of
// single requests are in their records.
Result<RunResult> run_load(const RunSpec& spec, const Workload& workload, const std::vector<Plan>& plans,
                           LoadProgress* progress = nullptr);

}  // namespace oar::loadtest
