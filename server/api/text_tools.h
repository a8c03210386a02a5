// The text side of a request: prompts to token ids and token ids to text, through the model's tokenizer and
// chat template. The only place of the server that calls either.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/generation_request.h"
#include "server/api/model_handle.h"

namespace oar::api {

// When to leave off tokenizing a long prompt.
struct PromptBounds {
  int64_t max_tokens = std::numeric_limits<int64_t>::max();  // of each prompt
  std::optional<Clock::time_point> deadline;
  std::shared_ptr<const std::atomic<bool>> gone;  // the caller has left; null: nobody knows
  PromptExcess* excess = nullptr;                 // where a prompt that is too long is counted; null: nowhere
};

// The tokens of a request's prompts, or the one prompt of its conversation. In a raw prompt the text of a
// special token is that token; in a conversation only what the template wrote is. With a suffix it is the
// gap between both that is to be filled, where the model has tokens for that. INVALID_ARGUMENT when the
// template refuses the messages, OUT_OF_RANGE when a prompt has too many tokens: by its bytes before it is
// tokenized, where the tokenizer can tell. Other jobs of the thread's WorkerPool go on between slices.
Result<std::vector<std::vector<int32_t>>> prompt_tokens(const ModelHandle& model,
                                                        const GenerationRequest& request,
                                                        const ApiLimits& limits,
                                                        const PromptBounds& bounds = {});
// The text of a conversation as the model reads it.
Result<std::string> conversation_text(const ModelHandle& model, const GenerationRequest& request,
                                      const ApiLimits& limits);
// bad_words as sequences of tokens: each in the middle of a text and behind a space.
Result<std::vector<std::vector<int32_t>>> banned_sequences(const ModelHandle& model,
                                                           const std::vector<std::string>& words);
// Whether the model has tokens for the text around a gap.
bool fills_gaps(const ModelHandle& model);
std::string detokenize(const ModelHandle& model, const std::vector<int32_t>& tokens,
                       bool skip_special_tokens);
// The bytes a token stands for, possibly part of a UTF-8 sequence; special tokens as their text.
std::string token_bytes(const ModelHandle& model, int32_t token);

}  // namespace oar::api
