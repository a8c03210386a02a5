#include "server/api/openai_answer.h"

#include <algorithm>
#include <ctime>
#include <numeric>

#include "engine/base/format.h"
#include "engine/text/json_text.h"
#include "engine/text/utf8.h"
#include "server/api/status_table.h"
#include "server/api/text_tools.h"
#include "server/api/timings.h"
#include "server/api/token_logprob.h"
#include "server/api/version.h"

namespace oar::api {
namespace {

int64_t count_code_points(std::string_view text) {
  int64_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

void write_ids(JsonWriter& w, const char* key, const std::vector<int32_t>& ids) {
  w.key(key).begin_array();
  for (const int32_t id : ids) w.number(id);
  w.end_array();
}

void append_element(std::string& list, std::string_view element) {
  if (!list.empty()) list += ',';
  list += element;
}

}  // namespace

OpenAiAnswer::OpenAiAnswer(const GenerationSpec& spec, AnswerOptions options)
    : spec_model_(spec.model),
      prompts_(spec.prompts),
      prompt_logprobs_(spec.prompts.size()),
      verbose_(spec.request.verbose),
      token_ids_(spec.request.token_ids),
      names_ids_(spec.request.names_ids),
      timings_(spec.request.timings),
      metrics_(spec.request.metrics),
      want_logprobs_(spec.request.logprobs.has_value() && !options.hides_logprobs),
      want_prompt_logprobs_(want_logprobs_ && options.echo && !options.chat),
      skip_special_tokens_(spec.request.text.skip_special_tokens),
      echo_alternatives_(spec.request.logprobs.value_or(0)),
      listed_alternatives_(spec.request.list_prompt_logprobs),
      n_(spec.request.n),
      id_(spec.request.id),
      created_(static_cast<int64_t>(std::time(nullptr))),
      options_(std::move(options)),
      choices_(spec.prompts.size() * static_cast<size_t>(spec.request.n)),
      open_(choices_.size()),
      cached_seen_(spec.prompts.size()) {}

// ---- pieces shared by both forms ----

void OpenAiAnswer::append_usage(JsonWriter& w) const {
  int64_t prompt = 0, completion = 0, accepted = 0, rejected = 0, reasoning = 0;
  for (const auto& p : prompts_) prompt += static_cast<int64_t>(p.size());
  for (const Choice& c : choices_) {
    completion += c.completion_tokens;
    accepted += c.accepted_drafts;
    rejected += c.rejected_drafts;
    reasoning += c.reasoning_tokens;
  }
  w.begin_object();
  w.key("prompt_tokens").number(prompt);
  w.key("completion_tokens").number(completion);
  w.key("total_tokens").number(prompt + completion);
  w.key("prompt_tokens_details").begin_object().key("cached_tokens").number(cached_tokens_).end_object();
  if (accepted + rejected + reasoning > 0) {
    w.key("completion_tokens_details").begin_object();
    if (reasoning > 0) w.key("reasoning_tokens").number(reasoning);
    if (accepted + rejected > 0) {  // tokens that speculation proposed; rejected ones are not billed above
      w.key("accepted_prediction_tokens").number(accepted);
      w.key("rejected_prediction_tokens").number(rejected);
    }
    w.end_object();
  }
  w.end_object();
}

// What llama.cpp's server shows when it is asked to be verbose: the prompt as the model read it.
void OpenAiAnswer::append_verbose(JsonWriter& w) const {
  if (!verbose_) return;
  w.key("__verbose").begin_object().key("prompt").string(detokenize(*spec_model_, prompts_.front(), false));
  w.end_object();
}

// llama.cpp's as well.
void OpenAiAnswer::append_telemetry(JsonWriter& w) const {
  if (stats_.prompt_tokens == 0) return;
  if (tells_progress_) write_progress(w, stats_);
  if (timings_) write_timings(w, stats_);
  if (metrics_ && finished_) write_metrics(w, stats_);
}

void OpenAiAnswer::note_finish(Choice& c, const TextEvent& event) {
  c.completion_tokens += static_cast<int64_t>(event.tokens.size());
  if (event.finish == FinishReason::kNone) return;
  c.finish = event.finish;
  c.call_count = event.call_count;
  c.completion_tokens = event.stats.completion_tokens;
  c.accepted_drafts = event.stats.accepted_drafts;
  c.rejected_drafts = event.stats.rejected_drafts;
  c.reasoning_tokens = event.reasoning_tokens;
  const size_t prompt = prompt_of(static_cast<int32_t>(&c - choices_.data()));
  if (!cached_seen_[prompt]) {
    cached_seen_[prompt] = true;
    cached_tokens_ += event.stats.cached_tokens;
  }
  if (!event.stop_match.empty()) {
    c.stop_reason.clear();
    append_json_string(c.stop_reason, event.stop_match);
  } else if (event.stop_token >= 0) {
    c.stop_reason = cat(event.stop_token);
  }
  --open_;
  if (const Status s = failure_of(event); !s.ok() && failure_.ok()) failure_ = s;
}

void OpenAiAnswer::note_ids(Choice& c, const TextEvent& event) const {
  if (!token_ids_) return;
  for (const TextEvent::Token& token : event.tokens) c.ids.push_back(token.id);
  if (event.stop_token >= 0) c.ids.push_back(event.stop_token);  // it is no part of the text, and was drawn
}

void OpenAiAnswer::add_chat_token(Choice& c, const TextEvent::Token& token) const {
  std::string element;
  JsonWriter w(element);
  write_token_logprob(w, *spec_model_, token, false, names_ids_);
  append_element(c.logprobs.content, element);
}

std::string OpenAiAnswer::token_name(int32_t token) const {
  return names_ids_ ? cat("token_id:", token) : repair_utf8(token_bytes(*spec_model_, token));
}

void OpenAiAnswer::add_completion_token(Choice& c, int32_t token, const float* logprob,
                                        const std::vector<TokenLogprob>& top, int64_t length) const {
  const std::string text = token_name(token);
  std::string name, value, alternatives;
  append_json_string(name, text);
  JsonWriter v(value), a(alternatives);
  if (logprob) {
    v.number(*logprob);
    a.begin_object();
    // By text: of tokens that read the same the token itself counts, which stands there in any case, and
    // first.
    a.key(text).number(*logprob);
    for (const TokenLogprob& t : top) {
      const std::string other = token_name(t.token);
      if (other != text) a.key(other).number(t.logprob);
    }
    a.end_object();
  } else {
    v.null();
    a.null();
  }
  append_element(c.logprobs.tokens, name);
  append_element(c.logprobs.token_logprobs, value);
  append_element(c.logprobs.top_logprobs, alternatives);
  append_element(c.logprobs.text_offset, cat(c.offset));
  c.offset += length;
}

// They come with the request's first event, and every choice repeats them before its own.
void OpenAiAnswer::add_prompt_logprobs(Choice& c, size_t prompt) {
  static const std::vector<TokenLogprob> kNone;
  const std::vector<int32_t>& tokens = prompts_[prompt];
  const AnswerOptions::Echo& echo = options_.echoes[prompt];
  IncrementalDetokenizer detokenizer(spec_model_->tokenizer, !echo.shows_special);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<TokenLogprob> alternatives =
        i < prompt_logprobs_[prompt].size() ? prompt_logprobs_[prompt][i] : kNone;
    alternatives.resize(std::min(alternatives.size(), static_cast<size_t>(echo_alternatives_) + 1));
    const auto own = std::find_if(alternatives.begin(), alternatives.end(),
                                  [&](const TokenLogprob& t) { return t.token == tokens[i]; });
    const bool hidden = i == 0 && echo.hides_first;
    add_completion_token(c, tokens[i], own == alternatives.end() ? nullptr : &own->logprob, alternatives,
                         hidden ? 0 : count_code_points(detokenizer.push(tokens[i])));
  }
  c.offset = count_code_points(echo.text);
}

// Null where nobody asked: clients of vLLM read the member in any case, as they do the next one.
void OpenAiAnswer::write_told_ids(JsonWriter& w, const char* name, const std::vector<int32_t>& ids) const {
  if (token_ids_) write_ids(w, name, ids);
  else w.key(name).null();
}

void OpenAiAnswer::append_prompt_logprobs(JsonWriter& w, size_t prompt) const {
  w.key("prompt_logprobs");
  if (!listed_alternatives_) {
    w.null();
    return;
  }
  w.begin_array();
  for (const std::vector<TokenLogprob>& known : prompt_logprobs_[prompt]) {
    if (known.empty()) {
      w.null();
      continue;
    }
    w.begin_object();
    const size_t count = std::min(known.size(), static_cast<size_t>(*listed_alternatives_) + 1);
    for (size_t k = 0; k < count; ++k) {
      if (k > 0 && known[k].token == known[0].token) continue;
      // The alternatives are the likeliest in order; a token that is none of them has no known rank.
      const auto at = std::find_if(known.begin() + 1, known.end(),
                                   [&](const TokenLogprob& t) { return t.token == known[k].token; });
      w.key(cat(known[k].token)).begin_object().key("logprob").number(known[k].logprob).key("rank");
      if (at == known.end()) w.null();
      else w.number(static_cast<int64_t>(at - known.begin()));
      w.key("decoded_token").string(repair_utf8(token_bytes(*spec_model_, known[k].token))).end_object();
    }
    w.end_object();
  }
  w.end_array();
}

std::vector<size_t> OpenAiAnswer::reported() const {
  std::vector<size_t> out(choices_.size());
  std::iota(out.begin(), out.end(), size_t{0});
  if (options_.best == 0) return out;
  const auto mean = [&](size_t i) {
    return choices_[i].logprob / static_cast<double>(std::max<int64_t>(choices_[i].completion_tokens, 1));
  };
  std::vector<size_t> best;
  for (auto first = out.begin(); first != out.end(); first += n_) {
    std::stable_sort(first, first + n_, [&](size_t a, size_t b) { return mean(a) > mean(b); });
    best.insert(best.end(), first, first + options_.best);
  }
  return best;
}

// Where ids are told, the token that ended the text is among them, and so it is here.
void OpenAiAnswer::add_logprobs(Choice& c, int32_t index, const TextEvent& event) {
  for (const TextEvent::Token& t : event.tokens) c.logprob += static_cast<double>(t.logprob);
  if (!want_logprobs_) return;
  const bool with_stop = token_ids_ && event.drawn_stop;
  if (options_.chat) {
    for (const TextEvent::Token& t : event.tokens) add_chat_token(c, t);
    if (with_stop) add_chat_token(c, *event.drawn_stop);
    return;
  }
  const size_t prompt = prompt_of(index);
  if (want_prompt_logprobs_) {
    if (!c.prompt_reported) add_prompt_logprobs(c, prompt);
    c.prompt_reported = true;
  }
  if (!c.detokenizer) {
    c.detokenizer.emplace(spec_model_->tokenizer, skip_special_tokens_);
    c.detokenizer->prime(prompts_[prompt]);
  }
  for (const TextEvent::Token& t : event.tokens)
    add_completion_token(c, t.id, &t.logprob, t.top, count_code_points(c.detokenizer->push(t.id)));
  if (!with_stop) return;
  const TextEvent::Token& stop = *event.drawn_stop;
  add_completion_token(c, stop.id, &stop.logprob, stop.top, 0);
}

std::string OpenAiAnswer::format_logprobs(const Logprobs& l) const {
  if (!want_logprobs_) return "null";
  if (options_.chat) return cat("{\"content\":[", l.content, "],\"refusal\":null}");
  return cat("{\"tokens\":[", l.tokens, "],\"token_logprobs\":[", l.token_logprobs, "],\"top_logprobs\":[",
             l.top_logprobs, "],\"text_offset\":[", l.text_offset, "]}");
}

// ---- streaming ----

void OpenAiAnswer::begin_chunk(JsonWriter& w) const {
  w.begin_object();
  w.key("id").string(id_);
  w.key("object").string(options_.chat ? "chat.completion.chunk" : "text_completion");
  w.key("created").number(created_);
  w.key("model").string(model_name());
  w.key("system_fingerprint").string(kFingerprint);
  w.key("choices").begin_array();
}

void OpenAiAnswer::end_chunk(JsonWriter& w, bool final, bool with_prompt) const {
  w.end_array();
  if (with_prompt) write_ids(w, "prompt_token_ids", prompts_.front());
  if (final) append_verbose(w);
  append_telemetry(w);
  if (options_.streaming.continuous_usage_stats) {
    w.key("usage");
    append_usage(w);
  } else if (options_.streaming.include_usage) {
    w.key("usage").null();
  }
  w.end_object();
}

void OpenAiAnswer::append_delta(std::string& out, int32_t index, std::string_view role, std::string_view text,
                                const std::string& logprobs, bool final) const {
  out += "data: ";
  JsonWriter w(out);
  begin_chunk(w);
  w.begin_object().key("index").number(index);
  if (options_.chat) {
    w.key("delta").begin_object();
    if (!role.empty()) w.key("role").string(role);
    // A first chunk has a role and no text: llama.cpp's says so, and its clients refuse an empty one
    // elsewhere. A token whose text is still to come has an empty text beside its log-probabilities.
    if (!role.empty() && options_.null_start) w.key("content").null();
    else if (!text.empty() || logprobs != "null") w.key("content").string(text);
    w.end_object();
  } else {
    w.key("text").string(text);
  }
  end_delta(out, w, index, logprobs, final);
}

void OpenAiAnswer::end_delta(std::string& out, JsonWriter& w, int32_t index, const std::string& logprobs,
                             bool final) const {
  const Choice& c = choices_[static_cast<size_t>(index)];
  w.key("logprobs").raw(logprobs);
  w.key("finish_reason");
  final ? w.string(finish_reason(c)) : w.null();
  if (final) w.key("stop_reason").raw(c.stop_reason);
  if (token_ids_ && (!c.ids.empty() || !options_.chat)) write_ids(w, "token_ids", c.ids);
  const bool with_prompt = token_ids_ && c.prompt_ids_due;
  if (with_prompt && !options_.chat) write_ids(w, "prompt_token_ids", prompts_[prompt_of(index)]);
  w.end_object();
  end_chunk(w, final, with_prompt && options_.chat && index == 0);
  out += "\n\n";
}

// Pieces of reasoning, answer and calls that came together, in this order.
void OpenAiAnswer::append_event(std::string& out, int32_t index, const TextEvent& event,
                                const std::string& logprobs, bool final) const {
  const bool apart = !event.reasoning.empty() || !event.calls.empty();
  if (!options_.chat || !apart) return append_delta(out, index, "", event.text, logprobs, final);
  out += "data: ";
  JsonWriter w(out);
  begin_chunk(w);
  w.begin_object().key("index").number(index);
  w.key("delta").begin_object();
  if (!event.reasoning.empty()) w.key("reasoning_content").string(event.reasoning);
  if (!event.text.empty()) w.key("content").string(event.text);
  if (!event.calls.empty()) {
    w.key("tool_calls").begin_array();
    for (const ToolCallDelta& call : event.calls) {
      w.begin_object().key("index").number(call.index);
      if (!call.name.empty()) w.key("id").string(call.id).key("type").string("function");
      w.key("function").begin_object();
      if (!call.name.empty()) w.key("name").string(call.name);
      w.key("arguments").string(call.arguments).end_object().end_object();
    }
    w.end_array();
  }
  w.end_object();
  end_delta(out, w, index, logprobs, final);
}

std::string_view OpenAiAnswer::finish_reason(const Choice& c) const {
  const bool calls = c.finish == FinishReason::kStop && c.call_count > 0 && !options_.named_call;
  return calls ? "tool_calls" : finish_reason_name(c.finish);
}

// The role, once per choice, and what `echo` asks for.
std::string OpenAiAnswer::start_choice(int32_t index) {
  std::string out;
  stats_ = {};
  Choice& c = choices_[static_cast<size_t>(index)];
  c.started = true;
  if (options_.chat) append_delta(out, index, "assistant", "", "null", false);
  if (options_.chat) c.prompt_ids_due = false;
  if (options_.echo) {
    const size_t prompt = prompt_of(index);
    if (want_prompt_logprobs_ && !prompt_logprobs_[prompt].empty()) {
      add_prompt_logprobs(c, prompt);
      c.prompt_reported = true;
    }
    append_delta(out, index, "", options_.echoes[prompt].text,
                 c.logprobs.empty() ? "null" : format_logprobs(c.logprobs), false);
    c.logprobs = {};
    c.prompt_ids_due = false;
  }
  return out;
}

// They come with the first event of a prompt's first choice.
void OpenAiAnswer::keep_prompt_logprobs(int32_t index, const TextEvent& event) {
  if ((listed_alternatives_ || want_prompt_logprobs_) && !event.prompt_logprobs.empty())
    prompt_logprobs_[prompt_of(index)] = event.prompt_logprobs;
}

std::string OpenAiAnswer::on_event(int32_t choice, const TextEvent& event) {
  if (finished_) return {};
  Choice& c = choices_[static_cast<size_t>(choice)];
  std::string out;
  keep_prompt_logprobs(choice, event);
  if (!c.started && failure_of(event).ok()) out += start_choice(choice);  // before its tokens are counted
  note_finish(c, event);
  if (!failure_.ok()) {
    finished_ = true;
    return cat("data: ", openai_error(failure_), "\n\n");
  }
  if (timings_ || metrics_ || event.progress) stats_ = event.stats;
  if (event.progress) {
    tells_progress_ = true;
    append_delta(out, choice, "", "", "null", false);
    tells_progress_ = false;
    return out;
  }
  add_logprobs(c, choice, event);
  note_ids(c, event);
  const bool logprobs = !c.logprobs.empty();
  const bool said = !event.text.empty() || !event.reasoning.empty() || !event.calls.empty();
  bool ends = event.finish != FinishReason::kNone;
  if (said || logprobs || !c.ids.empty()) {
    const std::string known = logprobs ? format_logprobs(c.logprobs) : "null";
    // The last piece of a completion says why it ended; a chat's end is empty. Whoever counts tokens by the
    // chunk wants none that brings no token.
    const bool with_end = ends && (!options_.chat || options_.streaming.continuous_usage_stats);
    append_event(out, choice, event, known, with_end);
    if (with_end) ends = false;
    c.logprobs = {};
    c.ids.clear();
    c.prompt_ids_due = false;
  }
  if (ends) append_delta(out, choice, "", "", "null", true);
  if (open_ == 0) {
    finished_ = true;
    if (options_.streaming.include_usage) {
      out += "data: ";
      JsonWriter w(out);
      begin_chunk(w);
      w.end_array().key("usage");
      append_usage(w);
      append_telemetry(w);
      w.end_object();
      out += "\n\n";
    }
    out += "data: [DONE]\n\n";
  }
  return out;
}

// ---- whole ----

void OpenAiAnswer::collect(int32_t choice, const TextEvent& event) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  note_finish(c, event);
  c.text += event.text;
  c.reasoning += event.reasoning;
  for (const ToolCallDelta& call : event.calls) {
    if (!call.name.empty()) c.calls.push_back(call);
    else c.calls.back().arguments += call.arguments;
  }
  keep_prompt_logprobs(choice, event);
  add_logprobs(c, choice, event);
  note_ids(c, event);
  if (event.finish != FinishReason::kNone) stats_ = event.stats;
  if (open_ == 0) finished_ = true;
}

