// The options of `oar finetune` that change what a run takes, which `oar inspect --train` takes too.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "train/trainer.h"

namespace oar::cli {

// As given; settle_peak() makes options of a trainer of them.
struct PeakChoices {
  std::string optimizer = "adamw", recompute = "activations", precision = "f32";
  int ranks = 1;
};
// All but --precision, --weights and --threads, which the two commands word on their own. Returns what it
// added: with `any_model` those of classifiers and of networks over images too.
std::vector<CLI::Option*> add_peak_options(CLI::App& command, train::TrainerOptions& options,
                                           PeakChoices& choices, bool any_model = true);
// "rank=16,alpha=32,dropout=0.1,targets=q_proj,v_proj". `targets` comes last: commas go on with it. alpha is
// twice the rank where it is left out.
Result<train::LoraOptions> parse_lora(std::string_view text);
Status settle_peak(const PeakChoices& choices, train::TrainerOptions& options);
// "memory at the peak: 22.2 MiB (...)", as it stands before the first step.
std::string peak_line(const train::Learner& learner, bool recomputed);

}  // namespace oar::cli
