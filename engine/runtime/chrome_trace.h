// A profile of one run as a file for chrome://tracing and https://ui.perfetto.dev (trace_event.h).
#pragma once

#include <span>
#include <string>

#include "engine/runtime/predictor.h"

namespace oar {

// One event per node: named by its op, with the node's name as argument; times are from the first start.
std::string chrome_trace(std::span<const NodeTime> times, const std::string& process);

}  // namespace oar
