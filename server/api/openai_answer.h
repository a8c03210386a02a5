// The events of one generation as an OpenAI answer: server-sent events or one JSON document, chat or
// completions. The same builders serve both, so a streamed answer concatenates to the whole one. Used by one
// thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/detokenizer.h"
#include "server/api/answer_writer.h"
#include "server/api/json_writer.h"
#include "server/api/openai_request.h"

namespace oar::api {

struct AnswerOptions {
  // A prompt's text, as repeated before its choices'.
  struct Echo {
    std::string text;
    bool shows_special = true;  // special tokens are part of it,
    bool hides_first = false;   // but the first, which the tokenizer added, is not
  };
  bool chat = false;
  // Of each prompt's candidates the likeliest per token become its choices; 0: all, in their order.
  int32_t best = 0;
  bool hides_logprobs = false;  // they were asked for to tell which
  bool null_start = false;      // the content of a choice's first chunk is null; else there is none
  bool echo = false;            // `echoes` before each choice's text
  std::vector<Echo> echoes;     // per prompt
  bool named_call = false;      // the request said which tool is called: then the answer stops, OpenAI says
  StreamOptions streaming;
};

class OpenAiAnswer final : public AnswerWriter {
 public:
  OpenAiAnswer(const GenerationSpec& spec, AnswerOptions options);

  // After the last choice's end a stream has its usage chunk and [DONE].
  std::string on_event(int32_t choice, const TextEvent& event) override;
  void collect(int32_t choice, const TextEvent& event) override;
  std::string body() const override;

 private:
  // Array elements as JSON text, comma-separated. Chat uses `content` alone, completions the four parallel
  // arrays.
  struct Logprobs {
    std::string content;
    std::string tokens, token_logprobs, top_logprobs, text_offset;
    bool empty() const { return content.empty() && tokens.empty(); }
  };
  struct Choice {
    bool started = false;                               // its first event has come
    bool prompt_reported = false;                       // its log-probabilities include the prompt's
    std::string text, reasoning;                        // collected
    std::vector<ToolCallDelta> calls;                   // collected
    int32_t call_count = 0;                             // once it has finished
    Logprobs logprobs;                                  // not sent yet, or collected
    std::vector<int32_t> ids;                           // likewise, where they were asked for
    bool prompt_ids_due = true;                         // the prompt's have not been sent
    int64_t offset = 0;                                 // code points of the text before the next token
    std::optional<IncrementalDetokenizer> detokenizer;  // what the tokens add to the text; completions only
    int64_t completion_tokens = 0;
    double logprob = 0;  // of all its tokens
    int64_t accepted_drafts = 0, rejected_drafts = 0, reasoning_tokens = 0;
    FinishReason finish = FinishReason::kNone;
    std::string stop_reason = "null";
  };

  const std::string& model_name() const { return spec_model_->name; }
  size_t prompt_of(int32_t choice) const { return static_cast<size_t>(choice / n_); }
  void begin_chunk(JsonWriter& w) const;
  void end_chunk(JsonWriter& w, bool final, bool with_prompt) const;
  void append_delta(std::string& out, int32_t index, std::string_view role, std::string_view text,
                    const std::string& logprobs, bool final) const;
  void append_event(std::string& out, int32_t index, const TextEvent& event, const std::string& logprobs,
                    bool final) const;
  void end_delta(std::string& out, JsonWriter& w, int32_t index, const std::string& logprobs,
                 bool final) const;
  std::string_view finish_reason(const Choice& c) const;
  std::string start_choice(int32_t index);
  void keep_prompt_logprobs(int32_t index, const TextEvent& event);
  void add_logprobs(Choice& c, int32_t index, const TextEvent& event);
  void add_prompt_logprobs(Choice& c, size_t prompt);
  void add_chat_token(Choice& c, const TextEvent::Token& token) const;
  // `length`: code points that the token adds to the text.
  void add_completion_token(Choice& c, int32_t token, const float* logprob,
                            const std::vector<TokenLogprob>& top, int64_t length) const;
  std::string format_logprobs(const Logprobs& logprobs) const;
  std::vector<size_t> reported() const;  // choices of the whole answer
  void write_told_ids(JsonWriter& w, const char* name, const std::vector<int32_t>& ids) const;
  // vLLM's list: null, then of each token of the prompt itself and its alternatives by id.
  void append_prompt_logprobs(JsonWriter& w, size_t prompt) const;
  void note_finish(Choice& c, const TextEvent& event);
  void note_ids(Choice& c, const TextEvent& event) const;
  void append_usage(JsonWriter& w) const;
  void append_verbose(JsonWriter& w) const;
  void append_telemetry(JsonWriter& w) const;
  std::string token_name(int32_t token) const;  // as log-probabilities call it

  ModelHandlePtr spec_model_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<std::vector<TokenLogprob>>> prompt_logprobs_;  // per prompt, once known
  const bool verbose_, token_ids_, names_ids_, timings_, metrics_;
  bool want_logprobs_, want_prompt_logprobs_, skip_special_tokens_;
  int32_t echo_alternatives_;
  std::optional<int32_t> listed_alternatives_;
  int32_t n_;
  std::string id_;
  int64_t created_;
  AnswerOptions options_;
  std::vector<Choice> choices_;
  size_t open_;
  int64_t cached_tokens_ = 0;
  std::vector<bool> cached_seen_;  // per prompt
  bool tells_progress_ = false;    // the chunk at hand
  SequenceStats stats_;  // of the last event, where times are asked for; none of a choice's first chunk
};

}  // namespace oar::api
