// What the machine can do, before anything of ours runs on it.
#pragma once

#include "engine/base/status.h"

namespace oar::cli {

// Measures and prints: memory reads of `threads` (0: all usable CPUs) and of one thread, and the peak
// of each arithmetic at each level of instructions the processor has. Medians of `rounds`.
Status print_machine_probe(int threads, int64_t rounds, bool as_json);

}  // namespace oar::cli
