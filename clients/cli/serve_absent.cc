// `oar serve` and `oar repository` in a build without the server (OAR_SERVER=OFF): say so.
#include <cstdio>

#include "clients/cli/command.h"

namespace oar::cli {

namespace {
void add_absent(CLI::App& app, Action& action, const char* name) {
  CLI::App* c = app.add_subcommand(name, "(not in this build: configured with OAR_SERVER=OFF)");
  c->allow_extras();
  c->callback([&action] {
    action = [] {
      std::fprintf(
          stderr,
          "oar: this build has no server (OAR_SERVER=OFF, preset `embed`). Build the preset `release` for "
          "`oar serve`, or use `oar run` and `oar generate`.\n");
      return kUsage;
    };
  });
}
}  // namespace

void add_serve(CLI::App& app, Action& action) { add_absent(app, action, "serve"); }
void add_repository(CLI::App& app, Action& action) { add_absent(app, action, "repository"); }

}  // namespace oar::cli
