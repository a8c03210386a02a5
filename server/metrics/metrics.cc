#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/device_usage.h"
#include "engine/base/format.h"
#include "server/api/generation.h"
#include "server/api/served_models.h"
#include "server/api/version.h"
#include "server/metrics/llama_totals.h"
#include "server/metrics/process_stats.h"

namespace oar {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;
using Labels = std::vector<ClientMetric::Label>;

// vLLM's boundaries: rules written for its quantiles see the same resolution here.
const Buckets kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                             1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kPerToken = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                           .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kLatency = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokens = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                         1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
const Buckets kIterationTokens = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Buckets kChoices = {1, 2, 5, 10, 20};
const Buckets kStep = {.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5};
const Buckets kHttp = {.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  if (from == Clock::time_point{} || to < from) return 0;
  return std::chrono::duration<double>(to - from).count();
}

// FinishReason to vLLM's finished_reason label.
const char* finished_label(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "abort";
    case FinishReason::kDeadline: return "deadline";
    default: return "error";
  }
}

// One model's histograms and totals.
class ModelMetrics final : public api::GenerationObserver {
 public:
  ModelMetrics(std::shared_ptr<prometheus::Registry> registry, std::shared_ptr<LlamaTotals> llama,
               const std::string& model)
      : registry_(std::move(registry)), llama_(std::move(llama)), model_(model) {}
  ~ModelMetrics() override {
    for (const auto& [family, histogram] : made_) family->Remove(histogram);
  }

  void on_step(const StepInfo& step) override {
    step_seconds_.Observe(step.seconds);
    iteration_tokens_.Observe(static_cast<double>(step.tokens));
    llama_->stepped();
  }
  void on_first_token(double seconds) override { first_token_.Observe(seconds); }
  void on_next_tokens(double seconds, size_t) override { inter_token_.Observe(seconds); }
  void on_finish(const api::PromptOutcome& outcome, const api::GenerationSpec& spec) override;
  void on_refused(const api::GenerationSpec&, StatusCode) override {
    std::lock_guard lock(mutex_);
    ++totals_.refused;
  }
  api::RequestTotals totals() const override {
    std::lock_guard lock(mutex_);
    return totals_;
  }

 private:
  prometheus::Histogram& make(const char* name, const char* help, const Buckets& buckets) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_);
    prometheus::Histogram& made = family.Add({{"model_name", model_}, {"engine", "0"}}, buckets);
    made_.emplace_back(&family, &made);
    return made;
  }
  void count(const SequenceStats& s, FinishReason reason, double total, double queue);

  const std::shared_ptr<prometheus::Registry> registry_;
  const std::shared_ptr<LlamaTotals> llama_;
  const std::string model_;
  std::vector<std::pair<prometheus::Family<prometheus::Histogram>*, prometheus::Histogram*>> made_;
  prometheus::Histogram& first_token_ =
      make("vllm:time_to_first_token_seconds", "Seconds from submission to the first token.", kFirstToken);
  prometheus::Histogram& inter_token_ =
      make("vllm:inter_token_latency_seconds", "Seconds between consecutive tokens of a choice.", kPerToken);
  prometheus::Histogram& per_output_token_ = make("vllm:request_time_per_output_token_seconds",
                                                  "Mean seconds per token after the first.", kPerToken);
  prometheus::Histogram& e2e_ = make("vllm:e2e_request_latency_seconds",
                                     "Seconds from submission to the end of the last choice.", kLatency);
  prometheus::Histogram& queue_ =
      make("vllm:request_queue_time_seconds", "Seconds a request waited before it was scheduled.", kLatency);
  prometheus::Histogram& prefill_ =
      make("vllm:request_prefill_time_seconds", "Seconds from being scheduled to the first token.", kLatency);
  prometheus::Histogram& decode_ =
      make("vllm:request_decode_time_seconds", "Seconds from the first token to the end.", kLatency);
  prometheus::Histogram& inference_ =
      make("vllm:request_inference_time_seconds", "Seconds from being scheduled to the end.", kLatency);
  prometheus::Histogram& prompt_tokens_ =
      make("vllm:request_prompt_tokens", "Prompt tokens of a request.", kTokens);
  prometheus::Histogram& generation_tokens_ =
      make("vllm:request_generation_tokens", "Tokens generated for a request, all choices.", kTokens);
  prometheus::Histogram& max_generation_tokens_ =
      make("vllm:request_max_num_generation_tokens", "Tokens a choice was allowed to generate.", kTokens);
  prometheus::Histogram& params_n_ = make("vllm:request_params_n", "Choices asked for.", kChoices);
  prometheus::Histogram& params_max_tokens_ =
      make("vllm:request_params_max_tokens", "max_tokens asked for.", kTokens);
  prometheus::Histogram& iteration_tokens_ =
      make("vllm:iteration_tokens_total", "Tokens of one engine step.", kIterationTokens);
  prometheus::Histogram& step_seconds_ =
      make("oar_step_duration_seconds", "Seconds of one engine step.", kStep);

  mutable std::mutex mutex_;
  api::RequestTotals totals_;  // guarded by mutex_
};

