// A checkpoint with random weights for a given config.json: real shapes without real weights, for measuring
// speed. Deterministic: the same config and seed give the same bytes on every machine and for every number of
// threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "kernels/thread_pool.h"

namespace oar {

struct TensorSpec {
  std::string name;            // as in a Hugging Face checkpoint
  std::vector<int64_t> shape;  // row-major
  enum class Fill : uint8_t { kNormal, kOnes } fill = Fill::kNormal;
};

// The tensors a checkpoint of this config has. INVALID_ARGUMENT names a missing or impossible field, or a
// model_type outside llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, Gemma 4's and those of
// random_hybrid.h.
Result<std::vector<TensorSpec>> checkpoint_tensors(const json::object& config);

struct RandomCheckpointOptions {
  uint64_t seed = 1;
  double stddev = 0.02;  // of every matrix; norms are ones
  // A model that is to be trained, not measured. Biases are 0. Matrices whose results are added to what
  // layers hand on are smaller by sqrt(2 layers), so that its variance does not grow with depth. The type is
  // that of config.json (`torch_dtype` or `dtype`: bfloat16, or else float32), and no tokenizer is written.
  bool to_train = false;
};

// Writes config.json, model.safetensors (bf16) and a tokenizer.json that knows single bytes into `folder`,
// which must exist. Checks the disk's free space first. A failed write leaves partial files for the caller,
// who owns the folder. INVALID_ARGUMENT as checkpoint_tensors(), and where the type is another one.
Status write_random_checkpoint(const json::object& config, const std::string& folder, ThreadPool& pool,
                               const RandomCheckpointOptions& options = {}, const Progress& progress = {});

}  // namespace oar
