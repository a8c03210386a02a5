// oar version: what this build is and what it makes of this machine.
#include <cstdio>

#include "clients/cli/command.h"
#include "kernels/thread_pool.h"

namespace oar::cli {
namespace {

#ifdef OAR_WITH_SERVER
constexpr const char* kServer = "HTTP and gRPC";
#else
constexpr const char* kServer = "none (OAR_SERVER=OFF)";
#endif

int version() {
  std::printf("oar      %s\n", OAR_VERSION);
  std::printf("server   %s\n", kServer);
  std::printf("compiler %s\n", __VERSION__);
  std::printf("isa      %s\n", isa_name(best_isa()));
  std::printf("threads  %d usable\n", usable_processors());
  return kSuccess;
}

}  // namespace

void add_version(CLI::App& app, Action& action) {
  CLI::App* c = app.add_subcommand("version", "Version, build and instruction set");
  c->footer("Examples:\n  oar version");
  c->callback([&action] { action = version; });
}

}  // namespace oar::cli