void ModelMetrics::on_finish(const api::PromptOutcome& outcome, const api::GenerationSpec& spec) {
  const api::GenerationRequest& request = spec.request;
  const SequenceStats& s = outcome.stats;
  const double total = seconds_between(s.submitted, s.finished);
  const double queue = seconds_between(s.submitted, s.scheduled);
  count(s, outcome.finish, total, queue);
  llama_->finished(s);
  if (outcome.finish != FinishReason::kStop && outcome.finish != FinishReason::kLength) return;
  e2e_.Observe(total);
  queue_.Observe(queue);
  prefill_.Observe(seconds_between(s.scheduled, s.first_token));
  decode_.Observe(seconds_between(s.first_token, s.finished));
  inference_.Observe(seconds_between(s.scheduled, s.finished));
  prompt_tokens_.Observe(static_cast<double>(s.prompt_tokens));
  generation_tokens_.Observe(static_cast<double>(s.completion_tokens));
  max_generation_tokens_.Observe(static_cast<double>(request.stop.max_tokens));
  params_n_.Observe(request.n);
  if (request.max_tokens) params_max_tokens_.Observe(static_cast<double>(*request.max_tokens));
  if (outcome.seconds_per_token > 0) per_output_token_.Observe(outcome.seconds_per_token);
}

void ModelMetrics::count(const SequenceStats& s, FinishReason reason, double total, double queue) {
  const auto ns = [](double seconds) { return static_cast<uint64_t>(seconds * 1e9); };
  std::lock_guard lock(mutex_);
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    ++totals_.success;
    totals_.success_ns += ns(total);
    totals_.queue_ns += ns(queue);
    totals_.compute_ns += ns(seconds_between(s.scheduled, s.finished));
  } else {
    ++totals_.failure;
    totals_.cancelled += reason == FinishReason::kCancelled;
    totals_.failure_ns += ns(total);
  }
  totals_.longest = std::max(totals_.longest, s.prompt_tokens + s.completion_tokens);
  totals_.last_finish_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                                     std::chrono::system_clock::now().time_since_epoch())
                                                     .count());
}

