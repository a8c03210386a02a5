// Reads the text out of a recognizer's class probabilities (connectionist temporal classification,
// https://www.cs.toronto.edu/~graves/icml_2006.pdf): the likeliest class of each step, repetitions merged,
// the blank (class 0) dropped.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace oar::vision {

struct ReadText {
  std::string text;
  float confidence = 0;  // mean probability of the characters kept; 0 for an empty text
};

// Lines of a dictionary file, one character (or word) each; CR before LF is dropped.
std::vector<std::string> read_dictionary(std::string_view file);
// A dictionary for `classes` classes: blank, the lines, and a space where one class is left for it.
// INVALID_ARGUMENT with both counts when they do not belong together.
Result<std::vector<std::string>> ctc_alphabet(std::vector<std::string> lines, int64_t classes);

// `probabilities`: steps x alphabet.size(). NaN is never the likeliest.
ReadText ctc_decode(std::span<const float> probabilities, const std::vector<std::string>& alphabet);

}  // namespace oar::vision
