#include "server/api/llama_answer.h"

#include "server/api/status_table.h"
#include "server/api/text_tools.h"
#include "server/api/timings.h"
#include "server/api/token_logprob.h"
#include "server/api/unread_fields.h"
#include "server/api/version.h"

namespace oar::api {
namespace {

void write_sampling(JsonWriter& w, const SamplingParams& s) {
  w.key("temperature").number(s.temperature).key("top_k").number(s.top_k).key("top_p").number(s.top_p);
  w.key("min_p").number(s.min_p).key("repeat_penalty").number(s.repetition_penalty);
  w.key("presence_penalty").number(s.presence_penalty);
  w.key("frequency_penalty").number(s.frequency_penalty);
  for (const auto& off : idle_samplers()) w.key(off.key()).value(off.value());
}

const char* stop_type(const TextEvent& end) {
  if (!end.stop_match.empty()) return "word";
  if (end.finish == FinishReason::kStop) return "eos";
  return end.finish == FinishReason::kLength ? "limit" : "none";
}

}  // namespace

LlamaAnswer::LlamaAnswer(const GenerationSpec& spec, bool return_tokens, std::vector<std::string> fields)
    : model_(spec.model),
      prompts_(spec.prompts),
      request_(spec.request),
      return_tokens_(return_tokens),
      fields_(std::move(fields)),
      choices_(spec.prompts.size()),
      newline_(spec.prompts.size()),
      open_(spec.prompts.size()) {}

void LlamaAnswer::note(int32_t choice, const TextEvent& event) {
  const auto i = static_cast<size_t>(choice);
  Choice& c = choices_[i];
  c.text += event.text;
  if (event.text.find('\n') != std::string::npos) newline_[i] = true;
  c.predicted += std::ssize(event.tokens);
  for (const TextEvent::Token& token : event.tokens) {
    if (return_tokens_ || request_.streaming.stream) c.tokens.push_back(token.id);
    if (!request_.logprobs) continue;
    if (!c.probabilities.empty()) c.probabilities += ',';
    JsonWriter w(c.probabilities);
    if (request_.sampling.drawn_logprobs) write_token_probability(w, *model_, token);
    else write_token_logprob(w, *model_, token, true);
  }
  if (event.finish == FinishReason::kNone) return;
  c.end.finish = event.finish;
  c.end.stop_match = event.stop_match;
  c.end.stats = event.stats;
  if (const Status s = failure_of(event); !s.ok() && failure_.ok()) failure_ = s;
  if (--open_ == 0) finished_ = true;
}

void LlamaAnswer::append_settings(JsonWriter& w) const {
  w.key("generation_settings").begin_object();
  w.key("n_predict").number(request_.stop.max_tokens);
  write_sampling(w, request_.sampling);
  if (request_.sampling.seed) w.key("seed").number(*request_.sampling.seed);
  w.key("stop").begin_array();
  for (const std::string& stop : request_.text.stop) w.string(stop);
  w.end_array();
  w.key("ignore_eos").boolean(request_.stop.ignore_eos);
  w.key("logit_bias").begin_array();
  for (const auto& [id, bias] : request_.sampling.logit_bias)
    w.begin_object().key("token").number(id).key("bias").number(bias).end_object();
  if (request_.stop.ignore_eos) {
    // A token that is never drawn has the bias minus infinity, which JSON writes as null.
    for (const int32_t id : model_->end_tokens)
      w.begin_object().key("token").number(id).key("bias").null().end_object();
  }
  w.end_array();
  w.key("n_probs").number(request_.logprobs.value_or(0));
  w.key("stream").boolean(request_.streaming.stream);
  w.end_object();
}

// The members that response_fields names: "generation_settings/seed" is one of an object. Those that are
// not there are left out.
std::string LlamaAnswer::picked(const std::string& answer) const {
  const json::value whole = json::parse(answer);
  json::object out;
  for (const std::string& path : fields_) {
    const json::value* at = &whole;
    for (size_t begin = 0; at != nullptr && begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const json::object* members = at->if_object();
      at = members ? members->if_contains(path.substr(begin, end - begin)) : nullptr;
      begin = end + 1;
    }
    if (at) out[path] = *at;
  }
  return json::serialize(out);
}

void LlamaAnswer::append(JsonWriter& to, int32_t choice, const Choice& c, bool last,
                         std::string_view text) const {
  if (!last || fields_.empty()) return append_all(to, choice, c, last, text);
  std::string answer;
  JsonWriter w(answer);
  append_all(w, choice, c, last, text);
  to.raw(picked(answer));
}

void LlamaAnswer::append_all(JsonWriter& w, int32_t choice, const Choice& c, bool last,
                             std::string_view text) const {
  const std::vector<int32_t>& prompt = prompts_[static_cast<size_t>(choice)];
  w.begin_object().key("index").number(choice).key("content").string(text);
  w.key("tokens").begin_array();
  for (const int32_t id : c.tokens) w.number(id);
  w.end_array();
  w.key("stop").boolean(last);
  w.key("tokens_predicted").number(last ? c.end.stats.completion_tokens : c.predicted);
  w.key("tokens_evaluated").number(static_cast<int64_t>(prompt.size()));
  if (!c.probabilities.empty())
    w.key("completion_probabilities").begin_array().raw(c.probabilities).end_array();
  if (last) {
    w.key("model").string(model_->name);
    append_settings(w);
    w.key("prompt").string(detokenize(*model_, prompt, false));
    w.key("has_new_line").boolean(newline_[static_cast<size_t>(choice)]);
    const int64_t used = static_cast<int64_t>(prompt.size()) + c.end.stats.completion_tokens;
    const bool full = used >= model_->engine->request_limits().max_context;
    w.key("truncated")
        .boolean(full && c.end.finish == FinishReason::kLength)
        .key("stop_type")
        .string(stop_type(c.end));
    w.key("stopping_word").string(c.end.stop_match);
    w.key("tokens_cached").number(c.end.stats.cached_tokens);
  }
  if (at_hand_ != nullptr && at_hand_->progress) write_progress(w, at_hand_->stats);
  if (last) write_timings(w, c.end.stats);
  else if (at_hand_ != nullptr && request_.timings) write_timings(w, at_hand_->stats);
  w.end_object();
}

std::string LlamaAnswer::on_event(int32_t choice, const TextEvent& event) {
  if (finished_) return {};
  note(choice, event);
  if (!failure_.ok()) {
    finished_ = true;
    return "data: " + llama_error(failure_) + "\n\n";
  }
  Choice& c = choices_[static_cast<size_t>(choice)];
  std::string out;
  at_hand_ = &event;
  const auto chunk = [&](bool last) {
    out += "data: ";
    JsonWriter w(out);
    append(w, choice, c, last, c.text);
    out += "\n\n";
    c.text.clear();
    c.tokens.clear();
    c.probabilities.clear();
  };
  if (event.progress || !c.text.empty() || !c.tokens.empty() || !c.probabilities.empty()) chunk(false);
  if (event.finish != FinishReason::kNone) chunk(true);
  at_hand_ = nullptr;
  return out;
}

void LlamaAnswer::collect(int32_t choice, const TextEvent& event) { note(choice, event); }

std::string LlamaAnswer::body() const {
  std::string out;
  JsonWriter w(out);
  const bool list = choices_.size() > 1;
  if (list) w.begin_array();
  for (size_t i = 0; i < choices_.size(); ++i)
    append(w, static_cast<int32_t>(i), choices_[i], true, choices_[i].text);
  if (list) w.end_array();
  return out;
}

std::string llama_props(const ModelCard& model) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("default_generation_settings").begin_object();
  w.key("n_ctx").number(model.max_context);
  w.key("params").begin_object().key("n_predict").number(model.max_tokens > 0 ? model.max_tokens : -1);
  write_sampling(w, model.sampling);
  if (model.sampling.seed) w.key("seed").number(*model.sampling.seed);
  w.end_object().end_object();
  w.key("model_alias").string(model.name).key("model_path").string(model.file);
  w.key("modalities").begin_object().key("vision").boolean(false).key("audio").boolean(false).end_object();
  w.key("chat_template").string(model.chat_template);
  w.key("bos_token").string(model.bos_token).key("eos_token").string(model.eos_token);
  w.key("total_slots").number(model.max_sequences).key("is_sleeping").boolean(model.asleep);
  w.key("build_info").string(kFingerprint).end_object();
  return out;
}

std::string llama_slots(const ModelHandle& model) {
  std::string out;
  JsonWriter w(out);
  const int64_t running = model.engine->stats().running;
  w.begin_array();
  for (int64_t i = 0; i < std::max(running, model.info.max_sequences); ++i) {
    w.begin_object().key("id").number(i);
    w.key("n_ctx").number(model.engine->request_limits().max_context);
    w.key("is_processing").boolean(i < running).end_object();
  }
  w.end_array();
  return out;
}

}  // namespace oar::api
