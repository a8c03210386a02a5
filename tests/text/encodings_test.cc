// tiktoken files and GGUF pre-tokenizers on a small vocabulary, against the packages tiktoken and tokenizers
// (generate_encodings.py).
#include "engine/base/json.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

constexpr Tokenizer::EncodeOptions kPlain{.add_special_tokens = false, .parse_special = false};

const json::object& golden() {
  static const json::value v =
      json::parse(oar_test::read_file(oar_test::source_path("tests/text/golden/encodings.json")));
  return v.get_object();
}

std::string base64(std::string_view bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// The golden's ranks, those of Kimi behind them where asked for, filled up to `count` with tokens that no
// text has: bytes that begin no UTF-8.
std::string ranks_file(size_t count, bool kimi = false) {
  std::string out;
  size_t rank = 0;
  const auto add = [&](const json::value& tokens) {
    for (const json::value& t : tokens.as_array())
      out += std::string(t.as_string()) + " " + std::to_string(rank++) + "\n";
  };
  add(golden().at("tokens"));
  if (kimi) add(golden().at("kimi").at("tokens"));
  for (; rank < count; ++rank)
    out += base64("\xFF\xFE" + std::to_string(rank)) + " " + std::to_string(rank) + "\n";
  return out;
}

void must_equal(const Tokenizer& tokenizer, const char* name, const json::array& texts,
                const json::array& ids) {
  REQUIRE(texts.size() == ids.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    INFO(name << ": " << std::string(texts[i].as_string()));
    const auto got = tokenizer.encode(std::string_view(texts[i].as_string()), kPlain);
    REQUIRE_OK(got);
    CHECK(*got == json::value_to<std::vector<int32_t>>(ids[i]));
  }
}
void must_equal(const Tokenizer& tokenizer, const char* name) {
  must_equal(tokenizer, name, golden().at("texts").as_array(), golden().at("ids").at(name).as_array());
}

}  // namespace

TEST_CASE("tiktoken files give the ids of tiktoken") {
  struct Case {
    const char* name;
    size_t ranks;
  };
  for (const Case& c :
       {Case{"Llama 3", 128000}, {"Qwen", 151643}, {"cl100k_base", 100256}, {"r50k_base", 50256}}) {
    const std::string file = ranks_file(c.ranks);
    CHECK(is_tiktoken(file));
    const auto tokenizer = tokenizer_from_tiktoken(file);
    REQUIRE_OK(tokenizer);
    must_equal(**tokenizer, c.name);
  }
}

TEST_CASE("a tiktoken file of Llama 3 has its special tokens") {
  const auto made = tokenizer_from_tiktoken(ranks_file(128000));
  REQUIRE_OK(made);
  const Tokenizer& t = **made;
  CHECK(t.vocab_size() == 128256);
  CHECK(t.bos_id() == 128000);
  CHECK(t.eos_id() == 128001);
  CHECK(t.token_to_id("<|start_header_id|>") == 128006);
  CHECK(t.token_to_id("<|eot_id|>") == 128009);
  CHECK(t.token_to_id("<|reserved_special_token_247|>") == 128255);
  const auto ids = t.encode("<|eot_id|>0");
  REQUIRE_OK(ids);
  REQUIRE(ids->size() == 3);
  CHECK((*ids)[0] == 128000);
  CHECK((*ids)[1] == 128009);
  CHECK(t.decode(*ids) == "0");
}

TEST_CASE("a tiktoken file of Qwen is known by its class too") {
  const auto made = tokenizer_from_tiktoken(ranks_file(0), R"({"tokenizer_class": "QWenTokenizer"})");
  REQUIRE_OK(made);
  must_equal(**made, "Qwen");
  const int32_t ranks = static_cast<int32_t>(golden().at("tokens").as_array().size());
  CHECK((*made)->token_to_id("<|im_end|>") == ranks + 2);
  CHECK((*made)->token_to_id("<|extra_204|>") == ranks + 207);
  CHECK_FALSE((*made)->adds_bos());
}

// Its split pattern knows cases and Chinese characters; names of special tokens lie in tokenizer_config.json.
TEST_CASE("a tiktoken file of Kimi K2 is known by its size and by its class") {
  const std::string config =
      R"({"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
    "added_tokens_decoder": {"163586": {"content": "<|im_end|>", "special": true},
      "163587": {"content": "<|im_user|>", "special": true}, "163598": {"content": "<|tool_call_begin|>", "special": false},
      "163839": {"content": "[PAD]", "special": true}}})";
  const json::object& kimi = golden().at("kimi").as_object();
  for (const bool named : {true, false}) {
    const auto made = tokenizer_from_tiktoken(ranks_file(163584, true), named ? config : std::string());
    REQUIRE_OK(made);
    const Tokenizer& t = **made;
    must_equal(t, "Kimi K2", kimi.at("texts").as_array(), kimi.at("ids").as_array());
    CHECK(t.vocab_size() == 163840);
    CHECK(t.eos_id() == 163585);
    CHECK_FALSE(t.adds_bos());
    CHECK(t.token_to_id("[BOS]") == 163584);
    CHECK(t.token_to_id("<|im_end|>") == 163586);
    CHECK(t.token_to_id("<|im_user|>") == (named ? std::optional<int32_t>(163587) : std::nullopt));
    CHECK(t.token_to_id("[PAD]") == (named ? std::optional<int32_t>(163839) : std::nullopt));
    CHECK(t.token_to_id("<|reserved_token_163588|>") == 163588);
    const auto ids = t.encode("<|im_end|>0");
    REQUIRE_OK(ids);
    REQUIRE(ids->size() == 2);
    CHECK((*ids)[0] == 163586);
  }
  const auto small =
      tokenizer_from_tiktoken(ranks_file(0, true), R"({"tokenizer_class": "TikTokenTokenizer"})");
  REQUIRE_OK(small);
  must_equal(**small, "Kimi K2", kimi.at("texts").as_array(), kimi.at("ids").as_array());
  const auto elsewhere = tokenizer_from_tiktoken(
      ranks_file(0, true),
      R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"7": {"content": "x"}}})");
  CHECK_THAT(elsewhere.status().message(), oar_test::Contains("added_tokens_decoder: 7"));
}

