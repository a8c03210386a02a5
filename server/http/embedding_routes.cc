// /v1/embeddings, /pooling, /classify, Ollama's /api/embed, /v1/score and /v1/rerank over the encoders among
// the ordinary models.
#include "server/api/embeddings.h"
#include "server/api/ollama_answer.h"
#include "server/api/ollama_request.h"
#include "server/api/openai_request.h"
#include "server/api/score.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// What they have in common: a body on a worker thread, rows through the encoder, an answer made of the
// vectors.
struct Work {
  api::TensorModelPtr model;
  std::vector<EncoderTokens> rows;
  api::EncodeTask::Want want;
  std::function<Result<std::string>(std::vector<std::vector<float>>)> answer;
};
using Deadline = std::optional<Clock::time_point>;
using Prepare = Result<Work> (*)(const Services&, const json::object&, Deadline);

// What the rows are wanted for; of a request that the answer is made of, its inputs are not.
api::EncodeTask::Want want_of(api::EmbeddingRequest& request, const std::vector<EncoderTokens>& rows) {
  request.inputs.clear();
  if (!request.per_token) return api::EncodeTask::Want::kVectors;
  for (const EncoderTokens& row : rows) request.lengths.push_back(row.ids.size());
  return api::EncodeTask::Want::kTokenVectors;
}

// Embeddings and /pooling: vectors, worded by `answer`.
template <auto parse, auto answer>
Result<Work> prepare_vectors(const Services& services, const json::object& body, Deadline deadline) {
  OAR_ASSIGN(api::EmbeddingRequest request, parse(body));
  Work w;
  OAR_ASSIGN(w.model, services.frontend->find_encoder(request.model, deadline));
  OAR_ASSIGN(w.rows, api::embedding_rows(*w.model->encoder, request));
  w.want = want_of(request, w.rows);
  w.answer = [model = w.model, request = std::move(request),
              tokens = api::count_tokens(w.rows)](std::vector<std::vector<float>> vectors) {
    return answer(*model, request, std::move(vectors), tokens);
  };
  return w;
}

Result<Work> prepare_score(const Services& services, const json::object& body, Deadline deadline) {
  OAR_ASSIGN(api::ScoreRequest request, api::parse_score_request(body));
  Work w;
  OAR_ASSIGN(w.model, services.frontend->find_encoder(request.model, deadline));
  OAR_ASSIGN(w.rows, api::score_rows(*w.model->encoder, request));
  w.want = w.model->encoder->classifies() ? api::EncodeTask::Want::kScores : api::EncodeTask::Want::kVectors;
  w.answer = [model = w.model, request = std::move(request),
              tokens = api::count_tokens(w.rows)](std::vector<std::vector<float>> results) {
    return api::score_answer(*model, request, results, tokens);
  };
  return w;
}

Result<Work> prepare_labels(const Services& services, const json::object& body, Deadline deadline) {
  OAR_ASSIGN(const api::EmbeddingRequest request, api::parse_classify_request(body));
  Work w;
  OAR_ASSIGN(w.model, services.frontend->find_encoder(request.model, deadline));
  OAR_ASSIGN(w.rows, api::classify_rows(*w.model->encoder, request));
  w.want = api::EncodeTask::Want::kLabels;
  w.answer = [model = w.model, tokens = api::count_tokens(w.rows)](std::vector<std::vector<float>> labels) {
    return api::classify_answer(*model, labels, tokens);
  };
  return w;
}

Result<Work> prepare_rerank(const Services& services, const json::object& body, Deadline deadline) {
  OAR_ASSIGN(api::RerankRequest request, api::parse_rerank_request(body));
  Work w;
  OAR_ASSIGN(w.model, services.frontend->find_encoder(request.model, deadline));
  OAR_ASSIGN(w.rows, api::rerank_rows(*w.model->encoder, request));
  w.want = w.model->encoder->classifies() ? api::EncodeTask::Want::kScores : api::EncodeTask::Want::kVectors;
  w.answer = [model = w.model, request = std::move(request), tokens = api::count_tokens(w.rows)](
                 std::vector<std::vector<float>> results) -> Result<std::string> {
    return api::rerank_answer(*model, request, api::rerank_scores(*model->encoder, results), tokens);
  };
  return w;
}

Status start_work(const Services& services, Prepare prepare, const api::RequestContext& context,
                  const std::string& path, const json::object& body, api::AdmissionPtr admission,
                  const WriterPtr& writer) {
  OAR_ASSIGN(Work work, prepare(services, body, context.deadline));
  const auto task = api::EncodeTask::start(
      work.model, std::move(work.rows), work.want, context.deadline,
      api::EncodeTask::Caller{context.id, context.trace},
      [workers = services.workers->executor(), writer, path, admission = std::move(admission),
       answer = std::move(work.answer)](Result<std::vector<std::vector<float>>> results) {
        // Thousands of vectors in JSON are not for the encoder's thread to write.
        auto shared = std::make_shared<Result<std::vector<std::vector<float>>>>(std::move(results));
        workers([writer, path, answer, shared] {
          Result<std::string> text =
              shared->ok() ? answer(std::move(**shared)) : Result<std::string>(shared->status());
          writer->send(text.ok() ? json_answer(std::move(*text)) : error_answer(path, text.status()));
        });
      },
      context.background ? api::EncodeTask::kBackgroundRows : api::EncodeTask::kRows);
  writer->on_disconnect([task] { task->cancel(); });
  return ok_status();
}

