// oar inspect --train: what a training run would take at its peak, as `oar finetune` says it before the first
// step, with the same options. Runs nothing.
#pragma once

#include <CLI/CLI.hpp>

#include "clients/cli/train_options.h"

namespace oar::cli {

struct TrainInspection {
  std::string what;  // --train: full, or a list as finetune --lora takes it; empty: not asked for
  bool one = false;  // --recompute was given: that one alone, else all
  PeakChoices peak;
  train::TrainerOptions trainer;
  std::vector<CLI::Option*> options;  // which need --train
};
void add_train_options(CLI::App& command, TrainInspection& options);
// With --train: throws CLI::ValidationError, which names an option that says nothing of training.
void check_train_options(const CLI::App& command, TrainInspection& options);
Status inspect_train(TrainInspection options);

}  // namespace oar::cli
