// What clients of other servers expect of OpenAI's endpoints: paths without /v1, any model name, defaults and
// templates given to the server, counts of tokens, Anthropic's list of models.
#include <cmath>
#include <thread>

#include "clients/cli/language_settings.h"
#include "engine/base/format.h"
#include "server/api/route_aliases.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::json::value;

const std::string kChat = R"("messages":[{"role":"user","content":"q"}])";

value answered(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  return parse(r.body);
}

TEST_CASE("other clients: paths without /v1 answer as those with it") {
  TestServer t;
  const value chat = answered(http(t.http(), "POST", "/chat/completions", cat("{", kChat, "}")));
  CHECK(chat.at("object") == "chat.completion");
  CHECK(chat.at("system_fingerprint").as_string().starts_with("b"));
  CHECK(answered(http(t.http(), "GET", "/models")) == answered(http(t.http(), "GET", "/v1/models")));
  CHECK(answered(http(t.http(), "POST", "/responses", R"({"input":"q"})")).at("object") == "response");
  const value error = parse(http(t.http(), "POST", "/chat/completions", "{}").body).at("error");
  CHECK(error.at("param") == "messages");
  CHECK(oar::api::without_alias("/models") == "/v1/models");
  CHECK(oar::api::without_alias("/tokenize") == "/tokenize");
}

TEST_CASE("other clients: Azure's paths and key") {
  oar::ServerOptions o;
  o.api_key = "secret";
  TestServer t({}, o);
  const char* path = "/openai/deployments/fake/chat/completions?api-version=2024-10-21";
  const std::string body = cat(R"({"model":"fake",)", kChat, "}");
  CHECK(answered(http(t.http(), "POST", path, body, {{"api-key", "secret"}})).at("model") == "fake");
  CHECK(http(t.http(), "POST", path, body, {{"api-key", "other"}}).status == 401);
}

TEST_CASE("other clients: what a proxy leaves before a path") {
  oar::ServerOptions o;
  o.root_path = "/llm";
  TestServer t({}, o);
  for (const char* path : {"/llm/v1/models", "/v1/models", "/llm/openapi.json", "/llm/", "/llm"})
    CHECK(http(t.http(), "GET", path).status == 200);
  CHECK(answered(http(t.http(), "POST", "/llm/v1/chat/completions", cat("{", kChat, "}"))).at("object") ==
        "chat.completion");
  for (const char* path : {"/llmv1/models", "/llm/llm/v1/models", "/other/v1/models"})
    CHECK(http(t.http(), "GET", path).status == 404);
  CHECK(http(TestServer().http(), "GET", "/llm/v1/models").status == 404);
  for (const char* bad : {"llm", "/llm/", "/", "/a?b"}) {
    o.root_path = bad;
    CHECK(oar::Server::check(o).param() == "root-path");
  }
}

TEST_CASE("other clients: SageMaker's two paths") {
  TestServer t;
  CHECK(http(t.http(), "GET", "/ping").status == 200);
  CHECK(answered(http(t.http(), "POST", "/invocations", cat("{", kChat, "}"))).at("object") ==
        "chat.completion");
  CHECK(answered(http(t.http(), "POST", "/invocations", R"({"prompt":"q"})")).at("object") ==
        "text_completion");
}

