// What a classifier is finetuned on: texts, or pairs of them, with a label, and texts whose tokens have one
// each.
//
//   *.tsv     columns by the names in the first line:
//               text, label; text, text_pair, label     a text a line ("sentence", or "sentence1" and
//                                                       "sentence2", are names of texts too)
//               token, label                            a token a line, texts apart by empty lines
//   *.jsonl   {"text", "label"}, {"text", "text_pair", "label"}, {"tokens": [], "labels": []}, null or -100
//             among labels of tokens for none
//
// Files are hostile: every fault is an error that names file, line and remedy.
#pragma once

#include "engine/models/encoder.h"
#include "engine/runtime/text_encoder.h"
#include "train/data.h"

namespace oar::train {

struct LabelledText {
  int64_t line = 0;
  bool token_a_line = false;  // of a .tsv: each token has a line of its own, from `line` on
  std::string text;
  std::optional<std::string> pair;
  std::vector<std::string> tokens;                 // of a text whose tokens are labelled, else empty
  std::vector<std::optional<std::string>> labels;  // one, or one a token
};
struct LabelledFile {
  DataFile file;
  EncoderHead head = EncoderHead::kSequence;  // what all its texts are for
  std::vector<LabelledText> texts;
};

Result<LabelledFile> read_labelled(const DataFile& file, std::string_view contents);
// All files, which are for one head.
Result<std::vector<LabelledFile>> load_labelled(const std::vector<std::string>& arguments,
                                                std::string_view label);
// The labels that there are, sorted: by value where all are whole numbers.
std::vector<std::string> labels_of(const std::vector<LabelledFile>& files);

// Labels as places in `classes`: by name, or where no class has that name by number. INVALID_ARGUMENT names
// one that is neither. A token's label is that of the first row that its text makes; the first row of a text
// has the text's.
Result<std::vector<FileSamples>> label_samples(const std::vector<LabelledFile>& files,
                                               const std::vector<std::string>& classes,
                                               const TextEncoder& encoder, const DataOptions& options);

}  // namespace oar::train
