// Every mix of what layers keep of a sequence: pages beside a convolution's rows (lfm2), beside the state of
// a delta rule (qwen3_5, and under mixtures qwen3-next), beside Mamba-2's in layers of their own (granite,
// nemotron) or in the same (falcon), states alone (mamba2), and latents, in every tier that keeps them and in
// both forms of their attention. For each what may not change a bit: where a prompt is cut, drafts rolled
// back over a border, a prefix found, a fork, preemption, whoever had the blocks before.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/models/served_fixture.h"
#include "tests/runtime/replay_drafter.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
using std::string_literals::operator""s;

// What is served: a golden, the tier of its pages, and the form of its attention over a latent.
struct Kept {
  std::string name, tier = "auto", mla = "absorbed";
  // Prompts have another form than generated tokens, and pages are known by both (decision 33).
  bool expanded() const { return mla == "expanded"; }
};

std::vector<Kept> hybrids() {
  std::vector<Kept> out;
  for (const char* name : {"lfm2-long", "qwen3_5-long", "qwen3-next", "mamba2-long", "falcon_h1-long",
                           "granitemoehybrid-long", "nemotron_h-long"})
    out.push_back({name});
  // States beside quantized pages, which have open and first pages of their own.
  out.insert(out.end(), {{"lfm2-long", "k8v4"},
                         {"qwen3_5-long", "int8"},
                         {"qwen3-next", "int4"},
                         {"falcon_h1-long", "k4v3"},
                         {"granitemoehybrid-long", "fp8"},
                         {"nemotron_h-long", "int4-mean"}});
  return out;
}

std::vector<Kept> latents() {
  std::vector<Kept> out = {{"deepseek-v3"}};
  for (const char* name : {"deepseek-v2", "glm4-moe-lite", "mistral4"})
    for (const char* tier : {"f32", "f16", "bf16", "int8", "fp8", "int4"})
      for (const char* mla : {"absorbed", "expanded"}) out.push_back({name, tier, mla});
  for (const char* name : {"deepseek-v3", "minicpm3"})
    for (const char* tier : {"auto", "int8", "int4"}) out.push_back({name, tier, "expanded"});
  return out;
}

// check(Kept) of all, or under a sanitizer of every so many hybrids and every 17th latent, which is prime to
// tiers and forms.
template <class F>
void for_each_kept(unsigned hybrid, F&& check) {
  Sample some(hybrid), others(17);
  const auto one = [&](const Kept& k) {
    INFO(k.name << " " << k.tier << " " << k.mla);
    check(k);
  };
  for (const Kept& k : hybrids())
    if (some.take()) one(k);
  for (const Kept& k : latents())
    if (others.take()) one(k);
}

constexpr size_t kTokens = 72;  // four borders of pages of 16 and one of 64

oar::LanguageModelOptions mixed_options(int32_t page, const Kept& kept = {}) {
  oar::LanguageModelOptions o;
  o.threads = 2;
  o.kv = kept.tier;
  o.mla = kept.mla;
  o.max_batch_tokens = o.max_sequences = 160;  // rows of logits too
  o.page_tokens = page;
  return o;
}

std::vector<int32_t> piece(const std::vector<int32_t>& all, size_t begin, size_t end) {
  return {all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(end)};
}

// So many rows of prompts, where that makes a difference.
int64_t prompts(const RunnerFixture& model, size_t rows) {
  return model.runner->limits().phases ? static_cast<int64_t>(rows) : 0;
}

// Logits of all rows, of a prompt in blocks from 20 on that comes in pieces ending at `ends`.
std::vector<float> piecewise(RunnerFixture& model, const std::vector<int32_t>& tokens,
                             const std::vector<size_t>& ends) {
  std::vector<float> out;
  const auto blocks = model.blocks(tokens.size(), 20);
  size_t at = 0;
  for (const size_t end : ends) {
    const auto part = model.run({{piece(tokens, at, end), static_cast<int32_t>(at), blocks, true}},
                                prompts(model, end - at));
    out.insert(out.end(), part.begin(), part.end());
    at = end;
  }
  return out;
}

