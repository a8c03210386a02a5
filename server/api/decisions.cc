#include "server/api/decisions.h"

#include <algorithm>
#include <numeric>

#include "engine/base/format.h"
#include "server/api/json_writer.h"
#include "server/api/label_scores.h"
#include "server/api/message_parts.h"

namespace oar::api {
namespace {

// OpenAI's bounds, but for the choices, each of which has a letter.
constexpr size_t kMaxQuestions = 200, kMaxOptions = 26, kMaxLevels = 10, kMaxWordBytes = 1 << 20;

Status text_input_only(const json::value& content, const std::string& path) {
  if (!content.is_array()) return ok_status();
  const json::array& parts = content.get_array();
  for (size_t i = 0; i < parts.size(); ++i) {
    const json::value* type = parts[i].is_object() ? parts[i].get_object().if_contains("type") : nullptr;
    if (!type || *type == "input_text") continue;
    const std::string where = cat(path, "[", i, "].type");
    return invalid_argument(
        cat(where, " is ", describe(*type), "; decisions take text input only: parts of type input_text"),
        where);
  }
  return ok_status();
}

Result<std::string> read_user_message(const json::value& v, const std::string& path) {
  if (!v.is_object())
    return invalid_argument(cat(path, " must be a message of role user, got ", describe(v)), path);
  Fields f(v.get_object(), path + ".");
  std::string role, type = "message";
  f.string("role", role, 64);
  f.string("type", type, 64);
  if (role != "user") f.fail("role", cat(path, ".role is ", describe(json::value(role)), "; use user"));
  if (type != "message") f.fail("type", cat(path, ".type is ", describe(json::value(type)), "; use message"));
  const json::value* content = f.find("content");
  f.require("content", "give a text");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_RETURN_IF_ERROR(text_input_only(*content, path + ".content"));
  return text_of_content(*content, path + ".content", {"input_text"});
}

// A text, or messages of the user, which stand apart.
Result<std::string> read_text_input(const json::value& given) {
  if (given.is_string()) return std::string(given.get_string());
  const json::array* list = given.if_array();
  if (!list || list->empty())
    return invalid_argument(
        cat("input must be a string or a list of messages of role user, got ", describe(given)), "input");
  std::string out;
  for (size_t i = 0; i < list->size(); ++i) {
    OAR_ASSIGN(const std::string text, read_user_message((*list)[i], cat("input[", i, "]")));
    if (i > 0) out += "\n\n";
    out += text;
  }
  return out;
}

// `member` names the option: "value", or "label", which is a text.
Result<DecisionQuestion::Option> read_option(const json::value& v, const char* member, bool or_boolean,
                                             const std::string& path) {
  if (!v.is_object()) return invalid_argument(cat(path, " must be an object, got ", describe(v)), path);
  Fields f(v.get_object(), path + ".");
  DecisionQuestion::Option out;
  const json::value* value = f.find(member);
  f.require(member, or_boolean ? "give a text, true or false" : "give a text");
  f.string("description", out.description, kMaxWordBytes);
  f.refuse_rest();
  if (f.ok() && !value->is_string() && !(or_boolean && value->is_bool()))
    f.fail(member, cat(path, ".", member, " must be a string", or_boolean ? " or a boolean" : "", ", got ",
                       describe(*value)));
  if (!f.ok()) return f.status();
  out.value = *value;
  return out;
}

void read_answers(Fields& f, const char* list, const char* member, size_t most, DecisionQuestion& q) {
  const json::array* given = f.array(list);
  const std::string path = f.path_of(list);
  if (!given || given->size() < 2 || given->size() > most)
    return f.fail(list, cat(path, ": send a list of 2 to ", most, " objects with a ", member));
  for (size_t i = 0; i < given->size(); ++i) {
    auto option = read_option((*given)[i], member, q.kind == DecisionKind::kChoice, cat(path, "[", i, "]"));
    if (!option.ok()) return f.fail(list, option.status().message());
    const auto same = [&](const DecisionQuestion::Option& o) { return o.value == option->value; };
    if (q.kind == DecisionKind::kChoice && std::any_of(q.options.begin(), q.options.end(), same))
      return f.fail(list, cat(path, "[", i, "].", member, " is ", describe(option->value),
                              ", as another one is; choices differ"));
    q.options.push_back(std::move(*option));
  }
}

Result<DecisionQuestion> read_question(const json::value& v, const std::string& path) {
  if (!v.is_object()) return invalid_argument(cat(path, " must be an object, got ", describe(v)), path);
  Fields f(v.get_object(), path + ".");
  DecisionQuestion q;
  std::string type, name;
  f.string("type", type, 64);
  f.string("instructions", q.instructions, kMaxWordBytes);
  f.string("name", name, kMaxWordBytes);
  if (f.find("name")) q.name = name;
  f.require("type", "use predicate, choice or score");
  f.require("instructions", "say what is asked");
  if (type == "predicate") {
    q.options = {{false, {}}, {true, {}}};
  } else if (type == "choice") {
    q.kind = DecisionKind::kChoice;
    read_answers(f, "choices", "value", kMaxOptions, q);
  } else if (type == "score") {
    q.kind = DecisionKind::kScore;
    read_answers(f, "levels", "label", kMaxLevels, q);
  } else {
    f.fail("type", cat(path, ".type is ", describe(json::value(type)), "; use predicate, choice or score"));
  }
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return q;
}

char letter_of(size_t option) { return static_cast<char>('A' + option); }

// What is the same for all questions stands first, so that it is computed once.
std::string question_text(const std::string& input, const DecisionQuestion& q) {
  std::string out = cat(input, "\n\n", q.instructions, "\n");
  for (size_t i = 0; i < q.options.size(); ++i) {
    const json::value& value = q.options[i].value;
    out += cat("\n", letter_of(i), ". ");
    if (q.kind == DecisionKind::kPredicate) out += value.get_bool() ? "yes" : "no";
    else if (value.is_bool()) out += value.get_bool() ? "true" : "false";
    else out += std::string_view(value.get_string());
    if (!q.options[i].description.empty()) out += cat(": ", q.options[i].description);
  }
  return out + "\n\nAnswer with the letter of one of these and nothing else.";
}

class DecisionAnswer final : public AnswerWriter {
 public:
  DecisionAnswer(const GenerationSpec& spec, std::vector<DecisionQuestion> questions)
      : model_(spec.model->name),
        labels_(spec.request.sampling.logprob_tokens),
        questions_(std::move(questions)),
        likely_(questions_.size()) {
    for (const std::vector<int32_t>& prompt : spec.prompts) tokens_ += std::ssize(prompt);
  }
  std::string on_event(int32_t, const TextEvent&) override { return {}; }  // it is never streamed
  void collect(int32_t choice, const TextEvent& event) override {
    const auto k = static_cast<size_t>(choice);
    if (!event.tokens.empty())
      likely_[k] =
          label_probabilities(event.tokens.front(), std::span(labels_).first(questions_[k].options.size()));
    if (event.finish == FinishReason::kNone) return;
    if (const Status s = failure_of(event); !s.ok() && failure_.ok()) failure_ = s;
    cached_ += event.stats.cached_tokens;
    finished_ = ++ended_ == questions_.size();
  }
  std::string body() const override {
    const int64_t drawn = std::ssize(questions_);
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("model").string(model_).key("answers").begin_array();
    for (size_t k = 0; k < questions_.size(); ++k) write_answer(w, questions_[k], likely_[k]);
    w.end_array().key("usage").begin_object().key("input_tokens").number(tokens_);
    w.key("input_tokens_details").begin_object().key("cached_tokens").number(cached_).end_object();
    w.key("output_tokens").number(drawn).key("output_tokens_details").begin_object();
    w.key("reasoning_tokens").number(int64_t{0}).end_object();
    w.key("total_tokens").number(tokens_ + drawn).end_object().end_object();
    return out;
  }