TEST_CASE("other clients: what a request would read is counted") {
  TestServer t;
  const auto count = [&](const char* path, const std::string& body) {
    const value v = answered(http(t.http(), "POST", path, body));
    CHECK(v.at("object") == "response.input_tokens");
    return v.at("input_tokens").to_number<int>();
  };
  // <s> <|user|> q <|assistant|>
  CHECK(count("/v1/chat/completions/input_tokens", cat("{", kChat, "}")) == 4);
  CHECK(count("/chat/completions/input_tokens", cat("{", kChat, R"(,"add_generation_prompt":false})")) == 3);
  CHECK(count("/v1/responses/input_tokens", R"({"input":"q"})") == 4);
  const HttpReply earlier = http(t.http(), "POST", "/v1/responses/input_tokens",
                                 R"({"input":"q","previous_response_id":"resp_x"})");
  CHECK(earlier.status == 400);
  CHECK(parse(earlier.body).at("error").at("param") == "previous_response_id");
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("other clients: only what runs in the background can be cancelled") {
  TestServer t;
  const value made = answered(http(t.http(), "POST", "/v1/responses", R"({"input":"q"})"));
  const std::string id(made.at("id").as_string());
  CHECK(http(t.http(), "POST", cat("/v1/responses/", id, "/cancel"), "").status == 400);
  CHECK(http(t.http(), "POST", "/v1/responses/resp_none/cancel", "").status == 404);
}

TEST_CASE("other clients: Anthropic's find the models in their own form") {
  TestServer t;
  const Headers from = {{"anthropic-version", "2023-06-01"}};
  const value list = answered(http(t.http(), "GET", "/v1/models", "", from));
  CHECK(list.at("first_id") == "fake");
  CHECK(list.at("has_more") == false);
  CHECK(list.at("data").at(0).at("type") == "model");
  CHECK(list.at("data").at(0).at("display_name") == "fake");
  CHECK(answered(http(t.http(), "GET", "/v1/models/fake", "", from)) == list.at("data").at(0));
}

TEST_CASE("other clients: the prompt is shown when an answer is to be verbose") {
  TestServer t;
  const auto prompt = [&](const char* path, const std::string& body) {
    return answered(http(t.http(), "POST", path, body)).at("__verbose").at("prompt");
  };
  CHECK(prompt("/v1/chat/completions", cat("{", kChat, R"(,"verbose":true})")) ==
        "<s><|user|>q<|assistant|>");
  CHECK(prompt("/v1/completions", R"({"prompt":"q","verbose":true})") == "q");
  const HttpReply streamed =
      http(t.http(), "POST", "/v1/completions", R"({"prompt":"q","verbose":true,"stream":true})");
  const std::vector<std::string> chunks = sse_data(streamed.body);
  REQUIRE(chunks.size() > 2);
  CHECK(parse(chunks[chunks.size() - 2]).at("__verbose").at("prompt") == "q");  // the last before [DONE]
  CHECK_FALSE(parse(chunks[0]).as_object().contains("__verbose"));
  CHECK_FALSE(answered(http(t.http(), "POST", "/v1/completions", R"({"prompt":"q"})"))
                  .as_object()
                  .contains("__verbose"));
}

TEST_CASE("other clients: ids of tokens beside their text, as vLLM's ask for them") {
  FakeEngineOptions o;
  o.reply = "abc";
  TestServer t(o);
  const auto ask = [&](const char* path, const std::string& body) {
    return http(t.http(), "POST", path, body);
  };
  // The one that ends the text is the last.
  const value text = answered(ask("/v1/completions", R"({"prompt":"qr","return_token_ids":true})"));
  CHECK(text.at("choices").at(0).at("token_ids") == parse("[97,98,99,257]"));
  CHECK(text.at("choices").at(0).at("prompt_token_ids") == parse("[113,114]"));
  CHECK(text.at("choices").at(0).at("prompt_logprobs").is_null());
  const value chat = answered(ask("/v1/chat/completions", cat("{", kChat, R"(,"return_token_ids":true})")));
  CHECK(chat.at("choices").at(0).at("token_ids") == parse("[97,98,99,257]"));
  CHECK(chat.at("prompt_token_ids") == parse("[256,258,113,259]"));
  CHECK(chat.at("prompt_logprobs").is_null());
  // Null where nobody asks.
  const value untold =
      answered(ask("/v1/chat/completions", cat("{", kChat, R"(,"return_token_ids":false})")));
  CHECK(untold.at("choices").at(0).at("token_ids").is_null());
  CHECK(untold.at("prompt_token_ids").is_null());
  CHECK(answered(ask("/v1/completions", R"({"prompt":"q"})")).at("choices").at(0).at("token_ids").is_null());
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    INFO(path);
    const bool chats = std::string_view(path) != "/v1/completions";
    const HttpReply r =
        ask(path, cat("{", chats ? kChat : R"("prompt":"qr")", R"(,"stream":true,"return_token_ids":true})"));
    std::vector<int64_t> ids;
    size_t prompts = 0;
    for (const std::string& chunk : sse_data(r.body)) {
      if (chunk == "[DONE]") continue;
      const value v = parse(chunk);
      const oar::json::object& choice = v.at("choices").at(0).as_object();
      if (const value* given = choice.if_contains("token_ids"))
        for (const value& id : given->as_array()) ids.push_back(id.as_int64());
      prompts += (chats ? v.as_object() : choice).contains("prompt_token_ids");
    }
    CHECK(ids == std::vector<int64_t>{97, 98, 99, 257});
    CHECK(prompts == 1);
  }
  const value named =
      answered(ask("/v1/completions", R"({"prompt":"q","logprobs":1,"return_tokens_as_token_ids":true})"));
  CHECK(named.at("choices").at(0).at("logprobs").at("tokens").at(0) == "token_id:97");
  const value called = answered(
      ask("/v1/chat/completions",
          cat("{", kChat, R"(,"logprobs":true,"top_logprobs":1,"return_tokens_as_token_ids":true})")));
  const value& first = called.at("choices").at(0).at("logprobs").at("content").at(0);
  CHECK(first.at("token") == "token_id:97");
  CHECK(first.at("top_logprobs").at(0).at("token").as_string().starts_with("token_id:"));
}

