// A tier of the KV cache for each layer of a model, chosen by measuring (engine/tune/quantize/tune_kv.h) and
// kept for later starts: in `oar-kv.json` beside the model, or in the cache folder under the model's
// identity. The file has a checksum of itself.
#pragma once

#include <optional>
#include <string>

#include "engine/base/json.h"
#include "engine/loader/checkpoint.h"

namespace oar {

struct KvDecision {
  std::string kv;         // as LanguageModelOptions::kv: one tier, or one per layer with slashes between
  double max_kld = 0;     // the bound it was made for, nats
  double mean_kld = 0;    // measured against an f32 cache
  double kv_bits = 0;     // per element, 16-bit pages apart
  int64_t positions = 0;  // that were measured
};

json::object kv_decision_json(const KvDecision& decision, const std::string& identity);
// INVALID_ARGUMENT names the field that is wrong; `identity` must be the model's.
Result<KvDecision> read_kv_decision(const json::value& stored, const std::string& identity);

// The stored decision for this model: beside it, else under `cache_dir` (empty: default_cache_dir()). None
// when there is none; what is damaged or of another model is passed over and told to `log`.
std::optional<KvDecision> find_kv_decision(const Checkpoint& checkpoint, const std::string& cache_dir,
                                           const Logger& log);
// Written atomically; returns the file. `beside`: in the model's folder instead of the cache.
Result<std::string> store_kv_decision(const Checkpoint& checkpoint, const KvDecision& decision,
                                      const std::string& cache_dir, bool beside);

}  // namespace oar
