#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "engine/base/format.h"
#include "engine/models/config_reader.h"
#include "engine/runtime/content_hash.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_plan.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "train/classifier.h"
#include "train/labels.h"
#include "train/ops.h"
#include "train/result.h"

namespace oar::train {

// A graph with the memory of its runs.
struct Trainer::Runner {
  std::unique_ptr<const Evaluator> evaluator;
  RunMemory memory;
  std::shared_ptr<const BlockPlan> plan;
  std::vector<Tensor> states;
  Backend* backend = nullptr;

  static Result<std::unique_ptr<Runner>> make(std::shared_ptr<const Graph> graph, Backend& backend) {
    auto out = std::make_unique<Runner>();
    OAR_ASSIGN(out->evaluator, Evaluator::create(std::move(graph), backend));
    out->backend = &backend;
    return out;
  }
  EvalOptions options() {
    EvalOptions o;
    o.backend = backend;
    o.states = states;
    return o;
  }
  // Of states that have no bytes yet.
  Status size(std::vector<Datum> inputs) {
    OAR_ASSIGN(BlockPlan sized, evaluator->size(std::move(inputs), options()));
    plan = std::make_shared<const BlockPlan>(std::move(sized));
    return ok_status();
  }
  Result<std::vector<Datum>> run(std::vector<Datum> inputs, const EvalOptions* more) {
    OAR_RETURN_IF_ERROR(memory.begin(plan));
    EvalOptions o = options();
    o.memory = &memory;
    if (more != nullptr) o.observe = more->observe;
    auto results = evaluator->run(std::move(inputs), o);
    memory.end();
    return results;
  }
};

namespace {

Result<Datum> row(const std::vector<int32_t>& values) {
  OAR_ASSIGN(Tensor t, Tensor::allocate({static_cast<int64_t>(values.size())}, Format::i32()));
  std::memcpy(t.mutable_data(), values.data(), values.size() * sizeof(int32_t));
  return Datum(std::move(t));
}

bool all_finite(const Datum& d) {
  if (!d.is_tensor() || !(d.tensor.format() == Format::f32())) return true;
  const auto v = d.tensor.values<float>();
  return std::all_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); });
}

// Bytes of constants that their kernels read packed.
uint64_t packed_weights(const Graph& g, const Backend& backend) {
  uint64_t bytes = 0;
  for (size_t v = 0; v < g.num_values(); ++v) {
    const Value& value = g.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || value.constant.shape().rank() != 2 ||
        value.constant.format().plain())
      continue;
    const auto packed =
        backend.packed_bytes(value.constant.format(), value.constant.shape()[0], value.constant.shape()[1]);
    if (packed.ok()) bytes += *packed;
  }
  return bytes;
}

int64_t longest(const std::vector<FileSamples>& files) {
  size_t n = 1;
  for (const FileSamples& f : files)
    for (const Sample& s : f.samples) n = std::max(n, s.tokens.size());
  return static_cast<int64_t>(n);
}

// Of schemes that a server leaves to its kernels, which pack such weights as they load.
Status quantize_as_kernels(Checkpoint& checkpoint, ModelConfig& config, const std::string& weights,
                           ThreadPool& pool) {
  OAR_ASSIGN(const WeightScheme scheme, weight_scheme(weights));
  if (!scheme.by_kernel || scheme.body.empty()) return ok_status();
  if (Format::find(scheme.body)->plain())
    return unimplemented(
        cat("--weights ", weights, ": the base is trained as it is stored (auto) or quantized (int8, int4)"));
  OAR_ASSIGN(const auto targets, weight_targets(checkpoint));
  const TensorMap stored = checkpoint.tensors;
  for (const WeightTarget& t : targets) {
    const Tensor& w = stored.at(t.source);
    const auto format = target_format(scheme, t, w);
    if (!format) continue;
    calibrate::FitOptions fit;
    fit.method = scheme.method;
    OAR_ASSIGN(QuantizedWeight made, quantize_weight(w, *format, fit, {}, pool));
    checkpoint.tensors[t.name] = std::move(made.tensor);
    if (t.name != t.source) config.tied = false;
  }
  return ok_status();
}

