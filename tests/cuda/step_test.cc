// Steps of an engine whose device draws tokens: the texts of the one whose host does, in lockstep and one
// step ahead, alone and together, whatever is asked for.
#include "tests/cuda/device_engine.h"
#include "tests/runtime/replay_drafter.h"

namespace {
using namespace oar;
using namespace oar_test;

// Which tokens may follow is known once the last one is: two of three; behind some tokens a single one.
class LastSays final : public ConstraintCursor {
 public:
  explicit LastSays(int32_t vocab) : vocab_(vocab) {}
  bool advance(int32_t token) override {
    if (!allows(token)) return false;
    text_.push_back(token);
    return true;
  }
  void rollback(int64_t count) override { text_.resize(text_.size() - static_cast<size_t>(count)); }
  void mask(std::span<uint32_t> bits) override {
    std::ranges::fill(bits, 0u);
    for (int32_t t = 0; t < vocab_; ++t)
      if (allows(t)) bits[static_cast<size_t>(t / 32)] |= 1u << t % 32;
  }
  int32_t only() override { return last() % 5 == 4 ? (last() + 1) % vocab_ : -1; }
  bool may_end() const override { return false; }
  bool must_end() const override { return false; }
  std::unique_ptr<ConstraintCursor> fork() const override { return std::make_unique<LastSays>(*this); }

 private:
  int32_t last() const { return text_.empty() ? 0 : text_.back(); }
  bool allows(int32_t t) const {
    return last() % 5 == 4 ? t == (last() + 1) % vocab_ : (t + last()) % 3 != 0;
  }
  int32_t vocab_;
  std::vector<int32_t> text_;
};
class LastSaysAll final : public Constraint {
 public:
  explicit LastSaysAll(int64_t vocab) : vocab_(static_cast<int32_t>(vocab)) {}
  std::unique_ptr<ConstraintCursor> start() const override { return std::make_unique<LastSays>(vocab_); }

 private:
  int32_t vocab_;
};

struct Asked {
  std::vector<int32_t> prompt;
  int64_t max_tokens;
  SamplingParams sampling;
  int32_t n = 1;
  std::shared_ptr<const Constraint> constraint;
};

// Requests of every kind, more than there are slots.
std::vector<Asked> requests(int64_t vocab) {
  std::vector<Asked> out;
  for (size_t i = 0; i < 8; ++i) {
    Asked a{prompt_of(i / 2, 3 + 5 * i, vocab), static_cast<int64_t>(i == 1 ? 36 : 9 + i), {}};
    SamplingParams& p = a.sampling;
    p.seed = 100 + i;
    p.logprobs = i % 3 == 0 ? 2 : -1;
    p.temperature = i % 4 == 0 ? 0.f : 0.8f;
    if (i % 2 == 1) p.top_p = 0.9f;
    if (i % 3 == 1) p.top_k = 20;
    if (i % 5 == 2) p.min_p = 0.02f;
    if (i % 4 == 3) p.repetition_penalty = 1.2f, p.frequency_penalty = 0.3f;
    if (i == 5) p.logit_bias = {{7, 3.f}, {9, -100.f}};
    if (i == 1) a.n = 3;
    if (i == 6) p.prompt_logprobs = 1;
    if (i % 3 == 2) a.constraint = std::make_shared<LastSaysAll>(vocab);
    out.push_back(a);
  }
  return out;
}

// A choice's tokens and every log-probability that came with them or with its prompt.
struct Said {
  std::vector<int32_t> tokens, likely;
  std::vector<float> logprobs;
  bool operator==(const Said&) const = default;
};
Said said_by(CollectSink& sink, size_t choice) {
  Said out{text_of(sink, choice).tokens, {}, {}};
  const auto add = [&](const std::vector<TokenLogprob>& told) {
    for (const TokenLogprob& t : told) {
      out.likely.push_back(t.token);
      out.logprobs.push_back(t.logprob);
    }
  };
  for (const TokenEvent& e : sink.choices[choice].events) {
    for (const auto& told : e.prompt_logprobs) add(told);
    if (e.has_token) out.logprobs.push_back(e.logprob);
    add(e.top_logprobs);
  }
  return out;
}

// Few and short, each over a border of pages of 16, where a model is slow.
std::vector<Asked> few_requests(int64_t vocab) {
  std::vector<Asked> out;
  for (size_t i = 0; i < 3; ++i) {
    Asked a{prompt_of(i / 2, i == 2 ? 33 : 20 + i, vocab), 14, {}, i == 1 ? 2 : 1, {}};
    a.sampling.seed = 100 + 10 * i;
    a.sampling.temperature = i == 0 ? 0.f : 0.8f;
    a.sampling.logprobs = 1;
    out.push_back(a);
  }
  return out;
}

std::vector<Said> texts(DeviceEngine& engine, bool alone, const std::vector<Asked>& all) {
  std::vector<std::shared_ptr<CollectSink>> sinks;
  std::vector<Said> out;
  for (const Asked& a : all) {
    sinks.push_back(engine.submit(a.prompt, a.max_tokens, a.sampling, a.n, a.constraint));
    if (alone) REQUIRE(sinks.back()->wait(std::chrono::seconds(120)));
  }
  for (size_t i = 0; i < all.size(); ++i)
    for (int32_t c = 0; c < all[i].n; ++c) out.push_back(said_by(*sinks[i], static_cast<size_t>(c)));
  return out;
}
std::vector<Said> texts(DeviceEngine& engine, bool alone) {
  return texts(engine, alone, requests(engine.vocab));
}

// Drafts of the texts that `want` has for such requests, seven of ten right.
EngineOptions with_drafts(const std::vector<Said>& want, int64_t vocab, const std::vector<Asked>& all) {
  auto drafter = std::make_shared<ReplayDrafter>(0.7, static_cast<int32_t>(vocab));
  size_t text = 0;
  for (const Asked& a : all) {
    for (int32_t c = 0; c < a.n; ++c)
      drafter->record(*a.sampling.seed + static_cast<uint64_t>(c), want[text++].tokens);
  }
  EngineOptions out;
  out.speculative.drafter = drafter;
  out.speculative.max_tokens = 3;
  out.speculative.paced = false;
  return out;
}
EngineOptions with_drafts(const std::vector<Said>& want, int64_t vocab) {
  return with_drafts(want, vocab, requests(vocab));
}

}  // namespace

