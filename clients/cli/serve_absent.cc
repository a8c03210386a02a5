// `oar serve` in a build without the server (OAR_SERVER=OFF): says so.
#include <cstdio>

#include "clients/cli/command.h"

namespace oar::cli {

void add_serve(CLI::App& app, Action& action) {
  CLI::App* c = app.add_subcommand("serve", "(not in this build: configured with OAR_SERVER=OFF)");
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

}  // namespace oar::cli
