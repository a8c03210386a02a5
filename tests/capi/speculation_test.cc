// Speculation through the C interface: the switches arrive, and no text changes by them.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using oar_test::small_options;

struct Drawn {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  oar_finish finish = OAR_FINISH_NONE;
  int64_t completion = 0, accepted = 0, rejected = 0;
  bool operator==(const Drawn& o) const {  // the counters of drafts apart
    return text == o.text && tokens == o.tokens && logprobs == o.logprobs && finish == o.finish &&
           completion == o.completion;
  }
};

Drawn draw(oar_model model, const oar_sampling& sampling) {
  oar_generation g = 0;
  REQUIRE(oar_generate_text(model, "ROMEO:\nJULIET:\nROMEO:\nJULIET:\n", &sampling, nullptr, nullptr, &g) ==
          OAR_OK);
  Drawn out;
  const oar_event* e = nullptr;
  while (oar_generation_next(g, 60'000, &e) == OAR_OK && e != nullptr) {
    REQUIRE(e->struct_size >= sizeof(oar_event));
    out.text.append(e->text, e->text_length);
    out.tokens.insert(out.tokens.end(), e->tokens, e->tokens + e->token_count);
    out.logprobs.insert(out.logprobs.end(), e->logprobs, e->logprobs + e->token_count);
    if (e->finish == OAR_FINISH_NONE) continue;
    out.finish = e->finish;
    out.completion = e->completion_tokens;
    out.accepted = e->accepted_prediction_tokens;
    out.rejected = e->rejected_prediction_tokens;
  }
  CHECK(oar_generation_close(g) == OAR_OK);
  return out;
}

std::vector<Drawn> draw_all(oar_model model) {
  const int32_t again = 300;  // pulled up: text that repeats a token, as drafts expect, and breaks off
  std::vector<Drawn> out;
  for (int i = 0; i < 12; ++i) {
    oar_sampling s = oar_test::greedy(60);
    s.temperature = i % 3 == 0 ? 0.f : 1.f;
    s.has_seed = 1;
    s.seed = 100 + static_cast<uint64_t>(i);
    s.logprobs = 1;
    if (i % 4 == 3) s.frequency_penalty = 0.3f;
    const float pull = i % 2 == 0 ? 100.f : 12.f;
    s.bias_tokens = &again;
    s.bias_values = &pull;
    s.bias_count = i < 8 ? 1 : 0;
    out.push_back(draw(model, s));
  }
  // Masks: every verified row has one of its own, behind the drafts before it.
  for (const auto& [kind, text] : std::initializer_list<std::pair<oar_constraint, const char*>>{
           {OAR_CONSTRAINT_REGEX, "([A-Z][a-z]{2,6}, ){4}[A-Z][a-z]{2,6}\\."},
           {OAR_CONSTRAINT_JSON_SCHEMA,
            R"({"type":"array","items":{"type":"string","maxLength":8},"minItems":3,"maxItems":5})"}}) {
    for (const float temperature : {0.f, 1.f}) {
      oar_sampling s = oar_test::greedy(60);
      s.temperature = temperature;
      s.has_seed = 1;
      s.seed = 7;
      s.logprobs = 1;
      s.constraint_kind = kind;
      s.constraint = text;
      out.push_back(draw(model, s));
    }
  }
  return out;
}

oar_status try_load(const oar_model_options& o, oar_model* model) {
  return oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, model);
}

TEST_CASE("speculation: the same tokens, log-probabilities and ends, with drafts that were right") {
  const std::vector<Drawn> want = draw_all(oar_test::demo_model());
  // Tokens that a grammar forces are drafts of every model's where log-probabilities are asked for.
  for (size_t i = 0; i < 12; ++i) CHECK(want[i].accepted + want[i].rejected == 0);
  oar_model_options o = small_options();
  CHECK(o.speculative == nullptr);
  o.speculative = "ngram";
  o.prompt_lookup_min = 1;
  o.num_speculative_tokens = 4;
  oar_model model = 0;
  REQUIRE(try_load(o, &model) == OAR_OK);
  const std::vector<Drawn> got = draw_all(model);
  int64_t accepted = 0, rejected = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    INFO("request " << i << ": " << got[i].text);
    CHECK(got[i] == want[i]);
    CHECK(got[i].accepted <= got[i].completion);
    accepted += got[i].accepted;
    rejected += got[i].rejected;
  }
  CHECK(accepted > 0);
  oar_model_stats stats;
  REQUIRE(oar_model_get_stats(model, &stats, sizeof stats) == OAR_OK);
  CHECK(stats.accepted_prediction_tokens == static_cast<uint64_t>(accepted));
  CHECK(stats.rejected_prediction_tokens == static_cast<uint64_t>(rejected));
  CHECK(oar_model_close(model) == OAR_OK);

  o.struct_size = offsetof(oar_model_options, speculative);  // a caller whose header is older
  REQUIRE(try_load(o, &model) == OAR_OK);
  CHECK(draw_all(model)[0].accepted == 0);
  CHECK(oar_model_close(model) == OAR_OK);
}

