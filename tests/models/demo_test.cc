// The embedded default model answers as transformers does (tests/golden/demo.json): template, tokenizer,
// model, end tokens and detokenizer together, in f32.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/base/json.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/text_stream.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;
using oar_test::source_path;

std::vector<int32_t> ids_of(const json::value& v) {
  std::vector<int32_t> ids;
  for (const json::value& id : v.as_array()) ids.push_back(static_cast<int32_t>(id.as_int64()));
  return ids;
}

struct Answer {
  std::vector<int32_t> ids;
  std::string text;
  TextEvent last;
};

Answer greedy(LanguageModel& model, const std::vector<int32_t>& prompt, int64_t max_tokens) {
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0;
  request.stop.max_tokens = max_tokens;
  auto stream = TextStream::create(model.tokenizer(), {}, 1);
  REQUIRE_OK(stream->start(model.engine(), std::move(request)));
  Answer answer;
  while (!stream->done()) {
    auto event = stream->next(std::chrono::seconds(60));
    REQUIRE(event.has_value());
    answer.text += event->text;
    for (const auto& token : event->tokens) answer.ids.push_back(token.id);
    if (event->finish != FinishReason::kNone) answer.last = std::move(*event);
  }
  return answer;
}

}  // namespace

TEST_CASE("the embedded model gives the greedy answers of transformers") {
  const auto document = parse_json(oar_test::read_file(source_path("tests/golden/demo.json")), "demo.json");
  REQUIRE_OK(document);
  LanguageModelOptions options;
  options.threads = 2;
  options.max_sequences = 2;
  options.memory_bytes = uint64_t{256} << 20;
  // f32 throughout, so that the least margin of the goldens (1e-3, of logits within +-30) is far above what
  // arithmetic may differ by: sums of at most 768 products, 2^-24 each, over 6 layers.
  options.weights = options.kv = "f32";
  auto model = LanguageModel::load(source_path("configs/demo"), options);
  REQUIRE_OK(model);
  const auto& cases = document->at("cases").as_array();
  REQUIRE(cases.size() >= 8);
  for (const json::value& c : cases) {
    const std::string prompt_text(c.at("prompt_text").as_string());
    INFO(prompt_text);
    const std::vector<int32_t> prompt = ids_of(c.at("prompt_ids")), output = ids_of(c.at("output_ids"));
    if (c.at("kind") == "chat") {
      ChatTemplateOptions chat;
      chat.bos_token = (*model)->bos_token();
      chat.eos_token = (*model)->eos_token();
      const auto rendered = (*model)->chat_template().render(c.at("messages").as_array(), nullptr, chat);
      REQUIRE_OK(rendered);
      CHECK(rendered->text == prompt_text);
      CHECK((*model)
                ->tokenizer()
                ->encode(prompt_text, {.add_special_tokens = false, .plain = rendered->user})
                .value() == prompt);
      CHECK((*model)->tokenizer()->encode(prompt_text, {.add_special_tokens = false}).value() == prompt);
    } else {
      CHECK((*model)->tokenizer()->encode(c.at("prompt").as_string()).value() == prompt);
    }

    const Answer answer = greedy(**model, prompt, 48);
    const bool stopped = c.at("finish") == "stop";
    // The end token is reported beside the text, not as a part of it.
    std::vector<int32_t> got = answer.ids;
    if (stopped) got.push_back(answer.last.stop_token);
    CHECK(got == output);
    CHECK(answer.text == std::string(c.at("output_text").as_string()));
    CHECK(answer.last.finish == (stopped ? FinishReason::kStop : FinishReason::kLength));
  }
}

TEST_CASE("generation_config.json says how to sample and where texts end, unless it says to be greedy") {
  const std::string folder = oar_test::temp_dir() + "/defaults";
  std::filesystem::copy(source_path("configs/demo"), folder);
  LanguageModelOptions options;
  options.threads = 1;
  options.max_sequences = 1;
  options.max_context = 64;
  options.memory_bytes = uint64_t{128} << 20;
  const auto load = [&](const std::string& generation) {
    std::ofstream(folder + "/generation_config.json") << generation;
    auto model = LanguageModel::load(folder, options);
    REQUIRE_OK(model);
    return std::move(*model);
  };
  const auto model = load(
      R"({"temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "repetition_penalty": 1.5, "do_sample": true,
          "eos_token_id": [40, 41]})");
  const GenerationDefaults& d = model->defaults();
  CHECK(d.temperature == 0.25f);
  CHECK(d.top_k == 7);
  CHECK(d.top_p == 0.5f);
  CHECK(d.min_p == 0.125f);
  CHECK(d.repetition_penalty == 1.5f);
  for (const int32_t end : {40, 41}) CHECK(std::ranges::count(model->end_tokens(), end) == 1);
  // What it says of sampling where it says not to sample is nothing.
  for (const char* none : {R"({"temperature": 0.25, "top_k": 7, "do_sample": false})", "{}"}) {
    INFO(none);
    const auto other = load(none);
    CHECK_FALSE(other->defaults().temperature.has_value());
    CHECK_FALSE(other->defaults().top_k.has_value());
  }
  CHECK(load(R"({"top_k": -1})")->defaults().top_k == 0);
  for (const auto& [bad, says] : {std::pair{R"({"temperature": "hot"})", "'temperature' is \"hot\""},
                                  {R"({"temperature": -1})", "temperature: must be"},
                                  {R"({"top_p": 0})", "top_p: must be"},
                                  {R"({"top_k": [1]})", "'top_k' is [1]"},
                                  {R"({"do_sample": "no"})", "'do_sample' is \"no\""}}) {
    INFO(bad);
    std::ofstream(folder + "/generation_config.json") << bad;
    const auto refused = LanguageModel::load(folder, options);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code() == StatusCode::kInvalidArgument);
    CHECK(refused.status().message().find(std::string("generation_config.json: ") + says) !=
          std::string::npos);
  }
}
