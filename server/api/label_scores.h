// SGLang's /v1/score over a language model: how likely each of some tokens is to come next, behind a query
// and each of some items. https://docs.sglang.ai/basic_usage/native_api.html
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "server/api/answer_writer.h"
#include "server/api/fields.h"

namespace oar::api {

struct LabelRequest {
  GenerationRequest request;  // a prompt for each item, and one token behind it
  std::vector<int32_t> labels;
  bool softmax = false;  // over the labels; else probabilities among all tokens
};
Result<LabelRequest> parse_label_request(const RequestBody& body, const ModelHandle& model);

// Of each label among all tokens, at the place of one that was drawn with SamplingParams::logprob_tokens.
std::vector<double> label_probabilities(const TextEvent::Token& token, std::span<const int32_t> labels);

// {"scores":[[one for each label],...one for each item],"model":...,"usage":...}
std::unique_ptr<AnswerWriter> label_answer(const GenerationSpec& spec, std::vector<int32_t> labels,
                                           bool softmax);

}  // namespace oar::api
