#include "engine/tune/quantize/tune_kv.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "engine/base/format.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/tune/measure/divergence.h"
#include "engine/tune/measure/eval.h"
#include "engine/tune/measure/eval_model.h"
#include "kernels/kv_quant.h"

namespace oar {
namespace {

using Seconds = std::chrono::duration<double>;

// Cheapest first; the last is the safest. A latent is kept as one code for keys and values.
using Tiers = std::span<const char* const>;
constexpr const char* kTiers[] = {"k4v3", "int4", "int4-mean", "k8v4", "int8"};
constexpr const char* kLatentTiers[] = {"int4", "int8"};

// Of a hybrid those with attention alone, of others those with keys and values of their own.
int64_t layers_to_tune(const ModelConfig& config) {
  return std::min(config.kv_layers(), config.attention_layers());
}

// A tier for each layer.
using Assignment = std::vector<size_t>;

std::string name_of(Tiers names, const Assignment& tiers) {
  if (std::all_of(tiers.begin(), tiers.end(), [&](size_t t) { return t == tiers[0]; }))
    return names[tiers[0]];
  std::string out;
  for (const size_t t : tiers) out += cat(out.empty() ? "" : "/", names[t]);
  return out;
}

// Measures configurations against an f32 cache over the same weights: what the cache alone costs.
class Bench {
 public:
  Bench(const Checkpoint& checkpoint, const TuneKvOptions& options, const Progress& progress,
        TuneKvReport& report)
      : source_(checkpoint), o_(options), progress_(progress), report_(report), start_(Clock::now()) {}

  Status prepare(const Tokenizer& tokenizer, std::string_view text);
  // Nothing: the time is over.
  Result<std::optional<TuneKvStep>> measure(const std::string& kv);
  // Another measurement would end in time.
  bool time_left() const { return o_.seconds <= 0 || seconds() + 1.2 * longest_ < o_.seconds; }
  double seconds() const { return Seconds(Clock::now() - start_).count(); }
  void expect(uint64_t measurements) { expected_ = std::max<uint64_t>(expected_, measurements); }
  int64_t positions() const { return positions_; }
  Tiers tiers() const { return tiers_; }

 private:
  Result<std::unique_ptr<EvalModel>> open(const std::string& kv);
  // Takes windows, `tokens` of them at most; how many positions count.
  int64_t take_windows(const EvalWindows& cut, int64_t context, int64_t tokens);
  Status too_few(const EvalWindows& cut, int64_t context, int64_t positions) const;

