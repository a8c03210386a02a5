// /v1/responses and /v1/messages: a scripted model reasons, speaks and calls, and each protocol's client gets
// it in its own words, streamed and whole alike.
#include "server/api/response_store.h"
#include "tests/server/tool_server.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::json::object;
using oar::json::value;

const std::string kAgentReply =
    "<think>\nHm.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": "
    "1}}\n</tool_call>";
constexpr const char* kFlatTools =
    R"("tools":[{"type":"function","name":"now","parameters":{"type":"object"}}])";
constexpr const char* kAnthropicTools =
    R"("tools":[{"name":"now","description":"D","input_schema":{"type":"object"}}])";

value answered(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  return parse(r.body);
}

value respond(const ToolServer& t, const std::string& fields) {
  return answered(t.post("/v1/responses", "{" + fields + "}"));
}
value anthropic_message(const ToolServer& t, const std::string& fields) {
  return answered(t.post("/v1/messages", R"({"max_tokens":300,)" + fields + "}"));
}

// Events by name; each repeats its name as its type.
std::vector<std::pair<std::string, value>> named_events(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  std::vector<std::pair<std::string, value>> out;
  for (size_t at = 0; (at = r.body.find("event: ", at)) != std::string::npos;) {
    const size_t line = r.body.find('\n', at), data = r.body.find("data: ", line),
                 end = r.body.find("\n\n", data);
    out.emplace_back(r.body.substr(at + 7, line - at - 7), parse(r.body.substr(data + 6, end - data - 6)));
    CHECK(out.back().second.at("type") == value(out.back().first));
    at = end;
  }
  return out;
}

// Without what differs from one answer to the next.
value without_ids(value v) {
  if (v.is_array())
    for (value& one : v.get_array()) one = without_ids(one);
  if (object* o = v.if_object()) {
    for (const char* name : {"id", "call_id", "created_at", "item_id"}) o->erase(name);
    for (auto& member : *o) member.value() = without_ids(member.value());
  }
  return v;
}

TEST_CASE("responses: reasoning, text and calls are items") {
  const ToolServer t(kAgentReply);
  const value r =
      respond(t, std::string(R"("input":"q","instructions":"I","metadata":{"k":"v"},)") + kFlatTools);
  CHECK(t.prompt() == "TOOLS nowsystem: Iuser: q");
  CHECK(r.at("object") == "response");
  CHECK(std::string(r.at("id").as_string()).starts_with("resp_"));
  CHECK(r.at("status") == "completed");
  CHECK(r.at("instructions") == "I");
  CHECK(r.at("metadata") == parse(R"({"k":"v"})"));
  CHECK(r.at("tools").at(0).at("name") == "now");
  const value& output = r.at("output");
  REQUIRE(output.as_array().size() == 3);
  CHECK(output.at(0).at("type") == "reasoning");
  CHECK(output.at(0).at("content").at(0).at("text") == "Hm.");
  CHECK(output.at(1).at("content").at(0).at("text") == "One moment.");
  CHECK(output.at(2).at("type") == "function_call");
  CHECK(output.at(2).at("name") == "now");
  CHECK(output.at(2).at("arguments") == R"({"a": 1})");
  CHECK(std::string(output.at(2).at("call_id").as_string()).starts_with("call_"));
  CHECK(r.at("usage").at("output_tokens_details").at("reasoning_tokens").as_int64() > 2);

  const auto stream = named_events(t.post(
      "/v1/responses", std::string(R"({"stream":true,"input":"q","instructions":"I","metadata":{"k":"v"},)") +
                           kFlatTools + "}"));
  CHECK(stream.front().first == "response.created");
  CHECK(stream.back().first == "response.completed");
  CHECK(without_ids(stream.back().second.at("response")) == without_ids(r));
  // What the deltas add up to, and what closes each part.
  std::string text, reasoning, arguments;
  oar::json::array done;
  int64_t number = 0;
  for (const auto& [name, v] : stream) {
    CHECK(v.at("sequence_number") == number++);
    if (name == "response.output_text.delta") text += v.at("delta").as_string();
    if (name == "response.reasoning_text.delta") reasoning += v.at("delta").as_string();
    if (name == "response.function_call_arguments.delta") arguments += v.at("delta").as_string();
    if (name == "response.output_item.done") done.push_back(v.at("item"));
  }
  CHECK(text == "One moment.");
  CHECK(reasoning == "Hm.");
  CHECK(arguments == R"({"a": 1})");
  CHECK(without_ids(value(done)) == without_ids(output));

  const value cut = respond(t, R"("input":"q","max_output_tokens":9)");
  CHECK(cut.at("status") == "incomplete");
  CHECK(cut.at("incomplete_details").at("reason") == "max_output_tokens");
}

