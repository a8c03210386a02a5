// Generation: oar_generate_*(), oar_generation_*().
#include <algorithm>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/capi/adapter.h"
#include "engine/capi/call.h"
#include "engine/capi/chat.h"
#include "engine/capi/handles.h"
#include "engine/capi/model.h"
#include "engine/text/tools/reply_plan.h"

namespace oar::capi {
namespace {

constexpr size_t kMaxStops = 64, kMaxStopBytes = 1024;

oar_sampling default_sampling() {
  oar_sampling s = {};
  s.struct_size = sizeof s;
  s.temperature = s.top_p = s.min_p = s.repetition_penalty = -1;
  s.top_k = -1;
  s.max_tokens = -1;
  s.n = 1;
  return s;
}

template <class T>
T pick(T given, const std::optional<T>& of_model, T otherwise) {
  return given < 0 ? of_model.value_or(otherwise) : given;
}

Status read_lists(const oar_sampling& s, GenerationSpec& spec) {
  if (s.stop_count > 0 && s.stop == nullptr) return null_argument("stop");
  if (s.stop_token_count > 0 && s.stop_tokens == nullptr) return null_argument("stop_tokens");
  if (s.bias_count > 0 && s.bias_tokens == nullptr) return null_argument("bias_tokens");
  if (s.bias_count > 0 && s.bias_values == nullptr) return null_argument("bias_values");
  if (s.stop_count > kMaxStops)
    return invalid_argument(cat("stop: stop_count is ", s.stop_count, "; at most ", kMaxStops), "stop");
  for (size_t i = 0; i < s.stop_count; ++i) {
    if (s.stop[i] == nullptr) return invalid_argument(cat("stop[", i, "] is NULL; pass a string"), "stop");
    const size_t size = strnlen(s.stop[i], kMaxStopBytes + 1);
    if (size == 0 || size > kMaxStopBytes)
      return invalid_argument(cat("stop[", i, "] must have between 1 and ", kMaxStopBytes, " bytes"), "stop");
    spec.text.stop.emplace_back(s.stop[i], size);
  }
  // Counts are bounded before anything is copied; the engine refuses more anyway.
  const RequestLimits bounds;
  if (s.stop_token_count > bounds.max_stop_tokens)
    return invalid_argument(
        cat("stop_tokens: stop_token_count is ", s.stop_token_count, "; at most ", bounds.max_stop_tokens),
        "stop_tokens");
  if (s.bias_count > bounds.max_logit_bias)
    return invalid_argument(
        cat("bias_tokens: bias_count is ", s.bias_count, "; at most ", bounds.max_logit_bias), "bias_tokens");
  if (s.stop_token_count > 0)
    spec.request.stop.stop_token_ids.assign(s.stop_tokens, s.stop_tokens + s.stop_token_count);
  for (size_t i = 0; i < s.bias_count; ++i)
    spec.request.sampling.logit_bias.emplace_back(s.bias_tokens[i], s.bias_values[i]);
  return ok_status();
}

Result<grammar::ConstraintSpec> read_constraint(const oar_sampling& s) {
  using Kind = grammar::ConstraintSpec::Kind;
  static_assert(OAR_CONSTRAINT_STRUCTURAL_TAG == static_cast<int>(Kind::kStructuralTag));
  static_assert(OAR_CONSTRAINT_CHOICE == static_cast<int>(Kind::kChoice));
  static_assert(OAR_CONSTRAINT_JSON_OBJECT == static_cast<int>(Kind::kJsonObject));
  if (s.constraint_kind == OAR_CONSTRAINT_NONE) return grammar::ConstraintSpec();
  if (s.constraint_kind < 0 || s.constraint_kind > OAR_CONSTRAINT_STRUCTURAL_TAG)
    return invalid_argument(cat("constraint_kind is ", s.constraint_kind, "; use an oar_constraint"),
                            "constraint_kind");
  grammar::ConstraintSpec asked{static_cast<Kind>(s.constraint_kind), {}, {}, "constraint"};
  if (asked.kind != Kind::kJsonObject) {
    if (s.constraint == nullptr) return null_argument("constraint");
    asked.text = s.constraint;
  }
  if (asked.kind == Kind::kChoice) {
    OAR_ASSIGN(const json::value list, parse_json(asked.text, "constraint"));
    asked.text.clear();
    if (!list.is_array()) return invalid_argument("constraint must be a JSON array of texts", "constraint");
    for (const auto& v : list.get_array()) {
      if (!v.is_string()) return invalid_argument("constraint must be a JSON array of texts", "constraint");
      asked.choices.emplace_back(v.get_string());
    }
  }
  return asked;
}

// `answer`: what the answer has to be, not compiled yet.
Status read_sampling(const oar_sampling* given, LanguageModel& model, GenerationSpec& spec,
                     grammar::ConstraintSpec& answer) {
  oar_sampling s = default_sampling();
  if (given != nullptr) OAR_RETURN_IF_ERROR(read_struct(given, "sampling", s));
  const GenerationDefaults& d = model.defaults();
  SamplingParams& p = spec.request.sampling;
  p.temperature = pick(s.temperature, d.temperature, 1.f);
  p.top_p = pick(s.top_p, d.top_p, 1.f);
  p.min_p = pick(s.min_p, d.min_p, 0.f);
  p.top_k = pick(s.top_k, d.top_k, 0);
  p.repetition_penalty = pick(s.repetition_penalty, d.repetition_penalty, 1.f);
  p.presence_penalty = s.presence_penalty;
  p.frequency_penalty = s.frequency_penalty;
  if (s.has_seed != 0) p.seed = s.seed;
  p.logprobs = s.logprobs != 0 ? 0 : -1;
  spec.request.n = s.n;
  spec.request.stop.min_tokens = s.min_tokens;
  spec.request.stop.ignore_eos = s.ignore_eos != 0;
  const auto prompt = static_cast<int64_t>(spec.request.prompt.size());
  const int64_t room = std::max<int64_t>(1, model.engine().request_limits().max_context - prompt);
  spec.request.stop.max_tokens = s.max_tokens < 0 ? std::max(room, s.min_tokens) : s.max_tokens;
  if (s.timeout_ms > 0) {
    constexpr int64_t kLongest = int64_t{1} << 40;  // 34 years: no overflow in nanoseconds
    spec.request.deadline = Clock::now() + std::chrono::milliseconds(std::min(s.timeout_ms, kLongest));
  }
  if (s.lora != nullptr) {
    OAR_ASSIGN(const auto adapters, adapters_of(model));
    OAR_ASSIGN(spec.request.adapter, adapters->lease(s.lora));
  }
  if (s.cache_salt != nullptr) spec.request.cache_salt = s.cache_salt;
  spec.text.skip_special_tokens = s.keep_special_tokens == 0;
  spec.text.include_stop_in_output = s.include_stop != 0;
  OAR_ASSIGN(answer, read_constraint(s));
  return read_lists(s, spec);
}

oar_chat_options default_chat_options() {
  oar_chat_options o = {};
  o.struct_size = sizeof o;
  o.parallel_tool_calls = 1;
  o.thinking_budget = -1;
  return o;
}

Result<ReplyRequest> read_reply(const oar_chat_options& o) {
  json::value list, choice;
  if (o.tools != nullptr) { OAR_ASSIGN(list, parse_json(o.tools, "tools")); }
  if (o.tool_choice != nullptr) { OAR_ASSIGN(choice, parse_json(o.tool_choice, "tool_choice")); }
  if (o.reserved != 0)
    return invalid_argument(cat("reserved is ", o.reserved, "; fill it with oar_chat_options_init()"),
                            "reserved");
  ReplyRequest asked;
  OAR_ASSIGN(asked.tools, tools::read_tool_request(&list, &choice, o.parallel_tool_calls != 0));
  asked.reasoning.separate = o.inline_reasoning == 0;
  if (o.thinking_budget >= 0) asked.thinking_budget = o.thinking_budget;
  return asked;
}

Status constrain_text(LanguageModel& model, const grammar::ConstraintSpec& answer, GenerationSpec& spec) {
  OAR_ASSIGN(spec.request.constraint, model.constraints()->compile(answer));
  spec.request.constraint_field = answer.field;
  return ok_status();
}

Status constrain_reply(LanguageModel& model, const ReplyRequest& asked, GenerationSpec& spec) {
  OAR_ASSIGN(ReplyPlan plan, plan_reply(model.reply_model(), asked, spec.request.prompt));
  spec.text.reply = std::move(plan.format);
  spec.request.constraint = std::move(plan.constraint);
  spec.request.constraint_field = std::move(plan.constraint_field);
  auto& stops = spec.request.stop.stop_token_ids;
  stops.insert(stops.end(), plan.end_tokens.begin(), plan.end_tokens.end());
  return ok_status();
}

// `make_prompt` turns what the caller gave into token ids; `constrain` says what may follow them.
template <class F, class G = decltype(&constrain_text)>
oar_status generate(oar_model handle, const oar_sampling* sampling, oar_event_callback callback, void* user,
                    oar_generation* out, F&& make_prompt, G&& constrain = &constrain_text) {
  return call([&]() -> Status {
    if (out == nullptr) return null_argument("generation");
    *out = 0;
    OAR_ASSIGN(const auto model, find<Model>(handle));
    GenerationSpec spec;
    OAR_ASSIGN(spec.request.prompt, make_prompt(model->language_model()));
    grammar::ConstraintSpec answer;
    OAR_RETURN_IF_ERROR(read_sampling(sampling, model->language_model(), spec, answer));
    OAR_RETURN_IF_ERROR(constrain(model->language_model(), answer, spec));
    spec.callback = callback;
    spec.user = user;
    OAR_ASSIGN(auto generation, Generation::start(model, std::move(spec)));
    auto made = put(generation);
    if (!made.ok()) {
      generation->close();
      return made.status();
    }
    *out = *made;
    return ok_status();
  });
}

}  // namespace
}  // namespace oar::capi

