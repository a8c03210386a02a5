// What a model is finetuned on: files of text, of prompts with completions and of conversations become
// samples, each a sequence of tokens that says which of them are learned.
//
//   *.txt     documents between "<|endoftext|>" (or one), cut into pieces; every token is learned. Where
//             cuts are drawn, each epoch cuts anew (packing.h)
//   *.jsonl   one sample a line, by its keys:
//               {"text"}                      as a document
//               {"prompt", "completion"}      texts; the completion and the end of text are learned
//               {"messages", "tools"?}        a conversation in OpenAI's form, rendered by the model's chat
//                                             template; answers alone are learned. "weight": 0 on a message
//                                             leaves its answer out
//
// Files are hostile: every fault is an error that names file, line and remedy. Lines of white space are
// skipped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace oar::train {

inline constexpr std::string_view kSeparator = "<|endoftext|>";

struct Sample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;  // by token: its loss counts. The first never is, nothing predicts it
  // Of classifiers (labels.h): by token the label that its row is to be given, -1: none; and token types.
  std::vector<int32_t> labels, types;
  // A document that epochs cut into pieces, each behind `bos`; -1: behind nothing.
  bool document = false;
  int32_t bos = -1;
  int64_t count() const {
    int64_t n = 0;
    for (uint8_t l : learned) n += l;
    return n;
  }
};

// Of a document, whose tokens are all learned.
Sample piece_of(std::span<const int32_t> tokens, int32_t bos);

struct DataFile {
  std::string path;
  double weight = 1;  // how often an epoch has each sample; a part of one: that share of them, drawn anew
};
// "PATH" or "PATH:WEIGHT", the weight a number above 0 and at most 1000.
Result<DataFile> parse_data_file(std::string_view argument);

// Its contents without a byte order mark. `label` (--data) is named in errors.
Result<std::string> read_data_file(const DataFile& file, std::string_view label);

enum class TooLong : uint8_t { kCut, kRefuse };

struct DataOptions {
  int64_t length = 512;  // the most tokens of a sample; documents are cut into pieces of it
  TooLong too_long = TooLong::kCut;
  bool draw_cuts = false;  // documents stay whole samples
};

// What makes samples of text. Borrowed.
struct DataModel {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  std::string bos_token, eos_token;  // strings that the template names
};

struct FileSamples {
  DataFile file;
  std::vector<Sample> samples;
  int64_t cut = 0;        // samples that lost their end
  int64_t unlearned = 0;  // answers left out: the template shows them otherwise once more turns follow
  int64_t conversations = 0;
};

// Contents of a file that is called `path`.
Result<FileSamples> read_samples(const DataFile& file, std::string_view contents, const DataModel& model,
                                 const DataOptions& options);
// All files. `label` (--data) is named in errors.
Result<std::vector<FileSamples>> load_samples(const std::vector<std::string>& arguments,
                                              std::string_view label, const DataModel& model,
                                              const DataOptions& options);

}  // namespace oar::train
