// A language model as three graphs to train it with: one micro-batch's gradients, its loss alone, and the
// optimizer's update. They share states: parameters, their moments, their summed gradients.
//
// Rows are a fixed number of packed tokens (packing.h), so every size is a number and what a step takes is
// known before it. The forward graph is the architecture's own file; grad.h differentiates it; the nodes that
// are left run as ordinary ops and those of ops.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/passes/mixed_precision.h"
#include "engine/graph/passes/recompute.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/encoder.h"
#include "engine/models/model.h"
#include "engine/ops/train/copies.h"
#include "train/optimizer.h"

namespace oar::train {

using passes::Amp;
using passes::Recompute;

struct LoraOptions {
  int64_t rank = 16;
  double alpha = 32;
  // Last parts of modules' names, or all of them; "all": every linear layer of the blocks but mamba_output().
  std::vector<std::string> targets{"q_proj", "v_proj"};
  double dropout = 0;           // share of what A reads that a step drops
  bool fan_in_fan_out = false;  // what is written says so: the base's matrices are (inputs, outputs)
};

// PEFT has no adapter for it: the kernels of Mamba-2 that transformers calls read its weight themselves.
inline bool mamba_output(std::string_view module) {
  return module.ends_with(".mamba.out_proj") || module.ends_with(".mixer.out_proj");
}

// A step that updates parameters itself, so that gradients are values of it as others are.
struct StepUpdate {
  OptimizerOptions optimizer;
  bool together = false;  // all behind the last gradient, since their norm clips them; else each at once
};

struct GraphOptions {
  int64_t tokens = 512;  // rows of a micro-batch
  bool full = false;     // all parameters, else LoRA's
  bool fresh = false;    // first weights: an adapter would learn nothing, so errors advise none
  LoraOptions lora;
  // The share that a step drops of what layers add to their rows, and of the first rows; of adapters there
  // is lora.dropout instead.
  double dropout = 0;
  bool draws() const { return (full ? dropout : lora.dropout) > 0; }
  std::vector<std::string> freeze;  // patterns of names that stay as they are, '*' is any text
  Recompute recompute = Recompute::kActivations;
  int64_t sample_rows = 0;               // of ModelGraphs::sample; 0: there is none
  int64_t micro_batches = 1;             // of a step: a mixture's load-balancing loss is their mean
  std::optional<StepUpdate> update;      // see end_step
  passes::AmpOptions precision;          // of a step; held-out losses are those of f32, which serves
  std::shared_ptr<WeightCopies> copies;  // of the same checkpoint, and filled; null: the graphs' own
};

// What is trained: a tensor of the checkpoint, or half of a LoRA pair named as PEFT names it.
struct Parameter {
  std::string name;
  Shape shape;
  // "a.b" of "base_model.model.a.b.lora_A.weight"; empty where it is no part of an adapter.
  std::string adapted() const;
};

struct ModelGraphs {
  // Inputs tokens, positions, segments, targets (T) i32, weight (), and of encoders with token types types
  // (T); states: parameters, then those of end_step. Output "loss", weight times the sum over targets.
  std::shared_ptr<const Graph> step;
  // The same without gradients, and "hits" () i32, the targets that are likeliest, and "likeliest" () i32,
  // the one of the last row with a target; states: parameters.
  std::shared_ptr<const Graph> loss;
  std::shared_ptr<const Graph> sample;  // the same of fewer rows, with which a text goes on; or null
  std::vector<Parameter> parameters;
  passes::AmpReport precision;  // of the step
  // Where options draw, the last input is draw () i64 (counted_dropout of engine/ops/train/ops.h).
  // Where the model's config asks for a load-balancing loss, which is part of `step`'s loss: there is
  // an input share (T) f32, what each row counts in it (balance.h).
  bool balanced = false;
};

// Whether `name` matches the pattern.
bool matches(std::string_view pattern, std::string_view name);

// UNIMPLEMENTED names what of the model cannot be trained; INVALID_ARGUMENT a target or pattern that matches
// nothing, and what there is. Constants of the graphs are views of the checkpoint's tensors, f32 copies of
// small ones, or options.copies.
Result<ModelGraphs> build_model_graphs(const Checkpoint& checkpoint, const ModelConfig& config,
                                       const GraphOptions& options);
// Of an encoder with this head, whose tensors the checkpoint has; they are trained beside adapters too. What
// a text is to be given is the target of its first row. Targets of tokens are labels of theirs.
Result<ModelGraphs> build_encoder_graphs(const Checkpoint& checkpoint, const EncoderConfig& config,
                                         EncoderHead head, const GraphOptions& options);
// What a step does with each gradient. Without `update`: adds it, as soon as it is there, to a state
// "sum/NAME", in the order of the parameters, which build_update_graph's graph reads. Else updates its
// parameter, one of `values`, behind all that read it. Its states are then each parameter's first moment,
// then each one's second; the last input is "hyper" (4) f64; the last outputs are norms f64: "norm/NAME" of
// each gradient, or together "norm" of all.
Status end_step(Graph& graph, const std::vector<ValueId>& gradients, const std::vector<Parameter>& parameters,
                const std::vector<ValueId>& values, const std::optional<StepUpdate>& update);
// INVALID_ARGUMENT where a rate of `o` is for no parameter.
Status check_rates(std::span<const Parameter> parameters, const OptimizerOptions& o);
// Inputs "hyper" (4) f64; states: by parameter itself, its moments, its gradient. Output "norm" f64.
Result<std::shared_ptr<const Graph>> build_update_graph(const std::vector<Parameter>& parameters,
                                                        const OptimizerOptions& options);

// Where a parameter begins: the checkpoint's values, or A drawn from (seed, its place in the list) as PEFT
// does (https://arxiv.org/abs/1502.01852 with a = sqrt 5: uniform up to 1 / sqrt of its inputs), and B of
// zeros.
Result<Tensor> initial_value(const Parameter& parameter, size_t index, const Checkpoint& checkpoint,
                             uint64_t seed);

}  // namespace oar::train