 private:
  // `likely`: of each option among all tokens. Probabilities are those among the options.
  static void write_answer(JsonWriter& w, const DecisionQuestion& q, const std::vector<double>& likely) {
    const double sum = std::accumulate(likely.begin(), likely.end(), 0.0);
    const auto share = [&](size_t i) {
      return sum > 0 ? likely[i] / sum : 1 / static_cast<double>(q.options.size());
    };
    const auto best = static_cast<size_t>(std::max_element(likely.begin(), likely.end()) - likely.begin());
    const char* const type = q.kind == DecisionKind::kPredicate ? "predicate"
                             : q.kind == DecisionKind::kChoice  ? "choice"
                                                                : "score";
    w.begin_object().key("type").string(type).key("name");
    q.name ? w.string(*q.name) : w.null();
    if (q.kind == DecisionKind::kPredicate) {
      w.key("probability").number(share(1)).end_object();
      return;
    }
    if (q.kind == DecisionKind::kChoice) {
      w.key("choice").raw(json::serialize(q.options[best].value));
    } else {
      double score = 0;
      for (size_t i = 0; i < q.options.size(); ++i) score += static_cast<double>(i) * share(i);
      w.key("score").number(score);
    }
    w.key("probabilities").begin_array();
    for (size_t i = 0; i < q.options.size(); ++i) {
      const std::string value = json::serialize(q.options[i].value);
      w.begin_object();
      if (q.kind == DecisionKind::kChoice) w.key("value").raw(value);
      else w.key("value").number(static_cast<uint64_t>(i)).key("label").raw(value);
      w.key("probability").number(share(i)).end_object();
    }
    w.end_array().key("confidence").number(likely[best]).end_object();
  }

