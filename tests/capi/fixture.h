// The default model, loaded once for all tests of this binary through the C interface.
#pragma once

#include <string>
#include <vector>

#include "engine/capi/oar.h"

namespace oar_test {

// Two threads, a small pool.
oar_model_options small_options();
oar_model demo_model();

// Greedy, `max_tokens`.
oar_sampling greedy(int64_t max_tokens);

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  oar_finish finish = OAR_FINISH_NONE;
  oar_status status = OAR_OK;
  int events = 0, finishes = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};
void append(Answer& answer, const oar_event& event);
// A callback for oar_generate_*: `user` is an Answer.
int collect(const oar_event* event, void* user);
// Reads a generation without a callback to its end.
Answer drain(oar_generation generation);

}  // namespace oar_test
