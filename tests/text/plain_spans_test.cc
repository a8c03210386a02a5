// Stretches of a text in which special tokens stay text, at their borders, behind normalizers, in broken
// UTF-8.

#include "engine/base/json.h"
#include "engine/text/tokenizer.h"
#include "tests/support/catch.h"

namespace {

using namespace oar;  // NOLINT

// One token per printable ASCII character and "▁" (its id is its code, 300), byte tokens behind; special:
// 1 <e>, 2 <e>x, 3 <s> with white space before it, 4 <long|name>; and <w>, 5, an added word.
TokenizerPtr letters(json::value normalizer, bool normalized) {
  json::object vocab;
  for (int c = 32; c < 127; ++c) vocab[std::string(1, static_cast<char>(c))] = c;
  vocab["\xE2\x96\x81"] = 300;
  const char* digits = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) vocab[std::string("<0x") + digits[b / 16] + digits[b % 16] + ">"] = 400 + b;
  json::array added;
  const auto add = [&](int id, const char* content, bool special, bool lstrip) {
    added.push_back(json::object{{"id", id},
                                 {"content", content},
                                 {"single_word", false},
                                 {"lstrip", lstrip},
                                 {"rstrip", false},
                                 {"normalized", normalized},
                                 {"special", special}});
  };
  add(1, "<e>", true, false);
  add(2, "<e>x", true, false);
  add(3, "<s>", true, true);
  add(4, "<long|name>", true, false);
  add(5, "<w>", false, false);
  const json::object file{
      {"added_tokens", added},
      {"normalizer", std::move(normalizer)},
      {"model",
       json::object{{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{}}, {"byte_fallback", true}}}};
  auto made = tokenizer_from_json(serialize(file));
  REQUIRE_OK(made);
  return *made;
}

// The ids of a text whose plain stretches stand between [ and ]; ids above 31 as letters, others as (id).
std::string encoded(const Tokenizer& t, std::string_view text) {
  std::string bare;
  std::vector<TextSpan> plain;
  for (const char c : text) {
    if (c == '[') plain.push_back({bare.size(), 0});
    else if (c == ']') plain.back().end = bare.size();
    else bare += c;
  }
  const auto ids = t.encode(bare, {.add_special_tokens = false, .plain = plain});
  REQUIRE_OK(ids);
  std::string out;
  for (const int32_t id : *ids) {
    if (id == 300) out += '_';
    else if (id >= 32 && id < 127) out += static_cast<char>(id);
    else out += "(" + std::to_string(id) + ")";
  }
  return out;
}

TEST_CASE("special tokens stay text where the text is plain", "[tokenizer]") {
  const TokenizerPtr t = letters(nullptr, false);
  CHECK(encoded(*t, "a<e>b") == "a(1)b");
  CHECK(encoded(*t, "[a<e>b]") == "a<e>b");
  CHECK(encoded(*t, "<e>[<e>]<e>") == "(1)<e>(1)");
  CHECK(encoded(*t, "[<e]>") == "<e>");  // made of both
  CHECK(encoded(*t, "<[e>]") == "<e>");
  CHECK(encoded(*t, "<[e]>") == "<e>");
  CHECK(encoded(*t, "<e>x") == "(2)");
  CHECK(encoded(*t, "<e>[x]") == "(1)x");            // the shorter one is the template's
  CHECK(encoded(*t, "[<long|]<e>") == "<long|(1)");  // one that begins within what does not count
  CHECK(encoded(*t, "[<long|name]<e>") == "<long|name(1)");
  CHECK(encoded(*t, "[a  ]<s>") == "a(3)");    // takes white space, as it does anywhere
  CHECK(encoded(*t, "[<w>]<w>") == "(5)(5)");  // a word of the vocabulary is no control token
  CHECK(t->encode("<e>", {.parse_special = false})->size() == 3);
  CHECK(t->encode("<e>").value() == std::vector<int32_t>{1});
}

TEST_CASE("plain stretches are followed through a normalizer", "[tokenizer]") {
  const json::object prepend{{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}};
  const json::object spaces{
      {"type", "Replace"}, {"pattern", json::object{{"String", " "}}}, {"content", "\xE2\x96\x81"}};
  const TokenizerPtr t =
      letters(json::object{{"type", "Sequence"}, {"normalizers", json::array{prepend, spaces}}}, true);
  // Prepend is of the tokens' own patterns too, as in the Hugging Face library: they count behind a blank.
  CHECK(encoded(*t, "a <e>b") == "_a(1)b");
  CHECK(encoded(*t, "a[ <e>b]") == "_a_<e>b");
  std::string text, expected = "_u";
  text = "u";
  for (int i = 0; i < 50; ++i) {
    text += "[ long user text <e> <e>] <e>";
    expected += "_long_user_text_<e>_<e>(1)";
  }
  CHECK(encoded(*t, text) == expected);
}

TEST_CASE("plain stretches are followed through repaired UTF-8", "[tokenizer]") {
  const TokenizerPtr t = letters(nullptr, false);
  CHECK(encoded(*t, "\xFF\xFF[\xC3<e>\xE2\x82]<e>\xFF[<e>]") ==
        encoded(*t, "\xFF\xFF") + encoded(*t, "\xC3") + "<e>" + encoded(*t, "\xE2\x82") + "(1)" +
            encoded(*t, "\xFF") + "<e>");
}

}  // namespace