std::string OpenAiAnswer::body() const {
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  w.key("id").string(id_);
  w.key("object").string(options_.chat ? "chat.completion" : "text_completion");
  w.key("created").number(created_);
  w.key("model").string(model_name());
  w.key("system_fingerprint").string(kFingerprint);
  w.key("choices").begin_array();
  uint64_t index = 0;
  for (const size_t i : reported()) {
    const Choice& c = choices_[i];
    const size_t prompt = prompt_of(static_cast<int32_t>(i));
    const std::string text = options_.echo ? options_.echoes[prompt].text + c.text : c.text;
    w.begin_object().key("index").number(index++);
    if (options_.chat) {
      w.key("message").begin_object();
      w.key("role").string("assistant").key("content");
      text.empty() && !c.calls.empty() ? w.null() : w.string(text);
      w.key("refusal").null();
      if (!c.reasoning.empty()) w.key("reasoning_content").string(c.reasoning);
      if (!c.calls.empty()) {
        w.key("tool_calls").begin_array();
        for (const ToolCallDelta& call : c.calls) {
          w.begin_object().key("id").string(call.id).key("type").string("function");
          w.key("function").begin_object().key("name").string(call.name);
          w.key("arguments").string(call.arguments).end_object().end_object();
        }
        w.end_array();
      }
      w.end_object();
    } else {
      w.key("text").string(text);
    }
    w.key("logprobs").raw(format_logprobs(c.logprobs));
    w.key("finish_reason").string(finish_reason(c));
    w.key("stop_reason").raw(c.stop_reason);
    write_told_ids(w, "token_ids", c.ids);
    if (!options_.chat) {
      write_told_ids(w, "prompt_token_ids", prompts_[prompt]);
      append_prompt_logprobs(w, prompt);
    }
    w.end_object();
  }
  w.end_array();
  if (options_.chat) append_prompt_logprobs(w, 0);
  if (options_.chat) write_told_ids(w, "prompt_token_ids", prompts_.front());
  w.key("usage");
  append_usage(w);
  append_verbose(w);
  append_telemetry(w);
  w.end_object();
  return out;
}

}  // namespace oar::api
