#include "server/api/generation_request.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/format.h"
#include "server/api/constraint_fields.h"
#include "server/api/field_rules.h"

namespace oar::api {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;  // far beyond any context; the engine stops at its end
constexpr size_t kMaxSaltBytes = 256;
constexpr double kMaxLogitBias = 100;
constexpr double kMinRepetition = 0.01, kMaxRepetition = 100;
constexpr size_t kMaxBadWords = 1024, kMaxBadWordBytes = 1024;
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

// An answer without new tokens has a meaning only where the prompt is repeated.
int64_t least_max_tokens(const GenerationRequest& r) { return r.echo && !r.conversation ? 0 : 1; }

// The fields of every protocol: name, place, and which values they may have. V reads them from JSON (Fields)
// or looks at what is there (TypedFields).
template <class V>
void visit_params(V& v, const RequestLimits& engine, const ApiLimits& limits, GenerationRequest& r) {
  SamplingParams& s = r.sampling;
  v.number("temperature", s.temperature, 0, 100);
  v.number("top_p", s.top_p, 0, 1);
  if (v.ok() && !(s.top_p > 0)) {
    v.fail("top_p", cat(v.path_of("top_p"), " must be in (0, 1], got 0; use temperature 0 for greedy"));
  }
  v.integer("top_k", s.top_k, -1, INT32_MAX);
  s.top_k = std::max(s.top_k, 0);  // vLLM writes -1 for all
  v.number("min_p", s.min_p, 0, 1);
  v.number("repetition_penalty", s.repetition_penalty, kMinRepetition, kMaxRepetition);
  v.number("presence_penalty", s.presence_penalty, -2, 2);
  v.number("frequency_penalty", s.frequency_penalty, -2, 2);
  v.bits("seed", s.seed);
  v.weights("logit_bias", s.logit_bias, engine.max_logit_bias, engine.vocab_size, -kMaxLogitBias,
            kMaxLogitBias);
  v.integers("allowed_token_ids", r.allowed_tokens, static_cast<size_t>(engine.vocab_size), 0,
             engine.vocab_size - 1);
  v.integer("truncate_prompt_tokens", r.truncate_to, -1, kMaxTokens);
  if (v.ok() && r.truncate_to == 0)
    v.fail("truncate_prompt_tokens",
           cat(v.path_of("truncate_prompt_tokens"),
               " is 0; give how many tokens of the prompt to keep, or -1 for as many "
               "as there is room for"));
  v.integer("max_tokens", r.max_tokens, least_max_tokens(r), kMaxTokens);
  v.integer("min_tokens", r.stop.min_tokens, 0, kMaxTokens);
  v.boolean("ignore_eos", r.stop.ignore_eos);
  v.integers("stop_token_ids", r.stop.stop_token_ids, engine.max_stop_tokens, 0, engine.vocab_size - 1);
  v.strings("stop", r.text.stop, limits.max_stop_strings, limits.max_stop_bytes);
  v.boolean("include_stop_str_in_output", r.text.include_stop_in_output);
  v.boolean("skip_special_tokens", r.text.skip_special_tokens);
  v.integer("n", r.n, 1, engine.max_n);
  v.string("cache_salt", r.cache_salt, kMaxSaltBytes);
  v.integer("priority", r.priority, -kMaxPriority, kMaxPriority);
  v.number("timeout", r.timeout_seconds, 0.001, limits.max_timeout_seconds);
}

template <class V>
void check_lengths(V& v, const GenerationRequest& r) {
  if (!v.ok() || !r.max_tokens || r.stop.min_tokens <= *r.max_tokens) return;
  v.fail("min_tokens", cat(v.path_of("min_tokens"), " is ", r.stop.min_tokens, " but ",
                           v.path_of("max_tokens"), " only ", *r.max_tokens));
}

// Fields' twin for values that are there already.
class TypedFields {
 public:
  explicit TypedFields(const Spelling& spell) : spell_(spell) {}

