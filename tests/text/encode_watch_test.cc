// Long texts in slices: the same ids, an end when somebody asks for it, and what can be said of a text's
// tokens before it is tokenized.
#include "engine/text/encode_watch.h"

#include <random>

#include "engine/base/json.h"
#include "engine/text/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

class Looks final : public EncodeWatch {
 public:
  explicit Looks(int64_t most = -1) : most_(most) {}
  Status look(size_t ids) override {
    CHECK(ids >= ids_);
    ids_ = ids;
    if (++count == most_) return {StatusCode::kCancelled, "enough"};
    return ok_status();
  }
  int64_t count = 0;

 private:
  const int64_t most_;
  size_t ids_ = 0;
};

std::vector<std::pair<std::string, TokenizerPtr>> all_tokenizers() {
  std::vector<std::pair<std::string, TokenizerPtr>> out;
  const auto document =
      parse_json(oar_test::read_file(oar_test::source_path("tests/text/golden/oracle.json")), "oracle.json");
  REQUIRE_OK(document);
  for (const auto& value : document->as_object().at("cases").as_array()) {
    const json::object& c = value.as_object();
    if (c.contains("sentencepiece")) continue;  // spelled in base64; the collection has others
    json::object full = c.at("tokenizer").as_object();
    full["model"] = document->as_object().at("models").as_object().at(c.at("model").as_string());
    const auto made = tokenizer_from_json(json::serialize(full));
    REQUIRE_OK(made);
    out.emplace_back(c.at("name").as_string().c_str(), *made);
  }
  const auto add = [&](const char* name, auto&& make) {
    const auto path = oar_test::data_path(name);
    if (!path) return;
    const Result<TokenizerPtr> made = make(oar_test::read_file(*path));
    REQUIRE_OK(made);
    out.emplace_back(name, *made);
  };
  const auto from_json = [](const std::string& file) { return tokenizer_from_json(file); };
  add("tokenizers/bert_hf/tokenizer.json", from_json);
  add("tokenizers/minimind/tokenizer.json", from_json);
  add("tokenizers/ernie/vocab.txt", [](const std::string& file) { return tokenizer_from_vocab_txt(file); });
  add("tokenizers/gpt2/vocab.json", [](const std::string& file) {
    return tokenizer_from_vocab_merges(
        file, oar_test::read_file(*oar_test::data_path("tokenizers/gpt2/merges.txt")));
  });
  for (const char* name : {"tokenizers/mistral/tokenizer.model.v1", "tokenizers/unigram/test_model.model"})
    add(name, [](const std::string& file) { return tokenizer_from_sentencepiece(file); });
  return out;
}

// Words, runs of one character, and bytes that are no characters.
std::string long_text(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<std::string> units = {
      "word ",     "Other words, too. ", "a",    " ",     "\n",   "12 ", "\xE6\xBC\xA2",
      "e\xCC\x81", "\xF0\x9F\x98\x80",   "\xFF", "<|x|>", "\t\t", "'s "};
  std::string out;
  while (out.size() < bytes) {
    const std::string& unit = units[random() % units.size()];
    for (uint32_t n = random() % 16 == 0 ? random() % 3000 : random() % 4; n > 0; --n) out += unit;
  }
  return out;
}

}  // namespace

TEST_CASE("a watched text has the same ids, and is left off when its watcher says so", "[tokenizer]") {
  const std::string texts[] = {long_text(300'000, 1), std::string(300'000, 'a'), std::string(200'000, ' ')};
  int64_t total = 0;
  oar_test::Sample sample(7);
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    INFO(name);
    for (const std::string& text : texts) {
      if (!sample.take()) continue;
      Looks looks;
      const auto plain = tokenizer->encode(text);
      const auto watched = tokenizer->encode(text, {.watch = &looks});
      REQUIRE_OK(plain);
      REQUIRE_OK(watched);
      CHECK(*watched == *plain);
      total += looks.count;
      // What a normalizer or a split takes away is no work. Where many ids are left, many slices were.
      if (plain->size() > 100'000) CHECK(looks.count >= 1);
      for (const int64_t most : {int64_t{1}, looks.count / 2, looks.count}) {
        if (most < 1 || most > looks.count) continue;
        Looks few(most);
        const auto stopped = tokenizer->encode(text, {.watch = &few});
        CHECK(stopped.status().code() == StatusCode::kCancelled);
        CHECK(stopped.status().message() == "enough");
        CHECK(few.count == most);
      }
    }
  }
  CHECK(total > (oar_test::kSlow ? 50 : 500));
}

TEST_CASE("no text has more bytes for each of its ids than its tokenizer says", "[tokenizer]") {
  size_t bounded = 0;
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    const size_t most = tokenizer->max_token_bytes();
    if (most == 0) continue;
    INFO(name << ", " << most << " bytes");
    ++bounded;
    std::vector<std::string> texts;
    for (uint32_t seed = 0; seed < 20; ++seed) texts.push_back(long_text(2000, seed));
    for (int32_t id = 0; id < tokenizer->vocab_size(); id += 7)  // runs of its own tokens come nearest
      for (std::string& text = texts.emplace_back(); text.size() < 600;) {
        const std::string_view token = tokenizer->token_bytes(id);
        text += token.empty() ? std::string_view("x") : token;
      }
    for (const std::string& text : texts) {
      const auto ids = tokenizer->encode(text, {.add_special_tokens = false});
      if (ids.status().code() == StatusCode::kResourceExhausted)
        continue;  // a pattern that is slow on digits
      REQUIRE_OK(ids);
      if (text.size() > most * ids->size()) FAIL("a text of " << text.size() << " bytes");
    }
  }
  CHECK(bounded > 0);
}
