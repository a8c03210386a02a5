// The committed sample of the oracle's results (tests/text/oracle.py --golden): ids and decoded text of 77
// tokenizer configurations as the packages `tokenizers` and `sentencepiece` give them, as hashes.
#include "engine/base/json.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

std::string fnv1a(std::string_view data) {
  uint64_t h = 0xCBF29CE484222325ULL;
  for (const char b : data) h = (h ^ static_cast<unsigned char>(b)) * 0x100000001B3ULL;
  std::string hex(16, '0');
  for (size_t i = 0; i < 16; ++i) hex[15 - i] = "0123456789abcdef"[(h >> (4 * i)) & 15];
  return hex;
}

std::string bytes_of(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids)
    for (int b = 0; b < 4; ++b) out += static_cast<char>((static_cast<uint32_t>(id) >> (8 * b)) & 0xFF);
  return out;
}

std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = (bits << 6) | static_cast<uint32_t>(kDigits.find(c));
    if ((count += 6) >= 8) out += static_cast<char>((bits >> (count -= 8)) & 0xFF);
  }
  return out;
}

}  // namespace

TEST_CASE("ids and decoded text equal the packages' on the committed sample") {
  const auto document =
      parse_json(oar_test::read_file(oar_test::source_path("tests/text/golden/oracle.json")), "oracle.json");
  REQUIRE_OK(document);
  const json::object& root = document->as_object();
  std::vector<std::string> texts;
  for (const auto& t : root.at("texts").as_array()) texts.emplace_back(t.as_string());
  REQUIRE(texts.size() >= 50);
  size_t checked = 0;
  for (const auto& value : root.at("cases").as_array()) {
    const json::object& c = value.as_object();
    INFO("configuration " << std::string(c.at("name").as_string()));
    auto tokenizer = [&]() -> Result<TokenizerPtr> {
      if (const auto* model = c.if_contains("sentencepiece"))
        return tokenizer_from_sentencepiece(from_base64(model->as_string()));
      json::object full = c.at("tokenizer").as_object();
      full["model"] = root.at("models").as_object().at(c.at("model").as_string());
      return tokenizer_from_json(json::serialize(full));
    }();
    REQUIRE_OK(tokenizer);
    const Tokenizer::EncodeOptions options{.add_special_tokens = c.at("special").as_bool(),
                                           .parse_special = !c.at("raw").as_bool()};
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO("text " << i << ": " << texts[i]);
      const auto ids = (*tokenizer)->encode(texts[i], options);
      REQUIRE_OK(ids);
      CHECK(fnv1a(bytes_of(*ids)) == std::string_view(c.at("ids").as_array()[i].as_string()));
      const std::string text = (*tokenizer)->decode(*ids);
      CHECK(fnv1a(text) == std::string_view(c.at("decoded").as_array()[i].as_string()));

      IncrementalDetokenizer stream(*tokenizer);
      std::string streamed;
      for (const int32_t id : *ids) streamed += stream.push(id);
      streamed += stream.finish();
      CHECK(streamed == text);
      ++checked;
    }
  }
  CHECK(checked > 3000);
}
