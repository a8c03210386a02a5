// Embeddings and rerank: OpenAI's and Jina's requests as structs, their answers as JSON, and the task
// between: many texts, each a row of an encoder's batches.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/json.h"
#include "server/api/fields.h"
#include "server/api/json_writer.h"
#include "server/api/tensor_model.h"

namespace oar::api {

// Tokens and texts, one behind the other.
using MixedInput = std::vector<std::variant<std::string, int32_t>>;
using EmbeddingInput = std::variant<std::string, std::vector<int32_t>, MixedInput>;

struct EmbeddingRequest {
  std::string model;
  std::vector<EmbeddingInput> inputs;
  bool per_token = false;                  // a vector of each token, as it leaves the encoder
  std::vector<size_t> lengths;             // then: tokens of each input
  bool base64 = false;                     // little-endian f32
  int64_t dimensions = 0;                  // 0: the model's
  int64_t truncate_to = 0;                 // 0: longer inputs are refused; see TextEncoder::encode()
  Clock::time_point since = Clock::now();  // when it was read, for answers that say how long it took
};
struct RerankRequest {
  std::string model, query;
  std::vector<std::string> documents;
  int64_t top_n = 0;  // 0: all
  bool return_documents = true;
  bool tei = false;  // asked as Text Embeddings Inference has it: `texts`, and an answer that is a list
};
// Limits on counts and sizes, whichever transport filled the request in; the parsers below include them.
Status check_inputs(const EmbeddingRequest& request);
Status check_documents(const RerankRequest& request);
Result<EmbeddingRequest> parse_embedding_request(const RequestBody& body);
// Of vLLM's /pooling: the same, and `task`, embed or token_embed.
Result<EmbeddingRequest> parse_pooling_request(const RequestBody& body);
// Of vLLM's /classify: model, input and truncate_prompt_tokens.
Result<EmbeddingRequest> parse_classify_request(const RequestBody& body);
Result<RerankRequest> parse_rerank_request(const RequestBody& body);

// Rows of tokens through an encoder. A bounded number of them is in its queue at a time, so that one large
// request leaves room for others; the first failure ends it. `id` is the caller's, for traces. `done` is
// called once, on an instance's thread or inside start() or cancel().
class EncodeTask : public std::enable_shared_from_this<EncodeTask> {
 public:
  // A score is a vector of one number; a token's vectors stand one behind the other; labels' are
  // probabilities.
  enum class Want { kVectors, kTokenVectors, kScores, kLabels };
  using Done = std::function<void(Result<std::vector<std::vector<float>>>)>;
  // Rows in the queue at once; fewer of work that nobody waits for, so that little of it is before others.
  static constexpr size_t kRows = 64, kBackgroundRows = 8;
  // For traces: how the caller calls the request, and its traceparent.
  struct Caller {
    std::string id, trace;
  };
  static std::shared_ptr<EncodeTask> start(TensorModelPtr model, std::vector<EncoderTokens> rows, Want want,
                                           std::optional<Clock::time_point> deadline, Caller caller,
                                           Done done, size_t rows_at_once = kRows);
  void cancel();

 private:
  EncodeTask(TensorModelPtr model, std::vector<EncoderTokens> rows, Want want,
             std::optional<Clock::time_point> deadline, Caller caller, Done done, size_t rows_at_once);
  void pump();
  Status submit(size_t row);
  void answered(size_t row, Result<std::vector<Datum>> outputs);
  void finish(const Status& status);

  const TensorModelPtr model_;
  const std::vector<EncoderTokens> rows_;
  const Want want_;
  const std::optional<Clock::time_point> deadline_;
  const Caller caller_;
  const size_t rows_at_once_;
  std::vector<size_t> order_;  // rows by length, so that neighbours share shapes

  std::mutex mutex_;
  Done done_;  // guarded by mutex_, as is all below; empty once called
  std::vector<std::vector<float>> results_;
  std::vector<uint64_t> tickets_;  // of rows in the queue; 0: none
  size_t next_ = 0, in_flight_ = 0, finished_ = 0;
  bool failed_ = false;
};

// From a request to rows, checked against the encoder; and the answers.
Result<std::vector<EncoderTokens>> embedding_rows(const TextEncoder& encoder,
                                                  const EmbeddingRequest& request);
Result<std::vector<EncoderTokens>> classify_rows(const TextEncoder& encoder, const EmbeddingRequest& request);
// Shortens the vectors to request.dimensions; INTERNAL when a number is not finite.
Status fit_vectors(const EmbeddingRequest& request, std::vector<std::vector<float>>& vectors);
Result<std::string> embedding_answer(const TensorModel& model, const EmbeddingRequest& request,
                                     std::vector<std::vector<float>> vectors, int64_t tokens);
// llama.cpp's list of them: [{"index":0,"embedding":[[...], ...]}, ...].
std::string token_embedding_answer(const EmbeddingRequest& request,
                                   const std::vector<std::vector<float>>& vectors);
// Pairs for a model that scores, else the query and then the documents, whose vectors' cosines are the
// scores.
Result<std::vector<EncoderTokens>> rerank_rows(const TextEncoder& encoder, const RerankRequest& request);
std::vector<float> rerank_scores(const TextEncoder& encoder, const std::vector<std::vector<float>>& results);
std::string rerank_answer(const TensorModel& model, const RerankRequest& request,
                          const std::vector<float>& scores, int64_t tokens);
// Indices of the best `top_n` (0: all) scores, best first; equal ones by index.
std::vector<size_t> rank(const std::vector<float>& scores, int64_t top_n);
// Parts of such answers. `vector` as numbers or in base64, as the request says; the cosine of zeros is 0.
void write_usage(JsonWriter& w, int64_t tokens);
void write_vector(JsonWriter& w, const EmbeddingRequest& request, const std::vector<float>& vector);
void write_token_vectors(JsonWriter& w, const EmbeddingRequest& request, const std::vector<float>& vectors,
                         size_t tokens);
float cosine(const std::vector<float>& a, const std::vector<float>& b);
int64_t count_tokens(const std::vector<EncoderTokens>& rows);

}  // namespace oar::api
