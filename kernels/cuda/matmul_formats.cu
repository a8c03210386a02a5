// The general product of every storage format; bf16 has a kernel of its own.
#include "kernels/cuda/matmul_formats.h"

#include "kernels/cuda/kernels.h"
#include "oar_format_headers.inc"

namespace oar::cuda {
namespace {

template <LaunchProduct kLaunch>
CudaStatus plain(const void* args, void*, Stream stream) {
  return run_matmul(*static_cast<const MatmulArgs*>(args), kLaunch, stream);
}
template <LaunchProduct kLaunch>
CudaStatus with_gate(const void* args, void*, Stream stream) {
  return run_gated(*static_cast<const GatedMatmulArgs*>(args), kLaunch, stream);
}
template <LaunchProduct kLaunch>
CudaStatus of_experts(const void* args, void*, Stream stream) {
  return run_grouped(*static_cast<const GroupedMatmulArgs*>(args), kLaunch, stream);
}

// kInfo as template arguments.
template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
constexpr LaunchProduct launch_of() {
  if constexpr (kDecode == formats::bf16::kInfo.decode) return launch_bf16;
  else return launch_general<kDecode, kElems, kBlockBytes, kHeadBytes>;
}

#define OAR_LAUNCH_OF(format)                                                  \
  launch_of<formats::format::kInfo.decode, formats::format::kInfo.block_elems, \
            formats::format::kInfo.block_bytes, formats::format::kInfo.head_bytes>()
#define OAR_REGISTER(format)                                                                       \
  {KernelFamily::kMatmul, formats::format::kInfo.name, plain<OAR_LAUNCH_OF(format)>},              \
      {KernelFamily::kGatedMatmul, formats::format::kInfo.name, with_gate<OAR_LAUNCH_OF(format)>}, \
      {KernelFamily::kGroupedMatmul, formats::format::kInfo.name, of_experts<OAR_LAUNCH_OF(format)>},
constexpr DeviceKernel kKernels[] = {
#include "oar_formats.inc"
};
#undef OAR_REGISTER

}  // namespace

std::span<const DeviceKernel> product_kernels() { return kKernels; }

}  // namespace oar::cuda
