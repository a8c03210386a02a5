// The sampler against a plain double-precision reference that sorts everything, and its distribution against
// chance.
#include "engine/runtime/core/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "engine/base/json.h"
#include "engine/base/random.h"
#include "tests/runtime/fake_model.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(uint64_t seed, size_t n, double scale = 4) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    const double u = uniform(seed, 2 * i) + 1e-12, v = uniform(seed, 2 * i + 1);
    out[i] = static_cast<float>(scale * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  return out;
}

// Request.h's order of operations, written down once more with full sorts.
struct ReferenceDistribution {
  std::vector<double> weight;  // by token; 0: not kept
  bool near_border = false;    // a rounding could move a token across a border
};
ReferenceDistribution reference(std::vector<float> logits, const SamplingParams& p,
                                const std::vector<int32_t>& prompt, const std::vector<int32_t>& output,
                                const std::vector<int32_t>& banned) {
  std::map<int32_t, int> seen, produced;
  for (int32_t t : prompt) ++seen[t];
  for (int32_t t : output) ++seen[t], ++produced[t];
  for (auto [t, b] : p.logit_bias) logits[static_cast<size_t>(t)] += b;
  for (auto [t, count] : seen) {
    float& l = logits[static_cast<size_t>(t)];
    l = l > 0 ? l / p.repetition_penalty : l * p.repetition_penalty;
    if (produced.count(t)) l -= p.presence_penalty + p.frequency_penalty * static_cast<float>(produced[t]);
  }
  for (int32_t t : banned) logits[static_cast<size_t>(t)] = -kInf;
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  ReferenceDistribution d;
  d.weight.assign(logits.size(), 0.0);
  const double top = logits[order[0]];
  for (size_t i = 0; i < order.size(); ++i) {
    if (p.top_k > 0 && i >= static_cast<size_t>(p.top_k) &&
        logits[order[i]] < logits[order[static_cast<size_t>(p.top_k) - 1]])
      break;
    d.weight[order[i]] = std::exp((logits[order[i]] - top) / static_cast<double>(p.temperature));
  }
  if (p.top_p < 1) {
    const double total = std::accumulate(d.weight.begin(), d.weight.end(), 0.0);
    double sum = 0;
    for (size_t i : order) {
      if (std::abs(sum - static_cast<double>(p.top_p) * total) < 1e-6 * total) d.near_border = true;
      const double w = d.weight[i];
      if (sum >= static_cast<double>(p.top_p) * total) d.weight[i] = 0;
      sum += w;
    }
  }
  for (double& w : d.weight) {
    if (std::abs(w - static_cast<double>(p.min_p)) < 1e-9 && p.min_p > 0) d.near_border = true;
    if (w < static_cast<double>(p.min_p)) w = 0;
  }
  return d;
}

struct Drawn {
  Status status;
  Sampled sampled;
};
Drawn draw(const std::vector<float>& logits, const SamplingParams& p, uint64_t seed = 1, int64_t n = 0,
           const std::vector<int32_t>& prompt = {}, const std::vector<int32_t>& output = {},
           const std::vector<int32_t>& banned = {}, const std::vector<uint32_t>& mask = {}) {
  Sampler sampler(static_cast<int64_t>(logits.size()));
  SamplerState state;
  state.start(p, seed, prompt, 64);
  for (int32_t t : output) state.observe(t);
  Drawn d;
  d.status = sampler.sample(logits, p, state, n, {banned, mask, "response_format"}, d.sampled);
  return d;
}

SamplingParams greedy() {
  SamplingParams p;
  p.temperature = 0.f;
  return p;
}

}  // namespace

