// The fields that say how to generate, shared by every protocol: OpenAI bodies, Triton's sampling_parameters
// JSON, Open Inference parameters and oar.v1 all end here. Names and ranges are OpenAI's where it has them,
// vLLM's otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/runtime/core/request.h"
#include "engine/runtime/text_stream.h"
#include "server/api/fields.h"
#include "server/api/model_handle.h"

namespace oar::api {

// Bounds on what one request may ask for, beyond the engine's own RequestLimits.
struct ApiLimits {
  size_t max_messages = 4096;
  size_t max_prompts = 256;   // of one completions request
  int32_t max_choices = 512;  // prompts x n
  size_t max_stop_strings = 64;
  size_t max_stop_bytes = 1024;
  size_t max_template_bytes = 16 << 20;  // a rendered chat prompt
  double max_timeout_seconds = 86400;
};

struct GenerationParams {
  SamplingParams sampling;
  StopParams stop;  // max_tokens is valid when max_tokens_given
  bool max_tokens_given = false;
  TextStreamOptions text;
  int32_t n = 1;
  std::string cache_salt;
  std::optional<double> timeout_seconds;
};

// The protocol's defaults with the model's generation_config on top.
GenerationParams default_params(const GenerationDefaults& defaults);

// Reads the shared fields of `fields` over `params`. `min_max_tokens` is 1, or 0 where an answer without new
// tokens has a meaning (a completion that echoes its prompt). Cross-checks are in check_params().
void read_params(Fields& fields, const RequestLimits& engine, const ApiLimits& limits, int64_t min_max_tokens,
                 GenerationParams& params);

}  // namespace oar::api