std::string hash_of(const std::vector<FileSamples>& files) {
  ContentHash hash;
  for (const FileSamples& f : files) {
    hash.add(cat(f.file.weight, " ", f.samples.size()));
    for (const Sample& s : f.samples) {
      hash.add(std::string_view(reinterpret_cast<const char*>(s.tokens.data()),
                                s.tokens.size() * sizeof(int32_t)));
      hash.add(std::string_view(reinterpret_cast<const char*>(s.learned.data()), s.learned.size()));
      for (const auto* v : {&s.labels, &s.types})
        hash.add(std::string_view(reinterpret_cast<const char*>(v->data()), v->size() * sizeof(int32_t)));
    }
  }
  return hash.hex();
}

}  // namespace

Trainer::~Trainer() = default;

Result<std::unique_ptr<Trainer>> Trainer::create(const TrainerOptions& options, const Logger& log) {
  auto out = std::unique_ptr<Trainer>(new Trainer());
  out->options_ = options;
  if (out->options_.rate == 0) out->options_.rate = options.graph.full ? 1e-5 : 1e-4;
  OAR_RETURN_IF_ERROR(out->load(log));
  OAR_RETURN_IF_ERROR(out->plan(log));
  return out;
}

Status Trainer::load(const Logger& log) {
  OAR_ASSIGN(const ResolvedModel resolved, resolve_model(options_.model));
  base_name_ = resolved.name == "demo" ? resolved.name : resolved.path;
  ThreadPoolOptions pool;
  pool.threads = options_.threads;
  OAR_ASSIGN(backend_, make_backend("", std::make_shared<ThreadPool>(pool), best_isa(), log));
  OAR_RETURN_IF_ERROR(is_text_encoder(resolved.path) ? load_labels(resolved.path, log)
                                                     : load_text(resolved.path, log));
  for (const auto* files : {&data_, &held_out_}) {
    for (const FileSamples& f : *files)
      for (const Sample& s : f.samples)
        for (const int32_t id : s.tokens)
          if (id < 0 || id >= config_.vocab)
            return invalid_argument(cat(f.file.path, ": the tokenizer gives id ", id, ", the model has ",
                                        config_.vocab, " tokens"));
  }
  data_hash_ = hash_of(data_);
  const int64_t least = std::max(longest(data_), longest(held_out_));
  if (options_.graph.tokens == 0) options_.graph.tokens = std::max(least, options_.samples.length);
  if (options_.graph.tokens < least)
    return invalid_argument(cat("--tokens ", options_.graph.tokens, " is less than the longest sample's ",
                                least, "; raise it, or lower --length"));
  packer_ = std::make_unique<Packer>(data_, options_.graph.tokens, options_.seed, true);
  held_out_packer_ = std::make_unique<Packer>(held_out_, options_.graph.tokens, 0, false);
  if (options_.schedule.steps == 0 && !data_.empty()) {
    // Whole steps, the last epoch's rest included.
    const double batches = options_.epochs * static_cast<double>(packer_->batches(0));
    options_.schedule.steps = std::max<int64_t>(
        1, static_cast<int64_t>(std::ceil(batches / static_cast<double>(options_.accumulate))));
  }
  if (options_.schedule.warmup >= options_.schedule.steps && options_.schedule.warmup > 0)
    return invalid_argument(cat("--warmup ", options_.schedule.warmup, " is not below the ",
                                options_.schedule.steps, " steps of the run"));
  return ok_status();
}

Status Trainer::load_text(const std::string& path, const Logger& log) {
  if (!options_.labels.empty())
    return invalid_argument("--labels names the classes of an encoder's head; this is a language model");
  LanguageModelOptions model;
  model.weights = options_.weights;
  model.log = log;
  OAR_ASSIGN(ModelSource source, read_model_source(path, model, *backend_, {}));
  checkpoint_ = std::move(source.checkpoint);
  config_ = std::move(source.config);
  if (config_.experts > 0)
    log(LogLevel::kWarning, cat("a mixture is trained with every token through all ", config_.experts,
                                " experts of a layer, of which ", config_.experts_per_token,
                                " count: their part of a step takes as many times the work"));
  OAR_RETURN_IF_ERROR(quantize_as_kernels(checkpoint_, config_, options_.weights, backend_->host_pool()));
  OAR_ASSIGN(tokenizer_, make_tokenizer(checkpoint_.tokenizer, config_.vocab));
  std::string turns = checkpoint_.tokenizer.chat_template;
  OAR_ASSIGN(const ChatTemplate chat,
             ChatTemplate::parse(turns.empty() ? kDefaultChatTemplate : std::move(turns)));
  DataModel data{*tokenizer_, chat, {}, {}};
  if (const auto bos = tokenizer_->bos_id()) data.bos_token = tokenizer_->token_text(*bos);
  if (const auto eos = tokenizer_->eos_id()) data.eos_token = tokenizer_->token_text(*eos);
  if (options_.samples.length > config_.max_context)
    return invalid_argument(
        cat("--length ", options_.samples.length, " is above the model's context of ", config_.max_context));
  OAR_ASSIGN(data_, load_samples(options_.data, "--data", data, options_.samples));
  OAR_ASSIGN(held_out_, load_samples(options_.held_out, "--eval", data, options_.samples));
  return ok_status();
}

