// Readers of training data, and how samples are packed.
#include "train/data.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "engine/runtime/model_path.h"
#include "engine/runtime/model_tokenizer.h"
#include "tests/support/catch.h"
#include "train/labels.h"
#include "train/packing.h"
#include "train/schedule.h"

using namespace oar;
using namespace oar::train;

namespace {

constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
// A word is a token, "</s>" ends a text.
constexpr const char* kTokenizer = R"({"version":"1.0","added_tokens":[
  {"id":0,"content":"<s>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
  {"id":1,"content":"</s>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
  {"id":2,"content":"<|im_start|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
  {"id":3,"content":"<|im_end|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],
  "normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,
  "model":{"type":"WordLevel","unk_token":"?","vocab":{"?":4,
  "user":5,"assistant":6,"system":7,"a":8,"b":9,"c":10,"d":11,"e":12}}})";

struct Words {
  TokenizerPtr tokenizer = tokenizer_from_json(kTokenizer, R"({"eos_token":"</s>"})").value();
  ChatTemplate chat = ChatTemplate::parse(kChatMl).value();
  DataModel model{*tokenizer, chat, "<s>", "</s>"};
  DataOptions options;

  Result<FileSamples> read(const std::string& name, std::string_view text) const {
    return read_samples({name}, text, model, options);
  }
  void refused(const std::string& name, std::string_view text, const std::string& says) const {
    const auto r = read(name, text);
    INFO(text);
    REQUIRE_FALSE(r.ok());
    INFO(r.status().message());
    CHECK(r.status().message().find(name) == 0);
    CHECK(r.status().message().find(says) != std::string::npos);
  }
};

using Ids = std::vector<int32_t>;
using Flags = std::vector<uint8_t>;

FileSamples make_file(std::vector<size_t> lengths, double weight = 1) {
  FileSamples f;
  f.file.weight = weight;
  int32_t next = 0;
  for (const size_t n : lengths) {
    train::Sample s;
    for (size_t k = 0; k < n; ++k) s.tokens.push_back(next++);
    s.learned.assign(n, 1);
    s.learned[0] = 0;
    f.samples.push_back(std::move(s));
  }
  return f;
}

}  // namespace

TEST_CASE("data: every kind of file becomes samples that say what is learned") {
  const Words w;
  const auto text = w.read("x.txt", "a b\nc\n<|endoftext|>\n d e <|endoftext|> ");
  REQUIRE(text.ok());
  REQUIRE(text->samples.size() == 2);
  CHECK(text->samples[0].tokens == Ids{8, 9, 10, 1});
  CHECK(text->samples[0].learned == Flags{0, 1, 1, 1});
  CHECK(text->samples[1].tokens == Ids{11, 12, 1});

  const auto prompts = w.read("x.jsonl", "{\"prompt\":\"a b\",\"completion\":\"c\"}\n\n{\"text\":\"d\"}\r\n");
  REQUIRE(prompts.ok());
  REQUIRE(prompts->samples.size() == 2);
  CHECK(prompts->samples[0].tokens == Ids{8, 9, 10, 1});
  CHECK(prompts->samples[0].learned == Flags{0, 0, 1, 1});
  CHECK(prompts->samples[1].learned == Flags{0, 1});

  const auto chat =
      w.read("x.jsonl", R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                        R"({"role":"user","content":"c"},{"role":"assistant","content":"d e"}]})");
  REQUIRE(chat.ok());
  const train::Sample& s = chat->samples[0];
  CHECK(s.tokens == Ids{2, 5, 8, 3, 2, 6, 9, 3, 2, 5, 10, 3, 2, 6, 11, 12, 3});
  CHECK(s.learned == Flags{0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1});
  const auto weighted =
      w.read("x.jsonl",
             R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":0},)"
             R"({"role":"user","content":"c"},{"role":"assistant","content":"d e"}]})");
  REQUIRE(weighted.ok());
  CHECK(weighted->samples[0].tokens == s.tokens);
  CHECK(weighted->samples[0].count() == 3);
}

TEST_CASE("data: a user's text makes no control tokens") {
  const Words w;
  const auto chat = w.read(
      "x.jsonl",
      R"({"messages":[{"role":"user","content":"a <|im_end|> b"},{"role":"assistant","content":"c"}]})");
  REQUIRE(chat.ok());
  CHECK(std::count(chat->samples[0].tokens.begin(), chat->samples[0].tokens.end(), 3) == 2);
  const auto text = w.read("x.txt", "a </s> b");
  REQUIRE(text.ok());
  CHECK(std::count(text->samples[0].tokens.begin(), text->samples[0].tokens.end(), 1) == 1);
}

TEST_CASE("data: what is wrong is named by file, line and remedy") {
  const Words w;
  w.refused("x.jsonl", "{\"text\":\"a\"}\n{\"text\":", "line 2");
  w.refused("x.jsonl", "[1]", "line 1: is no JSON object");
  w.refused("x.jsonl", "{\"text\":\" \"}", "line 1: 'text' is empty");
  w.refused("x.jsonl", "{\"prompt\":\"a\",\"completion\":\"\"}", "nothing to learn");
  w.refused("x.jsonl", "{\"prompt\":\"a\"}", "'completion' must be a string");
  w.refused("x.jsonl", "{\"prompt\":[],\"completion\":\"b\"}", "is a list");
  w.refused("x.jsonl", "{\"text\":\"a\",\"weight\":2}", "the key 'weight' is not one that is read");
  w.refused("x.jsonl", "{\"labels\":1}", "has none of the keys");
  w.refused("x.jsonl", "{\"text\":\"\xff\"}", "line 1: is not UTF-8");
  w.refused("x.txt", "a\n\xc3\x28", "line 2: is not UTF-8");
  w.refused("x.txt", " \n<|endoftext|>\n", "holds no sample");
  w.refused("x.tsv", "a\tb", "for encoders that classify");
  w.refused("x.csv", "a", "expected .txt");
  w.refused("x.jsonl", R"({"messages":[{"role":"user","content":"a"}]})", "no answer to learn");
  w.refused("x.jsonl", R"({"messages":[]})", "must be a list");
  w.refused("x.jsonl", R"({"messages":[{"role":"robot","content":"a"}]})", "messages[0] has no role");
  w.refused("x.jsonl", R"({"messages":[{"role":"assistant","content":[]}]})", "only text is read");
  w.refused("x.jsonl", R"({"messages":[{"role":"assistant","content":"a","weight":2}]})",
            "other than 0 or 1");
  w.refused("x.jsonl",
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":0}]})",
            "line 1: the conversation has no answer to learn");
  w.refused("x.jsonl",
            "{\"text\":\"a b\"}\n"
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":" "}]})",
            "line 2: messages[1] is an empty answer");
  w.refused("x.jsonl", R"({"prompt":"a","chosen":"b","rejected":"c"})", "line 1: is a preference pair");
  w.refused("x.jsonl", R"({"prompt":"a","chosen":"b","rejected":"c"})", "(DPO) comes later");
  // What the template would leave out.
  w.refused("x.jsonl",
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weigth":1}]})",
            "messages[1] has the key 'weigth', which the model's chat template does not read");
  w.refused("x.jsonl", R"({"messages":[{"role":"assistant","content":"b","reasoning_content":"a"}]})",
            "'reasoning_content'");
  w.refused("x.jsonl", R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]})",
            "'tool_calls'");
  w.refused("x.jsonl", R"({"messages":[{"role":"assistant","content":"b"}],"tools":[{"type":"function"}]})",
            "line 1: the conversation has 'tools', which the model's chat template does not read");
  CHECK(
      w.read(
           "x.jsonl",
           R"({"messages":[{"role":"assistant","content":"b","name":"c","refusal":null,"tool_calls":[]}],"tools":[]})")
          .ok());
  w.refused("x.jsonl", "", "x.jsonl holds no sample");
  w.refused("x.jsonl", "\n \n", "x.jsonl holds no sample");
  w.refused("x.jsonl", "{\"text\":\"a b\"}\n\n{\"text\":\"\\ud800\"}", "line 3");
  CHECK(parse_data_file("a:b.txt")->path == "a:b.txt");
  CHECK(parse_data_file("a.txt:2.5")->weight == 2.5);
  CHECK_FALSE(parse_data_file("a.txt:0").ok());
  CHECK_FALSE(parse_data_file("a.txt:nan").ok());
  const auto missing = load_samples({"/nowhere.txt"}, "--data", w.model, {});
  CHECK(missing.status().message() == "--data: /nowhere.txt is no file");
}

