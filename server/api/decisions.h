// OpenAI's /v1/decisions over a language model: questions about a text, each with a few answers to choose
// from, and how likely each of those is. https://developers.openai.com/api/docs/guides/decisions Each
// question is a conversation of its own. Its answers are listed with letters, and how likely each letter is
// as the reply's first token is what is told.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/answer_writer.h"
#include "server/api/fields.h"
#include "server/api/text_tools.h"

namespace oar::api {

enum class DecisionKind { kPredicate, kChoice, kScore };

struct DecisionQuestion {
  struct Option {
    json::value value;  // a text, or true or false
    std::string description;
  };
  DecisionKind kind = DecisionKind::kPredicate;
  std::string instructions;
  std::optional<std::string> name;
  std::vector<Option> options;  // of a predicate: no, yes
};

struct DecisionRequest {
  GenerationRequest request;  // without its prompts: one token behind each
  std::string input;
  std::vector<DecisionQuestion> questions;
};
Result<DecisionRequest> parse_decision_request(const RequestBody& body, const ModelHandle& model,
                                               const ApiLimits& limits);

// One prompt for each question. FAILED_PRECONDITION: the model's tokenizer writes a letter in several tokens.
Status write_decision_prompts(const ModelHandle& model, const ApiLimits& limits, const PromptBounds& bounds,
                              DecisionRequest& request);

// {"model":...,"answers":[one for each question],"usage":...}
std::unique_ptr<AnswerWriter> decision_answer(const GenerationSpec& spec,
                                              std::vector<DecisionQuestion> questions);

}  // namespace oar::api
