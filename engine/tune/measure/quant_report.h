// What a model's numbers are stored in and what they take, by room: weights by format, KV cache per token and
// per sequence, scratch. `oar inspect --quant` prints it. Plans the model as it would be served; runs
// nothing.
#pragma once

#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/tune/measure/eval_model.h"

namespace oar {

struct QuantReport {
  struct Format {
    std::string name;
    uint64_t matrices = 0, weights = 0, bytes = 0;  // of linear layers and the head
  };
  std::vector<Format> formats;       // by name
  std::vector<UnevenMatrix> uneven;  // what --weights could not store in its format
  ModelBits bits;
  std::string weights, kv, rotation;
  uint64_t in_place_bytes = 0, packed_bytes = 0;  // weights in memory: where they lie, and copies of ours
  uint64_t open_bytes = 0;     // a sequence's newest and first tokens in 16 bits beside a quantized cache
  uint64_t scratch_bytes = 0;  // activations and kernels, shared by all sequences
  int64_t max_context = 0;
};

// Schemes that quantize at load do so, or map their cache.
Result<QuantReport> quant_report(const Checkpoint& checkpoint, const LanguageModelOptions& options,
                                 const Progress& progress = {});
std::string quant_text(const QuantReport& report);
json::object quant_json(const QuantReport& report);

}  // namespace oar
