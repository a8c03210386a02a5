// Damaged and hostile tokenizer files are refused with a message; hostile texts are tokenized in linear time.
#include <algorithm>
#include <ctime>

#include "engine/base/format.h"
#include "engine/base/gguf_vocab.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

// A byte-level BPE tokenizer.json with the 256 bytes and merges that double runs of "a".
std::string byte_level_json(std::string_view pattern, std::string_view extra = "") {
  std::string vocab, merges;
  int id = 0;
  const auto quote = [](std::string_view s) {
    std::string out = "\"";
    for (const char c : s) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + '"';
  };
  for (char32_t c = 0x21; c < 0x144; ++c) {
    if ((c > 0x7E && c < 0xA1) || c == 0xAD) continue;
    vocab += cat(id ? "," : "", quote(to_utf8(c)), ":", id);
    ++id;
  }
  for (size_t n = 1; n <= 16; n *= 2) {
    vocab += cat(",", quote(std::string(n * 2, 'a')), ":", id++);
    merges +=
        cat(merges.empty() ? "" : ",", "[", quote(std::string(n, 'a')), ",", quote(std::string(n, 'a')), "]");
  }
  std::string escaped;
  for (const char c : pattern) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return cat(
      R"({"added_tokens":[],"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")",
      escaped, R"("},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,)",
      R"("use_regex":false}]},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE",)", extra, R"("vocab":{)",
      vocab, R"(},"merges":[)", merges, "]}}");
}

constexpr std::string_view kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

// Texts of n bytes that hurt quadratic tokenizers.
std::vector<std::string> hostile_texts(size_t n) {
  std::vector<std::string> texts;
  for (const char* unit : {"a", " ", "\n", " \n", "A", "1", "!", "'", "aB", "\xE6\xBC\xA2", "e\xCC\x81",
                           "\xF0\x9F\x98\x80", "\xFF", "\xC2\xA0", "'S", "ab ", "\r\n\t"}) {
    std::string t;
    while (t.size() < n) t += unit;
    texts.push_back(std::move(t));
  }
  std::string every;
  while (every.size() < n)
    for (int b = 0; b < 256; ++b) every += static_cast<char>(b);
  texts.push_back(std::move(every));
  return texts;
}

// Of this thread's processor, so that others on the machine do not count.
double seconds_to_encode(const Tokenizer& t, const std::string& text) {
  const auto now = [] {
    timespec at = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
  };
  const double start = now();
  const auto ids = t.encode(text);
  REQUIRE_OK(ids);
  return now() - start;
}

// How much longer eight times the text takes: 8 where time grows with the text, 64 with its square.
void check_growth(const Tokenizer& t, const std::string& part, const std::string& whole) {
  const double small = std::min(seconds_to_encode(t, part), seconds_to_encode(t, part));
  const double limit = 24 * small + 0.01;  // a processor that slows down; a clock of few digits
  CHECK(std::min(seconds_to_encode(t, whole), seconds_to_encode(t, whole)) < limit);
}

// A SentencePiece BPE or unigram model over the letters "a", "aa", ... and the marker, written by hand.
std::string sentencepiece_model(bool bpe) {
  const auto varint = [](uint64_t v) {
    std::string s;
    for (; v >= 0x80; v >>= 7) s += static_cast<char>(v | 0x80);
    return s + static_cast<char>(v);
  };
  const auto bytes = [&](int field, std::string_view b) {
    return varint(static_cast<uint64_t>(field) * 8 + 2) + varint(b.size()) + std::string(b);
  };
  std::string model;
  const auto piece = [&](std::string_view text, float score, int type) {
    std::string p = bytes(1, text) + varint(2 * 8 + 5);
    p.append(reinterpret_cast<const char*>(&score), 4);
    p += varint(3 * 8) + varint(static_cast<uint64_t>(type));
    model += bytes(1, p);
  };
  piece("<unk>", 0, 2);
  piece("<s>", 0, 3);
  piece("</s>", 0, 3);
  piece("\xE2\x96\x81", -3, 1);
  for (int n = 1; n <= 16; ++n) piece(std::string(static_cast<size_t>(n), 'a'), static_cast<float>(-n), 1);
  model += bytes(2, varint(3 * 8) + varint(bpe ? 2 : 1));
  model += bytes(3, varint(4 * 8) + varint(0));
  return model;
}

}  // namespace

