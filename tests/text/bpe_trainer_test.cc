// Tokenizers learned from text, against those that Hugging Face's tokenizers learn
// (tests/golden/generate_bpe.py).
#include "engine/text/bpe_trainer.h"

#include "engine/base/format.h"
#include "engine/loader/tokenizer_files.h"
#include "engine/runtime/model_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test;

namespace {

std::vector<std::string_view> views(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

}  // namespace

TEST_CASE("merges and entries are those of Hugging Face's trainer") {
  const json::value cases = json::parse(read_file(source_path("tests/golden/bpe.json")));
  REQUIRE(cases.as_array().size() >= 6);
  for (const json::value& value : cases.as_array()) {
    const json::object& c = value.as_object();
    INFO(json::serialize(c.contains("file") ? c.at("file") : c.at("texts")));
    std::vector<std::string> texts;
    if (c.contains("file")) texts.push_back(read_file(source_path(std::string(c.at("file").as_string()))));
    else
      for (const json::value& t : c.at("texts").as_array()) texts.emplace_back(t.as_string());
    BpeTrainerOptions o;
    o.vocab = c.at("vocab").as_int64(), o.least_count = c.at("least").as_int64();
    const auto made = train_tokenizer(views(texts), o);
    REQUIRE_OK(made);
    CHECK(static_cast<int64_t>(made->entries.size()) == c.at("entries").as_int64());
    const json::value written = json::parse(trained_tokenizer_json(*made, o));
    CHECK(written.at("model").at("merges") == c.at("merges"));
    CHECK(written.at("model").at("vocab").as_object().size() == made->entries.size());

    TokenizerFiles files;
    files.tokenizer_json = trained_tokenizer_json(*made, o),
    files.tokenizer_config_json = trained_tokenizer_config_json(o);
    const auto tokenizer = make_tokenizer(files, 0);
    REQUIRE_OK(tokenizer);
    CHECK((*tokenizer)->bos_id() == 0);
    for (const std::string& text : texts) {
      const auto ids = (*tokenizer)->encode(text, {.add_special_tokens = false});
      REQUIRE_OK(ids);
      std::string back;
      for (const int32_t id : *ids) back += made->entries[static_cast<size_t>(id)];
      CHECK(back == text);
    }
  }
}

TEST_CASE("tokenizers that cannot be learned are refused by name") {
  const auto says = [](const std::vector<std::string>& texts, const BpeTrainerOptions& o, const char* words) {
    const auto made = train_tokenizer(views(texts), o);
    REQUIRE_FALSE(made.ok());
    INFO(made.status().message());
    CHECK(made.status().message().find(words) != std::string::npos);
  };
  BpeTrainerOptions o;
  o.vocab = 261;
  says({"a"}, o, "6 special tokens and 256 bytes take, 262");
  o = {}, o.special = {"<a>"};
  says({"a"}, o, "one that ends them");
  o.special = {"<a>", "<a>"};
  says({"a"}, o, "there twice");
  o = {}, o.pattern = "(";
  says({"a"}, o, "(");
  says({"a", "\xff"}, {}, "text 2 is not UTF-8");
}
