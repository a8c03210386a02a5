// Masks against brute force: every token of a small vocabulary tried byte by byte, every text of a few bytes
// tried against a recognizer that knows nothing of automata.
#include <random>
#include <string>
#include <vector>

#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/matcher.h"
#include "engine/text/grammar/regex.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/text/grammar_reference.h"

namespace {

using namespace oar;
using namespace oar::grammar;

Grammar from_gbnf(const std::string& source) {
  Grammar g;
  const auto root = add_gbnf(source, g);
  INFO(root.status().message());
  REQUIRE(root.ok());
  g.set_root(*root);
  return g;
}
Grammar from_regex(const std::string& pattern, Regex::Match match = Regex::Match::kWhole,
                   Coding coding = Coding::kUtf8) {
  Grammar g;
  const auto regex = Regex::parse(pattern, match);
  INFO(pattern << ": " << regex.status().message());
  REQUIRE(regex.ok());
  const Rule root = g.add_rule("root");
  g.define(root, regex->to_grammar(g, coding));
  g.set_root(root);
  return g;
}
std::shared_ptr<const Automaton> compiled(const Grammar& g) {
  const auto a = Automaton::compile(g);
  INFO(a.status().message());
  REQUIRE(a.ok());
  return *a;
}
std::shared_ptr<const Matcher> matcher(const Grammar& g, std::vector<std::string> tokens) {
  return std::make_shared<Matcher>(compiled(g), TokenVocabulary::make(std::move(tokens)));
}

// All bytes of the alphabet alone, and random texts of it.
std::vector<std::string> vocabulary(std::string_view alphabet, size_t count, std::mt19937& random) {
  std::vector<std::string> out;
  for (const char c : alphabet) out.emplace_back(1, c);
  while (out.size() < count) {
    std::string s;
    for (size_t n = 2 + random() % 5; n > 0; --n) s += alphabet[random() % alphabet.size()];
    out.push_back(s);
  }
  out.emplace_back();          // a control token
  out.push_back(out.front());  // two ids, one text
  return out;
}

std::vector<uint32_t> mask_of(ConstraintCursor& cursor, size_t tokens) {
  std::vector<uint32_t> bits((tokens + 31) / 32 + 1, 0xDEADBEEF);
  cursor.mask(bits);
  REQUIRE(bits.back() == 0);  // what the vocabulary does not have
  return bits;
}
bool has(const std::vector<uint32_t>& bits, size_t t) { return (bits[t / 32] >> (t % 32)) & 1; }

struct Case {
  const char* grammar;  // GBNF, or a pattern behind "re:"
  const char* alphabet;
};
const Case kCases[] = {
    {"root ::= \"ab\" | \"abc\" | \"b\"*", "abc"},
    {"root ::= [a-b]* \"c\"", "abc"},
    {"root ::= [ab]{2,9} (\"c\" | \"ca\")", "abc"},
    {"root ::= x{2,3}\nx ::= [ab]{1,2} \"c\"", "abc"},
    {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"", "abc"},
    {"root ::= \"(\" root \")\" root | \"\"", "()"},
    {"root ::= a b a\na ::= \"a\"?\nb ::= (a | \"b\")*", "ab"},
    {"root ::= \"a\" root root | \"b\"", "ab"},
    {"root ::= (\"a\"? \"b\"?){2,5} \"c\"", "abc"},
    {"root ::= item (\",\" item)*\nitem ::= [a]{0,7} | \"<\" root \">\"", "a,<>"},
    {"re:(a|b)*abb", "abc"},
    {"re:a{3}|a{5,7}b?", "ab"},
    {"re:[^b]+b.*c", "abc"},
    {"re:(ab?){2,4}c", "abc"},
    {"re:(?:a+b*)+|c{2,}", "abc"},
    {"re:[ab]*[bc]*b", "abc"},
};
Grammar grammar_of(const Case& c) {
  const std::string source = c.grammar;
  return source.starts_with("re:") ? from_regex(source.substr(3)) : from_gbnf(source);
}

TEST_CASE("Constraints: a mask has the tokens that can be read, in random walks", "[grammar]") {
  std::mt19937 random(7);
  for (const Case& c : kCases) {
    const Grammar g = grammar_of(c);
    const auto tokens = vocabulary(c.alphabet, 70, random);
    const auto m = matcher(g, tokens);
    Configurations plain(compiled(g));
    testing::Reference reference(g);
    for (int walk = 0; walk < 12; ++walk) {
      const auto cursor = m->start();
      std::string text;
      SetId at = plain.start();
      for (int step = 0; step < 14; ++step) {
        INFO(c.grammar << " after " << text);
        REQUIRE(cursor->may_end() == reference.accepts(text));
        const auto bits = mask_of(*cursor, tokens.size());
        std::vector<int32_t> allowed;
        for (size_t t = 0; t < tokens.size(); ++t) {
          SetId to = at;
          for (const char b : tokens[t]) to = plain.step(to, static_cast<uint8_t>(b));
          const bool can = !tokens[t].empty() && to != Configurations::kDead;
          INFO("token " << tokens[t]);
          REQUIRE(has(bits, t) == can);
          if (can) allowed.push_back(static_cast<int32_t>(t));
          if (!can) REQUIRE(!cursor->advance(static_cast<int32_t>(t)));
        }
        REQUIRE(cursor->only() == (allowed.size() == 1 && !cursor->may_end() ? allowed[0] : -1));
        REQUIRE(cursor->must_end() == (cursor->may_end() && allowed.empty()));
        if (allowed.empty()) {
          REQUIRE(cursor->may_end());
          break;
        }
        const int32_t t = allowed[random() % allowed.size()];
        REQUIRE(cursor->advance(t));
        text += tokens[static_cast<size_t>(t)];
        for (const char b : tokens[static_cast<size_t>(t)]) at = plain.step(at, static_cast<uint8_t>(b));
      }
    }
  }
}

// All texts of up to `left` bytes more.
void compare(Configurations& sets, SetId at, const std::string& text, const Case& c,
             testing::Reference& reference, size_t left) {
  INFO(c.grammar << " after " << text);
  REQUIRE((at != Configurations::kDead && sets.accepts(at)) == reference.accepts(text));
  if (left == 0) return;
  for (const char b : std::string_view(c.alphabet)) {
    const SetId to = at == Configurations::kDead ? at : sets.step(at, static_cast<uint8_t>(b));
    compare(sets, to, text + b, c, reference, left - 1);
  }
}

TEST_CASE("Constraints: an automaton accepts what its grammar says, for all short texts", "[grammar]") {
  for (const Case& c : kCases) {
    const Grammar g = grammar_of(c);
    Configurations sets(compiled(g));
    testing::Reference reference(g);
    compare(sets, sets.start(), "", c, reference, std::string_view(c.alphabet).size() > 3 ? 5 : 7);
  }
}

TEST_CASE("Constraints: what is not dead has a completion", "[grammar]") {
  for (const Case& c : kCases) {
    const Grammar g = grammar_of(c);
    Configurations sets(compiled(g));
    testing::Reference reference(g);
    std::mt19937 random(3);
    for (int walk = 0; walk < (oar_test::kSlow ? 2 : 10); ++walk) {
      SetId at = sets.start();
      std::string text;
      for (int i = 0; i < 4; ++i) {
        const std::string_view alphabet = c.alphabet;
        const char b = alphabet[random() % alphabet.size()];
        const SetId to = sets.step(at, static_cast<uint8_t>(b));
        if (to == Configurations::kDead) continue;
        at = to;
        text += b;
      }
      INFO(c.grammar << " after " << text);
      REQUIRE(reference.can_continue(text, c.alphabet, 9));
    }
  }
}

TEST_CASE("Constraints: rollback and fork stand where they stood", "[grammar]") {
  std::mt19937 random(11);
  for (const Case& c : kCases) {
    const Grammar g = grammar_of(c);
    const auto tokens = vocabulary(c.alphabet, 60, random);
    const auto m = matcher(g, tokens);
    auto cursor = m->start();
    std::vector<std::vector<uint32_t>> seen = {mask_of(*cursor, tokens.size())};
    for (int step = 0; step < 40; ++step) {
      const auto count = random() % 3;
      if (count > 0 && seen.size() > count) {
        cursor->rollback(static_cast<int64_t>(count));
        seen.resize(seen.size() - count);
        REQUIRE(mask_of(*cursor, tokens.size()) == seen.back());
      }
      auto fork = cursor->fork();
      for (size_t t = 0; t < tokens.size(); ++t) {
        const size_t pick = (t + random()) % tokens.size();
        if (!has(seen.back(), pick)) continue;
        REQUIRE(fork->advance(static_cast<int32_t>(pick)));
        REQUIRE(mask_of(*cursor, tokens.size()) == seen.back());  // the fork alone went on
        REQUIRE(cursor->advance(static_cast<int32_t>(pick)));
        seen.push_back(mask_of(*cursor, tokens.size()));
        REQUIRE(mask_of(*fork, tokens.size()) == seen.back());
        break;
      }
    }
  }
}

TEST_CASE("Constraints: a full store is left behind and nothing changes", "[grammar]") {
  // Every position of a counted run is a set of its own, so a long text fills several stores.
  const Grammar g = from_gbnf("root ::= ([ab]{0,1000000} \"c\"){0,1000000} \"d\"");
  const auto m = matcher(g, {"a", "b", "ab", "c", "ac", "d", "abcab"});
  auto cursor = m->start();
  std::shared_ptr<MaskStore> first = m->store();
  std::mt19937 random(5);
  const auto begin = mask_of(*cursor, 7);
  int advanced = 0;
  for (int i = 0; i < 300'000; ++i) {
    const auto t = static_cast<int32_t>(random() % 7);
    if (t == 5) continue;
    REQUIRE(cursor->advance(t));
    ++advanced;
  }
  REQUIRE(cursor->advance(3));  // the open run ends
  ++advanced;
  const auto late = mask_of(*cursor, 7);
  REQUIRE(late == begin);
  REQUIRE(m->store() != first);
  cursor->rollback(advanced);
  REQUIRE(cursor->advance(5));
  REQUIRE(cursor->must_end());
}

TEST_CASE("Constraints: control tokens come where the grammar asks for them", "[grammar]") {
  Grammar g;
  const Rule root = g.add_rule("root");
  const Expr any = g.repeat(g.chars(CodePointRanges::all(), Coding::kUtf8), 0, 2);
  g.define(root, g.sequence({any, g.text(special_text("<|call|>")), g.text("x")}));
  g.set_root(root);
  const auto m = matcher(g, {"<|call|>", "x", special_text("<|call|>"), special_text("<|end|>")});
  auto cursor = m->start();
  const auto bits = mask_of(*cursor, 4);
  REQUIRE((bits[0] & 15) == 0b0110);  // the text "<|call|>" is longer than two characters
  REQUIRE(cursor->advance(2));
  REQUIRE(cursor->only() == 1);
}

TEST_CASE("Constraints: patterns inside JSON strings are written with the escapes they need", "[grammar]") {
  const Grammar g = from_regex("^[^a]{2}\\n\"$", Regex::Match::kSearch, Coding::kJson);
  testing::Reference r(g);
  REQUIRE(r.accepts(R"(\\\t\n\")"));
  REQUIRE(r.accepts("\xC3\xA9\xF0\x9F\x98\x80\\n\\\""));
  REQUIRE(r.accepts(R"(\u0000\u001f\n\")"));
  REQUIRE(!r.accepts(R"(\u000a\u001f\n\")"));  // a line feed has a shorter form
  REQUIRE(!r.accepts(R"(\/\t\n\")"));
  REQUIRE(!r.accepts("\t\t\n\""));
  REQUIRE(!r.accepts(R"(aa\n\")"));
}

TEST_CASE("Constraints: a circle and an impossible grammar are refused", "[grammar]") {
  const auto error = [](const std::string& source) {
    Grammar g;
    const auto root = add_gbnf(source, g);
    if (!root.ok()) return root.status().message();
    g.set_root(*root);
    const auto a = Automaton::compile(g);
    return a.ok() ? std::string() : a.status().message();
  };
  REQUIRE(error("root ::= root \"a\" | \"b\"").find("\"root\" begins with itself") != std::string::npos);
  REQUIRE(error("root ::= \"c\" | a \"x\"\na ::= \"b\"? root").find("begins with itself") !=
          std::string::npos);
  REQUIRE(error("root ::= \"b\" | (\"a\"? root){2}").find("begins with itself") != std::string::npos);
  REQUIRE(error("root ::= \"a\" root").find("no text satisfies it") != std::string::npos);
  REQUIRE(error("root ::= x").find("line 1, column 10: the rule \"x\" is not defined") != std::string::npos);
  REQUIRE(error("a ::= \"x\"").find("no rule \"root\"") != std::string::npos);
  REQUIRE(
      error("root ::= \"a\"\nroot ::= \"b\"").find("line 2, column 1: the rule \"root\" is defined twice") !=
      std::string::npos);
  REQUIRE(error("root ::= \"a").find("does not end") != std::string::npos);
  REQUIRE(error("root ::= [b-a]").find("counts down") != std::string::npos);
  REQUIRE(error("root ::= (\"a\"").find("without its )") != std::string::npos);
  REQUIRE(error("root ::= \"a\"{3,2}").find("counts down") != std::string::npos);
  REQUIRE(error(std::string(2 << 20, 'a')).find("too long") != std::string::npos);
  REQUIRE(error("root ::= " + std::string(5000, '(')).find("nested too deeply") != std::string::npos);
}

TEST_CASE("Constraints: what a pattern cannot have is refused by name", "[grammar]") {
  const auto error = [](const std::string& pattern) {
    const auto r = Regex::parse(pattern, Regex::Match::kSearch);
    return r.ok() ? std::string() : r.status().message();
  };
  REQUIRE(error("a(?=b)").find("look-around") != std::string::npos);
  REQUIRE(error("(?<!b)a").find("look-around") != std::string::npos);
  REQUIRE(error("(a)\\1").find("back references") != std::string::npos);
  REQUIRE(error("\\bfoo").find("word boundaries") != std::string::npos);
  REQUIRE(error("a++").find("possessive") != std::string::npos);
  REQUIRE(error("a**").find("group between") != std::string::npos);
  REQUIRE(error("*a").find("nothing to repeat") != std::string::npos);
  REQUIRE(error("(a").find("without its )") != std::string::npos);
  REQUIRE(error("a)").find("without its (") != std::string::npos);
  REQUIRE(error("[a").find("without its ]") != std::string::npos);
  REQUIRE(error("a$b").find("^ and $") != std::string::npos);
  REQUIRE(error("\\p{Nope}").find("Nope") != std::string::npos);
  REQUIRE(error("a{5,2}").find("counts down") != std::string::npos);
  REQUIRE(error(std::string(1 << 20, 'a')).find("too long") != std::string::npos);
  REQUIRE(error(std::string(3000, '(')).find("nested too deeply") != std::string::npos);
  for (const char* fine : {"^a|b$", "(^a|^b)c$", "(?i)x", "(?P<n>a)(?<m>b)", "a{,3}", "[\\w-]+", "\\u{1F600}",
                           "[]a]?", "\\/\\-\\.", "^$", "", "(?:a|)b??", "\\p{Lu}\\P{L}\\p{Script=Greek}"}) {
    INFO(fine << ": " << error(fine));
    REQUIRE(error(fine).empty());
  }
}

TEST_CASE("Constraints: a searched pattern may stand anywhere in its text", "[grammar]") {
  const auto accepts = [](const std::string& pattern, std::string_view text) {
    const Grammar g = from_regex(pattern, Regex::Match::kSearch);
    return testing::Reference(g).accepts(text);
  };
  REQUIRE(accepts("b", "abc"));
  REQUIRE(!accepts("^b", "abc"));
  REQUIRE(!accepts("b$", "abc"));
  REQUIRE(accepts("^a|b$", "ac"));
  REQUIRE(accepts("^a|b$", "cb"));
  REQUIRE(!accepts("^a|b$", "ba"));
  REQUIRE(accepts("(?i)ÄB", "xäbx"));
  REQUIRE(accepts("^\\d{3}-\\w+$", "123-a_Z"));
  REQUIRE(!accepts("^\\w$", "ä"));
  REQUIRE(accepts("^.$", "\xF0\x9F\x98\x80"));
  REQUIRE(!accepts("^.$", "\n"));
}

}  // namespace
