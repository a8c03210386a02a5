#include "server/grpc/encoding_service.h"

#include <memory>
#include <mutex>

#include "server/api/embeddings.h"

namespace oar::grpc_api {
namespace {

using api::EncodeTask;
using Vectors = std::vector<std::vector<float>>;

// A request prepared: its rows, and how the response is filled from what they give.
struct Work {
  api::TensorModelPtr model;
  std::vector<EncoderTokens> rows;
  EncodeTask::Want want = EncodeTask::Want::kVectors;
  std::function<Status(Vectors)> fill;
};

using Deadline = std::optional<Clock::time_point>;

Result<Work> prepare(const Services& services, const v1::EmbedRequest& message, v1::EmbedResponse* response,
                     Deadline deadline) {
  api::EmbeddingRequest request;
  request.dimensions = message.dimensions();
  request.truncate_to = message.truncate_tokens() < 0 ? INT64_MAX : message.truncate_tokens();
  if (message.dimensions() < 0) return invalid_argument("dimensions must not be negative", "dimensions");
  for (const v1::EmbedInput& input : message.inputs()) {
    if (input.has_tokens())
      request.inputs.emplace_back(
          std::vector<int32_t>(input.tokens().ids().begin(), input.tokens().ids().end()));
    else request.inputs.emplace_back(input.text());
  }
  OAR_RETURN_IF_ERROR(api::check_inputs(request));
  Work w;
  OAR_ASSIGN(w.model, services.frontend->find_encoder(message.model(), deadline));
  OAR_ASSIGN(w.rows, api::embedding_rows(*w.model->encoder, request));
  request.inputs.clear();
  w.fill = [response, model = w.model, request, tokens = api::count_tokens(w.rows)](Vectors vectors) {
    OAR_RETURN_IF_ERROR(api::fit_vectors(request, vectors));
    response->set_model(model->config.name);
    response->set_prompt_tokens(tokens);
    for (const auto& v : vectors) response->add_embeddings()->mutable_values()->Add(v.begin(), v.end());
    return ok_status();
  };
  return w;
}

Result<Work> prepare(const Services& services, const v1::RerankRequest& message, v1::RerankResponse* response,
                     Deadline deadline) {
  api::RerankRequest request;
  request.query = message.query();
  request.documents.assign(message.documents().begin(), message.documents().end());
  if (message.top_n() < 0) return invalid_argument("top_n must not be negative", "top_n");
  OAR_RETURN_IF_ERROR(api::check_documents(request));
  Work w;
  OAR_ASSIGN(w.model, services.frontend->find_encoder(message.model(), deadline));
  OAR_ASSIGN(w.rows, api::rerank_rows(*w.model->encoder, request));
  if (w.model->encoder->classifies()) w.want = EncodeTask::Want::kScores;
  w.fill = [response, model = w.model, top_n = message.top_n(),
            tokens = api::count_tokens(w.rows)](Vectors results) {
    const std::vector<float> scores = api::rerank_scores(*model->encoder, results);
    response->set_model(model->config.name);
    response->set_prompt_tokens(tokens);
    for (const size_t k : api::rank(scores, top_n)) {
      v1::RerankResult* r = response->add_results();
      r->set_index(static_cast<int32_t>(k));
      r->set_relevance_score(scores[k]);
    }
    return ok_status();
  };
  return w;
}

// A unary call: tokenized on a worker, answered by the encoder's thread. gRPC keeps request and response
// until Finish.
template <class Request, class Response>
class EncodeCall final : public grpc::ServerUnaryReactor,
                         public std::enable_shared_from_this<EncodeCall<Request, Response>> {
 public:
  EncodeCall(const Services& services, grpc::CallbackServerContext* context, const char* method,
             const Request* request, Response* response)
      : services_(services),
        context_(context),
        request_(request),
        response_(response),
        timer_(services, method) {}

  void begin() {
    self_ = this->shared_from_this();
    if (const Status s = authorize(services_, *context_); !s.ok()) return finish(s);
    services_.workers->post([self = this->shared_from_this()] {
      if (const Status s = self->run(); !s.ok()) self->finish(s);
    });
  }

 private:
  Status run() {
    const api::RequestContext about = context_of(services_, *context_);
    OAR_ASSIGN(api::AdmissionPtr admission, services_.frontend->admit(about));
    OAR_RETURN_IF_ERROR(refuse_unknown_fields(*request_));
    OAR_ASSIGN(Work work, prepare(services_, *request_, response_, about.deadline));
    auto task = EncodeTask::start(work.model, std::move(work.rows), work.want, about.deadline,
                                  EncodeTask::Caller{about.id, about.trace},
                                  [self = this->shared_from_this(), admission = std::move(admission),
                                   fill = std::move(work.fill)](Result<Vectors> results) {
                                    self->finish(results.ok() ? fill(std::move(*results)) : results.status());
                                  });
    bool cancelled;
    {
      std::lock_guard lock(mutex_);
      cancelled = cancelled_;
      task_ = task;
    }
    if (cancelled) task->cancel();
    return ok_status();
  }
  void finish(const Status& status) {
    const grpc::Status s = to_grpc(status);
    timer_.done(s.error_code());
    this->Finish(s);
  }
  void OnCancel() override {
    std::shared_ptr<EncodeTask> task;
    {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
      task = task_;
    }
    if (task) task->cancel();
  }
  void OnDone() override { const auto self = std::move(self_); }

  const Services& services_;
  grpc::CallbackServerContext* context_;
  const Request* request_;
  Response* response_;
  CallTimer timer_;
  std::shared_ptr<EncodeCall> self_;
  std::mutex mutex_;
  std::shared_ptr<EncodeTask> task_;  // guarded by mutex_
  bool cancelled_ = false;            // guarded by mutex_
};

template <class Request, class Response>
grpc::ServerUnaryReactor* begin_encode(const Services& services, grpc::CallbackServerContext* context,
                                       const char* method, const Request* request, Response* response) {
  auto call = std::make_shared<EncodeCall<Request, Response>>(services, context, method, request, response);
  call->begin();
  return call.get();
}

}  // namespace

grpc::ServerUnaryReactor* EncodingService::Embed(Context* context, const v1::EmbedRequest* request,
                                                 v1::EmbedResponse* response) {
  return begin_encode(services_, context, "Embed", request, response);
}

grpc::ServerUnaryReactor* EncodingService::Rerank(Context* context, const v1::RerankRequest* request,
                                                  v1::RerankResponse* response) {
  return begin_encode(services_, context, "Rerank", request, response);
}

}  // namespace oar::grpc_api
