// The reader's side of a request. All decoding happens on the reader's thread; the engine thread only queues.
#include "engine/runtime/text_stream.h"

#include <algorithm>

namespace oar {

std::shared_ptr<TextStream> TextStream::create(std::shared_ptr<const Tokenizer> tokenizer,
                                               TextStreamOptions options, int32_t n,
                                               std::function<void()> notify) {
  OAR_CHECK(n > 0);
  std::shared_ptr<TextStream> stream(new TextStream());
  const Choice choice{IncrementalDetokenizer(std::move(tokenizer), options.skip_special_tokens),
                      StopMatcher(options.stop, options.include_stop_in_output)};
  stream->choices_.assign(static_cast<size_t>(n), choice);
  stream->open_choices_ = n;
  stream->stops_ = std::move(options.stop);
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
  OAR_ASSIGN(id_, engine.submit(std::move(request)));
  engine_ = &engine;
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
    queue_.push_back(std::move(event));
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

std::optional<TextEvent> TextStream::decode(TokenEvent&& e) {
  Choice& c = choices_[static_cast<size_t>(e.index)];
  if (c.finished) return std::nullopt;
  TextEvent out;
  out.index = e.index;
  out.prompt_logprobs = std::move(e.prompt_logprobs);
  bool stopped = c.stop.matched();
  if (e.has_token && !stopped) {  // what was sampled behind a stop string is not part of the answer
    ++c.tokens;
    out.tokens.push_back({e.token, e.logprob, std::move(e.top_logprobs)});
    add_text(c, c.detokenizer.push(e.token), out);
    stopped = c.stop.matched();
    if (stopped && e.finish == FinishReason::kNone) engine_->finish_choice(id_, e.index, FinishReason::kStop);
  }
  if (e.finish != FinishReason::kNone) {
    if (!stopped) {
      add_text(c, c.detokenizer.finish(), out);
      stopped = c.stop.matched();
    }
    if (!stopped) out.text += c.stop.finish();
    c.finished = true;
    --open_choices_;
    out.stats = e.stats;
    out.finish = e.finish;
    if (stopped) {  // whatever the engine said meanwhile, the text ended here
      out.finish = FinishReason::kStop;
      out.stop_match = c.stop_match;
      out.stats.completion_tokens = c.tokens;
    } else {
      out.stop_token = e.stop_token;
      out.status = std::move(e.status);
    }
  }
  if (out.text.empty() && out.tokens.empty() && out.prompt_logprobs.empty() &&
      out.finish == FinishReason::kNone)
    return std::nullopt;
  return out;
}

}  // namespace oar