TEST_CASE("hostile texts are tokenized without loss") {
  for (const auto pattern : kPatterns) {
    const auto t = tokenizer_from_json(byte_level_json(pattern));
    REQUIRE_OK(t);
    for (const std::string& text : hostile_texts(20000)) {
      const auto ids = (*t)->encode(text);
      REQUIRE_OK(ids);
      CHECK((*t)->decode(*ids) == repair_utf8(text));
    }
  }
}

TEST_CASE("time grows with the text, not with its square") {
  std::vector<TokenizerPtr> tokenizers;
  for (const auto pattern : kPatterns) {
    const auto t = tokenizer_from_json(byte_level_json(pattern));
    REQUIRE_OK(t);
    tokenizers.push_back(*t);
  }
  for (const bool bpe : {true, false}) {
    const auto t = tokenizer_from_sentencepiece(sentencepiece_model(bpe));
    REQUIRE_OK(t);
    tokenizers.push_back(*t);
  }
  const std::vector<std::string> parts = hostile_texts(20000), wholes = hostile_texts(160000);
  for (const TokenizerPtr& t : tokenizers)
    for (size_t i = 0; i < parts.size(); ++i) {
      INFO(parts[i].substr(0, 8));
      check_growth(*t, parts[i], wholes[i]);
    }
}

TEST_CASE("ten megabytes without a space, and a million equal characters", "[slow][.]") {
  const auto t = tokenizer_from_json(byte_level_json(kPatterns[1]));
  REQUIRE_OK(t);
  check_growth(**t, std::string(1250000, 'b'), std::string(10000000, 'b'));
  std::string mixed;
  for (uint32_t x = 1; mixed.size() < 10000000; x = x * 1664525 + 1013904223)
    mixed += static_cast<char>('a' + (x >> 24) % 3);
  check_growth(**t, mixed.substr(0, mixed.size() / 8), mixed);
}

TEST_CASE("a tokenizer.json cut or changed anywhere is refused or works, and never crashes") {
  const std::string good = byte_level_json(kPatterns[0]);
  REQUIRE_OK(tokenizer_from_json(good));
  for (size_t n = 0; n < good.size(); n += 97) CHECK_FALSE(tokenizer_from_json(good.substr(0, n)).ok());
  uint32_t x = 12345;
  for (int round = 0; round < 300; ++round) {
    std::string bad = good;
    for (int k = 0; k < 3; ++k) {
      x = x * 1664525 + 1013904223;
      bad[(x >> 8) % bad.size()] = static_cast<char>(x >> 24);
    }
    const auto t = tokenizer_from_json(bad);
    if (t.ok()) (void)(*t)->encode("Hello, world");
  }
  // A real one, cut at every 4 KB and with bits flipped.
  const std::string real = oar_test::read_file(oar_test::source_path("configs/demo/tokenizer.json"));
  REQUIRE_OK(tokenizer_from_json(real));
  for (size_t n = 0; n < real.size(); n += 4096) CHECK_FALSE(tokenizer_from_json(real.substr(0, n)).ok());
  for (int round = 0; round < 40; ++round) {
    std::string bad = real;
    for (int k = 0; k < 2; ++k) {
      x = x * 1664525 + 1013904223;
      const size_t at = (x >> 4) % bad.size();
      bad[at] = static_cast<char>(bad[at] ^ (1 << (x >> 29)));
    }
    const auto t = tokenizer_from_json(bad);
    if (t.ok()) (void)(*t)->encode("Hello, world");
  }
}