TEST_CASE("Philox gives the published known answers", "[sampler]") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t f = 0xffffffffu;
  CHECK(philox4x32({f, f, f, f}, {f, f}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("greedy takes the largest logit, ties to the lower id", "[sampler]") {
  CHECK(draw({1, 3, 2}, greedy()).sampled.token == 1);
  CHECK(draw({5, 7, 7, 7, 1}, greedy()).sampled.token == 1);
  CHECK(draw({-kInf, -kInf, -2}, greedy()).sampled.token == 2);
  CHECK(draw({4}, greedy()).sampled.token == 0);
  for (size_t v : {2u, 3u, 4u, 5u, 63u, 64u, 65u, 1000u}) {
    for (size_t at = 0; at < v; at += std::max<size_t>(1, v / 7)) {
      auto l = random_logits(v + at, v);
      l[at] = 100;
      CHECK(draw(l, greedy()).sampled.token == static_cast<int32_t>(at));
    }
  }
}

TEST_CASE("NaN and +inf fail with INTERNAL, wherever they stand", "[sampler]") {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInf}) {
    for (size_t at : {0u, 1u, 3u, 4u, 6u}) {
      std::vector<float> l(7, 0.f);
      l[at] = bad;
      SamplingParams random;
      for (const SamplingParams& p : {greedy(), random}) {
        const Status s = draw(l, p).status;
        CHECK(s.code() == StatusCode::kInternal);
        CHECK(s.message().find("NaN logits") != std::string::npos);
      }
    }
  }
  CHECK(draw(std::vector<float>(5, -kInf), greedy()).status.code() == StatusCode::kInternal);
  // Finite parameters never make a finite row fail.
  SamplingParams huge = greedy();
  huge.logit_bias = {{2, 3e38f}};
  const Drawn d = draw({0, 0, 3e38f, 1}, huge);
  REQUIRE_OK(d.status);
  CHECK(d.sampled.token == 2);
}

TEST_CASE("bias, penalties and bans, computed by hand", "[sampler]") {
  SamplingParams p = greedy();
  p.logit_bias = {{0, 5.f}};
  CHECK(draw({1, 3, 2}, p).sampled.token == 0);
  p = greedy();
  p.repetition_penalty = 2.f;
  CHECK(draw({1, 3, 2}, p, 1, 0, {1}).sampled.token == 2);     // 3 / 2 < 2, seen in the prompt
  CHECK(draw({-3, -2, -9}, p, 1, 0, {1}).sampled.token == 0);  // -2 * 2 < -3
  p = greedy();
  p.presence_penalty = 1.5f;
  CHECK(draw({1, 3, 2}, p, 1, 0, {1}).sampled.token == 1);               // the prompt does not count
  CHECK(draw({1, 3, 2}, p, 1, 1, {}, {1}).sampled.token == 2);           // 3 - 1.5 < 2
  CHECK(draw({1, 3, 1.4f}, p, 1, 3, {}, {1, 1, 1}).sampled.token == 1);  // presence counts once: 1.5 > 1.4
  p = greedy();
  p.frequency_penalty = 0.5f;
  CHECK(draw({1, 3, 1.6f}, p, 1, 3, {}, {1, 1, 1}).sampled.token == 2);  // 3 - 1.5 < 1.6
  CHECK(draw({1, 3, 2}, greedy(), 1, 0, {}, {}, {1}).sampled.token == 2);
  p = greedy();
  p.logit_bias = {{1, 1000.f}};
  CHECK(draw({1, 3, 2}, p, 1, 0, {}, {}, {1}).sampled.token == 2);  // a bias does not lift a ban
}

