// oar serve: one model, or a folder of models, behind HTTP and gRPC until SIGTERM or SIGINT.
// What happens then is in serve_loop.h.
#include <algorithm>
#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/heap_keeper.h"
#include "clients/cli/model_options.h"
#include "clients/cli/serve_loop.h"
#include "clients/cli/serve_models.h"
#include "clients/cli/serve_options.h"
#include "clients/cli/signals.h"
#include "clients/cli/vertex_words.h"
#include "engine/base/descriptors.h"
#include "engine/base/format.h"
#include "engine/runtime/batched_predictor.h"
#include "kernels/thread_pool.h"
#include "server/server.h"

namespace oar::cli {
namespace {

constexpr int kTensorMessageBytes = 64 << 20;

void print_facts(const ModelInfo& i) {
  std::printf("model    %s (%s, %.1f M parameters) from %s\n", i.name.c_str(), i.architecture.c_str(),
              static_cast<double>(i.parameters) / 1e6, i.path.c_str());
  std::printf("weights  %s as %s, loaded in %.2f s\n", format_bytes(i.weight_bytes).c_str(),
              i.weights.c_str(), i.load_seconds);
  if (!i.draft.empty())
    std::printf("draft    %s (%s, %.1f M parameters), weights %s\n", i.draft.c_str(),
                i.draft_architecture.c_str(), static_cast<double>(i.draft_parameters) / 1e6,
                format_bytes(i.draft_weight_bytes).c_str());
  std::printf("KV       %s as %s: %d blocks of %d tokens, %s per token, context %lld\n",
              format_bytes(i.kv_bytes).c_str(), i.kv.c_str(), i.num_blocks, i.page_tokens,
              format_bytes(i.kv_bytes_per_token).c_str(), static_cast<long long>(i.max_context));
  std::printf("compute  %d threads, %s, scratch %s\n", i.threads, i.isa.c_str(),
              format_bytes(i.scratch_bytes).c_str());
}

// A connection that finds no descriptor is not accepted at all, not even a probe's.
void fit_connections(http::Limits& limits, const Logger& log) {
  constexpr size_t kOthers = 512;  // model files, gRPC, the metrics listener, probes
  const size_t descriptors = raise_descriptor_limit();
  const size_t room = descriptors > 2 * kOthers ? descriptors - kOthers : descriptors / 2;
  if (limits.max_connections <= room) return;
  log(LogLevel::kWarning, cat("max-connections: ", limits.max_connections, " are more than the ", descriptors,
                              " descriptors of this process allow (ulimit -n); ", room, " it is"));
  limits.max_connections = room;
}

// host:port with the port that was really opened.
std::string with_port(const std::string& address, int port) {
  return cat(std::string_view(address).substr(0, address.rfind(':')), ":", port);
}

void print_facts(const api::TensorModel& m) {
  const api::TensorModelConfig& c = m.config;
  std::printf("model    %s version %s (%s) from %s, loaded in %.2f s\n", c.name.c_str(), c.version.c_str(),
              c.platform.c_str(), c.path.c_str(), m.load_seconds);
  if (!c.steps.empty()) {
    std::string steps;
    for (const api::EnsembleStep& s : c.steps) steps += cat(steps.empty() ? "" : ", ", s.model);
    std::printf("  steps: %s\n", steps.c_str());
    return;
  }
  const TensorRunner& runner = dynamic_cast<const BatchedPredictor&>(*m.runner).model();
  for (const IoSpec& io : runner.inputs()) std::printf("  input  %s\n", io.to_string().c_str());
  for (const IoSpec& io : runner.outputs()) std::printf("  output %s\n", io.to_string().c_str());
  if (m.encoder) {
    const TextEncoder::Info& e = m.encoder->info();
    std::printf("  texts of up to %lld tokens: %s%s%s\n", static_cast<long long>(e.max_tokens),
                m.encoder->embeds() ? "/v1/embeddings, " : "", "/v1/rerank",
                m.encoder->classifies() ? ", /classify" : "");
  }
  if (c.max_batch == 0) {
    std::printf("  no batch axis: each request runs alone\n");
  } else {
    std::printf("  up to %lld rows of requests run together, %lld us of waiting for more, %d instance%s\n",
                static_cast<long long>(c.merge ? c.max_batch : 1),
                static_cast<long long>(c.max_queue_delay_us), c.instances, c.instances == 1 ? "" : "s");
  }
}

int serve(const ServeOptions& o) {
  HeapKeeper::use_one_arena();
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  };
  ServerOptions server_options = o.server;
  server_options.http_threads = std::min(server_options.http_threads, usable_processors());
  server_options.model_control = o.model_control == "explicit";
  for (const char* name : {"--trace-limit", "--trace-format"}) {
    if (!server_options.trace.empty() || !was_given(o, name)) continue;
    fail(invalid_argument(
        cat(name, ": it is about the file of --trace, and there is none; give --trace FILE")));
    return kUsage;
  }
  for (const char* name : {"--files-limit", "--batch-concurrency"}) {
    if (!server_options.files.empty() || !was_given(o, name)) continue;
    fail(invalid_argument(cat(name, ": it bounds files and batches, which are off; give --files DIR")));
    return kUsage;
  }
  if (const Status s = read_vertex_words(was_given(o, "--http"), server_options); !s.ok()) return fail(s);
  if (const Status s = Server::check(server_options); !s.ok()) return fail(s);
  SignalWatcher signals(true);
  std::string path;
  auto engine_facts = engine_options(o.model, LogLevel::kInfo, path);
  if (!engine_facts.ok()) return fail(engine_facts.status());
  const auto settings = std::make_shared<api::ServerSettings>(server_options.trace);
  server_options.settings = settings;
  engine_facts->log = api::ServerSettings::filtered(settings, engine_facts->log);
  server_options.log = engine_facts->log;
  for (const std::string& word : o.unread_words)
    engine_facts->log(LogLevel::kWarning, cat(word, " is set, and no option of `oar serve` is called so"));
  FoundModels found = find_served(path, o.model.engine.name, engine_facts->name);
  if (const Status s = check_options(o, found); !s.ok()) {
    fail(s);
    return kUsage;
  }
  if (const Status s = check_tune_seconds(o.model); !s.ok()) return fail(s);
  const bool ordinary = !found.folder.empty() || !found.has(api::ModelKind::kLanguage);
  auto catalog = open_models(o, *engine_facts, std::move(found), signals);
  if (signals.requested()) {
    std::fprintf(stderr, "stopped while loading\n");
    return kSuccess;
  }
  if (!catalog.ok()) return fail(catalog.status());
  for (const api::ServedModel& m : (*catalog)->loaded()) {
    if (m.language) print_facts(m.language->info);
    else print_facts(*m.tensor);
  }
  fit_connections(server_options.http_limits, engine_facts->log);
  if (ordinary) {
    // Images and batches of them are larger than prompts.
    server_options.http_limits.body_bytes = kTensorMessageBytes;
    server_options.grpc_limits.max_message_bytes = kTensorMessageBytes;
  }
  if (o.max_message_mib > 0) {
    server_options.http_limits.body_bytes = static_cast<size_t>(o.max_message_mib) << 20;
    server_options.grpc_limits.max_message_bytes = o.max_message_mib << 20;
  }
  auto server = Server::start(server_options, *catalog);
  if (!server.ok()) return fail(server.status());
  bool first = true;
  for (const std::string& address : http::addresses_in(server_options.http_address)) {
    std::printf("http     http%s://%s\n", o.server.tls.enabled() ? "s" : "",
                (first ? with_port(address, (*server)->http_port()) : address).c_str());
    first = false;
  }
  if ((*server)->grpc_port() != 0) {
    std::printf("grpc     %s%s\n", with_port(o.server.grpc_address, (*server)->grpc_port()).c_str(),
                o.server.tls.enabled() ? " (TLS)" : "");
  }
  if ((*server)->metrics_port() != 0) {
    std::printf("metrics  http://%s/metrics\n",
                with_port(o.server.metrics_address, (*server)->metrics_port()).c_str());
  }
  std::fflush(stdout);

  return serve_until_end(**server, **catalog, signals, milliseconds(o.drain_delay),
                         milliseconds(o.drain_seconds));
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* c = app.add_subcommand("serve", "Serve a model, or a folder of models, over HTTP and gRPC");
  add_serve_options(*c, *o);
  c->callback([o, c, &action] {
    std::string settings = finish_serve_options(*c, *o);
    action = [o, text = std::move(settings)] {
      if (!o->print_config) return serve(*o);
      std::fputs(text.c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace oar::cli
