// oar serve: one model, or a folder of models, behind HTTP and gRPC until SIGTERM or SIGINT.
// What happens then is in serve_loop.h.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>

#include "clients/cli/calibration_files.h"
#include "clients/cli/command.h"
#include "clients/cli/language_settings.h"
#include "clients/cli/model_options.h"
#include "clients/cli/ocr_steps.h"
#include "clients/cli/option_file.h"
#include "clients/cli/progress.h"
#include "clients/cli/ranges.h"
#include "clients/cli/serve_loop.h"
#include "clients/cli/signals.h"
#include "clients/cli/sizes.h"
#include "clients/cli/vertex_words.h"
#include "engine/base/descriptors.h"
#include "engine/base/format.h"
#include "engine/runtime/batched_predictor.h"
#include "kernels/thread_pool.h"
#include "server/repository/repository.h"
#include "server/server.h"

namespace oar::cli {
namespace {

struct ServeOptions {
  ModelOptions model;
  ServerOptions server;
  ConfigDefaults batching;  // of ordinary models without a config
  LanguageSettings language;
  bool any_name = false;
  std::vector<std::string> aliases, tags;
  std::string pooling = "model";
  double drain_delay = 0, drain_seconds = 30;
  int max_message_mib = 0;  // 0: by the kind of model
  std::string model_control = "none";
  size_t max_loaded = 0;
  int64_t sleep_idle = 0;
  bool print_config = false;
  std::string config, precision = "f32";
  std::vector<std::string> unread_words;  // of the environment
  std::vector<std::string> given;         // names of options that were given, wherever
};

// What only one kind of model takes; given for others, it would be passed over.
constexpr const char* kOfCheckpoints[] = {"--weights"};
constexpr const char* kOfLanguageModels[] = {"--kv",
                                             "--tune-seconds",
                                             "--rotate",
                                             "--mla",
                                             "--max-context",
                                             "--deterministic",
                                             "--max-batch-tokens",
                                             "--max-sequences",
                                             "--max-logprobs",
                                             "--no-prefix-cache",
                                             "--state-snapshots",
                                             "--snapshot-tokens",
                                             "--allow-special-in-text",
                                             "--speculative",
                                             "--draft-model",
                                             "--num-speculative-tokens",
                                             "--prompt-lookup-min",
                                             "--prompt-lookup-max",
                                             "--max-loaded",
                                             "--sleep-idle",
                                             "--lora",
                                             "--max-loras",
                                             "--max-lora-rank",
                                             "--chat-template",
                                             "--request-default",
                                             "--tool-parser",
                                             "--reasoning-parser"};
constexpr const char* kOfOrdinaryModels[] = {"--max-batch", "--preferred-batch", "--max-queue-delay",
                                             "--instances", "--precision"};

constexpr const char* kOfEncoders[] = {"--pooling"};

// What --pooling may say, and what vectors of texts are made of then.
const std::map<std::string, std::optional<Pooling>> kPoolings = {
    {"model", std::nullopt},  {"none", std::nullopt},   {"mean", Pooling::kMean},
    {"cls", Pooling::kFirst}, {"last", Pooling::kLast}, {"max", Pooling::kMax}};

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
    std::printf("  texts of up to %lld tokens: %s%s\n", static_cast<long long>(e.max_tokens),
                m.encoder->embeds() ? "/v1/embeddings, " : "", "/v1/rerank");
  }
  if (c.max_batch == 0) {
    std::printf("  no batch axis: each request runs alone\n");
  } else {
    std::printf("  up to %lld rows of requests run together, %lld us of waiting for more, %d instance%s\n",
                static_cast<long long>(c.merge ? c.max_batch : 1),
                static_cast<long long>(c.max_queue_delay_us), c.instances, c.instances == 1 ? "" : "s");
  }
}

// What MODEL holds. `name`: what it is called as a language model.
FoundModels find_served(const std::string& path, const std::string& given_name, const std::string& name) {
  Result<FoundModels> found = find_models(path, given_name);
  if (found.ok()) {
    if (found->folder.empty() && found->models[0].kind == api::ModelKind::kLanguage)
      found->models[0].name = name;
    return std::move(*found);
  }
  // The embedded model; of all else the language models' loader says best why it is none.
  FoundModel model;
  model.kind = api::ModelKind::kLanguage;
  model.name = name;
  model.path = path;
  model.versions.emplace_back(1, path);
  return {{}, {std::move(model)}};
}

bool was_given(const ServeOptions& o, const char* name) {
  return std::find(o.given.begin(), o.given.end(), name) != o.given.end();
}