using namespace oar;        // NOLINT: the functions below are C
using namespace oar::capi;  // NOLINT
using Ids = Result<std::vector<int32_t>>;

extern "C" {

oar_status oar_sampling_init(oar_sampling* sampling, size_t size) {
  return init_struct(default_sampling(), "sampling", sampling, size);
}

oar_status oar_generate_text(oar_model model, const char* prompt, const oar_sampling* sampling,
                             oar_event_callback callback, void* user, oar_generation* generation) {
  return generate(model, sampling, callback, user, generation, [&](LanguageModel& m) -> Ids {
    if (prompt == nullptr) return null_argument("prompt");
    OAR_ASSIGN(std::vector<int32_t> ids, m.tokenizer()->encode(prompt));
    if (ids.empty() && m.tokenizer()->bos_id()) ids.push_back(*m.tokenizer()->bos_id());
    return ids;
  });
}

oar_status oar_generate_tokens(oar_model model, const int32_t* ids, size_t count,
                               const oar_sampling* sampling, oar_event_callback callback, void* user,
                               oar_generation* generation) {
  return generate(model, sampling, callback, user, generation, [&](LanguageModel& m) -> Ids {
    if (ids == nullptr) return null_argument("ids");
    const int64_t limit = m.engine().request_limits().max_context;
    if (count > static_cast<uint64_t>(limit))  // before copying whatever a wrong count says
      return invalid_argument(cat("count is ", count, ", more than the context of ", limit, " holds"),
                              "count");
    return std::vector<int32_t>(ids, ids + count);
  });
}

oar_status oar_generate_chat(oar_model model, const char* messages, const oar_sampling* sampling,
                             oar_event_callback callback, void* user, oar_generation* generation) {
  return generate(model, sampling, callback, user, generation, [&](LanguageModel& m) -> Ids {
    OAR_ASSIGN(const ChatPrompt prompt, chat_prompt(m, messages, static_cast<const json::array*>(nullptr)));
    return m.tokenizer()->encode(prompt.text, {.add_special_tokens = false, .plain = prompt.user});
  });
}

oar_status oar_chat_options_init(oar_chat_options* options, size_t size) {
  return init_struct(default_chat_options(), "chat_options", options, size);
}

oar_status oar_generate_conversation(oar_model model, const char* messages, const oar_chat_options* options,
                                     const oar_sampling* sampling, oar_event_callback callback, void* user,
                                     oar_generation* generation) {
  ReplyRequest asked;
  return generate(
      model, sampling, callback, user, generation,
      [&](LanguageModel& m) -> Ids {
        oar_chat_options o = default_chat_options();
        if (options != nullptr) OAR_RETURN_IF_ERROR(read_struct(options, "chat_options", o));
        OAR_ASSIGN(asked, read_reply(o));
        OAR_ASSIGN(const ChatPrompt prompt,
                   chat_prompt(m, messages, asked.tools.active() ? &asked.tools.definitions : nullptr));
        return m.tokenizer()->encode(prompt.text, {.add_special_tokens = false, .plain = prompt.user});
      },
      [&](LanguageModel& m, const grammar::ConstraintSpec& answer, GenerationSpec& spec) {
        asked.answer = answer;
        return constrain_reply(m, asked, spec);
      });
}

oar_status oar_generation_next(oar_generation generation, int64_t timeout_ms, const oar_event** event) {
  return call([&]() -> Status {
    if (event == nullptr) return null_argument("event");
    *event = nullptr;
    OAR_ASSIGN(const auto object, find<Generation>(generation));
    if (object->has_callback())
      return Status(StatusCode::kFailedPrecondition,
                    "generation: its events go to its callback; submit without one to poll", "generation");
    OAR_ASSIGN(std::optional<TextEvent> text, object->next(timeout_ms));
    if (!text) return ok_status();
    thread_local EventStorage storage;
    storage.fill(std::move(*text), object->logprobs());
    *event = &storage.event;
    return ok_status();
  });
}

oar_status oar_generation_wait(oar_generation generation, int64_t timeout_ms) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Generation>(generation));
    if (!object->has_callback())
      return Status(StatusCode::kFailedPrecondition,
                    "generation: it has no callback; take its events with oar_generation_next()",
                    "generation");
    if (Delivery::in_callback())
      return Status(
          StatusCode::kFailedPrecondition,
          "oar_generation_wait() was called from a callback, which it would wait for; call it from a "
          "thread of your own");
    return object->wait(timeout_ms);
  });
}

oar_status oar_generation_cancel(oar_generation generation) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Generation>(generation));
    object->cancel();
    return ok_status();
  });
}

oar_status oar_generation_close(oar_generation generation) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, take<Generation>(generation));
    object->close();
    return ok_status();
  });
}

}  // extern "C"
