// The engine thread. It alone touches scheduler, sampler and runner; other threads reach it through a mailbox
// (new requests and commands) under one mutex, and see what it publishes: stats under that mutex, health as
// atomics.
#include "engine/runtime/engine.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/format.h"
#include "engine/base/random.h"
#include "engine/runtime/core/draft_model.h"
#include "engine/runtime/core/draft_pacer.h"
#include "engine/runtime/core/drafter.h"
#include "engine/runtime/core/scheduler.h"
#include "engine/runtime/core/step_pacer.h"
#include "engine/runtime/event_round.h"

namespace oar {
namespace {

struct Submission {
  uint64_t id;
  Request request;
  uint64_t seed;
  Clock::time_point at;
};

// Ends one choice, a request (index kAll) or everything (id kEverything); or lets a request rest and go on.
struct Command {
  enum class Kind : uint8_t { kEnd, kSuspend, kResume };
  uint64_t id;
  int32_t index;
  FinishReason reason;
  Kind kind = Kind::kEnd;
};
constexpr uint64_t kEverything = 0;
constexpr int32_t kAll = -1;
constexpr std::chrono::seconds kCancelGrace{1};

std::shared_ptr<Drafter> make_drafter(const SpeculativeOptions& o) {
  if (o.drafter != nullptr || !o.prompt_lookup) return o.drafter;
  return std::make_shared<PromptLookup>(o.lookup_min, o.lookup_max);
}

int64_t nanoseconds(Clock::time_point t) { return t.time_since_epoch() / std::chrono::nanoseconds(1); }

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::unique_ptr<ModelRunner> runner, std::unique_ptr<Scheduler> scheduler,
             const EngineOptions& options, const RequestLimits& limits, std::unique_ptr<HostRunner> draft)
      : options_(options),
        limits_(limits),
        seed_(options.seed != 0 ? options.seed : static_cast<uint64_t>(nanoseconds(Clock::now()))),
        runner_(std::move(runner)),
        scheduler_(std::move(scheduler)),
        drafter_(make_drafter(options.speculative)) {
    if (draft != nullptr)
      draft_model_ = std::make_unique<DraftModel>(std::move(draft), limits.vocab_size, draft_pacer_);
    publish_stats();
    thread_ = std::thread([this] { main(); });
  }

  ~EngineImpl() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Result<uint64_t> submit(Request request) override;
  Status check_room() const override;
  bool has_room() const override;
  void cancel(uint64_t id) override { command({id, kAll, FinishReason::kCancelled}); }
  void finish_choice(uint64_t id, int32_t index, FinishReason reason) override {
    if (index >= 0) command({id, index, reason});
  }
  void suspend(uint64_t id) override { command({id, kAll, FinishReason::kNone, Command::Kind::kSuspend}); }
  void resume(uint64_t id) override { command({id, kAll, FinishReason::kNone, Command::Kind::kResume}); }
  EngineStats stats() const override {
    EngineStats s;
    {
      std::lock_guard lock(mutex_);
      s = stats_;
      s.waiting += static_cast<int64_t>(inbox_.size());
    }
    s.health = health();
    return s;
  }
  const RequestLimits& request_limits() const override { return limits_; }
  EngineHealth health() const override;
  void on_step(std::function<void(const StepInfo&)> observer) override {
    auto shared = std::make_shared<const std::function<void(const StepInfo&)>>(std::move(observer));
    std::lock_guard lock(mutex_);
    observer_ = std::move(shared);
  }
  bool drain(std::chrono::milliseconds timeout) override;

 private:
  Status room() const;  // mutex_ is held, as for the next two
  bool takes_new() const { return failure_.ok() && !draining_ && !stop_; }
  size_t waiting() const { return inbox_.size() + static_cast<size_t>(stats_.waiting); }
  void command(Command c) {
    {
      std::lock_guard lock(mutex_);
      commands_.push_back(c);
    }
    wake_.notify_all();
  }

