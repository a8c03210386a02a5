// One measurement of a running engine, seen from outside as a client sees it: prompts in, events out, wall
// time.
#pragma once

#include <cstdint>

#include "engine/runtime/engine.h"

namespace oar::cli {

struct Load {
  int64_t streams = 1;
  int64_t prompt_tokens = 0;  // of each stream; random, so that no prefix is shared
  int64_t gen_tokens = 0;     // of each stream once all have started; end tokens do not stop
  uint64_t seed = 0;
};

// Several streams may have had so many tokens more when the last one starts, or are not measured.
inline constexpr int64_t kOverlapTokens = 1024;

struct Timing {
  // From submit until every stream has its first token.
  int64_t prefill_tokens = 0;
  double prefill_seconds = 0;
  // While all streams decode: from the last stream's first token to the first stream's end.
  int64_t decode_tokens = 0;
  double decode_seconds = 0;
  double slowest_gap = 0;  // seconds between two tokens of one stream in that time, at worst
  double prefill_rate() const {
    return prefill_seconds > 0 ? static_cast<double>(prefill_tokens) / prefill_seconds : 0;
  }
  double decode_rate() const {
    return decode_seconds > 0 ? static_cast<double>(decode_tokens) / decode_seconds : 0;
  }
};

Result<Timing> run_load(Engine& engine, const Load& load);

}  // namespace oar::cli