TEST_CASE("data: a byte order mark is no part of a file's text") {
  const Words w;
  const std::string folder =
      cat(std::filesystem::temp_directory_path().string(), "/oar-data-test-", getpid());
  std::filesystem::create_directories(folder);
  for (const auto& [name, text] : {std::pair{"x.txt", "a b c"}, {"x.jsonl", R"({"text":"a b c"})"}}) {
    const std::string path = cat(folder, "/", name);
    std::ofstream(path) << "\xEF\xBB\xBF" << text;
    const auto read = load_samples({path}, "--data", w.model, {});
    REQUIRE_OK(read);
    CHECK((*read)[0].samples[0].tokens == Ids{8, 9, 10, 1});
  }
  const std::string table = folder + "/x.tsv";
  std::ofstream(table) << "\xEF\xBB\xBFtext\tlabel\r\na b\tx\r\n";
  const auto read = load_labelled({table}, "--data");
  REQUIRE_OK(read);
  CHECK((*read)[0].texts[0].labels[0] == "x");
  std::filesystem::remove_all(folder);
}

TEST_CASE("data: without a chat template answers end as the vocabulary's texts do") {
  const auto learned = [](const TokenizerPtr& tokenizer) {
    const ChatTemplate chat = ChatTemplate::parse(default_chat_template(*tokenizer)).value();
    const DataModel model{*tokenizer, chat, "<s>", "</s>"};
    const auto read = read_samples(
        {"x.jsonl"}, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
        model, {});
    REQUIRE_OK(read);
    CHECK(read->conversations == 1);
    Ids out;
    for (size_t k = 0; k < read->samples[0].tokens.size(); ++k)
      if (read->samples[0].learned[k]) out.push_back(read->samples[0].tokens[k]);
    return out;
  };
  const std::string config = R"({"eos_token":"</s>"})";
  CHECK(learned(tokenizer_from_json(kTokenizer, config).value()) == Ids{9, 3});
  std::string plain = kTokenizer;
  plain.replace(plain.find("<|im_end|>"), 10, "<|other|>");
  CHECK(learned(tokenizer_from_json(plain, config).value()) == Ids{9, 1});
}

