// vocab.txt: BERT's and ERNIE's, as tokenizers read them. The oracle (oracle.py) compares random Unicode;
// here are the rules by hand, and files that are none.
#include "engine/base/format.h"
#include "engine/text/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT
using Ids = std::vector<int32_t>;

const std::string kVocab =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##s\nworld\n,\n\xE4\xB8\xAD\ncafe\nCaf\xC3\xA9\n";

Ids ids(const Tokenizer& t, const std::string& text) {
  auto r = t.encode(text);
  REQUIRE_OK(r);
  return *r;
}

TEST_CASE("vocab.txt: words, continuations, ideographs, accents, unknown words") {
  const auto t = tokenizer_from_vocab_txt(kVocab);
  REQUIRE_OK(t);
  CHECK(ids(**t, "Hellos, WORLD") == Ids{2, 5, 6, 8, 7, 3});
  CHECK(ids(**t, "world\xE4\xB8\xAD\xE4\xB8\xAD") == Ids{2, 7, 9, 9, 3});
  CHECK(ids(**t, "Caf\xC3\xA9") == Ids{2, 10, 3});
  CHECK(ids(**t, "helloz [MASK]") == Ids{2, 1, 4, 3});
  CHECK(ids(**t, "") == Ids{2, 3});
  CHECK((*t)->pad_id() == 0);
  CHECK((*t)->decode(Ids{2, 5, 6, 8, 7, 3}) == "hellos, world");
  const auto cased =
      tokenizer_from_vocab_txt(kVocab, R"({"do_lower_case": false, "tokenizer_class": "BertTokenizer"})");
  REQUIRE_OK(cased);
  CHECK(ids(**cased, "Caf\xC3\xA9 hello Hello") == Ids{2, 11, 5, 1, 3});
}

TEST_CASE("vocab.txt: ERNIE's lines carry the id, Windows' a carriage return") {
  const auto t = tokenizer_from_vocab_txt("[PAD]\t0\r\n[CLS]\t1\r\n[SEP]\t2\r\n[UNK]\t3\r\nhello\t4\r\n");
  REQUIRE_OK(t);
  CHECK(ids(**t, "hello") == Ids{1, 4, 2});
}

TEST_CASE("vocab.txt: what is none") {
  CHECK_THAT(tokenizer_from_vocab_txt("a\nb\n").status().message(), Contains("[UNK]"));
  CHECK_FALSE(tokenizer_from_vocab_txt("").ok());
  CHECK_THAT(tokenizer_from_vocab_txt("\xFF\n").status().message(), Contains("UTF-8"));
  CHECK_FALSE(tokenizer_from_vocab_txt(kVocab, "[]").ok());
  CHECK_FALSE(tokenizer_from_vocab_txt(kVocab, R"({"cls_token": "[BOS]"})").ok());
  for (size_t n = 0; n < kVocab.size(); ++n) (void)tokenizer_from_vocab_txt(kVocab.substr(0, n));
}

TEST_CASE("vocab.txt gives the ids of its tokenizer.json") {
  const auto txt = files_of_kind("vocab/bert/vocab.txt", "tokenizers/bert_vocab/vocab.txt");
  const auto json = files_of_kind("vocab/bert/tokenizer.json", "tokenizers/bert_hf/tokenizer.json");
  REQUIRE(txt.size() == json.size());
  for (size_t k = 0; k < txt.size(); ++k) {
    INFO(txt[k]);
    const auto a = tokenizer_from_vocab_txt(read_file(txt[k])), b = tokenizer_from_json(read_file(json[k]));
    REQUIRE_OK(a);
    REQUIRE_OK(b);
    for (const char* text : {"Unaffable weather in Z\xC3\xBCrich, 1\xE2\x82\xAC!",
                             "\xE6\x9D\xB1\xE4\xBA\xAC tower", "don't [SEP] stop"})
      CHECK(ids(**a, text) == ids(**b, text));
  }
}

}  // namespace