  // Below: engine thread only.
  void main();
  bool collect();  // waits for work; false when the engine is being destroyed
  void obey();
  Status step();
  void propose_drafts();
  bool speculates() const { return drafter_ != nullptr || draft_model_ != nullptr; }
  Status submit_step();
  Status sample_step();
  Status collect_step();
  void commit_step(Step& step, SampleResult& result);
  StepTimes& times_of(const Step* step) { return times_[step - both_]; }
  void give_up(const RequestState& r, const Status& cause);
  void fail(const Status& why);
  void emit(const Status& status = {});
  void publish_stats();

  const EngineOptions options_;
  const RequestLimits limits_;
  const uint64_t seed_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_changed_;
  std::vector<Submission> inbox_;  // guarded by mutex_, as is all up to state_
  std::vector<Command> commands_;
  bool stop_ = false, draining_ = false, idle_ = false;
  Status failure_;
  uint64_t next_id_ = 1;  // 1 is the warm-up request
  Status warm_up_error_;
  EngineStats stats_;
  std::shared_ptr<const std::function<void(const StepInfo&)>> observer_;
  Clock::time_point last_end_ = Clock::now();  // of a choice; or when there was work again
  double ends_every_ = 0;                      // seconds between ends, of late

  std::atomic<EngineHealth> state_{EngineHealth::kStarting};
  std::atomic<int64_t> step_began_{0};  // nanoseconds of Clock, 0: no step is running

  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<Scheduler> scheduler_;
  StepPacer pacer_;
  std::shared_ptr<Drafter> drafter_;  // null: nobody drafts, or a model does
  DraftPacer draft_pacer_;
  std::unique_ptr<DraftModel> draft_model_;
  std::vector<int32_t> drafts_;  // of all candidates, one behind the other
  std::vector<DraftPacer::Candidate> candidates_;
  std::vector<int32_t> candidate_slots_;
  Step both_[2];
  StepTimes times_[2];           // of both_
  Step* planned_ = &both_[0];    // the one to plan next
  Step* flying_ = nullptr;       // submitted and told what to draw, not collected
  Clock::time_point last_step_;  // when the step before ended
  uint64_t last_generated_ = 0;  // tokens until then
  std::vector<Submission> arrived_;
  std::vector<Command> obeyed_;
  std::vector<Outcome> outcomes_;
  SampleSpec spec_;
  SampleResult* result_ = nullptr;  // of the step being committed
  std::vector<std::span<const int32_t>> committed_;
  // A choice whose next token could not be drawn.
  struct Failed {
    uint64_t request;
    int32_t index, slot;
    const Status* why;
  };
  std::vector<Failed> failed_;
  uint64_t steps_ = 0, finished_[6] = {};
  double step_seconds_ = 0;
  std::thread thread_;  // last: everything above is there when it starts
};

// ---- any thread
// -----------------------------------------------------------------------------------------------

Status EngineImpl::room() const {
  if (!failure_.ok()) return unavailable(cat("the engine has failed: ", failure_.message()));
  if (!takes_new())
    return unavailable("the engine is draining and takes no new requests; ask another server");
  if (waiting() < options_.max_waiting) return ok_status();
  // A place is free when some request has ended, which may take longer than lately.
  const std::chrono::duration<double> since = Clock::now() - last_end_;
  const double wait = std::max(ends_every_, since.count());
  return resource_exhausted(cat(waiting(), " requests are waiting already (max_waiting ",
                                options_.max_waiting, "); try again in ",
                                static_cast<int64_t>(std::ceil(std::max(1.0, wait))), " s"))
      .with_retry_after(wait);
}

Status EngineImpl::check_room() const {
  std::lock_guard lock(mutex_);
  return room();
}

bool EngineImpl::has_room() const {
  std::lock_guard lock(mutex_);
  return takes_new() && waiting() < options_.max_waiting;
}