TEST_CASE("data: long samples are cut and counted, or refused; documents go on in pieces") {
  Words w;
  w.options.length = 4;
  const std::string line = "{\"prompt\":\"a b\",\"completion\":\"c d e\"}";
  const auto cut = w.read("x.jsonl", line);
  REQUIRE(cut.ok());
  CHECK(cut->cut == 1);
  CHECK(cut->samples[0].tokens == Ids{8, 9, 10, 11});
  w.refused("x.jsonl", "{\"prompt\":\"a b c d e\",\"completion\":\"c\"}",
            "nothing is learned within the first 4 tokens");
  w.options.too_long = TooLong::kRefuse;
  w.refused("x.jsonl", line, "has 6 tokens, above --length 4");
  const auto text = w.read("x.txt", "a b c d e a");
  REQUIRE(text.ok());
  REQUIRE(text->samples.size() == 2);
  CHECK(text->samples[1].tokens == Ids{12, 8, 1});
  CHECK(text->cut == 0);
}

TEST_CASE("data: a document whose cuts are drawn stays whole; other samples are as ever") {
  Words w;
  w.options.length = 4;
  w.options.draw_cuts = true;
  const auto text = w.read("x.txt", "a b c d e a<|endoftext|>b");
  REQUIRE(text.ok());
  REQUIRE(text->samples.size() == 2);
  CHECK(text->samples[0].tokens == Ids{8, 9, 10, 11, 12, 8, 1});
  CHECK(text->samples[0].document);
  CHECK(text->samples[0].bos == -1);
  const auto line = w.read("x.jsonl", R"({"prompt":"a b","completion":"c d e"})");
  REQUIRE(line.ok());
  CHECK_FALSE(line->samples[0].document);
  CHECK(line->cut == 1);
}

TEST_CASE("data: any bytes are samples or an error, never an end of the process") {
  const Words w;
  std::mt19937 random(7);
  const std::string good =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"tools":[]})"
      "\n"
      R"({"prompt":"a","completion":"b"})"
      "\n"
      R"({"text":"c"})"
      "\n";
  int samples = 0;
  for (int k = 0; k < 3000; ++k) {
    std::string bytes = good;
    for (int n = static_cast<int>(random() % 4); n >= 0; --n) {
      const size_t at = random() % bytes.size();
      if (random() % 3 == 0) bytes.erase(at, random() % 8);
      else if (random() % 2 == 0) bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 16));
      else bytes[at] = static_cast<char>(random());
      if (bytes.empty()) bytes = "x";
    }
    for (const char* name : {"x.jsonl", "x.txt"}) {
      const auto r = w.read(name, bytes);
      if (!r.ok()) CHECK(r.status().message().find(name) == 0);
      else
        for (const train::Sample& s : r->samples) {
          ++samples;
          CHECK(s.tokens.size() == s.learned.size());
          CHECK(s.count() > 0);
          CHECK(s.tokens.size() <= static_cast<size_t>(w.options.length));
        }
    }
  }
  CHECK(samples > 1000);
}

