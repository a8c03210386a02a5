#include "server/api/ensemble.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"
#include "server/api/trace_parent.h"

namespace oar::api {
namespace {

// Jobs of one step for the items of a list that are in its queue at once: enough to fill a run of most
// models, and few enough that a long list leaves room in the queue.
constexpr size_t kItemsAtOnce = 32;

uint64_t ns_since(Clock::time_point from) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - from).count());
}

void add_times(InferTimes& sum, const InferTimes& t) {
  sum.queue += t.queue;
  sum.input += t.input;
  sum.compute += t.compute;
  sum.output += t.output;
}

}  // namespace

struct Ensemble::State {
  struct Link {
    std::string name;  // of the step's tensor
    size_t tensor;     // of the ensemble's
  };
  struct Step {
    EnsembleStep model;
    std::vector<Link> inputs, outputs;
  };

  State(const TensorModelConfig& config, FindStep f) : name(config.name), find(std::move(f)) {
    std::map<std::string, size_t> numbers;
    const auto number = [&](const std::string& tensor) {
      return numbers.emplace(tensor, numbers.size()).first->second;
    };
    for (const TensorSpec& s : config.inputs) inputs.push_back(number(s.name));
    for (const EnsembleStep& s : config.steps) {
      Step& step = steps.emplace_back();
      step.model = s;
      for (const auto& [own, tensor] : s.inputs) step.inputs.push_back({own, number(tensor)});
      for (const auto& [own, tensor] : s.outputs) step.outputs.push_back({own, number(tensor)});
    }
    for (const TensorSpec& s : config.outputs) outputs.push_back(number(s.name));
    readers.resize(numbers.size());
    for (const Step& s : steps)
      for (const Link& l : s.inputs) ++readers[l.tensor];
    for (const size_t t : outputs) ++readers[t];
  }

  Result<TensorModelPtr> model_of(const Step& step) const {
    Result<TensorModelPtr> found = find(step.model);
    if (found.ok()) return found;
    return unavailable(cat("the step ", in_quotes(step.model.model), " of the ensemble ", in_quotes(name),
                           " is not there: ", found.status().message()));
  }
  void answered(uint64_t ticket, const InferAnswer& answer, const InferTimes& times);

  const std::string name;
  const FindStep find;
  std::vector<Step> steps;
  std::vector<size_t> inputs, outputs;  // of all tensors
  std::vector<size_t> readers;          // by tensor: steps that read it, and the answer

  mutable std::mutex mutex;
  uint64_t last_ticket = 0;  // guarded by mutex, as is all below
  std::map<uint64_t, std::shared_ptr<Run>> runs;
  InferStats totals;
  std::map<int64_t, InferStats::Batch> batches;
  std::shared_ptr<InferObserver> observer;
};

// One request.
class Ensemble::Run : public std::enable_shared_from_this<Run> {
 public:
  Run(std::shared_ptr<State> state, uint64_t ticket, std::vector<TensorModelPtr> models, InferJob job,
      bool traced)
      : state_(std::move(state)), ticket_(ticket), models_(std::move(models)), job_(std::move(job)) {
    values_.resize(state_->readers.size());
    readers_ = state_->readers;
    steps_.resize(state_->steps.size());
    std::vector<bool> known(values_.size());
    for (size_t k = 0; k < state_->inputs.size(); ++k) {
      values_[state_->inputs[k]] = std::move(job_.inputs[k]);
      known[state_->inputs[k]] = true;
    }
    job_.inputs.clear();
    if (traced) {
      const auto given = parse_traceparent(job_.trace);
      const TraceParent own{given ? given->trace : random_hex(16), random_hex(8), !given || given->sampled};
      trace_ = format_traceparent(own);
      // A trace of its own begins with its span, which has no parent.
      parent_ = given ? job_.trace : "";
    }
    for (size_t k = 0; k < steps_.size(); ++k)
      for (const State::Link& l : state_->steps[k].inputs) steps_[k].missing += !known[l.tensor];
  }

  // Asks every step that can be asked; answers when there is nothing left to do.
  void go_on();
  void cancel() {
    {
      std::lock_guard lock(mutex_);
      fail(Status(StatusCode::kCancelled, "cancelled"));
    }
    stop_steps();
    go_on();
  }