TEST_CASE("other clients: beside ids the token that ends a text has a log-probability") {
  FakeEngineOptions o;
  o.reply = "abc";
  TestServer t(o);
  const auto ask = [&](const char* path, const std::string& fields) {
    return answered(http(t.http(), "POST", path, cat("{", fields, "}"))).at("choices").at(0).at("logprobs");
  };
  const char* const ids = R"(,"return_token_ids":true)";
  const std::string text = R"("prompt":"q","logprobs":1)", chat = cat(kChat, R"(,"logprobs":true)");
  const value told = ask("/v1/completions", text + ids);
  CHECK(told.at("tokens").as_array().size() == 4);
  CHECK(told.at("token_logprobs").at(3).to_number<double>() == Approx(-0.01 * 258));
  CHECK(serialize(told.at("text_offset")) == "[0,1,2,3]");
  CHECK(ask("/v1/completions", text).at("tokens").as_array().size() == 3);
  const value chatted = ask("/v1/chat/completions", chat + ids);
  CHECK(chatted.at("content").as_array().size() == 4);
  CHECK(chatted.at("content").at(3).at("logprob").to_number<double>() == Approx(-0.01 * 258));
  CHECK(ask("/v1/chat/completions", chat).at("content").as_array().size() == 3);  // as OpenAI has it
  const HttpReply r = http(t.http(), "POST", "/v1/completions", cat("{", text, ids, R"(,"stream":true})"));
  size_t tokens = 0, logprobs = 0;
  for (const std::string& chunk : sse_data(r.body)) {
    if (chunk == "[DONE]") continue;
    const value choice = parse(chunk).at("choices").at(0);
    tokens += choice.at("token_ids").as_array().size();
    if (!choice.at("logprobs").is_null()) logprobs += choice.at("logprobs").at("tokens").as_array().size();
  }
  CHECK(tokens == 4);
  CHECK(logprobs == 4);
}

TEST_CASE("other clients: the prompt of a chat as the tokens that another server made of it") {
  TestServer t;
  const auto ask = [&](const std::string& params) {
    return http(t.http(), "POST", "/v1/chat/completions",
                cat("{", kChat, R"(,"return_token_ids":true,"kv_transfer_params":)", params, "}"));
  };
  const value v = answered(ask(R"({"prompt_token_ids":[97,98]})"));
  CHECK(v.at("prompt_token_ids") == parse("[97,98]"));
  CHECK(v.at("usage").at("prompt_tokens") == 2);
  CHECK(v.at("choices").at(0).at("message").at("role") == "assistant");
  for (const char* none : {"null", "{}", R"({"prompt_token_ids":null})"})
    CHECK(answered(ask(none)).at("prompt_token_ids") == parse("[256,258,113,259]"));
  for (const char* bad :
       {R"({"prompt_token_ids":[]})", R"({"prompt_token_ids":[-1]})", R"({"prompt_token_ids":[100000]})",
        R"({"prompt_token_ids":"ab"})", R"({"prompt_token_ids":[97],"remote_engine_id":"e"})"}) {
    INFO(bad);
    const HttpReply r = ask(bad);
    CHECK(r.status == 400);
    CHECK(parse(r.body).at("error").at("param") == "kv_transfer_params");
  }
  const std::string ids = R"("kv_transfer_params":{"prompt_token_ids":[97,98,99]})";
  const HttpReply echoed =
      http(t.http(), "POST", "/v1/chat/completions", cat("{", kChat, R"(,"echo":true,)", ids, "}"));
  CHECK(echoed.status == 400);
  const std::string both = cat("{", kChat, ",", ids, "}");
  CHECK(answered(http(t.http(), "POST", "/tokenize", both)).at("tokens") == parse("[97,98,99]"));
  CHECK(answered(http(t.http(), "POST", "/apply-template", both)).at("prompt") == "abc");
}