TEST_CASE("responses: a conversation goes on where another ended") {
  const ToolServer t(kAgentReply);
  const value first = respond(t, std::string(R"("input":"q","instructions":"I",)") + kFlatTools);
  const std::string id(first.at("id").as_string()), call(first.at("output").at(2).at("call_id").as_string());
  const std::string next =
      R"("instructions":"J","input":[{"type":"function_call_output","call_id":")" + call +
      R"(","output":"noon"},{"role":"user","content":[{"type":"input_text","text":"so?"}]}])";
  const std::string said =
      R"(system: Juser: qassistant: <think>Hm.</think>One moment.<tool_call>now {"a": 1}</tool_call>tool: noonuser: so?)";
  const value second = respond(t, R"("previous_response_id":")" + id + "\"," + next);
  CHECK(t.prompt() == said);  // instructions are not handed on
  CHECK(second.at("previous_response_id") == value(id));
  // The items of the answer sent back say the same.
  std::string items = R"({"role":"user","content":"q"})";
  for (const value& item : first.at("output").as_array()) items += "," + serialize(item);
  respond(t,
          R"("store":false,"instructions":"J","input":[)" + items + "," + next.substr(next.find("[{") + 1));
  CHECK(t.prompt() == said);

  const HttpReply r = t.post("/v1/responses", R"({"input":"q","previous_response_id":"resp_0"})");
  CHECK(r.status == 404);
  CHECK(parse(r.body).at("error").at("param") == "previous_response_id");
  CHECK(t.post("/v1/responses", R"({"input":"q","previous_response_id":"bad"})").status == 400);
  const value unkept = respond(t, R"("input":"q","store":false)");
  CHECK(t.post("/v1/responses",
               R"({"input":"q","previous_response_id":")" + std::string(unkept.at("id").as_string()) + "\"}")
            .status == 404);
}

TEST_CASE("responses: formats, choices, and what is refused by name") {
  const ToolServer t("Well: {\"a\": 7} as asked");
  const value r = respond(
      t,
      R"("input":"q","text":{"format":{"type":"json_schema","name":"x","schema":{"type":"object","properties":)"
      R"({"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}})");
  CHECK(r.at("output").at(0).at("content").at(0).at("text") == R"({"a": 7})");
  const ToolServer calls(kAgentReply);
  for (const char* choice :
       {R"("required")", R"({"type":"function","name":"now"})",
        R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"now"}]})"}) {
    const value forced = respond(
        calls, std::string(R"("input":"q","parallel_tool_calls":false,"tool_choice":)") + choice +
                   R"(,"tools":[{"type":"function","name":"now","parameters":{"type":"object","properties":)"
                   R"({"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}])");
    CHECK(forced.at("output").as_array().back().at("type") == "function_call");
  }
  const std::pair<const char*, const char*> wrong[] = {
      {R"({})", "input is missing"},
      {R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0].type is"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})", "input[0].content[0].type is"},
      {R"({"input":"q","tools":[{"type":"web_search"}]})", "tools[0].type is"},
      {R"({"input":"q","tools":[{"type":"function","name":"now","parameters":1}]})",
       "tools[0].parameters must be"},
      {R"({"input":"q","background":true})", "background is not offered"},
      {R"({"input":"q","truncation":"auto"})", "truncation is"},
      {R"({"input":"q","reasoning":{"effort":"low","depth":1}})", "reasoning.depth"},
      {R"({"input":"q","n":2})", "n is 2"},
      {R"({"input":"q","max_output_tokens":100000})", "max_output_tokens is 100000"},
      {R"({"input":"q","messages":[]})", "messages"},
  };
  for (const auto& [body, text] : wrong) {
    const HttpReply bad = t.post("/v1/responses", body);
    INFO(body << ": " << bad.body);
    CHECK(bad.status == 400);
    CHECK(bad.body.find(text) != std::string::npos);
  }
}

