// A paged cache of keys and values in f32, f16 or bf16, and attention over it, on a CUDA device
// (kernels/attention.h).
//
// What a query gets depends on its position alone: runs of kSpan positions, counted from 0, have a softmax of
// their own in steps of 32 positions, and are merged in ascending order. So decode equals prefill to the bit,
// and a sequence's company does not matter. Few rows have a block for each span (attention_split.h), many one
// for all spans of a row and head (attention_kernel.h); both do the same operations in the same order. Pages
// of bf16 with heads up to 128 dims have tensor cores instead (attention_tensor.h).
//
// Roofline: decode: the bytes of keys and values of the context, once for all heads that share them; many
// rows read them for each head, from L1 and L2, or by tensor cores for 64 pairs of a row and a head.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

enum class KvType { kF32, kF16, kBF16 };
template <KvType kType>
CudaStatus kv_append(const KvAppendArgs& args, Stream stream);
template <KvType kType>
CudaStatus paged_attention(const PagedAttentionArgs& args, void* scratch, Stream stream);
template <KvType kType>
uint64_t paged_attention_scratch(const PagedAttentionArgs& args);
// Which caches' attention is made of products of tensor cores (attention_tensor.h), for rows of any number.
constexpr bool by_tensor_cores(KvType type, const KvShape& shape) {
  return type == KvType::kBF16 && shape.latent == 0 && shape.head_dim % 32 == 0 && shape.head_dim <= 128;
}

}  // namespace oar::cuda
