// oar inspect --train: what a training run would take at its peak, for each --recompute. Runs nothing.
#pragma once

#include <CLI/CLI.hpp>

#include "train/trainer.h"

namespace oar::cli {

struct TrainInspection {
  std::string what;  // --train: full, or a list as finetune --lora takes it; empty: not asked for
  int64_t tokens = 512;
  train::TrainerOptions trainer;
};
void add_train_options(CLI::App& command, TrainInspection& options);
// With --train: throws CLI::ValidationError, which names an option that says nothing of training.
void check_train_options(const CLI::App& command);
Status inspect_train(TrainInspection options);

}  // namespace oar::cli