// Families built from snapshots at the moment of a scrape.
class Snapshot {
 public:
  void gauge(const char* name, const char* help, double value, const Labels& labels) {
    add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void counter(const char* name, const char* help, double value, const Labels& labels) {
    add(name, help, MetricType::Counter, labels).counter.value = value;
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type, const Labels& labels) {
    for (MetricFamily& f : families_) {
      if (f.name == name) return append(f, labels);
    }
    families_.push_back(MetricFamily{name, help, type, {}});
    return append(families_.back(), labels);
  }
  static ClientMetric& append(MetricFamily& family, const Labels& labels) {
    family.metric.emplace_back();
    family.metric.back().label = labels;
    return family.metric.back();
  }
  std::vector<MetricFamily> families_;
};

// llama.cpp's names. Rates are since the last time they were read.
void add_llama(Snapshot& out, LlamaTotals& totals, const std::vector<api::ServedModel>& models) {
  LlamaTotals::Counts before;
  LlamaTotals::Counts now = totals.read(before);
  const auto d = [](auto v) { return static_cast<double>(v); };
  double running = 0, waiting = 0;
  const auto rate = [](double count, double per) { return per > 0 ? count / per : 0; };
  const double busy = rate(now.generated, now.steps);
  const double prompts = rate(now.prompt - before.prompt, now.prompt_seconds - before.prompt_seconds);
  const double answers = rate(now.generated - before.generated, now.decode_seconds - before.decode_seconds);
  for (const api::ServedModel& m : models) {
    if (m.language) {
      const EngineStats s = m.language->engine->stats();
      running += d(s.running), waiting += d(s.waiting);
    } else if (m.tensor->encoder) {
      now.prompt += d(m.tensor->encoded_tokens.load());
      now.steps += d(m.tensor->runner->stats().executions);
    }
  }
  const auto counter = [&](const char* name, const char* help, double v) { out.counter(name, help, v, {}); };
  const auto gauge = [&](const char* name, const char* help, double v) { out.gauge(name, help, v, {}); };
  counter("llamacpp:prompt_tokens_total", "Prompt tokens computed.", now.prompt);
  counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens found in the cache.", now.cached);
  counter("llamacpp:prompt_seconds_total", "Seconds that prompts took.", now.prompt_seconds);
  counter("llamacpp:tokens_predicted_total", "Tokens generated.", now.generated);
  counter("llamacpp:tokens_predicted_seconds_total", "Seconds that answers took.", now.decode_seconds);
  counter("llamacpp:n_decode_total", "Steps of the engines.", now.steps);
  counter("llamacpp:n_tokens_max", "Tokens of the longest prompt and answer.", now.longest);
  counter("llamacpp:spec_decode_num_drafts_total", "Drafts verified, each of some tokens.", now.drafts);
  counter("llamacpp:spec_decode_num_draft_tokens_total", "Draft tokens verified.", now.drafted);
  counter("llamacpp:spec_decode_num_accepted_tokens_total", "Draft tokens that were right.", now.accepted);
  gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens per second of prompts since this was last read.",
        prompts);
  gauge("llamacpp:predicted_tokens_seconds", "Tokens per second of answers since this was last read.",
        answers);
  gauge("llamacpp:requests_processing", "Sequences being computed.", running);
  gauge("llamacpp:requests_deferred", "Requests waiting to be scheduled.", waiting);
  gauge("llamacpp:n_busy_slots_per_decode", "Tokens generated per step.", busy);
}

