// A server whose model follows a script, writes calls in a style and reasons between <think> and </think>.
#pragma once

#include "engine/text/tools/style.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace oar_test {

inline constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":)"
    R"({"type":"string"}}}}},{"type":"function","function":{"name":"now"}}])";

// Writes tools, calls and reasoning of earlier turns as Qwen's templates do, shortened. Arguments are joined
// to the text where they are text: such templates take no objects.
inline const oar::ChatTemplate& tool_template(bool text_arguments) {
  static const auto make = [](const std::string& arguments) {
    auto parsed = oar::ChatTemplate::parse(
        "{% if tools %}TOOLS{% for t in tools %} {{ t.function.name }}{% endfor %}{% endif %}"
        "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content "
        "}}</think>{% endif %}"
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} " +
        arguments + "</tool_call>{% endfor %}{% endfor %}{% if think is defined %}<think>\n{% endif %}");
    REQUIRE_OK(parsed);
    return *parsed;
  };
  static const oar::ChatTemplate objects = make("{{ c.function.arguments | tojson }}");
  static const oar::ChatTemplate text = make("{{ '' + c.function.arguments }}");
  return text_arguments ? text : objects;
}

struct ToolServer {
  explicit ToolServer(std::string reply, const char* tools = "hermes", bool text_arguments = false)
      : engine([&] {
          FakeEngineOptions o;
          o.reply = std::move(reply);
          o.max_context = 4096;
          return o;
        }()) {
    oar::ModelHandle model = fake_model(engine);
    model.chat_template = &tool_template(text_arguments);
    model.constraints = std::make_shared<oar::grammar::ConstraintCompiler>(model.tokenizer);
    model.tool_style = *oar::tools::find_tool_style(tools, {});
    model.reasoning_style = *oar::tools::find_reasoning_style("think", {});
    oar::ServerOptions o;
    o.http_address = "127.0.0.1:0";
    o.grpc_address.clear();
    auto started = oar::Server::start(o, serving({model}));
    REQUIRE_OK(started);
    server = std::move(*started);
  }
  HttpReply post(const std::string& path, const std::string& body) const {
    return http(server->http_port(), "POST", path, body);
  }
  HttpReply chat(const std::string& fields) const {
    return http(server->http_port(), "POST", "/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"q"}],)" + fields + "}");
  }
  oar::json::value message(const std::string& fields) const {
    const HttpReply r = chat(fields);
    INFO(r.body);
    REQUIRE(r.status == 200);
    return parse(r.body).at("choices").at(0);
  }
  std::string prompt() const {
    const oar::Request r = engine.last_request();
    return byte_tokenizer()->decode(r.prompt);
  }
  FakeEngine engine;
  std::unique_ptr<oar::Server> server;
};

}  // namespace oar_test
