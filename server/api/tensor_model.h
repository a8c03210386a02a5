// What the server needs of an ordinary model or an ensemble of such: its configuration in the protocol's
// terms, and what runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/runtime/job_runner.h"
#include "engine/runtime/text_encoder.h"

namespace oar::api {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // with the batch axis, when there is one, in front; -1: any
  // Beside dims: extents of one name are equal over all inputs of a request; empty: none.
  std::vector<std::string> symbols;
  bool ranked = true;  // false: any shape
  bool optional = false;
  bool list = false;  // several tensors, as only a built-in step of an ensemble takes or makes
};

// Null: there is none of that name.
const TensorSpec* find_spec(const std::vector<TensorSpec>& specs, std::string_view name);

// A model of the catalog as a part of an ensemble.
struct EnsembleStep {
  std::string model;
  int64_t version = -1;  // -1: the newest
  // The step's tensors, and those of the ensemble that they are.
  std::vector<std::pair<std::string, std::string>> inputs, outputs;
};

struct TensorModelConfig {
  std::string name, version = "1";
  // "onnx", "paddle", "paddle.pir", "encoder"; "ensemble"; "step": built in; "oar": a language model
  std::string platform;
  std::string path;  // the file it was loaded from
  int64_t max_batch =
      0;               // 0: no batch axis; otherwise the first axis of every tensor, and its largest extent
  bool merge = false;  // with a batch axis: requests may share a run (dynamic batching)
  std::vector<int64_t> preferred_batches;
  int64_t max_queue_delay_us = 0;
  int64_t max_queue = 1024;
  int64_t default_timeout_us = 0;  // of waiting in the queue; 0: none
  bool allow_timeout_override = true;
  int instances = 1;
  bool decoupled = false;                   // a request may have several answers, or one that comes in parts
  std::vector<TensorSpec> inputs, outputs;  // in the predictor's order
  std::vector<EnsembleStep> steps;          // of an ensemble; each behind those whose tensors it reads
};

struct TensorModel {
  TensorModelConfig config;
  std::unique_ptr<JobRunner> runner;
  std::shared_ptr<const TextEncoder> encoder;  // null: a model of tensors alone
  VectorOptions vectors;                       // what its embeddings are made of, unless as its files say
  bool token_vectors = false;                  // /embeddings answers with those of tokens
  double load_seconds = 0;
  mutable std::atomic<uint64_t> encoded_tokens{0};  // of texts that were answered
};
using TensorModelPtr = std::shared_ptr<const TensorModel>;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct NamedList {
  std::string name;
  Datum list;
};

// A request's tensors in the model's order, checked: names, datatypes, ranks, extents, and that all have the
// same number of rows where the model has a batch axis. Errors name the tensor, what was given and what is
// expected.
// `lists`: of a built-in step of an ensemble; nobody else may send any.
Result<InferJob> make_job(const TensorModelConfig& config, std::vector<NamedTensor> given,
                          std::vector<NamedList> lists = {});
// Indices into config.outputs of the wanted names in their order; all of them when none is named.
Result<std::vector<size_t>> select_outputs(const TensorModelConfig& config,
                                           const std::vector<std::string>& wanted);
// The earlier of the transport's deadline and the queue's timeout: the request's own (microseconds, 0: none)
// where the model lets it, else the model's.
std::optional<Clock::time_point> queue_deadline(const TensorModelConfig& config,
                                                std::optional<Clock::time_point> transport,
                                                uint64_t timeout_us);

}  // namespace oar::api
