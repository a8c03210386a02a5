// The life of `oar serve` once it listens:
//
//   starting -> "ready" -> (signal) not ready, running requests get `drain` to finish -> kSuccess
//                       -> (engine failure) everything is cut off -> kFailure
//
// After a failure a supervisor restarts the process.
// A second signal ends the process at once (signals.h).
#pragma once

#include <chrono>
#include <vector>

#include "clients/cli/signals.h"
#include "engine/runtime/engine.h"
#include "server/server.h"

namespace oar::cli {

// Returns the program's exit code. `engines` are those of the language models, perhaps none; an engine's
// failure may come before it was ever ready.
int serve_until_end(Server& server, const std::vector<Engine*>& engines, SignalWatcher& signals,
                    std::chrono::milliseconds drain);

}  // namespace oar::cli