TEST_CASE("labels: any bytes are texts with labels or an error that names the file") {
  std::mt19937 random(11);
  const std::string lines = R"({"text":"a","label":"x"})"
                            "\n"
                            R"({"text":"a","text_pair":"b","label":3})"
                            "\n"
                            R"({"tokens":["a","b"],"labels":["x",null]})"
                            "\n";
  int texts = 0;
  for (int k = 0; k < 3000; ++k) {
    const bool tsv = k % 2 == 0;
    std::string bytes = tsv ? "text\ttext_pair\tlabel\na\tb\tx\na b\tc\t3\n"
                            : lines.substr(0, 1 + static_cast<size_t>(random() % lines.size()));
    for (int n = static_cast<int>(random() % 3); n >= 0 && k % 7 != 0; --n) {
      const size_t at = random() % bytes.size();
      if (random() % 3 == 0) bytes.erase(at, random() % 4);
      else bytes[at] = random() % 2 == 0 ? '\t' : static_cast<char>(random());
      if (bytes.empty()) bytes = "x";
    }
    const std::string name = tsv ? "x.tsv" : "x.jsonl";
    const auto r = read_labelled({name}, bytes);
    if (!r.ok()) CHECK(r.status().message().find(name) == 0);
    else
      for (const LabelledText& t : r->texts) {
        ++texts;
        CHECK(t.labels.size() == std::max<size_t>(t.tokens.size(), 1));
        CHECK(t.line > 0);
      }
  }
  CHECK(texts > 500);
}

TEST_CASE("labels: -100 and null are no labels of tokens") {
  const auto r = read_labelled({"x.jsonl"}, R"({"tokens":["a","b","c"],"labels":[-100,null,-1]})");
  REQUIRE_OK(r);
  CHECK(labels_of({*r}) == std::vector<std::string>{"-1"});
}

TEST_CASE("packing: every sample once, whole, in a segment of its own; the order is the seed's") {
  const std::vector<FileSamples> files{make_file({5, 3, 8, 2, 7, 4, 6, 2, 3})};
  Packer packer(files, 10, 10, 3, true), same(files, 10, 10, 3, true), other(files, 10, 10, 4, true);
  std::multiset<int32_t> seen;
  bool differs = false;
  for (int64_t b = 0; b < packer.batches(0); ++b) {
    const PackedRows rows = packer.rows(0, b);
    REQUIRE(rows.tokens.size() == 10);
    CHECK(rows.tokens == same.rows(0, b).tokens);
    differs = differs || b >= other.batches(0) || rows.tokens != other.rows(0, b).tokens;
    int64_t learned = 0;
    for (size_t k = 0; k < rows.tokens.size(); ++k) {
      if (k > 0 && rows.segments[k] == rows.segments[k - 1])
        CHECK(rows.positions[k] == rows.positions[k - 1] + 1);
      else CHECK(rows.positions[k] == 0);
      if (static_cast<int64_t>(k) < rows.used) seen.insert(rows.tokens[k]);
      if (rows.targets[k] < 0) continue;
      ++learned;
      // What is predicted is the next row, of the same sample.
      REQUIRE(k + 1 < rows.tokens.size());
      CHECK(rows.targets[k] == rows.tokens[k + 1]);
      CHECK(rows.segments[k] == rows.segments[k + 1]);
    }
    CHECK(learned == rows.learned);
  }
  CHECK(differs);
  CHECK(seen.size() == 40);
  for (int32_t k = 0; k < 40; ++k) CHECK(seen.count(k) == 1);
  // Another epoch, another order; and back.
  const auto first = packer.rows(0, 0).tokens;
  std::vector<int32_t> second = packer.rows(1, 0).tokens;
  CHECK(first != second);
  CHECK(packer.rows(0, 0).tokens == first);
}