  const Checkpoint& source_;
  const TuneKvOptions& o_;
  const Progress& progress_;
  TuneKvReport& report_;
  const Clock::time_point start_;
  std::optional<Checkpoint> quantized_;
  LanguageModelOptions model_;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<EvalModel> truth_;
  std::vector<std::vector<int32_t>> windows_;
  double longest_ = 0;  // seconds of one measurement
  Tiers tiers_ = kTiers;
  uint64_t expected_ = std::size(kTiers);
  int64_t positions_ = 0;
};

Result<std::unique_ptr<EvalModel>> Bench::open(const std::string& kv) {
  LanguageModelOptions model = model_;
  model.kv = kv;
  return EvalModel::open(*quantized_, model, backend_, 256);
}

int64_t Bench::take_windows(const EvalWindows& cut, int64_t context, int64_t tokens) {
  const int64_t first = first_behind_quantized(o_.model.page_tokens);
  int64_t total = 0, positions = 0;
  windows_.clear();
  for (const auto& window : cut.windows) {
    auto size = static_cast<int64_t>(window.size());
    // The last part of a document need not be as long as the rest, a part of a window at least half of it.
    const int64_t least = std::max(first + 2, total + size > tokens ? std::min(context, size) / 2 : 0);
    size = std::min(size, tokens - total);
    if (size < least) continue;
    total += size;
    positions += size - 1 - first;  // the last token predicts nothing that is known
    windows_.emplace_back(window.begin(), window.begin() + size);
  }
  return positions;
}

Status Bench::too_few(const EvalWindows& cut, int64_t context, int64_t positions) const {
  size_t longest = 0;
  for (const auto& window : cut.windows) longest = std::max(longest, window.size());
  return invalid_argument(
      cat("the text has ", positions, " positions that see quantized pages, and a decision needs ",
          kTunePositions, ". A query sees them from position ", first_behind_quantized(o_.model.page_tokens),
          " of its document on; the longest of ", cut.windows.size(), " windows has ", longest,
          " tokens (context ", context, ", ", o_.tokens,
          " tokens at most). Give longer documents, raise --context or --tokens, or leave --text out"),
      "text");
}

Status Bench::prepare(const Tokenizer& tokenizer, std::string_view text) {
  OAR_ASSIGN(const ModelConfig config, read_model_config(source_.config));
  report_.layers = layers_to_tune(config);
  if (report_.layers == 0)
    return invalid_argument(
        cat("a ", config.model_type, " keeps no keys and values: there is no tier to choose"), "model");
  if (config.latent.rank > 0) tiers_ = kLatentTiers;
  PerplexityOptions cut;
  cut.context = std::min<int64_t>({o_.context, config.max_context, std::max<int64_t>(o_.tokens, 2)});
  OAR_ASSIGN(const EvalWindows all, eval_windows(tokenizer, text, cut));
  positions_ = take_windows(all, cut.context, o_.tokens);
  if (positions_ < kTunePositions) return too_few(all, cut.context, positions_);
  model_ = o_.model;
  model_.max_context = cut.context;
  model_.rotate = "auto";
  OAR_ASSIGN(backend_, make_backend(model_));
  OAR_ASSIGN(quantized_, quantize_at_load(source_, model_.weights, {model_.cache_dir, model_.cache_bytes},
                                          backend_->host_pool(), model_.log, progress_));
  OAR_ASSIGN(truth_, open("f32"));
  // As many windows as the time allows: all uniform tiers and as many mixtures, both models each time.
  if (o_.seconds <= 0) return ok_status();
  const auto begin = Clock::now();
  const size_t probe = std::min<size_t>(windows_[0].size(), 64);
  OAR_RETURN_IF_ERROR(truth_->append(std::span(windows_[0]).first(probe)).status());
  const double per_token = Seconds(Clock::now() - begin).count() / static_cast<double>(probe);
  const double each = (o_.seconds - seconds()) / (2 * 2 * static_cast<double>(tiers_.size()));
  const double allowed = std::max(0.0, each / std::max(per_token, 1e-9));
  if (allowed >= static_cast<double>(o_.tokens)) return ok_status();
  positions_ = take_windows(all, cut.context, static_cast<int64_t>(allowed));
  if (positions_ < kTunePositions) windows_.clear();  // there is no time for a measurement
  return ok_status();
}

Result<std::optional<TuneKvStep>> Bench::measure(const std::string& kv) {
  for (const TuneKvStep& step : report_.steps) {
    if (step.kv == kv) return std::optional(step);
  }
  if (windows_.empty() || !time_left()) return std::optional<TuneKvStep>();
  const auto begin = Clock::now();
  OAR_ASSIGN(const auto candidate, open(kv));
  Divergence divergence;
  for (size_t k = 0; k < windows_.size(); ++k) {
    OAR_RETURN_IF_ERROR(measure_window(*truth_, *candidate, windows_[k], divergence,
                                       first_behind_quantized(o_.model.page_tokens)));
    if (progress_ && !progress_("tuning the KV cache", report_.steps.size() * windows_.size() + k + 1,
                                std::max<uint64_t>(expected_, report_.steps.size() + 1) * windows_.size())) {
      return Status(StatusCode::kCancelled, "stopped");
    }
    if (o_.seconds > 0 && seconds() > o_.seconds) return std::optional<TuneKvStep>();
  }
  longest_ = std::max(longest_, Seconds(Clock::now() - begin).count());
  report_.steps.push_back({kv, candidate->bits().kv_bits(), divergence.mean_kld()});
  return std::optional(report_.steps.back());
}

// What a layer costs by itself, and what one bit of it is worth.
struct Costs {
  std::vector<std::vector<double>> kld;  // [layer][tier], over all layers in the safest
  std::vector<double> bits;              // [tier]
  double safest = 0;                     // KLD of all layers in the safest tier

