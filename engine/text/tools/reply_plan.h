// What a request for a reply comes to, for one model: how the reply is taken apart, what it may say, where it
// ends. Every protocol, the C interface and the program ask here.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/constraint.h"
#include "engine/text/grammar/constraint_compiler.h"
#include "engine/text/tools/reply_format.h"

namespace oar {

// What there is to know of a model's ways. Pointers are borrowed but for the tokenizer's.
struct ReplyModel {
  TokenizerPtr tokenizer;
  const tools::ToolStyle* calls = nullptr;           // null: nobody knows how it writes calls
  const tools::ReasoningStyle* reasoning = nullptr;  // null: nobody knows, or it does not reason
  grammar::ConstraintCompiler* constraints = nullptr;
};

// What is asked of a reply to a conversation.
struct ReplyRequest {
  tools::ToolRequest tools;
  ReasoningOptions reasoning;
  std::optional<int64_t> thinking_budget;          // tokens of reasoning; absent: no bound of its own
  std::string thinking_field = "thinking_budget";  // as the caller called it
  grammar::ConstraintSpec answer;                  // of what is neither reasoning nor a call
};

struct ReplyPlan {
  std::shared_ptr<const ReplyFormat> format;     // null: all is text
  std::shared_ptr<const Constraint> constraint;  // null: anything may be written
  std::string constraint_field;                  // where the caller asked for it
  std::vector<int32_t> end_tokens;               // beside the model's own
};

// `prompt` is what the reply follows. INVALID_ARGUMENT names the field: tools for a model of no known style,
// a budget where no reasoning is told apart, a schema that no grammar can be made of.
Result<ReplyPlan> plan_reply(const ReplyModel& model, const ReplyRequest& request,
                             std::span<const int32_t> prompt);

}  // namespace oar