Result<uint64_t> EngineImpl::submit(Request request) {
  OAR_RETURN_IF_ERROR(validate_request(request, limits_));
  OAR_RETURN_IF_ERROR(scheduler_->check_length(request));
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    OAR_RETURN_IF_ERROR(room());
    id = ++next_id_;
    const uint64_t drawn = philox4x32({static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), 1, 0},
                                      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)})[0] |
                           id << 32;  // distinct for every request
    const uint64_t seed = request.sampling.seed.value_or(drawn);
    inbox_.push_back({id, std::move(request), seed, Clock::now()});
    idle_ = false;
  }
  wake_.notify_all();
  return id;
}

EngineHealth EngineImpl::health() const {
  const EngineHealth state = state_.load(std::memory_order_acquire);
  const int64_t began = step_began_.load(std::memory_order_relaxed);
  if (began != 0 && nanoseconds(Clock::now()) - began > options_.step_timeout / std::chrono::nanoseconds(1))
    return EngineHealth::kFailed;
  return state;
}

bool EngineImpl::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  EngineHealth ready = EngineHealth::kReady;
  state_.compare_exchange_strong(ready, EngineHealth::kDraining);
  wake_.notify_all();
  if (idle_changed_.wait_for(lock, timeout, [&] { return idle_; })) return true;
  commands_.push_back({kEverything, kAll, FinishReason::kCancelled});
  wake_.notify_all();
  idle_changed_.wait_for(lock, kCancelGrace, [&] { return idle_; });
  return false;
}

// ---- engine thread
// --------------------------------------------------------------------------------------------

void EngineImpl::main() {
  try {
    Request warm;  // one real token, seen by nobody
    warm.prompt = {0};
    warm.sampling.temperature = 0.f;
    warm.stop = {.max_tokens = 1, .ignore_eos = true};
    OAR_CHECK(scheduler_->add(1, std::move(warm), 0, Clock::now()).ok(), "no room for one token");
    Status status = step();
    while (status.ok() && flying_ != nullptr) status = step();
    if (status.ok() && draft_model_ != nullptr) status = draft_model_->warm_up();
    if (status.ok() && finished_[static_cast<size_t>(FinishReason::kLength)] != 1)
      status = internal_error(cat("the warm-up request did not produce a token: ", warm_up_error_.message()));
    scheduler_->blocks().clear_cache();
    scheduler_->reset_stats();
    pacer_ = {};  // the warm-up found everything cold
    draft_pacer_ = {};
    std::fill(std::begin(finished_), std::end(finished_), 0);
    steps_ = 0;
    step_seconds_ = 0;
    last_generated_ = 0;
    publish_stats();
    if (status.ok()) {
      std::lock_guard lock(mutex_);
      ends_every_ = 0, last_end_ = Clock::now();
      state_.store(draining_ ? EngineHealth::kDraining : EngineHealth::kReady, std::memory_order_release);
    } else {
      fail(status);
    }
  } catch (const std::exception& e) { fail(internal_error(cat("engine thread: ", e.what()))); }
  while (collect()) {
    try {
      obey();
      if (state_.load(std::memory_order_relaxed) == EngineHealth::kFailed) continue;
      if (Status status = step(); !status.ok()) fail(status);
    } catch (const std::exception& e) { fail(internal_error(cat("engine thread: ", e.what()))); }
  }
  obey();
  scheduler_->cancel_all(FinishReason::kCancelled, outcomes_);
  emit();
}

bool EngineImpl::collect() {
  std::unique_lock lock(mutex_);
  const auto has_mail = [&] { return stop_ || !inbox_.empty() || !commands_.empty(); };
  if (scheduler_->idle() && flying_ == nullptr && !has_mail()) {
    idle_ = scheduler_->empty();
    idle_changed_.notify_all();
    // Deadlines pass for suspended requests, too; without one, look again in an hour.
    if (idle_) wake_.wait(lock, has_mail);
    else
      wake_.wait_until(lock, std::min(scheduler_->next_deadline(), Clock::now() + std::chrono::hours(1)),
                       has_mail);
    last_end_ = Clock::now();
  }
  arrived_.swap(inbox_);
  obeyed_.swap(commands_);
  stats_.waiting += static_cast<int64_t>(arrived_.size());  // still counted against max_waiting
  return !stop_;
}

