// Attention over quantized pages by tensor cores (attention_tensor.h: queries and weights as two bf16 each),
// for codes that bf16 has exactly: the tiers int8, fp8, k8v4 and int4, heads of 32, 64, 96 or 128 dims.
// Scores are multiplied by a position's scale behind the product, weights in front of it; minima are
// multiplied with the sums of queries and of weights.
//
// Few rows are computed by spans (attention_spans.h), many in tiles (attention_tiles.h). Rows of a prompt
// that lie in one page see each position in one form, so a block has several of them.
//
// Roofline: few rows: the bytes of codes and scales of the context. Rows of a prompt: 4 (D + DV) operations
// of tensor cores a pair of a row and a head and a position that it sees, as both sides are split in two.
#pragma once

#include "kernels/cuda/attention_quant.h"
#include "kernels/cuda/attention_split.h"
#include "kernels/cuda/quantized_pages.h"

namespace oar::cuda {

// A cudaError_t. Of codes and shapes as above; `scratch` has tensor_attention_scratch(a) bytes.
int attend_codes(const PagedAttentionArgs& a, const QuantizedPages<false>& pages, KvCode keys, KvCode values,
                 void* scratch, Stream stream, const HeadTransform& then);

}  // namespace oar::cuda
