// vLLM's /v1/score, /classify and /pooling over encoders: how alike pairs of texts are, labels of texts, and
// vectors as the model makes them. https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/api/embeddings.h"

namespace oar::api {

// Every pair is scored: a text against one or many, or two lists one by one.
struct ScoreRequest {
  std::string model;
  std::vector<std::string> first, second;  // `first` has one, or as many as `second`
  const std::string& first_of(size_t pair) const { return first[first.size() == 1 ? 0 : pair]; }
};
Result<ScoreRequest> parse_score_request(const RequestBody& body);
// A row for each pair where the model scores pairs, else one for each text: those of `first`, then the
// others, whose cosines are the scores.
Result<std::vector<EncoderTokens>> score_rows(const TextEncoder& encoder, const ScoreRequest& request);
Result<std::string> score_answer(const TensorModel& model, const ScoreRequest& request,
                                 const std::vector<std::vector<float>>& results, int64_t tokens);

// The likeliest label of each input, and how likely all are.
Result<std::string> classify_answer(const TensorModel& model,
                                    const std::vector<std::vector<float>>& probabilities, int64_t tokens);

Result<std::string> pooling_answer(const TensorModel& model, const EmbeddingRequest& request,
                                   std::vector<std::vector<float>> vectors, int64_t tokens);

}  // namespace oar::api
