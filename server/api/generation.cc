#include "server/api/generation.h"

#include <algorithm>
#include <utility>

namespace oar::api {
namespace {

constexpr int kEventsPerTurn = 64;  // some ten microseconds of decoding and framing, far below a write budget

// A choice that has ended, into what its prompt's choices are together.
void add(const TextEvent& event, PromptOutcome& all) {
  const SequenceStats& s = event.stats;
  const auto earlier = [](Clock::time_point a, Clock::time_point b) {
    return a == Clock::time_point{} ? b : b == Clock::time_point{} ? a : std::min(a, b);
  };
  all.stats.prompt_tokens = s.prompt_tokens;
  all.stats.cached_tokens = std::max(all.stats.cached_tokens, s.cached_tokens);
  all.stats.completion_tokens += s.completion_tokens;
  all.stats.accepted_drafts += s.accepted_drafts;
  all.stats.rejected_drafts += s.rejected_drafts;
  all.stats.preemptions += s.preemptions;
  all.stats.submitted = earlier(all.stats.submitted, s.submitted);
  all.stats.scheduled = earlier(all.stats.scheduled, s.scheduled);
  all.stats.first_token = earlier(all.stats.first_token, s.first_token);
  all.stats.finished = std::max(all.stats.finished, s.finished);
  const bool failed = event.finish != FinishReason::kStop && event.finish != FinishReason::kLength;
  if (failed || all.finish == FinishReason::kNone) all.finish = event.finish;
}

}  // namespace

Result<std::shared_ptr<Generation>> Generation::start(GenerationSpec spec, Executor executor,
                                                      OnEvent on_event, Ready ready) {
  std::shared_ptr<Generation> g(
      new Generation(std::move(spec), std::move(executor), std::move(on_event), std::move(ready)));
  if (g->spec_.running) g->spec_.running->add(g);
  if (const Status s = g->submit(); !s.ok()) {
    g->open_choices_ = 0;                                     // nobody hears of them
    for (const auto& stream : g->streams_) stream->cancel();  // of prompts before the one that was refused
    g->tell_refused(s.code());
    return s;
  }
  return g;
}

void Generation::refuse(GenerationSpec spec, StatusCode why) {
  spec.running = nullptr;
  spec.log = nullptr;
  Generation g(std::move(spec), {}, {}, {});
  g.submitted_ = Clock::now();
  g.tell_refused(why);
}

void Generation::tell_refused(StatusCode why) const {
  if (const auto& observer = spec_.model->observer) observer->on_refused(spec_, why);
  write_log(why);
}

Generation::~Generation() {
  if (spec_.running) spec_.running->remove(this);
  if (open_choices_ == 0) return;
  for (const auto& stream : streams_) stream->cancel();
}

Status Generation::submit() {
  const size_t count = spec_.prompts.size();
  const std::weak_ptr<Generation> weak = weak_from_this();
  last_token_.resize(static_cast<size_t>(choices()));
  progress_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    progress_[i].open = spec_.request.n;
    progress_[i].outcome.prompt = i;
  }
  open_choices_ = choices();
  submitted_ = Clock::now();
  if (spec_.admission) {
    for (const std::vector<int32_t>& prompt : spec_.prompts) spec_.admission->charge(std::ssize(prompt));
  }
  // Events wait until everything is submitted: a refusal of the last prompt must not follow output of the
  // first.
  wakeups_ = 1;
  for (size_t i = 0; i < count; ++i) {
    Request request;
    const GenerationRequest& asked = spec_.request;
    request.id = asked.id;
    request.prompt = spec_.prompts[i];
    request.sampling = asked.sampling;
    request.sampling.logprobs = asked.logprobs.value_or(-1);
    request.sampling.prompt_logprobs = asked.prompt_logprobs.value_or(-1);
    request.prompt_progress = asked.progress;
    request.running_stats = asked.timings && asked.streaming.stream;
    request.stop = asked.stop;
    request.n = asked.n;
    request.deadline = asked.deadline;
    request.cache_salt = asked.cache_salt;
    request.adapter = spec_.model->adapter;
    request.caller = asked.caller;
    request.weight = asked.weight;
    request.priority = asked.priority;
    request.constraint = asked.compiled;
    if (asked.compiled != nullptr) request.constraint_field = asked.compiled_field;
    TextStreamOptions text = asked.text;
    if (ready_) text.max_unread = kUnreadTokens * static_cast<size_t>(asked.n);
    auto stream = TextStream::create(spec_.model->tokenizer, std::move(text), asked.n, [weak] {
      if (const auto self = weak.lock()) self->wake();
    });
    OAR_RETURN_IF_ERROR(stream->start(*spec_.model->engine, std::move(request)));
    streams_.push_back(std::move(stream));
  }
  executor_([self = shared_from_this()] { self->deliver(); });
  return ok_status();
}

void Generation::cancel(const Status& why) {
  if (!why.ok()) {
    const std::lock_guard lock(why_mutex_);
    if (why_.ok()) why_ = why;
  }
  if (spec_.running) {
    spec_.running->keep(shared_from_this());
    if (done()) spec_.running->let_go(this);
  }
  for (const auto& stream : streams_) stream->cancel();
  cancelled_ = true;
  wake();  // whatever the consumer has not taken must not wait any longer
}

void Generation::wake() {
  if (wakeups_.fetch_add(1) == 0) {
    executor_([self = shared_from_this()] { self->deliver(); });
  }
}

