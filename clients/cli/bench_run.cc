#include "clients/cli/bench_run.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace oar::cli {
namespace {

// Notes when each token of a stream arrived.
class ClockSink final : public TokenSink {
 public:
  explicit ClockSink(int64_t tokens) { times_.reserve(static_cast<size_t>(tokens)); }
  void on_event(TokenEvent&& event) noexcept override {
    const auto now = Clock::now();
    if (event.has_token && times_.size() < times_.capacity()) times_.push_back(now);
    if (event.finish == FinishReason::kNone) return;
    const std::lock_guard lock(mutex_);
    finished_ = true;
    if (event.finish != FinishReason::kLength) {
      status_ = event.status.ok() ? internal_error("a stream ended before its last token")
                                  : std::move(event.status);
    }
    done_.notify_one();
  }
  // The times, once the stream has ended.
  Result<std::vector<Clock::time_point>> wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return finished_; });
    if (!status_.ok()) return status_;
    return times_;
  }

 private:
  std::vector<Clock::time_point> times_;  // the engine thread's until finished_
  std::mutex mutex_;
  std::condition_variable done_;
  bool finished_ = false;
  Status status_;
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
  std::vector<std::shared_ptr<ClockSink>> sinks;
  uint64_t random = load.seed * 0x9E3779B97F4A7C15u + 1;
  std::vector<Request> requests(static_cast<size_t>(load.streams));
  for (Request& r : requests) {
    r.id = "bench";
    r.prompt = random_prompt(load.prompt_tokens, engine.request_limits().vocab_size, random);
    r.sampling.temperature = 0;
    r.stop = {.max_tokens = load.gen_tokens, .ignore_eos = true};
    sinks.push_back(std::make_shared<ClockSink>(load.gen_tokens));
    r.sink = sinks.back();
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
  if (!refused.ok()) {
    for (uint64_t id : ids) engine.cancel(id);
    return refused;
  }
  std::vector<std::vector<Clock::time_point>> times;
  Status failed;
  for (const auto& sink : sinks) {
    auto t = sink->wait();
    if (!t.ok()) {
      failed = t.status();
      continue;  // the others must end before their prompts go
    }
    times.push_back(std::move(*t));
  }
  OAR_RETURN_IF_ERROR(failed);

  auto all_decode = times.front().front(), one_ended = times.front().back();
  for (const auto& t : times) {
    all_decode = std::max(all_decode, t.front());
    one_ended = std::min(one_ended, t.back());
  }
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
