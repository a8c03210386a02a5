// Fields that other servers know and this one does not honour, and fields that nobody knows: refused by name
// over every protocol, unless they cannot change the answer or their value asks for nothing.
#include <fstream>
#include <iterator>
#include <set>

#include "engine/base/nearest.h"
#include "server/api/embeddings.h"
#include "server/api/fields.h"
#include "server/api/openai_request.h"
#include "server/api/unread_fields.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::json::value;

struct Given {
  const char* name;
  const char* json;  // its value
};

const Given kAsks[] = {
    {"regex", "5"},
    {"ebnf", "5"},
    {"grammar", "5"},
    {"json_schema", "5"},
    {"structural_tag", "5"},
    {"structured_outputs", "5"},
    {"guided_choice", "5"},
    {"return_hidden_states", "true"},
    {"return_tokens", "true"},
    {"typical_p", "0.5"},
    {"mirostat", "2"},
    {"mirostat_tau", "3.0"},
    {"dry_multiplier", "0.8"},
    {"dry_base", "2"},
    {"dry_allowed_length", "3"},
    {"dry_sequence_breakers", R"(["a"])"},
    {"xtc_probability", "0.5"},
    {"thinking_budget_tokens", "100"},
    {"enable_thinking", "false"},
    {"include_reasoning", "false"},
    {"use_beam_search", "true"},
    {"max_new_tokens", "3"},
    {"lora", R"([{"id":0,"scale":1}])"},
    {"request_id", R"("mine")"},
};

// What real clients send without wanting anything: hints, labels, and their own servers' defaults.
const char* const kHarmless =
    R"("user":"me","metadata":{"a":"b"},"store":false,"service_tier":"auto","parallel_tool_calls":true,)"
    R"("prompt_cache_key":"k","cache_control":{"type":"ephemeral"},"cache_prompt":true,"id_slot":-1,)"
    R"("n_keep":0,"typical_p":1.0,"mirostat":0,)"
    R"("mirostat_tau":5.0,"mirostat_eta":0.1,"dry_multiplier":0.0,"dry_base":1.75,"dry_allowed_length":2,)"
    R"("dry_penalty_last_n":-1,"dry_sequence_breakers":["\n",":","\"","*"],"xtc_probability":0,)"
    R"("xtc_threshold":0.1,"dynatemp_range":0,"repeat_penalty":1.0,"repeat_last_n":64,"n_probs":0,)"
    R"("priority":0,"length_penalty":1.0,"use_beam_search":false,"spaces_between_special_tokens":true,)"
    R"("bad_words":"","guided_json":null,"grammar":"","samplers":[],"thinking_budget_tokens":-1,)"
    R"("return_token_ids":false,"include_reasoning":true,"nobody_knows_this":null)";

std::string with(const std::string& body, const Given& field) {
  return body.substr(0, body.size() - 1) + ",\"" + field.name + "\":" + field.json + "}";
}

const std::string kChat = R"({"messages":[{"role":"user","content":"x"}]})";

TEST_CASE("the table of unread fields: each name once, each value JSON, each with a reason") {
  std::set<std::string_view> names;
  for (const oar::api::UnreadField& f : oar::api::unread_fields()) {
    INFO(f.name);
    CHECK(names.insert(f.name).second);
    CHECK_FALSE(f.remedy.empty());
    CHECK(oar::api::find_unread_field(f.name) == &f);
    CHECK(oar::api::asks_for_nothing(f, nullptr));
    if (f.idle.empty() || f.idle == "*") continue;
    const value idle = parse(std::string(f.idle));
    for (const value& v : idle.as_array()) CHECK(oar::api::asks_for_nothing(f, v));
    CHECK_FALSE(oar::api::asks_for_nothing(f, "something else"));
  }
}