// Arrivals first, so that a command always finds its request.
void EngineImpl::obey() {
  const bool failed = state_.load(std::memory_order_relaxed) == EngineHealth::kFailed;
  for (Submission& a : arrived_)
    OAR_CHECK(scheduler_->add(a.id, std::move(a.request), a.seed, a.at).ok(),
              "submit() let through what cannot fit");
  arrived_.clear();
  for (const Command& c : obeyed_) {
    if (c.kind == Command::Kind::kSuspend) scheduler_->suspend(c.id);
    else if (c.kind == Command::Kind::kResume) scheduler_->resume(c.id);
    else if (c.id == kEverything) scheduler_->cancel_all(c.reason, outcomes_);
    else if (c.index == kAll) scheduler_->cancel(c.id, c.reason, outcomes_);
    else scheduler_->finish_choice(c.id, c.index, c.reason, outcomes_);
  }
  obeyed_.clear();
  emit();
  if (failed) fail(Status(StatusCode::kUnavailable, ""));
}

// Plans and submits a step, and commits one: the same in lockstep, the one before at depth 1.
Status EngineImpl::step() {
  const Clock::time_point began = Clock::now();
  scheduler_->expire(began, outcomes_);
  emit();
  if (speculates()) propose_drafts();
  const Scheduler::Demand demand = scheduler_->demand();
  const bool planned = scheduler_->next(began, *planned_, pacer_.prompt_rows(demand.decodes, demand.prompts));
  scheduler_->tell_begun(*planned_, outcomes_);
  emit();
  if (planned) {
    times_of(planned_).began = began;
    times_of(planned_).planned = Clock::now();
  }
  if (!planned && flying_ == nullptr) {
    publish_stats();
    return scheduler_->idle() ? ok_status() : internal_error("the scheduler has work but plans no step");
  }
  step_began_.store(nanoseconds(began), std::memory_order_relaxed);
  if (flying_ == nullptr) last_step_ = began;
  if (planned) OAR_RETURN_IF_ERROR(submit_step());
  if (flying_ != nullptr) OAR_RETURN_IF_ERROR(collect_step());
  if (planned) OAR_RETURN_IF_ERROR(sample_step());
  if (planned && runner_->limits().depth == 0) OAR_RETURN_IF_ERROR(collect_step());
  step_began_.store(0, std::memory_order_relaxed);
  return ok_status();
}

// What may follow, as far as verifying it pays. The scheduler takes what it has room for.
void EngineImpl::propose_drafts() {
  drafts_.clear();
  candidates_.clear();
  candidate_slots_.clear();
  int64_t decodes = 0;
  scheduler_->for_each_running([&](Sequence& s) {
    decodes += s.decodes();
    if (!s.takes_drafts()) return;
    int64_t available = std::min(options_.speculative.max_tokens, s.request->max_length - s.known() - 1);
    if (drafter_ != nullptr) {
      const size_t before = drafts_.size();
      drafter_->draft(s, available, drafts_);
      available = static_cast<int64_t>(drafts_.size() - before);
    }
    candidates_.push_back({&s.chance, available, 0});
    candidate_slots_.push_back(s.slot);
  });
  if (options_.speculative.paced) {
    draft_pacer_.plan(candidates_, decodes, decodes, scheduler_->draft_room());
  } else {
    int64_t room = scheduler_->draft_room();
    for (DraftPacer::Candidate& c : candidates_) room -= c.take = std::clamp<int64_t>(c.available, 0, room);
  }
  std::span<const int32_t> rest = drafts_;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const DraftPacer::Candidate& c = candidates_[i];
    Sequence& s = scheduler_->sequence(candidate_slots_[i]);
    if (draft_model_ != nullptr) {  // which names them once they have blocks
      if (c.take > 0) scheduler_->propose(s, c.take);
      continue;
    }
    if (c.take > 0) scheduler_->propose(s, rest.first(static_cast<size_t>(c.take)));
    rest = rest.subspan(static_cast<size_t>(c.available));
  }
}

