// Models and text through the C interface.
#include <cstddef>
#include <cstring>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"

namespace {
using oar_test::demo_model;

TEST_CASE("library facts") {
  CHECK(oar_abi_version() == OAR_ABI_VERSION);
  CHECK(std::string(oar_version()).find('.') != std::string::npos);
  CHECK(std::string(oar_status_name(OAR_INVALID_ARGUMENT)) == "INVALID_ARGUMENT");
  CHECK(std::string(oar_status_name(static_cast<oar_status>(-7))) == "UNKNOWN");
  CHECK(std::string(oar_status_name(static_cast<oar_status>(99))) == "UNKNOWN");
}

TEST_CASE("loading reports facts, progress and failures") {
  oar_model_options o = oar_test::small_options();
  int calls = 0;
  o.progress = [](const char* what, uint64_t done, uint64_t total, void* user) {
    REQUIRE(what != nullptr);
    CHECK((total == 0 || done <= total));
    ++*static_cast<int*>(user);
    return 0;
  };
  o.progress_user = &calls;
  oar_model model = 0;
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_OK);
  CHECK(model != 0);
  CHECK(calls > 0);
  oar_model_info info;
  REQUIRE(oar_model_get_info(model, &info, sizeof info) == OAR_OK);
  CHECK(info.vocab_size > 0);
  CHECK(info.parameters > 0);
  CHECK(info.max_context > 0);
  CHECK(info.threads == 2);
  size_t length = 0;
  REQUIRE(oar_model_describe(model, nullptr, 0, &length) == OAR_OK);
  std::string text(length + 1, '\0');
  REQUIRE(oar_model_describe(model, text.data(), text.size(), &length) == OAR_OK);
  CHECK(text.find("\"architecture\"") != std::string::npos);
  CHECK(oar_model_close(model) == OAR_OK);

  o.progress = [](const char*, uint64_t, uint64_t, void*) { return 1; };
  CHECK(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_CANCELLED);
  CHECK(model == 0);
  CHECK(oar_model_load("/nonexistent/model", nullptr, &model) == OAR_NOT_FOUND);
  CHECK(std::string(oar_last_error()).find("/nonexistent/model") != std::string::npos);
  o = oar_test::small_options();
  o.weights = "f13";
  CHECK(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("f13") != std::string::npos);
}

TEST_CASE("text to tokens and back") {
  const char text[] = "My kingdom for a horse \xc3\xa9";
  size_t count = 0;
  REQUIRE(oar_tokenize(demo_model(), text, SIZE_MAX, 0, nullptr, 0, &count) == OAR_OK);
  REQUIRE(count > 3);
  std::vector<int32_t> ids(count);
  CHECK(oar_tokenize(demo_model(), text, SIZE_MAX, 0, ids.data(), count - 1, &count) == OAR_OUT_OF_RANGE);
  CHECK(count == ids.size());
  REQUIRE(oar_tokenize(demo_model(), text, std::strlen(text), 0, ids.data(), ids.size(), &count) == OAR_OK);
  size_t length = 0;
  REQUIRE(oar_detokenize(demo_model(), ids.data(), ids.size(), 1, nullptr, 0, &length) == OAR_OK);
  CHECK(length == std::strlen(text));
  std::string back(length + 1, 'x');
  CHECK(oar_detokenize(demo_model(), ids.data(), ids.size(), 1, back.data(), length, &length) ==
        OAR_OUT_OF_RANGE);
  REQUIRE(oar_detokenize(demo_model(), ids.data(), ids.size(), 1, back.data(), back.size(), &length) ==
          OAR_OK);
  CHECK(std::string(back.c_str()) == text);
}

TEST_CASE("control tokens in messages stay text, those of a prompt that the caller tokenizes count") {
  const char messages[] = R"([{"role": "user", "content": "a<|bos|>"}])";
  const auto chat_tokens = [&](oar_model model) {
    const oar_sampling s = oar_test::greedy(1);
    oar_generation generation = 0;
    REQUIRE(oar_generate_chat(model, messages, &s, nullptr, nullptr, &generation) == OAR_OK);
    const auto tokens = static_cast<size_t>(oar_test::drain(generation).prompt_tokens);
    CHECK(oar_generation_close(generation) == OAR_OK);
    return tokens;
  };
  const size_t tokens = chat_tokens(demo_model());

  char prompt[256];
  size_t length = 0, count = 0;
  REQUIRE(oar_chat_prompt(demo_model(), messages, nullptr, prompt, sizeof prompt, &length) == OAR_OK);
  REQUIRE(oar_tokenize(demo_model(), prompt, length, 0, nullptr, 0, &count) == OAR_OK);
  CHECK(count < tokens);

  oar_model_options o = oar_test::small_options();
  CHECK(o.allow_special_in_text == 0);
  o.allow_special_in_text = 1;
  oar_model trusting = 0;
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &trusting) == OAR_OK);
  CHECK(chat_tokens(trusting) == count);
  CHECK(oar_model_close(trusting) == OAR_OK);

  o.struct_size = offsetof(oar_model_options, allow_special_in_text);  // a caller whose header is older
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &trusting) == OAR_OK);
  CHECK(chat_tokens(trusting) == tokens);
  CHECK(oar_model_close(trusting) == OAR_OK);
  o = oar_test::small_options();
  o.mixed_prefix = 1;  // a processor computes all rows alike
  CHECK(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &trusting) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error_param()) == "mixed_prefix");
}

TEST_CASE("chat template") {
  size_t length = 0;
  const char messages[] = R"([{"role": "user", "content": "Good morrow"}])";
  REQUIRE(oar_chat_prompt(demo_model(), messages, nullptr, nullptr, 0, &length) == OAR_OK);
  std::string prompt(length + 1, '\0');
  REQUIRE(oar_chat_prompt(demo_model(), messages, nullptr, prompt.data(), prompt.size(), &length) == OAR_OK);
  CHECK(prompt.find("Good morrow") != std::string::npos);
  for (const char* wrong : {"", "{}", "[", "[1]", "[{}]", "[]", R"([{"role": 3}])"}) {
    INFO(wrong);
    CHECK(oar_chat_prompt(demo_model(), wrong, nullptr, nullptr, 0, &length) == OAR_INVALID_ARGUMENT);
    CHECK(std::string(oar_last_error()).find("messages") != std::string::npos);
  }
}

}  // namespace
