// The general product of every storage format; bf16 has a kernel of its own, and so have packed codes.
#include "kernels/cuda/matmul_formats.h"

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul_codes.h"
#include "oar_format_headers.inc"

namespace oar::cuda {
namespace {

// What multiplies weights of K columns.
LaunchProduct chosen(std::string_view format, LaunchProduct general, int64_t K) {
  const LaunchProduct codes = launch_of_codes(format);
  return codes != nullptr && packs(K) ? codes : general;
}

template <LaunchProduct kLaunch, const FormatInfo& kInfo>
CudaStatus plain_normed(const void* args, std::span<const RmsNormArgs> norms, Stream stream) {
  const auto& a = *static_cast<const MatmulArgs*>(args);
  return run_matmul(a, chosen(kInfo.name, kLaunch, a.K), stream, norms);
}
template <LaunchProduct kLaunch, const FormatInfo& kInfo>
CudaStatus of_heads(const MatmulArgs& a, const ProductHeads& heads, Stream stream) {
  return run_heads(a, heads, chosen(kInfo.name, kLaunch, a.K), stream);
}
template <LaunchProduct kLaunch, const FormatInfo& kInfo>
CudaStatus gated_normed(const void* args, std::span<const RmsNormArgs> norms, Stream stream) {
  const auto& a = *static_cast<const GatedMatmulArgs*>(args);
  return run_gated(a, chosen(kInfo.name, kLaunch, a.matmul.K), stream, norms);
}
template <LaunchProduct kLaunch, const FormatInfo& kInfo>
LaunchChain chain(const GatedMatmulArgs& a) {
  if (!fits_chain(a)) return nullptr;
  return kLaunch == launch_bf16 ? chain_of_bf16(a) : chain_of_codes(kInfo.name, a);
}
using Normed = CudaStatus (*)(const void* args, std::span<const RmsNormArgs> norms, Stream stream);
template <Normed kRun>
CudaStatus alone(const void* args, void*, Stream stream) {
  return kRun(args, {}, stream);
}
template <Normed kRun, LaunchChain (*kChain)(const GatedMatmulArgs&)>
constexpr DeviceKernel product(KernelFamily family, const char* format) {
  DeviceKernel kernel{family, format, alone<kRun>};
  kernel.with_norms = kRun;
  kernel.chain = kChain;
  return kernel;
}
template <LaunchProduct kLaunch, const FormatInfo& kInfo>
constexpr DeviceKernel plain() {
  DeviceKernel kernel =
      product<plain_normed<kLaunch, kInfo>, chain<kLaunch, kInfo>>(KernelFamily::kMatmul, kInfo.name);
  kernel.of_heads = of_heads<kLaunch, kInfo>;
  return kernel;
}
template <LaunchProduct kLaunch, const FormatInfo& kInfo>
CudaStatus with_steps(const void* args, const ExpertSteps& steps, Stream stream) {
  const auto& a = *static_cast<const GroupedMatmulArgs*>(args);
  return run_grouped(a, chosen(kInfo.name, kLaunch, a.K), stream, steps);
}
template <LaunchProduct kLaunch, const FormatInfo& kInfo>
LaunchChain experts_chain(const GroupedMatmulArgs& a, const SwiGluArgs* gate) {
  if (!fits_chain(a)) return nullptr;
  GatedMatmulArgs g;  // what of them a chain is chosen by
  MatmulArgs& m = g.matmul;
  m.x = gate != nullptr ? gate->up : a.x;
  m.ldx = gate != nullptr ? gate->ldu : a.ldx;
  m.K = a.K;
  m.segments = a.segments;
  m.num_segments = a.experts * a.segments_per_expert;
  g.gate = gate != nullptr ? gate->gate : nullptr;
  g.ld_gate = gate != nullptr ? gate->ldg : 0;
  return kLaunch == launch_bf16 ? chain_of_bf16(g) : chain_of_codes(kInfo.name, g);
}
using Stepped = CudaStatus (*)(const void* args, const ExpertSteps& steps, Stream stream);
template <Stepped kRun>
CudaStatus of_experts(const void* args, void*, Stream stream) {
  return kRun(args, {}, stream);
}
template <LaunchProduct kLaunch, const FormatInfo& kInfo>
constexpr DeviceKernel grouped() {
  constexpr Stepped kRun = with_steps<kLaunch, kInfo>;
  DeviceKernel kernel{KernelFamily::kGroupedMatmul, kInfo.name, of_experts<kRun>};
  kernel.with_steps = kRun;
  kernel.chain_of_experts = experts_chain<kLaunch, kInfo>;
  return kernel;
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
#define OAR_REGISTER(format)                                                                      \
  plain<OAR_LAUNCH_OF(format), formats::format::kInfo>(),                                         \
      product<gated_normed<OAR_LAUNCH_OF(format), formats::format::kInfo>,                        \
              chain<OAR_LAUNCH_OF(format), formats::format::kInfo>>(KernelFamily::kGatedMatmul,   \
                                                                    formats::format::kInfo.name), \
      grouped<OAR_LAUNCH_OF(format), formats::format::kInfo>(),
constexpr DeviceKernel kKernels[] = {
#include "oar_formats.inc"
};
#undef OAR_REGISTER

}  // namespace

std::span<const DeviceKernel> product_kernels() { return kKernels; }

}  // namespace oar::cuda
