// stories260K, a real model: the published greedy text from each of its forms, the logits of an independent
// run.
#include <cmath>

#include "engine/base/json.h"
#include "engine/runtime/text_stream.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar;
using oar_test::data_path;

LanguageModelOptions story_options() {
  LanguageModelOptions o;
  o.threads = 2;
  o.max_context = 512;
  o.max_sequences = 4;
  o.max_batch_tokens = 64;
  o.memory_bytes = 256 << 20;
  return o;
}

std::string greedy(const std::string& path, const LanguageModelOptions& options) {
  auto model = LanguageModel::load(path, options);
  REQUIRE_OK(model);
  auto prompt = (*model)->tokenizer()->encode("", {});
  REQUIRE_OK(prompt);
  if (prompt->empty()) prompt->push_back((*model)->tokenizer()->bos_id().value());
  REQUIRE(*prompt == std::vector<int32_t>{1});
  Request request;
  request.prompt = *prompt;
  request.sampling.temperature = 0;
  request.stop.max_tokens = 200;
  request.stop.ignore_eos = true;
  auto stream = TextStream::create((*model)->tokenizer(), {}, 1);
  REQUIRE_OK(stream->start((*model)->engine(), std::move(request)));
  std::string text;
  while (!stream->done()) {
    if (auto event = stream->next(std::chrono::seconds(30))) text += event->text;
  }
  return text;
}

std::string trimmed(std::string s) {
  while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.pop_back();
  size_t k = 0;
  while (k < s.size() && s[k] == ' ') ++k;
  return s.substr(k);
}

}  // namespace

TEST_CASE("stories260K generates its published greedy text from every form") {
  const auto gguf = data_path("llm/stories260K/stories260K.gguf"),
             bin = data_path("llm/stories260K/stories260K.bin");
  if (!gguf || !bin) OAR_SKIP("llm/stories260K is not there");
  const std::string expected =
      trimmed(oar_test::read_file(*data_path("llm/stories260K/expected_greedy_n200.txt")));
  for (const std::string& path : {*gguf, *bin}) {
    INFO(path);
    CHECK(trimmed(greedy(path, story_options())) == expected);
  }
  auto reference = story_options();
  reference.reference = true;
  CHECK(trimmed(greedy(*gguf, reference)) == expected);
}

TEST_CASE("stories260K has the logits of an independent run") {
  const auto bin = data_path("llm/stories260K/stories260K.bin");
  if (!bin) OAR_SKIP("llm/stories260K is not there");
  const auto golden =
      parse_json(oar_test::read_file(*data_path("llm/stories260K/reference_numpy.json")), "golden");
  REQUIRE_OK(golden);
  std::vector<int32_t> tokens;
  for (const auto& v : golden->at("greedy_ids").as_array())
    tokens.push_back(static_cast<int32_t>(v.as_int64()));
  auto options = story_options();
  options.max_batch_tokens = options.max_sequences = 256;
  oar_test::RunnerFixture model(*bin, options);
  tokens.resize(101);
  const auto logits = model.run({{tokens, 0, model.blocks(tokens.size()), true}});
  for (const auto& entry : golden->at("logits_top5").as_array()) {
    const auto pos = static_cast<size_t>(entry.at("pos").as_int64());
    for (const auto& pair : entry.at("top5").as_array()) {
      const auto id = static_cast<size_t>(pair.at(0).as_int64());
      CHECK(std::abs(logits[pos * 512 + id] - pair.at(1).to_number<double>()) < 1e-3);
    }
  }
}
