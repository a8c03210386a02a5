// How one reply is to be read: what the model's styles and the request say together. Also what follows from
// it for the text before it: which control tokens stay in the text, which tokens end the reply.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"
#include "engine/text/tools/style.h"
#include "engine/text/tools/tool_request.h"

namespace oar {

// Immutable, shared by the choices of a request.
struct ReplyFormat {
  const tools::ToolStyle* calls = nullptr;           // null: calls are not looked for
  const tools::ReasoningStyle* reasoning = nullptr;  // null: reasoning is not looked for
  std::vector<tools::Tool> tools;
  bool parallel_calls = true;  // false: the reply ends with its first call
  bool only_calls = false;     // a grammar allows no answer
  bool show_reasoning = true;  // false: it is dropped
  bool in_reasoning = false;   // the prompt has ended with the opening marker
  bool empty() const { return !calls && !reasoning; }
  // The markers that are looked for.
  std::vector<std::string_view> markers() const;
  // Control tokens that spell a marker: part of the text even where others are left out of it.
  std::vector<int32_t> marker_tokens(const Tokenizer& tokenizer) const;
  // Tokens that end a reply in this style, beside the model's own.
  std::vector<int32_t> end_tokens(const Tokenizer& tokenizer) const;
};

// What becomes of a model's reasoning, where its style is known.
struct ReasoningOptions {
  bool separate = true;  // a part of its own; false: it stays in the text
  bool include = true;   // false: it is dropped
};

// Null when the reply is text alone. INVALID_ARGUMENT for tools where no style of calls is known.
Result<std::shared_ptr<const ReplyFormat>> make_reply_format(
    const tools::ToolStyle* calls, const tools::ReasoningStyle* reasoning, const tools::ToolRequest& tools,
    const ReasoningOptions& options, const Tokenizer& tokenizer, std::span<const int32_t> prompt);

// Whether a prompt leaves the model inside its reasoning.
bool ends_in_reasoning(const tools::ReasoningStyle* style, const Tokenizer& tokenizer,
                       std::span<const int32_t> prompt);

// An id for a call that the model gave none.
std::string make_call_id(tools::CallIds form);

}  // namespace oar
