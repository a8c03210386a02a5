#include "tests/server/fake_engine.h"

#include <algorithm>

namespace oar_test {

using oar::Clock;
using oar::FinishReason;

FakeEngine::FakeEngine(FakeEngineOptions options) : options_(std::move(options)) {
  limits_.vocab_size = options_.vocab_size;
  limits_.max_context = options_.max_context;
  limits_.max_logprobs = options_.max_logprobs;
  stats_ = options_.stats;
  stats_.blocks_total = 1024;
  stats_.page_tokens = 16;
  thread_ = std::thread([this] { run(); });
}

FakeEngine::~FakeEngine() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

oar::Status FakeEngine::check_room() const {
  if (health_ == oar::EngineHealth::kFailed) return oar::unavailable("the engine has failed");
  std::lock_guard lock(mutex_);
  if (waiting_.size() < options_.max_waiting) return oar::ok_status();
  return oar::resource_exhausted("the queue is full").with_retry_after(2.5);
}

oar::Result<uint64_t> FakeEngine::submit(oar::Request request) {
  OAR_RETURN_IF_ERROR(check_room());
  OAR_RETURN_IF_ERROR(oar::validate_request(request, limits_));
  std::lock_guard lock(mutex_);
  ++submitted_;
  last_ = request;
  const uint64_t id = next_id_++;
  Sequence s;
  s.choices = std::vector<Choice>(static_cast<size_t>(request.n));
  s.stats.submitted = Clock::now();
  s.stats.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  s.request = std::move(request);
  waiting_.emplace(id, std::move(s));
  wake_.notify_all();
  return id;
}

void FakeEngine::cancel(uint64_t id) {
  std::lock_guard lock(mutex_);
  for (auto* queue : {&running_, &waiting_}) {
    if (const auto it = queue->find(id); it != queue->end()) {
      for (Choice& c : it->second.choices) c.asked = FinishReason::kCancelled;
    }
  }
  wake_.notify_all();
}

void FakeEngine::finish_choice(uint64_t id, int32_t index, FinishReason reason) {
  std::lock_guard lock(mutex_);
  for (auto* queue : {&running_, &waiting_}) {
    if (const auto it = queue->find(id); it != queue->end()) {
      it->second.choices[static_cast<size_t>(index)].asked = reason;
    }
  }
}

void FakeEngine::set_suspended(uint64_t id, bool suspended) {
  std::lock_guard lock(mutex_);
  for (auto* queue : {&running_, &waiting_})
    if (const auto it = queue->find(id); it != queue->end()) it->second.suspended = suspended;
}

oar::EngineStats FakeEngine::stats() const {
  std::lock_guard lock(mutex_);
  oar::EngineStats s = stats_;
  s.health = health_;
  for (const auto& [id, sequence] : running_) ++(sequence.suspended ? s.suspended : s.running);
  s.waiting = static_cast<int64_t>(waiting_.size());
  for (const auto& [id, sequence] : running_) {
    const int64_t tokens =
        static_cast<int64_t>(sequence.request.prompt.size()) + sequence.choices[0].produced;
    s.blocks_used += (tokens + s.page_tokens - 1) / s.page_tokens;
  }
  return s;
}

void FakeEngine::on_step(std::function<void(const oar::StepInfo&)> observer) {
  std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

bool FakeEngine::drain(std::chrono::milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  while (Clock::now() < end) {
    const oar::EngineStats s = stats();
    if (s.running + s.waiting + s.suspended == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

bool FakeEngine::wait_idle() const {
  for (int i = 0; i < 5000; ++i) {
    const oar::EngineStats s = stats();
    if (s.running + s.waiting + s.suspended == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void FakeEngine::fail_next(oar::Status status) {
  std::lock_guard lock(mutex_);
  failure_ = std::move(status);
}

oar::Request FakeEngine::last_request() const {
  std::lock_guard lock(mutex_);
  return last_;
}

void FakeEngine::run() {
  for (;;) {
    Events events;
    std::function<void(const oar::StepInfo&)> observer;
    oar::StepInfo info;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::milliseconds(5),
                     [this] { return stop_ || !running_.empty() || !waiting_.empty(); });
      if (stop_) return;
      info.sequences = static_cast<int64_t>(running_.size());
      info.times.since = info.times.began = Clock::now();
      const uint64_t before = stats_.generation_tokens;
      step(events);
      info.running = static_cast<int64_t>(running_.size());
      info.waiting = static_cast<int64_t>(waiting_.size());
      info.number = stats_.steps;
      info.tokens = info.generated_tokens = static_cast<int64_t>(stats_.generation_tokens - before);
      observer = observer_;
    }
    for (auto& [sink, event] : events) sink->on_event(std::move(event));
    info.seconds = 1e-6 * static_cast<double>(options_.step.count());
    oar::StepTimes& t = info.times;
    t.planned = t.submitted = t.sampling = t.sampled = t.collecting = t.ended = Clock::now();
    if (observer && info.sequences > 0) observer(info);
    std::this_thread::sleep_for(options_.step);
  }
}

void FakeEngine::step(Events& events) {
  const auto active = std::count_if(running_.begin(), running_.end(),
                                    [](const auto& entry) { return !entry.second.suspended; });
  for (size_t room = options_.max_running - std::min(options_.max_running, static_cast<size_t>(active));
       room > 0 && !waiting_.empty() && !paused_; --room) {
    auto node = waiting_.extract(waiting_.begin());
    node.mapped().stats.scheduled = Clock::now();
    tell_progress(node.key(), node.mapped(), events);
    stats_.prompt_tokens += node.mapped().request.prompt.size();
    running_.insert(std::move(node));
  }
  if (!running_.empty()) ++stats_.steps;
  for (auto* queue : {&running_, &waiting_}) {
    for (auto it = queue->begin(); it != queue->end();) {
      advance(it->first, it->second, events);
      bool open = false;
      for (const Choice& c : it->second.choices) open |= !c.finished;
      it = open ? std::next(it) : queue->erase(it);
    }
  }
  if (!running_.empty()) failure_.reset();
}

// What the reply has next. Under a constraint what it does not allow is left out, and where the reply has
// nothing that is allowed the first allowed token takes its place.
int32_t FakeEngine::next_token(const Sequence& s, Choice& c) const {
  const std::string& reply = options_.reply;
  if (s.request.constraint && !c.cursor) c.cursor = s.request.constraint->start();
  if (!c.cursor) return static_cast<unsigned char>(reply[c.position++ % reply.size()]);
  for (size_t i = c.position; i < reply.size(); ++i) {
    const int32_t token = static_cast<unsigned char>(reply[i]);
    if (!c.cursor->advance(token)) continue;
    c.position = i + 1;
    return token;
  }
  std::vector<uint32_t> bits(static_cast<size_t>(options_.vocab_size + 31) / 32);
  c.cursor->mask(bits);
  int32_t token = 0;
  while (!(bits[static_cast<size_t>(token / 32)] >> (token % 32) & 1)) ++token;
  c.cursor->advance(token);
  return token;
}

void FakeEngine::advance(uint64_t id, Sequence& s, Events& events) {
  const bool waiting = s.stats.scheduled == Clock::time_point{};
  for (size_t i = 0; i < s.choices.size(); ++i) {
    Choice& c = s.choices[i];
    if (c.finished) continue;
    if (c.asked != FinishReason::kNone) {
      finish(id, s, i, c.asked, -1, {}, events);
    } else if (s.request.deadline && Clock::now() > *s.request.deadline) {
      finish(id, s, i, FinishReason::kDeadline, -1,
             oar::Status(oar::StatusCode::kDeadlineExceeded, "the deadline has passed"), events);
    } else if (waiting || paused_ || s.suspended) {
      continue;
    } else if (failure_) {
      finish(id, s, i, FinishReason::kError, -1, *failure_, events);
    } else if (c.produced >= s.request.stop.max_tokens ||
               s.stats.prompt_tokens + c.produced >= options_.max_context) {
      finish(id, s, i, FinishReason::kLength, -1, {}, events);
    } else if (c.cursor ? c.cursor->must_end() || (c.position == options_.reply.size() && c.cursor->may_end())
                        : c.position == options_.reply.size() && !s.request.stop.ignore_eos) {
      ++c.produced;
      finish(id, s, i, FinishReason::kStop, options_.eos, {}, events);
    } else {
      const int32_t token = next_token(s, c);
      ++c.produced;
      ++stats_.generation_tokens;
      if (s.stats.first_token == Clock::time_point{}) s.stats.first_token = Clock::now();
      events.emplace_back(s.request.sink, token_event(id, s, i, token));
    }
  }
}

// The prompt in two pieces.
void FakeEngine::tell_progress(uint64_t id, Sequence& s, Events& events) {
  const int64_t size = s.stats.prompt_tokens;
  for (const int64_t computed : {int64_t{0}, size / 2, size}) {
    s.stats.computed_tokens = computed;
    if (!s.request.prompt_progress) continue;
    oar::TokenEvent e;
    e.request = id;
    e.progress = true;
    e.stats = s.stats;
    e.stats.finished = Clock::now();
    events.emplace_back(s.request.sink, std::move(e));
  }
}

namespace {

// Made up, but different for every token, so that a test can tell whose is whose.
float logprob(int32_t token) { return -0.01f * static_cast<float>(token + 1); }

void tell_logprobs(const oar::SamplingParams& sampling, int32_t token, oar::TokenEvent& e) {
  if (sampling.logprobs < 0) return;
  e.logprob = logprob(token);
  for (int32_t k = 0; k < sampling.logprobs; ++k) e.top_logprobs.push_back({k, logprob(k)});
  for (const int32_t asked : sampling.logprob_tokens) e.top_logprobs.push_back({asked, logprob(asked)});
}

}  // namespace

oar::TokenEvent FakeEngine::token_event(uint64_t id, Sequence& s, size_t index, int32_t token) {
  oar::TokenEvent e;
  e.request = id;
  e.index = static_cast<int32_t>(index);
  e.has_token = true;
  e.token = token;
  const oar::SamplingParams& sampling = s.request.sampling;
  tell_logprobs(sampling, token, e);
  if (sampling.prompt_logprobs >= 0 && index == 0 && s.choices[0].first_event) {
    for (size_t p = 0; p < s.request.prompt.size(); ++p) {
      e.prompt_logprobs.emplace_back();
      if (p > 0) e.prompt_logprobs.back().push_back({s.request.prompt[p], logprob(s.request.prompt[p])});
    }
  }
  s.choices[index].first_event = false;
  if (s.request.running_stats) {
    e.stats = s.stats;
    e.stats.completion_tokens = s.choices[index].produced;
    e.stats.finished = Clock::now();
  }
  return e;
}

void FakeEngine::finish(uint64_t id, Sequence& s, size_t index, FinishReason reason, int32_t stop_token,
                        oar::Status status, Events& events) {
  Choice& c = s.choices[index];
  c.finished = true;
  ++stats_.finished[static_cast<size_t>(reason)];
  oar::TokenEvent e;
  e.request = id;
  e.index = static_cast<int32_t>(index);
  e.finish = reason;
  e.stop_token = stop_token;
  if (stop_token >= 0) tell_logprobs(s.request.sampling, stop_token, e);
  e.status = std::move(status);
  e.stats = s.stats;
  e.stats.completion_tokens = c.produced;
  e.stats.finished = Clock::now();
  events.emplace_back(s.request.sink, std::move(e));
}

}  // namespace oar_test
