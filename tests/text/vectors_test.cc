// Vocabularies as files, whole: our own of each kind with the ids that independent packages give them
// (tests/golden/generate_vocabularies.py), and published ones where the data collection is there.
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

// The ids of the vectors beside a GGUF vocabulary, and, if asked, the texts back.
void check_vectors(const Tokenizer& tokenizer, const std::string& gguf, bool back) {
  const auto texts = read_texts(gguf + ".inp");
  const auto expected = read_ids(gguf + ".out");
  REQUIRE(texts.size() >= 46);
  REQUIRE(texts.size() == expected.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    INFO(gguf << " text " << i << ": \"" << texts[i] << "\"");
    const auto ids = tokenizer.encode(texts[i], kPlain);
    REQUIRE_OK(ids);
    CHECK(*ids == expected[i]);
    if (back) CHECK(tokenizer.decode(*ids) == texts[i]);
  }
}

void check_round_trip(const Tokenizer& tokenizer, const std::string& file) {
  INFO(file);
  const std::string content = oar_test::read_file(file);
  const auto ids = tokenizer.encode(content, kPlain);
  REQUIRE_OK(ids);
  CHECK((tokenizer.decode(*ids) == content));
}

// Our own text and, where they are there, published ones in other languages.
std::vector<std::string> texts_to_bring_back() {
  std::vector<std::string> files = {oar_test::source_path("configs/demo/heldout.txt"),
                                    oar_test::source_path("tests/data/chat_templates/cases.json")};
  for (const char* name :
       {"tokenizers/bpe_training_golden/german.txt", "tokenizers/bpe_training_golden/address.txt",
        "tokenizers/bpe_training_golden/corpus.en", "text/poet.tang.0.json"}) {
    if (const auto path = oar_test::data_path(name)) files.push_back(*path);
  }
  return files;
}

// The pair as a tokenizer.json says it.
Result<TokenizerPtr> as_tokenizer_json(const std::string& vocab, const std::string& merges) {
  json::object root;
  json::array list;
  std::istringstream lines(merges);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && !line.starts_with("#version")) list.emplace_back(line);
  root["model"] = {{"type", "BPE"}, {"vocab", parse_json(vocab, "vocab.json").value()}, {"merges", list}};
  root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  root["decoder"] = {{"type", "ByteLevel"}};
  return tokenizer_from_json(json::serialize(root));
}

}  // namespace

TEST_CASE("GGUF vocabularies give the ids of independent packages") {
  const std::string published = "tokenizers/ggml-vocab/ggml-vocab-";
  std::vector<std::string> paths;
  for (const auto& [own, name] :
       {std::pair("vocab/spm.gguf", "llama-spm.gguf"), std::pair("vocab/gpt2.gguf", "gpt-2.gguf"),
        std::pair("vocab/bert.gguf", "bert-bge.gguf")}) {
    for (const std::string& path : oar_test::files_of_kind(own, published + name)) paths.push_back(path);
  }
  if (const auto path = oar_test::data_path(published + "deepseek-coder.gguf")) paths.push_back(*path);
  for (const std::string& path : paths) {
    INFO(path);
    const auto vocab = oar_test::read_gguf_vocab(oar_test::read_file(path));
    REQUIRE_OK(vocab);
    const auto tokenizer = tokenizer_from_gguf(*vocab);
    REQUIRE_OK(tokenizer);
    check_vectors(**tokenizer, path, false);
  }
}

TEST_CASE("GPT-2's vocab.json and merges.txt give the ids of its GGUF form") {
  const auto folders = oar_test::files_of_kind("vocab/gpt2", "tokenizers/gpt2");
  const auto vectors =
      oar_test::files_of_kind("vocab/gpt2.gguf", "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf");
  REQUIRE(folders.size() == vectors.size());
  for (size_t k = 0; k < folders.size(); ++k) {
    INFO(folders[k]);
    const std::string vocab = oar_test::read_file(folders[k] + "/vocab.json");
    const std::string merges = oar_test::read_file(folders[k] + "/merges.txt");
    const auto tokenizer = tokenizer_from_vocab_merges(vocab, merges);
    REQUIRE_OK(tokenizer);
    const int32_t end = (*tokenizer)->vocab_size() - 1;
    CHECK(end == (k == 0 ? 768 : 50256));
    CHECK((*tokenizer)->eos_id() == end);
    CHECK((*tokenizer)->encode("a<|endoftext|>").value() == std::vector<int32_t>{64, end});
    check_vectors(**tokenizer, vectors[k], true);
    const auto json = as_tokenizer_json(vocab, merges);
    REQUIRE_OK(json);
    check_vectors(**json, vectors[k], true);
    for (const std::string& file : texts_to_bring_back()) check_round_trip(**json, file);
  }
}

