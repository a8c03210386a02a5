// Recorded traffic to replay: when a request came and how long its prompt and answer were.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace oar::loadtest {

struct TraceEntry {
  double at = 0;  // seconds from the first one
  int64_t input_tokens = 0, output_tokens = 0;
  std::vector<int64_t> prefix_blocks;  // Mooncake: equal ids are equal blocks of 512 prompt tokens
};

// CSV with a header line, columns in any order and among others. TIMESTAMP or timestamp is a date with time
// of day, or seconds. Input lengths: ContextTokens, input_length, num_prefill_tokens or prompt_tokens. Output
// lengths: GeneratedTokens, output_length, num_decode_tokens or output_tokens.
// JSONL: objects with timestamp
// (milliseconds, as Mooncake writes it), input_length, output_length and, optionally, hash_ids. `limit`
// entries at most (0: all). Times must not go back by more than rounding; they are sorted. INVALID_ARGUMENT
// names the line, and the columns that are missing.
Result<std::vector<TraceEntry>> parse_trace(std::string_view text, std::string_view name, int64_t limit = 0);
Result<std::vector<TraceEntry>> read_trace(const std::string& path, int64_t limit = 0);

}  // namespace oar::loadtest
