// Attention over a latent in its expanded form, for rows of prompts: keys and values of every head are made
// of what the cache holds, and forgotten again. https://arxiv.org/abs/2405.04434
//
//   k_s = (U_h c_s, k'_s)     v_s = W_h c_s     out = softmax(scale q . k) . v
//
// c and k' are the two parts of a key that holds values (KvShape::latent). A row costs 2 (nope + rope +
// value) operations a position and head where the absorbed form takes 2 (2 rank + rope), 640 instead of 2176
// at DeepSeek's sizes; and each position of a context costs 2 rank (nope + value) operations a head once for
// all rows of a step. So it pays where a step has many rows, about 170 of them there.
//
// Composed of other kernels, which a call names: products with the heads' matrices, products of f32, and
// exponentials. Positions are cut in spans of 256 from the first on, which are merged in ascending order:
// what a row gets depends on its position and the cache alone. It is not what the absorbed form gives, to the
// bit.
#pragma once

#include "kernels/kv_quant.h"
#include "kernels/matmul.h"

namespace oar {

// One matrix a head over latents: a segment each.
struct ExpandedProduct {
  const Kernel* kernel = nullptr;  // of `format`
  const MatmulSegment* heads = nullptr;
  Format format;
};

// Rows from `first` on are of prompts; others are neither read nor written. A sequence has rows of one kind.
struct ExpandedAttentionArgs {
  uint32_t size = sizeof(ExpandedAttentionArgs);
  uint32_t version = 1;
  float* out = nullptr;      // [T, H, value], row stride ldo
  const float* q = nullptr;  // [T, H, nope + rope], row stride ldq; the last rope numbers are turned
  int64_t T = 0, first = 0, H = 0, ldq = 0, ldo = 0, nope = 0, value = 0;
  // Pages, tables, seq_start, context_len, B and scale; of pages that are not quantized `common` alone.
  QuantPagedAttentionArgs pages;
  bool quantized = false;
  ExpandedProduct keys, values;         // (nope, rank) and (value, rank)
  const Kernel* product = nullptr;      // of f32 matrices, in place
  const Kernel* exponential = nullptr;  // kUnary
  size_t inner_scratch = 0;             // expanded_inner_scratch()
};

// The most that one of the kernels takes which a call names. Looks at sizes alone.
size_t expanded_inner_scratch(const ExpandedAttentionArgs& args);
void expanded_attention_plan(const void* args, int workers, KernelPlan* out);
void expanded_attention_run(const void* args, int phase, int64_t begin, int64_t end,
                            const KernelScratch& scratch);

}  // namespace oar
