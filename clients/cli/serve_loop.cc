#include "clients/cli/serve_loop.h"

#include <algorithm>
#include <cstdio>

#include "clients/cli/command.h"

namespace oar::cli {
namespace {

bool any(const std::vector<Engine*>& engines, EngineHealth health) {
  return std::any_of(engines.begin(), engines.end(), [&](Engine* e) { return e->health() == health; });
}

// Until a signal (true) or an engine's end (false).
bool watch(const std::vector<Engine*>& engines, SignalWatcher& signals) {
  constexpr std::chrono::milliseconds kLook{200};
  while (!signals.wait_for(kLook)) {
    if (any(engines, EngineHealth::kFailed)) return false;
  }
  return true;
}

}  // namespace

int serve_until_end(Server& server, const std::vector<Engine*>& engines, SignalWatcher& signals,
                    std::chrono::milliseconds drain) {
  while (!signals.requested() && any(engines, EngineHealth::kStarting)) {
    signals.wait_for(std::chrono::milliseconds(20));
  }
  if (!any(engines, EngineHealth::kStarting) && !any(engines, EngineHealth::kFailed)) {
    std::printf("ready\n");
    std::fflush(stdout);
  }
  if (!watch(engines, signals)) {
    server.drain_and_stop(std::chrono::milliseconds(0));
    std::fprintf(stderr, "oar: an engine has failed; see the log above. Restart the server.\n");
    return kFailure;
  }
  std::fprintf(stderr, "stopping: no new requests; those running have %.0f s\n",
               std::chrono::duration<double>(drain).count());
  server.set_ready(false);
  const bool clean = server.drain_and_stop(drain);
  if (!clean) std::fprintf(stderr, "stopped; requests that were still running have been cut off\n");
  return kSuccess;
}

}  // namespace oar::cli
