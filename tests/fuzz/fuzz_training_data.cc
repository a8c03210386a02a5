// Files of training data: the first byte chooses text, lines, or labels as .tsv or as lines. What is read
// keeps its promises; all else is an error that names the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/target.h"
#include "train/data.h"
#include "train/labels.h"

using namespace oar;
using namespace oar::train;

namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr const char* kTokenizer = R"({"version":"1.0","added_tokens":[
  {"id":1,"content":"<|im_start|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
  {"id":2,"content":"<|im_end|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],
  "normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,
  "model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"a":3,"b":4}}})";

}  // namespace

OAR_FUZZ_TARGET(training_data) {
  static const TokenizerPtr tokenizer =
      tokenizer_from_json(kTokenizer, R"({"eos_token":"<|im_end|>"})").value();
  static const ChatTemplate chat = ChatTemplate::parse(kTemplate).value();
  if (size == 0 || size > 1 << 16) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'v' || data[0] == 'l') {
    const std::string labels = data[0] == 'v' ? "x.tsv" : "x.jsonl";
    const auto read = read_labelled({labels}, text);
    oar_test::must(read.ok() ? !read->texts.empty() : read.status().message().starts_with(labels));
    if (!read.ok()) return 0;
    for (const LabelledText& t : read->texts)
      oar_test::must(t.line > 0 && t.labels.size() == std::max<size_t>(t.tokens.size(), 1));
    return 0;
  }
  const std::string name = data[0] == 't' ? "x.txt" : "x.jsonl";
  DataOptions options;
  options.length = 16;
  const auto read = read_samples({name}, text, {*tokenizer, chat, "", "<|im_end|>"}, options);
  if (!read.ok()) {
    oar_test::must(read.status().message().starts_with(name));
    return 0;
  }
  oar_test::must(!read->samples.empty());
  for (const Sample& s : read->samples) {
    oar_test::must(s.tokens.size() == s.learned.size() && s.tokens.size() <= 16);
    oar_test::must(s.count() > 0 && s.learned[0] == 0);
  }
  return 0;
}