TEST_CASE("every draw is the reference's draw", "[sampler]") {
  constexpr int kSeeds = oar_test::kSlow ? 1500 : 6000;
  int skipped = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto pick = [&](uint64_t n, uint64_t range) {
      return static_cast<size_t>(uniform(seed ^ 0xabcdef, n) * static_cast<double>(range));
    };
    const size_t sizes[] = {1, 2, 7, 50, 300, 3000};
    const size_t v = sizes[pick(0, 6)];
    auto logits = random_logits(seed, v, 0.5 + static_cast<double>(pick(1, 6)));
    if (pick(2, 4) == 0)
      for (float& l : logits) l = std::round(l);  // many ties
    SamplingParams p;
    p.temperature = static_cast<float>(0.05 + 2 * uniform(seed, 1'000'003));
    if (pick(3, 2)) p.top_k = static_cast<int32_t>(pick(4, v + 2));
    if (pick(5, 2)) p.top_p = static_cast<float>(0.01 + 0.98 * uniform(seed, 1'000'004));
    if (pick(6, 3) == 0) p.min_p = static_cast<float>(uniform(seed, 1'000'005));
    if (pick(7, 3) == 0) p.repetition_penalty = 1.3f;
    if (pick(8, 3) == 0) p.presence_penalty = 0.7f;
    if (pick(9, 3) == 0) p.frequency_penalty = -0.4f;
    if (pick(10, 3) == 0) p.logit_bias = {{static_cast<int32_t>(pick(11, v)), 2.5f}, {0, -1.f}};
    std::vector<int32_t> prompt, output, banned;
    for (uint64_t i = 0; i < 6; ++i) prompt.push_back(static_cast<int32_t>(pick(20 + i, v)));
    for (uint64_t i = 0; i < 9; ++i) output.push_back(static_cast<int32_t>(pick(40 + i, v)));
    if (v > 2 && pick(12, 3) == 0) banned = {static_cast<int32_t>(pick(13, v)), 1};
    const Drawn got = draw(logits, p, seed, 9, prompt, output, banned);
    REQUIRE_OK(got.status);
    const auto want = reference(logits, p, prompt, output, banned);
    const double total = std::accumulate(want.weight.begin(), want.weight.end(), 0.0);
    const double target = uniform(seed, 9) * total;
    double sum = 0;
    int32_t token = -1;
    bool border = want.near_border;
    for (size_t i = 0; i < v; ++i) {
      sum += want.weight[i];
      // The sampler drops a tail of less than 2^-24 of the mass, which moves borders by as much.
      border |= std::abs(sum - target) < 2e-7 * total && want.weight[i] > 0;
      if (token < 0 && sum > target) token = static_cast<int32_t>(i);
    }
    if (border) {
      ++skipped;
      continue;
    }
    INFO("seed " << seed << " vocab " << v);
    REQUIRE(got.sampled.token == token);
  }
  CHECK(skipped < kSeeds / 60);
}

TEST_CASE("draws follow the distribution", "[sampler]") {
  struct Setting {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
  };
  const auto logits = random_logits(77, 40, 1.5);
  for (const Setting& s : {Setting{1, 0, 1, 0},
                           {0.7f, 0, 1, 0},
                           {1.5f, 10, 1, 0},
                           {1, 0, 0.8f, 0},
                           {1, 0, 1, 0.1f},
                           {1.2f, 20, 0.9f, 0.05f}}) {
    SamplingParams p;
    p.temperature = s.temperature;
    p.top_k = s.top_k;
    p.top_p = s.top_p;
    p.min_p = s.min_p;
    const auto want = reference(logits, p, {}, {}, {});
    const double total = std::accumulate(want.weight.begin(), want.weight.end(), 0.0);
    constexpr int kDraws = 40'000;
    std::vector<int> count(logits.size(), 0);
    Sampler sampler(40);
    SamplerState state;
    state.start(p, 4242, {}, 40);
    Sampled out;
    for (int i = 0; i < kDraws; ++i) {
      REQUIRE_OK(sampler.sample(logits, p, state, i, {}, out));
      ++count[static_cast<size_t>(out.token)];
    }
    double chi = 0;
    int freedom = -1;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = kDraws * want.weight[i] / total;
      if (want.weight[i] == 0) CHECK(count[i] == 0);
      if (expected < 5) continue;  // the usual rule for the statistic to be chi-square
      chi += (count[i] - expected) * (count[i] - expected) / expected;
      ++freedom;
    }
    // Wilson-Hilferty at 4 sigma: one failure in 30'000 if the seed were not fixed.
    const double k = freedom, bound = k * std::pow(1 - 2 / (9 * k) + 4 * std::sqrt(2 / (9 * k)), 3);
    INFO("temperature " << s.temperature << " top_k " << s.top_k << " chi2 " << chi << " of " << freedom);
    CHECK(chi < bound);
  }
}

