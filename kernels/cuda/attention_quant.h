// A quantized paged cache on a CUDA device, and attention over it (kernels/kv_quant.h: the rule of visibility
// and the codes). Quantized pages are those of QuantKvLayout to the byte; open and sink pages lie as
// kv_pages.h says. One kernel serves every pair of codes. The order of sums is that of attention.h.
//
// Roofline: decode: the bytes of codes and scales of the context, once for all heads that share them; the
// append: rows in f32 and what they become.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/status.h"
#include "kernels/hadamard.h"
#include "kernels/kv_quant.h"

namespace oar::cuda {

CudaStatus quant_kv_append(const QuantKvAppendArgs& args, KvCode keys, KvCode values, Stream stream);
// The second half of it: pages whose last token has come, from rows that lie in the open ones.
CudaStatus quantize_full_pages(const QuantKvAppendArgs& args, KvCode keys, KvCode values, Stream stream);
// `transform`: of heads of its result, done in the same launch where rows are split; none where it is null.
CudaStatus quant_paged_attention(const QuantPagedAttentionArgs& args, KvCode keys, KvCode values,
                                 void* scratch, Stream stream, const HadamardArgs* transform = nullptr);
uint64_t quant_paged_attention_scratch(const QuantPagedAttentionArgs& args);
// Which caches' attention is made of products of tensor cores (attention_codes.h), for rows of any number;
// `open` is the shape of open pages.
constexpr bool quant_by_tensor_cores(KvCode keys, KvCode values, const KvShape& open) {
  const bool tier = keys == values ? keys == KvCode::kInt8 || keys == KvCode::kFp8 || keys == KvCode::kInt4
                                   : keys == KvCode::kInt8 && values == KvCode::kInt4;
  return tier && by_tensor_cores(KvType::kBF16, open);
}

}  // namespace oar::cuda
