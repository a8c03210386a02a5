// What is kept: chats with `store`, and responses that are streamed again. Pages, labels, ends.
#include "engine/base/format.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::json::value;

constexpr const char* kChats = "/v1/chat/completions";

value kept_answer(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  return parse(r.body);
}

TEST_CASE("Stored chats: listed, read again, labelled and erased") {
  TestServer t;
  const auto chat = [&](const std::string& more) {
    return http(
        t.http(), "POST", kChats,
        cat(R"({"messages":[{"role":"user","content":"q"},{"role":"user","content":[{"type":"text","text":"r"}]}])",
            more, "}"));
  };
  const auto get = [&](const std::string& path) { return http(t.http(), "GET", cat(kChats, path)); };
  kept_answer(chat(R"(,"metadata":{"not":"kept"})"));
  CHECK(kept_answer(get("")).at("data").as_array().empty());
  const value first = kept_answer(chat(R"(,"store":true,"metadata":{"a":"b"})"));
  const std::string id(first.at("id").as_string());
  const HttpReply streamed = chat(R"(,"store":true,"stream":true)");
  const std::string second(parse(sse_data(streamed.body).front()).at("id").as_string());

  const value listed = kept_answer(get("")).at("data");
  REQUIRE(listed.as_array().size() == 2);
  CHECK(listed.at(0).at("id") == value(id));
  CHECK(listed.at(0).at("metadata").at("a") == "b");
  CHECK(listed.at(1).at("id") == value(second));
  CHECK(listed.at(1).at("choices") == listed.at(0).at("choices"));  // also of a stream the whole answer
  CHECK(listed.at(0).at("choices") == first.at("choices"));
  CHECK(kept_answer(get("?limit=1&order=desc")).at("data").at(0).at("id") == value(second));
  CHECK(kept_answer(get(cat("?after=", id))).at("data").as_array().size() == 1);
  CHECK(kept_answer(get("?model=other")).at("data").as_array().empty());
  for (const char* bad : {"?first=1", "?metadata=b", "?metadata[a=b", "?metadata%5Ba%5D=%zz"})
    CHECK(get(bad).status == 400);
  // As clients write it, and as people do.
  CHECK(kept_answer(get("?metadata%5Ba%5D=b")).at("data").at(0).at("id") == value(id));
  CHECK(kept_answer(get("?metadata[a]=b&limit=5")).at("data").as_array().size() == 1);
  for (const char* none : {"?metadata[a]=c", "?metadata[b]=b", "?metadata[a]=b&metadata[b]=b"})
    CHECK(kept_answer(get(none)).at("data").as_array().empty());

  CHECK(kept_answer(get("/" + id)).at("usage") == first.at("usage"));
  const value messages = kept_answer(get(cat("/", id, "/messages"))).at("data");
  REQUIRE(messages.as_array().size() == 2);
  CHECK(messages.at(0).at("content") == "q");
  CHECK(messages.at(1).at("content") == "r");
  CHECK(messages.at(1).at("content_parts").at(0).at("type") == "text");
  CHECK(messages.at(0).at("id") != messages.at(1).at("id"));

  const auto label = [&](const std::string& body) {
    return http(t.http(), "POST", cat(kChats, "/", id), body);
  };
  CHECK(kept_answer(label(R"({"metadata":{"a":"c"}})")).at("metadata").at("a") == "c");
  CHECK(kept_answer(get("/" + id)).at("metadata").at("a") == "c");
  for (const char* bad : {"{}", R"({"metadata":{"a":1}})", R"({"metadata":{},"model":"x"})"})
    CHECK(label(bad).status == 400);
  kept_answer(label(R"({"metadata":{"a b":"c&d"}})"));
  CHECK(kept_answer(get("?metadata%5Ba+b%5D=c%26d")).at("data").as_array().size() == 1);
  CHECK(chat(R"(,"store":true,"metadata":{"a":1})").status == 400);

  const value erased = kept_answer(http(t.http(), "DELETE", cat(kChats, "/", id)));
  CHECK(erased.at("deleted") == true);
  CHECK(erased.at("object") == "chat.completion.deleted");
  for (const char* path : {"", "/messages"}) CHECK(get(cat("/", id, path)).status == 404);
  CHECK(http(t.http(), "DELETE", cat(kChats, "/", id)).status == 404);
  CHECK(kept_answer(get("")).at("data").as_array().size() == 1);
}

TEST_CASE("Stored chats: what failed or was refused is not kept") {
  TestServer t;
  t.engine.fail_next(oar::internal_error("broken"));
  http(t.http(), "POST", kChats, R"({"messages":[{"role":"user","content":"q"}],"store":true})");
  http(t.http(), "POST", kChats, R"({"messages":[],"store":true})");
  CHECK(kept_answer(http(t.http(), "GET", kChats)).at("data").as_array().empty());
}

