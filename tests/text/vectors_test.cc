// Published vectors: the real vocabularies of the data collection and the ids they must give.
#include <sstream>

#include "engine/text/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/text/gguf_metadata.h"

using namespace oar;

namespace {

constexpr Tokenizer::EncodeOptions kPlain{.add_special_tokens = false, .parse_special = false};

// llama.cpp's format: texts separated by a line of their own, expected ids one text per line.
std::vector<std::string> read_texts(const std::string& path) {
  const std::string all = oar_test::read_file(path), separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t begin = 0;
  for (size_t hit; (hit = all.find(separator, begin)) != std::string::npos; begin = hit + separator.size())
    texts.push_back(all.substr(begin, hit - begin));
  return texts;
}

std::vector<std::vector<int32_t>> read_ids(const std::string& path) {
  std::istringstream in(oar_test::read_file(path));
  std::vector<std::vector<int32_t>> all;
  for (std::string line; std::getline(in, line);) {
    std::istringstream numbers(line);
    all.emplace_back();
    for (int32_t id; numbers >> id;) all.back().push_back(id);
  }
  return all;
}

}  // namespace

TEST_CASE("GGUF vocabularies give the published ids") {
  for (const char* name : {"llama-spm", "gpt-2", "deepseek-coder", "bert-bge"}) {
    const std::string base = std::string("tokenizers/ggml-vocab/ggml-vocab-") + name + ".gguf";
    const auto path = oar_test::data_path(base);
    if (!path) OAR_SKIP("no " + base);
    const auto vocab = oar_test::read_gguf_vocab(oar_test::read_file(*path));
    REQUIRE_OK(vocab);
    const auto tokenizer = tokenizer_from_gguf(*vocab);
    REQUIRE_OK(tokenizer);
    const auto texts = read_texts(*path + ".inp");
    const auto expected = read_ids(*path + ".out");
    REQUIRE(texts.size() >= 46);
    REQUIRE(texts.size() == expected.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO(name << " text " << i << ": \"" << texts[i] << "\"");
      const auto ids = (*tokenizer)->encode(texts[i], kPlain);
      REQUIRE_OK(ids);
      CHECK(*ids == expected[i]);
    }
  }
}
