// oar eval: perplexity on a text; engine/tune/eval.h has the protocol.
#include "engine/tune/eval.h"

#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/progress.h"
#include "clients/cli/prompt.h"
#include "engine/base/json.h"

namespace oar::cli {
namespace {

struct EvalCommand {
  ModelOptions model;
  EvalOptions eval;
  std::string text;
  bool no_bos = false, json = false;
};

int eval(const EvalCommand& o) {
  auto text = read_text(o.text);
  if (!text.ok()) return fail(text.status());
  ModelOptions model_options = o.model;
  // Windows never repeat a prefix worth keeping, and --context beyond the default has to reach the engine.
  model_options.no_prefix_cache = true;
  if (model_options.engine.max_context == 0) model_options.engine.max_context = o.eval.context;
  auto model = open_model(model_options, LogLevel::kWarning);
  if (!model.ok()) return fail(model.status());
  EvalOptions options = o.eval;
  options.add_bos = !o.no_bos;
  ProgressBar bar(o.model.quiet);
  auto result =
      evaluate_perplexity((*model)->engine(), *(*model)->tokenizer(), *text, options, bar.callback());
  bar.clear();
  if (!result.ok()) return fail(result.status());
  const EvalResult& r = *result;
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
                                                     {"seconds", r.seconds}})
                            .c_str());
  } else {
    std::printf(
        "perplexity %.4f over %lld tokens (%.4f bits per byte; %lld documents, %lld windows of %lld) in %.1f "
        "s\n",
        r.perplexity(), static_cast<long long>(r.tokens), r.bits_per_byte(),
        static_cast<long long>(r.documents), static_cast<long long>(r.windows),
        static_cast<long long>(r.context), r.seconds);
  }
  return kSuccess;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  auto o = std::make_shared<EvalCommand>();
  CLI::App* c = app.add_subcommand("eval", "Perplexity of a model on a text");
  add_model_options(*c, o->model);
  c->add_option("--text", o->text, "the text file; - is standard input")->required();
  c->add_option("--context", o->eval.context, "tokens per window, BOS included; 0: the model's context")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option("--separator", o->eval.separator, "between documents; empty: the text is one")
      ->capture_default_str();
  c->add_flag("--no-bos", o->no_bos, "no beginning-of-sequence token before each window");
  c->add_flag("--json", o->json, "print one JSON object");
  c->footer(
      "Examples:\n"
      "  oar eval demo --text configs/demo/heldout.txt\n"
      "  oar eval stories260K.gguf --text stories.txt --context 512 --json\n"
      "Documents are split at the separator and stripped; each is cut into windows that are evaluated alone, "
      "behind\n"
      "BOS. Compare models with different tokenizers by bits per byte.");
  c->callback([o, &action] { action = [o] { return eval(*o); }; });
}

}  // namespace oar::cli
