// A whole finetuning run: steps, held-out losses, checkpoints, the best weights, a log and a plot, and the
// result as a folder, or an ONNX file, that serves. What a program shows of it, it is told as it happens.
//
// In the folder OUT.training lie `checkpoint.safetensors` and, with held-out data, `best.safetensors`. The
// same call again goes on from there, to the same bits, however the last one ended; a call that would do
// something else is refused. When OUT is written the folder goes.
#pragma once

#include <functional>
#include <string>

#include "train/trainer.h"

namespace oar::train {

// With a group (LearnerOptions::group) every rank makes the same call; rank 0 alone writes, shows and
// evaluates. When a rank dies or stops, all others end with its name, and the first of them writes a
// checkpoint.
struct FinetuneOptions {
  TrainerOptions trainer;
  std::string out;
  std::string log;                 // JSONL, a line a step; empty: none
  std::string plot;                // SVG of the losses; empty: none
  int64_t eval_every = 0;          // steps; 0: at the end alone. With held-out data
  int64_t patience = 0;            // held-out losses in a row that are not the best end the run; 0: never
  int64_t checkpoint_every = 100;  // steps; 0: none
  bool restart = false;            // forget what was begun
  bool dry = false;                // say what it would take, and end before the first step
};

struct FinetuneEvents {
  // Once, before the first step. `resumed`: steps that were done before.
  std::function<void(const Learner&, int64_t resumed)> begin;
  std::function<void(const StepReport&, double seconds)> step;  // since the first step of this call
  std::function<void(int64_t step, const HeldOutReport&, bool best)> held_out;
  // Asked between steps; where true, a checkpoint is written and the call ends with CANCELLED.
  std::function<bool()> stop;
};

// Whether the model is a file that is trained on images, an ONNX network.
bool is_image_network(const std::string& model);
// A trainer of texts, or of images.
Result<std::unique_ptr<Learner>> make_learner(const TrainerOptions& options, const Logger& log);

struct FinetuneReport {
  int64_t steps = 0;
  double loss = 0;       // of the last step
  double held_out = -1;  // of what was written; below 0: there is no held-out data
  double accuracy = -1;  // of a classifier, likewise
  int64_t best_step = 0;
};

Result<FinetuneReport> finetune(const FinetuneOptions& options, const FinetuneEvents& events,
                                const Logger& log);

}  // namespace oar::train