Served serve(const Kept& kept, const std::string& path, int32_t blocks, bool prefix_cache,
             int64_t batch_tokens, std::shared_ptr<oar::Drafter> drafter = nullptr,
             const std::string& draft_model = {}) {
  return Served(path, kept.tier, blocks, prefix_cache, batch_tokens, std::move(drafter), draft_model,
                kept.mla);
}

// Replays, and counts the drafts whose rows lie on both sides of a page's border.
class BorderDrafter final : public ReplayDrafter {
 public:
  using ReplayDrafter::ReplayDrafter;
  int64_t over_borders = 0;

  void draft(const oar::Sequence& s, int64_t most, std::vector<int32_t>& out) override {
    const size_t before = out.size();
    ReplayDrafter::draft(s, most, out);
    const int64_t drafts = static_cast<int64_t>(out.size() - before), first = s.known();
    if (drafts > 0 && first / 16 != (first + drafts - 1) / 16) ++over_borders;
  }
};

}  // namespace

TEST_CASE(
    "mixed states: token by token, or cut at every border and one row about it, is the whole to the bit") {
  for_each_kept(5, [](const Kept& kept) {
    const std::string path = write_tiny_model(load_tiny_golden(kept.name), TinyDtype::f32);
    for (const int32_t page : {16, 64}) {
      if (page == 64 && kept.tier != "auto") continue;
      RunnerFixture model(path, mixed_options(page, kept));
      const auto tokens = prompt_of(3, kTokens, model.vocab());
      const std::vector<float> whole = model.run_prompt(tokens);
      INFO("pages of " << page);
      CHECK(std::ranges::all_of(whole, [](float v) { return std::isfinite(v); }));
      std::vector<size_t> single;
      for (size_t k = 1; k <= kTokens; ++k) single.push_back(k);
      CHECK((piecewise(model, tokens, single) == whole));
      const auto step = static_cast<size_t>(page);
      for (size_t border = step; border < kTokens; border += step)
        for (const size_t cut : {border - 1, border, border + 1})
          CHECK((piecewise(model, tokens, {cut, kTokens}) == whole));
    }
  });
}

// Rows behind a prompt are of generated tokens: the prompt's own rows, unless these have another form.
TEST_CASE("mixed states: drafts rolled back over a border leave nothing behind") {
  for_each_kept(1, [](const Kept& kept) {
    RunnerFixture model(write_tiny_model(load_tiny_golden(kept.name), TinyDtype::f32),
                        mixed_options(16, kept));
    const auto tokens = prompt_of(3, kTokens, model.vocab());
    const std::vector<float> whole = model.run_prompt(tokens);
    // So many rows kept, then five of which one is; the border at 32 or at 48 is among, before or behind
    // them.
    for (const size_t kept_rows : {28, 31, 32, 46, 47}) {
      const auto at = static_cast<int32_t>(kept_rows);
      const auto start = [&](int32_t block) {
        const auto blocks = model.blocks(kTokens, block);
        model.run({{piece(tokens, 0, kept_rows), 0, blocks, false}}, prompts(model, kept_rows));
        return blocks;
      };
      std::vector<float> want(whole.begin() + at * model.vocab(), whole.end());
      if (kept.expanded()) {
        const auto decoded = model.run({{piece(tokens, kept_rows, kTokens), at, start(0), true}});
        CHECK_FALSE((decoded == want));
        want = decoded;
      }
      const auto drafted = start(20);
      model.run({{{tokens[kept_rows], 7, 8, 9, 10}, at, drafted, false}});
      const auto rest = model.run({{piece(tokens, kept_rows + 1, kTokens), at + 1, drafted, true}});
      CHECK((rest == std::vector<float>(want.begin() + model.vocab(), want.end())));
    }
  });
}

