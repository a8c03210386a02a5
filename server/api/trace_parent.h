// The W3C trace context of a request: which trace it belongs to, and which span of the caller it is under.
// https://www.w3.org/TR/trace-context/#traceparent-header
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace oar::api {

struct TraceParent {
  std::string trace;    // 32 lowercase hexadecimal digits, not all zero
  std::string span;     // 16 of them, not all zero
  bool sampled = true;  // whether the caller keeps the trace
};

// Nothing where the header is not of the form that the standard gives; the standard says to begin a new trace
// then. Versions to come are read as far as they agree with the first.
std::optional<TraceParent> parse_traceparent(std::string_view header);
std::string format_traceparent(const TraceParent& parent);
// So many random bytes in lowercase hexadecimal.
std::string random_hex(int bytes);

}  // namespace oar::api
