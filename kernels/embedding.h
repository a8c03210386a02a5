// Row gathers. Embedding decodes rows of any storage format to f32: out[t, :] = table[ids[t], :].
#pragma once

#include "kernels/kernel.h"

namespace oar {

struct EmbeddingArgs {
  uint32_t size = sizeof(EmbeddingArgs);
  uint32_t version = 1;
  float* out = nullptr;          // [T, E]
  const void* table = nullptr;   // [V, E] row-major in `format`
  const int32_t* ids = nullptr;  // [T], each in [0, V): checked by the caller
  int64_t T = 0, E = 0, V = 0;
  Format format;
  float scale = 1.f;
};

// out[r, :] = x[rows[r], :] in f32; used to keep only the rows that need logits.
struct GatherRowsArgs {
  uint32_t size = sizeof(GatherRowsArgs);
  uint32_t version = 1;
  float* out = nullptr;           // [R, E]
  const float* x = nullptr;       // [T, E]
  const int32_t* rows = nullptr;  // [R]
  int64_t R = 0, E = 0;
};

}  // namespace oar
