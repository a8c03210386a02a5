// The OpenAI endpoints over HTTP: what a streamed and a whole answer look like to the byte, and that they
// agree.
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::json::value;

constexpr const char* kReply = "Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80";
const Headers kJson = {{"Content-Type", "application/json"}};

std::string str(const value& v) { return std::string(v.as_string()); }

std::vector<value> events_of(const HttpReply& reply) {
  std::vector<std::string> data = sse_data(reply.body);
  REQUIRE_FALSE(data.empty());
  REQUIRE(data.back() == "[DONE]");
  data.pop_back();
  std::vector<value> out;
  for (const std::string& d : data) out.push_back(parse(d));
  return out;
}

TEST_CASE("a chat answer in one piece") {
  TestServer t;
  const HttpReply r = http(t.http(), "POST", "/v1/chat/completions",
                           R"({"model":"fake","messages":[{"role":"user","content":"hi"}]})", kJson);
  REQUIRE(r.status == 200);
  CHECK(r.headers.at("content-type") == "application/json");
  const value v = parse(r.body);
  CHECK(v.at("object") == "chat.completion");
  CHECK(str(v.at("id")).substr(0, 9) == "chatcmpl-");
  CHECK(v.at("model") == "fake");
  CHECK(v.at("created").as_int64() > 1'600'000'000);
  const value& choice = v.at("choices").at(0);
  CHECK(v.at("choices").as_array().size() == 1);
  CHECK(choice.at("index") == 0);
  CHECK(choice.at("message").at("role") == "assistant");
  CHECK(str(choice.at("message").at("content")) == kReply);
  CHECK(choice.at("logprobs").is_null());
  CHECK(choice.at("finish_reason") == "stop");
  CHECK(choice.at("stop_reason") == 257);
  // <s> <|user|> h i <|assistant|>
  CHECK(v.at("usage").at("prompt_tokens") == 5);
  CHECK(v.at("usage").at("completion_tokens") == static_cast<int64_t>(std::string(kReply).size()) + 1);
  CHECK(v.at("usage").at("total_tokens").as_int64() ==
        v.at("usage").at("prompt_tokens").as_int64() + v.at("usage").at("completion_tokens").as_int64());
  CHECK(t.engine.last_request().prompt == std::vector<int32_t>{256, 258, 'h', 'i', 259});
  CHECK(t.engine.last_request().stop.max_tokens == 512 - 5);
}

TEST_CASE("a request is called what its X-Request-Id says") {
  TestServer t;
  const HttpReply r = http(t.http(), "POST", "/v1/completions", R"({"prompt":"x","max_tokens":1})",
                           {{"Content-Type", "application/json"}, {"X-Request-Id", "mine-7"}});
  REQUIRE(r.status == 200);
  CHECK(parse(r.body).at("id") == "cmpl-mine-7");
  CHECK(r.headers.at("x-request-id") == "cmpl-mine-7");
  CHECK(t.engine.last_request().id == "cmpl-mine-7");
}

TEST_CASE("a streamed chat answer: role first, one finish chunk per choice, usage, [DONE]") {
  TestServer t;
  const HttpReply r = http(
      t.http(), "POST", "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"n":2,"stream_options":{"include_usage":true}})",
      kJson);
  REQUIRE(r.status == 200);
  CHECK(r.complete);
  CHECK(r.headers.at("content-type") == "text/event-stream; charset=utf-8");
  const std::vector<value> events = events_of(r);
  std::map<int64_t, std::string> text;
  std::map<int64_t, int> roles, finishes;
  const std::string id = str(events[0].at("id"));
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const value& e = events[i];
    CHECK(str(e.at("id")) == id);
    CHECK(e.at("object") == "chat.completion.chunk");
    CHECK(e.at("created") == events[0].at("created"));
    CHECK(e.at("usage").is_null());
    REQUIRE(e.at("choices").as_array().size() == 1);
    const value& c = e.at("choices").at(0);
    const int64_t index = c.at("index").as_int64();
    const auto& delta = c.at("delta").as_object();
    if (delta.contains("role")) {
      CHECK(roles[index]++ == 0);
      CHECK(text[index].empty());
      CHECK(delta.at("role") == "assistant");
    }
    CHECK(finishes[index] == 0);  // nothing follows a choice's finish
    if (!c.at("finish_reason").is_null()) {
      CHECK(c.at("finish_reason") == "stop");
      CHECK(delta.empty());
      ++finishes[index];
    } else if (!delta.contains("role")) {
      text[index] += str(delta.at("content"));
    }
  }
  for (int64_t index : {0, 1}) {
    CHECK(roles[index] == 1);
    CHECK(finishes[index] == 1);
    CHECK(text[index] == kReply);
  }
  const value& last = events.back();
  CHECK(last.at("choices").as_array().empty());
  CHECK(last.at("usage").at("prompt_tokens") == 5);
  CHECK(last.at("usage").at("completion_tokens") ==
        2 * (static_cast<int64_t>(std::string(kReply).size()) + 1));
}

TEST_CASE("without include_usage no chunk mentions usage") {
  TestServer t;
  const HttpReply r =
      http(t.http(), "POST", "/v1/chat/completions",
           R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":3})", kJson);
  const std::vector<value> events = events_of(r);
  std::string text;
  for (const value& e : events) {
    CHECK_FALSE(e.as_object().contains("usage"));
    const value& delta = e.at("choices").at(0).at("delta");
    if (delta.as_object().contains("content")) text += str(delta.at("content"));
  }
  CHECK(text == "Hel");
  CHECK(events.back().at("choices").at(0).at("finish_reason") == "length");
}

}  // namespace
