// Under what states and latents are found by prefix: never those of another adapter, of another load of the
// same one, of another tier, form or model. Beside each other in one process, over the same prompt.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/models/served_fixture.h"
#include "tests/models/tiny_adapter.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace json = oar::json;

// On every matrix behind attention and behind the feed-forward layers that are no mixtures.
std::string adapter_of(const TinyGolden& golden, uint64_t seed) {
  std::vector<TinyTensor> tensors;
  for (const TinyTensor& t : golden.tensors) {
    if (!t.name.ends_with("self_attn.o_proj.weight") && !t.name.ends_with("mlp.down_proj.weight")) continue;
    const std::string module = "base_model.model." + t.name.substr(0, t.name.size() - 7);
    tensors.push_back({module + ".lora_A.weight", {4, t.shape[1]}});
    tensors.push_back({module + ".lora_B.weight", {t.shape[0], 4}});
  }
  const json::object config{{"peft_type", "LORA"},
                            {"task_type", "CAUSAL_LM"},
                            {"r", 4},
                            {"lora_alpha", 16},
                            {"target_modules", json::array{"o_proj", "down_proj"}}};
  return write_adapter(oar::cat("state-keys-", golden.name, "-", seed), config, tensors, seed);
}

oar::LanguageModelOptions options_of(const char* tier, const char* mla) {
  oar::LanguageModelOptions o;
  o.threads = 2;
  o.kv = tier;
  o.mla = mla;
  o.max_batch_tokens = 48;
  o.max_sequences = 8;
  o.max_context = 192;
  o.page_tokens = 16;
  return o;
}

struct Case {
  const char *name, *tier = "auto", *mla = "absorbed";
};

}  // namespace

TEST_CASE("state keys: what one adapter's rows left is found under that adapter alone") {
  Sample sample(3);
  for (const Case& c : {Case{"qwen3_5-long"}, Case{"qwen3_5-long", "int8"}, Case{"qwen3-next"},
                        Case{"deepseek-v2", "int8"}, Case{"glm4-moe-lite"},
                        Case{"mistral4", "int4", "expanded"}, Case{"deepseek-v2", "fp8", "expanded"}}) {
    if (!sample.take()) continue;
    INFO(c.name << " " << c.tier << " " << c.mla);
    const TinyGolden golden = load_tiny_golden(c.name);
    auto o = options_of(c.tier, c.mla);
    o.max_loras = 2;
    Served s(served_path(c.name), o, 96);
    // The engine lets go of a request's slot just after its last token was delivered.
    const auto load = [&](const char* name, uint64_t seed) {
      const std::string folder = adapter_of(golden, seed);
      bool loaded = false;
      for (int i = 0; i < 5000 && !loaded; ++i) {
        loaded = s.adapters->load(name, folder).ok();
        if (!loaded) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      REQUIRE(loaded);
    };
    load("one", 2);
    load("two", 3);
    const auto prompt = prompt_of(3, 75, s.vocab);
    const auto ask = [&](const char* adapter) {
      return text_of(*s.submit(prompt, 20, 1, 11, {}, adapter ? s.adapters->find(adapter) : nullptr));
    };
    const Text plain = ask(nullptr), one = ask("one"), two = ask("two");
    for (const Text* t : {&plain, &one, &two}) CHECK(t->cached == 0);
    CHECK_FALSE((one == plain));
    CHECK_FALSE((one == two));
    for (const auto& [adapter, want] :
         {std::pair{"two", &two}, std::pair{static_cast<const char*>(nullptr), &plain},
          std::pair{"one", &one}}) {
      const Text again = ask(adapter);
      CHECK(again.cached == 64);
      CHECK((again == *want));
    }
    // Other numbers under the same name, in the same slot.
    REQUIRE_OK(s.adapters->unload("one"));
    load("one", 4);
    const Text other = ask("one");
    CHECK(other.cached == 0);
    CHECK_FALSE((other == one));
  }
}

TEST_CASE("state keys: engines of other tiers, forms and models find nothing of each other's") {
  for (const std::vector<Case>& cases :
       {std::vector<Case>{{"granitemoehybrid-long"}, {"granitemoehybrid-long", "int8"}, {"granitemoehybrid"}},
        std::vector<Case>{{"deepseek-v2"},
                          {"deepseek-v2", "int4"},
                          {"deepseek-v2", "auto", "expanded"},
                          {"deepseek-v3"}}}) {
    std::vector<Served> engines;
    for (const Case& c : cases) engines.emplace_back(served_path(c.name), options_of(c.tier, c.mla), 96);
    std::vector<Text> first;
    for (Served& s : engines) first.push_back(text_of(*s.submit(prompt_of(3, 75, 60), 20)));
    for (size_t i = 0; i < engines.size(); ++i) {
      INFO(cases[i].name << " " << cases[i].tier << " " << cases[i].mla);
      CHECK(first[i].cached == 0);
      if (i > 0) CHECK_FALSE((first[i] == first[0]));
      const Text again = text_of(*engines[i].submit(prompt_of(3, 75, 60), 20));
      CHECK(again.cached == 64);
      CHECK((again == first[i]));
    }
  }
}
