// oar bench: prefill and decode speed through the engine users get, beside what memory bandwidth allows.
//
// Each round probes read bandwidth, prefills, probes, decodes, probes; a decode's percentage is against the
// mean of the probes around it, and medians over the rounds are reported, because shared machines change
// speed within seconds.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "clients/cli/bench_probe.h"
#include "clients/cli/bench_run.h"
#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/progress.h"
#include "clients/cli/ranges.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/checkpoint.h"
#include "engine/runtime/model_path.h"
#include "engine/tensor/mapped_file.h"
#include "engine/tune/measure/bandwidth.h"
#include "engine/tune/measure/random_checkpoint.h"

namespace oar::cli {
namespace {

constexpr uint64_t kProbeBytes = uint64_t{512} << 20;

struct BenchOptions {
  ModelOptions model;
  std::string shape;
  int64_t prompt_tokens = 512, gen_tokens = 128, streams = 1, context = 0, repeat = 5;
  bool keep = false, probe = false, json = false;
};

// A folder of our own, removed with everything in it unless kept.
class WorkFolder {
 public:
  static Result<WorkFolder> create(const std::string& parent) {
    std::error_code ec;
    // Weights belong on a disk: /tmp is memory on many systems.
    const std::filesystem::path base = parent.empty() ? "/var/tmp" : parent;
    std::filesystem::create_directories(base, ec);
    std::string pattern = (base / "oar-bench-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      return invalid_argument(
          cat("cannot make a folder in ", base.string(), "; give another one with --cache-dir"));
    }
    return WorkFolder(pattern);
  }
  WorkFolder(WorkFolder&& other) noexcept : path_(std::exchange(other.path_, {})), keep_(other.keep_) {}
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder() {
    std::error_code ec;
    if (!path_.empty() && !keep_) std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
  bool keep_ = false;
};

Result<WorkFolder> make_weights(const BenchOptions& o) {
  OAR_ASSIGN(const std::string text, read_small_file(o.shape, uint64_t{1} << 20));
  OAR_ASSIGN(const json::value config, parse_json(text, o.shape));
  if (!config.is_object())
    return invalid_argument(cat(o.shape, " must hold a JSON object, as config.json does"));
  OAR_ASSIGN(WorkFolder folder, WorkFolder::create(o.model.cache_dir));
  ThreadPool pool;
  ProgressBar bar(o.model.quiet);
  OAR_RETURN_IF_ERROR(write_random_checkpoint(config.get_object(), folder.path(), pool, {}, bar.callback()));
  if (o.keep) folder.keep();
  return folder;
}

// The part of a mixture's experts that some token of a step is expected to choose when routing is even:
// 1 - (1 - k/n)^streams.
double experts_read(const ModelInfo& info, int64_t streams) {
  if (info.experts == 0) return 0;
  const double chosen = static_cast<double>(info.experts_per_token) / static_cast<double>(info.experts);
  return 1 - std::pow(1 - chosen, static_cast<double>(streams));
}

// Multiplications and additions of the layers for so many tokens and of so many rows of logits. Those of
// attention and of scans are left out.
double operations(const ModelInfo& info, int64_t tokens, int64_t logit_rows) {
  const double per_token = static_cast<double>(info.linear_values) +
                           static_cast<double>(info.expert_values) * experts_read(info, 1);
  return 2 * (per_token * static_cast<double>(tokens) +
              static_cast<double>(info.head_values) * static_cast<double>(logit_rows));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct Series {
  std::vector<double> values;
  void add(double v) { values.push_back(v); }
  double mid() const { return median(values); }
  double low() const { return *std::min_element(values.begin(), values.end()); }
  double high() const { return *std::max_element(values.begin(), values.end()); }
  json::object report() const {
    return {{"median", mid()}, {"min", low()}, {"max", high()}, {"rounds", values.size()}};
  }
};

struct Measured {
  Series prefill, decode, decode_bytes, probe, percent, slowest_gap;
  double bytes_per_step = 0;
};

// The probe measures the processor's memory, which says nothing about a device's.
bool on_processor(const BenchOptions& o) {
  return o.model.engine.device.empty() || o.model.engine.device == "cpu";
}

// Without a probe there is no percentage.
Result<Measured> measure(LanguageModel& model, const BenchOptions& o, ReadProbe* probe,
                         const Progress& progress) {
  Measured out;
  const ModelInfo& info = model.info();
  // KV bytes grow over the decode; the middle of it stands for the whole.
  const double depth = static_cast<double>(o.context) + static_cast<double>(o.gen_tokens) / 2;
  out.bytes_per_step =
      static_cast<double>(info.linear_bytes) +
      static_cast<double>(info.expert_bytes) * experts_read(info, o.streams) +
      static_cast<double>(o.streams) * (depth * static_cast<double>(info.kv_bytes_per_token) +
                                        static_cast<double>(info.state_bytes_per_step));
  const Load prefill{o.streams, o.prompt_tokens, 1, 0}, decode{o.streams, o.context, o.gen_tokens, 0};
  uint64_t seed = 0;
  const auto run = [&](Load load) {
    load.seed = ++seed;
    return run_load(model.engine(), load);
  };
  // Not measured: the first use of the file's pages and of the arena's.
  OAR_RETURN_IF_ERROR(run({1, std::min<int64_t>(o.prompt_tokens, 512), 8, 0}).status());
  for (int64_t round = 0; round < o.repeat; ++round) {
    if (progress && !progress("rounds", static_cast<uint64_t>(round), static_cast<uint64_t>(o.repeat))) {
      return Status(StatusCode::kCancelled, "stopped");
    }
    OAR_ASSIGN(const Timing first, run(prefill));
    const double before = probe != nullptr ? probe->measure() : 0;
    OAR_ASSIGN(const Timing second, run(decode));
    out.prefill.add(first.prefill_rate());
    out.decode.add(second.decode_rate());
    const double bytes = second.decode_rate() / static_cast<double>(o.streams) * out.bytes_per_step;
    out.decode_bytes.add(bytes / 1e9);
    if (probe != nullptr) {
      const double mean = (before + probe->measure()) / 2;
      out.probe.add(mean / 1e9);
      out.percent.add(100 * bytes / mean);
    }
    out.slowest_gap.add(second.slowest_gap * 1e3);
  }
  return out;
}

// Why there is no decode rate; empty when there is one.
std::string decode_missing(const Measured& m, const BenchOptions& o) {
  if (m.decode.mid() > 0) return {};
  return cat(
      "decode was not measured: the first of ", o.streams, " streams had its ", o.gen_tokens,
      " tokens before the last one had its first; raise --max-context or --gen-tokens, or lower --streams or "
      "--prompt-tokens");
}

void print_json(const Measured& m, const BenchOptions& o, const ModelInfo& info) {
  json::object out;
  out["model"] = info.name;
  out["parameters"] = info.parameters;
  out["weights"] = info.weights;
  out["kv"] = info.kv;
  out["isa"] = info.isa;
  out["threads"] = info.threads;
  out["prompt_tokens"] = o.prompt_tokens;
  out["gen_tokens"] = o.gen_tokens;
  out["streams"] = o.streams;
  out["context"] = o.context;
  out["prefill_tokens_per_second"] = m.prefill.report();
  out["prefill_operations"] = operations(info, o.prompt_tokens, 1);
  out["decode_tokens_per_second"] = m.decode.report();
  out["decode_bytes_per_step"] = m.bytes_per_step;
  out["decode_operations_per_step"] = operations(info, o.streams, o.streams);
  out["decode_gb_per_second"] = m.decode_bytes.report();
  if (on_processor(o)) {
    out["read_bandwidth_gb_per_second"] = m.probe.report();
    out["decode_percent_of_bandwidth"] = m.percent.report();
  }
  out["slowest_token_ms"] = m.slowest_gap.report();
  if (const std::string why = decode_missing(m, o); !why.empty()) out["decode_missing"] = why;
  out["load_seconds"] = info.load_seconds;
  if (o.keep && !o.shape.empty()) out["weights_folder"] = o.model.model;
  std::printf("%s\n", json::serialize(out).c_str());
}

void print_row(const char* what, const Series& s, const char* unit) {
  std::printf("%-18s %10.2f %-8s (%.2f .. %.2f)\n", what, s.mid(), unit, s.low(), s.high());
}

void print_text(const Measured& m, const BenchOptions& o, const ModelInfo& info) {
  std::printf("%s: %.1f M parameters, weights %s, KV %s, %s, %d threads; loaded in %.2f s\n",
              info.name.c_str(), static_cast<double>(info.parameters) / 1e6, info.weights.c_str(),
              info.kv.c_str(), info.isa.c_str(), info.threads, info.load_seconds);
  std::printf(
      "%lld streams; prefill of %lld tokens, decode of %lld tokens behind %lld; median of %lld rounds (min "
      ".. max)\n",
      static_cast<long long>(o.streams), static_cast<long long>(o.prompt_tokens),
      static_cast<long long>(o.gen_tokens), static_cast<long long>(o.context),
      static_cast<long long>(o.repeat));
  print_row("prefill", m.prefill, "tokens/s");
  if (const std::string why = decode_missing(m, o); !why.empty()) {
    std::printf("%s\n", why.c_str());
    return;
  }
  print_row("decode", m.decode, "tokens/s");
  print_row("decode reads", m.decode_bytes, "GB/s");
  if (on_processor(o)) {
    print_row("memory reads", m.probe, "GB/s");
    print_row("decode / memory", m.percent, "%");
  }
  print_row("slowest token", m.slowest_gap, "ms");
  std::printf("a decode step reads %s\n", format_bytes(static_cast<uint64_t>(m.bytes_per_step)).c_str());
}

Status bench(BenchOptions o) {
  if (o.probe) {
    if (!o.model.model.empty() || !o.shape.empty()) {
      return invalid_argument("--probe measures the machine alone; leave out MODEL and --shape", "probe");
    }
    return print_machine_probe(o.model.engine.threads, o.repeat, o.json);
  }
  if (o.model.model.empty() == o.shape.empty()) {
    return invalid_argument(
        "give a MODEL, or --shape CONFIG.json for random weights of that shape, or --probe", "command line");
  }
  if (o.context == 0) o.context = o.prompt_tokens;
  std::optional<WorkFolder> folder;
  if (!o.shape.empty()) {
    OAR_ASSIGN(WorkFolder made, make_weights(o));
    folder.emplace(std::move(made));
    o.model.model = folder->path();
    if (o.model.engine.name.empty()) o.model.engine.name = std::filesystem::path(o.shape).stem().string();
    if (o.keep) std::fprintf(stderr, "weights kept in %s\n", folder->path().c_str());
  }
  LanguageModelOptions& e = o.model.engine;
  e.max_sequences = std::max(e.max_sequences, o.streams);
  if (e.max_context == 0) {
    e.max_context =
        std::max(o.prompt_tokens, o.context) + o.gen_tokens + (o.streams > 1 ? kOverlapTokens : 0);
  }

  OAR_ASSIGN(const std::unique_ptr<LanguageModel> model, open_model(o.model, LogLevel::kWarning));
  // A pool of its own; between runs the engine's workers are parked.
  ThreadPool pool({.threads = model->info().threads});
  OAR_ASSIGN(ReadProbe probe, ReadProbe::create(pool, kProbeBytes));
  ProgressBar bar(o.model.quiet);
  OAR_ASSIGN(const Measured measured, measure(*model, o, on_processor(o) ? &probe : nullptr, bar.callback()));
  bar.clear();
  (o.json ? print_json : print_text)(measured, o, model->info());
  return ok_status();
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* c = app.add_subcommand("bench", "Measure prefill and decode speed");
  add_model_options(*c, o->model, {.model_required = false});
  c->add_option("--shape", o->shape, "a config.json: random weights of that shape instead of a MODEL")
      ->check(CLI::ExistingFile);
  c->add_flag("--keep", o->keep, "keep the random weights (in --cache-dir, else /var/tmp)");
  c->add_option("--prompt-tokens", o->prompt_tokens, "prompt length of the prefill")
      ->check(above_zero())
      ->capture_default_str();
  c->add_option("--gen-tokens", o->gen_tokens, "tokens to decode")
      ->check(in_range(2, 1 << 20))
      ->capture_default_str();
  c->add_option("--streams", o->streams, "sequences at once")
      ->check(in_range(1, 4096))
      ->capture_default_str();
  c->add_option("--context", o->context, "tokens in the cache when decoding begins; 0: --prompt-tokens")
      ->check(zero_or_more())
      ->capture_default_str();
  c->add_option("--repeat", o->repeat, "rounds")->check(in_range(1, 1000))->capture_default_str();
  c->add_flag("--probe", o->probe, "measure the machine alone: memory reads and peaks of arithmetic");
  c->add_flag("--json", o->json, "print one JSON object");
  c->footer(
      "Examples:\n"
      "  oar bench demo\n"
      "  oar bench --probe\n"
      "  oar bench --shape configs/bench/llama-1b.json --threads 4\n"
      "  oar bench --shape configs/bench/llama-1b.json --weights int8 --streams 16 --json\n"
      "  oar bench model.gguf --context 4096 --gen-tokens 64\n"
      "The percentage is of read bandwidth measured in the same round with the same number of threads.");
  c->callback([o, &action] {
    action = [o] {
      const Status status = bench(*o);
      return status.ok() ? kSuccess : fail(status);
    };
  });
}

}  // namespace oar::cli
