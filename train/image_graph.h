// The graphs that train a network from an ONNX file as a classifier.
//
// Trained are the f32 constants that its layers read as weights, biases, scales and shifts (convolutions,
// linear layers, norms, slopes), and factors and terms of more than one number behind such a layer. What a
// file shares between layers because it began equal (zeros, ones) becomes each one's own if it is a vector.
// Batch norms take mean and variance of each micro-batch and move their running averages as ONNX has it
// (https://onnx.ai/onnx/operators/onnx__BatchNormalization.html): running = momentum running + (1 - momentum)
// batch, with the population's variance. A softmax at the end is left to the loss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/import/import.h"
#include "train/model_graph.h"

namespace oar::train {

struct ImageGraphs {
  // Inputs: the network's own (batch, channels, height, width), targets (batch) i32, weight ().
  // step: states are parameters, then those of end_step. Outputs "loss", weight times the sum over
  // images, and of each average its micro-batch's number.
  // loss: states are parameters, then averages. Targets below 0 count nothing. Outputs "loss", "logits".
  std::shared_ptr<const Graph> step, loss;
  int64_t classes = 0;
  // The network as it was, and the constants in it that are trained, by parameter.
  Graph network;
  std::vector<Parameter> parameters;
  std::vector<ValueId> constants;
  struct Average {
    std::string name;
    double momentum = 0;
    ValueId constant = kNoValue;
  };
  std::vector<Average> averages;
};

// `freeze`: patterns of names that stay as they are; a batch norm whose mean's name matches stays what it is
// in inference. UNIMPLEMENTED names what of the network cannot be trained, INVALID_ARGUMENT a pattern that
// matches nothing. `update`: as end_step has it.
Result<ImageGraphs> build_image_graphs(const ImportedModel& model, const Shape& input,
                                       const std::vector<std::string>& freeze,
                                       const std::optional<StepUpdate>& update);

}  // namespace oar::train
