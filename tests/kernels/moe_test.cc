// Routing and combining: every level against a straightforward route computed here, ties and NaN included.
#include "kernels/moe.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/matmul_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Route {
  Guarded<int32_t> pair_token, pair_slot, expert_start;
  Guarded<float> pair_weight, logits;
  MoeRouteArgs args;

  Route(const std::vector<float>& values, int64_t T, int64_t experts, int64_t top_k, bool normalize)
      : pair_token(static_cast<size_t>(T * top_k)),
        pair_slot(pair_token.size()),
        expert_start(static_cast<size_t>(experts + 1)),
        pair_weight(pair_token.size()),
        logits(values.size()) {
    std::copy(values.begin(), values.end(), logits.begin());
    args.pair_token = pair_token.data();
    args.pair_slot = pair_slot.data();
    args.pair_weight = pair_weight.data();
    args.expert_start = expert_start.data();
    args.logits = logits.data();
    args.T = T;
    args.experts = experts;
    args.top_k = top_k;
    args.normalize = normalize ? 1 : 0;
  }
};

const Kernel& kernel_of(KernelFamily family, Isa isa) {
  const Kernel* k = KernelRegistry::cpu().find({family, Format::f32()}, isa);
  REQUIRE(k != nullptr);
  return *k;
}

// Experts by descending logit, then ascending index: a stable sort of the indices.
std::vector<int64_t> best_experts(const float* logits, int64_t experts, int64_t top_k) {
  std::vector<int64_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  order.resize(static_cast<size_t>(top_k));
  return order;
}

void check_route(Route& r, const std::string& what) {
  INFO(what);
  const MoeRouteArgs& a = r.args;
  // The slots are a permutation, sorted by expert and stably by token.
  std::vector<int64_t> expert_of(r.pair_token.size());
  std::vector<int> seen(r.pair_token.size(), 0);
  for (int64_t t = 0; t < a.T; ++t) {
    const std::vector<int64_t> want = best_experts(a.logits + t * a.experts, a.experts, a.top_k);
    double total = 0, kept = 0;
    const float* logits = a.logits + t * a.experts;
    const double max = logits[want[0]];
    for (int64_t e = 0; e < a.experts; ++e) total += std::exp(logits[e] - max);
    for (int64_t e : want) kept += std::exp(logits[e] - max);
    for (int64_t j = 0; j < a.top_k; ++j) {
      const auto p = static_cast<size_t>(t * a.top_k + j);
      const auto slot = static_cast<size_t>(r.pair_slot[p]);
      REQUIRE(slot < seen.size());
      ++seen[slot];
      REQUIRE(r.pair_token[slot] == t);
      const int64_t e = want[static_cast<size_t>(j)];
      REQUIRE(static_cast<int64_t>(slot) >= r.expert_start[static_cast<size_t>(e)]);
      REQUIRE(static_cast<int64_t>(slot) < r.expert_start[static_cast<size_t>(e) + 1]);
      // exp to 2 ulp of an argument rounded once, a sum of `experts` terms, a quotient.
      const double weight = std::exp(logits[e] - max) / (a.normalize != 0 ? kept : total);
      const double bound =
          (static_cast<double>(a.experts) + 16 + std::fabs(logits[e] - max)) * std::ldexp(1.0, -24);
      REQUIRE(std::fabs(r.pair_weight[p] - weight) <= bound * weight);
    }
  }
  REQUIRE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
  REQUIRE(r.expert_start[0] == 0);
  REQUIRE(r.expert_start[static_cast<size_t>(a.experts)] == a.T * a.top_k);
  for (int64_t e = 0; e < a.experts; ++e) {
    for (int32_t p = r.expert_start[static_cast<size_t>(e)] + 1;
         p < r.expert_start[static_cast<size_t>(e) + 1]; ++p) {
      REQUIRE(r.pair_token[static_cast<size_t>(p) - 1] < r.pair_token[static_cast<size_t>(p)]);
    }
  }
}