// An option that none of the models takes is a mistake, and one that is not seen otherwise. Models of other
// kinds may still come into a folder whose models are loaded on demand.
Status check_options(const ServeOptions& o, const FoundModels& found) {
  const bool folder = !found.folder.empty();
  const auto given = [&](const char* name) { return was_given(o, name); };
  if (folder && given("--name"))
    return invalid_argument(cat("--name: ", o.model.model,
                                " is a folder of models, each called as its own folder; "
                                "rename that, or leave --name out"));
  if (!folder && given("--max-loaded"))
    return invalid_argument(cat("--max-loaded: ", o.model.model, " is one model; serve a folder of models"));
  if (folder && given("--lora"))
    return invalid_argument(cat("--lora: ", o.model.model,
                                " is a folder of models; serve one, or give --max-loras "
                                "and load the adapter into a model with POST /v1/load_lora_adapter"));
  if (folder && o.model_control == "explicit") return ok_status();
  const auto check = [&](const auto& options, bool there, const char* kinds) -> Status {
    if (there) return ok_status();
    for (const char* name : options) {
      if (given(name))
        return invalid_argument(
            cat(name, ": ", kinds, " take it, and ", o.model.model, " holds none; leave it out"));
    }
    return ok_status();
  };
  const bool language = found.has(api::ModelKind::kLanguage);
  OAR_RETURN_IF_ERROR(
      check(kOfCheckpoints, language || found.has(api::ModelKind::kEncoder), "language models and encoders"));
  OAR_RETURN_IF_ERROR(check(kOfLanguageModels, language, "language models"));
  OAR_RETURN_IF_ERROR(check(kOfEncoders, found.has(api::ModelKind::kEncoder), "encoders"));
  return check(kOfOrdinaryModels, found.has(api::ModelKind::kTensor) || found.has(api::ModelKind::kEncoder),
               "ordinary models and encoders");
}

// Of the files of a model, as far as they are there.
uint64_t bytes_of_files(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::is_directory(path, ec)) {
    const auto size = fs::file_size(path, ec);
    return ec ? 0 : size;
  }
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path, ec)) {
    const auto size = entry.is_regular_file(ec) ? entry.file_size(ec) : 0;
    bytes += ec ? 0 : size;
  }
  return bytes;
}

