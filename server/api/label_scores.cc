#include "server/api/label_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/format.h"
#include "server/api/json_writer.h"

namespace oar::api {
namespace {

constexpr size_t kMaxItems = 256;
constexpr size_t kMaxLabelBytes = 4 << 20;

using Ids = std::vector<int32_t>;

// A text or ids, in `name`.
void read_side(Fields& f, const char* name, const json::value& given, int64_t ids, Prompt& out) {
  if (given.is_string()) {
    out = std::string(given.get_string());
    return;
  }
  const json::array* const list = given.if_array();
  Ids tokens;
  for (const json::value& v : list ? *list : json::array()) {
    const int64_t* const id = v.if_int64();
    if (id == nullptr || *id < 0 || *id >= ids)
      return f.fail(name, cat(name, " has ", describe(v), "; ids are integers in [0, ", ids, ")"));
    tokens.push_back(static_cast<int32_t>(*id));
  }
  if (!list) return f.fail(name, cat(name, " is ", describe(given), "; send a text or a list of token ids"));
  out = std::move(tokens);
}

// `first` with `second` behind it; false: one is a text, and the other is not.
bool join(const Prompt& first, const Prompt& second, Prompt& out) {
  if (first.index() != second.index()) return false;
  out = first;
  if (auto* text = std::get_if<std::string>(&out)) *text += std::get<std::string>(second);
  else
    std::get<Ids>(out).insert(std::get<Ids>(out).end(), std::get<Ids>(second).begin(),
                              std::get<Ids>(second).end());
  return true;
}

class LabelAnswer final : public AnswerWriter {
 public:
  LabelAnswer(const GenerationSpec& spec, std::vector<int32_t> labels, bool softmax)
      : model_(spec.model->name),
        labels_(std::move(labels)),
        softmax_(softmax),
        scores_(spec.prompts.size()) {
    for (const std::vector<int32_t>& prompt : spec.prompts) tokens_ += std::ssize(prompt);
  }
  std::string on_event(int32_t, const TextEvent&) override { return {}; }  // it is never streamed
  void collect(int32_t choice, const TextEvent& event) override {
    if (!event.tokens.empty()) scores_[static_cast<size_t>(choice)] = scores_of(event.tokens.front());
    if (event.finish == FinishReason::kNone) return;
    if (const Status s = failure_of(event); !s.ok() && failure_.ok()) failure_ = s;
    finished_ = ++ended_ == scores_.size();
  }
  std::string body() const override {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("object").string("scoring").key("model").string(model_).key("scores").begin_array();
    for (const std::vector<double>& item : scores_) {
      w.begin_array();
      for (const double score : item) w.number(score);
      w.end_array();
    }
    w.end_array().key("usage").begin_object().key("prompt_tokens").number(tokens_);
    w.key("total_tokens")
        .number(tokens_)
        .key("completion_tokens")
        .number(int64_t{0})
        .end_object()
        .end_object();
    return out;
  }

 private:
  std::vector<double> scores_of(const TextEvent::Token& token) const {
    std::vector<double> out = label_probabilities(token, labels_);
    const double sum = std::accumulate(out.begin(), out.end(), 0.0);
    if (softmax_ && sum > 0)
      for (double& score : out) score /= sum;
    return out;
  }

  const std::string model_;
  const std::vector<int32_t> labels_;
  const bool softmax_;
  std::vector<std::vector<double>> scores_;
  int64_t tokens_ = 0;
  size_t ended_ = 0;
};

}  // namespace

std::vector<double> label_probabilities(const TextEvent::Token& token, std::span<const int32_t> labels) {
  std::vector<double> out;
  for (const int32_t label : labels) {
    const auto known = std::find_if(token.top.begin(), token.top.end(),
                                    [&](const TokenLogprob& t) { return t.token == label; });
    const double logprob = known != token.top.end() ? known->logprob
                           : label == token.id      ? token.logprob
                                                    : -INFINITY;
    out.push_back(std::exp(logprob));
  }
  return out;
}

Result<LabelRequest> parse_label_request(const RequestBody& body, const ModelHandle& model) {
  LabelRequest out;
  out.request = request_for(model);
  GenerationRequest& r = out.request;
  const RequestLimits& engine = model.engine->request_limits();
  Fields f(body);
  f.string("model", r.model, 1024);
  f.integers("label_token_ids", out.labels, engine.max_logprob_tokens, 0, engine.vocab_size - 1);
  f.boolean("apply_softmax", out.softmax);
  bool item_first = false;
  f.boolean("item_first", item_first);
  Prompt query;
  if (const json::value* given = f.find("query")) read_side(f, "query", *given, engine.vocab_size, query);
  std::vector<Prompt> items;
  if (const json::value* given = f.find("items")) {
    const json::array* const list = given->if_array();
    if (list == nullptr || list->empty() || list->size() > kMaxItems)
      f.fail("items", cat("items: send a list of 1 to ", kMaxItems, " texts, or of lists of token ids"));
    else
      for (const json::value& v : *list) read_side(f, "items", v, engine.vocab_size, items.emplace_back());
  }
  f.refuse_rest();
  if (f.ok() && out.labels.empty())
    f.fail("label_token_ids", "label_token_ids is missing or empty; send the ids of the tokens to score");
  if (f.ok() && items.empty()) f.fail("items", "items is missing; send a list of texts");
  for (const Prompt& item : items) {
    Prompt& prompt = r.prompts.emplace_back();
    if (f.ok() && !(item_first ? join(item, query, prompt) : join(query, item, prompt)))
      f.fail("items", "items: query and items are texts, or both are token ids");
  }
  if (!f.ok()) return f.status();
  r.prompt_field = "query";
  r.max_tokens = 1;
  r.stop.ignore_eos = true;
  r.sampling.temperature = 0;
  r.logprobs = 0;
  r.sampling.logprob_tokens = out.labels;
  return out;
}

std::unique_ptr<AnswerWriter> label_answer(const GenerationSpec& spec, std::vector<int32_t> labels,
                                           bool softmax) {
  return std::make_unique<LabelAnswer>(spec, std::move(labels), softmax);
}

}  // namespace oar::api
