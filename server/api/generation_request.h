// What any protocol asks of a language model, typed. Each protocol's parser starts from request_for(model)
// and fills one. OpenAI bodies and Triton's parameters go through read_params(), which reads JSON by name.
// Messages of oar.v1 are copied member by member, then check_request() looks at them.
//
// Both apply the same rules, which stand once in generation_request.cc. A new field is a member here, a line
// there, and a line in each typed parser that offers it. Names and ranges are OpenAI's where it has them,
// vLLM's otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/runtime/core/request.h"
#include "engine/runtime/text_stream.h"
#include "engine/text/grammar/constraint_compiler.h"
#include "engine/text/tools/reply_plan.h"
#include "server/api/fields.h"
#include "server/api/model_handle.h"

namespace oar::api {

// Bounds on what one request may ask for, beyond the engine's own RequestLimits.
struct ApiLimits {
  size_t max_messages = 4096;
  size_t max_prompts = 256;   // of one completions request
  int32_t max_choices = 512;  // prompts x n
  size_t max_stop_strings = 64;
  size_t max_stop_bytes = 1024;
  size_t max_template_bytes = 16 << 20;  // a rendered chat prompt
  double max_timeout_seconds = 86400;
  size_t max_stored_bytes = size_t{64} << 20;  // conversations that previous_response_id finds, all together
};

// By how much a prompt is too long, as far as was counted: it has `tokens` at least.
struct PromptExcess {
  int64_t tokens = 0, context = 0;
};

struct ChatMessage {
  std::string role;
  std::optional<std::string> content;  // absent: null, for instance in an assistant's tool call
  json::object other;                  // further members, which a template may read: name, tool_calls,
                                       // tool_call_id, reasoning_content
};

// Messages that the model's chat template turns into the prompt.
struct Conversation {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // leave the last one open; then there is no generation prompt
  json::object template_kwargs;         // variables of the template, beside the server's own
  ReplyRequest reply;                   // tools and reasoning; its answer is GenerationRequest::constraint
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;  // text, or token ids

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;           // one more chunk with the usage before [DONE]
  bool continuous_usage_stats = false;  // the usage so far in every chunk
};

inline constexpr int64_t kCompletionMaxTokens = 16;  // the default of completions, and of Triton

// Stands before the text around a gap.
struct OtherFile {
  std::string name, text;
};

struct GenerationRequest {
  std::string model;  // as the caller wrote it; empty: the only one there is
  std::string id;     // what answers and the log call it

  // One of the two; with both the prompt is the conversation as another server rendered it.
  std::optional<Conversation> conversation;
  std::vector<Prompt> prompts;
  bool add_special_tokens = true;      // to text
  std::optional<int64_t> truncate_to;  // of a prompt's tokens the last are kept; -1: what there is room for
  bool truncate_end = false;           // the first are kept instead
  std::string suffix;                  // what stands behind the answer, of a text; empty: nothing
  bool fills = false;                  // the answer lies in a gap, even where nothing stands behind it
  std::vector<OtherFile> other_files;  // what is read before the text around a gap
  std::string beginning;               // of the text in the gap, which the answer goes on
  std::string_view prompt_field = "prompt";  // how the protocol calls what holds the prompt; static

  SamplingParams sampling;  // but for its log-probabilities, which are:
  std::optional<int32_t> logprobs,
      prompt_logprobs;                          // alternatives beside each token; absent: none are reported
  std::vector<int32_t> allowed_tokens;          // the only ones that are drawn; empty: all
  std::vector<std::string> bad_words;           // whose tokens are never drawn one behind the other
  std::optional<int32_t> list_prompt_logprobs;  // vLLM's list of them, with so many alternatives
  grammar::ConstraintSpec constraint;  // what the text has to be; its field is how the caller called it
  // Of it, and of what the conversation asks of its reply (Frontend::prepare).
  std::shared_ptr<const Constraint> compiled;
  std::string compiled_field;
  StopParams stop;                    // its max_tokens follows from these two (Frontend::prepare):
  std::optional<int64_t> max_tokens;  // absent: default_max_tokens
  int64_t default_max_tokens = 0;     // the protocol's; 0: what the context has room for
  TextStreamOptions text;
  int32_t n = 1;            // choices of each prompt
  int32_t best_of = 0;      // candidates, of which the n likeliest are the choices; 0: n
  bool token_ids = false;   // the answer has the ids of its tokens and the prompt's
  bool names_ids = false;   // log-probabilities call a token "token_id:" and its id
  bool prefills = false;    // an assistant's message at the end is the beginning of the answer
  bool verbose = false;     // the answer shows the prompt that the model read
  bool echo = false;        // the prompt's text before the answer
  bool store = false;       // a chat is kept, labelled with
  json::object metadata;    // these
  bool progress = false;    // a stream tells how far the prompt is, and
  bool timings = false;     // how long things took, with every piece
  bool metrics = false;     // the same in vLLM's words, at the end
  StreamOptions streaming;  // as HTTP's streams are asked for
  std::string cache_salt;   // prefix-cache entries are shared only between equal salts
  // As Request has them; caller and weight follow from who asks (Frontend::prepare).
  std::string caller;
  double weight = 1;
  int32_t priority = 0;
  std::optional<double> timeout_seconds;
  std::optional<Clock::time_point> deadline;  // the earlier of timeout_seconds and the transport's own
};

// A request with the protocols' common defaults and the model's generation_config on top.
GenerationRequest request_for(const ModelHandle& model);

// Whether ModelHandle::request_defaults are fields that have defaults, with values that requests may have.
Status check_request_defaults(const ModelHandle& model);

// Reads the fields that all JSON protocols share over `request`. The first fault is in `fields`.
void read_params(Fields& fields, const RequestLimits& engine, const ApiLimits& limits,
                 GenerationRequest& request);

// OpenAI's stream_options, and vLLM's.
void read_stream_options(Fields& fields, const json::object& options, StreamOptions& out);
// llama.cpp's, of streams: how far the prompt is, and times with every piece. Once `streaming` has been read.
void read_telemetry(Fields& fields, GenerationRequest& request);

// The same rules, and those of prompts and conversations, for a request filled from typed messages. `spell`
// says how the protocol calls a field: "temperature" is "sampling.temperature" in oar.v1. Normalizes what has
// two spellings (top_k -1 is 0).
using Spelling = std::function<std::string(std::string_view)>;
Status check_request(const RequestLimits& engine, const ApiLimits& limits, const Spelling& spell,
                     GenerationRequest& request);

// Sets the variables by which templates turn thinking on and off.
void set_thinking(Conversation& conversation, bool on);

// ---- rules of a prompt, for parsers ----

// Whether a template may be expected to know a role; of others render_chat() finds out.
bool is_known_role(std::string_view role);
std::string known_roles();  // for messages
// Calls and the number of messages. `path` names the list of messages.
Status check_conversation(const Conversation& conversation, const ApiLimits& limits, const std::string& path);
// What is wrong with a token id, or with a list of none.
Status token_error(const std::string& path, size_t index, int64_t vocab_size, std::string_view got);
Status no_tokens_error(const std::string& path);
// That prompts x n are not too many.
Status check_choices(const GenerationRequest& request, const ApiLimits& limits, std::string_view n);

}  // namespace oar::api
