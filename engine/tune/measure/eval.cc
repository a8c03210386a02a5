#include "engine/tune/measure/eval.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "engine/base/format.h"
#include "engine/base/strip.h"

namespace oar {
namespace {

std::vector<std::string_view> split_documents(std::string_view text, std::string_view separator) {
  if (separator.empty() || text.find(separator) == std::string_view::npos) {
    return text.empty() ? std::vector<std::string_view>{} : std::vector<std::string_view>{text};
  }
  std::vector<std::string_view> out;
  while (true) {
    const size_t end = text.find(separator);
    if (const std::string_view document = strip(text.substr(0, end)); !document.empty())
      out.push_back(document);
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + separator.size());
  }
}

// What a window came to; made on the engine thread, summed on the caller's in the order of the windows, so
// that the result does not depend on which finished first.
struct WindowScore {
  double nll = 0;
  int64_t tokens = 0;
  Status status;
};

// Scores of all windows, and a wait for the next one.
class Scores {
 public:
  explicit Scores(size_t windows) : scores_(windows) {}
  void deliver(size_t window, WindowScore score) {
    const std::lock_guard lock(mutex_);
    scores_[window] = std::move(score);
    ++finished_;
    changed_.notify_one();
  }
  // Returns once more than `seen` windows have ended; how many have.
  size_t wait_beyond(size_t seen) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ > seen; });
    return finished_;
  }
  std::vector<WindowScore> take() {
    const std::lock_guard lock(mutex_);
    return std::move(scores_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WindowScore> scores_;
  size_t finished_ = 0;
};

class ScoreSink final : public TokenSink {
 public:
  ScoreSink(std::shared_ptr<Scores> scores, size_t window) : scores_(std::move(scores)), window_(window) {}
  void on_event(TokenEvent&& event) noexcept override {
    for (const auto& position : event.prompt_logprobs) {
      if (position.empty()) continue;  // the first: nothing predicts it
      score_.nll -= static_cast<double>(position.front().logprob);
      ++score_.tokens;
    }
    if (event.finish == FinishReason::kNone) return;
    if (event.finish == FinishReason::kError) score_.status = std::move(event.status);
    if (event.finish == FinishReason::kCancelled) score_.status = Status(StatusCode::kCancelled, "cancelled");
    scores_->deliver(window_, std::move(score_));
  }

 private:
  const std::shared_ptr<Scores> scores_;
  const size_t window_;
  WindowScore score_;
};

}  // namespace

double EvalResult::perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
double EvalResult::bits_per_byte() const { return nll / std::log(2.0) / static_cast<double>(bytes); }

Result<EvalWindows> eval_windows(const Tokenizer& tokenizer, std::string_view text,
                                 const PerplexityOptions& options) {
  std::optional<int32_t> bos;
  if (options.add_bos) bos = tokenizer.bos_id();
  if (options.context < 2) {
    return invalid_argument(cat("context must be at least 2, got ", options.context), "context");
  }
  const auto room = static_cast<size_t>(options.context) - (bos ? 1 : 0);
  EvalWindows out;
  bool any = false;
  for (std::string_view document : split_documents(text, options.separator)) {
    OAR_ASSIGN(const std::vector<int32_t> ids, tokenizer.encode(document, {.add_special_tokens = false}));
    ++out.documents;
    out.bytes += document.size();
    for (size_t begin = 0; begin < ids.size(); begin += room) {
      const size_t end = std::min(ids.size(), begin + room);
      std::vector<int32_t> window;
      window.reserve(end - begin + 1);
      if (bos.has_value()) window.push_back(bos.value());
      for (size_t i = begin; i < end; ++i) window.push_back(ids[i]);
      any |= window.size() > 1;
      out.windows.push_back(std::move(window));
    }
  }
  if (!any) return invalid_argument("the text has no token to predict; give a longer one", "text");
  return out;
}

Result<EvalResult> evaluate_perplexity(Engine& engine, const Tokenizer& tokenizer, std::string_view text,
                                       PerplexityOptions options, const Progress& progress) {
  const RequestLimits& limits = engine.request_limits();
  if (options.context == 0) options.context = limits.max_context;
  if (options.context > limits.max_context) {
    return invalid_argument(
        cat("context ", options.context, " is more than the ", limits.max_context,
            " positions this engine was started with; lower it, or start with a larger maximum "
            "context"),
        "context");
  }
  OAR_ASSIGN(EvalWindows cut, eval_windows(tokenizer, text, options));
  const auto start = Clock::now();
  const size_t total = cut.windows.size();
  const auto scores = std::make_shared<Scores>(total);
  std::deque<uint64_t> ids;  // submitted, for a cancel
  size_t submitted = 0, finished = 0;
  Status stopped;
  while (finished < (stopped.ok() ? total : submitted)) {
    while (stopped.ok() && submitted < total &&
           submitted - finished < static_cast<size_t>(options.in_flight)) {
      Request request;
      request.id = cat("eval-", submitted);
      request.prompt = std::move(cut.windows[submitted]);
      request.sampling.temperature = 0;
      request.sampling.prompt_logprobs = 0;
      request.stop.max_tokens = 0;
      request.adapter = options.adapter;
      request.sink = std::make_shared<ScoreSink>(scores, submitted);
      if (auto id = engine.submit(std::move(request)); id.ok()) {
        ids.push_back(*id);
        ++submitted;
      } else {
        stopped = id.status();
      }
    }
    if (finished < submitted) finished = scores->wait_beyond(finished);
    if (stopped.ok() && progress && !progress("evaluating", finished, total)) {
      stopped = Status(StatusCode::kCancelled, "stopped");
      for (uint64_t id : ids) engine.cancel(id);
    }
  }
  OAR_RETURN_IF_ERROR(stopped);

  EvalResult out;
  for (const WindowScore& score : scores->take()) {
    OAR_RETURN_IF_ERROR(score.status);
    out.nll += score.nll;
    out.tokens += score.tokens;
  }
  out.documents = cut.documents;
  out.windows = static_cast<int64_t>(total);
  out.bytes = cut.bytes;
  out.context = options.context;
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

}  // namespace oar
