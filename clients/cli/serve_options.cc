#include "clients/cli/serve_options.h"

#include <algorithm>

#include "clients/cli/calibration_files.h"
#include "clients/cli/command.h"
#include "clients/cli/option_file.h"
#include "clients/cli/ranges.h"
#include "clients/cli/sizes.h"

namespace oar::cli {

bool was_given(const ServeOptions& o, const char* name) {
  return std::find(o.given.begin(), o.given.end(), name) != o.given.end();
}

void add_serve_options(CLI::App& c, ServeOptions& o) {
  add_model_options(c, o.model, {.model_required = false, .kv = "int8"});
  add_lora_options(c, o.model, true);
  add_language_settings(c, o.language);
  c.add_option("--config", o.config,
               "file with options, one `key = value` per line, as in deploy/kubernetes/base/server.toml; the "
               "command line wins, then the environment: OAR_HTTP is --http, and so for every option")
      ->type_name("FILE")
      ->envname("OAR_CONFIG");
  c.add_flag("--print-config", o.print_config,
             "print every option as such a file, with where its value is from, and end");
  c.option_defaults()->group("Server");
  c.add_option("--http", o.server.http_address,
               "host:port of HTTP, or several with commas between; port 0 picks a free one, empty: none")
      ->capture_default_str();
  c.add_option("--grpc", o.server.grpc_address, "host:port of gRPC; port 0 picks a free one, empty: none")
      ->capture_default_str();
  c.add_option("--metrics", o.server.metrics_address,
               "host:port of a second HTTP listener with /metrics and health alone, without key or TLS");
  c.add_option("--request-log", o.server.request_log,
               "append a line of JSON for each generation request to this file (id, model, tokens, times, "
               "status); -: standard output");
  c.add_option("--trace", o.server.trace,
               "write this file anew with what each step or run of a model and each request took "
               "(docs/traces.md)")
      ->type_name("FILE");
  c.add_option_function<std::string>(
       "--trace-format",
       [&o](const std::string& text) {
         o.server.trace_kind = text == "otlp" ? api::TraceKind::kOtlp : api::TraceKind::kChrome;
       },
       "chrome: for ui.perfetto.dev and chrome://tracing; otlp: spans of requests, steps and runs in "
       "OpenTelemetry's JSON, one line for each")
      ->check(CLI::IsMember({"chrome", "otlp"}))
      ->default_str("chrome");
  c.add_option_function<std::string>(
       "--trace-limit", [&o](const std::string& text) { o.server.trace_bytes = *parse_size(text); },
       "what that file may take; then the trace ends, and the server goes on")
      ->check([](const std::string& text) { return parse_size(text).status().message(); })
      ->type_name("BYTES")
      ->default_str("256MiB");
  c.add_option("--files", o.server.files,
               "folder for /v1/files and /v1/batches, which are off without it; batches that have not ended "
               "go on when the server starts again")
      ->type_name("DIR");
  c.add_option_function<std::string>(
       "--files-limit", [&o](const std::string& text) { o.server.files_bytes = *parse_size(text); },
       "what that folder may hold; then uploads are refused, and batches fail")
      ->check([](const std::string& text) { return parse_size(text).status().message(); })
      ->type_name("BYTES")
      ->default_str("4GiB");
  c.add_option("--batch-concurrency", o.server.batch_concurrency,
               "requests of batches under way at once; they go behind all others")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  c.add_option(
       "--shared-memory", o.server.shared_memory,
       "let clients put tensors into shared memory of this machine whose keys begin so, such as /oar-; "
       "without it none is read or written")
      ->type_name("PREFIX");
  c.add_option("--name", o.model.engine.name, "what clients call the model; default: from its path");
  c.add_flag("--any-model-name", o.any_name,
             "a request that names a model that is not there gets the only language model, or the only "
             "encoder: for clients that always ask for one of somebody else's");
  c.add_flag("--require-model", o.require_model,
             "refuse requests that name no model, also where there is only one")
      ->excludes("--any-model-name");
  c.add_option("--alias", o.aliases, "another name of the only model; may be repeated")
      ->delimiter(',')
      ->allow_extra_args(false);
  c.add_option("--tag", o.tags, "a word that /v1/models shows with the model; may be repeated")
      ->delimiter(',')
      ->allow_extra_args(false);
  c.add_option(
      "--root-path", o.server.root_path,
      "what a proxy leaves before paths, for instance /llm: /llm/v1/models is /v1/models, which is there, "
      "too");
  c.add_option_function<std::string>(
       "--error-style",
       [&o](const std::string& style) {
         o.server.error_style = style == "triton" ? api::ErrorStyle::kTriton : api::ErrorStyle::kOpenAi;
       },
       "errors below OpenAI's paths: openai, as OpenAI has them; triton, as Triton's frontend: 422 for a "
       "wrong field, 400 for a model that is not there, and `detail` beside `error`")
      ->check(CLI::IsMember({"openai", "triton"}))
      ->default_str("openai");
  c.add_option("--server-name", o.server.server_name,
               "what lists of models (`owned_by`) and /v2 (`name`) call the server")
      ->capture_default_str();
  c.add_flag("--show-adapter-paths", o.server.adapter_paths,
             "`root` of an adapter in /v1/models is its folder, as vLLM has it; otherwise its name");
  c.add_flag("--no-metrics", o.server.no_metrics, "/metrics answers 501");
  c.add_flag("--no-slots", o.server.no_slots, "/slots answers 501");
  c.add_flag("--no-page", o.server.no_page, "without the pages at / and /docs");
  c.add_option("--max-connections", o.server.http_limits.max_connections,
               "HTTP connections open at once; beyond, those that have been idle longest are closed")
      ->check(in_range(1, 1 << 20))
      ->capture_default_str();
  c.add_option("--max-waiting", o.model.engine.max_waiting, "requests queued before new ones are refused")
      ->check(above_zero())
      ->capture_default_str();
  c.add_option("--max-logprobs", o.model.engine.max_logprobs,
               "alternatives beside a token that a request may ask for; -1: all the model's tokens")
      ->check(in_range(-1, INT32_MAX))
      ->capture_default_str();
  c.add_option("--max-message", o.max_message_mib,
               "MiB of one request; 0: 16 for language models alone, 64 with ordinary models")
      ->check(in_range(0, 2047))
      ->capture_default_str();
  c.add_option("--drain-delay", o.drain_delay,
               "seconds after SIGTERM in which health says not ready and requests are still taken")
      ->check(in_range(0.0, 86400.0))
      ->capture_default_str();
  c.add_option("--drain-timeout", o.drain_seconds,
               "seconds that running requests then get; those cut off are told so, and the exit code is 3")
      ->check(in_range(0.0, 86400.0))
      ->capture_default_str();
  c.option_defaults()->group("Access");
  add_chat_options(c, o.model);
  c.add_option("--api-key", o.server.api_key, "require this bearer token of every request but health checks");
  c.add_option("--api-key-file", o.server.api_key_file,
               "accept the keys in this file, one per line; read again when it changes");
  c.add_option("--tls-cert", o.server.tls.certificate,
               "PEM file with the certificate (chain) of HTTP and gRPC; read again when it changes");
  c.add_option("--tls-key", o.server.tls.key, "PEM file with its private key");
  c.add_option("--tls-client-ca", o.server.tls.client_ca,
               "PEM file; clients must show a certificate signed by one of these (mutual TLS)");
  c.add_option("--allowed-origins,--cors-origin", o.server.allowed_origins,
               "an origin whose browser pages may call, for instance https://app.example; the server's own "
               "always may; may be repeated; localhost: this machine's, on any port; *: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  c.add_option("--cors-methods", o.server.cors.methods,
               "what Access-Control-Allow-Methods says to those origins; default: what the path answers");
  c.add_option("--cors-headers", o.server.cors.headers,
               "what Access-Control-Allow-Headers says to them; default: those that the browser asks for");
  c.add_flag("--cors-credentials", o.server.cors.credentials,
             "let their pages send credentials that the browser keeps, such as a client certificate");
  c.add_option("--allowed-hosts", o.server.allowed_hosts,
               "a name that requests may call the server by, beside localhost; checked on loopback, and "
               "everywhere once one is given; may be repeated; *: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  c.add_option_function<std::string>(
       "--model-control", [&o](const std::string& mode) { o.model_control = mode; },
       "explicit: clients may load and unload the repository's models, and adapters; none: they may not")
      ->check([](const std::string& mode) {
        if (mode == "none" || mode == "explicit") return std::string();
        if (mode == "poll")
          return std::string(
              "poll is not offered: the repository is not watched; use explicit, and load a "
              "model when its folder has changed");
        return "'" + mode + "' is neither none nor explicit";
      })
      ->default_str("none");
  c.add_option(
       "--max-loaded", o.max_loaded,
       "language models of a folder that are in memory at a time; a request loads the one it names, and "
       "the one unused for longest goes; 0: all, from the start")
      ->check(in_range(0, 1024))
      ->capture_default_str();
  c.add_option("--sleep-idle", o.sleep_idle,
               "seconds without a request for a language model or an encoder after which it gives up its "
               "memory; the next request wakes it; 0: it stays")
      ->check(in_range(0, 31'536'000))
      ->capture_default_str();
  c.add_option("--admin-key-file", o.server.admin_key_file,
               "the keys that load and unload models, one per line; without it the API keys do");
  c.option_defaults()->group("Ordinary models");
  c.add_option(
       "--max-batch", o.batching.max_batch,
       "ordinary models without a config.pbtxt: rows of requests that run together at most; 0: 32 where "
       "the model's first axes are a batch, otherwise each request alone")
      ->check(in_range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("--preferred-batch", o.batching.preferred_batches,
               "rows at which a batch does not wait for more; may be repeated")
      ->check(above_zero())
      ->allow_extra_args(false);
  c.add_option("--max-queue-delay", o.batching.max_queue_delay_us,
               "microseconds a request may wait for others to share its run")
      ->check(in_range(0, 60'000'000))
      ->capture_default_str();
  c.add_option("--instances", o.batching.instances, "runs of one ordinary model at the same time")
      ->check(in_range(1, 256))
      ->capture_default_str();
  add_precision_option(c, o.precision);
  c.add_option(
       "--pooling", o.pooling,
       "what an encoder's vectors are made of: model (as its files say), mean, cls (the first token), "
       "last, max; or none: /embeddings answers with a vector of each token")
      ->check(CLI::IsMember({"model", "none", "mean", "cls", "last", "max"}))
      ->capture_default_str();
  c.footer(
      "Examples:\n"
      "  oar serve demo\n"
      "  oar serve resnet50.onnx --max-queue-delay 2000\n"
      "  oar serve ./ppocr_det --name det          a Paddle folder: inference.json, inference.pdiparams\n"
      "  oar serve ./models                        a repository: NAME/[config.pbtxt], "
      "NAME/VERSION/model.onnx\n"
      "  oar serve ./Llama-3.2-1B --weights int8 --memory 6GiB --max-context 8192\n"
      "  oar serve demo --lora polite=my-adapter --max-loras 4 --model-control explicit\n"
      "  oar serve ./Llama-3.2-1B-Instruct --speculative draft --draft-model ./Llama-3.2-1B\n"
      "  oar serve demo --trace trace.json --trace-limit 64MiB\n"
      "  oar serve ./chat-models --max-loaded 1    language models come when they are asked for\n"
      "  oar serve --config /etc/oar/server.toml\n"
      "  oar serve demo --max-sequences 8 --print-config\n"
      "  oar serve model.gguf --http 0.0.0.0:8000 --grpc '' --api-key \"$KEY\"\n"
      "  curl -N localhost:8000/v1/completions -d "
      "'{\"model\":\"demo\",\"prompt\":\"ROMEO:\",\"stream\":true}' \\\n"
      "       -H 'content-type: application/json'\n"
      "SIGTERM or Ctrl-C finishes what is running and exits 0; a second one ends at once.\n"
      "An engine failure exits 1.");
}

std::string finish_serve_options(CLI::App& c, ServeOptions& o) {
  OptionOrigins origins;
  auto unread = apply_environment(c, origins);
  if (!unread.ok()) throw CLI::ValidationError("environment", unread.status().message());
  o.unread_words = std::move(*unread);
  if (!o.config.empty()) {
    if (const Status s = apply_option_file(c, o.config, origins); !s.ok())
      throw CLI::ValidationError("--config", s.message());
  }
  if (o.print_config) return option_file_text(c, origins);
  if (o.model.model.empty()) throw CLI::RequiredError("MODEL");
  for (const CLI::Option* option : c.get_options())
    if (option->count() > 0) o.given.push_back("--" + option->get_single_name());
  return "";
}

}  // namespace oar::cli