Status start(const Services& services, Prepare prepare, const api::RequestContext& context,
             const std::string& path, const std::string& text, const WriterPtr& writer) {
  OAR_ASSIGN(api::AdmissionPtr admission, services.frontend->admit(context));
  OAR_ASSIGN(const json::object body, api::parse_body(text));
  return start_work(services, prepare, context, path, body, std::move(admission), writer);
}

Handler handler(const Services& services, Prepare prepare) {
  return [&services, prepare](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post([&services, prepare, shared, writer = std::move(writer)] {
      const Result<api::RequestContext> context = context_of(services, *shared);
      const Status s = context.ok() ? start(services, prepare, *context, shared->path, shared->body, writer)
                                    : context.status();
      if (!s.ok()) writer->send(error_answer(shared->path, s));
    });
  };
}

// Pairs of texts by an encoder; by a language model, where tokens are named whose likelihood is asked for.
Handler score_route(const Services& services) {
  return [&services](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post([&services, shared, writer = std::move(writer)] {
      const auto begin = [&]() -> Status {
        OAR_ASSIGN(api::RequestContext context, context_of(services, *shared));
        OAR_ASSIGN(const json::object body, api::parse_body(shared->body));
        if (body.contains("label_token_ids"))
          return start_generation(services, &api::Frontend::prepare_label_scores, std::move(context),
                                  shared->path, body, writer);
        OAR_ASSIGN(api::AdmissionPtr admission, services.frontend->admit(context));
        return start_work(services, &prepare_score, context, shared->path, body, std::move(admission),
                          writer);
      };
      if (const Status s = begin(); !s.ok()) writer->send(error_answer(shared->path, s));
    });
  };
}

// Where the server was started for vectors of tokens, OpenAI's answer has no place for them.
Result<Work> prepare_embeddings(const Services& services, const json::object& body, Deadline deadline) {
  OAR_ASSIGN(const api::EmbeddingRequest request, api::parse_embedding_request(body));
  OAR_ASSIGN(const api::TensorModelPtr model, services.frontend->find_encoder(request.model, deadline));
  if (model->token_vectors)
    return invalid_argument(
        "input: the server answers with a vector of each token (--pooling none), and this path with one of "
        "each "
        "input; ask POST /embeddings, or /pooling with task token_embed",
        "input");
  return prepare_vectors<&api::parse_embedding_request, &api::embedding_answer>(services, body, deadline);
}

// llama.cpp's path: vectors of tokens in its words, else OpenAI's answer.
Result<Work> prepare_llama_embeddings(const Services& services, const json::object& body, Deadline deadline) {
  OAR_ASSIGN(api::EmbeddingRequest request, api::parse_embedding_request(body));
  Work w;
  OAR_ASSIGN(w.model, services.frontend->find_encoder(request.model, deadline));
  if (!w.model->token_vectors) return prepare_embeddings(services, body, deadline);
  request.per_token = true;
  OAR_ASSIGN(w.rows, api::embedding_rows(*w.model->encoder, request));
  w.want = want_of(request, w.rows);
  w.answer = [request = std::move(request)](std::vector<std::vector<float>> vectors) -> Result<std::string> {
    OAR_RETURN_IF_ERROR(api::fit_vectors(request, vectors));
    return api::token_embedding_answer(request, vectors);
  };
  return w;
}

}  // namespace

Status start_embedding(const Services& services, api::RequestContext context, const std::string& path,
                       const std::string& body, const WriterPtr& writer) {
  return start(services, &prepare_embeddings, context, path, body, writer);
}

void add_embedding_routes(Router& router, const Services& services) {
  router.add("POST", "/v1/embeddings", handler(services, &prepare_embeddings));
  router.add("POST", "/embeddings", handler(services, &prepare_llama_embeddings));
  for (const char* path : {"/pooling", "/v1/pooling"})
    router.add("POST", path,
               handler(services, &prepare_vectors<&api::parse_pooling_request, &api::pooling_answer>));
  router.add("POST", "/api/embed",
             handler(services, &prepare_vectors<&api::parse_ollama_embed, &api::ollama_embed_answer>));
  router.add(
      "POST", "/api/embeddings",
      handler(services, &prepare_vectors<&api::parse_ollama_embeddings, &api::ollama_embeddings_answer>));
  for (const char* path : {"/classify", "/v1/classify"})
    router.add("POST", path, handler(services, &prepare_labels));
  for (const char* path : {"/v1/score", "/score"}) router.add("POST", path, score_route(services));
  for (const char* path : {"/v1/rerank", "/rerank", "/v2/rerank"})
    router.add("POST", path, handler(services, &prepare_rerank));
}

}  // namespace oar::http
