#include "engine/runtime/chrome_trace.h"

#include <algorithm>

#include "engine/runtime/trace_event.h"

namespace oar {

std::string chrome_trace(std::span<const NodeTime> times, const std::string& process) {
  uint64_t origin = UINT64_MAX;
  for (const NodeTime& t : times) origin = std::min(origin, t.start_ns);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  append_event(out, {.phase = TracePhase::kName, .name = "process_name"}, {{"name", process}});
  for (const NodeTime& t : times) {
    out += ",\n";
    append_event(out,
                 {.name = t.op,
                  .category = "op",
                  .at_ns = static_cast<int64_t>(t.start_ns - origin),
                  .duration_ns = static_cast<int64_t>(t.end_ns - t.start_ns)},
                 {{"node", t.name}, {"where", t.where}});
  }
  out += "\n]}\n";
  return out;
}

}  // namespace oar