TEST_CASE("a mask leaves what its bits say, as if all else were banned", "[sampler]") {
  for (size_t v : {7u, 32u, 33u, 200u, 1000u}) {
    const auto logits = random_logits(v, v);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<uint32_t> mask((v + 31) / 32, 0);
      std::vector<int32_t> banned;
      for (size_t t = 0; t < v; ++t) {
        const bool in =
            seed == 0 ? t == v - 1 : oar_test::mix(seed * 31 + t / (1 + 40 * (seed % 2))) % 3 == 0;
        if (in) mask[t / 32] |= uint32_t{1} << t % 32;
        else banned.push_back(static_cast<int32_t>(t));
      }
      if (banned.size() == v) continue;
      SamplingParams p;
      p.temperature = seed % 3 == 0 ? 0.f : 1.5f;
      p.logprobs = 2;
      if (seed % 4 == 1) p.repetition_penalty = 1.3f;
      const Drawn a = draw(logits, p, seed, 3, {1, 2, 3}, {2}, banned);
      const Drawn b = draw(logits, p, seed, 3, {1, 2, 3}, {2}, {}, mask);
      REQUIRE_OK(b.status);
      REQUIRE((mask[static_cast<size_t>(b.sampled.token) / 32] >> b.sampled.token % 32 & 1) == 1);
      CHECK(a.sampled.token == b.sampled.token);
      CHECK(a.sampled.logprob == b.sampled.logprob);  // of the raw logits
    }
  }
}

TEST_CASE("a position where nothing can be drawn is the caller's fault, by field", "[sampler]") {
  const std::vector<float> l(40, 0.f);
  std::vector<int32_t> all(40);
  std::iota(all.begin(), all.end(), 0);
  for (float temperature : {0.f, 1.f}) {
    SamplingParams p;
    p.temperature = temperature;
    const auto refused = [](const Drawn& d, const char* field) {
      CHECK(d.status.code() == StatusCode::kInvalidArgument);
      CHECK(d.status.param() == field);
      CHECK(d.status.message().rfind(std::string(field) + ": ", 0) == 0);
    };
    refused(draw(l, p, 1, 0, {}, {}, all), "min_tokens");
    refused(draw(l, p, 1, 0, {}, {}, {}, {0, 0}), "response_format");
    std::vector<float> one(40, -kInf);
    one[5] = 1.f;
    refused(draw(one, p, 1, 0, {}, {}, {}, {~uint32_t{32}, ~uint32_t{0}}), "response_format");
    CHECK(draw(one, p, 1, 0, {}, {}, {}, {32, 0}).sampled.token == 5);
    SamplingParams biased = p;
    std::vector<float> low(2, -3e38f);
    biased.logit_bias = {{0, -3e38f}, {1, -3e38f}};
    refused(draw(low, biased), "logit_bias");
  }
}

TEST_CASE("a draw depends on seed and position, not on what was drawn before", "[sampler]") {
  const auto logits = random_logits(5, 500);
  SamplingParams p;
  p.temperature = 2.f;
  std::vector<int32_t> forwards, backwards(50);
  for (int64_t n = 0; n < 50; ++n) forwards.push_back(draw(logits, p, 9, n).sampled.token);
  for (int64_t n = 49; n >= 0; --n) backwards[static_cast<size_t>(n)] = draw(logits, p, 9, n).sampled.token;
  CHECK(forwards == backwards);
  std::vector<int32_t> other;
  for (int64_t n = 0; n < 50; ++n) other.push_back(draw(logits, p, 10, n).sampled.token);
  CHECK(forwards != other);
}