  template <class T>
  void integer(std::string_view name, const T& value, int64_t min, int64_t max) {
    if (value < min || value > max)
      fail(name, rules::outside(path_of(name), "an integer", min, max, cat(value)));
  }
  template <class T>
  void integer(std::string_view name, const std::optional<T>& value, int64_t min, int64_t max) {
    if (value) integer(name, *value, min, max);
  }
  template <class T>
  void number(std::string_view name, const T& value, double min, double max) {
    if (!(value >= min && value <= max))
      fail(name, rules::outside(path_of(name), "a number", min, max, cat(value)));
  }
  void number(std::string_view name, const std::optional<double>& value, double min, double max) {
    if (value) number(name, *value, min, max);
  }
  void boolean(std::string_view, bool) {}
  void bits(std::string_view, const std::optional<uint64_t>&) {}
  void string(std::string_view name, const std::string& value, size_t max_bytes) {
    if (value.size() > max_bytes) fail(name, rules::too_long(path_of(name), value.size(), max_bytes));
  }
  void strings(std::string_view name, const std::vector<std::string>& values, size_t max_count,
               size_t max_bytes) {
    if (values.size() > max_count)
      fail(name, rules::too_many(path_of(name), "elements", values.size(), max_count));
    for (size_t i = 0; i < values.size() && ok(); ++i) {
      const std::string where = cat(path_of(name), "[", i, "]");
      if (values[i].empty()) fail(name, rules::empty(where));
      if (values[i].size() > max_bytes) fail(name, rules::too_long(where, values[i].size(), max_bytes));
    }
  }
  void integers(std::string_view name, const std::vector<int32_t>& values, size_t max_count, int64_t min,
                int64_t max) {
    if (values.size() > max_count)
      fail(name, rules::too_many(path_of(name), "elements", values.size(), max_count));
    for (size_t i = 0; i < values.size() && ok(); ++i) {
      if (values[i] < min || values[i] > max)
        fail(name, rules::outside(cat(path_of(name), "[", i, "]"), "an integer", min, max, cat(values[i])));
    }
  }
  void weights(std::string_view name, const std::vector<std::pair<int32_t, float>>& values, size_t max_count,
               int64_t ids, double min, double max) {
    if (values.size() > max_count)
      fail(name, rules::too_many(path_of(name), "entries", values.size(), max_count));
    for (const auto& [id, value] : values) {
      if (!ok()) return;
      if (id < 0 || id >= ids) fail(name, rules::weighted_token(path_of(name), cat(id), ids));
      else if (!(value >= min && value <= max))
        fail(name, rules::weight(path_of(name), id, min, max, cat(value)));
    }
  }

  void fail(std::string_view name, std::string message) {
    if (status_.ok()) status_ = invalid_argument(std::move(message), path_of(name));
  }
  std::string path_of(std::string_view name) const { return spell_(name); }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  const Spelling& spell_;
  Status status_;
};

// The calls of an earlier turn, as templates expect them.
Status check_calls(const ChatMessage& m, const std::string& message) {
  const json::value* calls = m.other.if_contains("tool_calls");
  if (!calls || calls->is_null()) return ok_status();
  const std::string path = message + ".tool_calls";
  if (!calls->is_array())
    return invalid_argument(cat(path, " must be an array, got ", describe(*calls)), path);
  for (size_t i = 0; i < calls->get_array().size(); ++i) {
    const std::string where = cat(path, "[", i, "].function");
    const json::object* call = calls->get_array()[i].if_object();
    const json::value* function = call ? call->if_contains("function") : nullptr;
    const json::object* members = function ? function->if_object() : nullptr;
    const json::value* name = members ? members->if_contains("name") : nullptr;
    if (!name || !name->is_string())
      return invalid_argument(cat(where, R"( must be an object {"name":"...","arguments":"..."})"), where);
    const json::value* arguments = members->if_contains("arguments");
    if (arguments && !arguments->is_string() && !arguments->is_object() && !arguments->is_null()) {
      return invalid_argument(
          cat(where, ".arguments must be a string of JSON or an object, got ", describe(*arguments)),
          where + ".arguments");
    }
  }
  return ok_status();
}

Status check_message(const ChatMessage& m, const std::string& path) {
  if (m.role.empty()) return invalid_argument(cat(path, ".role is missing"), path + ".role");
  return check_calls(m, path);
}

}  // namespace