// A token whose embedding is not a number makes all that its sequence keeps so.
TEST_CASE("mixed states: a NaN in one sequence's state reaches neither its neighbours nor who comes after") {
  for_each_kept(1, [](const Kept& kept) {
    auto checkpoint = oar::load_checkpoint(write_tiny_model(load_tiny_golden(kept.name), TinyDtype::f32));
    REQUIRE_OK(checkpoint);
    for (const char* table : {"model.embed_tokens.weight", "backbone.embeddings.weight"}) {
      const auto found = checkpoint->tensors.find(table);
      if (found == checkpoint->tensors.end()) continue;
      oar::Tensor own = oar::Tensor::allocate(found->second.shape(), oar::Format::f32()).value();
      std::ranges::copy(found->second.values<float>(), own.mutable_values<float>().begin());
      std::fill_n(own.mutable_values<float>().end() - own.shape()[1], own.shape()[1],
                  std::numeric_limits<float>::quiet_NaN());
      found->second = std::move(own);
    }
    RunnerFixture model(std::move(*checkpoint), mixed_options(16, kept));
    const auto V = static_cast<size_t>(model.vocab());
    // A head that is the table has a column of NaN: of the last token, which is left out.
    const auto known = [&](std::vector<float> logits) {
      for (size_t k = V - 1; k < logits.size(); k += V) logits[k] = 0;
      return logits;
    };
    const auto tokens = prompt_of(3, kTokens, model.vocab() - 1);
    auto poisoned = prompt_of(9, kTokens, model.vocab() - 1);
    poisoned[20] = static_cast<int32_t>(V - 1);
    const std::vector<float> clean = known(model.run_prompt(tokens));
    CHECK(std::ranges::all_of(clean, [](float v) { return std::isfinite(v); }));
    // Side by side, then in the blocks that the other had.
    const auto both = model.run(
        {{poisoned, 0, model.blocks(kTokens, 20), true}, {tokens, 0, model.blocks(kTokens, 0), true}},
        prompts(model, 2 * kTokens));
    CHECK(std::isnan(both[30 * V]));
    CHECK((known({both.begin() + static_cast<ptrdiff_t>(kTokens * V), both.end()}) == clean));
    CHECK((known(piecewise(model, tokens, {kTokens})) == clean));
    model.run({{poisoned, 0, model.blocks(kTokens, 20), false}}, prompts(model, kTokens));
    CHECK((known(piecewise(model, tokens, {1, 17, 33, kTokens})) == clean));
  });
}

TEST_CASE("mixed states: prefix hit equals miss, choices equal requests, preempted equals uninterrupted") {
  for_each_kept(5, [](const Kept& kept) {
    const std::string path = served_path(kept.name);
    // States alone are as many whatever a text's length: they run short where all cross a border at once.
    const int32_t few = kept.name == "mamba2-long" ? 5 : 12;
    Served plain = serve(kept, path, 96, false, 160), cached = serve(kept, path, 96, true, 48),
           tight = serve(kept, path, few, true, 48);
    const auto prompt = prompt_of(3, 75, plain.vocab);
    auto longer = prompt;
    for (const int32_t t : prompt_of(4, 20, plain.vocab)) longer.push_back(t);
    const Text want = text_of(*plain.submit(prompt, 20)), want_longer = text_of(*plain.submit(longer, 12));
    const Text miss = text_of(*cached.submit(prompt, 20)), hit = text_of(*cached.submit(prompt, 20)),
               continued = text_of(*cached.submit(longer, 12));
    CHECK(miss.cached == 0);
    CHECK(hit.cached == 64);  // the prompt's last border
    CHECK(continued.cached >= 64);
    CHECK((miss == want));
    CHECK((hit == want));
    CHECK((continued == want_longer));
    // The answer in the next prompt: found up to its last border, or known as generated, and none is taken.
    auto next = prompt;
    next.insert(next.end(), want.tokens.begin(), want.tokens.end());
    const Text turn = text_of(*cached.submit(next, 12));
    CHECK(turn.cached == (kept.expanded() ? 64 : 80));
    CHECK((turn == text_of(*plain.submit(next, 12))));
    // Four choices that share a prompt, where there is room for all and where there is none.
    const auto many = cached.submit(prompt_of(50, 41, plain.vocab), 60, 4, 500),
               crowded = tight.submit(prompt_of(50, 41, plain.vocab), 60, 4, 500);
    int64_t preemptions = 0;
    for (size_t i = 0; i < 4; ++i) {
      const Text alone = text_of(*plain.submit(prompt_of(50, 41, plain.vocab), 60, 1, 500 + i));
      const Text pressed = text_of(*crowded, i);
      CHECK((text_of(*many, i) == alone));
      CHECK((pressed == alone));
      preemptions += pressed.preemptions;
    }
    CHECK(preemptions > 0);
  });
}

