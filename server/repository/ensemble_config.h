// The configuration of an ensemble: Triton's `ensemble_scheduling`, a list of steps, each a model with its
// tensors mapped to names of the ensemble. Checked against the models there are: what could not work is
// refused here, by name, and not by the first request.
#pragma once

#include <string>
#include <vector>

#include "engine/base/json.h"
#include "server/api/ensemble.h"

namespace oar {

// Whether a configuration is one of an ensemble.
bool is_ensemble(const json::object& config);
// The models that its steps name, in their order; empty for any other model, and where it cannot be read.
std::vector<std::string> models_of_steps(const json::object& config);

// Refused: models and tensors that do not exist, tensors that nobody writes, that nobody reads or that two
// write, steps that wait for each other, datatypes and shapes that do not agree.
Result<api::TensorModelConfig> make_ensemble_config(const std::string& name, const json::object& config,
                                                    const api::Ensemble::FindStep& find);

}  // namespace oar
