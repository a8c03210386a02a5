// Published vectors: the real vocabularies of the data collection and the ids they must give.
#include <sstream>

#include "engine/base/json.h"
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

TEST_CASE("GPT-2's vocab.json and merges.txt give the published ids") {
  const auto vocab = oar_test::data_path("tokenizers/gpt2/vocab.json"),
             merges = oar_test::data_path("tokenizers/gpt2/merges.txt"),
             vectors = oar_test::data_path("tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf");
  if (!vocab || !merges || !vectors) OAR_SKIP("no tokenizers/gpt2");
  const auto tokenizer =
      tokenizer_from_vocab_merges(oar_test::read_file(*vocab), oar_test::read_file(*merges));
  REQUIRE_OK(tokenizer);
  CHECK((*tokenizer)->vocab_size() == 50257);
  CHECK((*tokenizer)->eos_id() == 50256);
  CHECK((*tokenizer)->encode("a<|endoftext|>").value() == std::vector<int32_t>{64, 50256});
  const auto texts = read_texts(*vectors + ".inp");
  const auto expected = read_ids(*vectors + ".out");
  REQUIRE(texts.size() == expected.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    INFO("text " << i << ": \"" << texts[i] << "\"");
    const auto ids = (*tokenizer)->encode(texts[i], kPlain);
    REQUIRE_OK(ids);
    CHECK(*ids == expected[i]);
    CHECK((*tokenizer)->decode(*ids) == texts[i]);
  }
}

TEST_CASE("stories260K has the same vocabulary in its .model, .bin and GGUF forms") {
  const auto model = oar_test::data_path("llm/stories260K/tok512.model");
  const auto bin = oar_test::data_path("llm/stories260K/tok512.bin");
  const auto gguf = oar_test::data_path("llm/stories260K/stories260K.gguf");
  const auto sample = oar_test::data_path("tokenizers/bpe_training_golden/tinystories_sample.txt");
  if (!model || !bin || !gguf || !sample) OAR_SKIP("no llm/stories260K");
  const auto a = tokenizer_from_sentencepiece(oar_test::read_file(*model));
  REQUIRE_OK(a);
  const auto b = tokenizer_from_llama2c(oar_test::read_file(*bin), 512);
  REQUIRE_OK(b);
  const auto vocab = oar_test::read_gguf_vocab(oar_test::read_file(*gguf));
  REQUIRE_OK(vocab);
  const auto c = tokenizer_from_gguf(*vocab);
  REQUIRE_OK(c);
  CHECK((*a)->vocab_size() == 512);
  CHECK((*c)->bos_id() == 1);
  CHECK((*c)->adds_bos());
  std::istringstream lines(oar_test::read_file(*sample));
  size_t ids = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.back() == ' ') continue;
    const auto x = (*a)->encode(line, kPlain), y = (*b)->encode(line, kPlain), z = (*c)->encode(line, kPlain);
    REQUIRE_OK(x);
    CHECK(*x == *y);
    CHECK(*x == *z);
    CHECK((*a)->decode(*x) == line);
    ids += x->size();
  }
  CHECK(ids > 1000);
}

TEST_CASE("real tokenizers bring real texts back") {
  struct Source {
    const char* path;
    bool json;
  };
  for (const Source& source : {Source{"tokenizers/minimind/tokenizer.json", true},
                               {"tokenizers/mistral/tokenizer.model.v1", false}}) {
    const auto path = oar_test::data_path(source.path);
    if (!path) OAR_SKIP("no " + std::string(source.path));
    const std::string bytes = oar_test::read_file(*path);
    const auto t = source.json ? tokenizer_from_json(bytes) : tokenizer_from_sentencepiece(bytes);
    REQUIRE_OK(t);
    for (const char* text :
         {"tokenizers/bpe_training_golden/german.txt", "tokenizers/bpe_training_golden/address.txt",
          "tokenizers/bpe_training_golden/corpus.en", "text/poet.tang.0.json"}) {
      const auto file = oar_test::data_path(text);
      if (!file) OAR_SKIP("no " + std::string(text));
      const std::string content = oar_test::read_file(*file);
      const auto ids = (*t)->encode(content, kPlain);
      REQUIRE_OK(ids);
      CHECK(((*t)->decode(*ids) == content));
    }
  }
}