Status Trainer::load_labels(const std::string& path, const Logger& log) {
  if (options_.weights != "auto" && !options_.weights.empty())
    return unimplemented(
        cat("--weights ", options_.weights, ": an encoder is trained as it is stored (auto)"));
  OAR_ASSIGN(checkpoint_, load_checkpoint(path));
  for (const std::string& notice : checkpoint_.notices) log(LogLevel::kWarning, notice);
  OAR_ASSIGN(encoder_, read_encoder_config(checkpoint_.config));
  if (!encoder_->unknown_keys.empty())
    log(LogLevel::kWarning, unknown_keys_notice(encoder_->model_type, encoder_->unknown_keys));
  config_ = *encoder_;
  config_.max_context = encoder_->max_tokens();
  if (options_.samples.length > config_.max_context)
    return invalid_argument(
        cat("--length ", options_.samples.length, " is above the model's context of ", config_.max_context));
  OAR_ASSIGN(const auto data, load_labelled(options_.data, "--data"));
  OAR_ASSIGN(const auto held_out, load_labelled(options_.held_out, "--eval"));
  if (!data.empty()) head_ = data[0].head;
  if (!held_out.empty() && held_out[0].head != head_)
    return invalid_argument("--data and --eval differ: one labels texts, the other tokens");
  auto stored = classes_of(checkpoint_, *encoder_, head_);
  if (!stored.ok() && options_.labels.empty()) return stored.status();
  classes_ = stored.ok() ? *stored : std::vector<std::string>();
  new_head_ = classes_.empty() || (!options_.labels.empty() && options_.labels != classes_);
  if (new_head_) {
    classes_ = options_.labels.empty() ? labels_of(data) : options_.labels;
    if (classes_.size() < 2)
      return invalid_argument(
          "--data has one label, which leaves nothing to learn; name all classes with --labels");
    if (std::set<std::string>(classes_.begin(), classes_.end()).size() != classes_.size())
      return invalid_argument("--labels has a name twice");
    OAR_RETURN_IF_ERROR(give_head(checkpoint_, *encoder_, head_, classes_, options_.seed));
  }
  OAR_ASSIGN(const auto text, make_text_encoder(path, checkpoint_.tokenizer, json::value(checkpoint_.config),
                                                options_.samples.length));
  OAR_ASSIGN(data_, label_samples(data, classes_, *text, options_.samples));
  OAR_ASSIGN(held_out_, label_samples(held_out, classes_, *text, options_.samples));
  return ok_status();
}

Result<std::vector<Datum>> Trainer::inputs(const PackedRows& rows, float weight) const {
  std::vector<Datum> out(5);
  std::vector<int32_t> positions = rows.positions;
  // Padding may be longer than a text can be.
  const auto first = static_cast<int32_t>(encoder_ ? encoder_->first_position : 0);
  for (int32_t& p : positions) p = first + std::min(p, static_cast<int32_t>(config_.max_context - 1));
  OAR_ASSIGN(out[0], row(rows.tokens));
  OAR_ASSIGN(out[1], row(positions));
  OAR_ASSIGN(out[2], row(rows.segments));
  OAR_ASSIGN(out[3], row(rows.targets));
  OAR_ASSIGN(Tensor w, Tensor::zeros({}, Format::f32()));
  w.mutable_values<float>()[0] = weight;
  out[4] = Datum(std::move(w));
  if (encoder_ && encoder_->types > 0) {
    OAR_ASSIGN(Datum types, row(rows.types));
    out.push_back(std::move(types));
  }
  return out;
}