TEST_CASE("top-p over a large vocabulary keeps exactly the reference's set", "[sampler]") {
  for (double scale : {0.1, 3.0}) {
    const auto logits = random_logits(123, 128'256, scale);
    SamplingParams p;
    p.top_p = 0.9f;
    const auto want = reference(logits, p, {}, {}, {});
    Sampler sampler(128'256);
    SamplerState state;
    state.start(p, 3, {}, 64);
    Sampled out;
    for (int64_t n = 0; n < 40; ++n) {
      REQUIRE_OK(sampler.sample(logits, p, state, n, {}, out));
      REQUIRE(want.weight[static_cast<size_t>(out.token)] > 0);
    }
  }
}

TEST_CASE("log-probabilities of what was drawn from, and of named tokens", "[sampler]") {
  const auto logits = random_logits(32, 500);
  SamplingParams p;
  p.temperature = 0.7f;
  p.top_k = 9;
  p.top_p = 0.9f;
  p.logit_bias = {{17, 9.f}};
  p.logprobs = 20;
  p.drawn_logprobs = true;
  std::vector<Sampler::Probability> wanted;
  Sampler sampler(500);
  SamplerState state;
  state.start(p, 1, {}, 64);
  REQUIRE_OK(sampler.distribution(logits, p, state, {}, wanted));
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const auto& a, const auto& b) { return a.probability > b.probability; });
  const Drawn d = draw(logits, p);
  REQUIRE_OK(d.status);
  REQUIRE(d.sampled.top_logprobs.size() == wanted.size());  // all that could be drawn
  double sum = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK(d.sampled.top_logprobs[i].token == wanted[i].token);
    const double share = std::exp(static_cast<double>(d.sampled.top_logprobs[i].logprob));
    CHECK(share == Approx(wanted[i].probability).epsilon(1e-5));
    if (wanted[i].token == d.sampled.token) CHECK(d.sampled.logprob == d.sampled.top_logprobs[i].logprob);
    sum += share;
  }
  CHECK(sum == Approx(1).epsilon(1e-5));
  p.logprobs = 2;
  CHECK(draw(logits, p).sampled.top_logprobs.size() == 2);
  p.temperature = 0;
  const Drawn greedy = draw(logits, p);
  CHECK(greedy.sampled.logprob == 0);
  REQUIRE(greedy.sampled.top_logprobs.size() == 1);
  CHECK(greedy.sampled.top_logprobs[0].token == greedy.sampled.token);

  SamplingParams named;
  named.temperature = 0;
  named.logprobs = 0;
  named.logprob_tokens = {400, 3, 400, greedy.sampled.token};
  const Drawn n = draw(logits, named);
  double all = 0;
  for (const float l : logits) all += std::exp(static_cast<double>(l));
  std::vector<int32_t> ids;
  for (const TokenLogprob& t : n.sampled.top_logprobs) {
    ids.push_back(t.token);
    CHECK(t.logprob == Approx(logits[static_cast<size_t>(t.token)] - std::log(all)).epsilon(1e-6));
  }
  std::vector<int32_t> expected{n.sampled.token, 400, 3};
  if (n.sampled.token != greedy.sampled.token) expected.push_back(greedy.sampled.token);
  CHECK(ids == expected);
  CHECK(n.sampled.logprob == n.sampled.top_logprobs[0].logprob);
}

TEST_CASE("log-probabilities are those of the raw logits", "[sampler]") {
  const auto logits = random_logits(31, 1000);
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l));
  SamplingParams p;
  p.temperature = 0.3f;
  p.top_k = 3;
  p.logit_bias = {{17, 9.f}};
  p.logprobs = 20;
  const Drawn d = draw(logits, p);
  REQUIRE_OK(d.status);
  CHECK(d.sampled.logprob ==
        Approx(logits[static_cast<size_t>(d.sampled.token)] - std::log(sum)).epsilon(1e-6));
  REQUIRE(d.sampled.top_logprobs.size() == 20);
  std::vector<int32_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < 20; ++i) {
    CHECK(d.sampled.top_logprobs[i].token == ids[i]);
    CHECK(d.sampled.top_logprobs[i].logprob ==
          Approx(logits[static_cast<size_t>(ids[i])] - std::log(sum)).epsilon(1e-6));
  }
  SamplingParams plain;
  plain.logprobs = 20;
  CHECK(draw({1, 1, 2}, plain).sampled.top_logprobs.size() == 3);  // no more than there are tokens
  p.logprobs = 0;
  CHECK(draw(logits, p).sampled.top_logprobs.empty());
  Sampler sampler(3);
  std::vector<TokenLogprob> out;
  REQUIRE_OK(sampler.logprobs(std::vector<float>{0, 0, 0}, 2, 2, out));
  REQUIRE(out.size() == 3);
  CHECK(out[0].token == 2);
  CHECK(out[1].token == 0);
  CHECK(out[2].token == 1);
  CHECK(out[0].logprob == Approx(-std::log(3.0)));
}

