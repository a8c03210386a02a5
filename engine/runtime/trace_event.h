// Events of the Trace Event Format, which chrome://tracing and https://ui.perfetto.dev read:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A file of them is an
// array, or an object with the array in "traceEvents"; who writes the file places what stands around and
// between.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace oar {

// The letters of "ph".
enum class TracePhase : char {
  kSlice = 'X',       // a stretch of time on a track; slices of one track nest or lie apart
  kAsyncBegin = 'b',  // the same for stretches that overlap others: those of one id nest
  kAsyncEnd = 'e',
  kMark = 'i',     // a moment of the whole process
  kCounter = 'C',  // the values in `args` from here on
  kName = 'M',     // "process_name" or "thread_name"; the name is in `args`
};

struct TraceEvent {
  TracePhase phase = TracePhase::kSlice;
  std::string_view name;
  std::string_view category;  // asynchronous events must have one; empty: none
  int32_t process = 1;        // a group of tracks
  int32_t track = 1;          // within its process; of slices and names
  uint64_t id = 0;            // of asynchronous events
  int64_t at_ns = 0;          // from any common origin; names have no time
  int64_t duration_ns = 0;    // of slices
};

struct TraceArgument {
  std::string_view name;
  std::variant<int64_t, std::string_view> value;
};

// Appends one event as a JSON object without a line break. Times are written in microseconds with three
// decimals, to the nanosecond and without an exponent, which not every reader takes. Ill-formed UTF-8 becomes
// U+FFFD.
void append_event(std::string& out, const TraceEvent& event, std::span<const TraceArgument> args);
inline void append_event(std::string& out, const TraceEvent& event,
                         std::initializer_list<TraceArgument> args = {}) {
  append_event(out, event, std::span(args.begin(), args.size()));
}

}  // namespace oar
