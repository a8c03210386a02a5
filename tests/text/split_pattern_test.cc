// The pattern engine: what it matches, what it refuses, and that no text makes it slow.
#include "engine/text/split_pattern.h"

#include <chrono>

#include "engine/text/pretokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

std::vector<std::string> split(std::string_view pattern, std::string_view text) {
  const auto p = SplitPattern::compile(pattern);
  REQUIRE_OK(p);
  const auto step = make_split(*p, SplitBehavior::kIsolated, false);
  SplitPattern::Scratch scratch;
  scratch.refill(text.size());
  std::vector<std::string> pieces;
  REQUIRE_OK(step->split({text, true}, scratch, [&](Piece piece) { pieces.emplace_back(piece.text); }));
  return pieces;
}

using Pieces = std::vector<std::string>;

}  // namespace

TEST_CASE("pattern constructs") {
  CHECK(split("a|ab", "abab") == Pieces{"a", "b", "a", "b"});  // first alternative first
  CHECK(split("ab|a", "abab") == Pieces{"ab", "ab"});
  CHECK(split(R"(\s+(?!\S)|\s+)", "a   b  ") == Pieces{"a", "  ", " ", "b", "  "});
  CHECK(split(R"(\p{N}{1,3})", "12345") == Pieces{"123", "45"});
  CHECK(split(R"(\d{2,})", "1 23 456") == Pieces{"1 ", "23", " ", "456"});
  CHECK(split(R"((?i:'s|'t))", "'S'ſ'x") == Pieces{"'S", "'ſ", "'x"});
  CHECK(split(R"([a-c&&[^b]]+)", "abcab") == Pieces{"a", "b", "ca", "b"});
  CHECK(split(R"([^\r\n\p{L}]+)", "a-é\n") == Pieces{"a", "-", "é\n"});
  CHECK(split(R"(a++a|b)", "aaab") == Pieces{"aaa", "b"});  // possessive: never gives back
  CHECK(split(R"((?>a+)a|b)", "aaab") == Pieces{"aaa", "b"});
  CHECK(split(R"(a+?b?)", "aaab") == Pieces{"a", "a", "ab"});
  CHECK(split(R"((?:ab)+)", "xababy") == Pieces{"x", "abab", "y"});
  CHECK(split(R"((?<=x)a|(?<!x)b)", "xaabxb") == Pieces{"x", "a", "a", "b", "xb"});
  CHECK(split(R"(\bcat\b)", "cat concat") == Pieces{"cat", " concat"});
  CHECK(split(R"(^b|a$)", "ab\nba\n") == Pieces{"ab\n", "b", "a", "\n"});
  CHECK(split(R"(\p{Han}+|\P{L})", "ab漢字-") == Pieces{"ab", "漢字", "-"});
  CHECK(split(R"(\x41|\x{e9}|\u6f22)", "Aé漢x") == Pieces{"A", "é", "漢", "x"});
  CHECK(split(R"((?=(\d{3})+(?!\d)))", "1234567") == Pieces{"1", "234", "567"});  // empty matches cut
  CHECK(split("{a}|x{2}|y{,2}z", "{a}xxyyz") == Pieces{"{a}", "xx", "yyz"});
}

TEST_CASE("what is not supported is refused by name") {
  for (const char* bad : {"(a",
                          "a)",
                          "[a",
                          "[]",
                          "a**{",
                          "(?P<n>a)",
                          "(?<=ab)c",
                          R"(\1)",
                          R"(\p{Klingon})",
                          R"(\p{L)",
                          "*a",
                          "(a*)*",
                          "(a|b?)+",
                          "[b-a]",
                          "[[:alpha:]]",
                          "a{3,2}",
                          "a{5000}",
                          R"(\)",
                          R"(\x{110000})",
                          "(?x: a)",
                          R"(\G)",
                          "\xFF"}) {
    INFO(bad);
    const auto p = SplitPattern::compile(bad);
    REQUIRE_FALSE(p.ok());
    CHECK(p.status().message().size() > 20);
  }
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "(";
  CHECK_FALSE(SplitPattern::compile(deep).ok());
  std::string nested = "ab";
  for (int i = 0; i < 6; ++i) nested = "(?:" + nested + "){1000}";
  CHECK_FALSE(SplitPattern::compile(nested).ok());
  CHECK_FALSE(SplitPattern::compile("a" + std::string(3000, '?')).ok());
}

TEST_CASE("a pattern that backtracks without end spends its budget and says so") {
  const auto p = SplitPattern::compile("(?:a|aa)+b");
  REQUIRE_OK(p);
  SplitPattern::Scratch scratch;
  const std::string text(5000, 'a');
  scratch.refill(text.size());
  SplitPattern::Match m;
  CHECK(p->find(text, 0, scratch, m) == SplitPattern::Found::kBudgetSpent);
  const auto step = make_split(*p, SplitBehavior::kIsolated, false);
  scratch.refill(text.size());
  const Status s = step->split({text, true}, scratch, [](Piece) {});
  CHECK(s.code() == StatusCode::kResourceExhausted);
}