TEST_CASE("faults in tokenizer.json are named") {
  const auto message = [](const std::string& json) {
    const auto t = tokenizer_from_json(json);
    REQUIRE_FALSE(t.ok());
    return t.status().message();
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(message("[]"), "object"));
  CHECK(has(message("{}"), "model"));
  CHECK(has(message(R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})"), "vocab"));
  CHECK(has(message(R"({"model":{"type":"BPE","vocab":{"a":2000000000},"merges":[]}})"), "2000000000"));
  CHECK(has(message(R"({"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}})"), "two tokens"));
  CHECK(has(message(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})"), "merges[0]"));
  CHECK(has(message(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["ab"]}})"), "merges[0]"));
  CHECK(has(message(R"({"model":{"type":"Unigram","vocab":[["a",1e400]]}})"), "range"));
  CHECK(has(message(R"({"model":{"type":"Unigram","vocab":[["a",0]],"unk_id":7}})"), "unk_id"));
  CHECK(has(message(R"({"model":{"type":"WordPiece","vocab":{"a":0},"unk_token":"[UNK]"}})"), "[UNK]"));
  CHECK(has(message(R"({"model":{"type":"Magic","vocab":{}}})"), "Magic"));
  CHECK(has(message(R"({"normalizer":{"type":"Fold"},"model":{"type":"WordLevel","vocab":{}}})"), "Fold"));
  CHECK(has(message(R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<a"},"behavior":"Isolated"},)"
                    R"("model":{"type":"WordLevel","vocab":{}}})"),
            "(?<a"));
  CHECK(has(
      message(
          R"({"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},)"
          R"({"SpecialToken":{"id":"x","type_id":0}}],"special_tokens":{}},)"
          R"("model":{"type":"WordLevel","vocab":{}}})"),
      "\"x\""));
  CHECK(has(
      message(
          R"({"added_tokens":[{"id":3000000,"content":"x"}],"model":{"type":"WordLevel","vocab":{"a":0}}})"),
      "3000000"));
  CHECK(has(message(R"({"normalizer":{"type":"Precompiled","precompiled_charsmap":"////////"},)"
                    R"("model":{"type":"WordLevel","vocab":{}}})"),
            "charsmap"));
  std::string nested = R"({"type":"NFC"})";
  for (int i = 0; i < 20; ++i) nested = R"({"type":"Sequence","normalizers":[)" + nested + "]}";
  CHECK(has(message(R"({"normalizer":)" + nested + R"(,"model":{"type":"WordLevel","vocab":{}}})"), "deep"));
}