// Where that is asked for, what was generated is found in a prompt as well, whatever its form (decision 33).
TEST_CASE("mixed states: mixed prefixes take an answer's pages into a prompt of the expanded form") {
  for (const bool mixed : {false, true}) {
    auto o = mixed_options(16, {"deepseek-v2", "int8", "expanded"});
    o.max_sequences = 4;
    o.max_context = 192;
    Served cached(served_path("deepseek-v2"), o, 96, mixed);
    auto prompt = prompt_of(3, 75, cached.vocab);
    const Text answer = text_of(*cached.submit(prompt, 20));
    CHECK(text_of(*cached.submit(prompt, 20)).cached == 64);
    prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
    CHECK(text_of(*cached.submit(prompt, 12)).cached == (mixed ? 80 : 64));
  }
}

// Drafts of a recorded text that are right at 0.7, and of prompt lookup in prompts that repeat themselves.
TEST_CASE("mixed states: verified drafts equal decoding one by one, over borders") {
  uint64_t accepted = 0, rejected = 0, looked_up = 0, not_said = 0;
  int64_t over_borders = 0;
  for_each_kept(5, [&](const Kept& kept) {
    const std::string path = served_path(kept.name);
    Served plain = serve(kept, path, 96, false, 160);
    const auto repeating = [&](uint64_t i) {
      const auto part = prompt_of(i, 7, plain.vocab);
      std::vector<int32_t> out;
      for (int k = 0; k < 4; ++k) out.insert(out.end(), part.begin(), part.end());
      return out;
    };
    const auto submit = [&](Served& s, uint64_t i, const std::vector<int32_t>& prompt) {
      oar::SamplingParams sampling;
      if (i % 2 == 1) sampling.temperature = 0;
      return s.submit(prompt, 40, 1, 1000 * (i + 1), sampling);
    };
    auto replay = std::make_shared<BorderDrafter>(0.7, static_cast<int32_t>(plain.vocab));
    const auto verify = [&](const std::shared_ptr<oar::Drafter>& drafter, const auto& prompt) {
      std::vector<Text> want;
      for (uint64_t i = 0; i < 2; ++i) {
        want.push_back(text_of(*submit(plain, i, prompt(i))));
        replay->record(1000 * (i + 1), want.back().tokens);
      }
      Served drafted = serve(kept, path, 96, true, 160, drafter);
      std::vector<std::shared_ptr<CollectSink>> sinks;
      for (uint64_t i = 0; i < 2; ++i) sinks.push_back(submit(drafted, i, prompt(i)));
      for (size_t i = 0; i < sinks.size(); ++i) CHECK((text_of(*sinks[i]) == want[i]));
      return drafted.engine->stats();
    };
    const auto replayed = verify(replay, [&](uint64_t i) { return prompt_of(i, 10 + 9 * i, plain.vocab); });
    const auto looked = verify(std::make_shared<oar::PromptLookup>(1, 3), repeating);
    accepted += replayed.accepted_drafts;
    rejected += replayed.rejected_drafts;
    over_borders += replay->over_borders;
    looked_up += looked.accepted_drafts;
    not_said += looked.rejected_drafts;
  });
  CHECK(accepted > 20);
  CHECK(rejected > 20);
  CHECK(over_borders > 5);
  CHECK(looked_up > 0);
  CHECK(not_said > 20);
}