TEST_CASE("other clients: questions with a few answers, as OpenAI's decisions have them") {
  TestServer t;
  const auto ask = [&](const std::string& input, const std::string& questions) {
    return http(t.http(), "POST", "/v1/decisions",
                cat(R"({"model":"fake","input":)", input, R"(,"questions":[)", questions, "]}"));
  };
  const std::string choice = R"({"type":"choice","name":"who","instructions":"Who?","choices":)"
                             R"([{"value":"returns"},{"value":true,"description":"billing"}]})",
                    score = R"({"type":"score","instructions":"Rate.","levels":)"
                            R"([{"label":"fine"},{"label":"poor"},{"label":"broken"}]})",
                    predicate = R"({"type":"predicate","instructions":"Is it broken?"})";
  const value v = answered(ask(R"("It broke.")", cat(predicate, ",", choice, ",", score)));
  CHECK(v.at("model") == "fake");
  const auto p = [](char letter) { return std::exp(-0.01 * (letter + 1)); };  // as the engine makes them up
  const value& yes = v.at("answers").at(0);
  CHECK(yes.at("name").is_null());
  CHECK(yes.at("probability").to_number<double>() == Approx(p('B') / (p('A') + p('B'))).epsilon(1e-5));
  const value& who = v.at("answers").at(1);
  CHECK(who.at("name") == "who");
  CHECK(who.at("choice") == "returns");
  CHECK(who.at("confidence").to_number<double>() == Approx(p('A')).epsilon(1e-5));
  CHECK(who.at("probabilities").at(1).at("value") == true);
  const value& rated = v.at("answers").at(2);
  double sum = 0, mean = 0;
  for (const value& level : rated.at("probabilities").as_array()) {
    sum += level.at("probability").to_number<double>();
    mean += level.at("probability").to_number<double>() * level.at("value").to_number<double>();
  }
  CHECK(sum == Approx(1));
  CHECK(rated.at("score").to_number<double>() == Approx(mean));
  CHECK(rated.at("probabilities").at(2).at("label") == "broken");
  CHECK(v.at("usage").at("output_tokens") == 3);
  CHECK(v.at("usage").at("total_tokens").as_int64() == v.at("usage").at("input_tokens").as_int64() + 3);

  // A text and messages of it read the same.
  const std::string parts = R"([{"type":"input_text","text":"It"},{"type":"input_text","text":"broke."}])";
  const auto read = [&](const std::string& input) {
    return answered(ask(input, predicate)).at("usage").at("input_tokens");
  };
  CHECK(read(cat(R"([{"role":"user","content":)", parts, "}]")) == read(R"("It broke.")"));
  CHECK(read(R"([{"role":"user","content":"It"},{"role":"user","content":"broke"}])") ==
        read(R"("It broke.")"));

  const auto refused = [&](const std::string& input, const std::string& questions, const char* param,
                           const char* words) {
    INFO(input << questions);
    const HttpReply r = ask(input, questions);
    CHECK(r.status == 400);
    const value error = parse(r.body).at("error");
    CHECK(error.at("param") == param);
    CHECK(error.at("message").as_string().find(words) != std::string_view::npos);
  };
  refused(R"([{"role":"user","content":[{"type":"input_image","image_url":"u"}]}])", predicate,
          "input[0].content[0].type", "text input only");
  refused(R"([{"role":"system","content":"q"}])", predicate, "input[0].role", "use user");
  refused("[]", predicate, "input", "messages");
  refused("5", predicate, "input", "string");
  refused(R"("q")", "", "questions", "1 to");
  refused(R"("q")", R"({"type":"guess","instructions":"?"})", "questions[0].type", "predicate");
  refused(R"("q")", R"({"type":"predicate"})", "questions[0].instructions", "missing");
  refused(R"("q")", R"({"type":"predicate","instructions":"?","levels":[]})", "questions[0].levels", "");
  refused(R"("q")", R"({"type":"choice","instructions":"?","choices":[{"value":"a"}]})",
          "questions[0].choices", "2 to 26");
  refused(R"("q")", R"({"type":"choice","instructions":"?","choices":[{"value":"a"},{"value":"a"}]})",
          "questions[0].choices", "differ");
  refused(R"("q")", R"({"type":"score","instructions":"?","levels":[{"label":"a"},{"label":true}]})",
          "questions[0].levels", "string");
  refused(cat('"', std::string(600, 'x'), '"'), predicate, "input", "context");
}

TEST_CASE("other clients: a prompt is cut at the end they name") {
  TestServer t;
  const auto read = [&](const char* side) {
    const value v =
        answered(http(t.http(), "POST", "/v1/completions",
                      cat(R"({"prompt":"abcdef","truncate_prompt_tokens":2,"return_token_ids":true,)"
                          R"("max_tokens":1,"truncation_side":")",
                          side, "\"}")));
    return v.at("choices").at(0).at("prompt_token_ids");
  };
  CHECK(read("left") == parse("[101,102]"));
  CHECK(read("right") == parse("[97,98]"));
  const HttpReply r =
      http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","truncation_side":"middle"})");
  CHECK(r.status == 400);
  CHECK(parse(r.body).at("error").at("param") == "truncation_side");
}

