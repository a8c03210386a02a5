#include "engine/tune/measure/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/base/format.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/tune/measure/activation_rounding.h"
#include "engine/tune/measure/divergence.h"
#include "engine/tune/measure/peer_kv.h"

namespace oar {
namespace {

CompareRow make_row(const CompareCase& c, const EvalModel& model, int64_t context, double open,
                    const Divergence& d) {
  CompareRow row;
  row.label = c.label;
  row.weights = c.weights == "auto" ? model.weights() : c.weights;
  row.kv = peer_kv(c.kv) ? c.kv : model.kv();
  row.rotate = model.rotation();
  row.activations = c.activations;
  row.context = context;
  row.positions = d.positions();
  row.bits = model.bits();
  if (const auto peer = peer_kv(c.kv)) {
    row.bits.kv_bytes_per_token = peer->bits / 8 * static_cast<double>(row.bits.kv_elements);
  }
  row.kv_bits = row.bits.kv_bits(open);
  row.perplexity = d.perplexity();
  row.reference_perplexity = d.reference_perplexity();
  row.mean_kld = d.mean_kld();
  row.mean_kld_error = d.mean_kld_error();
  row.p99_kld = d.kld_quantile(0.99);
  row.top1 = d.top1_agreement();
  row.logit_snr_db = d.logit_snr_db();
  return row;
}

// The model of a case, ready to run. Another engine's KV rule runs over an f32 cache; the calibrated one is
// fitted to `windows` first.
Result<std::unique_ptr<EvalModel>> open_case(const CompareCase& c, const Checkpoint& checkpoint,
                                             LanguageModelOptions model,
                                             const std::shared_ptr<Backend>& backend, int64_t rows,
                                             const std::vector<EvalWindows>& cuts, const Progress& progress) {
  const auto peer = peer_kv(c.kv);
  const auto code = activation_code(c.activations);
  if (!c.activations.empty() && !code) {
    std::string known;
    for (const std::string& name : activation_code_names()) known += (known.empty() ? "" : ", ") + name;
    return invalid_argument(cat("activations '", c.activations, "' are not one of ", known), "activations");
  }
  const auto round = [&](Graph& g) { return code ? insert_activation_rounding(g, *code) : ok_status(); };
  if (!peer) return EvalModel::open(checkpoint, model, backend, rows, progress, round);
  model.kv = "f32";
  std::vector<KvRange> ranges;
  if (peer->code == PeerCode::kStaticChannel4) {
    OAR_ASSIGN(const auto observer, EvalModel::open(checkpoint, model, backend, rows, progress,
                                                    [&](Graph& g) { return observe_kv(g, ranges); }));
    for (const EvalWindows& cut : cuts) {
      for (const auto& window : cut.windows) {
        observer->reset();
        for (size_t at = 0; at < window.size(); at += static_cast<size_t>(rows)) {
          const size_t count = std::min(static_cast<size_t>(rows), window.size() - at);
          OAR_RETURN_IF_ERROR(observer->append(std::span(window).subspan(at, count)).status());
        }
      }
    }
  }
  return EvalModel::open(checkpoint, model, backend, rows, progress, [&](Graph& g) {
    OAR_RETURN_IF_ERROR(insert_peer_kv(g, *peer, ranges));
    return round(g);
  });
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Result<CompareReport> compare_models(const Checkpoint& reference, const Tokenizer& tokenizer,
                                     std::string_view text, const std::vector<CompareCase>& cases,
                                     const CompareOptions& options, const Progress& progress) {
  if (options.contexts.empty()) return invalid_argument("no context length to measure at", "context");
  const auto start = Clock::now();
  LanguageModelOptions model = options.model;
  model.max_context = *std::max_element(options.contexts.begin(), options.contexts.end());
  std::vector<EvalWindows> cuts;
  uint64_t tokens = 0, done = 0;
  for (const int64_t context : options.contexts) {
    PerplexityOptions eval = options.eval;
    eval.context = context;
    OAR_ASSIGN(EvalWindows cut, eval_windows(tokenizer, text, eval));
    for (const auto& window : cut.windows) tokens += window.size();
    cuts.push_back(std::move(cut));
  }
  model.weights = "auto";
  model.kv = "f32";
  model.rotate = "none";
  OAR_ASSIGN(const std::shared_ptr<Backend> reference_backend, make_backend(model));
  OAR_ASSIGN(const auto truth, EvalModel::open(reference, model, reference_backend, options.rows, progress));
  CompareReport report;
  report.reference = truth->weights() + " weights, " + truth->kv() + " KV";
  for (const CompareCase& c : cases) {
    const std::string what = cat(c.label, " --weights ", c.weights, " --kv ", c.kv, " --rotate ", c.rotate);
    model.weights = c.weights;
    model.kv = c.kv;
    model.rotate = c.rotate;
    OAR_ASSIGN(const std::shared_ptr<Backend> backend, make_backend(model));
    auto quantized = quantize_at_load(*c.checkpoint, c.weights, {model.cache_dir, model.cache_bytes},
                                      backend->host_pool(), model.log, progress, c.rotate);
    auto candidate = quantized.ok() ? open_case(c, *quantized, model, backend, options.rows, cuts, progress)
                                    : Result<std::unique_ptr<EvalModel>>(quantized.status());
    if (!candidate.ok()) {
      return Status(candidate.status().code(), cat(what, ": ", candidate.status().message()),
                    candidate.status().param());
    }
    if ((*candidate)->vocab() != truth->vocab()) {
      return invalid_argument(cat(what, ": a vocabulary of ", (*candidate)->vocab(), ", the reference has ",
                                  truth->vocab(), "; compare models with the same tokenizer"));
    }
    for (size_t k = 0; k < cuts.size(); ++k) {
      const auto row_start = Clock::now();
      Divergence divergence;
      for (const auto& window : cuts[k].windows) {
        if (window.size() > 1) OAR_RETURN_IF_ERROR(measure_window(*truth, **candidate, window, divergence));
        done += window.size();
        if (progress && !progress(what, done, tokens * cases.size())) {
          return Status(StatusCode::kCancelled, "stopped");
        }
      }
      const double open = open_share(cuts[k].windows, model.page_tokens);
      report.rows.push_back(make_row(c, **candidate, options.contexts[k], open, divergence));
      report.rows.back().seconds = seconds_since(row_start);
    }
  }
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace oar
