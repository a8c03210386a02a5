// oar serve: a model behind HTTP and gRPC until SIGTERM or SIGINT.
// What happens then is in serve_loop.h.
#include "server/server.h"

#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/serve_loop.h"
#include "clients/cli/signals.h"
#include "engine/base/format.h"

namespace oar::cli {
namespace {

struct ServeOptions {
  ModelOptions model;
  ServerOptions server;
  double drain_seconds = 30;
};

void print_facts(const ModelInfo& i) {
  std::printf("model    %s (%s, %.1f M parameters) from %s\n", i.name.c_str(), i.architecture.c_str(),
              static_cast<double>(i.parameters) / 1e6, i.path.c_str());
  std::printf("weights  %s as %s, loaded in %.2f s\n", format_bytes(i.weight_bytes).c_str(),
              i.weights.c_str(), i.load_seconds);
  std::printf("KV       %s as %s: %d blocks of %d tokens, %s per token, context %lld\n",
              format_bytes(i.kv_bytes).c_str(), i.kv.c_str(), i.num_blocks, i.page_tokens,
              format_bytes(i.kv_bytes_per_token).c_str(), static_cast<long long>(i.max_context));
  std::printf("compute  %d threads, %s, scratch %s\n", i.threads, i.isa.c_str(),
              format_bytes(i.scratch_bytes).c_str());
}

// host:port with the port that was really opened.
std::string with_port(const std::string& address, int port) {
  return cat(std::string_view(address).substr(0, address.rfind(':')), ":", port);
}

int serve(const ServeOptions& o) {
  const auto drain = std::chrono::milliseconds(static_cast<int64_t>(o.drain_seconds * 1000));
  SignalWatcher signals;
  auto model = open_model(o.model, LogLevel::kInfo, [&] { return signals.requested(); });
  if (signals.requested()) {
    std::fprintf(stderr, "stopped while loading\n");
    return kSuccess;
  }
  if (!model.ok()) return fail(model.status());
  print_facts((*model)->info());

  std::string path;
  auto engine_facts = engine_options(o.model, LogLevel::kInfo, path);
  if (!engine_facts.ok()) return fail(engine_facts.status());
  ServerOptions server_options = o.server;
  server_options.log = engine_facts->log;
  auto server = Server::start(server_options, {make_handle(**model)});
  if (!server.ok()) return fail(server.status());
  if ((*server)->http_port() != 0) {
    std::printf("http     http://%s\n", with_port(o.server.http_address, (*server)->http_port()).c_str());
  }
  if ((*server)->grpc_port() != 0) {
    std::printf("grpc     %s\n", with_port(o.server.grpc_address, (*server)->grpc_port()).c_str());
  }
  std::fflush(stdout);

  return serve_until_end(**server, (*model)->engine(), signals, drain);
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* c = app.add_subcommand("serve", "Serve a model over HTTP (OpenAI-compatible) and gRPC");
  add_model_options(*c, o->model);
  c->add_option("--http", o->server.http_address, "host:port of HTTP; port 0 picks a free one, empty: none")
      ->capture_default_str();
  c->add_option("--grpc", o->server.grpc_address, "host:port of gRPC; port 0 picks a free one, empty: none")
      ->capture_default_str();
  c->add_option("--name", o->model.engine.name, "what clients call the model; default: from its path");
  c->add_option("--api-key", o->server.api_key,
                "require this bearer token of every request but health checks")
      ->envname("OAR_API_KEY");
  c->add_option("--api-key-file", o->server.api_key_file,
                "accept the keys in this file, one per line; read again when it changes")
      ->envname("OAR_API_KEY_FILE");
  c->add_option("--cors-origin", o->server.cors_origins,
                "an origin whose browser pages may call; may be repeated")
      ->allow_extra_args(false);
  c->add_option("--max-waiting", o->model.engine.max_waiting, "requests queued before new ones are refused")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--drain-timeout", o->drain_seconds, "seconds that running requests get after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  c->footer(
      "Examples:\n"
      "  oar serve demo\n"
      "  oar serve ./Llama-3.2-1B --weights int8 --memory 6GiB --max-context 8192\n"
      "  oar serve model.gguf --http 0.0.0.0:8000 --grpc '' --api-key \"$KEY\"\n"
      "  curl -N localhost:8000/v1/completions -d "
      "'{\"model\":\"demo\",\"prompt\":\"ROMEO:\",\"stream\":true}' \\\n"
      "       -H 'content-type: application/json'\n"
      "SIGTERM or Ctrl-C finishes what is running and exits 0; a second one ends at once.\n"
      "An engine failure exits 1.");
  c->callback([o, &action] { action = [o] { return serve(*o); }; });
}

}  // namespace oar::cli
