// Tools and reasoning over HTTP: a scripted model writes calls in its style, and OpenAI's clients get them as
// tool_calls, streamed and whole alike.
#include "tests/server/tool_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::json::value;

std::string str(const value& v) { return std::string(v.as_string()); }

// The deltas of a streamed choice put together as clients do it, in the shape of the whole message.
struct Streamed {
  oar::json::object message;
  std::string finish;
};
Streamed streamed(const ToolServer& t, const std::string& fields) {
  const HttpReply r = t.chat(R"("stream":true,)" + fields);
  INFO(r.body);
  REQUIRE(r.status == 200);
  std::string content, reasoning;
  oar::json::array calls;
  Streamed out;
  for (const std::string& data : sse_data(r.body)) {
    if (data == "[DONE]") break;
    const value v = parse(data);
    const value& choice = v.at("choices").at(0);
    const oar::json::object& delta = choice.at("delta").as_object();
    if (delta.contains("content")) content += delta.at("content").as_string();
    if (delta.contains("reasoning_content")) reasoning += delta.at("reasoning_content").as_string();
    if (const value* pieces = delta.if_contains("tool_calls")) {
      for (const value& piece : pieces->as_array()) {
        const auto index = static_cast<size_t>(piece.at("index").as_int64());
        if (index == calls.size()) {
          CHECK(piece.at("type") == "function");
          CHECK(std::string(piece.at("id").as_string()).starts_with("call_"));
          calls.push_back(oar::json::object{{"name", piece.at("function").at("name")}, {"arguments", ""}});
        }
        REQUIRE(index + 1 == calls.size());
        std::string& arguments = out.finish;  // borrowed while there is no finish
        arguments = std::string(calls[index].at("arguments").as_string());
        arguments += piece.at("function").at("arguments").as_string();
        calls[index].at("arguments") = arguments;
        out.finish.clear();
      }
    }
    if (!choice.at("finish_reason").is_null())
      out.finish = std::string(choice.at("finish_reason").as_string());
  }
  out.message = {{"content", content}, {"reasoning_content", reasoning}, {"tool_calls", calls}};
  return out;
}

// The same of an answer that came whole.
oar::json::object shape(const value& choice) {
  const oar::json::object& m = choice.at("message").as_object();
  oar::json::array calls;
  if (const value* list = m.if_contains("tool_calls")) {
    for (const value& c : list->as_array()) {
      CHECK(c.at("type") == "function");
      calls.push_back(oar::json::object{{"name", c.at("function").at("name")},
                                        {"arguments", c.at("function").at("arguments")}});
    }
  }
  const value* reasoning = m.if_contains("reasoning_content");
  return {{"content", m.at("content").is_null() ? value("") : m.at("content")},
          {"reasoning_content", reasoning ? *reasoning : value("")},
          {"tool_calls", calls}};
}

TEST_CASE("tool calls: whole and streamed say the same") {
  const std::string reply =
      "<think>\nLook it up.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"get_weather\", "
      "\"arguments\": {\"city\": \"Z\xC3\xBCrich\"}}\n"
      "</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const ToolServer t(reply);
  const value choice = t.message(kTools);
  const value expected = parse(
      R"({"content":"One moment.","reasoning_content":"Look it up.","tool_calls":[{"name":"get_weather","arguments":)"
      R"("{\"city\": \"Z\u00fcrich\"}"},{"name":"now","arguments":"{}"}]})");
  CHECK(value(shape(choice)) == expected);
  CHECK(choice.at("finish_reason") == "tool_calls");
  const value& calls = choice.at("message").at("tool_calls");
  CHECK(calls.at(0).at("id") != calls.at(1).at("id"));
  const Streamed s = streamed(t, kTools);
  CHECK(value(s.message) == expected);
  CHECK(s.finish == "tool_calls");
  CHECK(t.prompt().starts_with("TOOLS get_weather nowuser:"));

  // One call at most: the reply ends with it.
  const value one = t.message(std::string(kTools) + R"(,"parallel_tool_calls":false)");
  CHECK(one.at("message").at("tool_calls").as_array().size() == 1);
  CHECK(one.at("finish_reason") == "tool_calls");
  CHECK(t.engine.wait_idle());
  // Cut by length: as far as it came.
  const value cut = t.message(std::string(kTools) + ",\"max_tokens\":" + std::to_string(reply.find('Z') + 1));
  CHECK(cut.at("finish_reason") == "length");
  CHECK(cut.at("message").at("tool_calls").at(0).at("function").at("arguments") == "{\"city\": \"Z");
}

