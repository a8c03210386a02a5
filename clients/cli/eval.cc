// oar eval: perplexity on a text (engine/tune/measure/eval.h has the protocol), or, with a reference or more
// than one format, the table that says what each format costs (engine/tune/measure/compare.h).
#include "engine/tune/measure/eval.h"
#include "clients/cli/ranges.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/progress.h"
#include "clients/cli/prompt.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/tune/measure/compare.h"
#include "engine/tune/measure/peer_kv.h"

namespace oar::cli {
namespace {

struct EvalCommand {
  ModelOptions model;
  PerplexityOptions eval;
  std::string text, reference, plot;
  std::vector<std::string> weights{"auto"}, kv{"auto"}, rotations{"auto"}, candidates, activations{""};
  std::vector<int64_t> contexts{0};
  bool no_bos = false, json = false, kv_auto = false;

  bool is_table() const {
    return !reference.empty() || !plot.empty() || !candidates.empty() || weights.size() > 1 ||
           !activations[0].empty() || kv.size() > 1 || rotations.size() > 1 || contexts.size() > 1 ||
           peer_kv(kv[0]).has_value();
  }
};

// Bits per element of what the windows' queries saw in the cache.
Result<double> cache_bits(const ModelOptions& o, const ModelInfo& info, const Tokenizer& tokenizer,
                          const std::string& text, const PerplexityOptions& cut) {
  std::string path;
  OAR_ASSIGN(LanguageModelOptions engine, engine_options(o, LogLevel::kError, path));
  engine.kv = info.kv;
  engine.max_context = info.max_context;
  OAR_ASSIGN(const Checkpoint checkpoint, load_checkpoint(path));
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  OAR_ASSIGN(const ServingGraph graph, build_serving_graph(checkpoint, config, engine));
  OAR_ASSIGN(const EvalWindows all, eval_windows(tokenizer, text, cut));
  return model_bits(graph, engine.page_tokens).kv_bits(open_share(all.windows, engine.page_tokens));
}

int perplexity(const EvalCommand& o, const std::string& text) {
  ModelOptions model_options = o.model;
  // Windows never repeat a prefix worth keeping, and --context beyond the default has to reach the engine.
  model_options.no_prefix_cache = true;
  model_options.engine.weights = o.weights[0];
  model_options.engine.kv = o.kv[0];
  model_options.kv_auto = o.kv_auto;
  model_options.engine.rotate = o.rotations[0];
  if (model_options.engine.max_context == 0) model_options.engine.max_context = o.contexts[0];
  auto model = open_model(model_options, LogLevel::kWarning);
  if (!model.ok()) return fail(model.status());
  PerplexityOptions options = o.eval;
  options.context = o.contexts[0];
  options.add_bos = !o.no_bos;
  options.adapter = chosen_adapter(o.model, **model);
  ProgressBar bar(o.model.quiet);
  auto result =
      evaluate_perplexity((*model)->engine(), *(*model)->tokenizer(), text, options, bar.callback());
  bar.clear();
  if (!result.ok()) return fail(result.status());
  options.context = result->context;
  const EvalResult& r = *result;
  const auto kv_bits = cache_bits(model_options, (*model)->info(), *(*model)->tokenizer(), text, options);
  if (!kv_bits.ok()) return fail(kv_bits.status());
  if (o.json) {
    std::printf("%s\n", json::serialize(json::object{{"model", (*model)->info().name},
                                                     {"text", o.text},
                                                     {"perplexity", r.perplexity()},
                                                     {"nll", r.nll},
                                                     {"bits_per_byte", r.bits_per_byte()},
                                                     {"tokens", r.tokens},
                                                     {"bytes", r.bytes},
                                                     {"documents", r.documents},
                                                     {"windows", r.windows},
                                                     {"context", r.context},
                                                     {"weights", (*model)->info().weights},
                                                     {"kv", (*model)->info().kv},
                                                     {"kv_bits", *kv_bits},
                                                     {"seconds", r.seconds}})
                            .c_str());
  } else {
    std::printf(
        "perplexity %.4f over %lld tokens (%.4f bits per byte; %lld documents, %lld windows of %lld) in %.1f "
        "s\n",
        r.perplexity(), static_cast<long long>(r.tokens), r.bits_per_byte(),
        static_cast<long long>(r.documents), static_cast<long long>(r.windows),
        static_cast<long long>(r.context), r.seconds);
    std::printf("weights %s; KV cache %s: %.2f bits per element of what was read\n",
                (*model)->info().weights.c_str(), (*model)->info().kv.c_str(), *kv_bits);
  }
  return kSuccess;
}

struct Opened {
  std::string name, path;
  Checkpoint checkpoint;
};

Result<Opened> open_checkpoint(const EvalCommand& o, const std::string& model, const Progress& progress) {
  OAR_ASSIGN(const ResolvedModel resolved, resolve_model(model, o.model.cache_dir));
  LoadOptions load;
  load.mmap = !o.model.no_mmap;
  OAR_ASSIGN(Checkpoint checkpoint, load_checkpoint(resolved.path, load, progress));
  return Opened{resolved.name, resolved.path, std::move(checkpoint)};
}

Result<CompareReport> measure(const EvalCommand& o, const std::string& text) {
  ProgressBar bar(o.model.quiet);
  const Progress progress = bar.callback();
  std::string path;
  CompareOptions options;
  OAR_ASSIGN(options.model, engine_options(o.model, LogLevel::kWarning, path));
  OAR_ASSIGN(const Opened model, open_checkpoint(o, o.model.model, progress));
  std::optional<Opened> reference;
  if (!o.reference.empty()) { OAR_ASSIGN(reference, open_checkpoint(o, o.reference, progress)); }
  const Checkpoint& truth = reference ? reference->checkpoint : model.checkpoint;
  std::vector<Opened> others;
  for (const std::string& candidate : o.candidates) {
    // NAME=MODEL, unless such a file exists.
    const size_t equals = std::filesystem::exists(candidate) ? std::string::npos : candidate.find('=');
    const size_t begin = equals == std::string::npos ? 0 : equals + 1;
    OAR_ASSIGN(Opened opened, open_checkpoint(o, candidate.substr(begin), progress));
    if (begin > 0) opened.name = candidate.substr(0, equals);
    others.push_back(std::move(opened));
  }
  std::vector<CompareCase> cases;
  // `--kv auto` is each model's own decision.
  const auto settled = [&](const std::string& kv, const Opened& opened) -> Result<std::string> {
    ModelOptions one = o.model;
    one.kv_auto = o.kv_auto && kv == "auto";
    LanguageModelOptions engine = options.model;
    engine.kv = kv;
    OAR_RETURN_IF_ERROR(settle_kv(one, opened.path, engine, progress));
    return engine.kv;
  };
  for (const std::string& kv : o.kv) {
    OAR_ASSIGN(const std::string own, settled(kv, model));
    std::vector<std::string> theirs;
    for (const Opened& other : others) { OAR_ASSIGN(theirs.emplace_back(), settled(kv, other)); }
    for (const std::string& rotate : o.rotations) {
      for (const std::string& activations : o.activations) {
        const std::string rule = activations == "auto" ? "" : activations;
        for (const std::string& weights : o.weights) {
          cases.push_back({model.name, &model.checkpoint, weights, own, rotate, rule});
        }
        for (size_t k = 0; k < others.size(); ++k) {
          cases.push_back({others[k].name, &others[k].checkpoint, "auto", theirs[k], rotate, rule});
        }
      }
    }
  }
  OAR_ASSIGN(const ModelConfig config, read_model_config(truth.config));
  OAR_ASSIGN(const auto tokenizer, make_tokenizer(truth.tokenizer, config.vocab));
  for (const int64_t context : o.contexts) {
    options.contexts.push_back(context > 0 ? context : config.max_context);
  }
  options.eval = o.eval;
  options.eval.add_bos = !o.no_bos;
  OAR_ASSIGN(CompareReport report, compare_models(truth, *tokenizer, text, cases, options, progress));
  const std::string& name = reference ? reference->name : model.name;
  report.reference = cat(name, " with ", report.reference);
  report.text = o.text;
  return report;
}

int table(const EvalCommand& o, const std::string& text) {
  auto report = measure(o, text);
  if (!report.ok()) return fail(report.status());
  if (!o.plot.empty()) {
    std::ofstream file(o.plot, std::ios::binary);
    file << compare_svg(*report);
    file.close();
    if (!file) return fail(unavailable(cat("cannot write the plot to ", o.plot)));
  }
  if (o.json) std::printf("%s\n", json::serialize(compare_json(*report)).c_str());
  else std::fputs(compare_table(*report).c_str(), stdout);
  return kSuccess;
}

int eval(const EvalCommand& o) {
  ModelOptions asked = o.model;
  asked.kv_auto = o.kv_auto;
  if (const Status s = check_tune_seconds(asked); !s.ok()) return fail(s);
  auto text = read_text(o.text);
  if (!text.ok()) return fail(text.status());
  if (o.is_table() && !o.model.engine.loras.empty())
    return fail(invalid_argument("--lora: a table compares models without adapters; leave one of the two out",
                                 "command line"));
  return o.is_table() ? table(o, *text) : perplexity(o, *text);
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  auto o = std::make_shared<EvalCommand>();
  CLI::App* c = app.add_subcommand("eval", "Perplexity of a model on a text, and what formats cost");
  add_model_options(*c, o->model, {.formats = false});
  add_lora_options(*c, o->model, false);
  c->add_option("--text", o->text, "the text file; - is standard input")->required();
  c->add_option("--weights", o->weights, "how weights are held; several, by commas, make a table")
      ->delimiter(',')
      ->type_name("FORMAT,..")
      ->default_str("auto");
  c->add_option("--kv", o->kv,
                "type of the KV cache, as in `oar serve`; several, by commas, make a table. Also other\n"
                "engines' rules, for comparison: llama-q8_0, llama-q4_0 (each also with -rot), paddle-c4,\n"
                "rtn-g32")
      ->delimiter(',')
      ->each([raw = o.get()](const std::string& name) { raw->kv_auto |= name == "auto"; })
      ->type_name("TIER,..")
      ->default_str("no narrower than the file");
  add_tune_seconds(*c, o->model);
  c->add_option("--rotate", o->rotations,
                "Hadamard rotations, as in `oar serve`; may be repeated, for a table")
      ->type_name("LIST")
      ->allow_extra_args(false)
      ->default_str("auto");
  c->add_option(
       "--activations", o->activations,
       "round the input of every linear layer: bf16, int8 (a scale for each token and 256 channels) or\n"
       "fp8 (for each token); auto: as the kernels take them; several, by commas, make a table")
      ->delimiter(',')
      ->type_name("TYPE,..")
      ->default_str("auto");
  c->add_option(
       "--candidate", o->candidates,
       "another checkpoint of the same vocabulary, a row of its own; of one NAME several make a curve\n"
       "of the plot")
      ->type_name("[NAME=]MODEL")
      ->allow_extra_args(false);
  c->add_option("--reference", o->reference,
                "what to compare with, as in its file and with an f32 cache; MODEL itself if not given")
      ->type_name("MODEL");
  c->add_option("--context", o->contexts,
                "tokens per window, BOS included; 0: the model's context; several, by commas, make a table")
      ->delimiter(',')
      ->check(zero_or_more())
      ->type_name("N,..")
      ->default_str("0");
  c->add_option("--separator", o->eval.separator, "between documents; empty: the text is one")
      ->capture_default_str();
  c->add_flag("--no-bos", o->no_bos, "no beginning-of-sequence token before each window");
  c->add_flag("--json", o->json, "print one JSON object");
  c->add_option("--plot", o->plot, "write the table's plot as SVG")->type_name("FILE");
  c->footer(
      "Examples:\n"
      "  oar eval demo --text configs/demo/heldout.txt\n"
      "  oar eval demo --weights bf16,int8 --kv bf16 --context 256,2048 --text configs/demo/heldout.txt\n"
      "  oar eval int4-folder --reference bf16-folder --text wiki.txt --plot loss.svg\n"
      "Documents are split at the separator and stripped; each is cut into windows that are evaluated alone, "
      "behind\n"
      "BOS. Compare models with different tokenizers by bits per byte. In the table, KLD is the divergence "
      "of "
      "the\n"
      "row's next-token distribution from the reference's in nats, +- its standard error, top-1 how often "
      "the\n"
      "likeliest token is the same, SNR that of the logits; bits/w counts linear layers and the head, kv "
      "bits "
      "all\n"
      "that queries saw, the 16-bit pages beside quantized ones among it.");
  c->callback([o, &action] { action = [o] { return eval(*o); }; });
}

}  // namespace oar::cli