Status EngineImpl::submit_step() {
  if (draft_model_ != nullptr) {
    OAR_RETURN_IF_ERROR(draft_model_->copy_blocks(planned_->copies, scheduler_->target_groups()));
    OAR_RETURN_IF_ERROR(draft_model_->draft(*scheduler_, *planned_));
  }
  if (!planned_->copies.empty()) OAR_RETURN_IF_ERROR(runner_->copy_blocks(planned_->copies));
  OAR_RETURN_IF_ERROR(runner_->submit(planned_->batch()));
  if (draft_model_ != nullptr) OAR_RETURN_IF_ERROR(draft_model_->follow(*scheduler_, *planned_));
  times_of(planned_).submitted = Clock::now();
  return ok_status();
}

Status EngineImpl::sample_step() {
  times_of(planned_).sampling = Clock::now();
  scheduler_->specify(*planned_, spec_);
  flying_ = planned_;
  planned_ = planned_ == &both_[0] ? &both_[1] : &both_[0];
  OAR_RETURN_IF_ERROR(runner_->sample(spec_));
  times_of(flying_).sampled = Clock::now();
  return ok_status();
}

Status EngineImpl::collect_step() {
  StepTimes& times = times_of(flying_);
  times.collecting = Clock::now();
  OAR_ASSIGN(result_, runner_->collect());
  Step& step = *flying_;
  flying_ = nullptr;
  commit_step(step, *result_);
  emit();
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_step_).count();
  times.since = std::exchange(last_step_, now);
  times.ended = now;
  ++steps_;
  step_seconds_ += seconds;
  const int64_t rows = static_cast<int64_t>(step.tokens.size());
  const int64_t drafts = static_cast<int64_t>(step.draft_tokens.size());
  pacer_.ran(rows - drafts - step.prefill_tokens, step.prefill_tokens, seconds);
  const double drafting = draft_model_ != nullptr ? draft_model_->take_seconds() : 0;
  if (speculates() && step.prefill_tokens == 0) draft_pacer_.ran(rows, std::max(0., seconds - drafting));
  publish_stats();
  StepInfo info{rows,  step.prefill_tokens, drafts, static_cast<int64_t>(step.entries.size()), seconds,
                steps_};
  info.times = times;
  std::shared_ptr<const std::function<void(const StepInfo&)>> observer;
  {
    std::lock_guard lock(mutex_);
    observer = observer_;
    const uint64_t generated = stats_.generation_tokens;
    info.generated_tokens = static_cast<int64_t>(generated - std::exchange(last_generated_, generated));
    info.running = stats_.running;
    info.waiting = stats_.waiting + static_cast<int64_t>(inbox_.size());
    info.suspended = stats_.suspended;
    info.blocks_used = stats_.blocks_used;
  }
  if (observer && *observer) (*observer)(info);
  return ok_status();
}

// The request fails, its neighbours do not notice. What it holds may be no numbers: nobody is to find it.
void EngineImpl::give_up(const RequestState& r, const Status& cause) {
  Status why = cause;
  if (const auto& adapter = r.request.adapter)
    why = {cause.code(),
           cat("with the adapter '", adapter->name, "', whose numbers may be at fault: ", cause.message())};
  options_.log(LogLevel::kError, cat("request ", r.id, " ", r.request.id, ": ", why.message()));
  scheduler_->forget(r.id);
  scheduler_->cancel(r.id, FinishReason::kError, outcomes_);
  emit(why);
}