TEST_CASE("a llama2.c model has the same vocabulary in its .model, .bin and GGUF forms") {
  const auto folders = oar_test::files_of_kind("tales", "llm/stories260K");
  for (const std::string& folder : folders) {
    INFO(folder);
    const bool own = folder == folders.front();
    const auto a = tokenizer_from_sentencepiece(oar_test::read_file(folder + "/tok512.model"));
    REQUIRE_OK(a);
    const auto b = tokenizer_from_llama2c(oar_test::read_file(folder + "/tok512.bin"), 512);
    REQUIRE_OK(b);
    const auto vocab =
        oar_test::read_gguf_vocab(oar_test::read_file(folder + (own ? "/tales.gguf" : "/stories260K.gguf")));
    REQUIRE_OK(vocab);
    const auto c = tokenizer_from_gguf(*vocab);
    REQUIRE_OK(c);
    CHECK((*a)->vocab_size() == 512);
    CHECK((*c)->bos_id() == 1);
    CHECK((*c)->adds_bos());
    std::istringstream lines(oar_test::read_file(
        own ? folder + "/sample.txt"
            : *oar_test::data_path("tokenizers/bpe_training_golden/tinystories_sample.txt")));
    size_t ids = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line.back() == ' ') continue;
      const auto x = (*a)->encode(line, kPlain), y = (*b)->encode(line, kPlain),
                 z = (*c)->encode(line, kPlain);
      REQUIRE_OK(x);
      CHECK(*x == *y);
      CHECK(*x == *z);
      CHECK((*a)->decode(*x) == line);
      ids += x->size();
    }
    CHECK(ids > 1000);
  }
}

TEST_CASE("tokenizers bring whole texts back") {
  std::vector<TokenizerPtr> tokenizers;
  for (const std::string& path :
       oar_test::files_of_kind("vocab/chat/tokenizer.json", "tokenizers/minimind/tokenizer.json")) {
    auto t = tokenizer_from_json(oar_test::read_file(path));
    REQUIRE_OK(t);
    tokenizers.push_back(std::move(*t));
  }
  for (const std::string& path :
       oar_test::files_of_kind("vocab/spm.model", "tokenizers/mistral/tokenizer.model.v1")) {
    auto t = tokenizer_from_sentencepiece(oar_test::read_file(path));
    REQUIRE_OK(t);
    tokenizers.push_back(std::move(*t));
  }
  // Of another trainer, in another order.
  const std::string trained = "tokenizers/bpe_training_golden/train-bpe-reference-";
  const auto vocab = oar_test::data_path(trained + "vocab.json"),
             merges = oar_test::data_path(trained + "merges.txt");
  if (vocab && merges) {
    auto t = as_tokenizer_json(oar_test::read_file(*vocab), oar_test::read_file(*merges));
    REQUIRE_OK(t);
    tokenizers.push_back(std::move(*t));
  }
  for (const TokenizerPtr& t : tokenizers) {
    for (const std::string& file : texts_to_bring_back()) check_round_trip(*t, file);
  }
}

TEST_CASE("chat markers in the text become special tokens only when asked") {
  for (const std::string& folder : oar_test::files_of_kind("vocab/chat", "tokenizers/minimind")) {
    INFO(folder);
    const bool own = folder == oar_test::source_path("tests/data/vocab/chat");
    // Ours stand behind the vocabulary, the published ones before it.
    const int32_t end = own ? 768 : 0, think = own ? end + 3 : 25;
    const auto t = tokenizer_from_json(oar_test::read_file(folder + "/tokenizer.json"),
                                       oar_test::read_file(folder + "/tokenizer_config.json"));
    REQUIRE_OK(t);
    CHECK((*t)->bos_id() == end + 1);
    CHECK((*t)->eos_id() == end + 2);
    CHECK((*t)->pad_id() == end);
    CHECK_FALSE((*t)->adds_bos());
    CHECK((*t)->is_special(end + 1));
    CHECK_FALSE((*t)->is_special(think));
    CHECK((*t)->token_to_id("<think>") == think);
    CHECK((*t)->token_text(end + 2) == "<|im_end|>");
    const auto parsed = (*t)->encode("<|im_start|>hi<|im_end|>");
    REQUIRE_OK(parsed);
    CHECK(parsed->front() == end + 1);
    CHECK(parsed->back() == end + 2);
    CHECK((*t)->decode(*parsed) == "hi");
    CHECK((*t)->decode(*parsed, false) == "<|im_start|>hi<|im_end|>");
    const auto plain = (*t)->encode("<|im_start|>hi<|im_end|>", kPlain);
    REQUIRE_OK(plain);
    CHECK(plain->size() > 6);
    CHECK((*t)->decode(*plain) == "<|im_start|>hi<|im_end|>");
  }
}
