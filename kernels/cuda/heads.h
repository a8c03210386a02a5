// Heads of queries and keys rotated and transformed, and keys and values put into a paged cache, in one
// launch: what a step otherwise does in three to six. Of keys that hold values some columns are rotated, and
// of each query. Each number goes through the operations of the families' own kernels. Roofline: memory,
// every operand once; what a kernel leaves for the next is read from L1.
#pragma once

#include "kernels/cuda/attention_quant.h"
#include "kernels/hadamard.h"
#include "kernels/rope.h"

namespace oar::cuda {

// What is done to the heads of one operand, in this order; either may be missing.
struct HeadSteps {
  RopeArgs rope;          // T == 0: none
  HadamardArgs hadamard;  // rows == 0: none; else `block` is a head; of keys that hold values none
  bool rotates() const { return rope.T > 0; }
  bool transforms() const { return hadamard.rows > 0; }
};
struct Heads {
  HeadSteps q, k, v;  // q may have neither; keys and values end where the append reads them
  int64_t query_heads = 0;
};

template <KvType kType>
CudaStatus append_heads(const Heads& heads, const KvAppendArgs& args, Stream stream);
CudaStatus quant_append_heads(const Heads& heads, const QuantKvAppendArgs& args, KvCode keys, KvCode values,
                              Stream stream);

}  // namespace oar::cuda
