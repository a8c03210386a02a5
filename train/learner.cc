#include "train/learner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>

#include "engine/base/format.h"
#include "engine/base/reservation.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes of constants that nodes read, each once.
uint64_t constant_bytes(std::initializer_list<const Graph*> graphs) {
  std::set<const void*> seen;
  uint64_t bytes = 0;
  for (const Graph* g : graphs) {
    const std::vector<int> uses = g != nullptr ? g->use_counts() : std::vector<int>();
    for (size_t v = 0; v < uses.size(); ++v) {
      const Value& value = g->value(static_cast<ValueId>(v));
      if (value.kind == ValueKind::kConstant && uses[v] > 0 && seen.insert(value.constant.data()).second)
        bytes += value.constant.bytes();
    }
  }
  return bytes;
}

bool all_finite(const Datum& d) {
  if (!d.is_tensor() || !(d.tensor.format() == Format::f32())) return true;
  const auto v = d.tensor.values<float>();
  return std::all_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

int LearnerOptions::threads_each() const {
  return threads > 0 || ranks() == 1 ? threads : std::max(1, usable_processors() / ranks());
}

Result<Datum> datum_of(float value) {
  OAR_ASSIGN(Tensor t, Tensor::zeros({}, Format::f32()));
  t.mutable_values<float>()[0] = value;
  return Datum(std::move(t));
}

Result<Datum> datum_of(const std::vector<int32_t>& values) {
  OAR_ASSIGN(Tensor t, Tensor::allocate({static_cast<int64_t>(values.size())}, Format::i32()));
  std::memcpy(t.mutable_data(), values.data(), values.size() * sizeof(int32_t));
  return Datum(std::move(t));
}

std::string name_list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 12;
  std::string out;
  for (size_t k = 0; k < names.size() && k < kShown; ++k) out += cat(k > 0 ? ", " : "", names[k]);
  return names.size() > kShown ? cat(out, " and ", names.size() - kShown, " more") : out;
}

std::string class_list(const std::vector<std::string>& classes) {
  return cat(classes.size(), " classes: ", name_list(classes));
}

Result<std::unique_ptr<Learner::Runner>> Learner::Runner::make(std::shared_ptr<const Graph> graph,
                                                               const std::shared_ptr<WeightStore>& weights,
                                                               const Group* group) {
  auto out = std::make_unique<Runner>();
  OAR_ASSIGN(out->evaluator, Evaluator::create(std::move(graph), weights));
  out->backend = &weights->backend();
  out->group = group;
  return out;
}

EvalOptions Learner::Runner::options() const {
  EvalOptions o;
  o.backend = backend;
  o.states = states;
  return o;
}

Status Learner::Runner::size(std::vector<Datum> inputs) {
  OAR_ASSIGN(BlockPlan sized, evaluator->size(std::move(inputs), options()));
  plan = std::make_shared<const BlockPlan>(std::move(sized));
  return ok_status();
}

Result<std::vector<Datum>> Learner::Runner::run(std::vector<Datum> inputs, const EvalOptions* more) {
  OAR_RETURN_IF_ERROR(memory.begin(plan));
  EvalOptions o = options();
  o.memory = &memory;
  if (more != nullptr) o.observe = more->observe;
  else if (group != nullptr)
    o.observe = [this, last = Clock::now()](const Node&, std::span<const Datum>) mutable {
      if (marks) group->mark(Clock::now() - last), last = Clock::now();
      return group->failed();
    };
  auto results = evaluator->run(std::move(inputs), o);
  memory.end();
  return results;
}

Learner::~Learner() = default;

int64_t Learner::trained() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.shape.numel();
  return n;
}