TEST_CASE("cuda: an engine whose device draws says what one says whose host does", "[cuda][models][bits]") {
  OAR_SKIP_WITHOUT_DEVICE();
  using Pair = std::pair<const char*, const char*>;
  bool first = true;
  for (const auto& [name, kv] :
       {Pair{"llama3", "bf16"}, {"mistral", "bf16"}, {"llama3", "int8"}, {"mixtral", "f32"}}) {
    INFO(name << " " << kv);
    const std::string path = served_path(name);
    // Alone, in lockstep, nothing padded or replayed.
    DeviceEngine host(path, kv, Draws::kHost);
    const std::vector<Said> want = texts(host, true);
    if (first) {
      DeviceEngine lockstep(path, kv, Draws::kLockstep);
      CHECK(texts(lockstep, false) == want);
      DeviceEngine ahead(path, kv, Draws::kOneAhead);
      CHECK(texts(ahead, true) == want);
      CHECK(texts(ahead, false) == want);
    }
    first = false;
    // A pool so small that sequences make way for others.
    DeviceEngine tight(path, kv, Draws::kOneAhead, 6);
    CHECK(texts(tight, false) == want);
    CHECK(tight.engine->stats().preemptions > 0);
  }
}

// Blocks of states and rows beside pages, and pages whose keys hold the values.
TEST_CASE("cuda: hybrids and latents say what they say alone: ahead, forked, preempted, drafted, found",
          "[cuda][models][bits]") {
  OAR_SKIP_WITHOUT_DEVICE();
  using Pair = std::pair<const char*, const char*>;
  uint64_t preemptions = 0, accepted = 0, hits = 0;
  for (const auto& [name, kv] :
       {Pair{"qwen3_5-long", "bf16"}, {"mamba2-long", "bf16"}, {"deepseek-v2", "int8"}}) {
    INFO(name << " " << kv);
    const std::string path = served_path(name);
    DeviceEngine host(path, kv, Draws::kHost);
    const std::vector<Asked> all = few_requests(host.vocab);
    const std::vector<Said> want = texts(host, true, all);
    DeviceEngine tight(path, kv, Draws::kOneAhead, 6);
    CHECK(texts(tight, false, all) == want);
    CHECK(texts(tight, true, all) == want);
    preemptions += tight.engine->stats().preemptions;
    hits += tight.engine->stats().prefix_hits;
    DeviceEngine drafted(path, kv, Draws::kLockstep, 64, with_drafts(want, host.vocab, all));
    CHECK(texts(drafted, false, all) == want);
    accepted += drafted.engine->stats().accepted_drafts;
  }
  CHECK(preemptions > 0);
  CHECK(accepted > 0);
  CHECK(hits > 0);
}