TEST_CASE("docs/request-fields.md says of every field of the table what the server says") {
  std::ifstream in(std::string(OAR_SOURCE_DIR) + "/docs/request-fields.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  REQUIRE_FALSE(page.empty());
  for (const oar::api::UnreadField& f : oar::api::unread_fields()) {
    INFO(f.name);
    const size_t row = page.find("| `" + std::string(f.name) + "` |");
    REQUIRE(row != std::string::npos);
    CHECK(page.substr(row, page.find('\n', row) - row).ends_with("| " + std::string(f.remedy) + " |"));
  }
}

TEST_CASE("the nearest name") {
  const std::vector<std::string> known = {"temperature", "top_p", "top_k", "max_tokens", "stop"};
  CHECK(oar::nearest_name("temprature", known) == "temperature");
  CHECK(oar::nearest_name("max-token", known) == "max_tokens");
  CHECK(oar::nearest_name("tpo_p", known) == "top_p");
  CHECK(oar::nearest_name("Stop", known) == "stop");
  CHECK(oar::nearest_name("zzz", known).empty());
  CHECK(oar::nearest_name("", known).empty());
  CHECK(oar::nearest_name(std::string(100'000, 't'), known).empty());
}

TEST_CASE("HTTP refuses by name what it does not honour, and takes what asks for nothing") {
  TestServer t;
  const struct {
    const char* path;
    std::string body;
  } kEndpoints[] = {{"/v1/chat/completions", kChat},
                    {"/v1/completions", R"({"prompt":"x"})"},
                    {"/tokenize", R"({"prompt":"x"})"},
                    {"/tokenize", kChat},
                    {"/detokenize", R"({"tokens":[97]})"}};
  RawClient c(t.http());
  const auto post = [&](const char* path, const std::string& body) {
    REQUIRE(c.send(make_request("POST", path, body)));
    return c.read_reply();
  };
  for (const auto& e : kEndpoints) {
    for (const Given& field : kAsks) {
      INFO(e.path << " " << field.name);
      const HttpReply r = post(e.path, with(e.body, field));
      CHECK(r.status == 400);
      if (r.status != 400) continue;
      const value error = parse(r.body).at("error");
      CHECK(error.at("param") == field.name);
      CHECK(std::string(error.at("message").as_string()).find(field.name) == 0);
    }
    const HttpReply typo = post(e.path, with(e.body, {"modle", R"("x")"}));
    CHECK(typo.status == 400);
    CHECK(std::string(parse(typo.body).at("error").at("message").as_string()) ==
          "modle is no field of this request; did you mean model?");
  }
  CHECK(t.engine.submitted() == 0);
  for (const auto& e : kEndpoints) {
    const HttpReply r = post(e.path, e.body.substr(0, e.body.size() - 1) + "," + kHarmless + "}");
    INFO(e.path << " " << r.body);
    CHECK(r.status == 200);
  }
  const HttpReply nested =
      post("/v1/completions", R"({"prompt":"x","stream":true,"stream_options":{"include_usge":true}})");
  CHECK(parse(nested.body).at("error").at("param") == "stream_options.include_usge");
  // A name as long as the body allows is cut, not repeated.
  const HttpReply lengthy =
      post("/v1/completions", R"({"prompt":"x",")" + std::string(100'000, 'n') + R"(":1})");
  CHECK(lengthy.status == 400);
  CHECK(lengthy.body.size() < 500);
  CHECK(post("/v1/chat/completions", with(kChat, {"tool_choice", R"("required")"})).status == 400);
  CHECK(post("/v1/chat/completions", with(kChat, {"tool_choice", R"("auto")"})).status == 200);
  CHECK(post("/v1/completions", R"({"prompt":"x","n_predict":3})").status == 200);
  CHECK(t.engine.last_request().stop.max_tokens == 3);
  CHECK(post("/v1/completions", R"({"prompt":"x","n_predict":-1})").status == 200);
}

TEST_CASE("Embeddings and rerank refuse by name what they do not honour") {
  for (const Given& field : kAsks) {
    INFO(field.name);
    const value embed = parse(with(R"({"input":"x"})", field));
    CHECK(oar::api::parse_embedding_request(embed.as_object()).status().param() == field.name);
    const value rerank = parse(with(R"({"query":"x","documents":["y"]})", field));
    CHECK(oar::api::parse_rerank_request(rerank.as_object()).status().param() == field.name);
  }
  const value good = parse(with(R"({"input":"x","encoding_format":"base64"})", {"user", R"("me")"}));
  CHECK(oar::api::parse_embedding_request(good.as_object()).ok());
  const value typo = parse(R"({"query":"x","documents":["y"],"topn":1})");
  CHECK(oar::api::parse_rerank_request(typo.as_object()).status().message().find("top_n") !=
        std::string::npos);
}

TEST_CASE("Open Inference refuses parameters by name, over REST and gRPC") {
  TestServer t;
  const auto stub = std::make_unique<inference::GRPCInferenceService::Stub>(channel_to(t.grpc()));
  const auto infer = [&](const inference::ModelInferRequest& r) {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    return stub->ModelInfer(&context, r, &response);
  };
  for (const Given& field : kAsks) {
    INFO(field.name);
    for (const std::string& body :
         {with(R"({"text_input":"x"})", field),
          R"({"text_input":"x","parameters":)" + with("{\"seed\":1}", field) + "}"}) {
      const HttpReply r = http(t.http(), "POST", "/v2/models/fake/generate", body);
      CHECK(r.status == 400);
      CHECK(r.body.find(field.name) != std::string::npos);
    }
    const grpc::Status s = infer(text_request("x", with("{\"seed\":1}", field)));
    CHECK(s.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(s.error_message().find(field.name) == 0);
  }
  auto r = text_request("x");
  (*r.mutable_parameters())["sequence_id"].set_uint64_param(3);
  CHECK(infer(r).error_message().find("sequence_id 3 is not supported") == 0);
  r = text_request("x");
  (*r.mutable_parameters())["max_token"].set_int64_param(3);
  CHECK(infer(r).error_message().find("did you mean max_tokens") != std::string::npos);
  r = text_request("x");
  (*r.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("region");
  CHECK(infer(r).error_message().find("shared_memory_region") != std::string::npos);
  CHECK(t.engine.submitted() == 0);
  r = text_request("x", R"({"logprobs":2})");  // text_output has no place for them
  CHECK(infer(r).error_message().find("logprobs have no place in text_output") == 0);
  CHECK(t.engine.submitted() == 0);
  CHECK(infer(text_request("x", R"({"logprobs":false})")).ok());
  r = text_request("x", std::string("{") + kHarmless + "}");
  for (const char* name : {"priority", "sequence_id"}) (*r.mutable_parameters())[name].set_int64_param(0);
  CHECK(infer(r).ok());
  CHECK(http(t.http(), "POST", "/v2/models/fake/generate", R"({"text_input":"x","stream":true})").status ==
        400);
}

TEST_CASE("ordinary models refuse parameters by name, over REST and gRPC") {
  TensorServer t;
  const auto stub = std::make_unique<inference::GRPCInferenceService::Stub>(channel_to(t.grpc()));
  inference::ModelInferRequest good;
  good.set_model_name("scale");
  auto* input = add_input(good, "x", "FP32", {1, 3});
  for (int i = 0; i < 3; ++i) input->mutable_contents()->add_fp32_contents(1);
  const auto infer = [&](const inference::ModelInferRequest& r) {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    return stub->ModelInfer(&context, r, &response);
  };
  (*good.mutable_parameters())["timeout"].set_int64_param(10'000'000);
  (*good.mutable_parameters())["priority"].set_uint64_param(0);
  (*input->mutable_parameters())["content_type"].set_string_param("np");
  CHECK(infer(good).ok());
  auto r = good;
  (*r.mutable_parameters())["priority"].set_uint64_param(2);
  CHECK(infer(r).error_message().find("parameters.priority 2 is not supported") == 0);
  r = good;
  (*r.mutable_parameters())["timeuot"].set_int64_param(2);
  CHECK(infer(r).error_message().find("did you mean timeout") != std::string::npos);
  const auto rest = [&](const std::string& more) {
    return http(t.http(), "POST", "/v2/models/scale/infer",
                R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}])" + more + "}");
  };
  CHECK(rest(R"(,"id":"7","parameters":{"priority":0,"binary_data_output":false})").status == 200);
  for (const char* more : {R"(,"parameters":{"priority":1})", R"(,"parameters":{"sequence_id":5})",
                           R"(,"outpust":[])", R"(,"outputs":[{"name":"y","classification":3}])"}) {
    INFO(more);
    const HttpReply refused = rest(more);
    CHECK(refused.status == 400);
    CHECK(parse(refused.body).at("error").is_string());
  }
}

TEST_CASE("oar.v1: a field of a newer client is refused by number") {
  TestServer t;
  oar::v1::GenerateRequest generate;
  generate.set_prompt("x");
  generate.mutable_sampling()->set_seed(1);
  oar::v1::TokenizeRequest tokenize;
  tokenize.set_prompt("x");
  const std::string newer("\x9a\x06\x02zz", 5);  // field 99, a string
  // Behind the message, and inside `sampling` (field 5).
  const auto refused = [&](const char* method, const std::string& bytes) {
    const grpc::Status s = raw_call(t.grpc(), method, bytes).first;
    CHECK(s.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(s.error_message().find("has no field 99") != std::string::npos);
  };
  refused("/oar.v1.Generation/Generate", generate.SerializeAsString() + newer);
  refused("/oar.v1.Generation/Generate",
          generate.SerializeAsString() + "\x2a" + static_cast<char>(newer.size()) + newer);
  refused("/oar.v1.Generation/Tokenize", tokenize.SerializeAsString() + newer);
  refused("/oar.v1.Encoding/Embed", newer);
  CHECK(t.engine.submitted() == 0);
}

}  // namespace
