// The events of one generation as Ollama's answers to /api/chat and /api/generate: a JSON document for each
// piece, one a line, or one for all. Calls of tools come whole. Durations are nanoseconds: of the prompt from
// the first step to the first token, of the answer from there to its end.
#pragma once

#include <string>
#include <vector>

#include "server/api/answer_writer.h"
#include "server/api/embeddings.h"
#include "server/api/json_writer.h"
#include "server/api/reply_parts.h"

namespace oar::api {

class OllamaAnswer final : public AnswerWriter, ReplyParts::Watcher {
 public:
  OllamaAnswer(const GenerationSpec& spec, bool chat);

  std::string on_event(int32_t choice, const TextEvent& event) override;
  void collect(int32_t choice, const TextEvent& event) override;
  std::string body() const override;
  const char* content_type() const override { return "application/x-ndjson"; }

  // What is answered where nothing was asked: the model is there.
  static std::string loaded(const ModelHandle& model, bool chat);

 private:
  struct Piece {
    std::string text, thinking;
    std::vector<ReplyPart> calls;  // complete
    std::string logprobs;          // elements of a list
    bool empty() const { return text.empty() && thinking.empty() && calls.empty() && logprobs.empty(); }
  };
  void opened(size_t) override {}
  void grown(size_t, std::string_view) override {}
  void closed(size_t part) override;
  void note(const TextEvent& event);
  void append(std::string& out, const Piece& piece, bool done) const;

  const ModelHandlePtr model_;
  const bool chat_, logprobs_;
  ReplyParts parts_;
  Piece piece_;  // what has come and was not sent
  FinishReason finish_ = FinishReason::kNone;
  SequenceStats stats_;
};

// Of /api/embed and /api/embeddings.
Result<std::string> ollama_embed_answer(const TensorModel& model, const EmbeddingRequest& request,
                                        std::vector<std::vector<float>> vectors, int64_t tokens);
Result<std::string> ollama_embeddings_answer(const TensorModel& model, const EmbeddingRequest& request,
                                             std::vector<std::vector<float>> vectors, int64_t tokens);

}  // namespace oar::api