void add_engine(Snapshot& out, const ModelHandle& model) {
  const EngineStats s = model.engine->stats();
  const Labels l = {{"model_name", model.name}, {"engine", "0"}};
  const auto with = [&](const char* name, std::string value) {
    Labels all = l;
    all.push_back({name, std::move(value)});
    return all;
  };
  const auto d = [](auto v) { return static_cast<double>(v); };
  const double usage = s.blocks_total > 0 ? d(s.blocks_used) / d(s.blocks_total) : 0;

  out.gauge("vllm:num_requests_running", "Sequences being computed.", d(s.running), l);
  out.gauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.", d(s.waiting), l);
  out.gauge("oar_sequences_suspended", "Sequences without a slot because their reader is behind.",
            d(s.suspended), l);
  out.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 1 is full.", usage, l);
  out.gauge("vllm:gpu_cache_usage_perc", "The former name of vllm:kv_cache_usage_perc.", usage, l);
  out.counter("vllm:prompt_tokens_total", "Prompt tokens processed, cached ones included.",
              d(s.prompt_tokens + s.prefix_hits), l);
  out.counter("vllm:generation_tokens_total", "Tokens generated.", d(s.generation_tokens), l);
  out.counter("vllm:num_preemptions_total", "Sequences pushed out of the KV cache.", d(s.preemptions), l);
  out.counter("vllm:spec_decode_num_drafts_total", "Drafts verified, each of some tokens.",
              d(s.verified_drafts), l);
  out.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.",
              d(s.accepted_drafts + s.rejected_drafts), l);
  out.counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that were right.",
              d(s.accepted_drafts), l);
  for (size_t i = 0; i < s.accepted_at.size() && (i == 0 || s.accepted_at[i] > 0); ++i)
    out.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                "Draft tokens that were right, by their place in the draft.", d(s.accepted_at[i]),
                with("position", cat(i)));
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              d(s.prefix_queries), l);
  out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", d(s.prefix_hits),
              l);
  for (const FinishReason r : {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
                               FinishReason::kDeadline, FinishReason::kError}) {
    out.counter("vllm:request_success_total", "Finished choices by reason.",
                d(s.finished[static_cast<size_t>(r)]), with("finished_reason", finished_label(r)));
  }
  Labels cache = with("block_size", cat(s.page_tokens));
  cache.push_back({"num_gpu_blocks", cat(s.blocks_total)});
  cache.push_back({"cache_dtype", model.info.kv});
  out.gauge("vllm:cache_config_info", "Shape of the KV cache.", 1, cache);

  out.gauge("oar_engine_ready", "1 while the engine produces tokens.", s.health == EngineHealth::kReady, l);
  out.gauge("oar_kv_blocks", "Blocks of the KV cache by state.", d(s.blocks_total), with("state", "total"));
  out.gauge("oar_kv_blocks", "", d(s.blocks_used), with("state", "used"));
  out.gauge("oar_kv_blocks", "", d(s.blocks_cached), with("state", "cached"));
  out.gauge("oar_model_bytes", "Memory of a model by use.", d(model.info.weight_bytes),
            with("use", "weights"));
  if (model.info.draft_weight_bytes > 0)
    out.gauge("oar_model_bytes", "", d(model.info.draft_weight_bytes), with("use", "draft_weights"));
  out.gauge("oar_model_bytes", "", d(model.info.kv_bytes), with("use", "kv_cache"));
  out.gauge("oar_model_bytes", "", d(model.info.scratch_bytes), with("use", "scratch"));
  out.gauge("oar_max_context_tokens", "Longest context of the model.", d(model.info.max_context), l);
  out.gauge("oar_load_duration_seconds", "Seconds it took to load the model.", model.info.load_seconds, l);
  out.counter("oar_engine_steps_total", "Engine steps.", d(s.steps), l);
  out.counter("oar_engine_step_seconds_total", "Seconds spent in engine steps.", s.step_seconds, l);
}

// Triton's counters of a model of any kind.
void add_inference(Snapshot& out, const InferStats& s, const Labels& l) {
  const auto with = [&](const char* name, std::string value) {
    Labels all = l;
    all.push_back({name, std::move(value)});
    return all;
  };
  const auto d = [](auto v) { return static_cast<double>(v); };
  const auto us = [](uint64_t ns) { return static_cast<double>(ns) * 1e-3; };
  out.counter("nv_inference_request_success", "Requests answered with outputs.", d(s.success), l);
  const char* failures = "Requests that failed, by reason.";
  // A request counts as cancelled a moment before it counts as failed.
  const uint64_t others = s.failure - std::min(s.failure, s.cancelled + s.expired);
  out.counter("nv_inference_request_failure", failures, d(s.refused + s.expired), with("reason", "REJECTED"));
  out.counter("nv_inference_request_failure", failures, d(s.cancelled), with("reason", "CANCELED"));
  out.counter("nv_inference_request_failure", failures, d(others), with("reason", "OTHER"));
  out.counter("nv_inference_count",
              "Rows of the batches of successful requests; of a language model, their prompts.",
              d(s.inferences), l);
  out.counter("nv_inference_exec_count", "Runs of the model; of a language model, steps.", d(s.executions),
              l);
  out.gauge("nv_inference_pending_request_count", "Requests waiting to be run.", d(s.waiting), l);
  out.counter("nv_inference_request_duration_us", "Microseconds of successful requests, waiting included.",
              us(s.success_ns), l);
  out.counter("nv_inference_queue_duration_us", "Microseconds requests waited.", us(s.times.queue), l);
  out.counter("nv_inference_compute_input_duration_us", "Microseconds of joining inputs to batches.",
              us(s.times.input), l);
  out.counter("nv_inference_compute_infer_duration_us", "Microseconds of running the model.",
              us(s.times.compute), l);
  out.counter("nv_inference_compute_output_duration_us", "Microseconds of splitting outputs.",
              us(s.times.output), l);
}