void EngineImpl::commit_step(Step& step, SampleResult& result) {
  for (size_t i = 0; i < step.prompt_rows.size(); ++i) {
    const Step::PromptRow& p = step.prompt_rows[i];
    Sequence* s = scheduler_->live(p.slot, p.token_version);
    if (s == nullptr) continue;
    SampleResult::PromptRow& told = result.prompt_rows[i];
    std::swap(s->request->prompt_logprobs[static_cast<size_t>(p.position) + 1], told.logprobs);
    if (!told.status.ok()) give_up(*s->request, told.status);
  }
  committed_.resize(step.samples.size());
  failed_.clear();
  for (size_t i = 0; i < step.samples.size(); ++i) {
    committed_[i] = result.tokens_of(i);
    const Status& status = result.chains[i].status;
    Sequence* s = scheduler_->live(step.samples[i].slot, step.samples[i].token_version);
    if (s == nullptr) continue;
    const auto drafts = step.drafts_of(step.samples[i]);
    const auto right =
        std::mismatch(committed_[i].begin(), committed_[i].end(), drafts.begin(), drafts.end());
    draft_pacer_.verified(s->chance, right.first - committed_[i].begin(),
                          static_cast<int64_t>(drafts.size()));
    if (!status.ok()) failed_.push_back({s->request->id, s->index, s->slot, &status});
  }
  scheduler_->commit(step, committed_, Clock::now(), outcomes_);
  for (const Failed& f : failed_) {  // behind the tokens that were drawn before
    Sequence& s = scheduler_->sequence(f.slot);
    if (s.request == nullptr || s.request->id != f.request || !s.request->open[static_cast<size_t>(f.index)])
      continue;  // ended by now, perhaps with another choice of its request
    // What the request asks for cannot be had by this choice; anything else is wrong for all of them.
    if (f.why->code() == StatusCode::kInvalidArgument) {
      s.error = *f.why;
      scheduler_->finish_choice(f.request, f.index, FinishReason::kError, outcomes_);
    } else {
      give_up(*s.request, *f.why);
    }
  }
}

// Delivers outcomes_ and frees what ended. `status` explains kError.
void EngineImpl::emit(const Status& status) {
  if (outcomes_.empty()) return;
  const Clock::time_point now = Clock::now();
  int64_t ended = 0;
  for (const Outcome& o : outcomes_) {
    if (o.finish == FinishReason::kNone) continue;
    ++finished_[static_cast<size_t>(o.finish)];
    ++ended;
  }
  if (ended > 0) {
    std::lock_guard lock(mutex_);
    const std::chrono::duration<double> since = now - std::exchange(last_end_, now);
    const double every = since.count() / static_cast<double>(ended);
    ends_every_ += (every - ends_every_) * (ends_every_ == 0 ? 1 : 0.1);
  }
  publish_stats();         // first: who has seen the last event finds it counted and its blocks free
  const EventRound round;  // readers are woken when it ends
  for (const Outcome& o : outcomes_) {
    RequestState& r = *o.request;
    if (r.request.sink == nullptr) {  // the warm-up
      if (o.finish == FinishReason::kError) warm_up_error_ = status;
      continue;
    }
    TokenEvent event;
    event.request = r.id;
    event.index = o.index;
    event.has_token = o.has_token;
    event.progress = o.computed >= 0;
    if (!event.progress) {
      event.prompt_logprobs = std::move(r.prompt_logprobs);
      r.prompt_logprobs.clear();
    }
    if (o.has_token) event.token = o.token;
    if ((o.has_token || o.stop_token >= 0) && r.request.sampling.logprobs >= 0) {
      const SampleResult::Chain& chain = result_->chains[static_cast<size_t>(o.sample)];
      Sampled& sampled = result_->draws[static_cast<size_t>(chain.first + o.draw)];
      event.logprob = sampled.logprob;
      event.top_logprobs = std::move(sampled.top_logprobs);
    }
    event.finish = o.finish;
    event.stop_token = o.stop_token;
    if (o.finish == FinishReason::kError) {
      const bool own = o.slot >= 0 && !scheduler_->sequence(o.slot).error.ok();
      event.status = own ? scheduler_->sequence(o.slot).error : status;
    }
    if (o.finish == FinishReason::kDeadline)
      event.status =
          Status(StatusCode::kDeadlineExceeded,
                 "deadline: it passed before the last token; ask for fewer tokens or allow more time");
    if (o.finish != FinishReason::kNone || event.progress || r.request.running_stats)
      event.stats = scheduler_->sequence_stats(o, now);
    r.request.sink->on_event(std::move(event));
  }
  outcomes_.clear();
  scheduler_->reclaim();
}

