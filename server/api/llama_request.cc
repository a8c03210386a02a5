#include "server/api/llama_request.h"

#include <algorithm>
#include <charconv>

#include "engine/base/format.h"
#include "server/api/openai_request.h"
#include "server/api/text_tools.h"

namespace oar::api {
namespace {

constexpr size_t kMaxModelName = 256;
constexpr size_t kMaxResponseFields = 64;
constexpr size_t kMaxBiasText = 1024;

// Texts of other files: [{"filename": name, "text": text}], the name of which may be missing.
void read_other_files(Fields& f, std::vector<OtherFile>& out) {
  const json::array* list = f.array("input_extra");
  for (size_t i = 0; list && f.ok() && i < list->size(); ++i) {
    const std::string path = cat("input_extra[", i, "]");
    const json::object* one = (*list)[i].if_object();
    if (!one) return f.fail(path, cat(path, " must be an object, got ", describe((*list)[i])));
    Fields o(*one, path + ".");
    OtherFile file;
    o.string("filename", file.name, kMaxModelName);
    o.require("text", "it is what the file has");
    o.string("text", file.text, SIZE_MAX);
    o.refuse_rest();
    if (!o.ok()) return f.fail(o.status().param(), o.status().message());
    out.push_back(std::move(file));
  }
}

// The text around the gap.
void read_gap(Fields& f, GenerationRequest& r) {
  std::string prefix;
  for (const char* name : {"input_prefix", "input_suffix"}) f.require(name, "send the text around the gap");
  f.string("input_prefix", prefix, SIZE_MAX);
  f.string("input_suffix", r.suffix, SIZE_MAX);
  f.string("prompt", r.beginning, SIZE_MAX);
  read_other_files(f, r.other_files);
  r.fills = true;
  r.prompt_field = "input_prefix";
  r.prompts.emplace_back(std::move(prefix));
}

// Tokens and texts, one behind the other. The first text gets what the tokenizer writes before one where it
// stands first.
Result<Prompt> read_mixed(const json::array& list, const std::string& path, const ModelHandle& model,
                          const ApiLimits& limits) {
  const RequestLimits& engine = model.engine->request_limits();
  std::vector<int32_t> out;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_string()) {
      GenerationRequest piece;
      piece.add_special_tokens = i == 0;
      piece.prompts.emplace_back(std::string(list[i].get_string()));
      OAR_ASSIGN(auto tokens, prompt_tokens(model, piece, limits, {engine.max_context, {}, {}}));
      out.insert(out.end(), tokens[0].begin(), tokens[0].end());
      continue;
    }
    const bool known =
        list[i].is_int64() && list[i].get_int64() >= 0 && list[i].get_int64() < engine.vocab_size;
    if (!known) return token_error(path, i, engine.vocab_size, describe(list[i]));
    out.push_back(static_cast<int32_t>(list[i].get_int64()));
  }
  if (out.empty()) return no_tokens_error(path);
  return Prompt(std::move(out));
}

bool holds_numbers(const json::array& list) {
  return std::any_of(list.begin(), list.end(), [](const json::value& v) { return v.is_number(); });
}

// A text, {"prompt_string": text}, or a list of tokens and texts.
Result<Prompt> read_one(const json::value& v, const std::string& path, const ModelHandle& model,
                        const ApiLimits& limits) {
  if (v.is_string()) return Prompt(std::string(v.get_string()));
  if (v.is_array()) return read_mixed(v.get_array(), path, model, limits);
  if (!v.is_object())
    return invalid_argument(cat(path,
                                " must be a text, a list of tokens and texts, or an object with "
                                "prompt_string, got ",
                                describe(v)),
                            path);
  Fields f(v.get_object(), path + ".");
  std::string text;
  f.require("prompt_string", "it is the prompt's text");
  f.string("prompt_string", text, SIZE_MAX);
  f.unsupported("multimodal_data", "this model reads text");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return Prompt(std::move(text));
}

Result<std::vector<Prompt>> read_llama_prompts(const json::value& v, const ModelHandle& model,
                                               const ApiLimits& limits) {
  const json::array* list = v.if_array();
  const bool several = list != nullptr && !holds_numbers(*list);
  if (several && list->empty())
    return invalid_argument("prompt is an empty array; send at least one prompt", "prompt");
  if (several && list->size() > limits.max_prompts)
    return invalid_argument(
        cat("prompt has ", list->size(), " elements; at most ", limits.max_prompts, " are accepted"),
        "prompt");
  std::vector<Prompt> out;
  for (size_t i = 0; i < (several ? list->size() : 1); ++i) {
    OAR_ASSIGN(Prompt one, read_one(several ? (*list)[i] : v, several ? cat("prompt[", i, "]") : "prompt",
                                    model, limits));
    out.push_back(std::move(one));
  }
  return out;
}

