#include "clients/cli/serve_loop.h"

#include <cstdio>

#include "clients/cli/command.h"

namespace oar::cli {
namespace {

// Until a signal (true) or the engine's end (false).
bool watch(Engine& engine, SignalWatcher& signals) {
  constexpr std::chrono::milliseconds kLook{200};
  while (!signals.wait_for(kLook)) {
    if (engine.health() == EngineHealth::kFailed) return false;
  }
  return true;
}

}  // namespace

int serve_until_end(Server& server, Engine& engine, SignalWatcher& signals, std::chrono::milliseconds drain) {
  while (!signals.requested() && engine.health() == EngineHealth::kStarting) {
    signals.wait_for(std::chrono::milliseconds(20));
  }
  if (engine.health() == EngineHealth::kReady) {
    std::printf("ready\n");
    std::fflush(stdout);
  }
  if (!watch(engine, signals)) {
    server.drain_and_stop(std::chrono::milliseconds(0));
    std::fprintf(stderr, "oar: the engine has failed; see the log above. Restart the server.\n");
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
