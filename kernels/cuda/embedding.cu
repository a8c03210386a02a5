// Embeddings of every storage format.
#include "kernels/cuda/embedding_formats.h"
#include "kernels/cuda/kernels.h"
#include "oar_format_headers.inc"

namespace oar::cuda {
namespace {

template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
CudaStatus embedding(const void* args, void*, Stream stream) {
  return run_embedding<kDecode, kElems, kBlockBytes, kHeadBytes>(*static_cast<const EmbeddingArgs*>(args),
                                                                 stream);
}

#define OAR_REGISTER(format)                                                    \
  {KernelFamily::kEmbedding, formats::format::kInfo.name,                       \
   embedding<formats::format::kInfo.decode, formats::format::kInfo.block_elems, \
             formats::format::kInfo.block_bytes, formats::format::kInfo.head_bytes>},
constexpr DeviceKernel kKernels[] = {
#include "oar_formats.inc"
};
#undef OAR_REGISTER

}  // namespace

std::span<const DeviceKernel> embedding_kernels() { return kKernels; }

}  // namespace oar::cuda
