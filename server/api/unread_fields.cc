#include "server/api/unread_fields.h"

#include <algorithm>
#include <string>

namespace oar::api {
namespace {

constexpr std::string_view kAny = "*";
constexpr std::string_view kEmpty = {};
constexpr std::string_view kNever = "[]";

constexpr std::string_view kConstrained =
    "constraints are response_format, structured_outputs, json_schema, regex, grammar, choice, "
    "structural_tag";
constexpr std::string_view kNotHere =
    "it is about generated text, and this request generates none; leave it out";
constexpr std::string_view kWhiteSpace =
    "white space in JSON is bounded, see docs/decisions/0024; leave it out";
constexpr std::string_view kNoTools = "use tools and tool_choice, which came after it";
constexpr std::string_view kNoSampler =
    "the samplers are temperature, top_k, top_p, min_p and the three penalties; leave it out";
constexpr std::string_view kChatOnly = "chat reads it; leave it out here";
constexpr std::string_view kTelemetry =
    "chat, completions, responses and llama.cpp's requests read it; leave it out here";
constexpr std::string_view kNoAdapters = "an adapter is named by `model`";
constexpr std::string_view kTextOnly = "prompts and answers are text; leave it out";
constexpr std::string_view kNoIds = "use oar.v1 over gRPC, which sends the ids, or ask /tokenize";
constexpr std::string_view kNoState = "requests share no state here; leave it out";
constexpr std::string_view kLoading = "options of `oar serve` say how models are loaded and run";
constexpr std::string_view kPrefixed = "write what the model wants before a text into the text";

// The values beside "*" are the defaults that clients of these servers write out.
constexpr UnreadField kFields[] = {
    // Without effect on an answer.
    {"user", kAny, "it names the caller for statistics that are not kept"},
    {"safety_identifier", kAny, "it names the caller for statistics that are not kept"},
    {"metadata", kAny, "it labels answers that are not stored"},
    {"store", kAny, "answers of this kind are not stored"},
    {"service_tier", kAny, "there is one tier"},
    {"prediction", kAny, "it is a hint for speed"},
    {"parallel_tool_calls", kAny, "it says how tools are called, and chat alone has them"},
    {"prompt_cache_key", kAny, "prefixes are found by their tokens"},
    {"prompt_cache_retention", kAny, "prefixes stay while there is room"},
    {"prompt_cache_options", kAny, "prefixes are found by their tokens"},
    {"cache_control", kAny, "prefixes are found by their tokens"},
    {"backend_sampling", kAny, "draws are the same wherever they are made"},
    {"cache_prompt", kAny, "prefixes are always cached, and answers are the same either way"},
    {"id_slot", kAny, "there are no slots"},
    {"n_keep", kAny, "a full context ends the answer, so nothing is dropped from it"},
    {"num_keep", kAny, "a full context ends the answer, so nothing is dropped from it"},
    {"num_batch", kAny, kLoading},
    {"num_gpu", kAny, kLoading},
    {"main_gpu", kAny, kLoading},
    {"num_thread", kAny, kLoading},
    {"numa", kAny, kLoading},
    {"low_vram", kAny, kLoading},
    {"use_mmap", kAny, kLoading},
    {"use_mlock", kAny, kLoading},
    {"f16_kv", kAny, kLoading},
    {"include_obfuscation", kAny, "chunks are not padded"},
    {"guided_decoding_backend", kAny, "there is one way to keep constraints"},
    {"model_name", kAny, "the path names the model"},
    {"model_version", kAny, "the path names the version"},
    {"content_type", kAny, "it tells the client's own codecs what a tensor is"},
    {"binary_data_output", kAny, "text travels as text, and gRPC's tensors are binary"},
    {"triton_enable_empty_final_response", kAny, "an answer of tensors is one message"},
    // Constraints. Those of generated text are read where text is generated.
    {"regex", kEmpty, kNotHere},
    {"ebnf", kEmpty, kNotHere},
    {"grammar", kEmpty, kNotHere},
    {"json_schema", kEmpty, kNotHere},
    {"structural_tag", kEmpty, kNotHere},
    {"choice", kEmpty, kNotHere},
    {"response_format", kEmpty, kNotHere},
    {"structured_outputs", kEmpty, kNotHere},
    {"guided_json", kEmpty, kNotHere},
    {"guided_regex", kEmpty, kNotHere},
    {"guided_choice", kEmpty, kNotHere},
    {"guided_grammar", kEmpty, kNotHere},
    {"grammar_lazy", kEmpty, "use structural_tag"},
    {"grammar_triggers", kEmpty, "use structural_tag"},
    {"guided_whitespace_pattern", kEmpty, kWhiteSpace},
    {"guided_decoding", kEmpty, kConstrained},
    {"format", kEmpty, kConstrained},
    {"allowed_token_ids", kEmpty, kNotHere},
    {"bad_words", kEmpty, kNotHere},
    {"stop_words", kEmpty, "use stop"},
    {"stop_regex", kEmpty, "use stop"},
    {"no_stop_trim", kEmpty, "use include_stop_str_in_output"},
    // Tools, other inputs and outputs than text.
    {"functions", kEmpty, kNoTools},
    {"function_call", R"(["none", "auto"])", kNoTools},
    {"web_search_options", kNever, "there is no web search; leave it out"},
    {"modalities", R"([["text"], []])", kTextOnly},
    {"audio", kEmpty, kTextOnly},
    {"images", kEmpty, kTextOnly},
    {"image_data", kEmpty, kTextOnly},
    {"mm_processor_kwargs", kEmpty, kTextOnly},
    {"moderation", kEmpty, "moderation is not offered; leave it out"},
    {"verbosity", R"(["medium", ""])", "ask for it in a message"},
    {"documents", kEmpty, "put the text into a message"},
    {"system_prompt", kEmpty, "send a message of role system"},
    {"chat_template", kEmpty, "the model's own template is used; leave it out"},
    {"prompt_embeds", kEmpty, "send text or token ids"},
    {"prompt_logprobs", "[-1]", "ask /v1/completions or /v1/chat/completions"},
    {"truncate_prompt_tokens", kEmpty, "shorten the texts"},
    {"truncate", "[false]", "shorten the prompt, or use truncate_prompt_tokens"},
    {"shift", "[false]", "a full context ends the answer; leave it out"},
    {"context", kEmpty, "send the conversation to /api/chat"},
    {"template", kEmpty, "the model's own template is used; leave it out"},
    {"spaces_between_special_tokens", "[true]", "texts are as the tokenizer makes them; leave it out"},
    // What an answer reports.
    {"return_token_ids", kEmpty, kNoIds},
    {"return_tokens", kEmpty, kNoIds},
    {"return_tokens_as_token_ids", kEmpty, kNoIds},
    {"return_hidden_states", kEmpty, "hidden states are not offered; leave it out"},
    {"return_progress", kEmpty, kTelemetry},
    {"timings_per_token", kEmpty, kTelemetry},
    {"n_probs", "[0]", "use logprobs"},
    {"post_sampling_probs", kEmpty,
     "llama.cpp's /completion reads it; elsewhere log-probabilities are the model's own"},
    {"response_fields", kEmpty, "answers are sent whole; leave it out"},
    {"request_id", kEmpty, "read the id that the answer carries"},
    {"rid", kEmpty, "read the id that the answer carries"},
    {"classification", "[0]", "it is a parameter of an output of an ordinary model"},
    {"shared_memory_region", kEmpty, "send and take the tensors themselves"},
    {"shared_memory_byte_size", "[0]", "send and take the tensors themselves"},
    {"shared_memory_offset", "[0]", "send and take the tensors themselves"},
    // When a request is served, and with what.
    {"priority", "[0]", "language models read it; others serve requests in the order of their arrival"},
    {"sequence_id", R"([0, ""])", kNoState},
    {"sequence_start", kEmpty, kNoState},
    {"sequence_end", kEmpty, kNoState},
    {"session_params", kEmpty, kNoState},
    {"n_indent", "[0]", "lines are not looked at; leave it out"},
    {"t_max_prompt_ms", "[0, -1]", "use timeout, in seconds"},
    {"t_max_predict_ms", "[0, -1]", "use timeout, in seconds"},
    {"lora", kEmpty, kNoAdapters},
    {"lora_path", kEmpty, kNoAdapters},
    {"lora_name", kEmpty, kNoAdapters},
    {"logits_processors", kEmpty, "there are none; leave it out"},
    {"custom_logit_processor", kEmpty, "there are none; leave it out"},
    {"custom_params", kEmpty, "none are defined here; leave it out"},
    {"vllm_xargs", kEmpty, "none are defined here; leave it out"},
    {"kv_transfer_params", kEmpty, "caches are not exchanged between servers; leave it out"},
    {"extra_body", kEmpty, "clients put its members beside the other fields; do the same"},
    // Counts under other names.
    {"best_of", "[1]", "leave it out or set n"},
    {"n_cmpl", "[1]", "use n"},
    {"max_new_tokens", kNever, "use max_tokens"},
    {"min_new_tokens", "[0]", "use min_tokens"},
    // Thinking.
    {"thinking_budget_tokens", "[-1]", kChatOnly},
    {"thinking_token_budget", "[-1]", kChatOnly},
    {"thinking_budget", "[-1]", kChatOnly},
    {"reasoning_budget", "[-1]", kChatOnly},
    {"reasoning_budget_tokens", "[-1]", kChatOnly},
    {"include_reasoning", "[true]", kChatOnly},
    {"separate_reasoning", kEmpty, kChatOnly},
    {"reasoning_format", R"(["none", "auto", ""])", kChatOnly},
    {"thinking", kEmpty, "use chat_template_kwargs with what the model's template reads"},
    {"reasoning", kEmpty, "use chat_template_kwargs with what the model's template reads"},
    {"enable_thinking", kNever, "use chat_template_kwargs: {\"enable_thinking\": ...}"},
    {"stream_reasoning", "[true]", "reasoning is streamed as it comes; leave it out"},
    // Samplers.
    {"typical_p", "[1]", kNoSampler},
    {"typical", "[1]", kNoSampler},
    {"typ_p", "[1]", kNoSampler},
    {"mirostat", "[0]", kNoSampler},
    {"mirostat_mode", "[0]", kNoSampler},
    {"mirostat_tau", "[5]", kNoSampler},
    {"mirostat_eta", "[0.1]", kNoSampler},
    {"dry_multiplier", "[0]", kNoSampler},
    {"dry_base", "[1.75]", kNoSampler},
    {"dry_allowed_length", "[2]", kNoSampler},
    {"dry_penalty_last_n", "[-1, 0]", kNoSampler},
    {"dry_sequence_breakers", R"([["\n", ":", "\"", "*"], []])", kNoSampler},
    {"xtc_probability", "[0]", kNoSampler},
    {"xtc_threshold", "[0.1]", kNoSampler},
    {"dynatemp_range", "[0]", kNoSampler},
    {"dynatemp_exponent", "[1]", kNoSampler},
    {"adaptive_target", "[-1]", kNoSampler},
    {"adaptive_decay", "[0.9]", kNoSampler},
    {"tfs", "[1]", kNoSampler},
    {"tfs_z", "[1]", kNoSampler},
    {"top_a", "[0]", kNoSampler},
    {"top_n_sigma", "[-1, 0]", kNoSampler},
    {"epsilon_cutoff", "[0]", kNoSampler},
    {"eta_cutoff", "[0]", kNoSampler},
    {"smoothing_factor", "[0]", kNoSampler},
    {"smoothing_curve", "[1]", kNoSampler},
    {"min_keep", "[0, 1]", kNoSampler},
    {"penalize_newline", "[true]", kNoSampler},
    {"samplers", kEmpty, kNoSampler},
    {"repeat_penalty", "[1]", kNotHere},
    {"repeat_last_n", "[-1, 0, 64]", "penalties count the whole context; leave it out"},
    {"penalty_alpha", "[0]", kNoSampler},
    {"no_repeat_ngram_size", "[0]", kNoSampler},
    {"length_penalty", "[1]", "it ranks beams, and there are none; leave it out"},
    {"early_stopping", kEmpty, "it ends a beam search, and there is none; leave it out"},
    {"use_beam_search", kEmpty, "leave it out; sampling is what this server does"},
    // Embeddings and rerank.
    {"input_type", kEmpty, kPrefixed},
    {"task", kEmpty, kPrefixed},
    {"prompt_name", kEmpty, kPrefixed},
    {"late_chunking", kEmpty, "each input is embedded alone; leave it out"},
    {"rank_fields", R"([["text"], []])", "send documents as texts"},
};