 private:
  struct StepRun {
    size_t missing = 0;     // inputs
    bool begun = false;     // and what it has to do is known:
    bool list = false;      // a job for each item; otherwise one
    size_t jobs = 1;        // in all
    size_t next = 0;        // the first that was not asked for
    size_t answered = 0;    // of them
    bool complete = false;  // its outputs are there
    std::vector<std::vector<Datum>> answers;
  };
  // A job in a step's queue, or on its way there.
  struct Flight {
    size_t step = 0, item = 0;
    uint64_t ticket = 0;  // 0: not known yet
    std::shared_ptr<InferTimes> times = std::make_shared<InferTimes>();
  };

  // All of these under mutex_.
  void fail(Status s) {
    if (status_.ok()) status_ = std::move(s);
  }
  Status begin(size_t step);
  Result<InferJob> make(size_t step, size_t item);
  Status complete(size_t step);
  void released(size_t tensor) {
    if (--readers_[tensor] == 0) values_[tensor] = Datum();
  }
  std::optional<size_t> next_step();
  Status of_step(size_t step, const Status& s) const {
    if (s.code() == StatusCode::kCancelled) return s;
    return {s.code(),
            cat("step ", in_quotes(state_->steps[step].model.model), " of the ensemble ",
                in_quotes(state_->name), ": ", s.message()),
            s.param()};
  }

  void ask(size_t step, std::unique_lock<std::mutex>& lock);
  void on_answer(uint64_t flight, Result<std::vector<Datum>> answer);
  void stop_steps();

  const std::shared_ptr<State> state_;
  const uint64_t ticket_;
  const std::vector<TensorModelPtr> models_;  // by step
  const Clock::time_point arrived_ = Clock::now();
  InferJob job_;  // without its inputs
  // Traceparents of this request and of its steps, and the span between them; empty where nobody traces.
  std::string parent_, trace_;

  std::mutex mutex_;
  Status status_;  // guarded by mutex_, as is all below
  std::vector<Datum> values_;
  std::vector<size_t> readers_;  // that are still to come
  std::vector<StepRun> steps_;
  std::map<uint64_t, Flight> flights_;
  uint64_t last_flight_ = 0;
  InferTimes times_;
  bool answered_ = false;
};

// What there is to do, now that the step's inputs are there.
Status Ensemble::Run::begin(size_t k) {
  StepRun& run = steps_[k];
  run.begun = true;
  const std::string* first = nullptr;
  for (const State::Link& l : state_->steps[k].inputs) {
    const Datum& value = values_[l.tensor];
    const TensorSpec* spec = find_spec(models_[k]->config.inputs, l.name);
    if (value.kind != Datum::Kind::kSequence || (spec && spec->list)) continue;
    if (first && value.items->size() != run.jobs)
      return invalid_argument(cat("its inputs ", in_quotes(*first), " and ", in_quotes(l.name),
                                  " are lists of ", run.jobs, " and ", value.items->size(), " tensors"));
    first = &l.name;
    run.list = true;
    run.jobs = value.items->size();
  }
  run.answers.resize(run.jobs);
  return run.jobs == 0 ? complete(k) : ok_status();
}

Result<InferJob> Ensemble::Run::make(size_t k, size_t item) {
  const TensorModelConfig& config = models_[k]->config;
  std::vector<NamedTensor> given;
  std::vector<NamedList> lists;
  for (const State::Link& l : state_->steps[k].inputs) {
    const Datum& value = values_[l.tensor];
    if (value.is_tensor()) {
      given.push_back({l.name, value.tensor});
    } else if (value.kind == Datum::Kind::kSequence) {
      const TensorSpec* spec = find_spec(config.inputs, l.name);
      if (spec && spec->list) lists.push_back({l.name, value});
      else given.push_back({l.name, (*value.items)[item].tensor});
    }
  }
  OAR_ASSIGN(InferJob job, make_job(config, std::move(given), std::move(lists)));
  job.deadline = queue_deadline(config, job_.deadline, 0);
  job.end_by = job_.end_by;
  job.id = job_.id;
  job.trace = trace_;
  return job;
}

