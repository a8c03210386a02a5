// Models with recurrent states, and with a latent, through the C interface: where states are kept and which
// form attention has is asked for, and shows in what a prompt that begins alike finds.
#include <string>
#include <vector>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;

Answer ask(oar_model model, const std::vector<int32_t>& prompt, int64_t tokens = 8) {
  const oar_sampling s = greedy(tokens);
  oar_generation g = 0;
  REQUIRE(oar_generate_tokens(model, prompt.data(), prompt.size(), &s, nullptr, nullptr, &g) == OAR_OK);
  Answer a = drain(g);
  CHECK(a.finish == OAR_FINISH_LENGTH);
  CHECK(oar_generation_close(g) == OAR_OK);
  return a;
}

}  // namespace

TEST_CASE("snapshots of recurrent states are kept as asked") {
  const TinyGolden golden = load_tiny_golden("mamba2-long");
  const std::string folder = write_lettered_model(golden, TinyDtype::f32);
  std::vector<int32_t> prompt = golden.tokens;  // 150: two borders
  std::vector<int32_t> other(prompt.begin(), prompt.begin() + 100);
  other.back() ^= 1;
  for (const int64_t every : {int64_t{0}, int64_t{64}}) {
    oar_model_options o = small_options();
    o.state_snapshots = 1 << 20;
    o.snapshot_tokens = every;
    oar_model model = 0;
    const oar_status loaded = oar_model_load(folder.c_str(), &o, &model);
    INFO(oar_last_error());
    REQUIRE(loaded == OAR_OK);
    const Answer first = ask(model, prompt), again = ask(model, prompt);
    CHECK(first.cached_tokens == 0);
    CHECK(again.cached_tokens == 128);  // the prompt's last border
    CHECK(again.tokens == first.tokens);
    // What begins alike for 99 tokens goes on from 64 where every 64 tokens are kept.
    CHECK(ask(model, other).cached_tokens == every);
    CHECK(oar_model_close(model) == OAR_OK);
  }
}

// Only in the expanded form do pages know which of their tokens were generated.
TEST_CASE("attention over a latent has the form that was asked for") {
  const TinyGolden golden = load_tiny_golden("deepseek-v3");
  const std::string folder = write_lettered_model(golden, TinyDtype::f32);
  std::vector<int32_t> prompt;
  for (int32_t k = 0; k < 70; ++k) prompt.push_back('!' + k);
  std::vector<int32_t> absorbed;
  for (const char* form : {static_cast<const char*>(nullptr), "absorbed", "expanded"}) {
    oar_model_options o = small_options();
    o.mla = form;
    oar_model model = 0;
    const oar_status loaded = oar_model_load(folder.c_str(), &o, &model);
    INFO(oar_last_error());
    REQUIRE(loaded == OAR_OK);
    const Answer first = ask(model, prompt, 70), again = ask(model, prompt, 70);
    CHECK(again.cached_tokens == 64);
    CHECK(again.tokens == first.tokens);
    std::vector<int32_t> next = prompt;
    next.insert(next.end(), first.tokens.begin(), first.tokens.end());
    const bool expanded = form != nullptr && std::string(form) == "expanded";
    CHECK(ask(model, next).cached_tokens == (expanded ? 64 : 128));
    if (form == nullptr) absorbed = first.tokens;
    else if (!expanded) CHECK(first.tokens == absorbed);
    CHECK(oar_model_close(model) == OAR_OK);
  }
}

TEST_CASE("a model with recurrent layers drafts") {
  const TinyGolden golden = load_tiny_golden("mamba2-long");
  const std::string folder = write_lettered_model(golden, TinyDtype::f32);
  std::vector<int32_t> texts[2];
  for (const bool drafted : {false, true}) {
    oar_model_options o = small_options();
    if (drafted) {
      o.speculative = "draft";
      o.draft_model = folder.c_str();
    }
    oar_model model = 0;
    const oar_status loaded = oar_model_load(folder.c_str(), &o, &model);
    INFO(oar_last_error());
    REQUIRE(loaded == OAR_OK);
    texts[drafted] = ask(model, golden.tokens, 70).tokens;
    oar_model_stats stats;
    CHECK(oar_model_get_stats(model, &stats, sizeof stats) == OAR_OK);
    CHECK(stats.rejected_prediction_tokens == 0);
    if (drafted) CHECK(stats.accepted_prediction_tokens > 0);
    CHECK(oar_model_close(model) == OAR_OK);
  }
  CHECK(texts[0] == texts[1]);
}
