#include "engine/capi/generation.h"

#include <thread>

#include "engine/base/format.h"
#include "engine/capi/model.h"

namespace oar::capi {
namespace {

constexpr int64_t kForever = int64_t{1} << 40;  // milliseconds: 34 years, and no overflow in nanoseconds

Clock::time_point after(int64_t timeout_ms) {
  const int64_t bounded = timeout_ms < 0 || timeout_ms > kForever ? kForever : timeout_ms;
  return Clock::now() + std::chrono::milliseconds(bounded);
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return from == Clock::time_point() || to < from ? 0 : std::chrono::duration<double>(to - from).count();
}

}  // namespace

void EventStorage::fill(TextEvent&& from, bool with_logprobs) {
  text = std::move(from);
  tokens.clear();
  logprobs.clear();
  for (const TextEvent::Token& t : text.tokens) {
    tokens.push_back(t.id);
    logprobs.push_back(t.logprob);
  }
  calls.clear();
  for (const ToolCallDelta& c : text.calls)
    calls.push_back({c.index, 0, c.id.c_str(), c.name.c_str(), c.arguments.c_str()});
  event = {};
  event.struct_size = sizeof event;
  event.index = text.index;
  event.text = text.text.c_str();
  event.text_length = text.text.size();
  event.tokens = tokens.data();
  event.logprobs = with_logprobs ? logprobs.data() : nullptr;
  event.token_count = tokens.size();
  event.reasoning = text.reasoning.c_str();
  event.reasoning_length = text.reasoning.size();
  event.tool_calls = calls.data();
  event.tool_call_count = calls.size();
  event.finish = text.finish == FinishReason::kStop && text.call_count > 0
                     ? OAR_FINISH_TOOL_CALLS
                     : static_cast<oar_finish>(text.finish);
  event.status = static_cast<oar_status>(text.status.code());
  event.message = text.status.message().c_str();
  const SequenceStats& s = text.stats;
  event.prompt_tokens = s.prompt_tokens;
  event.cached_tokens = s.cached_tokens;
  event.completion_tokens = s.completion_tokens;
  event.accepted_prediction_tokens = s.accepted_drafts;
  event.rejected_prediction_tokens = s.rejected_drafts;
  event.seconds_to_first_token = seconds_between(s.submitted, s.first_token);
  event.seconds = seconds_between(s.submitted, s.finished);
}

Result<std::shared_ptr<Generation>> Generation::start(const std::shared_ptr<Model>& model,
                                                      GenerationSpec spec) {
  std::shared_ptr<Generation> g(new Generation());
  g->callback_ = spec.callback;
  g->user_ = spec.user;
  g->choices_ = spec.request.n;
  g->logprobs_ = spec.request.sampling.logprobs >= 0;
  // The engine checks n later; a stream has to be made for a number of choices that makes sense.
  const int32_t max_n = model->language_model().engine().request_limits().max_n;
  if (g->choices_ < 1 || g->choices_ > max_n)
    return invalid_argument(cat("n: must be between 1 and ", max_n, ", got ", g->choices_), "n");
  g->finished_.assign(static_cast<size_t>(g->choices_), false);
  // Weak: the stream belongs to the generation, and the engine keeps the stream as its sink.
  std::weak_ptr<Generation> self = g;
  std::function<void()> notify;
  if (spec.callback != nullptr) {
    notify = [self, delivery = model->delivery()] { delivery->post(self); };
  } else {
    notify = [self] {
      if (const auto g = self.lock()) g->signal();
    };
  }
  if (spec.callback != nullptr) OAR_RETURN_IF_ERROR(model->delivery()->start());
  std::lock_guard lock(g->mutex_);
  {
    std::lock_guard source(g->source_mutex_);
    g->stream_ = TextStream::create(model->language_model().tokenizer(), std::move(spec.text), g->choices_,
                                    std::move(notify));
    g->model_ = model;
  }
  model->add(g);
  if (Status status = g->stream_->start(model->language_model().engine(), std::move(spec.request));
      !status.ok()) {
    g->let_go();
    g->finished_.assign(g->finished_.size(), true);
    return status;
  }
  return g;
}

std::optional<TextEvent> Generation::take() {
  std::optional<TextEvent> event;
  if (stream_ != nullptr) {
    event = stream_->next(std::chrono::milliseconds(0));
  } else if (!left_.empty()) {
    event = std::move(left_.front());
    left_.pop_front();
  }
  if (event && event->finish != FinishReason::kNone) finished_[static_cast<size_t>(event->index)] = true;
  return event;
}

bool Generation::ended() const {
  for (const bool f : finished_)
    if (!f) return false;
  return true;
}

void Generation::signal() {
  {
    std::lock_guard lock(signal_mutex_);
    ++signals_;
  }
  changed_.notify_all();
}

Result<std::optional<TextEvent>> Generation::next(int64_t timeout_ms) {
  const Clock::time_point until = after(timeout_ms);
  while (true) {
    uint64_t seen = 0;
    {
      std::lock_guard lock(signal_mutex_);
      seen = signals_;
    }
    std::optional<TextEvent> event;
    bool last = false;
    {
      std::lock_guard lock(mutex_);
      event = take();
      last = ended();
    }
    if (event || last) {
      // The stream speaks up when its queue turns non-empty; whoever else is waiting looks for himself.
      signal();
      return event;
    }
    std::unique_lock lock(signal_mutex_);
    if (!changed_.wait_until(lock, until, [&] { return signals_ != seen; }))
      return Status(StatusCode::kDeadlineExceeded, cat("no event within ", timeout_ms, " ms; call again"),
                    "timeout_ms");
  }
}

Status Generation::wait(int64_t timeout_ms) {
  std::unique_lock lock(signal_mutex_);
  if (changed_.wait_until(lock, after(timeout_ms), [&] { return delivered_ || silent_; })) return ok_status();
  return {StatusCode::kDeadlineExceeded,
          cat("the generation has not ended within ", timeout_ms, " ms; wait again"), "timeout_ms"};
}

void Generation::cancel() {
  std::shared_ptr<Model> model;  // keeps the engine while the stream speaks to it
  std::shared_ptr<TextStream> stream;
  {
    std::lock_guard lock(source_mutex_);
    model = model_;
    stream = stream_;
  }
  if (stream != nullptr) stream->cancel();
}

std::shared_ptr<Model> Generation::let_go() {
  std::lock_guard lock(source_mutex_);
  stream_ = nullptr;
  return std::move(model_);
}

void Generation::close() {
  silent_ = true;
  cancel();
  if (calling_.load() != std::this_thread::get_id()) {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    // Two callbacks that close each other's generation must not wait for each other.
    if (!Delivery::in_callback()) lock.lock();
    else if (!lock.try_lock()) return signal();
    const std::shared_ptr<Model> model = let_go();
    left_.clear();
    finished_.assign(finished_.size(), true);
    lock.unlock();
  }
  signal();
}

void Generation::call_back(TextEvent&& event) {
  storage_.fill(std::move(event), logprobs_);
  bool go_on = false;
  calling_ = std::this_thread::get_id();
  try {
    go_on = callback_(&storage_.event, user_) == 0;
  } catch (const std::exception&) {
    // A C++ caller let an exception out: it cannot pass through here, so the generation ends.
  }
  calling_ = std::thread::id();
  if (!go_on) cancel();
}

void Generation::deliver() {
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    while (!silent_) {
      auto event = take();
      if (!event) break;
      call_back(std::move(*event));
    }
    last = ended() || silent_;
  }
  if (!last) return;
  {
    std::lock_guard lock(signal_mutex_);
    delivered_ = true;
  }
  changed_.notify_all();
}

void Generation::detach() {
  std::shared_ptr<Model> model;
  {
    std::lock_guard lock(mutex_);
    if (stream_ == nullptr) return;
    std::vector<bool> told = finished_;
    while (auto event = stream_->next(std::chrono::milliseconds(0))) {
      if (event->finish != FinishReason::kNone) told[static_cast<size_t>(event->index)] = true;
      left_.push_back(std::move(*event));
    }
    for (size_t i = 0; i < told.size(); ++i) {  // the engine did not come round to it in time
      if (told[i]) continue;
      TextEvent& end = left_.emplace_back();
      end.index = static_cast<int32_t>(i);
      end.finish = FinishReason::kCancelled;
    }
    model = let_go();
  }
  if (callback_ != nullptr) deliver();
  signal();
}

}  // namespace oar::capi