Status Trainer::plan(const Logger&) {
  OAR_ASSIGN(ModelGraphs graphs, encoder_
                                     ? build_encoder_graphs(checkpoint_, *encoder_, head_, options_.graph)
                                     : build_model_graphs(checkpoint_, config_, options_.graph));
  OAR_ASSIGN(const auto update, build_update_graph(graphs.parameters, options_.optimizer));
  parameters_ = graphs.parameters;
  uint64_t numbers = 0;
  for (const Parameter& p : parameters_) numbers += static_cast<uint64_t>(p.shape.numel());
  memory_.parameters = memory_.gradients = numbers * sizeof(float);
  memory_.moments = memory_.parameters * options_.optimizer.moments();
  const int64_t V = encoder_ ? static_cast<int64_t>(classes_.size()) : config_.vocab;
  memory_.logits = static_cast<uint64_t>(logit_rows(options_.graph.tokens, V) * V) * sizeof(float);
  for (const auto& [name, t] : checkpoint_.tensors) {
    const bool trained = std::any_of(parameters_.begin(), parameters_.end(),
                                     [&, &name = name](const Parameter& p) { return p.name == name; });
    if (!trained) memory_.frozen += t.bytes();
  }
  OAR_ASSIGN(step_runner_, Runner::make(graphs.step, *backend_));
  // Each graph keeps its own copy of what kernels want in another layout.
  const bool both = !held_out_.empty();
  if (both) { OAR_ASSIGN(loss_runner_, Runner::make(graphs.loss, *backend_)); }
  memory_.frozen += packed_weights(*graphs.step, *backend_) * (both ? 2 : 1);
  OAR_ASSIGN(update_runner_, Runner::make(update, *backend_));
  // What a step takes, before its states are there.
  std::vector<Tensor> shapes;
  for (const Parameter& p : parameters_) shapes.push_back(Tensor::without_bytes(p.shape, Format::f32()));
  step_runner_->states = shapes;
  if (both) loss_runner_->states = shapes;
  step_runner_->states.insert(step_runner_->states.end(), shapes.begin(), shapes.end());
  const std::vector<int32_t> blank(static_cast<size_t>(options_.graph.tokens));
  OAR_ASSIGN(const auto first, inputs({blank, blank, blank, blank, blank}, 0));
  OAR_RETURN_IF_ERROR(step_runner_->size(first));
  if (both) OAR_RETURN_IF_ERROR(loss_runner_->size(first));
  memory_.activations = step_runner_->plan->peak_bytes() + (both ? loss_runner_->plan->peak_bytes() : 0);
  if (data_.empty()) return ok_status();
  const uint64_t free = available_memory();
  if (memory_.states() + memory_.activations > free) {
    const uint64_t left = free > memory_.states() ? free - memory_.states() : 0;
    // Memory of a step grows with its tokens a little faster than in proportion.
    const auto fits =
        static_cast<int64_t>(static_cast<double>(options_.graph.tokens) * static_cast<double>(left) /
                             static_cast<double>(memory_.activations));
    return resource_exhausted(
        cat("training takes ", format_bytes(memory_.states()), " of parameters, moments and gradients and ",
            format_bytes(memory_.activations), " within a step, ", format_bytes(free), " are free",
            options_.graph.recompute == Recompute::kNone ? "; --recompute layers takes less of a step" : "",
            fits >= 16 ? cat("; --tokens ", fits, " --length ", fits, " would fit")
                       : "; a LoRA adapter (--lora), a smaller rank or a smaller model would fit"));
  }
  for (size_t k = 0; k < parameters_.size(); ++k) {
    OAR_ASSIGN(Tensor value, initial_value(parameters_[k], k, checkpoint_, options_.seed));
    values_.push_back(std::move(value));
    OAR_ASSIGN(Tensor sum, Tensor::zeros(parameters_[k].shape, Format::f32()));
    sums_.push_back(std::move(sum));
  }
  moments_.resize(options_.optimizer.moments());
  for (auto& list : moments_) {
    for (const Parameter& p : parameters_) {
      OAR_ASSIGN(Tensor m, Tensor::zeros(p.shape, Format::f32()));
      list.push_back(std::move(m));
    }
  }
  if (both) loss_runner_->states = values_;
  step_runner_->states = values_;
  step_runner_->states.insert(step_runner_->states.end(), sums_.begin(), sums_.end());
  for (size_t k = 0; k < parameters_.size(); ++k) {
    auto& states = update_runner_->states;
    states.push_back(values_[k]);
    for (const auto& list : moments_) states.push_back(list[k]);
    states.push_back(sums_[k]);
  }
  return ok_status();
}

int64_t Trainer::trained() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.shape.numel();
  return n;
}