// A device fault: nothing in flight can be trusted, and nothing new is taken.
void EngineImpl::fail(const Status& why) {
  step_began_.store(0, std::memory_order_relaxed);
  flying_ = nullptr;
  if (state_.exchange(EngineHealth::kFailed, std::memory_order_acq_rel) != EngineHealth::kFailed) {
    options_.log(LogLevel::kError, cat("engine failed: ", why.to_string()));
    std::lock_guard lock(mutex_);
    failure_ = why;
  }
  emit();
  scheduler_->cancel_all(FinishReason::kError, outcomes_);
  emit(unavailable(cat("the engine has failed: ", failure_.message())));
  publish_stats();
}

void EngineImpl::publish_stats() {
  const SchedulerStats sched = scheduler_->stats();
  const BlockStats blocks = scheduler_->blocks().stats(0);
  std::lock_guard lock(mutex_);
  EngineStats& s = stats_;
  s.running = sched.running;
  s.waiting = sched.waiting;
  s.suspended = sched.suspended;
  s.blocks_total = blocks.total;
  s.blocks_used = blocks.used;
  s.blocks_cached = blocks.cached;
  s.page_tokens = runner_->limits().page_tokens;
  s.steps = steps_;
  s.prompt_tokens = sched.prompt_tokens;
  s.generation_tokens = sched.generation_tokens;
  s.preemptions = sched.preemptions;
  s.accepted_drafts = sched.accepted_drafts;
  s.rejected_drafts = sched.rejected_drafts;
  s.verified_drafts = sched.verified_drafts;
  s.accepted_at = sched.accepted_at;
  s.prefix_queries = sched.prefix_queries;
  s.prefix_hits = sched.prefix_hits;
  std::copy(std::begin(finished_), std::end(finished_), std::begin(s.finished));
  s.step_seconds = step_seconds_;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<ModelRunner> runner, EngineOptions options,
                                               std::unique_ptr<HostRunner> draft) {
  if (runner == nullptr) return invalid_argument("runner: missing");
  const RunnerLimits& have = runner->limits();
  if (have.vocab_size < 1)
    return Status(StatusCode::kFailedPrecondition, "the runner reports an empty vocabulary");
  const auto fit = [](const char* name, int64_t asked, int64_t limit, int64_t& out) -> Status {
    if (asked < 0 || asked > limit)
      return invalid_argument(
          cat(name, ": must be between 1 and the model's ", limit, " (0 means that), got ", asked), name);
    out = asked == 0 ? limit : asked;
    return ok_status();
  };
  SchedulerOptions s;
  OAR_RETURN_IF_ERROR(fit("max_context", options.max_context, have.max_context, s.max_context));
  OAR_RETURN_IF_ERROR(
      fit("max_batch_tokens", options.max_batch_tokens, have.max_batch_tokens, s.max_batch_tokens));
  OAR_RETURN_IF_ERROR(fit("max_sequences", options.max_sequences, have.max_sequences, s.max_sequences));
  s.max_sequences = std::min(s.max_sequences, s.max_batch_tokens);  // each running sequence needs a row
  s.max_logit_rows = std::max(s.max_sequences, std::min(have.max_logit_rows, s.max_batch_tokens));
  s.depth = have.depth;
  for (int32_t token : options.eos_token_ids)
    if (token < 0 || token >= have.vocab_size)
      return invalid_argument(
          cat("eos_token_ids: ", token, " is outside the vocabulary [0, ", have.vocab_size, ")"),
          "eos_token_ids");
  const SpeculativeOptions& spec = options.speculative;
  if (spec.enabled() && (spec.max_tokens < 1 || spec.lookup_min < 1 || spec.lookup_max < spec.lookup_min))
    return invalid_argument(
        cat("speculative: num_speculative_tokens ", spec.max_tokens, ", prompt_lookup_min ", spec.lookup_min,
            ", prompt_lookup_max ", spec.lookup_max, ": need at least 1, and no maximum below its minimum"),
        "speculative");
  s.vocab_size = have.vocab_size;
  s.page_tokens = have.page_tokens;
  s.groups = have.groups;
  s.phases = have.phases;
  s.mixed_prefix = options.mixed_prefix;
  if (options.mixed_prefix && !(have.phases && options.prefix_cache))
    return invalid_argument(have.phases
                                ? "mixed_prefix: there is no prefix cache to mix; leave out one of the two"
                                : "mixed_prefix: prompts and generated tokens are computed alike here, so "
                                  "that prompts take pages "
                                  "of both anyway; leave it out",
                            "mixed_prefix");
  if (options.mixed_prefix)
    options.log(
        LogLevel::kInfo,
        "prompts take pages of generated tokens too: their bits depend on what the prefix cache holds");
  if (draft != nullptr) {
    const RunnerLimits& has = draft->limits();
    if (has.page_tokens != have.page_tokens || has.max_context < s.max_context ||
        has.max_sequences < s.max_sequences || has.max_batch_tokens < has.max_sequences)
      return Status(StatusCode::kFailedPrecondition,
                    cat("the draft model holds ", has.max_sequences, " sequences of ", has.max_context,
                        " tokens in pages of ", has.page_tokens, "; the model ", s.max_sequences, " of ",
                        s.max_context, " in pages of ", have.page_tokens),
                    "draft_model");
    // Of recurrent layers, whose rows of a step run in one pass (DraftModel::rows_of()).
    if (has.max_batch_tokens < s.max_batch_tokens && has.has_states())
      return Status(StatusCode::kFailedPrecondition,
                    cat("the draft model takes ", has.max_batch_tokens, " tokens in a step; the model ",
                        s.max_batch_tokens),
                    "draft_model");
    s.groups.insert(s.groups.end(), has.groups.begin(), has.groups.end());
    s.draft_groups = static_cast<int32_t>(has.groups.size());
  }
  s.eos_token_ids = options.eos_token_ids;
  s.prefix_cache = options.prefix_cache;
  s.snapshot_tokens = options.snapshot_tokens;
  s.hash_seed = static_cast<uint64_t>(nanoseconds(Clock::now()));
  OAR_ASSIGN(auto scheduler, Scheduler::create(s));
  RequestLimits limits;
  limits.vocab_size = have.vocab_size;
  limits.max_context = s.max_context;
  limits.host_draws = !have.device_draws;
  if (options.max_logprobs < 0 || options.max_logprobs > have.vocab_size)
    limits.max_logprobs = static_cast<int32_t>(have.vocab_size);
  else limits.max_logprobs = options.max_logprobs;
  if (have.device_draws && limits.max_logprobs > EngineOptions().max_logprobs)
    return invalid_argument(cat("max_logprobs: the device draws tokens and tells at most ",
                                EngineOptions().max_logprobs, " alternatives, got ", options.max_logprobs),
                            "max_logprobs");
  return std::unique_ptr<Engine>(
      new EngineImpl(std::move(runner), std::move(scheduler), options, limits, std::move(draft)));
}

}  // namespace oar
