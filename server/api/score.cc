#include "server/api/score.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "engine/base/format.h"
#include "server/api/fields.h"
#include "server/api/frontend.h"
#include "server/api/json_writer.h"

namespace oar::api {
namespace {

constexpr size_t kMaxPairs = 10'000;
constexpr size_t kMaxTextBytes = 4 << 20;

// vLLM has had several names for the two sides.
void read_side(Fields& f, std::initializer_list<const char*> names, std::vector<std::string>& out) {
  const char* given = nullptr;
  for (const char* name : names) {
    if (!f.find(name)) continue;
    if (given) return f.fail(name, cat(name, " and ", given, " are the same; send one of them"));
    given = name;
    f.strings(name, out, kMaxPairs, kMaxTextBytes);
  }
  const char* usual = *names.begin();
  if (f.ok() && out.empty())
    f.fail(usual, cat(usual, " is missing or empty; send a text or a list of texts"));
}

void head(JsonWriter& w, const char* prefix, const TensorModel& model) {
  w.begin_object().key("id").string(make_id(prefix)).key("object").string("list");
  w.key("created").number(static_cast<int64_t>(std::time(nullptr)));
  w.key("model").string(model.config.name).key("data").begin_array();
}

}  // namespace

Result<ScoreRequest> parse_score_request(const RequestBody& body) {
  ScoreRequest out;
  Fields f(body);
  f.string("model", out.model, 1024);
  read_side(f, {"text_1", "queries", "data_1"}, out.first);
  read_side(f, {"text_2", "documents", "items", "data_2"}, out.second);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  if (out.first.size() != 1 && out.first.size() != out.second.size())
    return invalid_argument(cat("text_1 has ", out.first.size(), " texts and text_2 ", out.second.size(),
                                "; send one text_1, or as many as text_2"),
                            "text_1");
  return out;
}

Result<std::vector<EncoderTokens>> score_rows(const TextEncoder& encoder, const ScoreRequest& request) {
  std::vector<EncoderTokens> rows;
  if (encoder.classifies()) {
    for (size_t k = 0; k < request.second.size(); ++k) {
      OAR_ASSIGN(EncoderTokens row, encoder.encode_pair(request.first_of(k), request.second[k]));
      rows.push_back(std::move(row));
    }
    return rows;
  }
  for (const auto* side : {&request.first, &request.second}) {
    for (const std::string& text : *side) {
      OAR_ASSIGN(EncoderTokens row, encoder.encode(text, 0));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Result<std::string> score_answer(const TensorModel& model, const ScoreRequest& request,
                                 const std::vector<std::vector<float>>& results, int64_t tokens) {
  std::string out;
  JsonWriter w(out);
  head(w, "score-", model);
  for (size_t k = 0; k < request.second.size(); ++k) {
    float score = 0;
    if (model.encoder->classifies()) {
      score = results[k][0];
    } else {
      score = cosine(results[request.first.size() == 1 ? 0 : k], results[request.first.size() + k]);
    }
    if (!std::isfinite(score)) return internal_error(cat("the score of pair ", k, " is not finite"));
    w.begin_object().key("index").number(static_cast<int64_t>(k));
    w.key("object").string("score").key("score").number(score).end_object();
  }
  w.end_array();
  write_usage(w, tokens);
  w.end_object();
  return out;
}

Result<std::string> classify_answer(const TensorModel& model,
                                    const std::vector<std::vector<float>>& probabilities, int64_t tokens) {
  std::string out;
  JsonWriter w(out);
  head(w, "classify-", model);
  for (size_t k = 0; k < probabilities.size(); ++k) {
    const std::vector<float>& p = probabilities[k];
    for (const float x : p)
      if (!std::isfinite(x))
        return internal_error(cat("the labels of input ", k, " have no finite probabilities"));
    const auto best = static_cast<size_t>(std::max_element(p.begin(), p.end()) - p.begin());
    w.begin_object().key("index").number(static_cast<int64_t>(k));
    w.key("label").string(model.encoder->label_name(best)).key("probs").begin_array();
    for (const float x : p) w.number(x);
    w.end_array().key("num_classes").number(static_cast<int64_t>(p.size())).end_object();
  }
  w.end_array();
  write_usage(w, tokens);
  w.end_object();
  return out;
}

Result<std::string> pooling_answer(const TensorModel& model, const EmbeddingRequest& request,
                                   std::vector<std::vector<float>> vectors, int64_t tokens) {
  OAR_RETURN_IF_ERROR(fit_vectors(request, vectors));
  std::string out;
  JsonWriter w(out);
  head(w, "pool-", model);
  for (size_t k = 0; k < vectors.size(); ++k) {
    w.begin_object().key("index").number(static_cast<int64_t>(k)).key("object").string("pooling").key("data");
    if (request.per_token) write_token_vectors(w, request, vectors[k], request.lengths[k]);
    else write_vector(w, request, vectors[k]);
    w.end_object();
  }
  w.end_array();
  write_usage(w, tokens);
  w.end_object();
  return out;
}

}  // namespace oar::api
