// Rules about single tokens against their definition, along random walks with roll-backs and forks, alone and
// beside a grammar.
#include "server/api/token_rules.h"

#include <algorithm>

#include "tests/runtime/fake_grammar.h"
#include "tests/support/catch.h"

namespace {

using oar::api::TokenRules;
using oar_test::FakeGrammar;
using oar_test::mix;

constexpr int32_t kVocab = 37;  // no multiple of 32

bool ends_with(const std::vector<int32_t>& text, const std::vector<int32_t>& end) {
  return text.size() >= end.size() && std::equal(end.rbegin(), end.rend(), text.rbegin());
}

TEST_CASE("token rules: masks are what the rules say, in any order of steps, back and forth") {
  for (const bool grammar : {false, true}) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      uint64_t state = mix(seed + 1);
      const auto dice = [&](uint64_t n) { return (state = mix(state)) % n; };
      TokenRules rules;
      rules.vocab_size = kVocab;
      if (dice(2) == 0)
        for (int32_t t = 0; t < kVocab; ++t)
          if (dice(4) != 0) rules.allowed.push_back(t);
      for (uint64_t k = dice(6); k > 0; --k) {
        std::vector<int32_t> banned;
        for (uint64_t n = 1 + dice(3); n > 0; --n)
          banned.push_back(static_cast<int32_t>(dice(4)));  // often met
        rules.banned.push_back(banned);
      }
      rules.may_end = dice(2) == 0;
      if (!rules.any()) continue;
      const auto inner =
          grammar ? std::make_shared<FakeGrammar>(seed, kVocab, std::vector<int32_t>{}) : nullptr;
      const auto constraint = oar::api::with_rules(inner, rules);
      auto cursor = constraint->start();
      std::vector<int32_t> text;
      for (int step = 0; step < 40; ++step) {
        // A cursor of the grammar alone at the same place.
        auto plain = inner ? inner->start() : nullptr;
        if (plain)
          for (const int32_t t : text) REQUIRE(plain->advance(t));
        std::vector<uint32_t> bits(2, ~0u), own(2, ~0u);
        cursor->mask(bits);
        if (plain) plain->mask(own);
        std::vector<int32_t> open;
        for (int32_t t = 0; t < kVocab; ++t) {
          std::vector<int32_t> next = text;
          next.push_back(t);
          const bool banned = std::any_of(rules.banned.begin(), rules.banned.end(),
                                          [&](const auto& b) { return ends_with(next, b); });
          const bool listed = rules.allowed.empty() ||
                              std::find(rules.allowed.begin(), rules.allowed.end(), t) != rules.allowed.end();
          const bool may = !banned && listed && (own[t / 32] >> (t % 32) & 1) != 0;
          CHECK(((bits[t / 32] >> (t % 32) & 1) != 0) == may);
          if (may) open.push_back(t);
          else CHECK_FALSE(cursor->advance(t));
        }
        CHECK((bits[1] >> (kVocab % 32)) == 0);  // nothing beyond the vocabulary
        CHECK(cursor->may_end() == (rules.may_end && (!plain || plain->may_end())));
        CHECK(cursor->must_end() == (plain && plain->must_end()));
        if (const int32_t only = cursor->only(); only >= 0)
          CHECK(std::find(open.begin(), open.end(), only) != open.end());
        if (dice(5) == 0) cursor = cursor->fork();
        if (!text.empty() && (open.empty() || dice(4) == 0)) {
          const auto back = static_cast<int64_t>(1 + dice(text.size()));
          cursor->rollback(back);
          text.resize(text.size() - static_cast<size_t>(back));
        } else if (!open.empty()) {
          text.push_back(open[dice(open.size())]);
          REQUIRE(cursor->advance(text.back()));
        } else {
          break;
        }
      }
    }
  }
}

}  // namespace
