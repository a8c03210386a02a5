// From text to the token ids a model is asked with, and the sampling options commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/language_model.h"

namespace oar::cli {

// Values the user has given; the others come from the model's generation_config.json or the command's own
// default.
struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  int64_t max_tokens = 0;
  std::vector<std::string> stop;
  // At most one: a constraint on the text. Those that name files are read by constraint_of().
  std::string json_schema_file, grammar_file, structural_tag_file, regex;
  std::vector<std::string> choices;
  bool json_object = false;
};
void add_sampling_options(CLI::App& command, SamplingOptions& options, int64_t max_tokens,
                          const char* temperature);

// `fallback_temperature` when neither the user nor `defaults` says; pass empty defaults to ignore the
// model's.
SamplingParams sampling_params(const SamplingOptions& options, const GenerationDefaults& defaults,
                               float fallback_temperature);

// What the options ask the text to be.
Result<grammar::ConstraintSpec> constraint_of(const SamplingOptions& options);

// The text with the special tokens its tokenizer adds; an empty text is BOS alone. FAILED_PRECONDITION when
// the model has no BOS to begin with.
Result<std::vector<int32_t>> prompt_ids(const Tokenizer& tokenizer, const std::string& text);

// A file's contents, or standard input's for "-"; at most 64 MiB.
Result<std::string> read_text(const std::string& path);

}  // namespace oar::cli
