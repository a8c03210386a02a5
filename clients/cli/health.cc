// oar health: asks a server whether it is ready. For container health checks and probes, which should need no
// other program.
#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/ranges.h"
#include "clients/cli/tls_options.h"
#include "clients/loadtest/http_request.h"

namespace oar::cli {
namespace {

struct HealthOptions {
  std::string url = "http://127.0.0.1:8000";
  loadtest::TlsOptions tls;
  bool live = false;
  double timeout = 3;
};

int health(const HealthOptions& o) {
  const auto server = loadtest::parse_server(o.url, o.tls);
  if (!server.ok()) return fail(server.status());
  const auto reply = loadtest::http_request(*server, "GET", o.live ? "/v2/health/live" : "/v2/health/ready",
                                            {}, {}, o.timeout);
  if (!reply.ok()) return fail(reply.status());
  std::printf("%s\n", reply->status == 200 ? (o.live ? "live" : "ready") : "not ready");
  return reply->status == 200 ? kSuccess : kFailure;
}

}  // namespace

void add_health(CLI::App& app, Action& action) {
  auto o = std::make_shared<HealthOptions>();
  CLI::App* c = app.add_subcommand("health", "Ask a server whether it is ready: exit code 0 when it is");
  c->add_option("--url", o->url, "http[s]://host:port")->capture_default_str();
  c->add_flag("--live", o->live, "whether it answers at all, also while it loads or drains");
  c->add_option("--timeout", o->timeout, "seconds")->check(above_zero())->capture_default_str();
  add_tls_options(*c, o->tls);
  c->footer(
      "Examples:\n"
      "  oar health\n"
      "  oar health --url http://127.0.0.1:8000 --live --timeout 1");
  c->callback([o, &action] { action = [o] { return health(*o); }; });
}

}  // namespace oar::cli