TEST_CASE(
    "vocabularies of vocab.json and merges.txt: GPT-2's equals its GGUF form, a trained one brings texts "
    "back") {
  const auto load = [](const std::string& vocab, const std::string& merges) {
    json::object root;
    json::array list;
    std::istringstream lines(oar_test::read_file(merges));
    for (std::string line; std::getline(lines, line);)
      if (!line.empty() && !line.starts_with("#version")) list.emplace_back(line);
    root["model"] = {{"type", "BPE"},
                     {"vocab", parse_json(oar_test::read_file(vocab), "vocab.json").value()},
                     {"merges", list}};
    root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
    root["decoder"] = {{"type", "ByteLevel"}};
    return tokenizer_from_json(json::serialize(root));
  };
  const auto gguf = oar_test::data_path("tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf");
  const auto vocab = oar_test::data_path("tokenizers/gpt2/vocab.json");
  const auto trained = oar_test::data_path("tokenizers/bpe_training_golden/train-bpe-reference-vocab.json");
  if (!gguf || !vocab || !trained) OAR_SKIP("no tokenizers/gpt2");
  const auto gpt2 = load(*vocab, *oar_test::data_path("tokenizers/gpt2/merges.txt"));
  REQUIRE_OK(gpt2);
  const auto texts = read_texts(*gguf + ".inp");
  const auto expected = read_ids(*gguf + ".out");
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = (*gpt2)->encode(texts[i], kPlain);
    REQUIRE_OK(ids);
    CHECK(*ids == expected[i]);
    CHECK((*gpt2)->decode(*ids) == texts[i]);
  }
  const auto small =
      load(*trained, *oar_test::data_path("tokenizers/bpe_training_golden/train-bpe-reference-merges.txt"));
  REQUIRE_OK(small);
  for (const char* name : {"german.txt", "address.txt", "corpus.en", "tinystories_sample.txt"}) {
    const auto file = oar_test::data_path(std::string("tokenizers/bpe_training_golden/") + name);
    const std::string content = oar_test::read_file(*file);
    const auto ids = (*small)->encode(content, kPlain);
    REQUIRE_OK(ids);
    CHECK(((*small)->decode(*ids) == content));
  }
}

TEST_CASE("chat markers in the text become special tokens only when asked") {
  const auto path = oar_test::data_path("tokenizers/minimind/tokenizer.json");
  const auto config = oar_test::data_path("tokenizers/minimind/tokenizer_config.json");
  if (!path || !config) OAR_SKIP("no tokenizers/minimind");
  const auto t = tokenizer_from_json(oar_test::read_file(*path), oar_test::read_file(*config));
  REQUIRE_OK(t);
  CHECK((*t)->bos_id() == 1);
  CHECK((*t)->eos_id() == 2);
  CHECK((*t)->pad_id() == 0);
  CHECK_FALSE((*t)->adds_bos());
  CHECK((*t)->is_special(1));
  CHECK_FALSE((*t)->is_special(25));
  CHECK((*t)->token_to_id("<think>") == 25);
  CHECK((*t)->token_text(2) == "<|im_end|>");
  const auto parsed = (*t)->encode("<|im_start|>hi<|im_end|>");
  REQUIRE_OK(parsed);
  CHECK(parsed->front() == 1);
  CHECK(parsed->back() == 2);
  CHECK((*t)->decode(*parsed) == "hi");
  CHECK((*t)->decode(*parsed, false) == "<|im_start|>hi<|im_end|>");
  const auto plain = (*t)->encode("<|im_start|>hi<|im_end|>", kPlain);
  REQUIRE_OK(plain);
  CHECK(plain->size() > 6);
  CHECK((*t)->decode(*plain) == "<|im_start|>hi<|im_end|>");
}