TEST_CASE("Conversations: responses go on with one, and it grows") {
  TestServer t;
  const auto call = [&](const char* method, const std::string& path, const std::string& body = {}) {
    return http(t.http(), method, cat("/v1/conversations", path), body);
  };
  const value made =
      kept_answer(call("POST", "", R"({"items":[{"role":"user","content":"first"}],"metadata":{"a":"b"}})"));
  const std::string id(made.at("id").as_string());
  CHECK(made.at("metadata").at("a") == "b");
  CHECK(kept_answer(call("GET", "/" + id)) == made);
  CHECK(kept_answer(call("POST", "/" + id, R"({"metadata":{}})")).at("metadata").as_object().empty());
  const auto respond = [&](const std::string& more) {
    return http(t.http(), "POST", "/v1/responses", cat(R"({"input":"second","conversation":)", more, "}"));
  };
  const value response = kept_answer(respond(cat("\"", id, "\"")));
  CHECK(response.at("conversation").at("id") == value(id));
  const auto listed = [&] {
    return kept_answer(call("GET", cat("/", id, "/items?order=asc"))).at("data").as_array();
  };
  oar::json::array items = listed();
  REQUIRE(items.size() == 3);
  CHECK(items[0].at("content").at(0).at("text") == "first");
  CHECK(items[1].at("content").at(0).at("text") == "second");
  CHECK(items[2] == response.at("output").at(0));
  // The next one reads all of it: "<|user|>first<|user|>second<|assistant|>..." and its own.
  const auto length = [](const value& v) { return v.at("usage").at("input_tokens").to_number<int>(); };
  const HttpReply streamed = respond(cat(R"({"id":")", id, R"("},"stream":true)"));
  INFO(streamed.body);
  REQUIRE(streamed.status == 200);
  const value end = parse(sse_data(streamed.body).back()).at("response");
  CHECK(length(end) > length(response));
  CHECK(listed().size() == 5);
  const std::string item(items[1].at("id").as_string());
  CHECK(kept_answer(call("GET", cat("/", id, "/items/", item))) == items[1]);
  CHECK(kept_answer(call("DELETE", cat("/", id, "/items/", item))).at("id") == value(id));
  CHECK(call("GET", cat("/", id, "/items/", item)).status == 404);
  const value added =
      kept_answer(call("POST", cat("/", id, "/items"), R"({"items":[{"role":"user","content":"x"}]})"));
  CHECK(added.at("data").as_array().size() == 1);
  CHECK(listed().size() == 5);
  for (const char* bad :
       {R"({"items":[1]})", R"({"items":[{"type":"image"}]})", R"({"metadata":{"a":1}})", R"({"x":1})"})
    CHECK(call("POST", "", bad).status == 400);
  CHECK(respond(cat("\"", id, R"(","previous_response_id":"resp_1")")).status == 400);
  CHECK(respond("5").status == 400);
  CHECK(respond("\"conv_none\"").status == 404);
  CHECK(kept_answer(call("DELETE", "/" + id)).at("deleted") == true);
  CHECK(call("GET", "/" + id).status == 404);
  CHECK(respond(cat("\"", id, "\"")).status == 404);
}

TEST_CASE("Responses: one that is kept comes again as its events") {
  TestServer t;
  const auto events = [](const HttpReply& r) {
    INFO(r.body);
    REQUIRE(r.status == 200);
    std::vector<value> out;
    for (const std::string& data : sse_data(r.body)) out.push_back(parse(data));
    return out;
  };
  const std::string body = R"({"input":"q","stream":true})";
  const std::vector<value> live = events(http(t.http(), "POST", "/v1/responses", body));
  const std::string path = cat("/v1/responses/", std::string(live[0].at("response").at("id").as_string()));
  const std::vector<value> again = events(http(t.http(), "GET", path + "?stream=true"));
  // The same but for the pieces, of which there is one.
  std::vector<value> merged;
  std::string text;
  for (value v : live) {
    if (v.at("type") == "response.output_text.delta") {
      text += v.at("delta").as_string();
      if (merged.back().at("type") == "response.output_text.delta") merged.pop_back();
      v.as_object()["delta"] = oar::json::string(text);
    }
    v.as_object()["sequence_number"] = merged.size();
    merged.push_back(std::move(v));
  }
  REQUIRE(again.size() == merged.size());
  for (size_t i = 0; i < again.size(); ++i) {
    value a = again[i], b = merged[i];
    CHECK(a.at("sequence_number").to_number<size_t>() == i);
    CHECK(oar::json::serialize(a.at("type")) == oar::json::serialize(b.at("type")));
    for (const char* member : {"delta", "text", "item", "part", "item_id", "output_index", "content_index"}) {
      const value* left = a.as_object().if_contains(member);
      const value* right = b.as_object().if_contains(member);
      REQUIRE((left == nullptr) == (right == nullptr));
      if (left) CHECK(oar::json::serialize(*left) == oar::json::serialize(*right));
    }
  }
  CHECK(again.back().at("response") == live.back().at("response"));
  const std::vector<value> rest = events(http(t.http(), "GET", path + "?stream=true&starting_after=2"));
  CHECK(rest.size() == again.size() - 3);
  CHECK(rest.front().at("sequence_number") == 3);
  for (const char* bad : {"?starting_after=1", "?stream=true&starting_after=x", "?include=y"})
    CHECK(http(t.http(), "GET", path + bad).status == 400);
  CHECK(http(t.http(), "GET", "/v1/responses/resp_none?stream=true").status == 404);
}

}  // namespace