void add_tensor_model(Snapshot& out, const api::TensorModel& model) {
  const InferStats s = model.runner->stats();
  const Labels l = {{"model", model.config.name}, {"version", model.config.version}};
  add_inference(out, s, l);
  const auto d = [](auto v) { return static_cast<double>(v); };
  out.gauge("oar_inference_running_requests", "Requests being run.", d(s.running), l);
  for (const InferStats::Batch& b : s.batches) {
    Labels rows = l;
    rows.push_back({"rows", cat(b.rows)});
    out.counter("oar_inference_batch_runs_total", "Runs of the model by the rows of their batch.", d(b.count),
                rows);
  }
  if (model.encoder)
    out.counter("oar_encoded_tokens_total", "Tokens of texts that were encoded.",
                d(model.encoded_tokens.load()), l);
  out.gauge("oar_inference_load_duration_seconds", "Seconds it took to load the model.", model.load_seconds,
            l);
}

void add_process(Snapshot& out) {
  const ProcessStats p = read_process_stats();
  out.gauge("process_resident_memory_bytes", "Resident memory.", static_cast<double>(p.resident_bytes), {});
  out.gauge("process_virtual_memory_bytes", "Virtual memory.", static_cast<double>(p.virtual_bytes), {});
  out.counter("process_cpu_seconds_total", "User and system CPU time.", p.cpu_seconds, {});
  out.gauge("process_start_time_seconds", "Start of the process since the epoch.", p.start_time_seconds, {});
  out.gauge("process_open_fds", "Open file descriptors.", static_cast<double>(p.open_fds), {});
  out.gauge("process_max_fds", "Limit of open file descriptors.", static_cast<double>(p.max_fds), {});
  out.gauge("oar_build_info", "What is running.", 1, {{"version", api::kVersion}});
}

// Triton's gauges of the machine. The share is that since they were last read, the first time since it
// started.
class MachineGauges {
 public:
  void add(Snapshot& out) {
    const MachineStats now = read_machine_stats();
    std::lock_guard lock(mutex_);
    const auto d = [](uint64_t v) { return static_cast<double>(v); };
    if (now.ticks > before_.ticks && now.busy >= before_.busy)
      share_ = d(now.busy - before_.busy) / d(now.ticks - before_.ticks);
    before_ = now;
    out.gauge("nv_cpu_utilization", "Share of the machine's processors in use, 1 is all.", share_, {});
    out.gauge("nv_cpu_memory_total_bytes", "Memory of the machine.", d(now.memory_bytes), {});
    out.gauge("nv_cpu_memory_used_bytes", "Memory of the machine that is in use.", d(now.used_bytes), {});
  }

 private:
  std::mutex mutex_;
  MachineStats before_;
  double share_ = 0;
};