// One budget for all: weights first, and of what they leave the caches of language models and the runs of the
// others take equal parts. Until a language model is loaded, a place is kept for its weights, as large as its
// files.
class Parts {
 public:
  // `more`: models that may come later. `most`: language models that are there at a time, which take equal
  // parts of what they find; 0: all.
  Parts(const FoundModels& found, MemoryBudget& budget, size_t more, size_t most) : others_(more) {
    if (most > 0) others_ += most - 1;
    for (const FoundModel& m : found.models) {
      if (most > 0 && m.kind == api::ModelKind::kLanguage) continue;
      if (m.kind != api::ModelKind::kLanguage) {
        ++others_;
        continue;
      }
      auto held = budget.reserve(m.versions.empty() ? 0 : bytes_of_files(m.versions.back().second),
                                 cat(m.name, ", to come"));
      to_come_[m.name] = held.ok() ? std::move(*held) : Reservation();
    }
  }
  // For a language model that is about to be loaded: its part of what is left when its weights are there.
  double take(const std::string& name) {
    const std::lock_guard lock(mutex_);
    to_come_.erase(name);
    // It is one of those that sleep, when it wakes.
    const size_t asleep = asleep_ ? std::max<size_t>(asleep_(), 1) - 1 : 0;
    return 1 / static_cast<double>(1 + to_come_.size() + others_ + asleep);
  }
  // Who sleeps gets its part when it wakes.
  void share_with(std::function<size_t()> asleep) {
    const std::lock_guard lock(mutex_);
    asleep_ = std::move(asleep);
  }
  // Gives up the places; false when none was kept. Files say too much where weights become smaller.
  bool give_up() {
    const std::lock_guard lock(mutex_);
    bool any = false;
    for (auto& [name, held] : to_come_) {
      any = any || held.bytes() > 0;
      held = Reservation();
    }
    return any;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Reservation> to_come_;
  std::function<size_t()> asleep_;
  size_t others_;
};

// `facts`: of the command line. `o` and `signals` outlive the catalog, which opens models while it serves.
Result<std::shared_ptr<api::ModelCatalog>> open_models(const ServeOptions& o,
                                                       const LanguageModelOptions& facts, FoundModels found,
                                                       SignalWatcher& signals) {
  if (found.models.size() != 1 && !(o.aliases.empty() && o.tags.empty())) {
    const char* option = o.aliases.empty() ? "tag" : "alias";
    return invalid_argument(cat("--", option, ": it belongs to the only model, and there are ",
                                found.models.size(), "; leave it out"),
                            option);
  }
  const std::string first = found.models.empty() ? "" : found.models.front().name;
  const auto stop = [&signals] { return signals.requested(); };
  RepositoryOptions r;
  r.predictor.threads = o.model.engine.threads;
  r.predictor.reference = o.model.engine.reference;
  r.predictor.device = o.model.engine.device;
  r.predictor.cache_dir = o.model.cache_dir;
  r.predictor.cache_bytes = o.model.cache_bytes;
  OAR_ASSIGN(r.predictor.precision, parse_precision(o.precision));
  r.predictor.weights = o.model.engine.weights;
  r.predictor.log = facts.log;
  r.predictor.import.mmap = !o.model.no_mmap;
  r.predictor.disabled_passes = {o.model.engine.disabled_passes.begin(),
                                 o.model.engine.disabled_passes.end()};
  r.defaults = o.batching;
  r.defaults.max_queue = static_cast<int64_t>(o.model.engine.max_waiting);
  r.vectors.pooling = kPoolings.at(o.pooling);
  r.token_vectors = o.pooling == "none";
  r.built_in = ocr_steps();
  r.stop = stop;
  r.log = facts.log;
  Resources resources;
  resources.pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = facts.threads});
  resources.memory = MemoryBudget::make(
      facts.memory_bytes > 0 ? facts.memory_bytes : share_of(available_memory(), facts.memory_percent));
  r.predictor.resources = resources;
  const auto parts =
      std::make_shared<Parts>(found, *resources.memory, o.model_control == "explicit" ? 1 : 0, o.max_loaded);
  r.open_language = [&o, stop, resources, parts, log = facts.log](
                        const std::string& name,
                        const std::string& path) -> Result<std::unique_ptr<LanguageModel>> {
    ModelOptions one = o.model;
    one.model = path;
    one.engine.name = name;
    std::string where;
    OAR_ASSIGN(LanguageModelOptions engine, engine_options(one, LogLevel::kInfo, where));
    engine.resources = resources;
    engine.log = log;
    // A quantized cache is the processor's: as a default it would take all attention away from a device.
    if (!engine.device.empty() && engine.device != "cpu" && !was_given(o, "--kv")) engine.kv = "auto";
    ProgressBar bar(one.quiet, stop);
    OAR_RETURN_IF_ERROR(settle_kv(one, where, engine, bar.callback()));
    engine.kv_share = parts->take(name);
    auto model = LanguageModel::load(where, engine, bar.callback());
    if (model.status().code() == StatusCode::kResourceExhausted && parts->give_up())
      model = LanguageModel::load(where, engine, bar.callback());
    return model;
  };
  r.adjust_language = [&o](ModelHandle& model) {
    return apply_language_settings(o.language, o.model.engine.tool_parser, o.model.engine.reasoning_parser,
                                   model);
  };
  std::shared_ptr<api::ModelCatalog> catalog = make_catalog(std::move(found), std::move(r));
  catalog->keep_at_most(o.max_loaded);
  if (o.any_name) catalog->answer_any_name();
  catalog->call_also(first, o.aliases, o.tags);
  OAR_RETURN_IF_ERROR(catalog->load_all());
  parts->give_up();  // of what could not be loaded
  parts->share_with([weak = std::weak_ptr(catalog)] {
    const auto all = weak.lock();
    return all ? all->sleepers() : 0;
  });
  catalog->sleep_when_idle(std::chrono::seconds(o.sleep_idle));
  return catalog;
}

