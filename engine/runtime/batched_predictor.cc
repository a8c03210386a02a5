#include "engine/runtime/batched_predictor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/base/format.h"
#include "engine/graph/run_guard.h"

namespace oar {
namespace {

uint64_t ns_between(Clock::time_point from, Clock::time_point to) {
  return to <= from
             ? 0
             : static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

uint64_t now_ms() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

struct BatchedPredictor::State {
  struct Job {
    InferJob job;
    Clock::time_point arrived;
    uint64_t id = 0;
    Clock::time_point started;  // zero: no run has taken it
    bool running = false;       // counted in totals.running, and in `active`, until it is answered
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);

    // Whether somebody still wants its results.
    Status wanted() const {
      if (*cancelled) return Status(StatusCode::kCancelled, "cancelled");
      if (job.end_by && Clock::now() >= *job.end_by)
        return Status(StatusCode::kDeadlineExceeded, "the request's deadline passed while it was running");
      return ok_status();
    }
  };
  struct Running {
    std::vector<Job> jobs;
    Clock::time_point start;
    int64_t rows = 0;
    int instance = 0;
  };

  State(std::unique_ptr<TensorRunner> m, BatchedPredictorOptions o)
      : model(std::move(m)), options(std::move(o)), batcher(policy(options)) {}

  static BatchPolicy policy(BatchedPredictorOptions& o) {
    BatchPolicy p;
    p.max_rows = std::max<int64_t>(1, o.max_batch);
    p.max_queue = o.max_queue;
    if (o.max_batch > 0 && o.merge) {
      p.max_delay = o.max_queue_delay;
      std::sort(o.preferred_batches.begin(), o.preferred_batches.end());
      for (const int64_t rows : o.preferred_batches)
        if (rows >= 1 && rows <= p.max_rows) p.preferred.push_back(rows);
    }
    return p;
  }

  void work(const TensorRunner& instance, int number);
  void run(const TensorRunner& instance, Running batch);
  Result<std::vector<std::vector<Datum>>> run_model(const TensorRunner& instance, std::span<const Job> jobs,
                                                    RunTimes* times);
  Status run_together(const TensorRunner& instance, Running& batch);
  void run_apart(const TensorRunner& instance, Running& batch);
  void answer(Job& job, Result<std::vector<Datum>> result, const InferTimes& times);
  void count_run(const InferRun& run);

  const std::unique_ptr<TensorRunner> model;
  BatchedPredictorOptions options;

  mutable std::mutex mutex;
  std::condition_variable wake;
  Batcher batcher;  // guarded by mutex, as is all below
  std::unordered_map<uint64_t, Job> waiting;
  std::unordered_map<uint64_t, std::shared_ptr<std::atomic<bool>>> active;  // of running jobs: cancelled
  uint64_t last_id = 0;
  bool stopping = false, warned = false;
  InferStats totals;
  std::shared_ptr<InferObserver> observer;
  std::map<int64_t, InferStats::Batch> batches;
};

void BatchedPredictor::State::work(const TensorRunner& instance, int number) {
  std::unique_lock lock(mutex);
  while (!stopping) {
    const Batcher::Decision decision = batcher.next(Clock::now());
    if (decision.run.empty() && decision.expired.empty()) {
      if (decision.wake) {
        wake.wait_until(lock, *decision.wake);
      } else {
        wake.wait(lock);
      }
      continue;
    }
    std::vector<Job> expired;
    Running batch;
    batch.instance = number;
    for (const uint64_t id : decision.expired) expired.push_back(std::move(waiting.extract(id).mapped()));
    for (const uint64_t id : decision.run) {
      batch.jobs.push_back(std::move(waiting.extract(id).mapped()));
      batch.jobs.back().running = true;
      active.emplace(id, batch.jobs.back().cancelled);
      batch.rows += batch.jobs.back().job.rows;
    }
    totals.running += batch.jobs.size();
    totals.expired += expired.size();
    // Another instance may find more to do, or a new time to wait for.
    const bool more = batcher.waiting() > 0;
    lock.unlock();
    if (more) wake.notify_one();
    for (Job& job : expired) {
      answer(job, Status(StatusCode::kDeadlineExceeded, "the request's deadline passed while it was waiting"),
             {});
    }
    expired.clear();
    if (!batch.jobs.empty()) run(instance, std::move(batch));
    lock.lock();
  }
}

void BatchedPredictor::State::answer(Job& job, Result<std::vector<Datum>> result, const InferTimes& times) {
  const Clock::time_point now = Clock::now();
  const uint64_t total = ns_between(job.arrived, now);
  std::shared_ptr<InferObserver> told;
  {
    std::lock_guard lock(mutex);
    told = observer;
    totals.last_ms = now_ms();
    totals.running -= job.running ? 1 : 0;
    totals.cancelled += active.erase(job.id) > 0 && result.status().code() == StatusCode::kCancelled;
    if (result.ok()) {
      ++totals.success;
      totals.success_ns += total;
      totals.inferences += static_cast<uint64_t>(job.job.rows);
      totals.times.queue += times.queue;
      totals.times.input += times.input;
      totals.times.compute += times.compute;
      totals.times.output += times.output;
    } else {
      ++totals.failure;
      totals.failure_ns += total;
    }
  }
  if (told)
    told->on_answer(
        {job.job.id, job.job.rows, job.arrived, job.started, now, result.status().code(), job.job.trace});
  if (job.job.times && result.ok()) *job.job.times = times;
  job.job.inputs.clear();  // who is told may reuse the memory they view
  const auto done = std::move(job.job.done);
  done(std::move(result));
}

void BatchedPredictor::State::count_run(const InferRun& run) {
  std::shared_ptr<InferObserver> told;
  {
    std::lock_guard lock(mutex);
    told = observer;
    ++totals.executions;
    InferStats::Batch& b = batches[run.rows];
    b.rows = run.rows;
    ++b.count;
    b.input_ns += run.times.input;
    b.compute_ns += run.times.compute;
    b.output_ns += run.times.output;
  }
  if (told) told->on_run(run);
}

// Nothing that a model does with its inputs may end the process. The run goes on while one of the jobs is
// wanted.
Result<std::vector<std::vector<Datum>>> BatchedPredictor::State::run_model(const TensorRunner& instance,
                                                                           std::span<const Job> jobs,
                                                                           RunTimes* times) {
  const RunGuard guard([jobs] {
    Status last;
    for (const Job& job : jobs)
      if (last = job.wanted(); last.ok()) break;
    return last;
  });
  try {
    std::vector<std::vector<Datum>> requests;
    for (const Job& job : jobs) requests.push_back(job.job.inputs);
    if (jobs.size() > 1) return instance.run_together(requests, times);
    const auto start = Clock::now();
    OAR_ASSIGN(auto answer, instance.run(std::move(requests[0])));
    times->compute = ns_between(start, Clock::now());
    std::vector<std::vector<Datum>> answers;
    answers.push_back(std::move(answer));
    return answers;
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory to run this request");
  } catch (const std::exception& e) { return internal_error(cat("the run failed: ", e.what())); }
}

void BatchedPredictor::State::run(const TensorRunner& instance, Running batch) {
  batch.start = Clock::now();
  for (Job& job : batch.jobs) job.started = batch.start;
  if (batch.jobs.size() == 1) {
    run_apart(instance, batch);
  } else if (const Status s = run_together(instance, batch); !s.ok()) {
    const bool unwanted = s.code() == StatusCode::kCancelled || s.code() == StatusCode::kDeadlineExceeded;
    bool tell;
    {
      std::lock_guard lock(mutex);
      tell = !warned && !unwanted;
      warned |= tell;
    }
    if (tell) {
      options.log(LogLevel::kWarning,
                  cat("a batch of ", batch.rows, " rows failed and is repeated request by request (",
                      s.message(), "); said once for this model"));
    }
    run_apart(instance, batch);
  }
}

// One run for all; nobody has been answered when this returns an error.
Status BatchedPredictor::State::run_together(const TensorRunner& instance, Running& batch) {
  RunTimes spent;
  OAR_ASSIGN(std::vector<std::vector<Datum>> answers, run_model(instance, batch.jobs, &spent));
  InferTimes times{0, spent.input, spent.compute, spent.output};
  count_run({batch.instance, batch.rows, batch.jobs.size(), batch.start, spent});
  for (size_t k = 0; k < batch.jobs.size(); ++k) {
    times.queue = ns_between(batch.jobs[k].arrived, batch.start);
    answer(batch.jobs[k], std::move(answers[k]), times);
  }
  return ok_status();
}

void BatchedPredictor::State::run_apart(const TensorRunner& instance, Running& batch) {
  for (Job& job : batch.jobs) {
    InferTimes times;
    job.started = Clock::now();
    times.queue = ns_between(job.arrived, job.started);
    RunTimes spent;
    auto answers = run_model(instance, {&job, 1}, &spent);
    times.compute = spent.compute;
    if (!answers.ok()) {
      answer(job, answers.status(), times);
      continue;
    }
    count_run({batch.instance, job.job.rows, 1, job.started, spent});
    answer(job, std::move((*answers)[0]), times);
  }
}

BatchedPredictor::BatchedPredictor(std::unique_ptr<TensorRunner> model, BatchedPredictorOptions options)
    : state_(std::make_shared<State>(std::move(model), std::move(options))) {
  for (int k = 0; k < std::max(1, state_->options.instances); ++k) {
    threads_.emplace_back(
        [state = state_, k, instance = std::shared_ptr<TensorRunner>(state_->model->another())] {
          state->work(*instance, k);
        });
  }
}

BatchedPredictor::~BatchedPredictor() {
  std::unordered_map<uint64_t, State::Job> left;
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    left.swap(state_->waiting);
  }
  state_->wake.notify_all();
  for (auto& [id, job] : left)
    state_->answer(job, unavailable("the model is being unloaded; try again later"), {});
  for (std::thread& t : threads_) {
    if (t.get_id() == std::this_thread::get_id()) {
      t.detach();  // its `done` dropped the last reference; the state stays until it has left
    } else {
      t.join();
    }
  }
}

const TensorRunner& BatchedPredictor::model() const { return *state_->model; }
const BatchedPredictorOptions& BatchedPredictor::options() const { return state_->options; }

Result<uint64_t> BatchedPredictor::submit(InferJob job) {
  const std::shared_ptr<State> kept = state_;  // the job's `done` may end this object before we have left
  State& s = *kept;
  OAR_CHECK(s.options.max_batch == 0 || (job.rows >= 1 && job.rows <= s.options.max_batch),
            "rows were checked");
  Batcher::Item item;
  item.rows = s.options.max_batch > 0 ? job.rows : 1;
  item.deadline = job.deadline;
  item.arrived = Clock::now();
  if (s.options.max_batch > 0 && s.options.merge) item.key = s.model->batch_key(job.inputs);
  uint64_t id = 0;
  {
    std::lock_guard lock(s.mutex);
    if (s.stopping) return unavailable("the model is being unloaded; try again later");
    id = item.id = ++s.last_id;
    if (!s.options.merge && s.options.max_batch > 0) item.key = cat(id);
    const auto arrived = item.arrived;
    if (Status refused = s.batcher.push(std::move(item)); !refused.ok()) {
      ++s.totals.refused;
      return refused;
    }
    s.waiting.emplace(id, State::Job{std::move(job), arrived, id});
  }
  s.wake.notify_one();
  return id;
}

void BatchedPredictor::cancel(uint64_t ticket) {
  const std::shared_ptr<State> kept = state_;  // as in submit()
  State& s = *kept;
  std::optional<State::Job> job;
  {
    std::lock_guard lock(s.mutex);
    if (const auto it = s.active.find(ticket); it != s.active.end()) *it->second = true;
    if (!s.batcher.remove(ticket)) return;
    job = std::move(s.waiting.extract(ticket).mapped());
    ++s.totals.cancelled;
  }
  s.answer(*job, Status(StatusCode::kCancelled, "cancelled"), {});
}

void BatchedPredictor::observe(std::shared_ptr<InferObserver> observer) {
  std::lock_guard lock(state_->mutex);
  state_->observer.swap(observer);
}

InferStats BatchedPredictor::stats() const {
  std::lock_guard lock(state_->mutex);
  InferStats out = state_->totals;
  out.waiting = state_->waiting.size();
  for (const auto& [rows, batch] : state_->batches) out.batches.push_back(batch);
  return out;
}

}  // namespace oar