// One token's experts in the order that they are chosen in, and their weights, in double.
struct Choice {
  std::vector<int64_t> experts;
  std::vector<double> weights;
};
Choice chosen(const MoeRouteArgs& a, int64_t t) {
  const float* const logits = a.logits + t * a.experts;
  const auto X = static_cast<size_t>(a.experts);
  std::vector<double> score(logits, logits + X);
  if (a.score == RouteScore::kSoftmax) {
    double all = 0;
    for (const double x : score) all += std::exp(x);
    for (double& x : score) x = std::exp(x) / all;
  } else {
    for (double& x : score)
      x = a.score == RouteScore::kSigmoid ? 1 / (1 + std::exp(-x)) : std::sqrt(std::log1p(std::exp(x)));
  }
  // Logits order as their scores do; groups are compared by scores, all in f32.
  std::vector<float> key(logits, logits + X), worth(score.begin(), score.end());
  for (size_t e = 0; a.bias != nullptr && e < X; ++e)
    worth[e] = key[e] = static_cast<float>(score[e] + a.bias[e]);
  if (a.groups > 0) {
    const size_t each = X / static_cast<size_t>(a.groups);
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < X / each; ++g) {
      const auto begin = worth.begin() + static_cast<ptrdiff_t>(g * each);
      std::sort(begin, begin + static_cast<ptrdiff_t>(each), std::greater<>());
      groups.emplace_back(a.group_best == 1 ? -double{begin[0]} : -(double{begin[0]} + begin[1]), g);
    }
    std::ranges::sort(groups);
    for (size_t g = static_cast<size_t>(a.top_groups); g < groups.size(); ++g)
      std::fill_n(key.begin() + static_cast<ptrdiff_t>(groups[g].second * each), each, -INFINITY);
  }
  Choice out{best_experts(key.data(), a.experts, a.top_k), {}};
  double kept = 0;
  for (const int64_t e : out.experts) kept += score[static_cast<size_t>(e)];
  for (const int64_t e : out.experts)
    out.weights.push_back(score[static_cast<size_t>(e)] * a.scale / (a.normalize != 0 ? kept : 1.0));
  return out;
}

void check_choice(const Route& r) {
  const MoeRouteArgs& a = r.args;
  for (int64_t t = 0; t < a.T; ++t) {
    const Choice want = chosen(a, t);
    for (int64_t j = 0; j < a.top_k; ++j) {
      const auto p = static_cast<size_t>(t * a.top_k + j);
      const auto above = std::ranges::upper_bound(r.expert_start, r.pair_slot[p]);
      const int64_t e = above - r.expert_start.begin() - 1;
      REQUIRE(e == want.experts[static_cast<size_t>(j)]);
      // An exponential and a logarithm of 4 ulp each, of arguments rounded once, sums of X and k terms.
      const double unit = 16 + static_cast<double>(a.experts) + std::fabs(a.logits[t * a.experts + e]);
      const double weight = want.weights[static_cast<size_t>(j)];
      REQUIRE(std::fabs(r.pair_weight[p] - weight) <= std::ldexp(unit * weight, -24));
    }
  }
}

}  // namespace

TEST_CASE("moe_route: sorted pairs and weights at every level, ties to the lower expert") {
  Sample sample(11);  // prime to any number of levels
  for (int64_t T : {1, 2, 63, 64, 65, 200, 1000}) {
    for (auto [experts, top_k] : {std::pair<int64_t, int64_t>{8, 2}, {60, 4}, {128, 8}, {3, 3}, {1, 1}}) {
      for (Values values : {Values::kNormal, Values::kIntegers}) {
        for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
          if (!sample.take()) continue;
          const Kernel& k = kernel_of(KernelFamily::kMoeRoute, static_cast<Isa>(level));
          Route r(random_values(static_cast<size_t>(T * experts), values, 3), T, experts, top_k, T % 2 == 0);
          run_in_steps(k, &r.args, 1, true);
          check_route(
              r, std::string(k.name) + " T=" + std::to_string(T) + " experts=" + std::to_string(experts));
          Route again(random_values(static_cast<size_t>(T * experts), values, 3), T, experts, top_k,
                      T % 2 == 0);
          ThreadPool pool({.threads = 4});
          run_on_pool(pool, k, &again.args);
          REQUIRE(std::equal(r.pair_slot.begin(), r.pair_slot.end(), again.pair_slot.begin()));
          REQUIRE(std::equal(r.pair_weight.begin(), r.pair_weight.end(), again.pair_weight.begin()));
        }
      }
    }
  }
}

