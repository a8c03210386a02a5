// The reader's side of a request. All decoding happens on the reader's thread; the engine thread only queues.
#include "engine/runtime/text_stream.h"

#include <algorithm>

namespace oar {

std::shared_ptr<TextStream> TextStream::create(std::shared_ptr<const Tokenizer> tokenizer,
                                               TextStreamOptions options, int32_t n,
                                               std::function<void()> notify) {
  OAR_CHECK(n > 0);
  std::shared_ptr<TextStream> stream(new TextStream());
  std::vector<int32_t> keep;
  if (options.reply) keep = options.reply->marker_tokens(*tokenizer);
  const IncrementalDetokenizer detokenizer(std::move(tokenizer), options.skip_special_tokens,
                                           std::move(keep));
  const StopMatcher stop(options.stop, options.include_stop_in_output);
  for (int32_t i = 0; i < n; ++i) {
    Choice choice{detokenizer, stop};
    if (options.reply) choice.reply = std::make_unique<ReplyParser>(options.reply);
    stream->choices_.push_back(std::move(choice));
  }
  stream->reply_ = options.reply;
  stream->open_choices_ = n;
  stream->stops_ = std::move(options.stop);
  stream->max_unread_ = options.max_unread;
  stream->notify_ = std::move(notify);
  return stream;
}

Status TextStream::start(Engine& engine, Request request) {
  OAR_CHECK(engine_ == nullptr, "a TextStream serves one request");
  if (request.n != static_cast<int32_t>(choices_.size()))
    return invalid_argument("n: the stream was made for another number of choices", "n");
  IncrementalDetokenizer primed = choices_.front().detokenizer;
  primed.prime(request.prompt);
  for (Choice& c : choices_) c.detokenizer = primed;
  request.sink = shared_from_this();
  engine_ = &engine;  // before the first event
  Result<uint64_t> id = engine.submit(std::move(request));
  if (!id.ok()) {
    engine_ = nullptr;
    return id.status();
  }
  id_ = *id;
  return ok_status();
}

void TextStream::cancel() {
  if (engine_ != nullptr) engine_->cancel(id_);
}

bool TextStream::done() const { return open_choices_ == 0; }

void TextStream::on_event(TokenEvent&& event) noexcept {
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = queue_.empty();
    const uint64_t id = event.request;
    queue_.push_back(std::move(event));
    // Told under the lock, so that the engine hears of both changes in their order.
    if (max_unread_ > 0 && queue_.size() > max_unread_ && !suspended_) {
      suspended_ = true;
      engine_->suspend(id);
    }
  }
  if (!was_empty) return;
  ready_.notify_one();
  if (notify_) notify_();
}

std::optional<TextEvent> TextStream::next(std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  while (!done()) {
    std::optional<TokenEvent> event;
    {
      std::unique_lock lock(mutex_);
      const auto has_event = [&] { return !queue_.empty(); };
      if (timeout.count() > 0) ready_.wait_until(lock, until, has_event);
      if (queue_.empty()) return std::nullopt;
      event = std::move(queue_.front());
      queue_.pop_front();
      if (suspended_ && queue_.size() <= max_unread_ / 2) {
        suspended_ = false;
        engine_->resume(id_);
      }
    }
    if (auto text = decode(std::move(*event))) return text;
  }
  return std::nullopt;
}

void TextStream::add_text(Choice& choice, const std::string& piece, TextEvent& out) {
  auto found = choice.stop.push(piece);
  out.text += found.text;
  if (found.stop_index) choice.stop_match = stops_[*found.stop_index];
}

// What of the text is for whom.
void TextStream::take_apart(Choice& choice, bool over, TextEvent& out) {
  ReplyDelta delta;
  const bool reasoned = choice.reply->in_reasoning();
  choice.reply->push(out.text, delta);
  if (reasoned || choice.reply->in_reasoning())
    choice.reasoning_tokens += static_cast<int64_t>(out.tokens.size());
  if (over) choice.reply->finish(delta);
  out.text = std::move(delta.content);
  out.reasoning = std::move(delta.reasoning);
  out.calls = std::move(delta.calls);
  for (ToolCallDelta& call : out.calls) {
    if (!call.name.empty() && call.id.empty()) call.id = make_call_id(reply_->calls->ids);
  }
  if (!over) return;
  out.call_count = choice.reply->calls();
  out.reasoning_tokens = choice.reasoning_tokens;
}

std::optional<TextEvent> TextStream::decode(TokenEvent&& e) {
  Choice& c = choices_[static_cast<size_t>(e.index)];
  if (c.finished) return std::nullopt;
  TextEvent out;
  out.index = e.index;
  out.prompt_logprobs = std::move(e.prompt_logprobs);
  out.progress = e.progress;
  if (e.finish != FinishReason::kNone || e.stats.prompt_tokens > 0) out.stats = e.stats;
  bool stopped = c.stop.matched();
  const bool replied = c.reply && c.reply->done();  // the only call that was allowed is complete
  if (e.has_token && !stopped && !replied) {  // what was sampled behind the end is not part of the answer
    ++c.tokens;
    out.tokens.push_back({e.token, e.logprob, std::move(e.top_logprobs)});
    add_text(c, c.detokenizer.push(e.token), out);
    stopped = c.stop.matched();
    if (stopped && e.finish == FinishReason::kNone) engine_->finish_choice(id_, e.index, FinishReason::kStop);
  }
  if (e.finish != FinishReason::kNone) {
    if (!stopped && !replied) {
      add_text(c, c.detokenizer.finish(), out);
      stopped = c.stop.matched();
    }
    if (!stopped && !replied) out.text += c.stop.finish();
    c.finished = true;
    --open_choices_;
    out.finish = e.finish;
    if (stopped || replied) {  // whatever the engine said meanwhile, the text ended here
      out.finish = FinishReason::kStop;
      out.stop_match = c.stop_match;
      out.stats.completion_tokens = c.tokens;
    } else {
      out.stop_token = e.stop_token;
      if (e.stop_token >= 0) out.drawn_stop = {e.stop_token, e.logprob, std::move(e.top_logprobs)};
      out.status = std::move(e.status);
    }
  }
  if (c.reply) {
    take_apart(c, out.finish != FinishReason::kNone, out);
    if (c.reply->done() && !replied && out.finish == FinishReason::kNone)
      engine_->finish_choice(id_, out.index, FinishReason::kStop);
  }
  if (out.text.empty() && out.reasoning.empty() && out.calls.empty() && out.tokens.empty() &&
      out.prompt_logprobs.empty() && !out.progress && out.finish == FinishReason::kNone)
    return std::nullopt;
  return out;
}

}  // namespace oar
