// Ollama's endpoints: a scripted model reasons, speaks and calls; lines of a stream add up to the whole
// answer; options arrive at the engine; what has no meaning here is refused by name in Ollama's shape.
#include "tests/server/tool_server.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::json::array;
using oar::json::object;
using oar::json::value;

const std::string kReply =
    "<think>\nHm.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": "
    "1}}\n</tool_call>";
const std::string kUser = R"("messages":[{"role":"user","content":"q"}])";

value answered(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  return parse(r.body);
}

std::vector<value> lines(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  CHECK(r.headers.at("content-type") == "application/x-ndjson");
  std::vector<value> out;
  for (size_t at = 0; at < r.body.size();) {
    const size_t end = r.body.find('\n', at);
    REQUIRE(end != std::string::npos);
    out.push_back(parse(r.body.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

std::string text_of(const value& v, const char* name) {
  const value* found = v.as_object().if_contains(name);
  return found ? std::string(found->as_string()) : std::string();
}

std::string refusal(const HttpReply& r, int status = 400) {
  INFO(r.body);
  CHECK(r.status == status);
  const value v = parse(r.body);
  CHECK(v.as_object().size() == 1);
  return std::string(v.at("error").as_string());
}

TEST_CASE("ollama chat: reasoning, text and calls, whole and in lines") {
  const ToolServer t(kReply);
  const std::string fields = kUser + "," + kTools + R"(,"options":{"num_predict":300})";
  const value whole =
      answered(t.post("/api/chat", R"({"model":"fake:latest","stream":false,)" + fields + "}"));
  CHECK(whole.at("model") == "fake");
  CHECK(whole.at("done") == true);
  CHECK(whole.at("done_reason") == "stop");
  const value& m = whole.at("message");
  CHECK(m.at("role") == "assistant");
  CHECK(m.at("content") == "One moment.");
  CHECK(m.at("thinking") == "Hm.");
  CHECK(m.at("tool_calls").at(0).at("function") == parse(R"({"name":"now","arguments":{"a":1}})"));
  CHECK(whole.at("prompt_eval_count").as_int64() == std::ssize(t.engine.last_request().prompt));
  CHECK(whole.at("eval_count").as_int64() == std::ssize(kReply) + 1);  // a token a byte, and the end
  CHECK(whole.at("total_duration").as_int64() >= whole.at("eval_duration").as_int64());
  CHECK(whole.at("eval_duration").as_int64() > 0);

  const std::vector<value> streamed = lines(t.post("/api/chat", "{" + fields + "}"));  // unless it is false
  std::string content, thinking;
  array calls;
  for (size_t i = 0; i < streamed.size(); ++i) {
    CHECK(streamed[i].at("done") == (i + 1 == streamed.size()));
    CHECK(text_of(streamed[i], "created_at").ends_with("Z"));
    content += text_of(streamed[i].at("message"), "content");
    thinking += text_of(streamed[i].at("message"), "thinking");
    if (const value* some = streamed[i].at("message").as_object().if_contains("tool_calls"))
      for (const value& call : some->as_array()) calls.push_back(call.at("function"));
  }
  CHECK(streamed.size() > 5);
  CHECK(content == "One moment.");
  CHECK(thinking == "Hm.");
  CHECK(value(calls) == parse(R"([{"name":"now","arguments":{"a":1}}])"));
  CHECK(streamed.back().at("eval_count") == whole.at("eval_count"));
}

TEST_CASE("ollama chat: earlier turns, results of tools, an answer that is begun") {
  const ToolServer t("x");
  const std::string said =
      R"({"stream":false,"messages":[{"role":"system","content":"S"},{"role":"user","content":"q"},)"
      R"({"role":"assistant","thinking":"Hm.","content":"One.","tool_calls":[{"function":{"name":"now",)"
      R"("arguments":{"a":1}}}]},{"role":"tool","tool_name":"now","content":"noon"}]})";
  answered(t.post("/api/chat", said));
  CHECK(t.prompt() ==
        R"(system: Suser: qassistant: <think>Hm.</think>One.<tool_call>now {"a": 1}</tool_call>tool: noon)");
  answered(t.post("/api/chat", R"({"stream":false,"messages":[{"role":"user","content":"q"},)"
                               R"({"role":"assistant","content":"It is"}]})"));
  CHECK(t.prompt() == "user: qassistant: It is");
}

TEST_CASE("ollama: options and formats arrive at the engine") {
  FakeEngineOptions engine;
  engine.reply = "Well: {\"a\": 7} as asked";
  TestServer t(engine);
  const auto ask = [&](const std::string& path, const std::string& fields) {
    return http(t.http(), "POST", path, R"({"stream":false,)" + fields + "}");
  };
  answered(
      ask("/api/generate",
          R"("prompt":"q","options":{"num_predict":7,"temperature":0.5,"top_k":3,"top_p":0.25,"min_p":0.1,)"
          R"("repeat_penalty":1.5,"presence_penalty":0.5,"frequency_penalty":-0.5,"seed":9,"num_ctx":512,)"
          R"("num_gpu":1,"num_thread":4,"mirostat":0,"stop":["zz"]},"keep_alive":"5m")"));
  const oar::Request r = t.engine.last_request();
  CHECK(r.stop.max_tokens == 7);
  CHECK(r.sampling.temperature == 0.5f);
  CHECK(r.sampling.top_k == 3);
  CHECK(r.sampling.top_p == 0.25f);
  CHECK(r.sampling.min_p == 0.1f);
  CHECK(r.sampling.repetition_penalty == 1.5f);
  CHECK(r.sampling.presence_penalty == 0.5f);
  CHECK(r.sampling.frequency_penalty == -0.5f);
  CHECK(r.sampling.seed == 9u);
  CHECK(byte_tokenizer()->decode(r.prompt, false) == "<s><|user|>q<|assistant|>");

  answered(ask("/api/generate", R"("prompt":"q","system":"S")"));
  CHECK(byte_tokenizer()->decode(t.engine.last_request().prompt, false) ==
        "<s><|system|>S<|user|>q<|assistant|>");
  CHECK(t.engine.last_request().stop.max_tokens > 400);  // what the context has room for
  answered(ask("/api/generate", R"("prompt":"<s>q","raw":true)"));
  CHECK(byte_tokenizer()->decode(t.engine.last_request().prompt, false) == "<s>q");

  const char* const schema = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  const value made = answered(ask("/api/generate", std::string(R"("prompt":"q","format":)") + schema +
                                                       R"(,"options":{"num_predict":60})"));
  CHECK(parse(std::string(made.at("response").as_string())).as_object().contains("a"));
  CHECK(t.engine.last_request().constraint != nullptr);
  const value cut = answered(ask("/api/chat", kUser + R"(,"options":{"num_predict":2})"));
  CHECK(cut.at("done_reason") == "length");
  CHECK(cut.at("message").at("content") == "We");
  const value told =
      answered(ask("/api/chat", kUser + R"(,"logprobs":true,"top_logprobs":2,"options":{"num_predict":2})"));
  CHECK(told.at("logprobs").as_array().size() == 2);
  CHECK(told.at("logprobs").at(0).at("token") == "W");
  CHECK(told.at("logprobs").at(0).as_object().size() == 4);
}

TEST_CASE("ollama: without anything to answer a model is there") {
  TestServer t;
  const value chat = answered(http(t.http(), "POST", "/api/chat", R"({"model":"fake","messages":[]})"));
  CHECK(chat.at("done_reason") == "load");
  CHECK(chat.at("message").at("content") == "");
  const value generate = answered(http(t.http(), "POST", "/api/generate", R"({"model":"fake"})"));
  CHECK(generate.at("done_reason") == "load");
  CHECK(generate.at("response") == "");
  CHECK(t.engine.submitted() == 0);
  CHECK(
      refusal(http(t.http(), "POST", "/api/generate", R"({"model":"fake","keep_alive":0})")).find("unload") !=
      std::string::npos);
}

TEST_CASE("ollama: refusals name the field") {
  TestServer t;
  const struct {
    const char *path, *fields, *named;
  } kCases[] = {
      {"/api/generate", R"("prompt":"q","images":["aGk="])", "images"},
      {"/api/chat", R"("messages":[{"role":"user","content":"q","images":["aGk="]}])", "messages[0].images"},
      {"/api/chat", R"("messages":[{"role":"user","content":5}])", "messages[0].content"},
      {"/api/chat", R"("messages":[{"role":"user","content":"q"}],"think":true)", "think"},
      {"/api/chat", R"("messages":[{"role":"user","content":"q"}],"think":"much")", "think"},
      {"/api/chat", R"("messages":[{"role":"user","content":"q"}],"tools":[{"type":"function"}])", "tools"},
      {"/api/chat", R"("messages":[{"role":"user","content":"q"}],"format":"yaml")", "format"},
      {"/api/chat", R"("messages":[{"role":"user","content":"q"}],"truncate":true)", "truncate"},
      {"/api/generate", R"("prompt":"q","template":"{{ .Prompt }}")", "template"},
      {"/api/generate", R"("prompt":"q","context":[1,2])", "context"},
      {"/api/generate", R"("prompt":"q","raw":true,"system":"S")", "system"},
      {"/api/generate", R"("prompt":"q","suffix":"z")", "suffix"},
      {"/api/generate", R"("prompt":"q","top_logprobs":2)", "top_logprobs"},
      {"/api/generate", R"("prompt":"q","keep_alive":[])", "keep_alive"},
      {"/api/generate", R"("prompt":"q","options":{"num_ctx":1000000})", "options.num_ctx"},
      {"/api/generate", R"("prompt":"q","options":{"mirostat":2})", "options.mirostat"},
      {"/api/generate", R"("prompt":"q","options":{"num_predict":0})", "options.num_predict"},
      {"/api/generate", R"("prompt":"q","options":{"temprature":1})", "did you mean temperature"},
      {"/api/generate", R"("prompt":"q","options":{"json_schema":{}},"format":"json")", "exclude each other"},
      {"/api/generate", R"("prompt":"q","options":{"n":2})", "options.n"},
      {"/api/generate", R"("prompt":"q","stream":1)", "stream"},
  };
  for (const auto& c : kCases) {
    INFO(c.path << " " << c.fields);
    CHECK(refusal(http(t.http(), "POST", c.path, std::string("{") + c.fields + "}")).find(c.named) !=
          std::string::npos);
  }
  CHECK(
      refusal(http(t.http(), "POST", "/api/chat", R"({"model":"other","messages":[]})"), 404).find("other") !=
      std::string::npos);
  for (const char* path : {"/api/pull", "/api/create", "/api/push", "/api/copy", "/api/blobs/sha256:0"})
    CHECK(refusal(http(t.http(), "POST", path, R"({"model":"x"})"), 501).find(path) != std::string::npos);
  CHECK(refusal(http(t.http(), "DELETE", "/api/delete", R"({"model":"fake"})"), 501).find("unload") !=
        std::string::npos);
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("ollama: a failure on the way is a line of its own") {
  TestServer t;
  t.engine.fail_next(oar::internal_error("the step failed"));
  const HttpReply r = http(t.http(), "POST", "/api/chat", "{" + kUser + "}");
  const std::vector<value> all = lines(r);
  CHECK(all.back().as_object().contains("error"));
}

TEST_CASE("ollama: what there is") {
  const ToolServer t("x");
  const auto get = [&](const char* path) { return answered(http(t.server->http_port(), "GET", path)); };
  const value tags = get("/api/tags");
  REQUIRE(tags.at("models").as_array().size() == 1);
  CHECK(tags.at("models").at(0).at("name") == "fake");
  CHECK(tags.at("models").at(0).at("details").at("family") == "FakeForCausalLM");
  CHECK(get("/api/ps").at("models").at(0).at("context_length") == 4096);
  CHECK(get("/api/version").at("version").as_string().find('.') != std::string::npos);
  const value shown = answered(t.post("/api/show", R"({"model":"fake"})"));
  CHECK(shown.at("capabilities") == parse(R"(["completion","tools","thinking"])"));
  CHECK(shown.at("model_info").at("FakeForCausalLM.context_length") == 4096);
  CHECK(std::string(shown.at("template").as_string()).find("messages") != std::string::npos);
  CHECK(refusal(t.post("/api/show", "{}")).find("model") != std::string::npos);
  CHECK(refusal(t.post("/api/show", R"({"model":"other"})"), 404).find("other") != std::string::npos);
}

}  // namespace
