#include "tests/capi/fixture.h"

#include <stdexcept>

namespace oar_test {

oar_model_options small_options() {
  oar_model_options o;
  if (oar_model_options_init(&o, sizeof o) != OAR_OK) throw std::runtime_error(oar_last_error());
  o.threads = 2;
  o.max_sequences = 8;
  o.max_batch_tokens = 64;
  o.memory_bytes = 256 << 20;
  return o;
}

oar_model demo_model() {
  static const oar_model model = [] {
    const oar_model_options o = small_options();
    oar_model m = 0;
    if (oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) != OAR_OK)
      throw std::runtime_error(oar_last_error());
    return m;
  }();
  return model;
}

oar_sampling greedy(int64_t max_tokens) {
  oar_sampling s;
  if (oar_sampling_init(&s, sizeof s) != OAR_OK) throw std::runtime_error(oar_last_error());
  s.temperature = 0;
  s.max_tokens = max_tokens;
  s.ignore_eos = 1;
  return s;
}

void append(Answer& a, const oar_event& e) {
  ++a.events;
  a.text.append(e.text, e.text_length);
  a.tokens.insert(a.tokens.end(), e.tokens, e.tokens + e.token_count);
  if (e.finish != OAR_FINISH_NONE) {
    ++a.finishes;
    a.finish = e.finish;
    a.status = e.status;
    a.prompt_tokens = e.prompt_tokens;
    a.cached_tokens = e.cached_tokens;
    a.completion_tokens = e.completion_tokens;
  }
}

int collect(const oar_event* event, void* user) {
  append(*static_cast<Answer*>(user), *event);
  return 0;
}

Answer drain(oar_generation generation) {
  Answer a;
  const oar_event* event = nullptr;
  while (oar_generation_next(generation, 60'000, &event) == OAR_OK && event != nullptr) append(a, *event);
  return a;
}

}  // namespace oar_test