Status Learner::prepare(std::shared_ptr<const Graph> step, std::shared_ptr<const Graph> loss,
                        std::vector<Parameter> parameters, std::vector<Datum> first,
                        std::vector<Datum> first_loss) {
  parameters_ = std::move(parameters);
  const bool in_step = options().update_in_step().has_value();
  OAR_RETURN_IF_ERROR(check_rates(parameters_, options().optimizer));
  const uint64_t each = static_cast<uint64_t>(trained()) * sizeof(float);
  memory_.parameters = options().average > 0 ? 2 * each : each;
  memory_.gradients = in_step ? 0 : each;
  memory_.moments = each * options().optimizer.moments();
  const Group* const group = options().group.get();
  if (options().ranks() > 1) memory_.bucket = memory_.gradients;
  const bool both = loss != nullptr;
  memory_.frozen = constant_bytes({step.get(), loss.get()}) + packed_weights(*step, *backend_);
  packed_ = std::make_shared<WeightStore>(*backend_);
  OAR_ASSIGN(step_runner_, Runner::make(std::move(step), packed_, group));
  step_runner_->marks = options().rank_wait <= 0;
  if (both) { OAR_ASSIGN(loss_runner_, Runner::make(std::move(loss), packed_, group)); }
  if (!in_step) {
    OAR_ASSIGN(const auto update, build_update_graph(parameters_, options().optimizer));
    OAR_ASSIGN(update_runner_, Runner::make(update, packed_, nullptr));
  }
  // What a step takes, before its states are there. Ops may look at vectors while they are sized.
  std::vector<Tensor> shapes;
  for (const Parameter& p : parameters_) {
    if (p.shape.rank() > 1) shapes.push_back(Tensor::without_bytes(p.shape, Format::f32()));
    else { OAR_ASSIGN(shapes.emplace_back(), Tensor::zeros(p.shape, Format::f32())); }
  }
  step_runner_->states = shapes;
  if (both) {
    loss_runner_->states = shapes;
    for (const Statistic& s : statistics_) loss_runner_->states.push_back(s.value);
  }
  for (size_t k = 0; k < (in_step ? options().optimizer.moments() : 1); ++k)
    step_runner_->states.insert(step_runner_->states.end(), shapes.begin(), shapes.end());
  if (in_step) { OAR_ASSIGN(first.emplace_back(), Tensor::zeros({4}, Format::of(DType::kF64))); }
  OAR_RETURN_IF_ERROR(step_runner_->size(std::move(first)));
  if (both) OAR_RETURN_IF_ERROR(loss_runner_->size(std::move(first_loss)));
  memory_.activations = step_runner_->plan->peak_bytes() + (both ? loss_runner_->plan->peak_bytes() : 0);
  return ok_status();
}

uint64_t Learner::free_memory() const {
  const uint64_t all = options().may_take > 0 ? options().may_take : available_memory();
  return all / static_cast<uint64_t>(options().ranks());
}

Status Learner::check_memory(const std::function<std::string()>& remedy) const {
  if (memory_.to_get() <= free_memory()) return ok_status();
  const int ranks = options().ranks();
  return resource_exhausted(cat(
      "training takes ", format_bytes(memory_.states()), " of parameters",
      memory_.gradients > 0 ? ", moments and gradients and " : " and moments and ",
      format_bytes(memory_.activations), " within a step",
      ranks > 1 ? cat(" in each of ", ranks, " ranks") : "", ", ", format_bytes(free_memory()),
      options().may_take > 0 ? " may be taken" : " are free", ranks > 1 ? " for each" : "", "; ", remedy()));
}

Status Learner::begin(std::vector<Tensor> values) {
  OAR_CHECK(options().group || options().assumed_ranks == 1, "ranks that are assumed have no data");
  values_ = std::move(values);
  for (size_t k = 0; k < values_.size() && options().average > 0; ++k) {
    OAR_ASSIGN(means_.emplace_back(), Tensor::allocate(values_[k].shape(), Format::f32()));
    std::memcpy(means_[k].mutable_data(), values_[k].data(), values_[k].bytes());
  }
  const std::shared_ptr<Group>& group = options().group;
  uint64_t floats = 0;
  const auto place = [&](int64_t n) {
    constexpr uint64_t kLine = Buffer::kAlignment / sizeof(float);
    places_.push_back(floats);
    floats += (static_cast<uint64_t>(n) + kLine - 1) / kLine * kLine;
  };
  for (const Parameter& p : parameters_) place(p.shape.numel());
  for (const Statistic& s : statistics_) place(s.value.numel());
  place(1);
  if (group) OAR_RETURN_IF_ERROR(group->reserve(floats));
  std::vector<Tensor> gradients;  // of a micro-batch
  for (size_t k = 0; k < parameters_.size() && !options().update_in_step(); ++k) {
    const Shape& shape = parameters_[k].shape;
    OAR_ASSIGN(Tensor sum, Tensor::zeros(shape, Format::f32()));
    sums_.push_back(sum);
    if (group) {
      OAR_ASSIGN(sum,
                 Tensor::make(shape, Format::f32(),
                              Buffer::wrap(group->mine() + places_[k],
                                           static_cast<uint64_t>(shape.numel()) * sizeof(float), group)));
    }
    gradients.push_back(std::move(sum));
  }
  moments_.resize(options().optimizer.moments());
  for (auto& list : moments_) {
    for (const Parameter& p : parameters_) {
      OAR_ASSIGN(Tensor m, Tensor::zeros(p.shape, Format::f32()));
      list.push_back(std::move(m));
    }
  }
  if (loss_runner_) {
    loss_runner_->states = final_values();
    for (const Statistic& s : statistics_) loss_runner_->states.push_back(s.value);
  }
  step_runner_->states = values_;
  step_runner_->states.insert(step_runner_->states.end(), gradients.begin(), gradients.end());
  if (gradients.empty())
    for (const auto& list : moments_)
      step_runner_->states.insert(step_runner_->states.end(), list.begin(), list.end());
  for (size_t k = 0; k < sums_.size(); ++k) {
    auto& states = update_runner_->states;
    states.push_back(values_[k]);
    for (const auto& list : moments_) states.push_back(list[k]);
    states.push_back(sums_[k]);
  }
  return ok_status();
}