TEST_CASE("tiktoken files that are unknown or damaged are refused by name") {
  using oar_test::Contains;
  const auto message = [](std::string_view file) { return tokenizer_from_tiktoken(file).status().message(); };
  CHECK_THAT(message(ranks_file(0)), Contains("480 tokens") && Contains("128000 (Llama 3)"));
  CHECK_THAT(message("IQ== 0\nIg== 2\n"), Contains("line 2") && Contains("rank 2"));
  CHECK_THAT(message("IQ== 0\nI!== 1\n"), Contains("line 2"));
  CHECK_THAT(message("IQ== 0\nIg==\n"), Contains("line 2"));
  CHECK_FALSE(is_tiktoken(""));
  CHECK_FALSE(is_tiktoken("\x0A\x0E\x0A\x05<unk>\x15 0"));
  CHECK_FALSE(is_tiktoken("#version: 0.2\n"));
}

TEST_CASE("GGUF's deepseek-llm splits as the vendor's tokenizer does") {
  GgufVocab v;
  v.model = "gpt2";
  v.pre = "deepseek-llm";
  const auto tiktoken = tokenizer_from_tiktoken(ranks_file(0), R"({"tokenizer_class": "QWenTokenizer"})");
  REQUIRE_OK(tiktoken);
  for (int32_t id = 0; id < static_cast<int32_t>(golden().at("tokens").as_array().size()); ++id)
    v.tokens.emplace_back((*tiktoken)->token_text(id));
  for (const json::value& m : golden().at("merges").as_array()) v.merges.emplace_back(m.as_string());
  const auto tokenizer = tokenizer_from_gguf(v);
  REQUIRE_OK(tokenizer);
  must_equal(**tokenizer, "deepseek-llm");
}

TEST_CASE("a pre-tokenizer that nobody knows is refused by name") {
  GgufVocab v;
  v.model = "gpt2";
  v.pre = "no-such-split";
  v.tokens = {"a"};
  CHECK_THAT(tokenizer_from_gguf(v).status().message(), oar_test::Contains("no-such-split"));
}

// The same vocabulary and merges in both files: what tokenizer.json says in stages a GGUF file says by a
// name.
TEST_CASE("a GGUF file of Gemma 4's tokenizer equals its tokenizer.json") {
  const std::string mark = "\xE2\x96\x81";
  std::vector<std::string> tokens = {"<pad>", "<eos>", "<bos>", "<unk>"};
  for (int b = 0; b < 256; ++b) {
    constexpr char kHex[] = "0123456789ABCDEF";
    tokens.push_back(std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">");
  }
  for (const char c : std::string("abcdehlortw\n")) tokens.push_back(std::string(1, c));
  for (const std::string& t : {mark, mark + mark, mark + "w", mark + "wo", std::string("he"),
                               std::string("ll"), std::string("hell"), std::string("\n\n"), std::string("é")})
    tokens.push_back(t);
  const std::vector<std::string> merges = {mark + " " + mark, "h e",        "l l",  "he ll",
                                           mark + " w",       mark + "w o", "\n \n"};
  GgufVocab gguf;
  gguf.model = "gemma4";
  gguf.tokens = tokens;
  gguf.merges = merges;
  gguf.types.assign(tokens.size(), 1);
  for (size_t i = 0; i < 3; ++i) gguf.types[i] = 3;
  gguf.types[3] = 2;
  gguf.bos_id = 2, gguf.eos_id = 1, gguf.padding_id = 0, gguf.unknown_id = 3;
  json::object vocab;
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  json::array added, pairs;
  for (int i = 0; i < 4; ++i)
    added.push_back({{"id", i}, {"content", tokens[static_cast<size_t>(i)]}, {"special", true}});
  for (const std::string& m : merges) pairs.push_back(json::value(m));
  const auto replace = [](const std::string& from, const std::string& to) {
    return json::object{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const json::object file = {
      {"added_tokens", added},
      {"normalizer", replace(" ", mark)},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"String", " "}}},
        {"behavior", "MergedWithPrevious"},
        {"invert", false}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", json::array{replace(mark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", pairs}}}};
  const auto a = tokenizer_from_json(json::serialize(file)), b = tokenizer_from_gguf(gguf);
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  for (const std::string text :
       {"hello world", "  hello  wowo\n\nb", "é\xE2\x82\xAC and \xF0\x9F\x98\x80", "", "<bos>a<eos> b"}) {
    INFO(text);
    for (const bool special : {false, true}) {
      const Tokenizer::EncodeOptions options{.add_special_tokens = false, .parse_special = special};
      const auto ids = (*a)->encode(text, options), own = (*b)->encode(text, options);
      REQUIRE_OK(ids);
      REQUIRE_OK(own);
      CHECK(*own == *ids);
      CHECK((*b)->decode(*own, false) == (*a)->decode(*ids, false));
    }
    const auto with_bos = (*b)->encode(text, {});
    REQUIRE_OK(with_bos);
    CHECK(with_bos->front() == 2);
  }
  gguf.merges.push_back("x y");
  CHECK_THAT(tokenizer_from_gguf(gguf).status().message(), oar_test::Contains("x y"));
}
