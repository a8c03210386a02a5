// Incremental detokenization and stop strings: pieces in any cut give what the whole gives.
#include "engine/text/detokenizer.h"

#include <random>

#include "engine/text/stop_matcher.h"
#include "engine/text/utf8.h"
#include "tests/support/catch.h"

using namespace oar;

namespace {

// One token per byte ("<0x00>" is 3), then a few words, in llama2.c's format.
TokenizerPtr byte_tokenizer() {
  std::string file(4, '\0');
  const auto add = [&](float score, std::string_view text) {
    file.append(reinterpret_cast<const char*>(&score), 4);
    const auto n = static_cast<uint32_t>(text.size());
    file.append(reinterpret_cast<const char*>(&n), 4);
    file += text;
  };
  for (const char* t : {"<unk>", "\n<s>\n", "\n</s>\n"}) add(0, t);
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    add(0, text);
  }
  for (const char* t : {" ", "h", "e", "l", "o", " h", "he", "ll", " hello", "é"}) add(-1, t);
  const auto t = tokenizer_from_llama2c(file, 259 + 10);
  REQUIRE_OK(t);
  return *t;
}

constexpr int32_t byte_id(int b) { return 3 + b; }

}  // namespace

TEST_CASE("a stream of arbitrary ids is well-formed at every step and adds up to decode") {
  const TokenizerPtr t = byte_tokenizer();
  std::mt19937 rng(7);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int32_t> ids;
    const int n = static_cast<int>(rng() % 24);
    for (int i = 0; i < n; ++i) {
      switch (rng() % 4) {
        case 0: ids.push_back(static_cast<int32_t>(rng() % 280) - 4); break;  // some outside the vocabulary
        case 1: ids.push_back(byte_id(0x80 + static_cast<int>(rng() % 64))); break;
        case 2: ids.push_back(byte_id(0xC0 + static_cast<int>(rng() % 64))); break;
        default: {
          static const std::string kText = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
          for (const char c : kText) ids.push_back(byte_id(static_cast<unsigned char>(c)));
        }
      }
    }
    for (const bool skip : {false, true}) {
      IncrementalDetokenizer stream(t, skip);
      std::string all;
      for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        REQUIRE(is_valid_utf8(piece));
        all += piece;
      }
      all += stream.finish();
      REQUIRE(all == t->decode(ids, skip));
    }
  }
}

TEST_CASE("a character appears with its last byte, an impossible one at once") {
  const TokenizerPtr t = byte_tokenizer();
  IncrementalDetokenizer s(t);
  CHECK(s.push(byte_id(0xF0)).empty());
  CHECK(s.push(byte_id(0x9F)).empty());
  CHECK(s.push(byte_id(0x98)).empty());
  CHECK(s.push(byte_id(0x80)) == "\xF0\x9F\x98\x80");
  CHECK(s.push(byte_id(0xFF)) == "\xEF\xBF\xBD");
  CHECK(s.push(byte_id(0xE2)).empty());
  CHECK(s.push(byte_id('x')) == "\xEF\xBF\xBDx");
  CHECK(s.push(byte_id(0xE2)).empty());
  CHECK(s.finish() == "\xEF\xBF\xBD");
}

TEST_CASE("the first word of an answer keeps its space when a prompt stands before it") {
  const TokenizerPtr t = byte_tokenizer();
  const auto prompt = t->encode("hello");
  REQUIRE_OK(prompt);
  const int32_t hello = *t->token_to_id("\xE2\x96\x81hello");
  IncrementalDetokenizer fresh(t), primed(t);
  primed.prime(*prompt);
  CHECK(fresh.push(hello) == "hello");
  CHECK(primed.push(hello) == " hello");
}

TEST_CASE("special tokens are skipped or shown") {
  const TokenizerPtr t = byte_tokenizer();
  const std::vector<int32_t> ids{1, byte_id('a'), 2};
  CHECK(t->decode(ids) == "a");
  CHECK(t->decode(ids, false) == "<s>a</s>");
  CHECK(t->is_special(2));
  CHECK_FALSE(t->is_special(byte_id('a')));
}

TEST_CASE("stop strings are found across any cut, and nothing of them is shown") {
  struct Case {
    std::vector<std::string> stops;
    std::string text, shown;
    int stop;  // -1: none
  };
  const Case cases[] = {
      {{"\n\n"}, "one\n\ntwo", "one", 0},
      {{"END", "EN"}, "the END", "the ", 1},  // the one that ends first
      {{"bc", "abc"}, "xabcd", "x", 1},       // together: the longest
      {{"aab"}, "aaaaab", "aaa", 0},
      {{"abab"}, "abaabab!", "aba", 0},
      {{"</s>", "###"}, "a</s", "a</s", -1},  // never completed
      {{""}, "anything", "anything", -1},
      {{}, "anything", "anything", -1},
      {{"\xE2\x82\xAC"}, "5 \xE2\x82\xAC", "5 ", 0},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    for (size_t step = 1; step <= c.text.size(); ++step) {
      StopMatcher m(c.stops, false);
      std::string shown;
      std::optional<size_t> stop;
      for (size_t i = 0; i < c.text.size() && !stop; i += step) {
        const auto out = m.push(std::string_view(c.text).substr(i, step));
        shown += out.text;
        stop = out.stop_index;
      }
      if (!stop) shown += m.finish();
      CHECK(shown == c.shown);
      CHECK((stop ? static_cast<int>(*stop) : -1) == c.stop);
    }
  }
  StopMatcher with({"END"}, true);
  CHECK(with.push("the EN").text == "the ");
  const auto out = with.push("D of");
  CHECK(out.text == "END");
  CHECK(out.stop_index == 0u);
  CHECK(with.push("more").text.empty());
}

TEST_CASE("stop matching agrees with a search of the whole text") {
  std::mt19937 rng(3);
  const auto word = [&](size_t longest) {
    std::string s(rng() % longest + 1, 'a');
    for (char& c : s) c = static_cast<char>('a' + rng() % 2);
    return s;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = rng() % 4; i > 0; --i) stops.push_back(word(5));
    const std::string text = word(30);
    size_t end = std::string::npos, begin = 0;
    for (const std::string& s : stops)
      if (const size_t hit = text.find(s); hit != std::string::npos) {
        const size_t e = hit + s.size();
        if (end == std::string::npos || e < end || (e == end && hit < begin)) end = e, begin = hit;
      }
    StopMatcher m(stops, false);
    std::string shown;
    for (size_t i = 0; i < text.size() && !m.matched();) {
      const size_t n = rng() % 4;
      shown += m.push(std::string_view(text).substr(i, n)).text;
      i += n;
    }
    const bool matched = m.matched();
    if (!matched) shown += m.finish();
    REQUIRE(matched == (end != std::string::npos));
    REQUIRE(shown == (matched ? text.substr(0, begin) : text));
  }
}
