#include "server/api/embeddings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/base/format.h"
#include "server/api/fields.h"
#include "server/api/frontend.h"
#include "server/api/json_writer.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

std::string base64(const std::vector<float>& values) {
  static constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kLetters[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace

void write_usage(JsonWriter& w, int64_t tokens) {
  w.key("usage")
      .begin_object()
      .key("prompt_tokens")
      .number(tokens)
      .key("total_tokens")
      .number(tokens)
      .end_object();
}

void write_vector(JsonWriter& w, const EmbeddingRequest& request, const std::vector<float>& vector) {
  if (request.base64) {
    w.string(base64(vector));
    return;
  }
  w.begin_array();
  for (const float x : vector) w.number(x);
  w.end_array();
}

float cosine(const std::vector<float>& a, const std::vector<float>& b) {
  const auto dot = [](const std::vector<float>& u, const std::vector<float>& v) {
    double sum = 0;
    for (size_t k = 0; k < u.size() && k < v.size(); ++k)
      sum += static_cast<double>(u[k]) * static_cast<double>(v[k]);
    return sum;
  };
  const double norms = std::sqrt(dot(a, a) * dot(b, b));
  return static_cast<float>(norms > 0 ? dot(a, b) / norms : 0);
}

// ---- the task ----

EncodeTask::EncodeTask(TensorModelPtr model, std::vector<EncoderTokens> rows, Want want,
                       std::optional<Clock::time_point> deadline, Caller caller, Done done,
                       size_t rows_at_once)
    : model_(std::move(model)),
      rows_(std::move(rows)),
      want_(want),
      deadline_(deadline),
      caller_(std::move(caller)),
      rows_at_once_(rows_at_once),
      done_(std::move(done)) {
  order_.resize(rows_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [this](size_t a, size_t b) { return rows_[a].ids.size() < rows_[b].ids.size(); });
  results_.resize(rows_.size());
  tickets_.resize(rows_.size());
}

std::shared_ptr<EncodeTask> EncodeTask::start(TensorModelPtr model, std::vector<EncoderTokens> rows,
                                              Want want, std::optional<Clock::time_point> deadline,
                                              Caller caller, Done done, size_t rows_at_once) {
  auto task = std::shared_ptr<EncodeTask>(new EncodeTask(std::move(model), std::move(rows), want, deadline,
                                                         std::move(caller), std::move(done), rows_at_once));
  task->pump();
  return task;
}

void EncodeTask::pump() {
  for (;;) {
    size_t row;
    {
      std::lock_guard lock(mutex_);
      if (failed_ || next_ == order_.size() || in_flight_ >= rows_at_once_) return;
      row = order_[next_++];
      ++in_flight_;
    }
    if (const Status s = submit(row); !s.ok()) return finish(s);
  }
}

Status EncodeTask::submit(size_t row) {
  InferJob job;
  OAR_ASSIGN(job.inputs, model_->encoder->inputs(rows_[row]));
  job.deadline = queue_deadline(model_->config, deadline_, 0);
  job.end_by = deadline_;
  job.id = caller_.id;
  job.trace = caller_.trace;
  job.done = [self = shared_from_this(), row](Result<std::vector<Datum>> outputs) {
    self->answered(row, std::move(outputs));
  };
  OAR_ASSIGN(const uint64_t ticket, model_->runner->submit(std::move(job)));
  bool late;
  {
    std::lock_guard lock(mutex_);
    tickets_[row] = ticket;  // perhaps of a row that has been answered by now: cancelling it does nothing
    late = failed_;
  }
  if (late) model_->runner->cancel(ticket);
  return ok_status();
}

void EncodeTask::answered(size_t row, Result<std::vector<Datum>> outputs) {
  Result<std::vector<float>> made = outputs.status().ok() ? Result<std::vector<float>>(std::vector<float>())
                                                          : Result<std::vector<float>>(outputs.status());
  if (outputs.ok() && want_ == Want::kVectors) {
    made = model_->encoder->vector(*outputs, rows_[row].ids.size(), model_->vectors);
  } else if (outputs.ok() && want_ == Want::kTokenVectors) {
    made = model_->encoder->token_vectors(*outputs, rows_[row].ids.size());
  } else if (outputs.ok() && want_ == Want::kLabels) {
    made = model_->encoder->probabilities(*outputs);
  } else if (outputs.ok()) {
    Result<float> score = model_->encoder->score(*outputs);
    made = score.ok() ? Result<std::vector<float>>(std::vector<float>{*score}) : score.status();
  }
  if (!made.ok()) return finish(made.status());
  model_->encoded_tokens += rows_[row].ids.size();
  bool all;
  {
    std::lock_guard lock(mutex_);
    --in_flight_;
    results_[row] = std::move(*made);
    all = ++finished_ == rows_.size();
  }
  if (all) return finish(ok_status());
  pump();
}

void EncodeTask::finish(const Status& status) {
  Done done;
  std::vector<uint64_t> tickets;
  {
    std::lock_guard lock(mutex_);
    if (!done_) return;
    done = std::exchange(done_, nullptr);
    failed_ = !status.ok();
    if (failed_) tickets.swap(tickets_), tickets_.resize(rows_.size());
  }
  for (const uint64_t ticket : tickets)
    if (ticket != 0) model_->runner->cancel(ticket);
  if (status.ok()) {
    done(std::move(results_));
  } else {
    done(status);
  }
}

void EncodeTask::cancel() { finish(Status(StatusCode::kCancelled, "cancelled")); }

// ---- requests and answers ----

int64_t count_tokens(const std::vector<EncoderTokens>& rows) {
  int64_t n = 0;
  for (const EncoderTokens& r : rows) n += static_cast<int64_t>(r.ids.size());
  return n;
}

namespace {

// Taken as lists of tokens are: nothing is put around them.
Result<std::vector<int32_t>> tokens_of(const TextEncoder& encoder, const MixedInput& input) {
  Tokenizer::EncodeOptions plain;
  plain.add_special_tokens = false;
  std::vector<int32_t> out;
  for (const auto& piece : input) {
    if (const auto* token = std::get_if<int32_t>(&piece)) {
      out.push_back(*token);
      continue;
    }
    OAR_ASSIGN(const std::vector<int32_t> ids,
               encoder.tokenizer().encode(std::get<std::string>(piece), plain));
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

Result<std::vector<EncoderTokens>> input_rows(const TextEncoder& encoder, const EmbeddingRequest& request) {
  std::vector<EncoderTokens> rows;
  for (const auto& input : request.inputs) {
    if (const auto* text = std::get_if<std::string>(&input)) {
      OAR_ASSIGN(EncoderTokens row, encoder.encode(*text, request.truncate_to));
      rows.push_back(std::move(row));
    } else {
      const auto* tokens = std::get_if<std::vector<int32_t>>(&input);
      OAR_ASSIGN(std::vector<int32_t> ids, tokens ? Result<std::vector<int32_t>>(*tokens)
                                                  : tokens_of(encoder, std::get<MixedInput>(input)));
      OAR_ASSIGN(EncoderTokens row, encoder.accept(std::move(ids), request.truncate_to));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace

Result<std::vector<EncoderTokens>> classify_rows(const TextEncoder& encoder,
                                                 const EmbeddingRequest& request) {
  if (!encoder.classifies())
    return invalid_argument(
        "the model has no head that gives a text a label; of its tokens /v2 gives token_logits", "model");
  return input_rows(encoder, request);
}

Result<std::vector<EncoderTokens>> embedding_rows(const TextEncoder& encoder,
                                                  const EmbeddingRequest& request) {
  if (!encoder.embeds())
    return invalid_argument("the model scores pairs and has no embeddings; use /v1/rerank", "model");
  const int64_t own = encoder.info().dimensions;
  if (request.dimensions > 0 && own > 0 && request.dimensions != own &&
      (!encoder.info().matryoshka || request.dimensions > own)) {
    return invalid_argument(cat("dimensions is ", request.dimensions, ", the model's embeddings have ", own,
                                "; leave dimensions out"),
                            "dimensions");
  }
  return input_rows(encoder, request);
}

void write_token_vectors(JsonWriter& w, const EmbeddingRequest& request, const std::vector<float>& vectors,
                         size_t tokens) {
  const size_t width = tokens > 0 ? vectors.size() / tokens : 0;
  w.begin_array();
  for (size_t n = 0; n < tokens; ++n) {
    const auto from = vectors.begin() + static_cast<std::ptrdiff_t>(n * width);
    write_vector(w, request, {from, from + static_cast<std::ptrdiff_t>(width)});
  }
  w.end_array();
}

Status fit_vectors(const EmbeddingRequest& request, std::vector<std::vector<float>>& vectors) {
  for (size_t k = 0; k < vectors.size(); ++k) {
    std::vector<float>& v = vectors[k];
    if (!request.per_token && request.dimensions > 0 && static_cast<size_t>(request.dimensions) < v.size()) {
      // A shortened vector is made a unit again.
      v.resize(static_cast<size_t>(request.dimensions));
      double square = 0;
      for (const float x : v) square += static_cast<double>(x) * static_cast<double>(x);
      for (float& x : v) x = static_cast<float>(static_cast<double>(x) / std::max(std::sqrt(square), 1e-12));
    }
    for (const float x : v)
      if (!std::isfinite(x)) return internal_error(cat("the embedding of input ", k, " is not finite"));
  }
  return ok_status();
}

Result<std::string> embedding_answer(const TensorModel& model, const EmbeddingRequest& request,
                                     std::vector<std::vector<float>> vectors, int64_t tokens) {
  OAR_RETURN_IF_ERROR(fit_vectors(request, vectors));
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("object").string("list").key("data").begin_array();
  for (size_t k = 0; k < vectors.size(); ++k) {
    w.begin_object()
        .key("object")
        .string("embedding")
        .key("index")
        .number(static_cast<int64_t>(k))
        .key("embedding");
    write_vector(w, request, vectors[k]);
    w.end_object();
  }
  w.end_array().key("model").string(model.config.name);
  write_usage(w, tokens);
  w.end_object();
  return out;
}

std::string token_embedding_answer(const EmbeddingRequest& request,
                                   const std::vector<std::vector<float>>& vectors) {
  std::string out;
  JsonWriter w(out);
  w.begin_array();
  for (size_t k = 0; k < vectors.size(); ++k) {
    w.begin_object().key("index").number(static_cast<int64_t>(k)).key("embedding");
    write_token_vectors(w, request, vectors[k], request.lengths[k]);
    w.end_object();
  }
  w.end_array();
  return out;
}

Result<std::vector<EncoderTokens>> rerank_rows(const TextEncoder& encoder, const RerankRequest& request) {
  std::vector<EncoderTokens> rows;
  if (!encoder.classifies()) {
    OAR_ASSIGN(EncoderTokens query, encoder.encode(request.query, 0));
    rows.push_back(std::move(query));
  }
  for (const std::string& document : request.documents) {
    OAR_ASSIGN(EncoderTokens row, encoder.classifies() ? encoder.encode_pair(request.query, document)
                                                       : encoder.encode(document, INT64_MAX));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<float> rerank_scores(const TextEncoder& encoder, const std::vector<std::vector<float>>& results) {
  std::vector<float> out;
  if (encoder.classifies()) {
    for (const auto& r : results) out.push_back(r[0]);
    return out;
  }
  for (size_t k = 1; k < results.size(); ++k) out.push_back(cosine(results[0], results[k]));
  return out;
}

std::vector<size_t> rank(const std::vector<float>& scores, int64_t top_n) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // A score that is not a number comes last, so that the order is one.
  const auto key = [&](size_t k) { return std::isnan(scores[k]) ? -INFINITY : scores[k]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
  if (top_n > 0 && static_cast<size_t>(top_n) < order.size()) order.resize(static_cast<size_t>(top_n));
  return order;
}

std::string rerank_answer(const TensorModel& model, const RerankRequest& request,
                          const std::vector<float>& scores, int64_t tokens) {
  std::string out;
  JsonWriter w(out);
  if (request.tei) {
    w.begin_array();
    for (const size_t k : rank(scores, request.top_n)) {
      w.begin_object().key("index").number(static_cast<int64_t>(k)).key("score").number(scores[k]);
      if (request.return_documents) w.key("text").string(request.documents[k]);
      w.end_object();
    }
    w.end_array();
    return out;
  }
  w.begin_object().key("id").string(make_id("rerank-")).key("model").string(model.config.name);
  write_usage(w, tokens);
  w.key("results").begin_array();
  for (const size_t k : rank(scores, request.top_n)) {
    w.begin_object().key("index").number(static_cast<int64_t>(k)).key("relevance_score").number(scores[k]);
    if (request.return_documents)
      w.key("document").begin_object().key("text").string(request.documents[k]).end_object();
    w.end_object();
  }
  w.end_array().end_object();
  return out;
}

}  // namespace oar::api
