// How records look in a trace's file. Two formats: Chrome's, for people to look at, and OpenTelemetry's, for
// collectors (docs/traces.md).
//
// Threads: the trace's writer.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/runtime/trace_event.h"
#include "server/api/trace_records.h"

namespace oar::api {

enum class TraceKind { kChrome, kOtlp };

class TraceFormat {
 public:
  virtual ~TraceFormat() = default;
  // Each appends whole events, and what must stand between them and those before.
  virtual void begin(std::string& out) = 0;
  virtual void add(std::string& out, const TraceRecord& record) = 0;
  // Of the trace itself: that it lost something, or why it ends.
  virtual void mark(std::string& out, std::string_view name, std::span<const TraceArgument> args) = 0;
  virtual std::string_view end() const = 0;
};

// The moment that times are counted from, by both clocks.
struct TraceOrigin {
  Clock::time_point at;
  int64_t unix_ns = 0;

  static TraceOrigin now();
  int64_t since(Clock::time_point t) const { return (t - at) / std::chrono::nanoseconds(1); }
};
std::unique_ptr<TraceFormat> make_chrome_format(TraceOrigin origin);
std::unique_ptr<TraceFormat> make_otlp_format(TraceOrigin origin);

}  // namespace oar::api
