// oar tune: the tier of the KV cache for each layer that keeps the divergence under a bound, found by
// measuring and kept for `--kv auto`.
#include <cstdio>
#include <optional>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/progress.h"
#include "clients/cli/prompt.h"
#include "clients/cli/ranges.h"
#include "clients/cli/signals.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/models/model.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/tensor/embedded_files.h"
#include "engine/tune/quantize/tune_kv.h"

namespace oar::cli {
namespace {

struct TuneCommand {
  ModelOptions model;
  TuneKvOptions tune;
  std::optional<std::string> text;
  bool beside = false, dry_run = false, json = false;
};

struct Outcome {
  TuneKvReport report;
  std::string file;  // empty: not stored
};

Result<Outcome> run(const TuneCommand& o) {
  SignalWatcher signals;
  ProgressBar bar(o.model.quiet, [&] { return signals.requested(); });
  TuneKvOptions options = o.tune;
  std::string path, text(tuning_text());
  if (o.text) { OAR_ASSIGN(text, read_text(*o.text)); }
  OAR_ASSIGN(options.model, engine_options(o.model, LogLevel::kWarning, path));
  if (o.beside && path.starts_with(kEmbeddedPrefix)) {
    return invalid_argument(
        cat("--beside: ", path, " lies in the program, not in a folder; leave --beside out"), "command line");
  }
  LoadOptions load;
  load.mmap = !o.model.no_mmap;
  OAR_ASSIGN(const Checkpoint checkpoint, load_checkpoint(path, load, bar.callback()));
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  OAR_ASSIGN(const auto tokenizer, make_tokenizer(checkpoint.tokenizer, config.vocab));
  Outcome out;
  OAR_ASSIGN(out.report, tune_kv(checkpoint, *tokenizer, text, options, bar.callback()));
  if (!out.report.decision.kv.empty() && !o.dry_run) {
    OAR_ASSIGN(out.file,
               store_kv_decision(checkpoint, out.report.decision, options.model.cache_dir, o.beside));
  }
  return out;
}

void print_json(const Outcome& out) {
  const TuneKvReport& r = out.report;
  json::array steps;
  for (const TuneKvStep& s : r.steps) {
    steps.push_back(json::object{{"kv", s.kv}, {"kv_bits", s.kv_bits}, {"mean_kld", s.mean_kld}});
  }
  std::printf("%s\n", json::serialize(json::object{{"kv", r.decision.kv},
                                                   {"mean_kld", r.decision.mean_kld},
                                                   {"max_kld", r.decision.max_kld},
                                                   {"kv_bits", r.decision.kv_bits},
                                                   {"positions", r.decision.positions},
                                                   {"within", r.within},
                                                   {"complete", r.complete},
                                                   {"file", out.file},
                                                   {"measured", std::move(steps)},
                                                   {"seconds", r.seconds}})
                          .c_str());
}

void print_text(const Outcome& out) {
  const TuneKvReport& r = out.report;
  std::printf("%8s  %10s  kv\n", "kv bits", "mean KLD");
  for (const TuneKvStep& s : r.steps) std::printf("%8.3f  %10.6f  %s\n", s.kv_bits, s.mean_kld, s.kv.c_str());
  std::printf("%s: %s, %.3f bits per element, mean KLD %.6f (bound %g%s) over %lld positions, %.1f s\n",
              r.complete ? "chosen" : "time is over; chosen of what was measured", r.decision.kv.c_str(),
              r.decision.kv_bits, r.decision.mean_kld, r.decision.max_kld, r.within ? "" : ", missed",
              static_cast<long long>(r.decision.positions), r.seconds);
  if (!out.file.empty()) std::printf("kept in %s for --kv auto\n", out.file.c_str());
}

int tune(const TuneCommand& o) {
  const auto out = run(o);
  if (!out.ok()) return fail(out.status());
  if (out->report.decision.kv.empty()) {
    return fail(Status(StatusCode::kDeadlineExceeded,
                       cat("nothing could be measured within ", o.tune.seconds, " s; raise --seconds")));
  }
  (o.json ? print_json : print_text)(*out);
  return kSuccess;
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  auto o = std::make_shared<TuneCommand>();
  CLI::App* c = app.add_subcommand("tune", "Choose a KV cache tier for each layer by measuring");
  add_model_options(*c, o->model, {.memory_budget = false, .formats = false});
  c->add_option("--weights", o->model.engine.weights, "how weights are held while measuring")
      ->capture_default_str();
  c->add_option("--text", o->text, "text to measure on; built-in text if not given")->type_name("FILE");
  c->add_option("--max-kld", o->tune.max_kld, "mean divergence from an f32 cache, in nats, not to exceed")
      ->check(above_zero())
      ->capture_default_str();
  c->add_option("--seconds", o->tune.seconds, "time to spend; 0: as long as it takes")
      ->check(zero_or_more())
      ->capture_default_str();
  c->add_option("--tokens", o->tune.tokens, "at most this many tokens of the text")
      ->check(above_zero())
      ->capture_default_str();
  c->add_option("--context", o->tune.context, "tokens per window")
      ->check(in_range(int64_t{2}, int64_t{1} << 20))
      ->capture_default_str();
  c->add_flag("--beside", o->beside, "keep the decision in the model's folder instead of the cache");
  c->add_flag("--dry-run", o->dry_run, "keep nothing");
  c->add_flag("--json", o->json, "print one JSON object");
  c->footer(
      "Examples:\n"
      "  oar tune ./Llama-3.2-1B --text mine.txt\n"
      "  oar serve ./Llama-3.2-1B --kv auto\n"
      "Tiers tried, cheapest first: k4v3, int4, int4-mean, k8v4, int8. When one of them will not do for all "
      "layers, "
      "each\n"
      "layer is measured by itself and the layers that lose most get more bits.");
  c->callback([o, &action] { action = [o] { return tune(*o); }; });
}

}  // namespace oar::cli
