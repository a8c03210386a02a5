// What clients ask of encoders, as structs: OpenAI's embeddings, vLLM's /pooling, rerank.
#include <algorithm>

#include "engine/base/format.h"
#include "server/api/embeddings.h"
#include "server/api/fields.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

constexpr size_t kMaxInputs = 2048;  // OpenAI's
constexpr size_t kMaxDocuments = 10'000;
constexpr size_t kMaxTextBytes = 4 << 20;

// Tokens, or tokens and texts one behind the other.
Result<EmbeddingInput> token_list(const json::array& list) {
  const bool texts =
      std::any_of(list.begin(), list.end(), [](const json::value& v) { return v.is_string(); });
  std::vector<int32_t> tokens;
  MixedInput mixed;  // of those with texts alone
  for (const json::value& v : list) {
    if (v.is_string()) {
      mixed.emplace_back(std::string(v.get_string()));
      continue;
    }
    if (!v.is_int64() || v.get_int64() < 0 || v.get_int64() > INT32_MAX)
      return invalid_argument(cat("input: a list of tokens holds ", describe(v)), "input");
    const auto token = static_cast<int32_t>(v.get_int64());
    if (texts) mixed.emplace_back(token);
    else tokens.push_back(token);
  }
  if (list.empty()) return invalid_argument("input: an empty list of tokens; send at least one", "input");
  if (texts) return EmbeddingInput(std::move(mixed));
  return EmbeddingInput(std::move(tokens));
}

// llama.cpp's {"prompt_string": text}, and {"content": [{"type": "text", "text": ...}, ...]}, whose texts are
// one.
Result<std::string> text_of_input(const json::object& input) {
  Fields f(input, "input.");
  std::string text;
  f.string("prompt_string", text, kMaxTextBytes);
  const json::array* parts = f.array("content");
  if (f.ok() && (parts != nullptr) == (f.find("prompt_string") != nullptr))
    f.fail("content", "input: an object has prompt_string or content, one of them");
  f.refuse_rest();
  for (size_t i = 0; f.ok() && parts && i < parts->size(); ++i) {
    const std::string path = cat("input.content[", i, "]");
    const json::object* part = (*parts)[i].if_object();
    if (!part) return invalid_argument(cat(path, " must be an object, got ", describe((*parts)[i])), path);
    Fields p(*part, path + ".");
    std::string type, piece;
    p.string("type", type, 64);
    if (type != "text")
      p.fail("type",
             cat(path, ".type is ", describe(json::value(type)), "; this model reads text parts only"));
    p.require("text", "it is the part's text");
    p.string("text", piece, kMaxTextBytes);
    p.refuse_rest();
    if (!p.ok()) return p.status();
    text += piece;
  }
  if (!f.ok()) return f.status();
  return text;
}

Status read_inputs(const json::value& input, EmbeddingRequest& out) {
  if (input.is_string()) {
    out.inputs.emplace_back(std::string(input.get_string()));
    return ok_status();
  }
  if (input.is_object()) {
    OAR_ASSIGN(std::string text, text_of_input(input.get_object()));
    out.inputs.emplace_back(std::move(text));
    return ok_status();
  }
  if (!input.is_array() || input.get_array().empty())
    return invalid_argument(
        cat("input must be a string, or a list of strings or tokens, not empty; got ", describe(input)),
        "input");
  const json::array& list = input.get_array();
  if (std::any_of(list.begin(), list.end(), [](const json::value& v) { return v.is_number(); })) {
    OAR_ASSIGN(EmbeddingInput one, token_list(list));
    out.inputs.push_back(std::move(one));
    return ok_status();
  }
  if (list.size() > kMaxInputs)
    return invalid_argument(cat("input has ", list.size(), " entries; at most ", kMaxInputs), "input");
  for (const json::value& v : list) {
    if (v.is_string()) {
      out.inputs.emplace_back(std::string(v.get_string()));
    } else if (v.is_object()) {
      OAR_ASSIGN(std::string text, text_of_input(v.get_object()));
      out.inputs.emplace_back(std::move(text));
    } else if (v.is_array()) {
      OAR_ASSIGN(EmbeddingInput one, token_list(v.get_array()));
      out.inputs.push_back(std::move(one));
    } else {
      return invalid_argument(cat("input: entries must be strings or lists of tokens, got ", describe(v)),
                              "input");
    }
  }
  return ok_status();
}

}  // namespace