// Groups of the target and of the model that drafts, in one block manager.
TEST_CASE(
    "mixed states: a draft model of any kind changes no text, and one that is its target is always right") {
  Sample sample(5);
  uint64_t accepted = 0, rejected = 0;
  for (const Kept& kept :
       {Kept{"qwen3_5-long"}, Kept{"granitemoehybrid-long"}, Kept{"mamba2-long"}, Kept{"lfm2-long", "int8"},
        Kept{"deepseek-v2", "int4"}, Kept{"mistral4", "int8", "expanded"}, Kept{"llama3"}}) {
    const std::string path = served_path(kept.name);
    Served plain = serve(kept, path, 96, false, 160);
    std::vector<Text> want;
    const auto prompt = [&](uint64_t i) { return prompt_of(i, 10 + 9 * i, plain.vocab); };
    for (uint64_t i = 0; i < 3; ++i) want.push_back(text_of(*plain.submit(prompt(i), 60, 1, 1000 * (i + 1))));
    for (const std::string& draft : {kept.name, "llama3"s, "deepseek-v2"s, "qwen3_5-long"s}) {
      if (!sample.take()) continue;
      INFO(kept.name << " " << kept.tier << " " << kept.mla << ", drafted by " << draft);
      // Pages enough for two of them.
      Served drafted = serve(kept, path, 12, true, 160, nullptr, served_path(draft));
      std::vector<std::shared_ptr<CollectSink>> sinks;
      for (uint64_t i = 0; i < 3; ++i) sinks.push_back(drafted.submit(prompt(i), 60, 1, 1000 * (i + 1)));
      for (size_t i = 0; i < sinks.size(); ++i) CHECK((text_of(*sinks[i]) == want[i]));
      const auto stats = drafted.engine->stats();
      // Logits equal to the bit give equal draws: wherever it stands, the draft model's state is right.
      if (draft == kept.name && kept.tier == "auto") {
        CHECK(stats.accepted_drafts > 50);
        CHECK(stats.rejected_drafts == 0);
      }
      accepted += stats.accepted_drafts;
      rejected += stats.rejected_drafts;
    }
  }
  CHECK(accepted > 10);
  CHECK(rejected > 10);
}

TEST_CASE("mixed states: requests cancelled at any point free what they hold and change no other") {
  for_each_kept(5, [](const Kept& kept) {
    const std::string path = served_path(kept.name);
    Served plain = serve(kept, path, 96, false, 160), busy = serve(kept, path, 40, true, 48);
    const Text want = text_of(*plain.submit(prompt_of(3, 40, plain.vocab), 60));
    const auto going = busy.submit(prompt_of(3, 40, plain.vocab), 60);
    // While their prompts are computed, at their first token, and about borders.
    for (const size_t tokens : {0, 1, 7, 8, 9, 23}) {
      oar::Request r;
      r.prompt = prompt_of(70 + tokens, 40, plain.vocab);
      r.n = 2;
      r.stop.max_tokens = 150;
      const auto sink = std::make_shared<CollectSink>(2);
      r.sink = sink;
      const auto id = busy.engine->submit(std::move(r));
      REQUIRE_OK(id);
      if (tokens > 0) REQUIRE(sink->wait_tokens(tokens, std::chrono::seconds(60)));
      busy.engine->cancel(*id);
      REQUIRE(sink->wait(std::chrono::seconds(60)));
      // Who is late on a busy machine finds the text whole.
      for (const auto& c : sink->choices)
        CHECK((c.finish == oar::FinishReason::kCancelled || c.tokens.size() == 150));
    }
    CHECK((text_of(*going) == want));
    CHECK((text_of(*busy.submit(prompt_of(3, 40, plain.vocab), 60)) == want));
    CHECK(busy.engine->drain(std::chrono::seconds(60)));
    CHECK(busy.engine->stats().blocks_used == 0);
  });
}

// A hybrid's next turn goes on from the state at the last border of the answer before it.
TEST_CASE("mixed states: a chat of ten turns behind 4,000 tokens computes its own and at most a page more") {
  Sample sample(3);
  for (const char* name : {"qwen3_5-long", "granitemoehybrid-long", "deepseek-v3"}) {
    if (!sample.take()) continue;
    INFO(name);
    auto o = mixed_options(64);
    o.max_batch_tokens = 512;
    o.max_sequences = 4;
    o.max_context = 5120;
    Served chat(served_path(name), o, 90);
    std::vector<int32_t> history = prompt_of(3, 4000, chat.vocab);
    const auto say = [&](const Text& answer) {
      history.insert(history.end(), answer.tokens.begin(), answer.tokens.end());
    };
    say(text_of(*chat.submit(history, 30)));
    for (uint64_t turn = 0; turn < 10; ++turn) {
      const auto before = static_cast<int64_t>(history.size());
      for (const int32_t t : prompt_of(100 + turn, 17 + 5 * turn, chat.vocab)) history.push_back(t);
      const Text answer = text_of(*chat.submit(history, 30));
      INFO("turn " << turn << " behind " << before);
      CHECK(answer.cached >= before - 64);
      say(answer);
    }
  }
}
