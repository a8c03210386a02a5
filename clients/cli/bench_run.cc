#include "clients/cli/bench_run.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace oar::cli {
namespace {

// When the tokens of all streams arrived.
class Arrivals {
 public:
  // wanted: of each stream once all have started.
  Arrivals(int64_t streams, int64_t wanted)
      : times_(static_cast<size_t>(streams)), late_(times_.size()), wanted_(wanted) {}

  void token(size_t stream, Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    if (times_[stream].empty() && ++started_ == times_.size()) all_started_ = now;
    times_[stream].push_back(now);
    if (started_ == times_.size() && ++late_[stream] == wanted_ && ++satisfied_ == times_.size()) {
      changed_.notify_one();
    }
  }
  void ended(Status status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    ++ended_;
    changed_.notify_one();
  }

  // Until every stream has what is wanted, or the streams come to nothing more.
  void wait_satisfied() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [this] { return satisfied_ == times_.size() || ended_ == times_.size() || !status_.ok(); });
    enough_ = true;
  }
  Status wait_ended() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ == times_.size(); });
    return status_;
  }
  // Whether streams may be cancelled by now.
  bool enough() {
    const std::lock_guard lock(mutex_);
    return enough_;
  }
  // Once all have ended.
  const std::vector<std::vector<Clock::time_point>>& times() const { return times_; }
  Clock::time_point all_started() const { return all_started_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<Clock::time_point>> times_;
  std::vector<int64_t> late_;  // tokens of each since all have started
  int64_t wanted_;
  size_t started_ = 0, satisfied_ = 0, ended_ = 0;
  Clock::time_point all_started_;
  bool enough_ = false;
  Status status_;
};

class ClockSink final : public TokenSink {
 public:
  ClockSink(std::shared_ptr<Arrivals> arrivals, size_t stream)
      : arrivals_(std::move(arrivals)), stream_(stream) {}
  void on_event(TokenEvent&& event) noexcept override {
    if (event.has_token) arrivals_->token(stream_, Clock::now());
    if (event.finish == FinishReason::kNone) return;
    const bool expected = event.finish == FinishReason::kLength ||
                          (event.finish == FinishReason::kCancelled && arrivals_->enough());
    if (!expected && event.status.ok()) event.status = internal_error("a stream ended before its last token");
    arrivals_->ended(std::move(event.status));
  }

 private:
  std::shared_ptr<Arrivals> arrivals_;
  size_t stream_;
};

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::vector<int32_t> random_prompt(int64_t tokens, int64_t vocab, uint64_t& state) {
  std::vector<int32_t> out(static_cast<size_t>(tokens));
  for (int32_t& id : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab));
  }
  return out;
}

}  // namespace

Result<Timing> run_load(Engine& engine, const Load& load) {
  // The first streams decode while the last ones' prompts are read.
  const auto limits = engine.request_limits();
  const int64_t room = limits.max_context - load.prompt_tokens - load.gen_tokens;
  const int64_t overlap =
      load.streams > 1 && load.gen_tokens > 1 ? std::clamp<int64_t>(room, 0, kOverlapTokens) : 0;
  auto arrivals = std::make_shared<Arrivals>(load.streams, load.gen_tokens);
  uint64_t random = load.seed * 0x9E3779B97F4A7C15u + 1;
  std::vector<Request> requests(static_cast<size_t>(load.streams));
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& r = requests[i];
    r.id = "bench";
    r.prompt = random_prompt(load.prompt_tokens, limits.vocab_size, random);
    r.sampling.temperature = 0;
    r.stop = {.max_tokens = load.gen_tokens + overlap, .ignore_eos = true};
    r.sink = std::make_shared<ClockSink>(arrivals, i);
  }
  const auto start = Clock::now();
  std::vector<uint64_t> ids;
  Status refused;
  for (Request& r : requests) {
    auto id = engine.submit(std::move(r));
    if (!id.ok()) {
      refused = id.status();
      break;
    }
    ids.push_back(*id);
  }
  if (refused.ok()) arrivals->wait_satisfied();
  for (uint64_t id : ids) engine.cancel(id);
  if (!refused.ok()) return refused;
  OAR_RETURN_IF_ERROR(arrivals->wait_ended());

  const auto& times = arrivals->times();
  const auto all_decode = arrivals->all_started();
  auto one_ended = times.front().back();
  for (const auto& t : times) one_ended = std::min(one_ended, t.back());
  Timing out;
  out.prefill_tokens = load.streams * load.prompt_tokens;
  out.prefill_seconds = seconds(all_decode - start);
  for (const auto& t : times) {
    for (size_t i = 1; i < t.size(); ++i) {
      if (t[i] <= all_decode || t[i] > one_ended) continue;
      ++out.decode_tokens;
      out.slowest_gap = std::max(out.slowest_gap, seconds(t[i] - std::max(t[i - 1], all_decode)));
    }
  }
  out.decode_seconds = one_ended > all_decode ? seconds(one_ended - all_decode) : 0;
  return out;
}

}  // namespace oar::cli