// All of the step's jobs are answered: its outputs are tensors of the ensemble.
Status Ensemble::Run::complete(size_t k) {
  StepRun& run = steps_[k];
  run.complete = true;
  const std::vector<TensorSpec>& outputs = models_[k]->config.outputs;
  for (const State::Link& l : state_->steps[k].outputs) {
    const TensorSpec* spec = find_spec(outputs, l.name);
    if (!spec)
      return unavailable(cat("it has no output ", in_quotes(l.name),
                             " since it was loaded again; load the ensemble again, too"));
    const auto index = static_cast<size_t>(spec - outputs.data());
    std::vector<Datum> items;
    for (std::vector<Datum>& answer : run.answers) items.push_back(std::move(answer[index]));
    if (readers_[l.tensor] > 0)
      values_[l.tensor] = run.list ? Datum::sequence(std::move(items)) : std::move(items[0]);
    for (size_t other = 0; other < steps_.size(); ++other)
      for (const State::Link& in : state_->steps[other].inputs)
        steps_[other].missing -= in.tensor == l.tensor;
  }
  run.answers.clear();
  if (run.jobs == 0)
    for (const State::Link& l : state_->steps[k].inputs) released(l.tensor);
  return ok_status();
}

// A step that a job can be asked of.
std::optional<size_t> Ensemble::Run::next_step() {
  for (size_t k = 0; k < steps_.size() && status_.ok(); ++k) {
    StepRun& run = steps_[k];
    if (run.missing > 0 || run.complete) continue;
    if (!run.begun) {
      if (const Status s = begin(k); !s.ok()) fail(of_step(k, s));
      if (!status_.ok() || run.complete) continue;  // later steps may go on
    }
    if (run.next < run.jobs && run.next - run.answered < kItemsAtOnce) return k;
  }
  return std::nullopt;
}

void Ensemble::Run::go_on() {
  std::unique_lock lock(mutex_);
  while (const std::optional<size_t> step = next_step()) ask(*step, lock);
  const bool stopped = !status_.ok();
  if (stopped && !flights_.empty()) {
    lock.unlock();
    stop_steps();
    return;
  }
  const bool done = std::all_of(steps_.begin(), steps_.end(), [](const StepRun& r) { return r.complete; });
  if (answered_ || !flights_.empty() || !(stopped || done)) return;
  answered_ = true;
  std::vector<Datum> outputs;
  for (const size_t t : state_->outputs)
    if (!stopped) outputs.push_back(values_[t]);
  Result<std::vector<Datum>> result = std::move(outputs);
  if (stopped) result = status_;
  values_.clear();  // who is told may reuse the memory they view
  const InferTimes times = times_;
  lock.unlock();
  if (job_.times && result.ok()) *job_.times = times;
  state_->answered(
      ticket_,
      {job_.id, job_.rows, arrived_, arrived_, Clock::now(), result.status().code(), parent_, trace_}, times);
  const auto tell = std::move(job_.done);
  tell(std::move(result));
}

// Puts the step's next job into its queue; without the lock meanwhile, since the answer may come at once.
void Ensemble::Run::ask(size_t k, std::unique_lock<std::mutex>& lock) {
  StepRun& run = steps_[k];
  const size_t item = run.next++;
  Result<InferJob> job = make(k, item);
  if (run.next == run.jobs)
    for (const State::Link& l : state_->steps[k].inputs) released(l.tensor);
  if (!job.ok()) return fail(of_step(k, job.status()));
  const uint64_t id = ++last_flight_;
  Flight& flight = flights_[id];
  flight.step = k;
  flight.item = item;
  job->times = flight.times;
  job->done = [self = shared_from_this(), id](Result<std::vector<Datum>> answer) {
    self->on_answer(id, std::move(answer));
  };
  lock.unlock();
  const Result<uint64_t> ticket = models_[k]->runner->submit(std::move(*job));
  lock.lock();
  if (!ticket.ok()) {
    flights_.erase(id);
    return fail(of_step(k, ticket.status()));
  }
  if (const auto it = flights_.find(id); it != flights_.end()) it->second.ticket = *ticket;
}