// The default model with its first layer alone: the same tokenizer, other opinions.
std::string first_layer() {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(oar_test::temp_dir()) / "capi-draft";
  fs::create_directories(folder);
  fs::copy(OAR_SOURCE_DIR "/configs/demo", folder,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  std::string config = oar_test::read_file((folder / "config.json").string());
  constexpr std::string_view kLayers = "\"num_hidden_layers\": 6";
  const size_t at = config.find(kLayers);
  REQUIRE(at != std::string::npos);
  config.replace(at, kLayers.size(), "\"num_hidden_layers\": 1");
  std::ofstream(folder / "config.json", std::ios::trunc) << config;
  return folder.string();
}

TEST_CASE("speculation: a draft model changes no text, with masks and without") {
  const std::vector<Drawn> want = draw_all(oar_test::demo_model());
  const std::string equal = OAR_SOURCE_DIR "/configs/demo", other = first_layer();
  for (const std::string& draft : {equal, other}) {
    INFO(draft);
    oar_model_options o = small_options();
    o.speculative = "draft";
    o.draft_model = draft.c_str();
    o.num_speculative_tokens = 3;
    oar_model model = 0;
    REQUIRE(try_load(o, &model) == OAR_OK);
    const std::vector<Drawn> got = draw_all(model);
    int64_t accepted = 0, rejected = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      INFO("request " << i << ": " << got[i].text);
      CHECK(got[i] == want[i]);
      // Of one mind but where a grammar ends the text before all drafts are drawn, and where a penalty counts
      // tokens of the same chain, which drafts do not.
      if (draft == equal && i < 12 && i % 4 != 3) CHECK(got[i].rejected == 0);
      accepted += got[i].accepted;
      rejected += got[i].rejected;
    }
    // How many are verified hangs on what steps take: not none, as the first are tried on any machine.
    CHECK(accepted + rejected > 0);
    CHECK(oar_model_close(model) == OAR_OK);
  }
}

TEST_CASE("speculation: draft models that cannot be are refused by name") {
  const auto refused = [](const char* speculative, const char* draft, const char* said) {
    oar_model_options o = small_options();
    o.speculative = speculative;
    o.draft_model = draft;
    oar_model model = 1;
    CHECK(try_load(o, &model) != OAR_OK);
    CHECK(model == 0);
    INFO(oar_last_error());
    CHECK(std::string(oar_last_error()).find(said) != std::string::npos);
  };
  refused("draft", nullptr, "draft_model is missing");
  refused("draft", "", "draft_model is missing");
  refused("ngram", "demo", "only \"draft\" has one");
  refused("draft", "/nonexistent/model", "/nonexistent/model");
}

TEST_CASE("speculation: switches out of range are refused by name") {
  const auto refused = [](const char* param, auto change) {
    oar_model_options o = small_options();
    o.speculative = "ngram";
    change(o);
    oar_model model = 1;
    CHECK(try_load(o, &model) == OAR_INVALID_ARGUMENT);
    CHECK(model == 0);
    CHECK(std::string(oar_last_error_param()) == param);
  };
  refused("speculative", [](oar_model_options& o) { o.speculative = "medusa"; });
  refused("speculative", [](oar_model_options& o) { o.speculative = ""; });
  for (const int32_t n : {-1, 65}) {
    refused("num_speculative_tokens", [n](oar_model_options& o) { o.num_speculative_tokens = n; });
    refused("prompt_lookup_min", [n](oar_model_options& o) { o.prompt_lookup_min = n; });
    refused("prompt_lookup_max", [n](oar_model_options& o) { o.prompt_lookup_max = n; });
  }
  refused("num_speculative_tokens",
          [](oar_model_options& o) { o.num_speculative_tokens = (int64_t{1} << 32) + 1; });
  refused("speculative", [](oar_model_options& o) { o.prompt_lookup_min = 5; });  // the maximum is 4
}

}  // namespace