TEST_CASE("without tools, or with tool_choice none, calls are text; reasoning is apart all the same") {
  const ToolServer t("<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>");
  const std::string text = "<tool_call>\n{\"name\": \"now\"}\n</tool_call>";
  for (const std::string& fields :
       {std::string(R"("n":1)"), std::string(kTools) + R"(,"tool_choice":"none")"}) {
    const value choice = t.message(fields);
    CHECK(str(choice.at("message").at("content")) == text);
    CHECK(choice.at("message").at("reasoning_content") == "Hm.");
    CHECK_FALSE(choice.at("message").as_object().contains("tool_calls"));
    CHECK(choice.at("finish_reason") == "stop");
    CHECK_FALSE(t.prompt().starts_with("TOOLS"));
  }
  CHECK_FALSE(
      t.message(R"("include_reasoning":false)").at("message").as_object().contains("reasoning_content"));
  const std::string all = "<think>\nHm.\n</think>\n\n" + text;
  CHECK(str(t.message(R"("separate_reasoning":false)").at("message").at("content")) == all);
  CHECK(str(t.message(R"("reasoning_format":"none")").at("message").at("content")) == all);
  const value allowed = t.message(
      std::string(kTools) +
      R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"now"}}]}})");
  CHECK(allowed.at("message").at("tool_calls").at(0).at("function").at("name") == "now");
  CHECK(t.prompt().starts_with("TOOLS nowuser:"));
}

TEST_CASE("a call that is demanded: the script wants to say something else") {
  const ToolServer t("Sure, now: <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"now"}})"}) {
    const value c =
        t.message(std::string(kTools) + R"(,"parallel_tool_calls":false,"tool_choice":)" + choice);
    INFO(serialize(c));
    // As OpenAI says it where the request named the function.
    CHECK(c.at("finish_reason") == (choice[0] == '{' ? "stop" : "tool_calls"));
    CHECK(c.at("message").at("content").is_null());
    REQUIRE(c.at("message").at("tool_calls").as_array().size() == 1);
    CHECK(c.at("message").at("tool_calls").at(0).at("function").at("name") == "now");
    CHECK(c.at("message").at("tool_calls").at(0).at("function").at("arguments") == "{}");
  }
}

TEST_CASE("a call that is demanded and cut anywhere leaves no text") {
  for (const oar::tools::ToolStyle& style : oar::tools::tool_styles()) {
    // Harmony's analysis, which comes before, has no end by itself.
    const bool harmony = style.syntax == oar::tools::CallSyntax::kHarmony;
    const ToolServer t(harmony
                           ? "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
                           : "no call at all",
                       std::string(style.name).c_str());
    bool called = false, ended = false;
    for (int64_t tokens = 1; tokens <= 400 && !ended; ++tokens) {
      const value c = t.message(
          R"("tools":[{"type":"function","function":{"name":"now","strict":true,"parameters":)"
          R"({"type":"object","properties":{},"additionalProperties":false}}}],"tool_choice":"required",)"
          R"("parallel_tool_calls":false,"max_tokens":)" +
          std::to_string(tokens));
      INFO(style.name << " " << tokens << " " << serialize(c));
      CHECK((c.at("message").at("content").is_null() || str(c.at("message").at("content")).empty()));
      if (const value* calls = c.at("message").as_object().if_contains("tool_calls")) {
        called = true;
        std::string arguments = str(calls->at(0).at("function").at("arguments"));  // as far as they came
        std::erase_if(arguments, [](unsigned char ch) { return std::isspace(ch) != 0; });
        CHECK(std::string_view("{}").starts_with(arguments));
      }
      ended = c.at("finish_reason") != "length";
    }
    INFO(style.name);
    CHECK(called);
    CHECK(ended);
  }
}

TEST_CASE("response_format beside tools: the answer is JSON, or calls") {
  constexpr const char* kFormat =
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object",)"
      R"("properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}})";
  const ToolServer json("Hm.\n</think>Well: {\"a\": 7} as asked");
  const value answer =
      json.message(std::string(kTools) + kFormat + R"(,"chat_template_kwargs":{"think":true})");
  CHECK(answer.at("message").at("content") == "{\"a\": 7}");
  CHECK(answer.at("message").at("reasoning_content") == "Hm.");
  CHECK(answer.at("finish_reason") == "stop");
  const ToolServer calls("Well: <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
  const value call = calls.message(std::string(kTools) + kFormat);
  CHECK(call.at("message").at("tool_calls").at(0).at("function").at("name") == "now");
  CHECK(call.at("message").at("content").is_null());
}

TEST_CASE("strict arguments are as declared, whatever the model wants") {
  const ToolServer t(
      "On it. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"x9\"}}\n</tool_call>");
  const value choice = t.message(
      R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",)"
      R"("properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}}])");
  CHECK(choice.at("message").at("content") == "On it.");
  CHECK(choice.at("message").at("tool_calls").at(0).at("function").at("arguments") == "{\"a\": 9}");
  const HttpReply r = t.chat(
      R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"propertyNames":{}}}}])");
  CHECK(r.status == 400);
  CHECK(r.body.find("tools: the parameters of f: ") != std::string::npos);
  CHECK(r.body.find("propertyNames") != std::string::npos);
}

