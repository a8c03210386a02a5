// Bodies that must be refused: each with the status, the field at fault in error.param and words that help.
// Nothing of it reaches the engine, and the connection stays usable.
#include <fstream>

#include "server/api/openai_request.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT

struct Bad {
  const char* fields;   // added to a good body
  const char* param;    // error.param
  const char* mention;  // in error.message
};

// Sends `body` and checks the error object; returns its message.
std::string refused(RawClient& c, const char* path, const std::string& body, const std::string& param,
                    int status = 400) {
  INFO(body.substr(0, 200));
  REQUIRE(c.send(make_request("POST", path, body)));
  const HttpReply r = c.read_reply();
  CHECK(r.status == status);
  if (r.status == 200) return {};
  const auto v = parse(r.body);
  const auto& e = v.at("error").as_object();
  CHECK(e.size() == 4);
  CHECK(e.at("type").is_string());
  CHECK(e.contains("code"));
  CHECK((e.at("param").is_null() ? std::string() : std::string(e.at("param").as_string())) == param);
  return std::string(e.at("message").as_string());
}

const Bad kShared[] = {
    {R"("n":2147483648)", "n", "2147483648"},
    {R"("n":0)", "n", "[1, 128]"},
    {R"("n":-1)", "n", "-1"},
    {R"("n":1.5)", "n", "1.5"},
    {R"("n":"2")", "n", "integer"},
    {R"("max_tokens":0)", "max_tokens", "got 0"},
    {R"("max_tokens":-1)", "max_tokens", "-1"},
    {R"("max_tokens":9223372036854775808)", "max_tokens", "9223372036854775808"},
    {R"("max_tokens":18446744073709551616)", "max_tokens", "max_tokens"},
    {R"("max_tokens":"many")", "max_tokens", "many"},
    {R"("max_completion_tokens":-7)", "max_completion_tokens", "-7"},
    {R"("max_tokens":4,"min_tokens":5)", "min_tokens", "max_tokens"},
    {R"("min_tokens":-1)", "min_tokens", "-1"},
    {R"("temperature":"NaN")", "temperature", "NaN"},
    {R"("temperature":-0.1)", "temperature", "-1E-1"},
    {R"("temperature":1e308)", "temperature", "[0, 100]"},
    {R"("temperature":true)", "temperature", "number"},
    {R"("temperature":[1])", "temperature", "array"},
    {R"("top_p":0)", "top_p", "(0, 1]"},
    {R"("top_p":-1)", "top_p", "-1"},
    {R"("top_p":1.01)", "top_p", "1"},
    {R"("top_k":-2)", "top_k", "-2"},
    {R"("min_p":2)", "min_p", "2"},
    {R"("repetition_penalty":0)", "repetition_penalty", "0"},
    {R"("presence_penalty":3)", "presence_penalty", "3"},
    {R"("frequency_penalty":-3)", "frequency_penalty", "-3"},
    {R"("seed":1.5)", "seed", "64"},
    {R"("seed":"x")", "seed", "x"},
    {R"("stop":"")", "stop", "empty"},
    {R"("stop":["a",""])", "stop[1]", "empty"},
    {R"("stop":["a",7])", "stop[1]", "string"},
    {R"("stop":{})", "stop", "object"},
    {R"("stop_token_ids":[260])", "stop_token_ids[0]", "[0, 259]"},
    {R"("stop_token_ids":[-1])", "stop_token_ids[0]", "-1"},
    {R"("logit_bias":{"260":1})", "logit_bias", "260"},
    {R"("logit_bias":{"-1":1})", "logit_bias", "-1"},
    {R"("logit_bias":{"a":1})", "logit_bias", "\"a\""},
    {R"("logit_bias":{"1":101})", "logit_bias", "101"},
    {R"("logit_bias":{"1":"x"})", "logit_bias", "x"},
    {R"("logit_bias":[1])", "logit_bias", "object"},
    {R"("stream":"yes")", "stream", "true or false"},
    {R"("stream_options":{"include_usage":true})", "stream_options", "stream"},
    {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
     "true or false"},
    {R"("ignore_eos":1)", "ignore_eos", "1"},
    {R"("timeout":0)", "timeout", "0"},
    {R"("timeout":-5)", "timeout", "-5"},
    {R"("model":5)", "model", "string"},
    {R"("cache_salt":5)", "cache_salt", "string"},
    {R"("response_format":{"type":"xml"})", "response_format.type", "json_schema"},
    {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "missing"},
    {R"("response_format":{"type":"json_object","foo":1})", "response_format.foo", "no field"},
    {R"("response_format":{"type":"text","schema":{}})", "response_format.schema", "no field"},
    {R"("response_format":{"type":"json_schema","schema":{},"json_schema":{"schema":{}}})",
     "response_format.schema", "no field"},
    {R"("response_format":{"type":"json_schema","json_schema":{"name":3,"schema":{}}})",
     "response_format.json_schema.name", "a string"},
    {R"("response_format":{"type":"json_schema","json_schema":{"strict":"x","schema":{}}})",
     "response_format.json_schema.strict", "true or false"},
    {R"("response_format":{"type":"json_schema","json_schema":{"foo":1,"schema":{}}})",
     "response_format.json_schema.foo", "no field"},
    {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
     "response_format.json_schema.schema", "missing"},
    {R"("json_schema":false)", "json_schema", "json_schema"},
    {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"not":{}}}}}})",
     "response_format.json_schema.schema", "$.properties.a.not is not supported"},
    {R"("guided_regex":"^+a")", "guided_regex", "cannot be repeated"},
    {R"("regex":"a","choice":["b"])", "choice", "choice and regex exclude each other"},
    {R"("grammar":"root ::= root")", "grammar", "no text satisfies it"},
    {R"("ebnf":"x ::= y")", "ebnf", "the rule \"y\" is not defined"},
    {R"("structured_outputs":{"regex":"("})", "structured_outputs.regex", "without its )"},
    {R"("structured_outputs":{"jsn":1})", "structured_outputs.jsn", "did you mean"},
    {R"("guided_choice":["a",""])", "guided_choice[1]", "empty"},
    {R"("structural_tag":{"format":{"type":"x"}})", "structural_tag", "$.format.type"},
    {R"("guided_json":"{")", "guided_json", "the schema"},
    {R"("prompt_logprobs":21)", "prompt_logprobs", "[-1, 20]"},
    {R"("prompt_logprobs":-1)", "prompt_logprobs", "--max-logprobs"},
    {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", "leave stream out"},
    {R"("allowed_token_ids":[1000])", "allowed_token_ids[0]", "[0, 259]"},
    {R"("allowed_token_ids":5)", "allowed_token_ids", "array"},
    {R"("bad_words":["a",""])", "bad_words[1]", "empty"},
    {R"("bad_words":["</s>"])", "bad_words", "ends a text"},
    {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens", "-1 for as many"},
    {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens", "[-1, "},
};

TEST_CASE("sampling and control fields out of range or of the wrong type") {
  TestServer t;
  RawClient chat(t.http()), text(t.http());
  for (const Bad& bad : kShared) {
    const std::string m1 =
        refused(chat, "/v1/chat/completions",
                std::string(R"({"messages":[{"role":"user","content":"x"}],)") + bad.fields + "}", bad.param);
    CHECK(m1.find(bad.mention) != std::string::npos);
    const std::string m2 =
        refused(text, "/v1/completions", std::string(R"({"prompt":"x",)") + bad.fields + "}", bad.param);
    CHECK(m2.find(bad.mention) != std::string::npos);
  }
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("chat fields") {
  TestServer t;
  RawClient c(t.http());
  const auto no = [&](const std::string& body, const std::string& param, const std::string& mention) {
    const std::string m = refused(c, "/v1/chat/completions", body, param);
    INFO(m);
    CHECK(m.find(mention) != std::string::npos);
  };
  no("{}", "messages", "missing");
  no(R"({"messages":[]})", "messages", "empty");
  no(R"({"messages":"hi"})", "messages", "array");
  no(R"({"messages":[5]})", "messages[0]", "object");
  no(R"({"messages":[{"content":"x"}]})", "messages[0].role", "missing");
  no(R"({"messages":[{"role":5,"content":"x"}]})", "messages[0].role", "string");
  no(R"({"messages":[{"role":"user"}]})", "messages[0].content", "missing");
  no(R"({"messages":[{"role":"user","content":7}]})", "messages[0].content", "7");
  no(R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]})",
     "messages[0].content[0].type", "image_url");
  no(R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text",
     "missing");
  no(R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]", "object");
  no(R"({"messages":[{"role":"function","content":"x"}]})", "messages", "no functions here");
  const std::string user = R"("messages":[{"role":"user","content":"x"}])";
  no("{" + user + R"(,"top_logprobs":5})", "top_logprobs", "logprobs");
  no("{" + user + R"(,"logprobs":true,"top_logprobs":1000000})", "top_logprobs", "1000000");
  no("{" + user + R"(,"logprobs":1})", "logprobs", "true or false");
  no("{" + user + R"(,"tools":[{"type":"function"}]})", "tools[0].function", "object");
  no("{" + user + R"(,"tools":[{"type":"function","function":{"name":"f"}}]})", "tools", "tool-parser");
  no("{" + user + R"(,"tools":{}})", "tools", "array");
  no("{" + user + R"(,"chat_template":"{{ x }}"})", "chat_template", "own template");
  for (const char* name : {"messages", "bos_token", "add_generation_prompt", "tools"}) {
    no("{" + user + R"(,"chat_template_kwargs":{")" + name + R"(":1}})", "chat_template_kwargs", name);
  }
  no("{" + user + R"(,"chat_template_kwargs":7})", "chat_template_kwargs", "object");
  no("{" + user + R"(,"continue_final_message":true,"add_generation_prompt":true})", "continue_final_message",
     "exclude");
  // Longer than the context: both numbers.
  const std::string long_text(600, 'a');
  no(R"({"messages":[{"role":"user","content":")" + long_text + R"("}]})", "messages", "603");
  no(R"({"messages":[{"role":"user","content":")" + long_text + R"("}]})", "messages", "512");
  std::string many = R"({"messages":[)";
  for (int i = 0; i < 5000; ++i) many += R"({"role":"user","content":"a"},)";
  many.back() = ']';
  no(many + "}", "messages", "4096");
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("completion prompts") {
  TestServer t;
  RawClient c(t.http());
  const auto no = [&](const std::string& prompt, const std::string& param, const std::string& mention) {
    const std::string m = refused(c, "/v1/completions", R"({"prompt":)" + prompt + "}", param);
    INFO(m);
    CHECK(m.find(mention) != std::string::npos);
  };
  no("null", "prompt", "missing");
  no("5", "prompt", "5");
  no("{}", "prompt", "object");
  no("[]", "prompt", "empty");
  no("[[]]", "prompt[0]", "no tokens");
  no("\"\"", "prompt", "no tokens");  // this tokenizer adds no BOS
  no("[260]", "prompt", "[0, 260)");
  no("[1,-1]", "prompt", "-1");
  no("[1,1e3]", "prompt", "prompt[1]");
  no("[1,\"a\"]", "prompt", "prompt[1]");
  no("[\"a\",1]", "prompt[1]", "string");
  no("[[1],[\"a\"]]", "prompt[1]", "token id");
  no("[[1],2]", "prompt[1]", "array");
  no("[null]", "prompt[0]", "null");
  no("\"" + std::string(512, 'a') + "\"", "prompt", "512");
  std::string many = "[";
  for (int i = 0; i < 300; ++i) many += "\"a\",";
  many.back() = ']';
  no(many, "prompt", "256");
  refused(c, "/v1/completions", R"({"prompt":["a","b","c","d","e"],"n":128})", "n");
  refused(c, "/v1/completions", R"({"prompt":"a","logprobs":true})", "logprobs");
  refused(c, "/v1/completions", R"({"prompt":"a","logprobs":21})", "logprobs");
  refused(c, "/v1/completions", R"({"prompt":"a","best_of":1,"n":2})", "best_of");
  refused(c, "/v1/responses", R"({"input":"a","metadata":{"x":true}})", "metadata");  // a text, as OpenAI's
  refused(c, "/v1/completions", R"({"prompt":"a","best_of":3,"stream":true})", "best_of");
  refused(c, "/v1/completions", R"({"prompt":["a","b","c","d","e"],"best_of":128})", "best_of");
  refused(c, "/v1/completions", R"({"prompt":"a","suffix":"b"})", "suffix");  // no tokens for a gap
  refused(c, "/v1/completions", R"({"prompt":[97],"suffix":"b"})", "prompt");
  refused(c, "/v1/completions", R"({"prompt":"a","suffix":"b","echo":true})", "echo");
  refused(c, "/v1/completions", R"({"prompt":"a","truncate_prompt_tokens":1,"echo":true})", "echo");
  refused(c, "/v1/completions", R"({"prompt":"a","model":"other"})", "model", 404);
  refused(c, "/tokenize", "{}", "prompt");
  refused(c, "/tokenize", R"({"prompt":5})", "prompt");
  refused(c, "/detokenize", "{}", "tokens");
  refused(c, "/detokenize", R"({"tokens":[1,260]})", "tokens[1]");
  refused(c, "/detokenize", R"({"tokens":"1"})", "tokens");
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("JSON that is none, or too much") {
  TestServer t;
  RawClient c(t.http());
  const auto no = [&](const std::string& body, const std::string& mention) {
    const std::string m = refused(c, "/v1/completions", body, "");
    INFO(m);
    CHECK(m.find(mention) != std::string::npos);
  };
  no("", "empty");
  no("5", "object");
  no("[]", "object");
  no("\"x\"", "object");
  no("{", "JSON");
  no("{\"prompt\":\"a\"} x", "extra");
  no("{\"prompt\":\"a\"}{}", "extra");
  no("\xEF\xBB\xBF{\"prompt\":\"a\"}", "JSON");
  no("{\"prompt\":\"\xC3\x28\"}", "JSON");      // ill-formed UTF-8
  no("{\"prompt\":\"\xED\xA0\x80\"}", "JSON");  // a surrogate, encoded
  no(R"({"prompt":"\ud800"})", "JSON");         // a lone surrogate, escaped
  no(R"({"prompt":"\ud800A"})", "JSON");
  no("{\"prompt\":\"a\nb\"}", "JSON");  // a raw control character
  no(std::string("{\"prompt\":\"a") + '\0' + "b\"}", "JSON");
  no(R"({"prompt":NaN})", "JSON");
  no(R"({"prompt":"a","temperature":Infinity})", "JSON");
  CHECK(refused(c, "/v1/completions", R"({"prompt":"a","temperature":1e999})", "temperature").find("range") !=
        std::string::npos);
  no(R"({"prompt":"a","x":01})", "JSON");
  no(R"({'prompt':'a'})", "JSON");
  no(std::string(1'000'000, '['), "(100)");
  std::string nested;
  for (int i = 0; i < 1'000'000; ++i) nested += "{\"a\":";
  no(nested, "(100)");
  no(R"({"prompt":"a","deep":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}", "(100)");
  CHECK(t.engine.submitted() == 0);

  // Odd but right: escapes, duplicate keys (the last counts), many keys that say nothing, NUL as an escape.
  const auto yes = [&](const std::string& body) {
    INFO(body.substr(0, 100));
    REQUIRE(c.send(make_request("POST", "/v1/completions", body)));
    CHECK(c.read_reply().status == 200);
  };
  yes(R"({"prompt":"x","prompt":"\u0041\ud83d\ude00\u0000"})");
  CHECK(t.engine.last_request().prompt == std::vector<int32_t>{'A', 0xF0, 0x9F, 0x98, 0x80, 0});
  std::string many = R"({"prompt":"a")";
  for (int i = 0; i < 100'000; ++i) many += ",\"unknown" + std::to_string(i) + "\":null";
  yes(many + "}");
  yes(R"({"prompt":"a","user":"me","metadata":{"x":1},"store":false,"temperature":null,"logit_bias":{},"stop":null})");
  yes(R"({"prompt":"a","seed":-9223372036854775808,"top_k":-1,"max_tokens":16.0})");
}

TEST_CASE("error codes that clients look for") {
  TestServer t;
  const auto error = [&](const char* method, const char* path, const std::string& body, int status) {
    const HttpReply r = http(t.http(), method, path, body);
    INFO(r.body);
    CHECK(r.status == status);
    return parse(r.body).at("error");
  };
  for (const auto& e : {error("POST", "/v1/completions", R"({"prompt":"x","model":"other"})", 404),
                        error("GET", "/v1/models/other", "", 404)}) {
    CHECK(e.at("code") == "model_not_found");
    CHECK(e.at("type") == "invalid_request_error");
    CHECK(e.at("param") == "model");
  }
  CHECK(error("GET", "/v1/nothing", "", 404).at("code") == "not_found");
  const std::string long_text(600, 'a');
  for (const auto& e : {error("POST", "/v1/completions", R"({"prompt":")" + long_text + "\"}", 400),
                        error("POST", "/v1/chat/completions",
                              R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}", 400)}) {
    CHECK(e.at("code") == "context_length_exceeded");
    CHECK(e.at("type") == "invalid_request_error");
  }
  // Nor is an answer promised that the context (512) has no room for.
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool chat = std::string_view(path).find("chat") != std::string_view::npos;
    const std::string asked = chat ? R"({"messages":[{"role":"user","content":"a"}],"max_tokens":)"
                                   : R"({"prompt":"a","max_tokens":)";
    const auto e = error("POST", path, asked + "512}", 400);
    CHECK(e.at("code") == "context_length_exceeded");
    CHECK(e.at("param") == "max_tokens");
    CHECK(http(t.http(), "POST", path, asked + "3}").status == 200);
  }
}

TEST_CASE("the engine's refusals keep their meaning") {
  FakeEngineOptions small;
  small.max_waiting = 0;
  TestServer full(small);
  const HttpReply busy = http(full.http(), "POST", "/v1/completions", R"({"prompt":"a"})");
  CHECK(busy.status == 429);
  CHECK(busy.headers.at("retry-after") == "3");  // whole seconds, when a place may be free
  CHECK(parse(busy.body).at("error").at("type") == "rate_limit_error");

  TestServer t;
  CHECK(http(t.http(), "GET", "/health/ready").status == 200);
  t.engine.fail_next(oar::internal_error("logits hold NaN"));
  const HttpReply failed = http(t.http(), "POST", "/v1/completions", R"({"prompt":"a"})");
  CHECK(failed.status == 500);
  CHECK(parse(failed.body).at("error").at("message") == "logits hold NaN");
  t.engine.fail_next(oar::unavailable("device lost"));
  const HttpReply streamed = http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","stream":true})");
  CHECK(streamed.status == 200);
  const auto data = sse_data(streamed.body);
  REQUIRE(data.size() == 1);  // the error, and no [DONE] after it
  CHECK(parse(data[0]).at("error").at("type") == "unavailable_error");
  t.engine.set_health(oar::EngineHealth::kFailed);
  CHECK(http(t.http(), "GET", "/health/ready").status == 503);
  CHECK(http(t.http(), "GET", "/health/live").status == 200);
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a"})").status == 503);
}

TEST_CASE("a full model's name is enough to be refused") {
  FakeEngineOptions small;
  small.max_waiting = 0;
  TestServer full(small);
  const auto status = [&](const std::string& body) {
    return http(full.http(), "POST", "/v1/completions", body).status;
  };
  CHECK(status(R"({"prompt":"a"})") == 429);
  CHECK(status(R"({"model":"fake","prompt":"a"})") == 429);
  CHECK(status(R"({"prompt":["\"model\"",{"model":"other"}],"model" : "fake"})") == 429);
  CHECK(status(R"({"mod\u0065l":"fake","prompt":"a"})") == 429);
  // The rest is read when there is room.
  CHECK(status(R"({"model":"fake","prompt":)") == 429);
  // Who asks for no model that is full hears what is wrong.
  CHECK(status(R"({"model":"other","prompt":"a"})") == 404);
  CHECK(status(R"({"mod\u0065l":"other","prompt":"a"})") == 404);
  CHECK(status(R"({"model":7,"prompt":"a"})") == 400);
  CHECK(status(R"({"prompt":)") == 400);
}

TEST_CASE("where a body names its model") {
  using oar::api::find_model_field;
  const auto none = std::nullopt;
  CHECK(find_model_field(R"({"model":"m"})") == "m");
  CHECK(find_model_field("{\"a\":[\"model\",{\"model\":\"no\"}],\n \"model\" :\t\"m/1\"}") == "m/1");
  CHECK(find_model_field(R"({"a":"\\","model":"m"})") == "m");  // an escaped backslash ends no string late
  CHECK(find_model_field(R"({"a":"\",\"model\":\"no\"","model":"m"})") == "m");
  CHECK(find_model_field(R"({"a":"model","model":"m"})") == "m");  // a value of that text is no field
  CHECK(find_model_field(R"({"model":""})") == "");
  for (const char* body :
       {"", "{", "\"", "{\"model", "{\"model\"", "{\"model\":", "{\"model\":\"m", R"({"a":"model"})",
        R"({"model":null})", R"({"model":"\u006d"})", R"({"mod\u0065l":"m"})", R"([{"model":"m"}])",
        R"({"a":{"model":"m"}})", "\"\\", "{\"a\":\"\\"})
    CHECK(find_model_field(body) == none);
}

TEST_CASE("deadlines: in the body, in a header, while queued") {
  FakeEngineOptions slow;
  slow.step = std::chrono::milliseconds(5);
  TestServer t(slow);
  const std::string endless = R"("ignore_eos":true,"max_tokens":400)";
  const HttpReply body =
      http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","timeout":0.05,)" + endless + "}");
  CHECK(body.status == 408);
  CHECK(parse(body.body).at("error").at("type") == "timeout_error");
  const HttpReply header = http(t.http(), "POST", "/v1/completions", R"({"prompt":"a",)" + endless + "}",
                                {{"X-Request-Timeout", "0.05"}});
  CHECK(header.status == 408);
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a"})", {{"X-Request-Timeout", "soon"}})
            .status == 400);
  t.engine.pause(true);
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","timeout":0.05})").status == 408);
  t.engine.pause(false);
  const HttpReply stream = http(t.http(), "POST", "/v1/completions",
                                R"({"prompt":"a","stream":true,"timeout":0.05,)" + endless + "}");
  CHECK(parse(sse_data(stream.body).back()).at("error").at("code") == "deadline_exceeded");
  CHECK(t.engine.wait_idle());
}

TEST_CASE("prompts that cannot fit the context are refused by their bytes, long ones in slices") {
  TestServer t;
  RawClient c(t.http());
  const std::string text(1 << 20, 'x');
  const std::string completion =
      refused(c, "/v1/completions", oar::cat(R"({"prompt":")", text, "\"}"), "prompt");
  CHECK(completion.find("holds 512") != std::string::npos);
  const std::string chat =
      oar::cat(R"({"messages":[{"role":"user","content":")", text, R"("}],"timeout":1})");
  CHECK(refused(c, "/v1/chat/completions", chat, "messages").find("holds 512") != std::string::npos);
  // Counting has no bound; what it is long enough for is to be looked at between slices.
  REQUIRE(c.send(make_request("POST", "/tokenize", oar::cat(R"({"prompt":")", text, "\"}"))));
  const HttpReply r = c.read_reply();
  CHECK(r.status == 200);
  CHECK(parse(r.body).at("count").as_int64() >= 1 << 20);
}

}  // namespace
