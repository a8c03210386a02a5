// Trained models in llama2.c's form: the greedy text from each of their forms and the logits of an
// independent run. Ours lies in tests/data/tales (tests/golden/generate_tales.py); stories260K is in the data
// collection.
#include <cmath>

#include "engine/base/json.h"
#include "engine/runtime/text_stream.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar;

LanguageModelOptions story_options(int64_t context) {
  LanguageModelOptions o;
  o.threads = 2;
  o.max_context = context;
  o.max_sequences = 4;
  o.max_batch_tokens = 64;
  o.memory_bytes = 256 << 20;
  return o;
}

struct Trained {
  std::string bin, gguf, text, golden;
  size_t steps;  // greedy
  int64_t context;
};
std::vector<Trained> trained_models() {
  const std::string own = oar_test::source_path("tests/data/tales/");
  const auto expected = parse_json(oar_test::read_file(own + "expected.json"), "expected.json");
  REQUIRE_OK(expected);
  const auto& text = expected->at("greedy_text").as_string();
  std::vector<Trained> all = {
      {own + "tales.bin", own + "tales.gguf", std::string(text), own + "expected.json", 120, 256}};
  if (const auto folder = oar_test::data_path("llm/stories260K")) {
    all.push_back({*folder + "/stories260K.bin", *folder + "/stories260K.gguf",
                   oar_test::read_file(*folder + "/expected_greedy_n200.txt"),
                   *folder + "/reference_numpy.json", 200, 512});
  }
  return all;
}

std::string greedy(const std::string& path, const LanguageModelOptions& options, size_t steps) {
  auto model = LanguageModel::load(path, options);
  REQUIRE_OK(model);
  auto prompt = (*model)->tokenizer()->encode("", {});
  REQUIRE_OK(prompt);
  if (prompt->empty()) prompt->push_back((*model)->tokenizer()->bos_id().value());
  REQUIRE(*prompt == std::vector<int32_t>{1});
  Request request;
  request.prompt = *prompt;
  request.sampling.temperature = 0;
  request.stop.max_tokens = static_cast<int32_t>(steps);
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

TEST_CASE("a trained model generates its greedy text from every form") {
  for (const Trained& m : trained_models()) {
    for (const std::string& path : {m.gguf, m.bin}) {
      INFO(path);
      CHECK(trimmed(greedy(path, story_options(m.context), m.steps)) == trimmed(m.text));
    }
    auto reference = story_options(m.context);
    reference.reference = true;
    CHECK(trimmed(greedy(m.gguf, reference, m.steps)) == trimmed(m.text));
  }
}

TEST_CASE("a trained model has the logits of an independent run") {
  for (const Trained& m : trained_models()) {
    INFO(m.bin);
    const auto golden = parse_json(oar_test::read_file(m.golden), "golden");
    REQUIRE_OK(golden);
    std::vector<int32_t> tokens;
    for (const auto& v : golden->at("greedy_ids").as_array())
      tokens.push_back(static_cast<int32_t>(v.as_int64()));
    auto options = story_options(m.context);
    options.max_batch_tokens = options.max_sequences = 256;
    oar_test::RunnerFixture model(m.bin, options);
    tokens.resize(std::min<size_t>(tokens.size(), 121));
    const auto logits = model.run({{tokens, 0, model.blocks(tokens.size()), true}});
    size_t compared = 0;
    for (const auto& entry : golden->at("logits_top5").as_array()) {
      const auto pos = static_cast<size_t>(entry.at("pos").as_int64());
      REQUIRE(pos < tokens.size());
      for (const auto& pair : entry.at("top5").as_array()) {
        const auto id = static_cast<size_t>(pair.at(0).as_int64());
        CHECK(std::abs(logits[pos * 512 + id] - pair.at(1).to_number<double>()) < 1e-3);
        ++compared;
      }
    }
    CHECK(compared >= 15);
  }
}
