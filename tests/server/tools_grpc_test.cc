// Tools over oar.v1: typed in, typed out, the same parts as over HTTP.
#include "engine/text/tools/style.h"
#include "tests/server/grpc_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
namespace v1 = oar::v1;

TEST_CASE("oar.v1: tools in, calls and reasoning out") {
  FakeEngineOptions engine_options;
  engine_options.reply =
      "<think>Hm.</think>Ok.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
      "\"Rome\"}}\n</tool_call>";
  engine_options.max_context = 4096;
  FakeEngine engine(engine_options);
  oar::ModelHandle model = fake_model(engine);
  static const auto chat_template = oar::ChatTemplate::parse(
      "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ "
      "m.content }}"
      "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments.city }}]{% "
      "endfor %}"
      "{{ m.tool_call_id or '' }}{{ m.reasoning_content or '' }}{% endfor %}");
  REQUIRE_OK(chat_template);
  model.chat_template = &*chat_template;
  model.tool_style = *oar::tools::find_tool_style("hermes", {});
  model.reasoning_style = *oar::tools::find_reasoning_style("think", {});
  oar::ServerOptions o;
  o.http_address.clear();
  o.grpc_address = "127.0.0.1:0";
  auto server = oar::Server::start(o, serving({model}));
  REQUIRE_OK(server);
  const auto stub = v1::Generation::NewStub(channel_to((*server)->grpc_port()));

  v1::GenerateRequest request;
  v1::Conversation& c = *request.mutable_conversation();
  const auto say = [&](const char* role, const char* content) {
    v1::Message* m = c.add_messages();
    m->set_role(role);
    m->set_content(content);
    return m;
  };
  say("user", "q");
  v1::Message* earlier = say("assistant", "");
  earlier->set_reasoning_content("R");
  v1::ToolCall* call = earlier->add_tool_calls();
  call->set_id("c1");
  call->set_name("get_weather");
  call->set_arguments(R"({"city":"Oslo"})");
  say("tool", "5")->set_tool_call_id("c1");
  v1::Tool* tool = c.add_tools();
  tool->set_name("get_weather");
  tool->set_description("D");
  tool->set_parameters(R"({"type":"object"})");
  const auto ask = [&](std::vector<v1::GenerateChunk>& chunks) {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    for (v1::GenerateChunk chunk; reader->Read(&chunk);) chunks.push_back(chunk);
    return reader->Finish();
  };
  std::vector<v1::GenerateChunk> chunks;
  const grpc::Status status = ask(chunks);
  INFO(status.error_message());
  REQUIRE(status.ok());
  std::string text, reasoning, name, id, arguments;
  for (const v1::GenerateChunk& chunk : chunks) {
    text += chunk.text();
    reasoning += chunk.reasoning();
    for (const v1::ToolCallDelta& d : chunk.tool_calls()) {
      CHECK(d.index() == 0);
      name += d.name();
      id += d.id();
      arguments += d.arguments();
    }
  }
  CHECK(text == "Ok.");
  CHECK(reasoning == "Hm.");
  CHECK(name == "get_weather");
  CHECK(id.starts_with("call_"));
  CHECK(arguments == R"({"city": "Rome"})");
  CHECK(chunks.back().finish_reason() == v1::FINISH_REASON_TOOL_CALLS);
  const oar::Request last = engine.last_request();
  CHECK(
      byte_tokenizer()->decode(last.prompt) ==
      R"({"type": "function", "function": {"name": "get_weather", "description": "D", "parameters": {"type": "object"}}})"
      "user:qassistant:[c1 get_weather Oslo]Rtool:5c1");

  chunks.clear();
  c.mutable_tool_choice()->set_mode(v1::ToolChoice::NONE);
  c.set_inline_reasoning(true);
  REQUIRE(ask(chunks).ok());
  text.clear();
  for (const v1::GenerateChunk& chunk : chunks) text += chunk.text();
  CHECK(text == engine_options.reply);
  CHECK(chunks.back().finish_reason() == v1::FINISH_REASON_STOP);

  c.mutable_tool_choice()->set_mode(v1::ToolChoice::AUTO);
  tool->set_parameters("{");
  const grpc::Status wrong = ask(chunks);
  CHECK(wrong.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(wrong.error_message().find("conversation.tools[0].parameters") != std::string::npos);
}

}  // namespace