// Whether two JSON values say the same, numbers by value: 1 and 1.0.
bool same(const json::value& a, const json::value& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  return a.to_number<double>() == b.to_number<double>();
}

bool is_empty(const json::value& v) {
  return v == false || (v.is_string() && v.get_string().empty()) || (v.is_array() && v.get_array().empty()) ||
         (v.is_object() && v.get_object().empty());
}

}  // namespace

std::span<const UnreadField> unread_fields() { return kFields; }

json::object idle_samplers() {
  json::object out;
  for (const UnreadField& f : kFields) {
    if (f.remedy != kNoSampler || f.idle.empty()) continue;
    const json::value idle = json::parse(json::string_view(f.idle.data(), f.idle.size()));
    if (const json::array& values = idle.get_array(); !values.empty()) out[f.name] = values.front();
  }
  return out;
}

const UnreadField* find_unread_field(std::string_view name) {
  const auto it = std::find_if(std::begin(kFields), std::end(kFields),
                               [&](const UnreadField& f) { return f.name == name; });
  return it == std::end(kFields) ? nullptr : it;
}

bool asks_for_nothing(const UnreadField& field, const json::value& value) {
  if (value.is_null() || field.idle == kAny) return true;
  if (field.idle.empty()) return is_empty(value);
  const json::value idle = json::parse(json::string_view(field.idle.data(), field.idle.size()));
  const json::array& values = idle.get_array();
  return std::any_of(values.begin(), values.end(), [&](const json::value& v) { return same(v, value); });
}

}  // namespace oar::api
