// Tokens drawn on the device against the processor's sampler: the same tokens, log-probabilities and refusals
// to the bit, whatever is asked for.
#include <cmath>
#include <limits>

#include "engine/base/random.h"
#include "engine/runtime/core/sampler.h"
#include "kernels/cuda/sampling.h"
#include "tests/cuda/on_device.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kSizes[] = {1, 2, 7, 33, 255, 257, 512, 1001};

// Numbers of one seed, each asked for once.
class Chance {
 public:
  explicit Chance(uint64_t seed) : seed_(seed) {}
  double real() { return uniform(seed_ ^ 0x5eed, n_++); }
  int64_t below(int64_t range) { return static_cast<int64_t>(real() * static_cast<double>(range)); }
  bool one_in(int64_t n) { return below(n) == 0; }

 private:
  uint64_t seed_, n_ = 0;
};

std::vector<float> row_of_logits(Chance& chance, int64_t vocab) {
  std::vector<float> row(static_cast<size_t>(vocab));
  const double scale = 0.5 + static_cast<double>(chance.below(6));
  for (float& l : row) {
    const double u = chance.real() + 1e-12, v = chance.real();
    l = static_cast<float>(scale * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  if (chance.one_in(3))
    for (float& l : row) l = std::round(l);  // ties, and zeros of both signs
  if (chance.one_in(4))
    for (float& l : row) l = chance.one_in(2) ? -kInf : l;
  if (chance.one_in(12)) row[static_cast<size_t>(chance.below(vocab))] = chance.one_in(2) ? NAN : kInf;
  if (chance.one_in(30)) std::fill(row.begin(), row.end(), -kInf);
  return row;
}

SamplingParams parameters(Chance& chance, int64_t vocab) {
  SamplingParams p;
  p.temperature = chance.one_in(5) ? 0.f : static_cast<float>(0.05 + 2 * chance.real());
  if (chance.one_in(2)) p.top_k = static_cast<int32_t>(chance.below(vocab + 2));
  if (chance.one_in(2)) p.top_p = static_cast<float>(0.01 + 0.98 * chance.real());
  if (chance.one_in(3)) p.min_p = static_cast<float>(chance.real());
  if (chance.one_in(3)) p.repetition_penalty = 1.3f;
  if (chance.one_in(3)) p.presence_penalty = 0.7f;
  if (chance.one_in(3)) p.frequency_penalty = -0.4f;
  if (chance.one_in(3)) {
    const auto token = static_cast<int32_t>(chance.below(vocab));
    p.logit_bias = {{token, 2.5f}, {0, -1.f}, {token, 0.3f}};  // one token twice
  }
  if (chance.one_in(20)) p.logit_bias = {{static_cast<int32_t>(chance.below(vocab)), 3e38f}, {0, 3e38f}};
  if (chance.one_in(3)) p.logprobs = static_cast<int32_t>(chance.below(std::min<int64_t>(vocab + 2, 6)));
  return p;
}

// A step: rows of logits, what is asked of them, and all that the spec points to.
struct Asked {
  int64_t vocab;
  std::vector<float> logits;
  std::vector<SamplingParams> params;
  std::vector<SamplerState> states;
  std::vector<std::vector<int32_t>> drafts, banned;
  std::vector<std::vector<uint32_t>> masks;
  SampleSpec spec;

  Asked(uint64_t seed, int64_t v, size_t chains, bool with_drafts) : vocab(v) {
    Chance chance(seed);
    params.resize(chains), states.resize(chains), drafts.resize(chains), banned.resize(chains);
    masks.resize(chains);
    spec.mask_words = static_cast<size_t>((v + 31) / 32);
    const auto any = [&] { return static_cast<int32_t>(chance.below(v)); };
    int32_t rows = 0;
    for (size_t i = 0; i < chains; ++i) {
      params[i] = parameters(chance, v);
      std::vector<int32_t> prompt(6);
      for (int32_t& t : prompt) t = any();
      states[i].start(params[i], seed + i, prompt, 64);
      const auto counter = static_cast<int64_t>(i % 3);
      for (int64_t k = 0; k < counter; ++k) states[i].observe(any());
      const int64_t others = with_drafts ? chance.below(4) : 0;
      for (int64_t k = 0; k <= others; ++k) {
        const std::vector<float> row = row_of_logits(chance, v);
        logits.insert(logits.end(), row.begin(), row.end());
        // Mostly right, where the largest logit is drawn.
        const auto best = std::max_element(row.begin(), row.end()) - row.begin();
        if (k < others) drafts[i].push_back(chance.one_in(4) ? any() : static_cast<int32_t>(best));
      }
      SampleSpec::Chain chain;
      chain.params = chance.one_in(16) ? nullptr : &params[i];
      chain.state = &states[i];
      chain.counter = counter;
      chain.logit_row = rows;
      chain.drafts = drafts[i];
      if (chance.one_in(4)) {
        banned[i] = {any(), 0, any()};
        chain.banned = banned[i];
        chain.banned_before = counter + chance.below(3);
      } else if (chance.one_in(3)) {
        masks[i].resize(spec.mask_words * static_cast<size_t>(others + 1));
        const bool none = chance.one_in(6);
        for (uint32_t& w : masks[i]) w = none ? 0 : static_cast<uint32_t>(chance.below(int64_t{1} << 32));
        chain.masks = masks[i];
        chain.mask_field = "response_format";
      }
      spec.chains.push_back(chain);
      rows += static_cast<int32_t>(others) + 1;
    }
    for (int32_t r = 0; r < rows; ++r) {
      if (chance.one_in(4)) spec.prompt_rows.push_back({r, chance.one_in(5) ? -1 : any(), r % 4});
    }
  }
};

// Of these rows the most likely token is drawn, and nothing else is asked.
Asked with_rows(int64_t vocab, const std::vector<std::vector<float>>& rows) {
  Asked asked(0, vocab, 0, false);
  asked.params.resize(rows.size()), asked.states.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    asked.params[i].temperature = 0.f;
    asked.states[i].start(asked.params[i], 0, {}, 64);
    asked.logits.insert(asked.logits.end(), rows[i].begin(), rows[i].end());
    SampleSpec::Chain chain;
    chain.params = &asked.params[i];
    chain.state = &asked.states[i];
    chain.logit_row = static_cast<int32_t>(i);
    asked.spec.chains.push_back(chain);
  }
  return asked;
}

void launch_rows(const SampleRows& rows, int64_t vocab, const std::vector<float>& logits,
                 std::vector<SampleDraw>& draws, std::vector<SampleTop>& tops) {
  DeviceArray on_device(logits);
  DeviceCopy<SampleRow> asked({rows.rows().begin(), rows.rows().end()});
  DeviceCopy<int32_t> words({rows.words().begin(), rows.words().end()});
  DeviceCopy<SampleDraw> drawn(std::vector<SampleDraw>(rows.rows().size()));
  DeviceCopy<SampleTop> most(
      std::vector<SampleTop>(rows.rows().size() * static_cast<size_t>(rows.max_logprobs()) + 1));
  SampleArgs a;
  a.draws = drawn.data();
  a.tops = most.data();
  a.logits = on_device.data();
  a.rows = asked.data();
  a.words = words.data();
  a.num_rows = static_cast<int64_t>(rows.rows().size());
  a.V = vocab;
  a.max_logprobs = rows.max_logprobs();
  launch_on_device(KernelFamily::kSample, "f32", &a);
  draws = drawn.host();
  tops = most.host();
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }
bool same(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
  return std::ranges::equal(a, b, [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && same(x.logprob, y.logprob);
  });
}
bool same(const Status& a, const Status& b) {
  return a.code() == b.code() && a.message() == b.message() && a.param() == b.param();
}

void check_against_host(const Asked& asked) {
  SampleRows rows(asked.vocab);
  rows.make(asked.spec);
  std::vector<SampleDraw> draws;
  std::vector<SampleTop> tops;
  launch_rows(rows, asked.vocab, asked.logits, draws, tops);
  SampleResult got, want;
  rows.read(draws, tops, got);
  Sampler sampler(asked.vocab);
  SampleSpec spec = asked.spec;
  std::vector<SamplerState> states = asked.states;  // they count what is drawn
  for (size_t i = 0; i < states.size(); ++i) spec.chains[i].state = &states[i];
  sampler.draw(spec, asked.logits, want);
  CHECK(got.tokens == want.tokens);
  REQUIRE(got.chains.size() == want.chains.size());
  for (size_t i = 0; i < want.chains.size(); ++i) {
    INFO("chain " << i << " temperature " << asked.params[i].temperature << " top_k " << asked.params[i].top_k
                  << " top_p " << asked.params[i].top_p);
    CHECK(got.chains[i].count == want.chains[i].count);
    CHECK(same(got.chains[i].status, want.chains[i].status));
    const int32_t logprobs = asked.params[i].logprobs;
    for (int32_t k = 0; logprobs >= 0 && k < want.chains[i].count; ++k) {
      const auto at = static_cast<size_t>(want.chains[i].first + k);
      CHECK(same(got.draws[at].logprob, want.draws[at].logprob));
      CHECK(same(got.draws[at].top_logprobs, want.draws[at].top_logprobs));
    }
  }
  REQUIRE(got.prompt_rows.size() == want.prompt_rows.size());
  for (size_t i = 0; i < want.prompt_rows.size(); ++i) {
    CHECK(same(got.prompt_rows[i].status, want.prompt_rows[i].status));
    if (want.prompt_rows[i].status.ok())
      CHECK(same(got.prompt_rows[i].logprobs, want.prompt_rows[i].logprobs));
  }
}

}  // namespace