TEST_CASE("token counts agree with a map", "[sampler]") {
  for (size_t room : {0u, 4u, 1000u}) {
    TokenCounts counts;
    counts.reset(room);
    std::map<int32_t, int32_t> want;
    for (uint64_t i = 0; i < 3000; ++i) {
      const int32_t t = static_cast<int32_t>(oar_test::mix(i) % 700) * 1024;  // ids that share low bits
      const bool output = oar_test::mix(i + 1'000'000) % 2;
      counts.add(t, output);
      want[t] += output;
    }
    REQUIRE(counts.entries().size() == want.size());
    for (const auto& e : counts.entries()) REQUIRE(want.at(e.token) == e.output);
  }
}

// tests/golden/generate_sampling.py: what transformers' logits processors leave, in float64.
TEST_CASE("the distribution is the one of transformers' logits processors", "[sampler]") {
  auto parsed =
      parse_json(oar_test::read_file(oar_test::source_path("tests/golden/sampling.json")), "sampling.json");
  REQUIRE_OK(parsed);
  const json::object& root = parsed->as_object();
  size_t checked = 0;
  for (const json::value& item : root.at("cases").as_array()) {
    const json::object& c = item.as_object();
    std::vector<float> logits;
    for (const auto& x : root.at("vectors").at(c.at("vector").as_string()).as_array())
      logits.push_back(x.to_number<float>());
    SamplingParams p;
    const json::object& given = c.at("parameters").as_object();
    const auto set = [&](const char* name, auto& field) {
      if (const auto* v = given.if_contains(name)) field = v->to_number<std::decay_t<decltype(field)>>();
    };
    set("temperature", p.temperature);
    set("top_k", p.top_k);
    set("top_p", p.top_p);
    set("min_p", p.min_p);
    set("repetition_penalty", p.repetition_penalty);
    set("presence_penalty", p.presence_penalty);
    set("frequency_penalty", p.frequency_penalty);
    if (const auto* bias = given.if_contains("logit_bias"))
      for (const auto& [token, value] : bias->as_object())
        p.logit_bias.emplace_back(std::stoi(std::string(token)), value.to_number<float>());
    Sampler sampler(static_cast<int64_t>(logits.size()));
    SamplerState state;
    std::vector<int32_t> prompt;
    for (const auto& t : c.at("prompt").as_array()) prompt.push_back(t.to_number<int32_t>());
    state.start(p, 0, prompt, 64);
    for (const auto& t : c.at("output").as_array()) state.observe(t.to_number<int32_t>());
    std::vector<Sampler::Probability> got;
    REQUIRE_OK(sampler.distribution(logits, p, state, {}, got));
    INFO(json::serialize(given) << " on " << c.at("vector").as_string());
    std::map<int32_t, double> want;
    for (const auto& kept : c.at("kept").as_array())
      want[kept.at(0).to_number<int32_t>()] = std::exp(kept.at(1).to_number<double>());
    // Parameters are f32 here and f64 there: a relative error of 2^-24 in T moves z = l / T, |z| < 400,
    // by 2.4e-5.
    for (const auto& [token, probability] : got) {
      REQUIRE(want.count(token) == 1);
      CHECK(probability == Approx(want[token]).epsilon(5e-5));
      want.erase(token);
    }
    for (const auto& [token, probability] : want) CHECK(probability < 0x1p-24);  // the sampler's dropped tail
    ++checked;
  }
  CHECK(checked >= 25);
}
