// A profile as a file for chrome://tracing and https://ui.perfetto.dev: the JSON array of complete events of
// the Trace Event Format (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
#pragma once

#include <span>
#include <string>

#include "engine/runtime/predictor.h"

namespace oar {

// One event per node: named by its op, with the node's name as argument; microseconds from the first start.
std::string chrome_trace(std::span<const NodeTime> times, const std::string& process);

}  // namespace oar