void Ensemble::Run::on_answer(uint64_t id, Result<std::vector<Datum>> answer) {
  {
    std::lock_guard lock(mutex_);
    const Flight flight = std::move(flights_.extract(id).mapped());
    StepRun& run = steps_[flight.step];
    ++run.answered;
    if (!answer.ok()) {
      fail(of_step(flight.step, answer.status()));
    } else if (status_.ok()) {
      add_times(times_, *flight.times);
      run.answers[flight.item] = std::move(*answer);
      if (run.answered == run.jobs)
        if (const Status s = complete(flight.step); !s.ok()) fail(of_step(flight.step, s));
    }
  }
  go_on();
}

// Nobody wants what still runs.
void Ensemble::Run::stop_steps() {
  std::vector<std::pair<size_t, uint64_t>> running;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, flight] : flights_)
      if (flight.ticket != 0) running.emplace_back(flight.step, std::exchange(flight.ticket, 0));
  }
  for (const auto& [step, ticket] : running) models_[step]->runner->cancel(ticket);
}

void Ensemble::State::answered(uint64_t ticket, const InferAnswer& answer, const InferTimes& times) {
  std::shared_ptr<InferObserver> told;
  std::shared_ptr<Run> ended;  // outside the lock: it holds models
  {
    std::lock_guard lock(mutex);
    told = observer;
    if (auto node = runs.extract(ticket)) ended = std::move(node.mapped());
    totals.last_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                               std::chrono::system_clock::now().time_since_epoch())
                                               .count());
    const uint64_t total = ns_since(answer.arrived);
    if (answer.status == StatusCode::kOk) {
      ++totals.success;
      ++totals.executions;
      totals.success_ns += total;
      totals.inferences += static_cast<uint64_t>(answer.rows);
      add_times(totals.times, times);
      InferStats::Batch& b = batches[answer.rows];
      b.rows = answer.rows;
      ++b.count;
      b.input_ns += times.input;
      b.compute_ns += times.compute;
      b.output_ns += times.output;
    } else {
      ++totals.failure;
      totals.failure_ns += total;
      totals.cancelled += answer.status == StatusCode::kCancelled;
      totals.expired += answer.status == StatusCode::kDeadlineExceeded;
    }
  }
  if (told) told->on_answer(answer);
}

Ensemble::Ensemble(const TensorModelConfig& config, FindStep find)
    : state_(std::make_shared<State>(config, std::move(find))) {}
Ensemble::~Ensemble() = default;

Result<uint64_t> Ensemble::submit(InferJob job) {
  const std::shared_ptr<State> state = state_;  // the job's `done` may end this object before we have left
  std::vector<TensorModelPtr> models;
  for (const State::Step& step : state->steps) {
    Result<TensorModelPtr> model = state->model_of(step);
    if (!model.ok()) {
      std::lock_guard lock(state->mutex);
      ++state->totals.refused;
      return model.status();
    }
    models.push_back(std::move(*model));
  }
  std::shared_ptr<Run> run;
  uint64_t ticket = 0;
  {
    std::lock_guard lock(state->mutex);
    ticket = ++state->last_ticket;
    run = std::make_shared<Run>(state, ticket, std::move(models), std::move(job), state->observer != nullptr);
    state->runs.emplace(ticket, run);
  }
  run->go_on();
  return ticket;
}

void Ensemble::cancel(uint64_t ticket) {
  const std::shared_ptr<State> state = state_;  // as in submit()
  std::shared_ptr<Run> run;
  {
    std::lock_guard lock(state->mutex);
    const auto it = state->runs.find(ticket);
    if (it == state->runs.end()) return;
    run = it->second;
  }
  run->cancel();
}

InferStats Ensemble::stats() const {
  std::lock_guard lock(state_->mutex);
  InferStats out = state_->totals;
  out.running = state_->runs.size();
  for (const auto& [rows, batch] : state_->batches) out.batches.push_back(batch);
  return out;
}

void Ensemble::observe(std::shared_ptr<InferObserver> observer) {
  std::lock_guard lock(state_->mutex);
  state_->observer.swap(observer);
}

Status Ensemble::ready() const {
  for (const State::Step& step : state_->steps) {
    OAR_ASSIGN(const TensorModelPtr model, state_->model_of(step));
    OAR_RETURN_IF_ERROR(model->runner->ready());
  }
  return ok_status();
}

}  // namespace oar::api