  const std::string model_;
  const std::vector<int32_t> labels_;
  const std::vector<DecisionQuestion> questions_;
  std::vector<std::vector<double>> likely_;
  int64_t tokens_ = 0, cached_ = 0;
  size_t ended_ = 0;
};

}  // namespace

Result<DecisionRequest> parse_decision_request(const RequestBody& body, const ModelHandle& model,
                                               const ApiLimits& limits) {
  DecisionRequest out;
  out.request = request_for(model);
  GenerationRequest& r = out.request;
  Fields f(body);
  f.string("model", r.model, 1024);
  f.string("cache_salt", r.cache_salt, 1024);
  const json::value* input = f.find("input");
  f.require("input", "send a text, or messages of the user");
  f.require("questions", "send a list of questions");
  const size_t most = std::min(kMaxQuestions, limits.max_prompts);
  if (const json::array* list = f.array("questions")) {
    if (list->empty() || list->size() > most)
      f.fail("questions", cat("questions has ", list->size(), " elements; send 1 to ", most));
    for (size_t i = 0; f.ok() && i < list->size(); ++i) {
      auto question = read_question((*list)[i], cat("questions[", i, "]"));
      if (question.ok()) out.questions.push_back(std::move(*question));
      else f.fail(question.status().param(), question.status().message());
    }
  }
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_ASSIGN(out.input, read_text_input(*input));
  r.prompt_field = "input";
  r.max_tokens = 1;
  r.stop.ignore_eos = true;
  r.sampling.temperature = 0;
  r.logprobs = 0;
  return out;
}

Status write_decision_prompts(const ModelHandle& model, const ApiLimits& limits, const PromptBounds& bounds,
                              DecisionRequest& request) {
  size_t letters = 0;
  GenerationRequest chat;
  chat.prompt_field = request.request.prompt_field;
  chat.add_special_tokens = false;  // the template writes them itself
  for (const DecisionQuestion& q : request.questions) {
    letters = std::max(letters, q.options.size());
    Conversation& c = chat.conversation.emplace();
    c.messages.push_back({"user", question_text(request.input, q), {}});
    set_thinking(c, false);
    OAR_ASSIGN(std::vector<std::vector<int32_t>> prompts, prompt_tokens(model, chat, limits, bounds));
    request.request.prompts.emplace_back(std::move(prompts.front()));
  }
  for (size_t i = 0; i < letters; ++i) {
    const std::string letter(1, letter_of(i));
    Tokenizer::EncodeOptions options;
    options.add_special_tokens = false;
    OAR_ASSIGN(const std::vector<int32_t> ids, model.tokenizer->encode(letter, options));
    if (ids.size() != 1)
      return {StatusCode::kFailedPrecondition,
              cat("the model ", model.name, " has no token for the letter ", letter,
                  ", which stands for an answer; ask another model"),
              "model"};
    request.request.sampling.logprob_tokens.push_back(ids.front());
  }
  return ok_status();
}

std::unique_ptr<AnswerWriter> decision_answer(const GenerationSpec& spec,
                                              std::vector<DecisionQuestion> questions) {
  return std::make_unique<DecisionAnswer>(spec, std::move(questions));
}

}  // namespace oar::api
