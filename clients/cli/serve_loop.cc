#include "clients/cli/serve_loop.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "clients/cli/command.h"
#include "clients/cli/heap_keeper.h"

namespace oar::cli {
namespace {

bool any(const api::ModelCatalog& catalog, EngineHealth health) {
  const std::vector<api::ServedModel> models = catalog.loaded();
  return std::any_of(models.begin(), models.end(), [&](const api::ServedModel& m) {
    return m.language && m.language->engine->health() == health;
  });
}

// Until a signal (true) or an engine's end (false).
bool watch(Server& server, const api::ModelCatalog& catalog, SignalWatcher& signals) {
  constexpr std::chrono::milliseconds kLook{200};
  HeapKeeper heap;
  int hangups = 0;
  while (!signals.wait_for(kLook)) {
    if (any(catalog, EngineHealth::kFailed)) return false;
    heap.look();
    if (std::exchange(hangups, signals.hangups()) != signals.hangups()) server.reload_keys();
  }
  return true;
}

}  // namespace

int serve_until_end(Server& server, const api::ModelCatalog& catalog, SignalWatcher& signals,
                    std::chrono::milliseconds delay, std::chrono::milliseconds drain) {
  while (!signals.requested() && any(catalog, EngineHealth::kStarting)) {
    signals.wait_for(std::chrono::milliseconds(20));
  }
  if (!any(catalog, EngineHealth::kStarting) && !any(catalog, EngineHealth::kFailed)) {
    std::printf("ready\n");
    std::fflush(stdout);
  }
  if (!watch(server, catalog, signals)) {
    server.drain_and_stop(std::chrono::milliseconds(0));
    std::fprintf(stderr, "oar: an engine has failed; see the log above. Restart the server.\n");
    return kFailure;
  }
  server.set_ready(false);
  if (delay.count() > 0) {
    std::fprintf(stderr, "stopping: not ready any more; requests are taken for another %.0f s\n",
                 std::chrono::duration<double>(delay).count());
    std::this_thread::sleep_for(delay);
  }
  std::fprintf(stderr, "stopping: no new requests; those running have %.0f s\n",
               std::chrono::duration<double>(drain).count());
  const bool clean = server.drain_and_stop(drain);
  if (clean) return kSuccess;
  std::fprintf(stderr, "stopped; requests that were still running have been cut off\n");
  return kCutOff;
}

}  // namespace oar::cli