TEST_CASE("other clients: how many requests are being answered") {
  TestServer t;
  const auto load = [&] {
    return answered(http(t.http(), "GET", "/load")).at("server_load").to_number<int>();
  };
  CHECK(load() == 0);
  t.engine.pause(true);
  RawClient c(t.http());
  REQUIRE(c.send(make_request("POST", "/v1/completions", R"({"prompt":"q"})")));
  for (int i = 0; i < 500 && load() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(load() == 1);
  t.engine.pause(false);
  CHECK(c.read_reply().status == 200);
}

TEST_CASE("other clients: n_predict is a bound, and no promise that there is room") {
  FakeEngineOptions o;
  o.max_context = 16;
  o.reply = std::string(40, 'x');
  TestServer t(o);
  const auto ask = [&](const char* fields) {
    return http(t.http(), "POST", "/v1/completions", cat(R"({"prompt":"abcd",)", fields, "}"));
  };
  CHECK(answered(ask(R"("n_predict":3)")).at("usage").at("completion_tokens") == 3);
  CHECK(answered(ask(R"("n_predict":900)")).at("usage").at("completion_tokens") == 12);
  CHECK(answered(ask(R"("n_predict":-1)")).at("usage").at("completion_tokens") == 12);
  CHECK(ask(R"("max_tokens":900)").status == 400);
  CHECK(ask(R"("n_predict":3,"min_tokens":4)").status == 400);
}

TEST_CASE("other clients: usage in every chunk needs usage at all") {
  TestServer t;
  const HttpReply r = http(t.http(), "POST", "/v1/completions",
                           R"({"prompt":"q","stream":true,"stream_options":)"
                           R"({"include_usage":false,"continuous_usage_stats":true}})");
  for (const std::string& chunk : sse_data(r.body))
    if (chunk != "[DONE]") CHECK_FALSE(parse(chunk).as_object().contains("usage"));
}

// A server whose models have been changed by `settings`.
struct ChangedServer {
  ChangedServer(const oar::cli::LanguageSettings& settings, bool any_name) {
    oar::ModelHandle model = fake_model(engine);
    status = oar::cli::apply_language_settings(settings, "auto", "auto", model);
    if (!status.ok()) return;
    const auto catalog = serving({std::move(model)});
    if (any_name) catalog->answer_any_name();
    oar::ServerOptions o;
    o.http_address = "127.0.0.1:0";
    o.grpc_address.clear();
    auto started = oar::Server::start(o, catalog);
    REQUIRE_OK(started);
    server = std::move(*started);
  }
  value ask(const std::string& body) {
    return answered(http(server->http_port(), "POST", "/v1/chat/completions", body));
  }
  FakeEngine engine;
  oar::Status status;
  std::unique_ptr<oar::Server> server;
};

oar::cli::LanguageSettings defaults(const char* fields) {
  oar::cli::LanguageSettings s;
  s.request_defaults = parse(fields).as_object();
  return s;
}

TEST_CASE("other clients: any name is the only model, where that is wanted") {
  ChangedServer t({}, true);
  CHECK(t.ask(cat(R"({"model":"gpt-4",)", kChat, "}")).at("model") == "fake");
  TestServer strict;
  CHECK(http(strict.http(), "POST", "/v1/chat/completions", cat(R"({"model":"gpt-4",)", kChat, "}")).status ==
        404);
}

TEST_CASE("other clients: defaults of the server count where a request says nothing") {
  ChangedServer t(defaults(R"({"temperature":0.25,"top_k":7,"seed":42,"max_tokens":3,"verbose":true,)"
                           R"("chat_template_kwargs":{"enable_thinking":false}})"),
                  false);
  REQUIRE(t.status.ok());
  const value plain = t.ask(cat("{", kChat, "}"));
  CHECK(plain.at("usage").at("completion_tokens") == 3);
  CHECK(plain.as_object().contains("__verbose"));
  CHECK(t.engine.last_request().sampling.temperature == 0.25f);
  CHECK(t.engine.last_request().sampling.top_k == 7);
  CHECK(t.engine.last_request().sampling.seed == 42u);
  const value own = t.ask(cat("{", kChat, R"(,"temperature":1,"seed":5,"max_tokens":2,"verbose":false})"));
  CHECK(own.at("usage").at("completion_tokens") == 2);
  CHECK_FALSE(own.as_object().contains("__verbose"));
  CHECK(t.engine.last_request().sampling.temperature == 1.f);
  CHECK(t.engine.last_request().sampling.top_k == 7);
  CHECK(t.engine.last_request().sampling.seed == 5u);
  CHECK(answered(http(t.server->http_port(), "GET", "/props"))
            .at("default_generation_settings")
            .at("params")
            .at("seed")
            .to_number<int>() == 42);

  ChangedServer wrong(defaults(R"({"temperature":-1})"), false);
  CHECK(wrong.status.message().find("temperature") != std::string::npos);
  ChangedServer unknown(defaults(R"({"stop":"x"})"), false);
  CHECK(unknown.status.message().find("stop has no default") != std::string::npos);
}

TEST_CASE("other clients: paths that the server was started without say so") {
  oar::ServerOptions o;
  o.no_metrics = o.no_slots = o.no_page = true;
  TestServer t({}, o);
  for (const auto& [path, option] : {std::pair("/metrics", "--no-metrics"), {"/slots", "--no-slots"}}) {
    const HttpReply r = http(t.http(), "GET", path);
    CHECK(r.status == 501);
    CHECK(r.body.find(option) != std::string::npos);
  }
  CHECK(http(t.http(), "GET", "/").status == 404);
  CHECK(http(t.http(), "GET", "/docs").status == 404);
  CHECK(http(t.http(), "GET", "/openapi.json").status == 200);
  TestServer whole;
  for (const char* path : {"/metrics", "/slots", "/", "/docs"})
    CHECK(http(whole.http(), "GET", path).status == 200);
  o = {};
  o.no_metrics = true;
  o.http_address = o.metrics_address = "127.0.0.1:0";
  FakeEngine engine;
  CHECK(oar::Server::start(o, serving({fake_model(engine)})).status().message().find("no-metrics") !=
        std::string::npos);
}

TEST_CASE("other clients: errors as Triton's frontend words them, below OpenAI's paths alone") {
  oar::ServerOptions o;
  o.error_style = oar::api::ErrorStyle::kTriton;
  TestServer t({}, o);
  const auto refused = [&](const char* path, const std::string& body, int status) {
    const HttpReply r = http(t.http(), "POST", path, body);
    INFO(r.body);
    CHECK(r.status == status);
    return parse(r.body);
  };
  const value field = refused("/v1/completions", R"({"model":"fake","prompt":"q","top_p":2})", 422);
  const value& detail = field.at("detail").at(0);
  CHECK(detail.at("loc") == parse(R"(["body","top_p"])"));
  CHECK(detail.at("msg") == "Input should be less than or equal to 1");
  CHECK(detail.at("type") == "less_than_equal");
  CHECK(field.at("error").at("param") == "top_p");
  CHECK(refused("/v1/chat/completions", "[", 422).at("detail").at(0).at("loc") == parse(R"(["body"])"));
  const value model = refused("/v1/completions", R"({"model":"other","prompt":"q"})", 400);
  CHECK(model.at("detail") == "Unknown model: other");
  CHECK(model.at("error").at("code") == "model_not_found");
  CHECK(http(t.http(), "GET", "/v1/models/other").status == 404);
  CHECK(parse(http(t.http(), "GET", "/nowhere").body).at("detail").is_string());
  // Others' dialects are what they were.
  CHECK(refused("/v1/messages", "{}", 400).at("type") == "error");
  CHECK(refused("/api/generate", R"({"model":"other"})", 404).at("error").is_string());
  CHECK(refused("/completion", R"({"prompt":7.5})", 400).as_object().count("detail") == 0);
  // A server that was not asked to says what it always said.
  TestServer plain;
  const HttpReply r = http(plain.http(), "POST", "/v1/completions", R"({"prompt":"q","top_p":2})");
  CHECK(r.status == 400);
  CHECK(r.body.find("detail") == std::string::npos);
}

TEST_CASE("other clients: a field's fault in FastAPI's words, where it has any") {
  struct Fault {
    const char *path, *body;
    int status;
    const char *type, *words;  // no type: `detail` is a text
  };
  const char* string = "Input should be a valid string";
  const Fault faults[] = {
      {"/v1/completions", R"({"model":"fake"})", 422, "missing", "Field required"},
      {"/v1/completions", R"({"model":7,"prompt":"q"})", 422, "string_type", string},
      {"/v1/completions", R"({"model":"fake","prompt":"q","top_p":-1})", 422, "greater_than_equal",
       "Input should be greater than or equal to 0"},
      {"/v1/completions", R"({"model":"fake","prompt":"q","no_such":1})", 422, "value_error",
       "no_such is no field of this request; leave it out"},
      {"/v1/completions", R"({"model":"fake","prompt":""})", 400, "", "prompt"},
      {"/v1/completions", R"({"model":"fake","prompt":"q","stream_options":{"include_usage":true}})", 400, "",
       "`stream_options` can only be used when `stream` is True"},
      {"/v1/chat/completions", R"({"model":"fake","messages":[]})", 422, "too_short",
       "List should have at least 1 item after validation, not 0"},
      {"/v1/chat/completions", R"({"model":"fake","messages":[{}]})", 422, "missing", "Field required"},
      {"/v1/chat/completions",
       R"({"model":"fake","messages":[{"role":"user","content":"q"}],"top_logprobs":2})", 400, "",
       "`top_logprobs` can only be used when `logprobs` is True"},
      {"/v1/embeddings", R"({"model":null,"input":"q"})", 422, "string_type", string},
      {"/v1/embeddings", R"({"model":"","input":"q"})", 400, "", "Unknown model: "},
      {"/v1/models/fake/load", "", 400, "", "model load/unload requires --model-control-mode=explicit"},
  };
  oar::ServerOptions o;
  o.error_style = oar::api::ErrorStyle::kTriton;
  TestServer t({}, o);
  for (const Fault& f : faults) {
    const HttpReply r = http(t.http(), "POST", f.path, f.body);
    INFO(f.body << " " << r.body);
    CHECK(r.status == f.status);
    const value answer = parse(r.body);
    if (*f.type == 0) {
      CHECK(std::string(answer.at("detail").as_string()).find(f.words) != std::string::npos);
      continue;
    }
    CHECK(answer.at("detail").at(0).at("type") == f.type);
    CHECK(answer.at("detail").at(0).at("msg") == f.words);
    CHECK(answer.at("error").at("message") != string);  // which says what was wrong with it
  }
}

TEST_CASE("other clients: a request has to name its model where the server was told so") {
  FakeEngine engine;
  const auto catalog = serving({fake_model(engine)});
  catalog->require_names();
  oar::ServerOptions o;
  o.http_address = "127.0.0.1:0";
  o.grpc_address.clear();
  auto started = oar::Server::start(o, catalog);
  REQUIRE_OK(started);
  const int port = (*started)->http_port();
  const HttpReply refused = http(port, "POST", "/v1/completions", R"({"prompt":"q"})");
  CHECK(refused.status == 400);
  CHECK(parse(refused.body).at("error").at("param") == "model");
  CHECK(http(port, "POST", "/v1/completions", R"({"model":"fake","prompt":"q"})").status == 200);
  CHECK(http(port, "POST", "/v1/embeddings", R"({"input":"q"})").status == 400);
}

TEST_CASE("other clients: the server is called as it was told") {
  oar::ServerOptions o;
  o.server_name = "mine";
  TestServer t({}, o);
  CHECK(answered(http(t.http(), "GET", "/v1/models")).at("data").at(0).at("owned_by") == "mine");
  CHECK(answered(http(t.http(), "GET", "/v2")).at("name") == "mine");
}

TEST_CASE("other clients: aliases name the only model, and lists show them with its tags") {
  FakeEngine engine;
  const auto catalog = serving({fake_model(engine)});
  catalog->call_also("fake", {"gpt-4", "other"}, {"small"});
  oar::ServerOptions o;
  o.http_address = "127.0.0.1:0";
  o.grpc_address.clear();
  auto started = oar::Server::start(o, catalog);
  REQUIRE_OK(started);
  const int port = (*started)->http_port();
  const value model = answered(http(port, "GET", "/v1/models")).at("data").at(0);
  CHECK(model.at("id") == "fake");
  CHECK(model.at("aliases") == parse(R"(["gpt-4","other"])"));
  CHECK(model.at("tags") == parse(R"(["small"])"));
  CHECK(answered(http(port, "GET", "/v1/models/other")) == model);
  const std::string path = "/v1/chat/completions";
  CHECK(answered(http(port, "POST", path, cat(R"({"model":"gpt-4",)", kChat, "}"))).at("model") == "fake");
  CHECK(http(port, "POST", path, cat(R"({"model":"third",)", kChat, "}")).status == 404);
  CHECK(http(port, "GET", "/v1/models/third").status == 404);
  TestServer plain;
  const value without = answered(http(plain.http(), "GET", "/v1/models")).at("data").at(0);
  CHECK_FALSE(without.as_object().contains("aliases"));
  CHECK_FALSE(without.as_object().contains("tags"));
}

TEST_CASE("other clients: an assistant's last message begins the answer where that is wanted") {
  const std::string begun =
      R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Once"}])";
  const auto prompt = [](ChangedServer& t, const std::string& fields) {
    return t.ask(cat("{", fields, "}")).at("__verbose").at("prompt");
  };
  ChangedServer plain(defaults(R"({"verbose":true})"), false);
  const value unasked = prompt(plain, begun);
  CHECK(unasked != "<s><|user|>q<|assistant|>Once");
  CHECK(prompt(plain, cat(begun, R"(,"prefill_assistant":true)")) == "<s><|user|>q<|assistant|>Once");
  CHECK(prompt(plain, cat(kChat, R"(,"prefill_assistant":true)")) == "<s><|user|>q<|assistant|>");

  ChangedServer t(defaults(R"({"verbose":true,"prefill_assistant":true})"), false);
  REQUIRE(t.status.ok());
  CHECK(prompt(t, begun) == "<s><|user|>q<|assistant|>Once");
  CHECK(prompt(t, cat(begun, R"(,"prefill_assistant":false)")) == unasked);
  CHECK(prompt(t, cat(begun, R"(,"continue_final_message":false)")) == unasked);
  const HttpReply twice = http(t.server->http_port(), "POST", "/v1/chat/completions",
                               R"({"messages":[{"role":"assistant","content":"a"},)"
                               R"({"role":"assistant","content":"b"}]})");
  CHECK(twice.status == 400);
  CHECK(parse(twice.body).at("error").at("param") == "messages");
}

TEST_CASE("other clients: usage in every piece where the server was told so") {
  ChangedServer t(defaults(R"({"stream_options":{"include_usage":true,"continuous_usage_stats":true}})"),
                  false);
  REQUIRE(t.status.ok());
  const auto chunks = [&](const std::string& more) {
    return sse_data(http(t.server->http_port(), "POST", "/v1/chat/completions",
                         cat("{", kChat, R"(,"stream":true)", more, "}"))
                        .body);
  };
  for (const std::string& data : chunks(""))
    if (data != "[DONE]") CHECK(parse(data).at("usage").at("prompt_tokens").to_number<int>() > 0);
  for (const std::string& data : chunks(R"(,"stream_options":{"include_usage":false})"))
    if (data != "[DONE]") CHECK_FALSE(parse(data).as_object().contains("usage"));
  CHECK_FALSE(ChangedServer(defaults(R"({"stream_options":{"usage":true}})"), false).status.ok());
}

TEST_CASE("other clients: a server that calls tokens by their ids") {
  ChangedServer t(defaults(R"({"return_tokens_as_token_ids":true})"), false);
  REQUIRE(t.status.ok());
  const value v = answered(http(t.server->http_port(), "POST", "/v1/completions",
                                R"({"prompt":"q","logprobs":0,"max_tokens":1})"));
  CHECK(std::string(v.at("choices").at(0).at("logprobs").at("tokens").at(0).as_string())
            .starts_with("token_id:"));
}

TEST_CASE("other clients: a call without text suits a template that looks into every content") {
  // As Qwen3's does; null is no text to look into.
  oar::cli::LanguageSettings s = defaults(R"({"verbose":true})");
  auto parsed = oar::ChatTemplate::parse(
      "{% for m in messages %}{% if '</think>' in m.content %}!{% endif %}[{{ m.content }}]{% endfor %}");
  REQUIRE(parsed.ok());
  s.chat_template = std::make_shared<const oar::ChatTemplate>(std::move(*parsed));
  ChangedServer t(s, false);
  REQUIRE(t.status.ok());
  const char* calls =
      R"("tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}])";
  for (const char* content : {"", R"("content":null,)"})
    CHECK(t.ask(cat(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant",)", content, calls,
                    R"(},{"role":"tool","tool_call_id":"c","content":"r"}]})"))
              .at("__verbose")
              .at("prompt") == "[q][][r]");
  const value message = answered(http(
      t.server->http_port(), "POST", "/v1/messages",
      R"({"max_tokens":4,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[)"
      R"({"type":"thinking","thinking":"t","signature":""},{"type":"tool_use","id":"c","name":"f","input":{}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}]})"));
  CHECK(message.at("type") == "message");
}