TEST_CASE("cuda: draws are the processor's, whatever is asked for", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (uint64_t seed = 0; seed < (kSlow ? 8 : is_emulated() ? 24 : 64); ++seed) {
    const int64_t vocab = kSizes[seed % std::size(kSizes)];
    INFO("seed " << seed << " vocabulary " << vocab);
    check_against_host(Asked(seed, vocab, 12, false));
  }
}

TEST_CASE("cuda: draws see a bad logit in any warp, and the last token that is banned", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<std::vector<float>> rows(8, std::vector<float>(256, 1.f));
  for (size_t w = 0; w < rows.size(); ++w) rows[w][32 * w + 31] = NAN;
  check_against_host(with_rows(256, rows));

  // The most likely token comes last of what is banned; where a NaN does, its place is behind all others.
  Asked few = with_rows(3, {{1.f, 2.f, 3.f}, {NAN, 2.f, 1.f}});
  few.banned = {{0, 2}, {0}};
  for (size_t i = 0; i < 2; ++i) {
    few.params[i].logprobs = 3;
    few.spec.chains[i].banned = few.banned[i];
    few.spec.chains[i].banned_before = 1;
  }
  check_against_host(few);
}

TEST_CASE("cuda: draws behind drafts are the processor's", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (uint64_t seed = 0; seed < (kSlow || is_emulated() ? 3 : 12); ++seed) {
    INFO("seed " << seed);
    check_against_host(Asked(seed + 1000, kSizes[3 + seed % 3], 10, true));
  }
}

