// Chooses a tier of the KV cache for each layer: as few bits as keep the mean KLD from an f32 cache under a
// bound. What is stored and found again is a KvDecision (engine/runtime/kv_decision.h).
//
//   1. the cheapest tier for all layers: the answer when it is under the bound
//   2. else, every tier for all layers, and each layer alone in each cheaper tier among layers of the safest:
//      what it costs by itself
//   3. all layers in the cheapest tier; while the sum of costs is above the bound, the step with the most
//      divergence saved per bit is taken; then the whole is measured, and steps go on until it holds
// Only positions count that see quantized pages: the first tokens and the newest page are kept in 16 bits, so
// that a document no longer than those says nothing of any tier.
// A decision is always of a configuration that was measured as a whole. When the time is over, the cheapest
// of those measured under the bound is taken.
#pragma once

#include <string>
#include <vector>

#include "engine/runtime/kv_decision.h"
#include "engine/runtime/language_model.h"
#include "engine/text/tokenizer.h"

namespace oar {

// The least that a decision is made on.
inline constexpr int64_t kTunePositions = 256;
// The first position of a sequence whose query sees a quantized page: see kernels/kv_quant.h.
int64_t first_behind_quantized(int32_t page_tokens);

struct TuneKvOptions {
  LanguageModelOptions model;  // threads, weights, cache_dir; kv, rotate and max_context are set here
  double max_kld = 0.005;      // nats per position
  double seconds = 0;          // 0: as long as it takes
  int64_t tokens = 8192;       // of the text, at most
  int64_t context = 1024;      // per window; less where the model's is
};

struct TuneKvStep {
  std::string kv;
  double kv_bits = 0, mean_kld = 0;
};

struct TuneKvReport {
  KvDecision decision;            // kv is empty when nothing could be measured in time
  std::vector<TuneKvStep> steps;  // every configuration measured, in order
  bool within = false;            // the decision is under the bound
  bool complete = false;          // the search came to its end
  int64_t layers = 0;
  double seconds = 0;
};

// Blocks. INVALID_ARGUMENT (field "text") where `text`, in windows of the context and up to options.tokens,
// has fewer than kTunePositions positions that count; CANCELLED when progress says stop.
Result<TuneKvReport> tune_kv(const Checkpoint& checkpoint, const Tokenizer& tokenizer, std::string_view text,
                             const TuneKvOptions& options, const Progress& progress = {});

// What --kv auto means, in every command: the stored decision, else one made within options.seconds and
// stored in the cache folder, else int8. Says in `log` which it was and why.
Result<std::string> choose_kv(const std::string& path, const TuneKvOptions& options,
                              const Progress& progress = {});

// Prose, code, numbers and dialogue, for models of any kind: what --kv auto measures on, and `oar tune`
// without --text.
std::string_view tuning_text();

}  // namespace oar
