// oar quantize: a model in 16 or 32 bits becomes a folder in a smaller storage format.
#include "engine/tune/quantize/quantize.h"
#include "clients/cli/ranges.h"

#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/progress.h"
#include "clients/cli/prompt.h"
#include "clients/cli/signals.h"
#include "engine/base/format.h"
#include "engine/models/model.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"

namespace oar::cli {
namespace {

struct QuantizeCommand {
  ModelOptions model;
  QuantizeOptions quantize;
  std::string out, calibration;
  bool quiet = false;
};

void print(const LayerError& e) {
  if (e.output_error >= 0) {
    std::printf("%-52s %-10s weights %.4f  output %.4f%s\n", e.name.c_str(), e.format.c_str(), e.weight_error,
                e.output_error, e.fell_back ? "  rounded" : "");
  } else {
    std::printf("%-52s %-10s weights %.4f\n", e.name.c_str(), e.format.c_str(), e.weight_error);
  }
}

Result<QuantizeReport> run(const QuantizeCommand& o, SignalWatcher& signals) {
  ProgressBar bar(o.quiet, [&] { return signals.requested(); });
  QuantizeOptions options = o.quantize;
  if (!o.calibration.empty()) { OAR_ASSIGN(options.calibration, read_text(o.calibration)); }
  OAR_ASSIGN(const std::string path, resolve_model_path(o.model.model));
  OAR_ASSIGN(const Checkpoint checkpoint, load_checkpoint(path, {}, bar.callback()));
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!options.calibration.empty()) {
    OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
    OAR_ASSIGN(tokenizer, make_tokenizer(checkpoint.tokenizer, config.vocab));
  }
  return quantize_model(
      checkpoint, tokenizer.get(), o.out, options,
      [&](const LayerError& e) {
        bar.clear();
        if (!o.quiet) print(e);
      },
      bar.callback());
}

int quantize(const QuantizeCommand& o) {
  SignalWatcher signals;
  const auto report = run(o, signals);
  if (!report.ok()) return fail(report.status());
  std::printf("%s: %s of weights, from %s, in %.1f s%s\n", o.out.c_str(), format_bytes(report->bytes).c_str(),
              format_bytes(report->source_bytes).c_str(), report->seconds,
              report->resumed > 0 ? cat("; ", report->resumed, " matrices were done before").c_str() : "");
  if (!report->left_out.empty())
    std::printf("rotate %s: left out %s\n", o.quantize.rotate.c_str(), report->left_out.c_str());
  if (!report->uneven.empty()) std::printf("%s\n", uneven_text(report->uneven).c_str());
  if (report->drafts > 0)
    std::printf(
        "%zu tensors of draft heads are left out: they read what rotated weights, or scaled channels, "
        "no longer have\n",
        report->drafts);
  std::string rounded;
  for (const LayerError& e : report->layers) {
    if (e.fell_back) rounded += cat(rounded.empty() ? "" : ", ", e.name);
  }
  if (!rounded.empty()) {
    std::printf("rounded, as error feedback was no better on the tenth of the text held back: %s\n",
                rounded.c_str());
  }
  return kSuccess;
}

}  // namespace

void add_quantize(CLI::App& app, Action& action) {
  auto o = std::make_shared<QuantizeCommand>();
  CLI::App* c = app.add_subcommand("quantize", "Write a model in a smaller storage format");
  add_model_argument(*c, o->model);
  add_out(*c, o->out)->type_name("DIR");
  c->add_option("--weights", o->quantize.weights, "the scheme: int4, int8, or a storage format's name")
      ->check([](const std::string& name) { return weight_scheme(name).status().message(); })
      ->capture_default_str();
  c->add_option("--method", o->quantize.method, "how scales and codes are chosen")
      ->check(CLI::IsMember(quantize_methods()))
      ->capture_default_str();
  c->add_option("--rotate", o->quantize.rotate,
                "Hadamard rotations of the weights first: none, all, or a list of r1, r2, r3 and r4 (or\n"
                "r4-exact: one transform of the whole width)")
      ->type_name("LIST")
      ->capture_default_str();
  c->add_option("--calibration", o->calibration, "text to calibrate on, for gptq, awq and smoothquant")
      ->type_name("FILE");
  c->add_option("--calibration-tokens", o->quantize.calibration_tokens,
                "at most about this many tokens of it")
      ->check(in_range(kCalibrationTokens, int64_t{1} << 40))
      ->capture_default_str();
  c->add_option("--calibration-context", o->quantize.calibration_context, "tokens per window")
      ->check(in_range(2, 1 << 20))
      ->capture_default_str();
  c->add_option("--damping", o->quantize.damping, "gptq: added to the diagonal, of its mean")
      ->check(above_zero())
      ->capture_default_str();
  c->add_flag("!--no-act-order", o->quantize.activation_order,
              "gptq: columns from left to right, not by the power of their inputs");
  c->add_option("--smoothquant-alpha", o->quantize.smoothquant_alpha,
                "how much difficulty goes to the weights")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--threads", o->quantize.threads, "worker threads; 0: all usable CPUs")
      ->check(in_range(0, 4096))
      ->capture_default_str();
  c->add_flag("-q,--quiet", o->quiet, "no progress, no line per matrix");
  c->footer(
      "Examples:\n"
      "  oar quantize ./Llama-3.2-1B -o ./Llama-3.2-1B-int4\n"
      "  oar quantize demo -o demo-int4 --method gptq --calibration text.txt\n"
      "MODEL may be a Hugging Face folder, a GGUF or a llama2.c file, in 16 or 32 bits. Errors are "
      "relative:\n"
      "|W - W'| / |W|, and of the output on the calibration text (gptq: on a tenth of it held back; a "
      "matrix\n"
      "that error feedback does not help there is rounded). Interrupted, the same command goes on where it\n"
      "stopped. `oar eval OUT --reference MODEL --text FILE` measures the result.");
  c->callback([o, &action] { action = [o] { return quantize(*o); }; });
}

}  // namespace oar::cli