TEST_CASE("moe_route: scores, biases, groups and a scale at every level") {
  constexpr int64_t T = 65, X = 24, k = 5;
  const auto bias = random_values(X, Values::kNormal, 4);
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    const Kernel& kernel = kernel_of(KernelFamily::kMoeRoute, static_cast<Isa>(level));
    for (const RouteScore score : {RouteScore::kSoftmax, RouteScore::kSigmoid, RouteScore::kSqrtSoftplus}) {
      for (const auto& [biased, groups] : {std::pair{false, 0}, {false, 4}, {true, 0}, {true, 4}}) {
        INFO(kernel.name << " score " << static_cast<int>(score) << " bias " << biased << " groups "
                         << groups);
        auto values = random_values(T * X, Values::kNormal, 3);
        // Spread, and every other token's far below zero, where scores are small.
        for (size_t i = 0; i < values.size(); ++i) values[i] = 8 * values[i] - (i / X % 2 == 0 ? 0.f : 20.f);
        Route r(values, T, X, k, groups == 0);
        r.args.score = score;
        r.args.bias = biased ? bias.data() : nullptr;
        r.args.groups = groups;
        r.args.top_groups = groups / 2;
        r.args.scale = 2.5f;
        run_in_steps(kernel, &r.args, 1, true);
        check_choice(r);
      }
    }
  }
}

// DeepSeek V2 takes experts of the groups whose best expert is best, V3 of those whose two best are.
TEST_CASE("moe_route: experts of the best groups alone, by a group's best or by its two best") {
  struct Case {
    int64_t experts, top_k;
    int32_t groups, top_groups, best;
  };
  constexpr int64_t T = 70;
  for (const Case& c :
       {Case{160, 6, 8, 3, 1}, Case{160, 6, 8, 3, 2}, Case{16, 2, 4, 2, 1}, Case{16, 2, 4, 2, 2},
        Case{8, 2, 8, 3, 1}, Case{12, 4, 3, 3, 1}, Case{24, 3, 6, 1, 1}}) {
    for (const Values kind : {Values::kNormal, Values::kIntegers}) {
      const std::vector<float> values = random_values(static_cast<size_t>(T * c.experts), kind, 7);
      int64_t outside = 0;  // tokens whose best experts lie in groups that are not taken
      for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
        const Kernel& kernel = kernel_of(KernelFamily::kMoeRoute, static_cast<Isa>(level));
        INFO(kernel.name << " " << c.experts << " experts, " << c.top_groups << " of " << c.groups
                         << " groups by " << c.best);
        Route r(values, T, c.experts, c.top_k, false);
        r.args.version = 3;
        r.args.groups = c.groups, r.args.top_groups = c.top_groups, r.args.group_best = c.best;
        r.args.scale = 16;
        run_in_steps(kernel, &r.args, 1, true);
        check_choice(r);
        for (int64_t t = 0; t < T; ++t)
          outside +=
              chosen(r.args, t).experts != best_experts(values.data() + t * c.experts, c.experts, c.top_k);
      }
      // No more experts than groups that are as good as their best: those are the best of all.
      const bool all = c.groups == c.top_groups || (c.best == 1 && c.top_k <= c.top_groups);
      CHECK((outside > 0) == !all);
    }
  }
}