TEST_CASE("packing: weights say how often an epoch has a file's samples") {
  std::vector<FileSamples> files{make_file(std::vector<size_t>(40, 2), 2.5)};
  Packer packer(files, 4, 4, 1, true);
  std::map<int32_t, int> times;
  int64_t samples = 0;
  for (int64_t b = 0; b < packer.batches(0); ++b) {
    const PackedRows rows = packer.rows(0, b);
    for (size_t k = 0; k < static_cast<size_t>(rows.used); k += 2) ++times[rows.tokens[k]], ++samples;
  }
  CHECK(samples == 100);
  for (const auto& [token, n] : times) CHECK((n == 2 || n == 3));
}

TEST_CASE("packing: each epoch cuts a document anew, into pieces of four lengths, and leaves nothing out") {
  constexpr int32_t kBos = 9999;
  constexpr int64_t kLength = 16;
  for (const int32_t bos : {-1, kBos}) {
    std::vector<FileSamples> files{make_file({3000}), make_file({5, 7})};
    files[0].samples[0].document = true, files[0].samples[0].bos = bos;
    for (train::Sample& s : files[1].samples)
      for (int32_t& t : s.tokens) t += 5000;
    Packer packer(files, 40, kLength, 3, true), same(files, 40, kLength, 3, true);
    const auto room = static_cast<size_t>(kLength - (bos >= 0));
    std::vector<std::map<int32_t, size_t>> epochs;  // by its first token a piece's length
    for (int64_t e = 0; e < 2; ++e) {
      auto& pieces = epochs.emplace_back();
      for (int64_t b = 0; b < packer.batches(e); ++b) {
        const PackedRows rows = packer.rows(e, b);
        CHECK(rows.tokens == same.rows(e, b).tokens);
        for (size_t k = 0; k < static_cast<size_t>(rows.used);) {
          size_t end = k + 1;
          while (end < rows.tokens.size() && rows.segments[end] == rows.segments[k]) ++end;
          const bool begun = rows.tokens[k] == kBos;
          // All that has something before it is predicted.
          for (size_t j = k; j + 1 < end; ++j) CHECK(rows.targets[j] == rows.tokens[j + 1]);
          CHECK(rows.targets[end - 1] == -1);
          if (!begun) CHECK((bos < 0 || rows.tokens[k] >= 5000));
          const size_t first = k + (begun ? 1 : 0);
          if (first < end) pieces.emplace(rows.tokens[first], end - first);
          k = end;
        }
      }
      // Side by side they are the document.
      std::map<size_t, int> lengths;
      for (int32_t at = 0; at < 3000;) {
        REQUIRE(pieces.contains(at));
        const size_t n = pieces[at];
        if (at > 0 && at + static_cast<int32_t>(n) < 3000) ++lengths[n];
        at += static_cast<int32_t>(n);
      }
      CHECK(lengths.size() == 4);
      for (const auto& [n, times] : lengths)
        CHECK((n == room || n == room / 2 || n == room / 4 || n == std::max<size_t>(2, room / 8)));
      CHECK(lengths[std::max<size_t>(2, room / 8)] > lengths[room]);
    }
    CHECK(epochs[0] != epochs[1]);
  }
}

TEST_CASE("packing: a part of a copy is a part of a document's pieces") {
  std::vector<FileSamples> files{make_file({4000}, 1.5)};
  files[0].samples[0].document = true;
  Packer packer(files, 64, 16, 1, true);
  int64_t tokens = 0;
  for (int64_t b = 0; b < packer.batches(0); ++b) tokens += packer.rows(0, b).used;
  CHECK(tokens > 5500);
  CHECK(tokens < 6500);
}

TEST_CASE("schedules: warm-up, then constant, a line or half a cosine") {
  Schedule s{Decay::kLinear, 4, 14, 0.1};
  CHECK(s.factor(1) == 0.25);
  CHECK(s.factor(4) == 1);
  CHECK(s.factor(5) == 1);
  CHECK(std::abs(s.factor(14) - 0.19) < 1e-12);
  CHECK(std::abs(s.factor(9) - (1 - 0.9 * 0.4)) < 1e-12);
  s.decay = Decay::kCosine;
  CHECK(std::abs(s.factor(10) - 0.55) < 1e-12);                              // half way
  CHECK(std::abs(s.factor(14) - (0.1 + 0.9 * 0.0244717418524232)) < 1e-12);  // (1 + cos 162) / 2
  s.decay = Decay::kConstant;
  CHECK(s.factor(14) == 1);
  CHECK_FALSE(find_decay("exponential").ok());
}