  double predicted(const Assignment& tiers) const {
    double sum = safest;
    for (size_t l = 0; l < tiers.size(); ++l) sum += kld[l][tiers[l]];
    return sum;
  }
  // Takes the step that saves most divergence per bit added; a step that saves bits and divergence comes
  // first. False: every layer is in the safest tier.
  bool upgrade(Assignment& tiers) const {
    size_t layer = tiers.size(), tier = 0;
    double best = -1;
    for (size_t l = 0; l < tiers.size(); ++l) {
      for (size_t t = 0; t < bits.size(); ++t) {
        const double saved = kld[l][tiers[l]] - kld[l][t], added = bits[t] - bits[tiers[l]];
        if (added <= 0) continue;
        const double worth = std::max(saved, 0.0) / added;
        if (worth > best) {
          best = worth;
          layer = l;
          tier = t;
        }
      }
    }
    if (layer == tiers.size()) return false;
    tiers[layer] = tier;
    return true;
  }
};

// Step 2 and 3; returns when the time is over or the search has ended.
Status search_mixture(Bench& bench, const TuneKvOptions& o, TuneKvReport& report) {
  const auto layers = static_cast<size_t>(report.layers);
  const Tiers names = bench.tiers();
  const size_t safest = names.size() - 1;
  Costs costs;
  for (const char* tier : names) {
    OAR_ASSIGN(const auto uniform, bench.measure(tier));
    if (!uniform) return ok_status();
    costs.bits.push_back(uniform->kv_bits);
    costs.safest = uniform->mean_kld;  // the last stays
  }
  costs.kld.assign(layers, std::vector<double>(names.size(), 0));
  bench.expect(names.size() + layers * safest + 4);
  for (size_t l = 0; l < layers; ++l) {
    for (size_t t = 0; t < safest; ++t) {
      Assignment alone(layers, safest);
      alone[l] = t;
      OAR_ASSIGN(const auto step, bench.measure(name_of(names, alone)));
      if (!step) return ok_status();
      costs.kld[l][t] = std::max(0.0, step->mean_kld - costs.safest);
    }
  }
  // Where page means help a layer more than they cost, they are its cheapest tier.
  Assignment tiers(layers, 0);
  while (costs.predicted(tiers) > o.max_kld && costs.upgrade(tiers)) {}
  for (;;) {
    OAR_ASSIGN(const auto step, bench.measure(name_of(names, tiers)));
    if (!step) return ok_status();
    if (step->mean_kld <= o.max_kld || !costs.upgrade(tiers)) break;
  }
  report.complete = true;
  return ok_status();
}

}  // namespace

int64_t first_behind_quantized(int32_t page_tokens) {
  return (kKvSinkTokens / page_tokens + 1) * page_tokens;
}

Result<TuneKvReport> tune_kv(const Checkpoint& checkpoint, const Tokenizer& tokenizer, std::string_view text,
                             const TuneKvOptions& options, const Progress& progress) {
  if (!(options.max_kld > 0)) {
    return invalid_argument(cat("max_kld ", options.max_kld, " is not above 0"), "max_kld");
  }
  TuneKvReport report;
  Bench bench(checkpoint, options, progress, report);
  OAR_RETURN_IF_ERROR(bench.prepare(tokenizer, text));
  OAR_ASSIGN(const auto cheapest, bench.measure(bench.tiers()[0]));
  if (cheapest && cheapest->mean_kld <= options.max_kld) report.complete = true;
  else if (cheapest) OAR_RETURN_IF_ERROR(search_mixture(bench, options, report));
  // The cheapest that was measured under the bound; else the one with the least divergence.
  const TuneKvStep* best = nullptr;
  for (const TuneKvStep& step : report.steps) {
    const bool within = step.mean_kld <= options.max_kld;
    if (best == nullptr || (within && !report.within) ||
        (within == report.within &&
         (within ? step.kv_bits < best->kv_bits : step.mean_kld < best->mean_kld))) {
      best = &step;
    }
    report.within = best->mean_kld <= options.max_kld;
  }
  if (best != nullptr) {
    report.decision = {best->kv, options.max_kld, best->mean_kld, best->kv_bits, bench.positions()};
  }
  report.seconds = bench.seconds();
  return report;
}

Result<std::string> choose_kv(const std::string& path, const TuneKvOptions& options,
                              const Progress& progress) {
  LoadOptions load;
  load.mmap = options.model.use_mmap;
  OAR_ASSIGN(const Checkpoint checkpoint, load_checkpoint(path, load, progress));
  const Logger& log = options.model.log;
  if (const auto stored = find_kv_decision(checkpoint, options.model.cache_dir, log)) {
    log(LogLevel::kInfo,
        cat("--kv auto: ", stored->kv, ", as decided before (mean KLD ", stored->mean_kld, ")"));
    return stored->kv;
  }
  const auto fallback = [&](const std::string& why) -> Result<std::string> {
    log(LogLevel::kWarning, cat("--kv auto: int8, since ", why, "; `oar tune` takes the time it needs"));
    return std::string("int8");
  };
  if (options.seconds <= 0) return fallback("no decision is stored and none may be searched");
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  if (layers_to_tune(config) == 0) return fallback(cat("a ", config.model_type, " keeps no keys and values"));
  OAR_ASSIGN(const auto tokenizer, make_tokenizer(checkpoint.tokenizer, config.vocab));
  const auto tuned = tune_kv(checkpoint, *tokenizer, tuning_text(), options, progress);
  // A model of short contexts has nothing to decide on.
  if (!tuned.ok() && tuned.status().param() == "text") return fallback(tuned.status().message());
  OAR_RETURN_IF_ERROR(tuned.status());
  const TuneKvReport& report = *tuned;
  if (!report.within) {
    return fallback(report.steps.empty() ? cat("nothing could be measured within ", options.seconds, " s")
                                         : cat("nothing measured within ", options.seconds,
                                               " s keeps the mean KLD under ", options.max_kld));
  }
  const KvDecision& d = report.decision;
  const auto stored = store_kv_decision(checkpoint, d, options.model.cache_dir, false);
  log(LogLevel::kInfo,
      cat("--kv auto: ", d.kv, ", mean KLD ", d.mean_kld, " over ", d.positions, " positions",
          stored.ok() ? cat("; kept in ", *stored) : cat("; not kept: ", stored.status().message())));
  return d.kv;
}

}  // namespace oar