// Of devices that are open: Triton's names, and ours for what it does not tell. Energy is what was used since
// a device was first seen.
class DeviceGauges {
 public:
  void add(Snapshot& out) {
    for (const DeviceUsage& u : device_usages()) {
      const std::string& uuid = u.uuid.empty() ? u.device : u.uuid;
      const Labels l = {{"gpu_uuid", uuid}};
      const auto gauge = [&](const char* name, const char* help, double value, const Labels& labels) {
        if (!std::isnan(value)) out.gauge(name, help, value, labels);
      };
      out.gauge("oar_device_info", "What the device is.", 1, {{"device", u.device}, {"gpu_uuid", uuid}});
      gauge("nv_gpu_utilization", "Share of the last moments in which the device computed, 1 is all.",
            u.utilization, l);
      gauge("nv_gpu_memory_total_bytes", "Memory of the device.", u.memory_total_bytes, l);
      gauge("nv_gpu_memory_used_bytes", "Memory of the device that is in use.", u.memory_used_bytes, l);
      gauge("nv_gpu_power_usage", "Watts the device draws.", u.power_watts, l);
      gauge("nv_gpu_power_limit", "Watts the device may draw.", u.power_limit_watts, l);
      const char* clocks = "Clocks of the device.";
      gauge("oar_device_clock_hertz", clocks, u.clock_hertz, {{"gpu_uuid", uuid}, {"clock", "compute"}});
      gauge("oar_device_clock_hertz", clocks, u.memory_clock_hertz,
            {{"gpu_uuid", uuid}, {"clock", "memory"}});
      gauge("oar_device_temperature_celsius", "Temperature of the device.", u.temperature_celsius, l);
      if (std::isnan(u.energy_joules)) continue;
      const std::lock_guard lock(mutex_);
      const double first = first_joules_.emplace(uuid, u.energy_joules).first->second;
      out.counter("nv_energy_consumption", "Joules the device has used since it was first seen.",
                  u.energy_joules - first, l);
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, double> first_joules_;  // guarded by mutex_
};

// The metrics of language models by name. A model that is loaded again shares those of the one that still
// answers: the registry has one histogram for one set of labels.
class ModelTable : public std::enable_shared_from_this<ModelTable> {
 public:
  ModelTable(std::shared_ptr<prometheus::Registry> registry, std::shared_ptr<LlamaTotals> llama)
      : registry_(std::move(registry)), llama_(std::move(llama)) {}

  std::shared_ptr<ModelMetrics> share(const std::string& model) {
    std::lock_guard lock(mutex_);
    Row& row = rows_[model];
    if (row.users++ == 0) row.metrics = std::make_unique<ModelMetrics>(registry_, llama_, model);
    return {row.metrics.get(), [self = shared_from_this(), model](ModelMetrics*) { self->leave(model); }};
  }

 private:
  struct Row {
    size_t users = 0;
    std::unique_ptr<ModelMetrics> metrics;
  };
  void leave(const std::string& model) {
    std::lock_guard lock(mutex_);
    const auto row = rows_.find(model);
    if (--row->second.users == 0) rows_.erase(row);
  }

  const std::shared_ptr<prometheus::Registry> registry_;
  const std::shared_ptr<LlamaTotals> llama_;
  std::mutex mutex_;
  std::map<std::string, Row> rows_;  // guarded by mutex_
};

// Of one route, method and status. The registry never erases them.
struct HttpSeries {
  prometheus::Counter* requests = nullptr;
  prometheus::Histogram* seconds = nullptr;
};

}  // namespace

struct Metrics::Impl {
  explicit Impl(const api::ModelCatalog& models) : catalog(models) {}

  const api::ModelCatalog& catalog;
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::shared_ptr<LlamaTotals> llama = std::make_shared<LlamaTotals>();
  std::shared_ptr<ModelTable> table = std::make_shared<ModelTable>(registry, llama);
  MachineGauges machine;
  DeviceGauges devices;
  std::function<size_t()> connections;

