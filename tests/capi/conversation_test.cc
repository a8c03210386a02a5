// Conversations with tools through the C interface.
#include <cstddef>
#include <cstring>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"

namespace {
using namespace oar_test;

const char* const kMessages = R"([{"role":"user","content":"Who goes there?"}])";
const char* const kTools = R"([{"type":"function","function":{"name":"now"}}])";

oar_chat_options chat_options() {
  oar_chat_options o;
  REQUIRE(oar_chat_options_init(&o, sizeof o) == OAR_OK);
  return o;
}

TEST_CASE("a conversation without tools is answered as oar_generate_chat() answers it") {
  const oar_sampling s = greedy(16);
  const oar_chat_options o = chat_options();
  CHECK(o.parallel_tool_calls == 1);
  CHECK(o.tools == nullptr);
  oar_generation plain = 0, apart = 0;
  REQUIRE(oar_generate_chat(demo_model(), kMessages, &s, nullptr, nullptr, &plain) == OAR_OK);
  REQUIRE(oar_generate_conversation(demo_model(), kMessages, &o, &s, nullptr, nullptr, &apart) == OAR_OK);
  const Answer a = drain(plain), b = drain(apart);
  CHECK(a.text == b.text);
  CHECK(a.finish == b.finish);
  CHECK(oar_generation_close(plain) == OAR_OK);
  CHECK(oar_generation_close(apart) == OAR_OK);
  REQUIRE(oar_generate_conversation(demo_model(), kMessages, nullptr, &s, nullptr, nullptr, &apart) ==
          OAR_OK);
  CHECK(drain(apart).text == a.text);
  CHECK(oar_generation_close(apart) == OAR_OK);
}

TEST_CASE("what is wrong with tools is said by name") {
  const oar_sampling s = greedy(4);
  oar_generation g = 0;
  const auto refused = [&](const oar_chat_options& o, const char* param, const char* text) {
    CHECK(oar_generate_conversation(demo_model(), kMessages, &o, &s, nullptr, nullptr, &g) ==
          OAR_INVALID_ARGUMENT);
    CHECK(g == 0);
    INFO(oar_last_error());
    CHECK(std::string(oar_last_error_param()) == param);
    CHECK(std::string(oar_last_error()).find(text) != std::string::npos);
  };
  oar_chat_options o = chat_options();
  o.tools = kTools;  // the demo's template tells of no way to write calls
  refused(o, "tools", "tool-parser");
  o.tools = "[{]";
  refused(o, "", "tools");
  o.tools = "[1]";
  refused(o, "tools[0]", "must be an object");
  o = chat_options();
  o.tool_choice = "\"required\"";
  refused(o, "tool_choice", "there are no tools");
  o = chat_options();
  o.struct_size = 1;
  refused(o, "chat_options", "oar_chat_options_init");
}

TEST_CASE("a model's styles are options of the model") {
  oar_model_options o = small_options();
  oar_model model = 0;
  o.tool_parser = "hermse";
  CHECK(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("hermse") != std::string::npos);
  o.tool_parser = "hermes";
  o.reasoning_parser = "think";
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_OK);
  const oar_sampling s = greedy(8);
  oar_chat_options chat = chat_options();
  chat.tools = kTools;
  oar_generation g = 0;
  REQUIRE(oar_generate_conversation(model, kMessages, &chat, &s, nullptr, nullptr, &g) == OAR_OK);
  const oar_event* event = nullptr;
  bool last = false;
  while (oar_generation_next(g, 60'000, &event) == OAR_OK && event != nullptr) {
    CHECK(event->reasoning != nullptr);
    CHECK(event->reasoning_length == std::strlen(event->reasoning));
    CHECK(event->struct_size >= offsetof(oar_event, tool_call_count));
    last = event->finish != OAR_FINISH_NONE;
  }
  CHECK(last);
  CHECK(oar_generation_close(g) == OAR_OK);
  CHECK(oar_model_close(model) == OAR_OK);
}

}  // namespace
