#include "engine/runtime/chrome_trace.h"

#include <algorithm>

#include "engine/base/json.h"

namespace oar {

std::string chrome_trace(std::span<const NodeTime> times, const std::string& process) {
  uint64_t origin = UINT64_MAX;
  for (const NodeTime& t : times) origin = std::min(origin, t.start_ns);
  const auto us = [](uint64_t ns) { return static_cast<double>(ns) * 1e-3; };
  json::array events;
  events.push_back(
      json::object{{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", process}}}});
  for (const NodeTime& t : times) {
    events.push_back(json::object{{"ph", "X"},
                                  {"pid", 1},
                                  {"tid", 1},
                                  {"cat", "op"},
                                  {"name", t.op},
                                  {"ts", us(t.start_ns - origin)},
                                  {"dur", us(t.end_ns - t.start_ns)},
                                  {"args", {{"node", t.name}, {"where", t.where}}}});
  }
  return json::serialize(json::object{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}});
}

}  // namespace oar