  prometheus::Family<prometheus::Counter>& http_requests = prometheus::BuildCounter()
                                                               .Name("oar_http_requests_total")
                                                               .Help("HTTP requests answered.")
                                                               .Register(*registry);
  prometheus::Family<prometheus::Histogram>& http_seconds =
      prometheus::BuildHistogram()
          .Name("oar_http_request_duration_seconds")
          .Help("Seconds from a request's header to its last byte.")
          .Register(*registry);
  prometheus::Family<prometheus::Counter>& grpc_requests = prometheus::BuildCounter()
                                                               .Name("oar_grpc_requests_total")
                                                               .Help("gRPC calls answered.")
                                                               .Register(*registry);
  prometheus::Family<prometheus::Histogram>& grpc_seconds = prometheus::BuildHistogram()
                                                                .Name("oar_grpc_request_duration_seconds")
                                                                .Help("Seconds of one gRPC call.")
                                                                .Register(*registry);

  // Families look for labels by maps of strings, which takes a tenth of a refusal's instructions.
  HttpSeries http_series(const std::string& route, std::string_view method, int status) {
    const std::lock_guard lock(http_mutex);
    const auto at =
        http_known.find(std::tuple<std::string_view, std::string_view, int>(route, method, status));
    if (at != http_known.end()) return at->second;
    const std::string verb(method);
    const HttpSeries made{&http_requests.Add({{"route", route}, {"method", verb}, {"code", cat(status)}}),
                          &http_seconds.Add({{"route", route}}, kHttp)};
    return http_known.emplace(std::tuple(route, verb, status), made).first->second;
  }
  std::mutex http_mutex;
  std::map<std::tuple<std::string, std::string, int>, HttpSeries, std::less<>> http_known;  // guarded by it
};

Metrics::Metrics(const api::ModelCatalog& catalog) : impl_(std::make_unique<Impl>(catalog)) {}
Metrics::~Metrics() = default;

std::shared_ptr<api::GenerationObserver> Metrics::observe(const ModelHandle& model) {
  return impl_->table->share(model.name);
}

void Metrics::on_http_request(const std::string& route, const std::string& method, int status,
                              double seconds) {
  // A method is whatever the client wrote; the label is one of a few.
  static constexpr std::string_view kKnown[] = {"GET", "HEAD", "POST", "OPTIONS"};
  const bool known = std::find(std::begin(kKnown), std::end(kKnown), method) != std::end(kKnown);
  const HttpSeries series = impl_->http_series(route, known ? std::string_view(method) : "OTHER", status);
  series.requests->Increment();
  series.seconds->Observe(seconds);
}

void Metrics::on_grpc_request(const std::string& method, int code, double seconds) {
  const char* name = status_code_name(static_cast<StatusCode>(code));
  impl_->grpc_requests.Add({{"method", method}, {"code", name}}).Increment();
  impl_->grpc_seconds.Add({{"method", method}}, kHttp).Observe(seconds);
}

void Metrics::set_connection_gauge(std::function<size_t()> connections) {
  impl_->connections = std::move(connections);
}

std::string Metrics::text() const {
  Snapshot snapshot;
  const std::vector<api::ServedModel> models = impl_->catalog.loaded();
  for (const api::ServedModel& model : models) {
    if (model.tensor) {
      add_tensor_model(snapshot, *model.tensor);
      continue;
    }
    add_engine(snapshot, *model.language);
    add_inference(snapshot, api::statistics_of(*model.language),
                  {{"model", model.name()}, {"version", model.version()}});
  }
  if (impl_->connections) {
    snapshot.gauge("oar_http_connections", "Open HTTP connections.",
                   static_cast<double>(impl_->connections()), {});
  }
  add_process(snapshot);
  impl_->machine.add(snapshot);
  impl_->devices.add(snapshot);
  std::vector<MetricFamily> collected = impl_->registry->Collect();
  add_llama(snapshot, *impl_->llama, models);
  std::vector<MetricFamily> families = snapshot.take();
  for (MetricFamily& f : collected) {
    if (f.metric.empty()) continue;
    if (f.name == "vllm:inter_token_latency_seconds") {  // its former name, still on many dashboards
      MetricFamily alias = f;
      alias.name = "vllm:time_per_output_token_seconds";
      alias.help = "The former name of vllm:inter_token_latency_seconds.";
      families.push_back(std::move(alias));
    }
    families.push_back(std::move(f));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace oar
