// oar inspect: what a model's files say, and what the engine would make of them. Runs nothing.
#include <cstdio>
#include <map>
#include <set>

#include "clients/cli/calibration_files.h"
#include "clients/cli/command.h"
#include "clients/cli/inspect_predictor.h"
#include "clients/cli/inspect_times.h"
#include "clients/cli/inspect_train.h"
#include "clients/cli/logging.h"
#include "clients/cli/model_options.h"
#include "clients/cli/progress.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/checkpoint.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_report.h"
#include "engine/text/tokenizer.h"
#include "engine/tune/measure/quant_report.h"

namespace oar::cli {
namespace {

struct InspectOptions {
  ModelOptions model;
  ReportOptions report;
  std::vector<std::string> inputs;  // of ordinary models
  std::string precision = "f32";    // of those
  TrainInspection train;
  std::string params;  // of a Paddle model, where they are named
  TimesInspection times;
  bool tensors = false, json = false, quant = false, explain = false, wants_times = false;

  // Whether a language model is built, beyond what its files say.
  bool planned() const { return report.graph || report.plan || report.memory || !report.dump_pass.empty(); }
};

// The options that one kind of inspection reads. Another one, given, would be passed over in silence.
struct Reading {
  const char* refusal;
  std::set<std::string> options;
};

std::set<std::string> of_predictors() {
  return {"MODEL",     "--input",        "--dump-pass", "--precision", "--params",  "--graph",
          "--explain", "--plan",         "--memory",    "--device",    "--threads", "--reference",
          "--no-mmap", "--disable-pass", "--verbose",   "--quiet"};
}
// What says how a language model would be held and run.
std::set<std::string> of_plans() {
  return {"MODEL",
          "--weights",
          "--kv",
          "--rotate",
          "--mla",
          "--max-context",
          "--threads",
          "--max-batch-tokens",
          "--max-sequences",
          "--disable-pass",
          "--deterministic",
          "--reference",
          "--device",
          "--speculative",
          "--draft-model"};
}

std::set<std::string> with(std::set<std::string> all, std::set<std::string> more) {
  all.merge(more);
  return all;
}

const Reading& reading_of(const InspectOptions& o) {
  // A wrong --tune-seconds has words of its own (check_tune_seconds()).
  static const Reading kPredictor{"says nothing of an ONNX or Paddle model; leave it out", of_predictors()};
  static const Reading kTimes{"says nothing of the times of a step; leave it out beside --times",
                              with(of_plans(), {"--times", "--context", "--prompt-tokens", "--json"})};
  static const Reading kQuant{"changes nothing of what --quant says; leave it out",
                              with(of_plans(), {"--quant", "--json", "--tune-seconds", "--cache-dir",
                                                "--cache-size", "--no-mmap", "--verbose", "--quiet"})};
  static const Reading kPlanned{
      "changes nothing of a graph, a plan or its memory; leave it out",
      with(of_plans(), {"--graph", "--plan", "--memory", "--dump-pass", "--tensors", "--tune-seconds",
                        "--cache-dir", "--cache-size", "--verbose", "--quiet"})};
  static const Reading kFacts{
      "changes nothing of what a model's files say; it belongs to --graph, --plan, --memory, --dump-pass or "
      "--quant",
      {"MODEL", "--tensors", "--json", "--tune-seconds", "--cache-dir", "--no-mmap", "--verbose", "--quiet"}};
  if (o.wants_times) return kTimes;
  if (is_predictor_path(o.model.model)) return kPredictor;
  return o.quant ? kQuant : o.planned() ? kPlanned : kFacts;
}

// Throws CLI::ValidationError, which names an option that would be passed over.
void check_read(const CLI::App& c, const InspectOptions& o) {
  const Reading& reading = reading_of(o);
  for (const CLI::Option* option : c.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || reading.options.contains(name)) continue;
    const bool ordinary =
        name == "--explain" || name == "--precision" || name == "--params" || name == "--input";
    throw CLI::ValidationError(
        name, ordinary ? "says something of ONNX and Paddle models alone; leave it out" : reading.refusal);
  }
  if (!o.inputs.empty() && !o.explain && !o.report.plan && !o.report.memory)
    throw CLI::ValidationError("--input", "gives extents to --plan, --memory or --explain; add one of them");
}

// Tensors of one storage format, together.
struct FormatTotal {
  int64_t tensors = 0, elements = 0;
  uint64_t bytes = 0;
};

struct Facts {
  std::map<std::string, FormatTotal> formats;
  int64_t parameters = 0;
};

Facts count(const Checkpoint& c) {
  Facts out;
  for (const auto& [name, tensor] : c.tensors) {
    FormatTotal& total = out.formats[tensor.format().name()];
    ++total.tensors;
    total.elements += tensor.numel();
    total.bytes += tensor.bytes();
    out.parameters += tensor.numel();
  }
  return out;
}

const char* tokenizer_kind(const TokenizerFiles& t) {
  if (!t.tokenizer_json.empty()) return "tokenizer.json";
  if (t.gguf) return "GGUF vocabulary";
  if (is_tiktoken(t.tiktoken) || is_tiktoken(t.sentencepiece_model)) return "tiktoken file";
  if (!t.sentencepiece_model.empty()) return "SentencePiece model";
  if (!t.llama2c_bin.empty()) return "llama2.c tokenizer";
  return "none";
}

void print_json(const Checkpoint& c, const InspectOptions& o) {
  const Facts facts = count(c);
  json::object formats, out;
  for (const auto& [name, total] : facts.formats) {
    formats[name] = {{"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
  }
  out["path"] = c.source_path;
  out["kind"] = c.kind;
  out["config"] = c.config;
  out["tokenizer"] = tokenizer_kind(c.tokenizer);
  out["chat_template"] = !c.tokenizer.chat_template.empty();
  out["parameters"] = facts.parameters;
  out["bytes"] = c.bytes;
  out["formats"] = formats;
  if (o.tensors) {
    json::array list;
    for (const auto& [name, t] : c.tensors) {
      list.push_back(json::object{{"name", name},
                                  {"format", t.format().name()},
                                  {"shape", json::array(t.shape().begin(), t.shape().end())},
                                  {"bytes", t.bytes()}});
    }
    out["tensors"] = std::move(list);
  }
  std::printf("%s\n", json::serialize(out).c_str());
}

void print_text(const Checkpoint& c, const InspectOptions& o) {
  const Facts facts = count(c);
  std::printf("path           %s\nkind           %s\n", c.source_path.c_str(), c.kind.c_str());
  std::printf("parameters     %.2f M in %zu tensors, %s\n", static_cast<double>(facts.parameters) / 1e6,
              c.tensors.size(), format_bytes(c.bytes).c_str());
  for (const auto& [name, total] : facts.formats) {
    std::printf("  %-12s %lld tensors, %s\n", name.c_str(), static_cast<long long>(total.tensors),
                format_bytes(total.bytes).c_str());
  }
  std::printf("tokenizer      %s\nchat template  %s\n", tokenizer_kind(c.tokenizer),
              c.tokenizer.chat_template.empty() ? "none" : "yes");
  std::printf("config\n");
  for (const auto& member : c.config) {
    std::printf("  %s: %s\n", std::string(member.key()).c_str(), json::serialize(member.value()).c_str());
  }
  if (!o.tensors) return;
  std::printf("tensors\n");
  for (const auto& [name, t] : c.tensors) {
    std::printf("  %-56s %-6s %-20s %s\n", name.c_str(), t.format().name(), t.shape().to_string().c_str(),
                format_bytes(t.bytes()).c_str());
  }
}

int inspect_quant(const std::string& path, const InspectOptions& o, const LanguageModelOptions& engine) {
  LoadOptions load;
  load.mmap = !o.model.no_mmap;
  const auto checkpoint = load_checkpoint(path, load);
  if (!checkpoint.ok()) return fail(checkpoint.status());
  ProgressBar bar(o.model.quiet);
  const auto report = quant_report(*checkpoint, engine, bar.callback());
  bar.clear();
  if (!report.ok()) return fail(report.status());
  if (o.json) std::printf("%s\n", json::serialize(quant_json(*report)).c_str());
  else std::fputs(quant_text(*report).c_str(), stdout);
  return kSuccess;
}

int inspect(const InspectOptions& o) {
  if (!o.train.what.empty()) {
    TrainInspection train = o.train;
    train.trainer.weights = o.model.engine.weights;
    train.trainer.threads = o.model.engine.threads;
    train.peak.precision = o.precision;
    const Status s = inspect_train(std::move(train));
    return s.ok() ? kSuccess : fail(s);
  }
  if (o.wants_times) {
    TimesInspection times = o.times;
    times.model = o.model.engine;
    times.model.log = make_logger(LogLevel::kWarning);
    times.json = o.json;
    const Status s = inspect_times(o.model.model, times);
    return s.ok() ? kSuccess : fail(s);
  }
  const bool planned = o.planned();
  if (is_predictor_path(o.model.model)) {
    PredictorInspection what;
    what.disabled_passes = {o.model.engine.disabled_passes.begin(), o.model.engine.disabled_passes.end()};
    what.inputs = o.inputs;
    what.dump_pass = o.report.dump_pass;
    what.precision = o.precision;
    what.params = o.params;
    what.graph = o.report.graph;
    what.explain = o.explain;
    what.device = o.model.engine.device;
    what.threads = o.model.engine.threads;
    what.reference = o.model.engine.reference;
    what.mmap = !o.model.no_mmap;
    what.log = make_logger(o.model.verbose ? LogLevel::kDebug
                           : o.model.quiet ? LogLevel::kError
                                           : LogLevel::kWarning);
    what.plan = o.report.plan || o.report.memory;
    const Status s = inspect_predictor(o.model.model, what);
    return s.ok() ? kSuccess : fail(s);
  }
  if (const Status s = check_tune_seconds(o.model); !s.ok()) return fail(s);
  std::string path;
  auto engine = engine_options(o.model, LogLevel::kWarning, path);
  if (!engine.ok()) return fail(engine.status());
  if (o.quant || planned) {
    ProgressBar bar(o.model.quiet);
    const Status settled = settle_kv(o.model, path, *engine, bar.callback());
    bar.clear();
    if (!settled.ok()) return fail(settled);
  }
  if (o.quant) return inspect_quant(path, o, *engine);
  if (!planned || o.tensors || o.json) {
    LoadOptions load;
    load.mmap = !o.model.no_mmap;
    auto checkpoint = load_checkpoint(path, load);
    if (!checkpoint.ok()) return fail(checkpoint.status());
    (o.json ? print_json : print_text)(*checkpoint, o);
  }
  if (!planned) return kSuccess;
  ReportOptions report = o.report;
  report.disabled_passes = engine->disabled_passes;
  report.model = std::move(*engine);
  auto text = model_report(path, report);
  if (!text.ok()) return fail(text.status());
  std::fputs(text->c_str(), stdout);
  return kSuccess;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto o = std::make_shared<InspectOptions>();
  CLI::App* c = app.add_subcommand("inspect", "Facts of a model: files, tensors, graph, plan, memory");
  add_model_options(*c, o->model, {.memory_budget = false});
  c->add_flag("--tensors", o->tensors, "list every tensor");
  auto* graph = c->add_flag("--graph", o->report.graph, "the graph after all passes");
  auto* plan = c->add_flag("--plan", o->report.plan,
                           "the kernel calls of a step; of an ONNX or Paddle model the memory of a run");
  auto* memory = c->add_flag("--memory", o->report.memory, "what weights, activations and the KV cache take");
  c->add_flag(
       "--quant", o->quant,
       "bits per weight by format, KV cache per token, scratch: as --weights, --kv and --rotate say; also "
       "with --json")
      ->excludes(graph)
      ->excludes(plan)
      ->excludes(memory);
  auto* times = c->add_flag("--times", o->wants_times,
                            "the kernel calls of steps of 1, 16 and 64 sequences and of a prompt, and the "
                            "times that --device computes for them; MODEL may be the config.json of a shape")
                    ->excludes(graph)
                    ->excludes(plan)
                    ->excludes(memory);
  c->add_option("--context", o->times.context, "with --times: tokens that each sequence has")
      ->needs(times)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--prompt-tokens", o->times.prompt, "with --times: tokens of the prompt")
      ->needs(times)
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  c->add_option("--input", o->inputs, "with --plan of an ONNX or Paddle model: an input's extents")
      ->type_name("NAME=2x3x224x224");
  auto* dump = c->add_option("--dump-pass", o->report.dump_pass, "the graph before and after this pass")
                   ->type_name("NAME");
  c->add_option("--precision", o->precision,
                "what convolutions and layers of ordinary models (ONNX, Paddle) of f32 are computed in: f32, "
                "bf16, f16 and tf32 (with --device), int8; with --train that of a step: f32, O1, O2")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "tf32", "int8", "O1", "O2"}))
      ->capture_default_str();
  c->add_option("--params", o->params,
                "Paddle: the file with the parameters; default: found beside the model")
      ->type_name("FILE");
  c->add_flag("--explain", o->explain,
              "of an ONNX or Paddle model: what each pass did, and why two ops were not fused");
  add_train_options(*c, o->train);
  c->add_flag("--json", o->json, "print the files' facts as one JSON object")
      ->excludes(graph)
      ->excludes(plan)
      ->excludes(memory)
      ->excludes(dump);
  c->footer(
      "Examples:\n"
      "  oar inspect demo\n"
      "  oar inspect model.gguf --tensors\n"
      "  oar inspect demo --quant --weights int4 --kv int4\n"
      "  oar inspect resnet50.onnx --plan --input input=8x3x224x224\n"
      "  oar inspect demo --graph --disable-pass fuse_linear\n"
      "  oar inspect demo --dump-pass fuse_linear\n"
      "  oar inspect configs/bench/llama-8b.json --device cuda_emulated --times --weights int4\n"
      "  oar inspect demo --train rank=8,targets=q_proj,v_proj --tokens 64\n"
      "  oar inspect resnet50.onnx --explain");
  c->callback([o, c, &action] {
    o->train.trainer.model = o->model.model;
    if (!o->train.what.empty()) check_train_options(*c, o->train);
    else if (o->precision.starts_with('O'))
      throw CLI::ValidationError("--precision", o->precision + " is a step's, beside --train");
    else check_read(*c, *o);
    action = [o] { return inspect(*o); };
  });
}

}  // namespace oar::cli