TEST_CASE("cuda: a prompt whose pages are kept says what it says without them", "[cuda][models][bits]") {
  OAR_SKIP_WITHOUT_DEVICE();
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [kv, by] : {Pair{"bf16", "none"}, {"int8", "none"}, {"bf16", "wgmma"}}) {
    INFO("cache " << kv << ", prompts by " << by);
    const WithLibraries with(by);
    const std::string path = served_path("llama3");
    EngineOptions forgets;
    forgets.prefix_cache = false;
    DeviceEngine without(path, kv, Draws::kOneAhead, 64, forgets), keeps(path, kv, Draws::kOneAhead);
    const std::vector<int32_t> prompt = prompt_of(3, 60, without.vocab);
    SamplingParams sampling;
    sampling.temperature = 0.8f;
    sampling.logprobs = 2;
    const auto say = [&](DeviceEngine& engine) {
      const auto sink = engine.submit(prompt, 12, sampling);
      REQUIRE(sink->wait(std::chrono::seconds(120)));
      return said_by(*sink, 0);
    };
    const Said miss = say(without);
    REQUIRE(miss.tokens.size() == 12);
    CHECK(say(keeps) == miss);
    CHECK(keeps.engine->stats().prefix_hits == 0);
    CHECK(say(keeps) == miss);
    CHECK(keeps.engine->stats().prefix_hits >= 48);  // three pages of 16
    CHECK(without.engine->stats().prefix_hits == 0);
  }
}

TEST_CASE("cuda: with mixed prefixes a prompt takes pages of an answer, which cost roundings alone",
          "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const WithLibraries with("wgmma");
  const std::string path = served_path("llama3");
  EngineOptions mixes;
  mixes.mixed_prefix = true;
  DeviceEngine apart(path, "bf16", Draws::kOneAhead);
  if (!apart.phases) OAR_SKIP("no products of warp groups here");
  DeviceEngine mixed(path, "bf16", Draws::kOneAhead, 64, mixes);
  // An answer of 36 tokens behind a prompt of 60, and both in front of the next question.
  const std::vector<int32_t> question = prompt_of(3, 60, apart.vocab), more = prompt_of(4, 9, apart.vocab);
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.logprobs = 1;
  const auto say = [&](DeviceEngine& engine, const std::vector<int32_t>& prompt, int64_t tokens) {
    const auto sink = engine.submit(prompt, tokens, sampling);
    REQUIRE(sink->wait(std::chrono::seconds(120)));
    return said_by(*sink, 0);
  };
  const Said answer = say(apart, question, 36);
  REQUIRE(say(mixed, question, 36) == answer);
  std::vector<int32_t> conversation = question;
  conversation.insert(conversation.end(), answer.tokens.begin(), answer.tokens.end());
  conversation.insert(conversation.end(), more.begin(), more.end());
  const Said exact = say(apart, conversation, 1), found = say(mixed, conversation, 1);
  CHECK(apart.engine->stats().prefix_hits == 48);  // the question's three pages of 16
  CHECK(mixed.engine->stats().prefix_hits == 80);  // and two of the answer
  REQUIRE(!exact.logprobs.empty());
  REQUIRE(!found.logprobs.empty());
  const double apart_by = std::fabs(static_cast<double>(found.logprobs[0]) - exact.logprobs[0]);
  CHECK(apart_by < 0.05);  // bf16 rounds rows of prompts by 2^-9 of a number
}

TEST_CASE("cuda: drafts change no text that the device draws", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string path = served_path("llama3");
  DeviceEngine host(path, "bf16", Draws::kHost);
  const std::vector<Said> want = texts(host, true);
  for (const Draws draws : {Draws::kLockstep, Draws::kOneAhead}) {
    DeviceEngine engine(path, "bf16", draws, 64, with_drafts(want, host.vocab));
    CHECK(texts(engine, false) == want);
  }
}

// Two ways to multiply: rows of prompts by warp groups, rows of generated tokens by our kernels for few.
TEST_CASE("cuda: where rows have phases no company, preemption, draft or found page changes a text",
          "[cuda][models][bits]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string path = served_path("llama3");
  const WithLibraries with("wgmma");
  EngineOptions uncached;
  uncached.prefix_cache = false;
  DeviceEngine miss(path, "bf16", Draws::kOneAhead, 64, uncached);
  if (!miss.phases) OAR_SKIP("no products of warp groups here");
  const std::vector<Said> want = texts(miss, true);
  CHECK(miss.engine->stats().prefix_hits == 0);
  DeviceEngine hit(path, "bf16", Draws::kOneAhead);
  CHECK(texts(hit, false) == want);
  CHECK(hit.engine->stats().prefix_hits > 0);
  DeviceEngine tight(path, "bf16", Draws::kOneAhead, 6, with_drafts(want, miss.vocab));
  CHECK(texts(tight, false) == want);
  CHECK(tight.engine->stats().preemptions > 0);
  CHECK(tight.engine->stats().accepted_drafts > 0);
}