TEST_CASE("moe_route: a scale of each expert multiplies its weights and changes nothing else") {
  constexpr int64_t T = 130, X = 24, k = 5;
  const auto values = random_values(T * X, Values::kNormal, 3), scale = random_values(X, Values::kNormal, 4);
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    const Kernel& kernel = kernel_of(KernelFamily::kMoeRoute, static_cast<Isa>(level));
    for (const RouteScore score : {RouteScore::kSoftmax, RouteScore::kSigmoid}) {
      INFO(kernel.name);
      Route plain(values, T, X, k, true), scaled(values, T, X, k, true);
      scaled.args.version = 2;
      scaled.args.expert_scale = scale.data();
      plain.args.score = scaled.args.score = score;
      run_in_steps(kernel, &plain.args, 1, true);
      run_in_steps(kernel, &scaled.args, 1, true);
      CHECK(std::equal(plain.pair_slot.begin(), plain.pair_slot.end(), scaled.pair_slot.begin()));
      for (size_t p = 0; p < plain.pair_slot.size(); ++p) {
        const int32_t slot = plain.pair_slot[p];
        const auto above = std::ranges::upper_bound(plain.expert_start, slot);
        const float own = scale[static_cast<size_t>(above - plain.expert_start.begin()) - 1];
        const double want = double{plain.pair_weight[p]} * own;  // rounded once more, and once less in double
        REQUIRE(std::fabs(scaled.pair_weight[p] - want) <= std::fabs(want) * std::ldexp(1.0, -22));
      }
    }
  }
}

TEST_CASE("moe_route: a NaN logit gives NaN weights and still a permutation; no tokens, no pairs") {
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    const Kernel& k = kernel_of(KernelFamily::kMoeRoute, static_cast<Isa>(level));
    INFO(k.name);
    std::vector<float> logits = random_values(2 * 20, Values::kNormal, 5);
    logits[3] = NAN;
    Route r(logits, 2, 20, 4, true);
    run_in_steps(k, &r.args, 1, false);
    std::vector<int32_t> slots(r.pair_slot.begin(), r.pair_slot.end());
    std::ranges::sort(slots);
    for (int32_t i = 0; i < 8; ++i) CHECK(slots[static_cast<size_t>(i)] == i);
    for (size_t j = 0; j < 4; ++j) CHECK(std::isnan(r.pair_weight[j]));
    for (size_t j = 4; j < 8; ++j) CHECK(r.pair_weight[j] > 0);
    Route none({}, 0, 20, 4, true);
    run_in_steps(k, &none.args, 1, false);
    for (int32_t start : none.expert_start) CHECK(start == 0);
  }
}

TEST_CASE("moe_combine: weighted sums of the pairs at every level") {
  for (int64_t E : {1, 15, 16, 17, 100, 2048}) {
    const int64_t T = 5, top_k = 3;
    const std::vector<float> y = random_values(static_cast<size_t>(T * top_k * E), Values::kNormal, 1);
    const std::vector<float> weight = random_values(static_cast<size_t>(T * top_k), Values::kNormal, 2);
    std::vector<int32_t> slot(static_cast<size_t>(T * top_k));
    std::iota(slot.begin(), slot.end(), 0);
    std::shuffle(slot.begin(), slot.end(), std::mt19937(3));
    for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
      const Kernel& k = kernel_of(KernelFamily::kMoeCombine, static_cast<Isa>(level));
      INFO(k.name << " E=" << E);
      Guarded<float> in(y.size()), out(static_cast<size_t>(T * E));
      std::copy(y.begin(), y.end(), in.begin());
      MoeCombineArgs a;
      a.out = out.data();
      a.y = in.data();
      a.pair_slot = slot.data();
      a.pair_weight = weight.data();
      a.T = T;
      a.top_k = top_k;
      a.E = E;
      run_in_steps(k, &a, 1, true);
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t e = 0; e < E; ++e) {
          double want = 0, magnitude = 0;
          for (int64_t j = 0; j < top_k; ++j) {
            const auto p = static_cast<size_t>(t * top_k + j);
            const double term = static_cast<double>(weight[p]) * y[static_cast<size_t>(slot[p] * E + e)];
            want += term;
            magnitude += std::fabs(term);
          }
          // top_k products and sums.
          REQUIRE(std::fabs(out[static_cast<size_t>(t * E + e)] - want) <=
                  2 * top_k * std::ldexp(magnitude, -24));
        }
      }
    }
  }
}
