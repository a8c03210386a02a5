// oar inspect --times: the kernel calls of a step of a language model, and the time that a device computes
// for each. Nothing is run, uploaded or measured: a shape of any size can be asked about on any machine.
#pragma once

#include <string>

#include "engine/runtime/language_model.h"

namespace oar::cli {

struct TimesInspection {
  LanguageModelOptions model;  // with a device that computes times
  int64_t context = 1024;      // tokens that each sequence has
  int64_t prompt = 2048;       // of the step that computes one
  bool json = false;
};

// `path`: a model, or the config.json of one (*.json), whose weights need not exist. Prints steps that
// generate for 1, 16 and 64 sequences, and one that computes a prompt.
Status inspect_times(const std::string& path, const TimesInspection& what);

}  // namespace oar::cli