bool is_known_role(std::string_view role) {
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

std::string known_roles() {
  std::string out;
  for (const std::string_view role : kRoles)
    out += cat(out.empty() ? "" : role == kRoles.back() ? " or " : ", ", role);
  return out;
}

void set_thinking(Conversation& conversation, bool on) {
  for (const char* name : {"enable_thinking", "thinking"}) conversation.template_kwargs[name] = on;
}

namespace {

// What --request-default may give. An answer's length is a default, not a promise that there is room.
constexpr std::array<std::string_view, 15> kDefaultFields = {"temperature",
                                                             "top_p",
                                                             "top_k",
                                                             "min_p",
                                                             "repetition_penalty",
                                                             "presence_penalty",
                                                             "frequency_penalty",
                                                             "seed",
                                                             "max_tokens",
                                                             "verbose",
                                                             "chat_template_kwargs",
                                                             "prefill_assistant",
                                                             "stream_options",
                                                             "return_tokens_as_token_ids",
                                                             "request_metrics"};

Status read_defaults(const ModelHandle& model, GenerationRequest& r) {
  Fields f(model.request_defaults);
  visit_params(f, model.engine->request_limits(), ApiLimits(), r);
  f.boolean("verbose", r.verbose);
  f.boolean("prefill_assistant", r.prefills);
  f.boolean("return_tokens_as_token_ids", r.names_ids);
  f.boolean("request_metrics", r.metrics);
  if (const json::object* options = f.object("stream_options")) read_stream_options(f, *options, r.streaming);
  f.object("chat_template_kwargs");  // for the template (text_tools.cc)
  r.default_max_tokens = r.max_tokens.value_or(0);
  r.max_tokens.reset();
  return f.status();
}

}  // namespace

GenerationRequest request_for(const ModelHandle& model) {
  GenerationRequest r;
  const GenerationDefaults& d = model.defaults;
  if (d.temperature) r.sampling.temperature = *d.temperature;
  if (d.top_p) r.sampling.top_p = *d.top_p;
  if (d.min_p) r.sampling.min_p = *d.min_p;
  if (d.top_k) r.sampling.top_k = *d.top_k;
  if (d.repetition_penalty) r.sampling.repetition_penalty = *d.repetition_penalty;
  if (!model.request_defaults.empty()) (void)read_defaults(model, r);
  return r;
}

Status check_request_defaults(const ModelHandle& model) {
  for (const auto& field : model.request_defaults) {
    if (std::find(kDefaultFields.begin(), kDefaultFields.end(), field.key()) != kDefaultFields.end())
      continue;
    std::string known;
    for (const std::string_view name : kDefaultFields) known += cat(known.empty() ? "" : ", ", name);
    return invalid_argument(cat(std::string_view(field.key()), " has no default; those that have: ", known),
                            std::string(field.key()));
  }
  GenerationRequest r;
  return read_defaults(model, r);
}

void read_params(Fields& f, const RequestLimits& engine, const ApiLimits& limits, GenerationRequest& r) {
  // llama.cpp's name; -1: as many as the context holds.
  std::optional<int64_t> predict;
  f.integer("n_predict", predict, -1, kMaxTokens);
  // Unlike max_tokens no promise that there is room for so many.
  if (predict) r.default_max_tokens = std::max<int64_t>(*predict, 0);
  if (predict && *predict >= 0) {
    if (*predict == 0) r.max_tokens = predict;
    if (*predict < least_max_tokens(r))
      f.fail("n_predict", rules::outside(f.path_of("n_predict"), "an integer", least_max_tokens(r),
                                         kMaxTokens, cat(*predict)));
  }
  f.number("repeat_penalty", r.sampling.repetition_penalty, kMinRepetition, kMaxRepetition);  // and Ollama's
  visit_params(f, engine, limits, r);
  read_constraint(f, r.constraint);
  if (const json::value* bad = f.find("bad_words"); !bad || *bad != "")
    f.strings("bad_words", r.bad_words, kMaxBadWords, kMaxBadWordBytes);
  f.integer("max_completion_tokens", r.max_tokens, least_max_tokens(r), kMaxTokens);
  check_lengths(f, r);
  if (f.ok() && predict && *predict > 0 && !r.max_tokens && r.stop.min_tokens > *predict)
    f.fail("min_tokens", cat("min_tokens is ", r.stop.min_tokens, " but n_predict only ", *predict));
}

void read_stream_options(Fields& f, const json::object& options, StreamOptions& out) {
  Fields o(options, "stream_options.");
  o.boolean("include_usage", out.include_usage);
  o.boolean("continuous_usage_stats", out.continuous_usage_stats);
  out.continuous_usage_stats = out.continuous_usage_stats && out.include_usage;
  o.refuse_rest();
  if (!o.ok()) f.fail(o.status().param(), o.status().message());
}

void read_telemetry(Fields& f, GenerationRequest& r) {
  f.boolean("timings_per_token", r.timings);
  f.boolean("return_progress", r.progress);
  r.progress = r.progress && r.streaming.stream;  // a whole answer comes when there is no more of it
}

Status check_request(const RequestLimits& engine, const ApiLimits& limits, const Spelling& spell,
                     GenerationRequest& r) {
  TypedFields v(spell);
  visit_params(v, engine, limits, r);
  check_lengths(v, r);
  v.integer("logprobs", r.logprobs, 0, engine.max_logprobs);
  v.integer("prompt_logprobs", r.prompt_logprobs, 0, engine.max_logprobs);
  OAR_RETURN_IF_ERROR(v.status());
  if (r.conversation) return check_conversation(*r.conversation, limits, spell("messages"));
  for (const Prompt& prompt : r.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    const std::string path(r.prompt_field);
    if (ids && ids->empty()) return no_tokens_error(path);
    for (size_t i = 0; ids && i < ids->size(); ++i) {
      const int32_t id = (*ids)[i];
      if (id < 0 || id >= engine.vocab_size) return token_error(path, i, engine.vocab_size, cat(id));
    }
  }
  return check_choices(r, limits, spell("n"));
}

Status check_conversation(const Conversation& c, const ApiLimits& limits, const std::string& path) {
  if (c.messages.empty()) return invalid_argument(cat(path, " is empty; send at least one message"), path);
  if (c.messages.size() > limits.max_messages)
    return invalid_argument(rules::too_many(path, "elements", c.messages.size(), limits.max_messages), path);
  for (size_t i = 0; i < c.messages.size(); ++i)
    OAR_RETURN_IF_ERROR(check_message(c.messages[i], cat(path, "[", i, "]")));
  return ok_status();
}

Status token_error(const std::string& path, size_t index, int64_t vocab_size, std::string_view got) {
  return invalid_argument(cat(path, "[", index, "] is out of vocabulary: it must be a token id in [0, ",
                              vocab_size, "), got ", got),
                          path);
}

Status no_tokens_error(const std::string& path) {
  return invalid_argument(cat(path, " has no tokens; send at least one"), path);
}

Status check_choices(const GenerationRequest& r, const ApiLimits& limits, std::string_view n) {
  const int64_t of_each = std::max(r.n, r.best_of);
  const int64_t choices = static_cast<int64_t>(r.prompts.size()) * of_each;
  if (choices <= limits.max_choices) return ok_status();
  return invalid_argument(cat(n, " is ", of_each, " for ", r.prompts.size(), " prompts: ", choices,
                              " choices; at most ", limits.max_choices, " are accepted"),
                          std::string(n));
}

}  // namespace oar::api