Result<std::vector<Datum>> Trainer::run_micro_batch(Runner& runner, const PackedRows& rows, float weight,
                                                    const EvalOptions* more) {
  OAR_ASSIGN(std::vector<Datum> given, inputs(rows, weight));
  return runner.run(std::move(given), more);
}

Result<StepReport> Trainer::step() {
  StepReport report;
  report.step = step_ + 1;
  std::vector<std::pair<Position, PackedRows>> batches;
  Position at = position_;
  for (int64_t k = 0; k < options_.accumulate; ++k) {
    if (at.batch >= packer_->batches(at.epoch)) at = {at.epoch + 1, 0};
    batches.emplace_back(at, packer_->rows(at.epoch, at.batch));
    ++at.batch;
    report.tokens += batches.back().second.used;
    report.learned += batches.back().second.learned;
  }
  const auto weight = static_cast<float>(1.0 / static_cast<double>(report.learned));
  for (const auto& [position, rows] : batches) {
    OAR_ASSIGN(const auto results, run_micro_batch(*step_runner_, rows, weight, nullptr));
    const double loss = results[0].tensor.values<float>()[0];
    if (!std::isfinite(loss)) return not_finite(position, rows, weight, true);
    report.loss += loss;
  }
  report.rate = options_.rate * options_.schedule.factor(report.step);
  const auto n = static_cast<double>(report.step);
  OAR_ASSIGN(Tensor hyper, Tensor::zeros({4}, Format::of(DType::kF64)));
  const auto h = hyper.mutable_values<double>();
  h[0] = report.rate;
  h[1] = options_.clip;
  h[2] = 1 - std::pow(options_.optimizer.beta1, n);
  h[3] = 1 - std::pow(options_.optimizer.beta2, n);
  OAR_ASSIGN(const auto norm, update_runner_->run({Datum(std::move(hyper))}, nullptr));
  report.norm = norm[0].tensor.values<double>()[0];
  if (!std::isfinite(report.norm)) {
    for (const auto& [position, rows] : batches) {
      const bool last = &rows == &batches.back().second;
      if (Status s = not_finite(position, rows, weight, last); !s.ok()) return s;
    }
  }
  position_ = at;
  ++step_;
  return report;
}

// The micro-batch again, watched node by node. Ok where all is finite, unless it is `certain` that something
// is not.
Status Trainer::not_finite(Position at, const PackedRows& rows, float weight, bool certain) {
  std::string first;
  EvalOptions watched;
  watched.observe = [&](const Node& node, std::span<const Datum> results) -> Status {
    if (std::all_of(results.begin(), results.end(), all_finite)) return ok_status();
    first = node.op->name;
    for (const ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      const Value& value = step_runner_->evaluator->graph().value(v);
      if (value.kind != ValueKind::kResult && !value.name.empty()) first += cat(" of '", value.name, "'");
    }
    return Status(StatusCode::kAborted, "found");
  };
  (void)run_micro_batch(*step_runner_, rows, weight, &watched).status();
  if (first.empty() && !certain) return ok_status();
  return Status(StatusCode::kFailedPrecondition,
                cat("step ", step_ + 1, ": the loss or a gradient is no number any more",
                    first.empty() ? "" : cat("; the first op whose result has such is ", first),
                    ". Samples: ", packer_->describe(at.epoch, at.batch),
                    ". Go on from the last checkpoint with a lower --rate, or look at these samples"));
}

Result<HeldOutReport> Trainer::evaluate() {
  if (held_out_.empty()) return Status(StatusCode::kFailedPrecondition, "there is no held-out data");
  HeldOutReport out;
  int64_t learned = 0, hits = 0;
  for (int64_t k = 0; k < held_out_packer_->batches(0); ++k) {
    const PackedRows rows = held_out_packer_->rows(0, k);
    if (rows.learned == 0) continue;
    const auto weight = static_cast<float>(1.0 / static_cast<double>(rows.learned));
    OAR_ASSIGN(const auto results, run_micro_batch(*loss_runner_, rows, weight, nullptr));
    out.loss += static_cast<double>(results[0].tensor.values<float>()[0]) * static_cast<double>(rows.learned);
    hits += results[1].tensor.values<int32_t>()[0];
    learned += rows.learned;
  }
  const auto count = static_cast<double>(std::max<int64_t>(learned, 1));
  out.loss /= count;
  if (encoder_) out.accuracy = static_cast<double>(hits) / count;
  return out;
}