TEST_CASE("messages: thinking, text and calls are blocks") {
  const ToolServer t(kAgentReply);
  const std::string asked =
      std::string(R"("system":"S","thinking":{"type":"enabled","budget_tokens":200},)") + kAnthropicTools +
      R"(,"messages":[{"role":"user","content":"q"}])";
  const value m = anthropic_message(t, asked);
  CHECK(t.prompt() == "TOOLS nowsystem: Suser: q");
  CHECK(m.at("type") == "message");
  CHECK(m.at("stop_reason") == "tool_use");
  CHECK(m.at("stop_sequence").is_null());
  const value& content = m.at("content");
  REQUIRE(content.as_array().size() == 3);
  CHECK(content.at(0).at("thinking") == "Hm.");
  CHECK(content.at(1).at("text") == "One moment.");
  CHECK(content.at(2).at("type") == "tool_use");
  CHECK(content.at(2).at("input") == parse(R"({"a":1})"));
  CHECK(m.at("usage").at("input_tokens").as_int64() > 0);
  CHECK(m.at("usage").at("output_tokens").as_int64() > 20);

  oar::json::array blocks;
  std::string json;
  const auto stream =
      named_events(t.post("/v1/messages", R"({"max_tokens":300,"stream":true,)" + asked + "}"));
  CHECK(stream.front().first == "message_start");
  CHECK(stream.front().second.at("message").at("content").as_array().empty());
  CHECK(stream.back().first == "message_stop");
  for (const auto& [name, v] : stream) {
    if (name == "content_block_start") {
      CHECK(v.at("index").as_int64() == static_cast<int64_t>(blocks.size()));
      blocks.push_back(v.at("content_block"));
      json.clear();
    } else if (name == "content_block_delta") {
      const object& delta = v.at("delta").as_object();
      for (const char* member : {"text", "thinking"}) {
        if (!delta.contains(member)) continue;
        std::string all(blocks.back().at(member).as_string());
        all += delta.at(member).as_string();
        blocks.back().at(member) = all;
      }
      if (delta.contains("partial_json")) json += delta.at("partial_json").as_string();
    } else if (name == "content_block_stop" && !json.empty()) {
      blocks.back().at("input") = parse(json);
    } else if (name == "message_delta") {
      CHECK(v.at("delta").at("stop_reason") == "tool_use");
      CHECK(v.at("usage").at("output_tokens") == m.at("usage").at("output_tokens"));
    }
  }
  CHECK(without_ids(value(blocks)) == without_ids(content));

  // Without `thinking` none is shown.
  const value quiet = anthropic_message(t, R"("messages":[{"role":"user","content":"q"}])");
  CHECK(quiet.at("content").at(0).at("type") == "text");
  const value cut =
      anthropic_message(t, R"("stop_sequences":["mom"],"messages":[{"role":"user","content":"q"}])");
  CHECK(cut.at("stop_reason") == "stop_sequence");
  CHECK(cut.at("stop_sequence") == "mom");
}

TEST_CASE("messages: earlier turns, results of tools, demanded calls, counting") {
  const ToolServer t(kAgentReply);
  const std::string turns =
      R"("system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"q"},)"
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":""},{"type":"text","text":"One."},)"
      R"({"type":"tool_use","id":"c1","name":"now","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result",)"
      R"("tool_use_id":"c1","is_error":true,"content":[{"type":"text","text":"late"}]},{"type":"text","text":"so?"}]}])";
  anthropic_message(t, turns);
  CHECK(t.prompt() ==
        R"(system: Suser: qassistant: <think>Hm.</think>One.<tool_call>now {"a": 1}</tool_call>)"
        "tool: Error: lateuser: so?");
  const value counted = answered(t.post("/v1/messages/count_tokens", "{" + turns + "}"));
  CHECK(counted.at("input_tokens").as_int64() == static_cast<int64_t>(t.prompt().size()));
  for (const char* choice : {R"({"type":"any","disable_parallel_tool_use":true})",
                             R"({"type":"tool","name":"now","disable_parallel_tool_use":true})"}) {
    const ToolServer stubborn("Never. " + kAgentReply);
    const value m = anthropic_message(
        stubborn, std::string(R"("messages":[{"role":"user","content":"q"}],"tool_choice":)") + choice + "," +
                      kAnthropicTools);
    REQUIRE(m.at("content").as_array().size() == 1);
    CHECK(m.at("content").at(0).at("name") == "now");
  }
  // What the assistant has begun is gone on with.
  anthropic_message(t, R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Thus"}])");
  CHECK(t.prompt() == "user: qassistant: Thus");
  anthropic_message(
      t,
      R"("messages":[{"role":"user","content":"q"},{"role":"system","content":[{"type":"text","text":"S"}]}])");
  CHECK(t.prompt() == "user: qsystem: S");
}