Status check_inputs(const EmbeddingRequest& request) {
  if (request.inputs.empty()) return invalid_argument("input has no entries; send at least one", "input");
  if (request.inputs.size() > kMaxInputs)
    return invalid_argument(cat("input has ", request.inputs.size(), " entries; at most ", kMaxInputs),
                            "input");
  for (const auto& input : request.inputs) {
    const auto* text = std::get_if<std::string>(&input);
    size_t bytes = text ? text->size() : 0;
    if (const auto* mixed = std::get_if<MixedInput>(&input))
      for (const auto& piece : *mixed)
        if (const auto* more = std::get_if<std::string>(&piece)) bytes += more->size();
    if (bytes > kMaxTextBytes)
      return invalid_argument(cat("input: a text of ", bytes, " bytes; at most ", kMaxTextBytes), "input");
  }
  return ok_status();
}

Status check_documents(const RerankRequest& request) {
  if (request.query.empty()) return invalid_argument("query is missing or empty; send a text", "query");
  if (request.documents.empty())
    return invalid_argument("documents is missing or empty; send a list of texts", "documents");
  if (request.documents.size() > kMaxDocuments)
    return invalid_argument(
        cat("documents has ", request.documents.size(), " entries; at most ", kMaxDocuments), "documents");
  size_t most = request.query.size();
  for (const std::string& d : request.documents) most = std::max(most, d.size());
  if (most > kMaxTextBytes)
    return invalid_argument(cat("documents: a text of ", most, " bytes; at most ", kMaxTextBytes),
                            "documents");
  return ok_status();
}

namespace {
enum class Asked { kEmbeddings, kPooling, kLabels };

Result<EmbeddingRequest> parse_vector_request(const RequestBody& body, Asked asked) {
  EmbeddingRequest out;
  Fields f(body);
  std::string task = "embed";
  if (asked == Asked::kPooling) f.string("task", task, 64);
  if (task != "embed" && task != "token_embed")
    f.fail("task", cat("task is ", in_quotes(task),
                       "; embed (one vector for each input) and token_embed (one for each token) are what "
                       "/pooling offers; scores are /v1/score, labels /classify"));
  out.per_token = task == "token_embed";
  f.string("model", out.model, 1024);
  std::string format = "float";
  if (asked != Asked::kLabels) {
    f.string("encoding_format", format, 64);
    f.integer("dimensions", out.dimensions, 1, 1 << 20);
  }
  int64_t truncate = 0;
  f.integer("truncate_prompt_tokens", truncate, -1, 1 << 20);
  const json::value* input = f.find("input");
  f.require("input", "send a text or a list of texts");
  if (f.ok() && format != "float" && format != "base64")
    f.fail("encoding_format", cat("encoding_format must be float or base64, got ", in_quotes(format)));
  f.refuse_rest();
  if (!f.ok()) return f.status();
  out.base64 = format == "base64";
  out.truncate_to = truncate < 0 ? INT64_MAX : truncate;
  OAR_RETURN_IF_ERROR(read_inputs(*input, out));
  OAR_RETURN_IF_ERROR(check_inputs(out));
  return out;
}

}  // namespace

Result<EmbeddingRequest> parse_embedding_request(const RequestBody& body) {
  return parse_vector_request(body, Asked::kEmbeddings);
}

Result<EmbeddingRequest> parse_pooling_request(const RequestBody& body) {
  return parse_vector_request(body, Asked::kPooling);
}

Result<EmbeddingRequest> parse_classify_request(const RequestBody& body) {
  return parse_vector_request(body, Asked::kLabels);
}

Result<RerankRequest> parse_rerank_request(const RequestBody& body) {
  RerankRequest out;
  Fields f(body);
  f.string("model", out.model, 1024);
  f.string("query", out.query, kMaxTextBytes);
  f.integer("top_n", out.top_n, 0, INT32_MAX);
  f.boolean("return_documents", out.return_documents);
  const json::array* documents = f.array("documents");
  std::vector<std::string> texts;
  f.strings("texts", texts, kMaxDocuments, kMaxTextBytes);
  bool return_text = false, raw_scores = false;
  f.boolean("return_text", return_text);
  f.boolean("raw_scores", raw_scores);
  if (raw_scores)
    f.fail("raw_scores", "raw_scores: scores are as the model's own head makes them; leave it out");
  out.tei = f.find("texts") != nullptr;
  if (out.tei && documents) f.fail("texts", "texts and documents are the same; send one of them");
  if (out.tei) {
    out.documents = std::move(texts);
    out.return_documents = return_text;
  }
  f.refuse_rest();
  if (!f.ok()) return f.status();
  for (size_t k = 0; documents && k < documents->size(); ++k) {
    const json::value& v = (*documents)[k];
    const json::value* text = v.is_object() ? v.get_object().if_contains("text") : &v;
    if (!text || !text->is_string())
      return invalid_argument(
          cat("documents: entries must be strings or objects with text, got ", describe(v)), "documents");
    out.documents.emplace_back(text->get_string());
  }
  OAR_RETURN_IF_ERROR(check_documents(out));
  return out;
}

}  // namespace oar::api