TEST_CASE("vocab.json and merges.txt: what the config adds, and faults by line") {
  const std::string vocab = R"({"a":0,"b":1,"1":2,"ab":3,"11":4,"\u00c3":5,"\u00a9":6,"<e>":7,"\u0120":8})";
  const std::string merges = "#version: 0.2\na b\r\n\n1 1\n";
  const auto ids = [&](std::string_view text, std::string_view config) {
    const auto t = tokenizer_from_vocab_merges(vocab, merges, config);
    REQUIRE_OK(t);
    return (*t)->encode(text).value();
  };
  using Ids = std::vector<int32_t>;
  CHECK(ids("ab11", {}) == Ids{3, 4});
  CHECK(ids("ab", R"({"tokenizer_class":"GPT2Tokenizer","add_prefix_space":true})") == Ids{8, 3});
  // Qwen2: each digit alone, and composed characters.
  CHECK(ids("11e\xCC\x81", R"({"tokenizer_class":"Qwen2Tokenizer"})") == Ids{2, 2, 5, 6});
  // Special tokens, by name when in the vocabulary, by id when listed.
  CHECK(ids("a<e>b", R"({"eos_token":"<e>","pad_token":{"content":"<e>"}})") == Ids{0, 7, 1});
  CHECK(ids("a<x>", R"({"eos_token":"<x>","added_tokens_decoder":{"9":{"content":"<x>","special":true}}})") ==
        Ids{0, 9});

  const auto message = [&](std::string_view v, std::string_view m, std::string_view config = {}) {
    const auto t = tokenizer_from_vocab_merges(v, m, config);
    REQUIRE_FALSE(t.ok());
    return t.status().message();
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  for (const char* bad : {"ab", "a  b", " a", "a ", "a b c"})
    CHECK(has(message(vocab, cat("#version: 0.2\n1 1\n", bad)), "merges.txt: line 3"));
  CHECK(has(message(vocab, "a c"), "merges[0]"));
  CHECK(has(message("[]", merges), "vocab.json"));
  CHECK(has(message("{", merges), "vocab.json"));
  CHECK(has(message(R"({"a":-1})", ""), "vocab"));
  CHECK(has(message(vocab, merges, R"({"tokenizer_class":"BartTokenizer"})"), "BartTokenizer"));
  CHECK(has(message(vocab, merges, R"({"added_tokens_decoder":{"x":{"content":"y"}}})"), "\"x\""));
  CHECK(has(message(vocab, merges, R"({"added_tokens_decoder":{"99999999":{"content":"y"}}})"), "99999999"));
  CHECK(has(message(vocab, merges, "[]"), "tokenizer_config.json"));
}

TEST_CASE("SentencePiece models cut or changed anywhere are refused or work") {
  for (const bool bpe : {true, false}) {
    const std::string good = sentencepiece_model(bpe);
    const auto t = tokenizer_from_sentencepiece(good);
    REQUIRE_OK(t);
    const auto ids = (*t)->encode("aaaaa aa");
    REQUIRE_OK(ids);
    CHECK((*t)->decode(*ids) == "aaaaa aa");
    for (size_t n = 0; n < good.size(); ++n) (void)tokenizer_from_sentencepiece(good.substr(0, n)).ok();
    for (size_t i = 0; i < good.size(); ++i)
      for (const int bit : {0, 3, 7}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
        const auto r = tokenizer_from_sentencepiece(bad);
        if (r.ok()) (void)(*r)->encode("aaa b \xE2\x96\x81");
      }
  }
  CHECK_FALSE(tokenizer_from_sentencepiece("").ok());
  CHECK_FALSE(tokenizer_from_sentencepiece(std::string(1000, '\xFF')).ok());
}

TEST_CASE("llama2.c vocabularies are checked against their length") {
  CHECK_FALSE(tokenizer_from_llama2c("", 512).ok());
  CHECK_FALSE(tokenizer_from_llama2c(std::string(100, '\xFF'), 5).ok());
  CHECK_FALSE(tokenizer_from_llama2c(std::string(100, '\0'), -1).ok());
  CHECK_FALSE(tokenizer_from_llama2c(std::string(100, '\0'), 2147483647).ok());
}

TEST_CASE("GGUF vocabularies with contradictions are refused") {
  GgufVocab good;
  good.model = "llama";
  good.tokens = {"<unk>", "<s>", "</s>", "a", "b", "ab"};
  good.scores = {0, 0, 0, -1, -2, -3};
  good.types = {2, 3, 3, 1, 1, 1};
  good.bos_id = 1, good.eos_id = 2, good.unknown_id = 0, good.separator_id = good.padding_id = 0xFFFFFFFF;
  const auto t = tokenizer_from_gguf(good);
  REQUIRE_OK(t);
  CHECK((*t)->bos_id() == 1);
  CHECK_FALSE((*t)->pad_id().has_value());
  CHECK((*t)->adds_bos());
  const auto refuse = [&](auto change) {
    GgufVocab v = good;
    change(v);
    return !tokenizer_from_gguf(std::move(v)).ok();
  };
  CHECK(refuse([](GgufVocab& v) { v.tokens.clear(); }));
  CHECK(refuse([](GgufVocab& v) { v.scores.pop_back(); }));
  CHECK(refuse([](GgufVocab& v) { v.types.push_back(1); }));
  CHECK(refuse([](GgufVocab& v) { v.scores[3] = std::numeric_limits<float>::quiet_NaN(); }));
  CHECK(refuse([](GgufVocab& v) { v.model = "rwkv"; }));
  CHECK(refuse([](GgufVocab& v) { v.model = "gpt2", v.pre = "unheard-of"; }));
  CHECK(refuse([](GgufVocab& v) { v.model = "gpt2", v.merges = {"a zz"}; }));
  CHECK(refuse([](GgufVocab& v) { v.model = "gpt2", v.merges = {"ab"}; }));
  CHECK(refuse([](GgufVocab& v) { v.model = "gpt2", v.merges = {""}; }));
  CHECK(refuse([](GgufVocab& v) { v.model = "t5", v.precompiled_charsmap = "\xFF\xFF\xFF\xFF"; }));
  CHECK_FALSE(refuse([](GgufVocab& v) { v.unknown_id = 77; }));  // fillers count as absent
  for (const char* pre :
       {"default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "deepseek-coder", "deepseek-v3", "falcon",
        "starcoder", "bloom", "viking", "tekken", "gpt-4o", "bailingmoe", "smaug-bpe", "stablelm2"}) {
    INFO(pre);
    CHECK_FALSE(refuse([&](GgufVocab& v) { v.model = "gpt2", v.pre = pre, v.merges = {"a b"}; }));
  }
}
