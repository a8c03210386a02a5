// The general product of every storage format; bf16 has a kernel of its own, and so have packed codes.
#include "kernels/cuda/matmul_formats.h"

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_mixed.h"
#include "kernels/cuda/matmul_weights.h"
#include "oar_format_headers.inc"

namespace oar::cuda {
namespace {

template <const FormatInfo& kInfo>
constexpr bool kIsBf16 = kInfo.decode == formats::bf16::kInfo.decode;

// What multiplies weights of K columns.
template <const FormatInfo& kInfo>
LaunchProduct launch_of(int64_t K) {
  if constexpr (kIsBf16<kInfo>) {
    return launch_bf16;
  } else {
    if constexpr (!kAlwaysPacked<kInfo>) {
      if (!kHasTensorWeights<kInfo> || !packs(K))
        return launch_general<kInfo.decode, kInfo.block_elems, kInfo.block_bytes, kInfo.head_bytes>;
    }
    return launch_of_codes(kInfo.name);
  }
}
// The same behind others, of so many tiles. No launch: rows or weights that lie so are multiplied by
// themselves.
template <const FormatInfo& kInfo>
ChainKernel chain_of(const GatedMatmulArgs& a, int64_t tiles) {
  constexpr int kTensor = kKind<kInfo, true>;
  if constexpr (kIsBf16<kInfo>) {
    return {chain_of_bf16(a), kTensor, tiles};
  } else {
    if constexpr (!kAlwaysPacked<kInfo>) {
      if (!kHasTensorWeights<kInfo> || !packs(a.matmul.K))
        return {launch_general_chain<kInfo.decode, kInfo.block_elems, kInfo.block_bytes, kInfo.head_bytes>,
                kKind<kInfo, false>, tiles};
    }
    return {chain_of_codes(kInfo.name, a), kTensor, tiles};
  }
}

template <const FormatInfo& kInfo>
CudaStatus plain_normed(const void* args, std::span<const RmsNormArgs> norms, Stream stream) {
  const auto& a = *static_cast<const MatmulArgs*>(args);
  return run_matmul(a, launch_of<kInfo>(a.K), stream, norms);
}
template <const FormatInfo& kInfo>
CudaStatus of_heads(const MatmulArgs& a, const ProductHeads& heads, Stream stream) {
  return run_heads(a, heads, launch_of<kInfo>(a.K), stream);
}
template <const FormatInfo& kInfo>
CudaStatus gated_normed(const void* args, std::span<const RmsNormArgs> norms, Stream stream) {
  const auto& a = *static_cast<const GatedMatmulArgs*>(args);
  return run_gated(a, launch_of<kInfo>(a.matmul.K), stream, norms);
}
template <const FormatInfo& kInfo>
ChainKernel chain(const GatedMatmulArgs& a) {
  return fits_chain(a) ? chain_of<kInfo>(a, few_tiles(a.matmul)) : ChainKernel{};
}
using Normed = CudaStatus (*)(const void* args, std::span<const RmsNormArgs> norms, Stream stream);
template <Normed kRun>
CudaStatus alone(const void* args, void*, Stream stream) {
  return kRun(args, {}, stream);
}
template <const FormatInfo& kInfo, Normed kRun>
constexpr DeviceKernel product(KernelFamily family) {
  DeviceKernel kernel{family, kInfo.name, alone<kRun>};
  kernel.with_norms = kRun;
  kernel.chain = chain<kInfo>;
  return kernel;
}
template <const FormatInfo& kInfo>
constexpr DeviceKernel plain() {
  DeviceKernel kernel = product<kInfo, plain_normed<kInfo>>(KernelFamily::kMatmul);
  kernel.of_heads = of_heads<kInfo>;
  return kernel;
}
template <const FormatInfo& kInfo>
constexpr DeviceKernel gated() {
  return product<kInfo, gated_normed<kInfo>>(KernelFamily::kGatedMatmul);
}
template <const FormatInfo& kInfo>
CudaStatus with_steps(const void* args, const ExpertSteps& steps, Stream stream) {
  const auto& a = *static_cast<const GroupedMatmulArgs*>(args);
  return run_grouped(a, launch_of<kInfo>(a.K), stream, steps);
}
template <const FormatInfo& kInfo>
ChainKernel experts_chain(const GroupedMatmulArgs& a, const std::optional<SwiGluArgs>& gate) {
  if (!fits_chain(a)) return {};
  SwiGluArgs rows;  // of x alone where there is no gate
  rows.up = a.x;
  rows.ldu = a.ldx;
  rows = gate.value_or(rows);
  GatedMatmulArgs g;  // what of them a chain is chosen by
  MatmulArgs& m = g.matmul;
  m.x = rows.up;
  m.ldx = rows.ldu;
  m.K = a.K;
  m.segments = a.segments;
  m.num_segments = a.experts * a.segments_per_expert;
  g.gate = rows.gate;
  g.ld_gate = rows.ldg;
  return chain_of<kInfo>(g, few_tiles(a));
}
using Stepped = CudaStatus (*)(const void* args, const ExpertSteps& steps, Stream stream);
template <Stepped kRun>
CudaStatus of_experts(const void* args, void*, Stream stream) {
  return kRun(args, {}, stream);
}
template <const FormatInfo& kInfo>
constexpr DeviceKernel grouped() {
  DeviceKernel kernel{KernelFamily::kGroupedMatmul, kInfo.name, of_experts<with_steps<kInfo>>};
  kernel.with_steps = with_steps<kInfo>;
  kernel.chain_of_experts = experts_chain<kInfo>;
  return kernel;
}

#define OAR_REGISTER(format) \
  plain<formats::format::kInfo>(), gated<formats::format::kInfo>(), grouped<formats::format::kInfo>(),
constexpr DeviceKernel kKernels[] = {
#include "oar_formats.inc"
};
#undef OAR_REGISTER

}  // namespace

std::span<const DeviceKernel> product_kernels() { return kKernels; }

}  // namespace oar::cuda
