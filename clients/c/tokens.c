/* Token ids in, token ids out, without a callback: the same seed twice must give the same tokens.
 * cc -std=c11 tokens.c $(pkg-config --cflags --libs oar) -o tokens; ./tokens demo "To be" */
#include <inttypes.h>
#include <oar.h>
#include <stdio.h>
#include <string.h>

enum { kMaxTokens = 16 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, oar_last_error());
  return 1;
}

/* Up to kMaxTokens ids behind the prompt; how many, or -1. */
static int complete(oar_model model, const int32_t* prompt, size_t count, int32_t* ids) {
  oar_sampling sampling;
  oar_sampling_init(&sampling, sizeof sampling);
  sampling.max_tokens = kMaxTokens;
  sampling.temperature = 1.0f;
  sampling.has_seed = 1;
  sampling.seed = 42;
  oar_generation generation;
  if (oar_generate_tokens(model, prompt, count, &sampling, NULL, NULL, &generation) != OAR_OK) return -1;
  int n = 0;
  const oar_event* event;
  while (oar_generation_next(generation, -1, &event) == OAR_OK && event != NULL) {
    if (event->finish == OAR_FINISH_ERROR) fprintf(stderr, "%s\n", event->message);
    for (size_t i = 0; i < event->token_count && n < kMaxTokens; ++i) ids[n++] = event->tokens[i];
  }
  oar_generation_close(generation);
  return n;
}

int main(int argc, char** argv) {
  oar_model model;
  if (oar_model_load(argc > 1 ? argv[1] : "demo", NULL, &model) != OAR_OK) return fail("load");
  int32_t prompt[256], first[kMaxTokens], second[kMaxTokens];
  size_t count = 0, length = 0;
  const char* text = argc > 2 ? argv[2] : "To be";
  if (oar_tokenize(model, text, SIZE_MAX, 1, prompt, 256, &count) != OAR_OK) return fail("tokenize");
  const int n = complete(model, prompt, count, first);
  if (n < 0 || complete(model, prompt, count, second) != n) return fail("generate");
  for (int i = 0; i < n; ++i) printf("%" PRId32 "%s", first[i], i + 1 < n ? " " : "\n");
  char answer[1024];
  if (oar_detokenize(model, first, (size_t)n, 1, answer, sizeof answer, &length) != OAR_OK)
    return fail("detokenize");
  printf("%s%s\n", text, answer);
  oar_model_close(model);
  return memcmp(first, second, (size_t)n * sizeof first[0]) == 0 ? 0 : 1;
}
