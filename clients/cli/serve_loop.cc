#include "clients/cli/serve_loop.h"

#include <algorithm>
#include <cstdio>

#include "clients/cli/command.h"

namespace oar::cli {
namespace {

bool any(const api::ModelCatalog& catalog, EngineHealth health) {
  const std::vector<api::ServedModel> models = catalog.loaded();
  return std::any_of(models.begin(), models.end(), [&](const api::ServedModel& m) {
    return m.language && m.language->engine->health() == health;
  });
}

// Until a signal (true) or an engine's end (false).
bool watch(const api::ModelCatalog& catalog, SignalWatcher& signals) {
  constexpr std::chrono::milliseconds kLook{200};
  while (!signals.wait_for(kLook)) {
    if (any(catalog, EngineHealth::kFailed)) return false;
  }
  return true;
}

}  // namespace

int serve_until_end(Server& server, const api::ModelCatalog& catalog, SignalWatcher& signals,
                    std::chrono::milliseconds drain) {
  while (!signals.requested() && any(catalog, EngineHealth::kStarting)) {
    signals.wait_for(std::chrono::milliseconds(20));
  }
  if (!any(catalog, EngineHealth::kStarting) && !any(catalog, EngineHealth::kFailed)) {
    std::printf("ready\n");
    std::fflush(stdout);
  }
  if (!watch(catalog, signals)) {
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