// By option its value as text: numbers are compared as they are printed.
json::object Trainer::fingerprint() const {
  const TrainerOptions& o = options_;
  json::array classes, lora, rates, freeze;
  for (const std::string& c : classes_) classes.emplace_back(c);
  for (const auto& [pattern, factor] : o.optimizer.rates) rates.emplace_back(json::array{pattern, factor});
  for (const std::string& f : o.graph.freeze) freeze.emplace_back(f);
  for (const std::string& t : o.graph.lora.targets) lora.emplace_back(t);
  const json::object values{
      {"model", base_name_},
      {"weights", o.weights},
      {"data", data_hash_},
      {"labels", classes},
      {"length", o.samples.length},
      {"tokens", o.graph.tokens},
      {"accumulate", o.accumulate},
      {"full", o.graph.full},
      {"lora rank", o.graph.full ? 0 : o.graph.lora.rank},
      {"lora alpha", o.graph.full ? 0.0 : o.graph.lora.alpha},
      {"lora targets", o.graph.full ? json::array() : lora},
      {"freeze", freeze},
      {"optimizer", o.optimizer.kind == Optimizer::kSgd ? "sgd" : "adamw"},
      {"optimizer numbers", json::array{o.optimizer.beta1, o.optimizer.beta2, o.optimizer.epsilon,
                                        o.optimizer.momentum, o.optimizer.decay}},
      {"rate", o.rate},
      {"rate of", rates},
      {"schedule", decay_names()[static_cast<size_t>(o.schedule.decay)]},
      {"warmup", o.schedule.warmup},
      {"steps", o.schedule.steps},
      {"least rate", o.schedule.least},
      {"clip", o.clip},
      {"seed", o.seed}};
  json::object out;
  for (const auto& [key, value] : values) out[key] = json::serialize(value);
  return out;
}

Status Trainer::save(const std::string& path, const json::object& extra) const {
  std::vector<NamedState> states;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    states.push_back({parameters_[k].name, values_[k]});
    for (size_t m = 0; m < moments_.size(); ++m)
      states.push_back({cat("moment", m + 1, "/", parameters_[k].name), moments_[m][k]});
  }
  const json::object about{{"format", 1},
                           {"step", step_},
                           {"epoch", position_.epoch},
                           {"batch", position_.batch},
                           {"options", fingerprint()},
                           {"extra", extra}};
  return write_states(path, states, json::serialize(about));
}

Result<json::object> Trainer::restore(const std::string& path) {
  std::vector<NamedState> states;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    states.push_back({parameters_[k].name, values_[k]});
    for (size_t m = 0; m < moments_.size(); ++m)
      states.push_back({cat("moment", m + 1, "/", parameters_[k].name), moments_[m][k]});
  }
  OAR_ASSIGN(const json::value about, read_about(path));
  const json::object now = fingerprint();
  try {
    for (const auto& [key, value] : about.at("options").as_object()) {
      const json::value* mine = now.if_contains(key);
      if (mine != nullptr && *mine == value) continue;
      return Status(StatusCode::kFailedPrecondition,
                    cat(path, " was made with another '", std::string_view(key),
                        "': ", std::string_view(value.as_string()), ", now ",
                        mine != nullptr ? std::string_view(mine->as_string()) : "none",
                        "; go on with what it was made with, or begin anew with --restart"));
    }
    OAR_RETURN_IF_ERROR(read_states(path, states));
    step_ = about.at("step").to_number<int64_t>();
    position_ = {about.at("epoch").to_number<int64_t>(), about.at("batch").to_number<int64_t>()};
    return json::object(about.at("extra").as_object());
  } catch (const std::exception& e) {
    return data_loss(cat(path, " is no checkpoint of a training run: ", e.what()));
  }
}

Status Trainer::save_parameters(const std::string& path) const {
  std::vector<NamedState> states;
  for (size_t k = 0; k < parameters_.size(); ++k) states.push_back({parameters_[k].name, values_[k]});
  return write_states(path, states, "{}");
}

Status Trainer::restore_parameters(const std::string& path) {
  std::vector<NamedState> states;
  for (size_t k = 0; k < parameters_.size(); ++k) states.push_back({parameters_[k].name, values_[k]});
  return read_states(path, states);
}

Status Trainer::write_result(const std::string& folder) const {
  const LoraOptions& lora = options_.graph.lora;
  if (!options_.graph.full && !encoder_) return write_adapter(folder, parameters_, values_, lora, base_name_);
  return write_model(folder, checkpoint_, parameters_, values_, lora.alpha / static_cast<double>(lora.rank));
}

}  // namespace oar::train