TEST_CASE("usage tells the tokens of reasoning") {
  const ToolServer t("<think>ab</think>Hi");
  const HttpReply r = t.chat(R"("n":2)");
  INFO(r.body);
  const value usage = parse(r.body).at("usage");
  // Each choice: seven bytes of a marker, two of thought, eight of a marker but for its last.
  CHECK(usage.at("completion_tokens_details").at("reasoning_tokens").as_int64() >= 2 * (2 + 8));
  CHECK(usage.at("completion_tokens_details").at("reasoning_tokens").as_int64() <= 2 * (7 + 2 + 8));
  CHECK_FALSE(parse(t.chat(R"("separate_reasoning":false)").body)
                  .at("usage")
                  .as_object()
                  .contains("completion_tokens_details"));
}

TEST_CASE("a prompt that opens the reasoning itself") {
  const ToolServer t("I think.\n</think>\n\nHello.");
  const value choice = t.message(R"("chat_template_kwargs":{"think":true})");
  CHECK(choice.at("message").at("reasoning_content") == "I think.");
  CHECK(choice.at("message").at("content") == "Hello.");
  CHECK(value(streamed(t, R"("chat_template_kwargs":{"think":true})").message) == value(shape(choice)));
  CHECK(t.message(R"("n":1)").at("message").at("content") == "I think.\n</think>\n\nHello.");
}

TEST_CASE("a thinking budget closes the reasoning") {
  const ToolServer t("abcdefgh</think>\n\nHello.");
  const std::string think = R"("chat_template_kwargs":{"think":true})";
  CHECK(t.message(think).at("message").at("reasoning_content") == "abcdefgh");
  for (const char* name : {"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"}) {
    const value choice = t.message(think + ",\"" + name + "\":3");
    CHECK(choice.at("message").at("reasoning_content") == "abc");
    CHECK(choice.at("message").at("content") == "Hello.");
  }
  CHECK(t.message(think + R"(,"thinking_token_budget":100)").at("message").at("reasoning_content") ==
        "abcdefgh");
  CHECK(t.message(think + R"(,"thinking_token_budget":-1)").at("message").at("reasoning_content") ==
        "abcdefgh");
  const HttpReply inside = t.chat(R"("thinking_token_budget":3,"separate_reasoning":false)");
  CHECK(inside.status == 400);
  CHECK(inside.body.find("thinking_token_budget needs reasoning that is told apart") != std::string::npos);
}

TEST_CASE("earlier calls and their results reach the template, arguments as it takes them") {
  for (const bool text_arguments : {false, true}) {
    const ToolServer t("ok", "hermes", text_arguments);
    const HttpReply r = http(
        t.server->http_port(), "POST", "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"reasoning_content":"R","tool_calls":[{"id":"c",)"
        R"("type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"c","content":"5"}]})");
    INFO(r.body);
    REQUIRE(r.status == 200);
    CHECK(t.prompt() == "user: qassistant: <think>R</think><tool_call>f {\"a\": 1}</tool_call>tool: 5");
  }
}

TEST_CASE("what is wrong with tools is said by name") {
  const ToolServer t("x");
  const std::string tools = kTools;
  const std::pair<std::string, const char*> wrong[] = {
      {R"("tools":{})", "tools must be an array"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type must be"},
      {R"("tool_choice":"required")", "tool_choice asks for a call and there are no tools"},
      {tools + R"(,"tool_choice":"always")", "tool_choice is none of its values"},
      {tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})",
       "tool_choice names g, which is not one of the tools"},
      {tools + R"(,"tool_choice":{"type":"allowed_tools","tools":[]})", "tool_choice allows no tools"},
      {tools + R"(,"parallel_tool_calls":1)", "parallel_tool_calls must be"},
      {R"("reasoning_format":"xml")", "reasoning_format is"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{}}]}])",
       "messages[0].tool_calls[0].function must be"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":1}}]}])",
       "messages[0].tool_calls[0].function.arguments must be"},
  };
  for (const auto& [fields, message] : wrong) {
    INFO(fields);
    const HttpReply r = t.chat(fields);
    CHECK(r.status == 400);
    CHECK(r.body.find(message) != std::string::npos);
    if (r.body.find(message) == std::string::npos) INFO(r.body);
  }
  const ToolServer unknown("x", "none");
  const HttpReply r = unknown.chat(tools);
  CHECK(r.status == 400);
  CHECK(r.body.find("say it with tool-parser") != std::string::npos);
}

}  // namespace
