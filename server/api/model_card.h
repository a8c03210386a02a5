// What is said of a language model or an encoder also while it is not in memory.
#pragma once

#include <string>
#include <vector>

#include "server/api/model_handle.h"
#include "server/api/tensor_model.h"

namespace oar::api {

struct ModelCard {
  std::string name, file, chat_template, bos_token, eos_token;  // `file` without its folders
  int64_t max_context = 0, max_sequences = 0;
  SamplingParams sampling;            // of a request that says nothing
  int64_t max_tokens = 0;             // likewise; 0: what the context holds
  std::vector<std::string> adapters;  // by name
  bool asleep = false, encodes = false;
};

ModelCard card_of(const ModelHandle& model);
ModelCard card_of(const TensorModel& encoder);

}  // namespace oar::api