// Of the step graph.
Result<std::vector<Datum>> Learner::given(Position at, float weight, const Tensor& hyper) {
  OAR_ASSIGN(std::vector<Datum> out, inputs(at, weight));
  if (options().update_in_step()) out.emplace_back(hyper);
  return out;
}

// Behind a step, by all threads.
void Learner::move_means() {
  const auto n = static_cast<double>(step_);
  const auto part = static_cast<float>(1 - std::min(options().average, n / (n + 10)));
  for (size_t k = 0; k < means_.size(); ++k) {
    const auto mean = means_[k].mutable_values<float>();
    const auto now = values_[k].values<float>();
    backend_->host_pool().parallel_for(static_cast<int64_t>(mean.size()), 1 << 16, [&](int64_t b, int64_t e) {
      for (auto j = static_cast<size_t>(b); j < static_cast<size_t>(e); ++j)
        mean[j] += part * (now[j] - mean[j]);
    });
  }
}

// One micro-batch of each rank: gradients go to the sums or parameters, losses are added up, averages move.
Status Learner::run_round(std::span<const Position> at, float weight, const Tensor& hyper,
                          std::vector<Tensor>& averages, StepReport& report) {
  Group* const group = options().group.get();
  const size_t mine = group != nullptr ? static_cast<size_t>(group->rank()) : 0;
  const size_t P = parameters_.size(), S = statistics_.size();
  if (group != nullptr) std::fill_n(group->mine(), places_[P], 0.0f);
  OAR_ASSIGN(std::vector<Datum> in, given(at[mine], weight, hyper));
  OAR_ASSIGN(const auto results, step_runner_->run(std::move(in)));
  if (group == nullptr)
    for (size_t k = 1 + S; k < results.size(); ++k)
      report.norm = std::hypot(report.norm, results[k].tensor.values<double>()[0]);
  // A norm of all that is no number has changed none of them.
  whole_ = whole_ || (options().clip > 0 && !std::isfinite(report.norm));
  const float own = results[0].tensor.values<float>()[0];
  if (!std::isfinite(own)) {
    OAR_ASSIGN(in, given(at[mine], weight, hyper));
    return not_finite(*step_runner_, std::move(in), step_ + 1, samples(at[mine]), true);
  }
  const auto move = [&](size_t k, const float* batch) {
    const auto keep = static_cast<float>(statistics_[k].momentum);
    const auto running = averages[k].mutable_values<float>();
    for (size_t j = 0; j < running.size(); ++j) running[j] = running[j] * keep + batch[j] * (1 - keep);
  };
  if (group == nullptr) {
    for (size_t k = 0; k < S; ++k) move(k, results[1 + k].tensor.values<float>().data());
    report.loss += own;
    return ok_status();
  }
  float* const bucket = group->mine();
  for (size_t k = 0; k < S; ++k) {
    const auto batch = results[1 + k].tensor.values<float>();
    std::copy(batch.begin(), batch.end(), bucket + places_[P + k]);
  }
  bucket[places_[P + S]] = own;
  // All ranks have as much to do. Behind a round the first one alone evaluates and writes, untimed.
  const std::chrono::duration<double> wait(options().rank_wait);
  const auto most = std::chrono::duration_cast<Group::Duration>(wait);
  OAR_RETURN_IF_ERROR(step_runner_->marks ? group->barrier() : group->barrier(most));
  for (size_t k = 0; k < P; ++k)
    group->add_buckets(places_[k], sums_[k].mutable_values<float>(), backend_->host_pool());
  for (int r = 0; r < group->size(); ++r) {
    for (size_t k = 0; k < S; ++k) move(k, group->bucket(r) + places_[P + k]);
    report.loss += group->bucket(r)[places_[P + S]];
  }
  if (step_runner_->marks) group->mark({});
  return group->barrier();  // buckets are written again
}