// llama.cpp's own form of logit_bias, [[token or text, bias], ...], as an object of ids: each token of a text
// has the bias, and false is as much as there is against one.
Result<json::object> biases_of(const json::array& list, const ModelHandle& model) {
  constexpr double kAgainst = -100;
  Tokenizer::EncodeOptions plain;
  plain.add_special_tokens = false;
  json::object out;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = cat("logit_bias[", i, "]");
    const json::array* pair = list[i].if_array();
    const bool good = pair && pair->size() == 2 && ((*pair)[0].is_int64() || (*pair)[0].is_string()) &&
                      ((*pair)[1].is_number() || (*pair)[1] == false);
    if (!good)
      return invalid_argument(
          cat(path, " must be [token id or text, number or false], got ", describe(list[i])), path);
    const json::value bias = (*pair)[1].is_number() ? (*pair)[1] : json::value(kAgainst);
    std::vector<int32_t> ids;
    if ((*pair)[0].is_string()) {
      const json::string& text = (*pair)[0].get_string();
      if (text.size() > kMaxBiasText)
        return invalid_argument(cat(path, " has a text of ", text.size(), " bytes; at most ", kMaxBiasText),
                                path);
      OAR_ASSIGN(ids, model.tokenizer->encode(std::string_view(text), plain));
    }
    for (const int32_t id : ids) out[cat(id)] = bias;
    if (ids.empty() && (*pair)[0].is_int64()) out[cat((*pair)[0].get_int64())] = bias;
  }
  return out;
}

std::optional<int64_t> token_id(std::string_view key) {
  int64_t id = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size()) return std::nullopt;
  return id;
}

// Whether keys of an object are texts; one of ids alone is read as OpenAI's.
bool has_texts(const json::value& bias) {
  if (!bias.is_object()) return false;
  return std::any_of(bias.get_object().begin(), bias.get_object().end(),
                     [](const auto& entry) { return !token_id(entry.key()); });
}

json::array as_pairs(const json::object& biases) {
  json::array out;
  for (const auto& [key, bias] : biases) {
    const std::optional<int64_t> id = token_id(key);
    out.push_back(json::array{id ? json::value(*id) : json::value(key), bias});
  }
  return out;
}

}  // namespace

Result<LlamaRequest> parse_llama_request(const RequestBody& body, const ModelHandle& model,
                                         const ApiLimits& limits, bool infill) {
  LlamaRequest out;
  GenerationRequest& r = out.request;
  r = request_for(model);
  const RequestLimits& engine = model.engine->request_limits();
  json::object with_ids;
  if (const json::value* bias = body.object.if_contains("logit_bias");
      bias && (bias->is_array() || has_texts(*bias))) {
    with_ids = body.object;
    OAR_ASSIGN(with_ids["logit_bias"],
               biases_of(bias->is_array() ? bias->get_array() : as_pairs(bias->get_object()), model));
  }
  const RequestBody read(with_ids.empty() ? body.object : with_ids);
  Fields f(body.list ? body : read);
  f.string("model", r.model, kMaxModelName);
  f.boolean("stream", r.streaming.stream);
  read_telemetry(f, r);
  read_params(f, engine, limits, r);
  if (r.n != 1) f.fail("n", cat("n is ", r.n, "; a prompt has one answer here: send it several times"));
  // Its ways to say that any seed will do.
  if (r.sampling.seed == UINT64_MAX || r.sampling.seed == UINT32_MAX) r.sampling.seed.reset();
  int32_t probabilities = 0;
  f.integer("n_probs", probabilities, 0, engine.max_logprobs);
  if (probabilities > 0) r.logprobs = probabilities;
  f.boolean("post_sampling_probs", r.sampling.drawn_logprobs);
  f.boolean("return_tokens", out.return_tokens);
  f.strings("response_fields", out.response_fields, kMaxResponseFields, kMaxModelName);
  if (infill) {
    read_gap(f, r);
    f.refuse_rest();
    if (!f.ok()) return f.status();
    return out;
  }
  const json::value* prompt = f.find("prompt");
  f.require("prompt", "send a text, token ids, or a list of either");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_ASSIGN(r.prompts, read_llama_prompts(*prompt, model, limits));
  return out;
}

}  // namespace oar::api
