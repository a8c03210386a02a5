// What `oar finetune` and `oar train` share: a run's options and the run itself.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "clients/cli/train_options.h"
#include "train/finetune.h"

namespace oar::cli {

struct FinetuneCommand {
  train::FinetuneOptions run;
  PeakChoices peak;
  std::string lora, schedule = "cosine", too_long = "cut", cuts = "fixed", memory;
  std::vector<std::string> rates;
  bool quiet = false;
};

// The options of every run, beside those of train_options.h: steps, rates, what is written and said.
void add_run_options(CLI::App& command, FinetuneCommand& options);
// Runs to the end, or until a signal; the exit code. `command` is asked which flags were given.
int finetune(const CLI::App& command, FinetuneCommand& options);

}  // namespace oar::cli