Result<StepReport> Learner::step() {
  const LearnerOptions& o = options();
  StepReport report;
  report.step = step_ + 1;
  std::vector<Position> at;
  Position next = position_;
  const auto ranks = static_cast<size_t>(o.ranks());
  for (size_t k = 0; k < static_cast<size_t>(o.accumulate) * ranks; ++k) {
    if (next.batch >= batches(next.epoch)) next = {next.epoch + 1, 0};
    at.push_back(next);
    ++next.batch;
    const Counts c = counts(at.back());
    report.rows += c.rows;
    report.learned += c.learned;
  }
  const auto weight = static_cast<float>(1.0 / static_cast<double>(report.learned));
  // A step that does not come to its end leaves what a checkpoint holds as it was.
  std::vector<Tensor> averages;
  for (const Statistic& s : statistics_) {
    OAR_ASSIGN(averages.emplace_back(), Tensor::allocate(s.value.shape(), Format::f32()));
    std::memcpy(averages.back().mutable_data(), s.value.data(), s.value.bytes());
  }
  report.rate = o.rate * o.schedule.factor(report.step);
  const auto n = static_cast<double>(report.step);
  OAR_ASSIGN(Tensor hyper, Tensor::zeros({4}, Format::of(DType::kF64)));
  const auto h = hyper.mutable_values<double>();
  h[0] = report.rate;
  h[1] = o.clip;
  h[2] = 1 - std::pow(o.optimizer.beta1, n);
  h[3] = 1 - std::pow(o.optimizer.beta2, n);
  const bool in_step = o.update_in_step().has_value();
  whole_ = !in_step;
  for (size_t k = 0; k < at.size(); k += ranks)
    OAR_RETURN_IF_ERROR(run_round(std::span(at).subspan(k, ranks), weight, hyper, averages, report));
  for (size_t k = 0; k < averages.size(); ++k)
    std::memcpy(statistics_[k].value.mutable_data(), averages[k].data(), averages[k].bytes());
  if (!in_step) {
    OAR_ASSIGN(const auto norm, update_runner_->run({Datum(hyper)}));
    report.norm = norm[0].tensor.values<double>()[0];
  }
  if (!std::isfinite(report.norm)) {
    for (size_t k = 0; k < at.size(); ++k) {
      OAR_ASSIGN(std::vector<Datum> in, given(at[k], weight, hyper));
      OAR_RETURN_IF_ERROR(
          not_finite(*step_runner_, std::move(in), step_ + 1, samples(at[k]), k + 1 == at.size()));
    }
  }
  whole_ = true;
  position_ = next;
  ++step_;
  move_means();
  return report;
}

Status Learner::not_finite(Runner& runner, std::vector<Datum> given, int64_t step, const std::string& samples,
                           bool certain) const {
  std::string first;
  EvalOptions watched;
  watched.observe = [&](const Node& node, std::span<const Datum> results) -> Status {
    if (std::all_of(results.begin(), results.end(), all_finite)) return ok_status();
    first = node.op->name;
    for (const ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      const Value& value = runner.evaluator->graph().value(v);
      if (value.kind != ValueKind::kResult && !value.name.empty()) first += cat(" of '", value.name, "'");
    }
    return Status(StatusCode::kAborted, "found");
  };
  (void)runner.run(std::move(given), &watched).status();
  if (first.empty() && !certain) return ok_status();
  return Status(
      StatusCode::kFailedPrecondition,
      cat("step ", step, ": ", &runner == loss_runner_.get() ? "the held-out loss" : "the loss or a gradient",
          " is no number any more",
          first.empty() ? "" : cat("; the first op whose result has such is ", first), ". Samples: ", samples,
          ". Go on from the last checkpoint with a lower --rate, or look at these samples"));
}