int serve(const ServeOptions& o) {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  };
  ServerOptions server_options = o.server;
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
  add_model_options(*c, o->model, {.model_required = false, .kv = "int8"});
  add_lora_options(*c, o->model, true);
  add_language_settings(*c, o->language);
  c->add_option(
       "--config", o->config,
       "file with options, one `key = value` per line, as in deploy/kubernetes/base/server.toml; the "
       "command line wins, then the environment: OAR_HTTP is --http, and so for every option")
      ->type_name("FILE")
      ->envname("OAR_CONFIG");
  c->add_flag("--print-config", o->print_config,
              "print every option as such a file, with where its value is from, and end");
  c->option_defaults()->group("Server");
  c->add_option("--http", o->server.http_address,
                "host:port of HTTP, or several with commas between; port 0 picks a free one, empty: none")
      ->capture_default_str();
  c->add_option("--grpc", o->server.grpc_address, "host:port of gRPC; port 0 picks a free one, empty: none")
      ->capture_default_str();
  c->add_option("--metrics", o->server.metrics_address,
                "host:port of a second HTTP listener with /metrics and health alone, without key or TLS");
  c->add_option("--request-log", o->server.request_log,
                "append a line of JSON for each generation request to this file (id, model, tokens, times, "
                "status); -: standard output");
  c->add_option("--trace", o->server.trace,
                "write this file anew with what each step or run of a model and each request took "
                "(docs/traces.md)")
      ->type_name("FILE");
  c->add_option_function<std::string>(
       "--trace-format",
       [o](const std::string& text) {
         o->server.trace_kind = text == "otlp" ? api::TraceKind::kOtlp : api::TraceKind::kChrome;
       },
       "chrome: for ui.perfetto.dev and chrome://tracing; otlp: spans of requests, steps and runs in "
       "OpenTelemetry's JSON, one line for each")
      ->check(CLI::IsMember({"chrome", "otlp"}))
      ->default_str("chrome");
  c->add_option_function<std::string>(
       "--trace-limit", [o](const std::string& text) { o->server.trace_bytes = *parse_size(text); },
       "what that file may take; then the trace ends, and the server goes on")
      ->check([](const std::string& text) { return parse_size(text).status().message(); })
      ->type_name("BYTES")
      ->default_str("256MiB");
  c->add_option("--files", o->server.files,
                "folder for /v1/files and /v1/batches, which are off without it; batches that have not ended "
                "go on when the server starts again")
      ->type_name("DIR");
  c->add_option_function<std::string>(
       "--files-limit", [o](const std::string& text) { o->server.files_bytes = *parse_size(text); },
       "what that folder may hold; then uploads are refused, and batches fail")
      ->check([](const std::string& text) { return parse_size(text).status().message(); })
      ->type_name("BYTES")
      ->default_str("4GiB");
  c->add_option("--batch-concurrency", o->server.batch_concurrency,
                "requests of batches under way at once; they go behind all others")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  c->add_option(
       "--shared-memory", o->server.shared_memory,
       "let clients put tensors into shared memory of this machine whose keys begin so, such as /oar-; "
       "without it none is read or written")
      ->type_name("PREFIX");
  c->add_option("--name", o->model.engine.name, "what clients call the model; default: from its path");
  c->add_flag("--any-model-name", o->any_name,
              "a request that names a model that is not there gets the only language model, or the only "
              "encoder: for clients that always ask for one of somebody else's");
  c->add_option("--alias", o->aliases, "another name of the only model; may be repeated")
      ->delimiter(',')
      ->allow_extra_args(false);
  c->add_option("--tag", o->tags, "a word that /v1/models shows with the model; may be repeated")
      ->delimiter(',')
      ->allow_extra_args(false);
  c->add_option(
      "--root-path", o->server.root_path,
      "what a proxy leaves before paths, for instance /llm: /llm/v1/models is /v1/models, which is there, "
      "too");
  c->add_flag("--no-metrics", o->server.no_metrics, "/metrics answers 501");
  c->add_flag("--no-slots", o->server.no_slots, "/slots answers 501");
  c->add_flag("--no-page", o->server.no_page, "without the pages at / and /docs");
  c->add_option("--max-connections", o->server.http_limits.max_connections,
                "HTTP connections open at once; beyond, those that have been idle longest are closed")
      ->check(in_range(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--max-waiting", o->model.engine.max_waiting, "requests queued before new ones are refused")
      ->check(above_zero())
      ->capture_default_str();
  c->add_option("--max-logprobs", o->model.engine.max_logprobs,
                "alternatives beside a token that a request may ask for; -1: all the model's tokens")
      ->check(in_range(-1, INT32_MAX))
      ->capture_default_str();
  c->add_option("--max-message", o->max_message_mib,
                "MiB of one request; 0: 16 for language models alone, 64 with ordinary models")
      ->check(in_range(0, 2047))
      ->capture_default_str();
  c->add_option("--drain-delay", o->drain_delay,
                "seconds after SIGTERM in which health says not ready and requests are still taken")
      ->check(in_range(0.0, 86400.0))
      ->capture_default_str();
  c->add_option("--drain-timeout", o->drain_seconds,
                "seconds that running requests then get; those cut off are told so, and the exit code is 3")
      ->check(in_range(0.0, 86400.0))
      ->capture_default_str();
  c->option_defaults()->group("Access");
  add_chat_options(*c, o->model);
  c->add_option("--api-key", o->server.api_key,
                "require this bearer token of every request but health checks");
  c->add_option("--api-key-file", o->server.api_key_file,
                "accept the keys in this file, one per line; read again when it changes");
  c->add_option("--tls-cert", o->server.tls.certificate,
                "PEM file with the certificate (chain) of HTTP and gRPC; read again when it changes");
  c->add_option("--tls-key", o->server.tls.key, "PEM file with its private key");
  c->add_option("--tls-client-ca", o->server.tls.client_ca,
                "PEM file; clients must show a certificate signed by one of these (mutual TLS)");
  c->add_option("--allowed-origins,--cors-origin", o->server.allowed_origins,
                "an origin whose browser pages may call, for instance https://app.example; the server's own "
                "always may; may be repeated; localhost: this machine's, on any port; *: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  c->add_option("--cors-methods", o->server.cors.methods,
                "what Access-Control-Allow-Methods says to those origins; default: what the path answers");
  c->add_option("--cors-headers", o->server.cors.headers,
                "what Access-Control-Allow-Headers says to them; default: those that the browser asks for");
  c->add_flag("--cors-credentials", o->server.cors.credentials,
              "let their pages send credentials that the browser keeps, such as a client certificate");
  c->add_option("--allowed-hosts", o->server.allowed_hosts,
                "a name that requests may call the server by, beside localhost; checked on loopback, and "
                "everywhere once one is given; may be repeated; *: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  c->add_option_function<std::string>(
       "--model-control", [o](const std::string& mode) { o->model_control = mode; },
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
  c->add_option(
       "--max-loaded", o->max_loaded,
       "language models of a folder that are in memory at a time; a request loads the one it names, and "
       "the one unused for longest goes; 0: all, from the start")
      ->check(in_range(0, 1024))
      ->capture_default_str();
  c->add_option("--sleep-idle", o->sleep_idle,
                "seconds without a request for a language model after which it gives up its memory; the next "
                "request wakes it; 0: it stays")
      ->check(in_range(0, 31'536'000))
      ->capture_default_str();
  c->add_option("--admin-key-file", o->server.admin_key_file,
                "the keys that load and unload models, one per line; without it the API keys do");
  c->option_defaults()->group("Ordinary models");
  c->add_option(
       "--max-batch", o->batching.max_batch,
       "ordinary models without a config.pbtxt: rows of requests that run together at most; 0: 32 where "
       "the model's first axes are a batch, otherwise each request alone")
      ->check(in_range(0, 1 << 20))
      ->capture_default_str();
  c->add_option("--preferred-batch", o->batching.preferred_batches,
                "rows at which a batch does not wait for more; may be repeated")
      ->check(above_zero())
      ->allow_extra_args(false);
  c->add_option("--max-queue-delay", o->batching.max_queue_delay_us,
                "microseconds a request may wait for others to share its run")
      ->check(in_range(0, 60'000'000))
      ->capture_default_str();
  c->add_option("--instances", o->batching.instances, "runs of one ordinary model at the same time")
      ->check(in_range(1, 256))
      ->capture_default_str();
  add_precision_option(*c, o->precision);
  c->add_option(
       "--pooling", o->pooling,
       "what an encoder's vectors are made of: model (as its files say), mean, cls (the first token), "
       "last, max; or none: /embeddings answers with a vector of each token")
      ->check(CLI::IsMember({"model", "none", "mean", "cls", "last", "max"}))
      ->capture_default_str();
  c->footer(
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
  c->callback([o, c, &action] {
    OptionOrigins origins;
    auto unread = apply_environment(*c, origins);
    if (!unread.ok()) throw CLI::ValidationError("environment", unread.status().message());
    o->unread_words = std::move(*unread);
    if (!o->config.empty()) {
      if (const Status s = apply_option_file(*c, o->config, origins); !s.ok())
        throw CLI::ValidationError("--config", s.message());
    }
    if (o->print_config) {
      action = [text = option_file_text(*c, origins)] {
        std::fputs(text.c_str(), stdout);
        return 0;
      };
      return;
    }
    if (o->model.model.empty()) throw CLI::RequiredError("MODEL");
    for (const CLI::Option* option : c->get_options())
      if (option->count() > 0) o->given.push_back("--" + option->get_single_name());
    action = [o] { return serve(*o); };
  });
}

}  // namespace oar::cli