TEST_CASE("messages: what is wrong is said in Anthropic's words") {
  const ToolServer t("x");
  const std::string user = R"("messages":[{"role":"user","content":"q"}])";
  const std::pair<std::string, const char*> wrong[] = {
      {"{" + user + "}", "max_tokens is missing"},
      {R"({"max_tokens":5})", "messages is missing"},
      {R"({"max_tokens":5,"messages":[{"role":"system","content":"q"}]})", "messages[0].role is"},
      {R"({"max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"tool","content":"q"}]})",
       "messages[1].role is"},
      {R"({"max_tokens":5,"messages":[{"role":"user","content":[{"type":"image"}]}]})",
       "messages[0].content[0].type is"},
      {R"({"max_tokens":5,"tools":[{"type":"bash_20250124","name":"bash"}],)" + user + "}",
       "tools[0].type is"},
      {R"({"max_tokens":5,"tools":[{"name":"a b"}],)" + user + "}", "tools[0].name must be"},
      {R"({"max_tokens":5,"tool_choice":{"type":"always"},)" + user + "}", "tool_choice.type is"},
      {R"({"max_tokens":5,"thinking":{"type":"deep"},)" + user + "}", "thinking.type is"},
      {R"({"max_tokens":5,"mcp_servers":[{}],)" + user + "}", "mcp_servers"},
      {R"({"max_tokens":100000,)" + user + "}", "max_tokens is 100000"},
  };
  for (const auto& [body, text] : wrong) {
    const HttpReply r = t.post("/v1/messages", body);
    INFO(body << ": " << r.body);
    CHECK(r.status == 400);
    const value v = parse(r.body);
    CHECK(v.at("type") == "error");
    CHECK(v.at("error").at("type") == "invalid_request_error");
    CHECK(std::string(v.at("error").at("message").as_string()).find(text) != std::string::npos);
  }
  const HttpReply unknown = t.post("/v1/messages", R"({"model":"x","max_tokens":5,)" + user + "}");
  CHECK(unknown.status == 404);
  CHECK(parse(unknown.body).at("error").at("type") == "not_found_error");
}

TEST_CASE("stored conversations are bounded, each its key's own, the one unused for longest goes first") {
  oar::api::ResponseStore store(4000);
  const auto talk = [](size_t bytes) {
    return oar::api::StoredResponse{{{"user", std::string(bytes, 'x'), {}}}, {}, {}};
  };
  store.put("a", "1", talk(1000));
  store.put("a", "2", talk(1000));
  CHECK(store.bytes() > 2000);
  CHECK(store.find("a", "1").ok());
  CHECK_FALSE(store.find("b", "1").ok());
  store.put("a", "3", talk(1000));  // there is room for two: the second was unused for longest
  store.put("a", "4", talk(5000));  // never fits
  CHECK(store.bytes() <= 4000);
  CHECK(store.find("a", "1").ok());
  CHECK_FALSE(store.find("a", "2").ok());
  CHECK(store.find("a", "3").ok());
  CHECK_FALSE(store.find("a", "4").ok());
  CHECK(store.find("a", "1")->messages.front().content->size() == 1000);
  CHECK_FALSE(store.erase("b", "1").ok());
  CHECK(store.erase("a", "1").ok());
  CHECK_FALSE(store.find("a", "1").ok());
}

TEST_CASE("responses: what is kept is read again, listed and deleted") {
  const ToolServer t(kAgentReply);
  const value made = respond(
      t, std::string(R"("input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)") +
             R"({"id":"own","role":"user","content":[{"type":"input_text","text":"c"}]}],)" + kFlatTools);
  const std::string path = "/v1/responses/" + std::string(made.at("id").as_string());
  const auto ask = [&](const char* method, const std::string& where) {
    return http(t.server->http_port(), method, where);
  };
  CHECK(answered(ask("GET", path)) == made);
  const value latest = answered(ask("GET", path + "/input_items"));
  REQUIRE(latest.at("data").as_array().size() == 3);
  CHECK(latest.at("has_more") == false);
  CHECK(latest.at("first_id") == "own");
  CHECK(latest.at("data").at(1).at("content") == parse(R"([{"type":"output_text","text":"b"}])"));
  CHECK(latest.at("data").at(2).at("content") == parse(R"([{"type":"input_text","text":"a"}])"));
  const value one = answered(ask("GET", path + "/input_items?order=asc&limit=1"));
  CHECK(one.at("data").as_array().size() == 1);
  CHECK(one.at("has_more") == true);
  const std::string first(one.at("last_id").as_string());
  const value rest = answered(ask("GET", path + "/input_items?order=asc&after=" + first));
  CHECK(rest.at("data").as_array().size() == 2);
  CHECK(rest.at("last_id") == "own");
  for (const char* wrong : {"?limit=0", "?limit=x", "?order=up", "?after=nobody", "?include=x"}) {
    INFO(wrong);
    CHECK(ask("GET", path + "/input_items" + wrong).status == 400);
  }
  CHECK(ask("GET", path + "?include=x").status == 400);
  const value gone = answered(ask("DELETE", path));
  CHECK(gone.at("deleted") == true);
  for (const char* method : {"GET", "DELETE"}) CHECK(ask(method, path).status == 404);
  CHECK(t.post("/v1/responses",
               R"({"input":"x","previous_response_id":")" + std::string(made.at("id").as_string()) + "\"}")
            .status == 404);
  const value apart = respond(t, R"("input":"q","store":false)");
  CHECK(ask("GET", "/v1/responses/" + std::string(apart.at("id").as_string())).status == 404);
}

}  // namespace