// By option its value as text: numbers are compared as they are printed.
json::object Learner::fingerprint() const {
  const LearnerOptions& o = options();
  json::array rates;
  for (const auto& [pattern, factor] : o.optimizer.rates) rates.emplace_back(json::array{pattern, factor});
  json::object values = described();
  values["accumulate"] = o.accumulate * o.ranks();
  values["optimizer"] = o.optimizer.kind == Optimizer::kSgd ? "sgd" : "adamw";
  values["optimizer numbers"] = json::array{o.optimizer.beta1, o.optimizer.beta2, o.optimizer.epsilon,
                                            o.optimizer.momentum, o.optimizer.decay};
  values["rate"] = o.rate;
  values["rate of"] = rates;
  values["schedule"] = decay_names()[static_cast<size_t>(o.schedule.decay)];
  values["warmup"] = o.schedule.warmup;
  values["steps"] = o.schedule.steps;
  values["least rate"] = o.schedule.least;
  values["clip"] = o.clip;
  values["average"] = o.average;
  values["seed"] = o.seed;
  json::object out;
  for (const auto& [key, value] : values) out[key] = json::serialize(value);
  return out;
}

std::vector<NamedState> Learner::learned_states() const {
  std::vector<NamedState> states;
  for (size_t k = 0; k < parameters_.size(); ++k) states.push_back({parameters_[k].name, final_values()[k]});
  for (const Statistic& s : statistics_) states.push_back({s.name, s.value});
  return states;
}

std::vector<NamedState> Learner::all_states() const {
  std::vector<NamedState> states = learned_states();
  for (size_t k = 0; k < means_.size(); ++k) states.push_back({cat("now/", parameters_[k].name), values_[k]});
  for (size_t m = 0; m < moments_.size(); ++m)
    for (size_t k = 0; k < parameters_.size(); ++k)
      states.push_back({cat("moment", m + 1, "/", parameters_[k].name), moments_[m][k]});
  return states;
}

Status Learner::check_finite() const {
  if (!whole_)
    return Status(StatusCode::kFailedPrecondition,
                  cat("step ", step_ + 1,
                      " did not come to its end and changed some parameters; begin anew, or "
                      "at the last checkpoint"));
  for (const NamedState& s : learned_states())
    if (!all_finite(Datum(s.value)))
      return Status(StatusCode::kFailedPrecondition, cat("step ", step_, ": '", s.name,
                                                         "' holds what is no number any more; begin anew, or "
                                                         "at the last checkpoint, with a lower --rate"));
  return ok_status();
}

Status Learner::save(const std::string& path, const json::object& extra) const {
  OAR_RETURN_IF_ERROR(check_finite());
  const json::object about{{"format", 1},
                           {"step", step_},
                           {"epoch", position_.epoch},
                           {"batch", position_.batch},
                           {"options", fingerprint()},
                           {"extra", extra}};
  return write_states(path, all_states(), json::serialize(about));
}

Result<json::object> Learner::restore(const std::string& path) {
  OAR_ASSIGN(const json::value about, read_about(path));
  const json::object now = fingerprint();
  try {
    const json::object& then = about.at("options").as_object();
    const auto text = [](const json::object& of, std::string_view key) {
      const json::value* const v = of.if_contains(key);
      return v != nullptr ? std::string(v->as_string()) : std::string("none");
    };
    for (const json::object* const of : {&then, &now})
      for (const auto& [key, value] : *of) {
        const std::string before = text(then, key), here = text(now, key);
        if (before == here) continue;
        return Status(StatusCode::kFailedPrecondition,
                      cat(path, " was made with another '", std::string_view(key), "': ", before, ", now ",
                          here, "; go on with what it was made with, or begin anew with --restart"));
      }
    const auto step = about.at("step").to_number<int64_t>();
    const Position at{about.at("epoch").to_number<int64_t>(), about.at("batch").to_number<int64_t>()};
    // No more epochs begin, and no more micro-batches lie in one, than have been learned.
    const auto most = std::max<int64_t>(step, 0) * options().accumulate * options().ranks();
    if (step < 0 || step > steps() || at.epoch < 0 || at.batch < 0 || at.epoch > most || at.batch > most)
      return data_loss(cat(path, " is no checkpoint of a training run: step ", step, " of ", steps(),
                           ", epoch ", at.epoch, ", micro-batch ", at.batch));
    json::object extra = about.at("extra").as_object();
    OAR_RETURN_IF_ERROR(read_states(path, all_states()));
    step_ = step, position_ = at, whole_ = true;
    return extra;
  } catch (const std::exception& e) {
    return data_loss(cat(path, " is no checkpoint of a training run: ", e.what()));
  }
}

Status Learner::save_parameters(const std::string& path) const {
  return write_states(path, learned_states(), "{}");
}

Status Learner::restore_parameters(const std::string& path) { return read_states(path, learned_states()); }

}  // namespace oar::train
