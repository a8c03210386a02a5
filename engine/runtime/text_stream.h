// From tokens to text on the reader's side. A TokenSink queues events for a waiting thread or a notified
// writer. A decoder per choice detokenizes incrementally and finds stop strings across token borders. One
// request, one TextStream. The engine thread pushes; one reader pulls.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "engine/text/detokenizer.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/tools/reply_parser.h"

namespace oar {

struct TextStreamOptions {
  std::vector<std::string> stop;  // stop strings
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  // Takes reasoning and tool calls out of the text; null: all of it is text. Stop strings are looked for
  // before, in everything the model writes.
  std::shared_ptr<const ReplyFormat> reply;
  // Events that may wait for the reader. With more the request leaves its slots until half of them are read;
  // 0: any number may wait.
  size_t max_unread = 0;
};

// What the reader gets: text that is final (never a broken UTF-8 sequence, never a part of a stop string).
struct TextEvent {
  int32_t index = 0;
  std::string text;                  // may be empty while a sequence is held back
  std::string reasoning;             // as the request's ReplyFormat says, as are
  std::vector<ToolCallDelta> calls;  // pieces of calls, each of which has an id
  int32_t call_count = 0;            // with the finish: calls of the choice,
  int64_t reasoning_tokens = 0;      // and its tokens of reasoning, markers included
  struct Token {
    int32_t id;
    float logprob;
    std::vector<TokenLogprob> top;
  };
  std::vector<Token> tokens;  // tokens whose text is in `text` or held back
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string stop_match;  // stop string or empty
  int32_t stop_token = -1;
  std::optional<Token> drawn_stop;  // with its log-probability; there is a stop token
  Status status;
  bool progress = false;  // as TokenEvent has it, as are
  SequenceStats stats;
};

class TextStream : public TokenSink, public std::enable_shared_from_this<TextStream> {
 public:
  // `notify` (may be empty) is called on the engine thread whenever the queue turns non-empty; it must only
  // post.
  static std::shared_ptr<TextStream> create(std::shared_ptr<const Tokenizer> tokenizer,
                                            TextStreamOptions options, int32_t n,
                                            std::function<void()> notify = {});

  // Submits with this stream as the sink and remembers engine and id, so that stop strings end the choice
  // there. The text continues the prompt's. Once, before any other call; `engine` outlives the stream's use.
  Status start(Engine& engine, Request request);
  // Next event, or nullopt when none arrived within the timeout (0: do not wait) or all is done. Events with
  // neither text, tokens nor a finish are not returned. One reader.
  std::optional<TextEvent> next(std::chrono::milliseconds timeout);
  bool done() const;  // every choice has delivered its finish event to the reader
  void cancel();      // any thread
  uint64_t request_id() const { return id_; }

  void on_event(TokenEvent&& event) noexcept override;

 private:
  struct Choice {
    IncrementalDetokenizer detokenizer;
    StopMatcher stop;
    std::unique_ptr<ReplyParser> reply;  // null: all is text
    int64_t tokens = 0;                  // read, up to the one that completed a stop string
    int64_t reasoning_tokens = 0;        // of them
    std::string stop_match;              // found; the engine has been asked to end the choice
    bool finished = false;
  };
  TextStream() = default;
  std::optional<TextEvent> decode(TokenEvent&& event);
  void add_text(Choice& choice, const std::string& piece, TextEvent& out);
  void take_apart(Choice& choice, bool over, TextEvent& out);

  Engine* engine_ = nullptr;
  uint64_t id_ = 0;
  std::vector<std::string> stops_;
  std::shared_ptr<const ReplyFormat> reply_;
  std::vector<Choice> choices_;  // reader's side only
  int32_t open_choices_ = 0;     // reader's side only
  std::function<void()> notify_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<TokenEvent> queue_;  // guarded by mutex_, as is
  bool suspended_ = false;        // what the engine was last told
  size_t max_unread_ = 0;
};

}  // namespace oar