TEST_CASE("cuda: draws from large vocabularies are the processor's", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  check_against_host(Asked(77, 32'768, kSlow ? 2 : 6, false));
  check_against_host(Asked(78, 50'257, kSlow ? 1 : 3, false));
}

TEST_CASE("cuda: draws of more rows than blocks", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  // Prompts' rows come last; so many draws that a block has two of them.
  check_against_host(Asked(5, 40, 2 * static_cast<size_t>(cuda::kSampleBlocks), false));
}

TEST_CASE("cuda: draws of a row do not depend on the others", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const Asked many(9, 257, 9, false);
  SampleRows rows(many.vocab);
  rows.make(many.spec);
  std::vector<SampleDraw> together, alone;
  std::vector<SampleTop> tops;
  launch_rows(rows, many.vocab, many.logits, together, tops);
  for (size_t i = 0; i < many.spec.chains.size(); ++i) {
    if (rows.first_row(i) < 0) continue;
    SampleSpec one;
    one.mask_words = many.spec.mask_words;
    one.chains = {many.spec.chains[i]};
    SampleRows single(many.vocab);
    single.make(one);
    launch_rows(single, many.vocab, many.logits, alone, tops);
    const SampleDraw& of_many = together[static_cast<size_t>(rows.first_row(i))];
    CHECK(alone[0].token == of_many.token);
    CHECK(alone[0].status == of_many.status);
    CHECK(alone[0].sum == of_many.sum);
  }
}

TEST_CASE("cuda: drawn tokens are fed to the next step", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<SampleDraw> draws(300);
  for (size_t r = 0; r < draws.size(); ++r) draws[r].token = static_cast<int32_t>(1000 + r);
  std::vector<int32_t> tokens(515), want;
  for (size_t t = 0; t < tokens.size(); ++t)
    tokens[t] = static_cast<int32_t>(t % 3 == 0 ? ~(t % draws.size()) : t);
  want = tokens;
  for (int32_t& t : want) t = t < 0 ? draws[static_cast<size_t>(~t)].token : t;
  DeviceCopy<SampleDraw> drawn(draws);
  DeviceCopy<int32_t> fed(tokens);
  FeedTokensArgs a;
  a.tokens = fed.data();
  a.draws = drawn.data();
  a.T = static_cast<int64_t>(tokens.size());
  launch_on_device(KernelFamily::kFeedTokens, "f32", &a);
  CHECK(fed.host() == want);
}