TEST_CASE("other clients: a role that the template has no place for is refused") {
  for (const char* source :
       {"{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no') }}{% endif %}{% endfor "
        "%}",
        "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}",
        "{% for m in messages %}[{{ 'user' if m.role == 'user' else 'model' }}: {{ m.content }}]{% endfor "
        "%}"}) {
    INFO(source);
    oar::cli::LanguageSettings s = defaults("{}");
    auto parsed = oar::ChatTemplate::parse(source);
    REQUIRE(parsed.ok());
    s.chat_template = std::make_shared<const oar::ChatTemplate>(std::move(*parsed));
    ChangedServer t(s, false);
    REQUIRE(t.status.ok());
    const HttpReply r = http(
        t.server->http_port(), "POST", "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"q"},{"role":"critic","content":"q"}],"max_tokens":1})");
    CHECK(r.status == 400);
    CHECK(parse(r.body).at("error").at("param") == "messages[1].role");
    CHECK(r.body.find("critic") != std::string::npos);
  }
}

TEST_CASE("other clients: a template takes the place of the model's own") {
  oar::cli::LanguageSettings s = defaults(R"({"verbose":true,"chat_template_kwargs":{"mood":"glad"}})");
  auto parsed = oar::ChatTemplate::parse("{{ mood }}: {{ messages[0].content }}");
  REQUIRE(parsed.ok());
  s.chat_template = std::make_shared<const oar::ChatTemplate>(std::move(*parsed));
  ChangedServer t(s, false);
  REQUIRE(t.status.ok());
  CHECK(t.ask(cat("{", kChat, "}")).at("__verbose").at("prompt") == "glad: q");
  CHECK(t.ask(cat("{", kChat, R"(,"chat_template_kwargs":{"mood":"sad"}})")).at("__verbose").at("prompt") ==
        "sad: q");
  CHECK(answered(http(t.server->http_port(), "GET", "/props")).at("chat_template") ==
        "{{ mood }}: {{ messages[0].content }}");
}

}  // namespace