// At most one deliver() is queued or running at any time: it ends when no wake-up came in while it looked. It
// also ends after a number of events and queues itself again, for a connection's thread has other work
// (noticing that this client does not read, for one) even when the engine is faster than the reader.
void Generation::deliver() {
  int budget = kEventsPerTurn;
  uint32_t seen;
  do {
    seen = wakeups_;
    for (size_t i = 0; i < streams_.size(); ++i) {
      while (budget > 0 && (cancelled_ || !ready_ || ready_())) {
        auto event = streams_[i]->next(std::chrono::milliseconds(0));
        if (!event) break;
        --budget;
        if (event->finish == FinishReason::kCancelled && event->status.ok()) {
          const std::lock_guard lock(why_mutex_);
          event->status = why_;
        }
        const int32_t choice = static_cast<int32_t>(i) * spec_.request.n + event->index;
        observe(i, choice, *event);
        if (event->finish != FinishReason::kNone) --open_choices_;
        on_event_(*this, choice, std::move(*event));
      }
    }
    if (budget == 0 && open_choices_ > 0) {
      return executor_([self = shared_from_this()] { self->deliver(); });
    }
  } while (!wakeups_.compare_exchange_strong(seen, 0));
  if (open_choices_ > 0) return;
  on_event_ = nullptr;
  ready_ = nullptr;
  if (spec_.running) spec_.running->let_go(this);
}

void Generation::observe(size_t prompt, int32_t choice, const TextEvent& event) {
  GenerationObserver* observer = spec_.model->observer.get();
  if (!observer && !spec_.log && !spec_.admission) return;
  Progress& progress = progress_[prompt];
  if (!event.tokens.empty()) {
    const Clock::time_point now = Clock::now();
    Clock::time_point& last = last_token_[static_cast<size_t>(choice)];
    const bool first = !std::exchange(progress.began, true);
    if (observer && first) {
      observer->on_first_token(std::chrono::duration<double>(now - submitted_).count());
    } else if (observer && last != Clock::time_point{}) {
      observer->on_next_tokens(std::chrono::duration<double>(now - last).count(), event.tokens.size());
    }
    last = now;
  }
  if (event.finish == FinishReason::kNone) return;
  add(event, progress.outcome);
  if (failure_.ok()) failure_ = failure_of(event);
  if (event.stats.completion_tokens > 1 && event.stats.first_token < event.stats.finished) {
    const std::chrono::duration<double> decode = event.stats.finished - event.stats.first_token;
    progress.outcome.seconds_per_token +=
        decode.count() / static_cast<double>(event.stats.completion_tokens - 1);
    ++progress.timed;
  }
  if (--progress.open > 0) return;
  if (progress.timed > 0) progress.outcome.seconds_per_token /= progress.timed;
  if (observer) observer->on_finish(progress.outcome, spec_);
  if (spec_.admission) spec_.admission->charge(progress.outcome.stats.completion_tokens);
  if (spec_.log && open_choices_ == 1) write_log(StatusCode::kOk);  // this was the last one
}

void Generation::write_log(StatusCode refused) const {
  if (!spec_.log) return;
  RequestLine line;
  line.id = spec_.request.id, line.model = spec_.model->name;
  if (spec_.admission) line.key = spec_.admission->key_name();
  line.prompts = spec_.prompts.size(), line.choices = choices();
  const auto since = [&](Clock::time_point t) {
    return std::chrono::duration<double>(t - submitted_).count();
  };
  const auto earliest = [](double& least, double t) { least = least == 0 ? t : std::min(least, t); };
  FinishReason finish = FinishReason::kNone;
  for (size_t i = 0; i < progress_.size(); ++i) {
    const PromptOutcome& o = progress_[i].outcome;
    // A prompt that never ran has no count of its own.
    line.prompt_tokens += static_cast<int64_t>(spec_.prompts[i].size());
    line.cached_tokens += o.stats.cached_tokens;
    line.completion_tokens += o.stats.completion_tokens;
    line.preemptions += o.stats.preemptions;
    if (o.stats.scheduled != Clock::time_point{}) earliest(line.queued, since(o.stats.scheduled));
    if (o.stats.first_token != Clock::time_point{}) earliest(line.first_token, since(o.stats.first_token));
    const bool failed = o.finish != FinishReason::kStop && o.finish != FinishReason::kLength;
    if (failed || finish == FinishReason::kNone) finish = o.finish;
  }
  line.total = since(Clock::now());
  line.status = refused != StatusCode::kOk ? refused : failure_.code();
  line.finish = refused != StatusCode::kOk ? "refused" : finish_reason_name(finish);
  spec_.log->write(line);
}

Status caller_left() { return {StatusCode::kCancelled, "the caller left before the answer was complete"}; }

Status failure_of(const TextEvent& event) {
  switch (event.finish) {
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kLength: return ok_status();
    case FinishReason::kCancelled:
      return event.status.ok() ? Status(StatusCode::kUnavailable, "the request was cancelled by the server")
                               : event.status;
    case FinishReason::kDeadline:
      return {StatusCode::kDeadlineExceeded,
              event.status.ok() ? "the request's deadline passed before its answer was complete"
                                : event.status.message()};
    case FinishReason::kError: break;
  }
  return event.status.ok() ? internal_error("generation failed") : event.status;
}

}  // namespace oar::api
