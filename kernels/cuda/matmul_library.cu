#include "kernels/cuda/matmul_library.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/math.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = 8;  // of a thread: 16 bytes of bf16
constexpr uint64_t kWorkspaceAlignment = 256;

template <bool kAligned>
OAR_DEVICE float4 load_four(const float* p) {
  if constexpr (kAligned) return load(reinterpret_cast<const float4*>(p));
  else return make_float4(p[0], p[1], p[2], p[3]);
}

// out (rows, K) = x, or act(gate) * x, in bf16. A row a block along x. Roofline: 6 bytes an element, 10 with
// a gate.
template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(uint16_t* out, const float* x, const float* gate, int64_t K, int64_t ldx, int64_t ld_gate,
                  UnaryOp act) {
  const int64_t row = blockIdx.x, k = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kElements;
  if (k >= K) return;
  float pairs[kElements / 2];  // of bf16
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    float4 v = load_four<kAligned>(x + row * ldx + k + i);
    if (gate != nullptr) {
      const float4 g = load_four<kAligned>(gate + row * ld_gate + k + i);
      v = make_float4(gated(act, g.x, v.x), gated(act, g.y, v.y), gated(act, g.z, v.z), gated(act, g.w, v.w));
    }
    pairs[i / 2] = __uint_as_float(pack_bf16(v.x, v.y));
    pairs[i / 2 + 1] = __uint_as_float(pack_bf16(v.z, v.w));
  }
  store_wide(reinterpret_cast<float*>(out + row * K + k),
             make_float4(pairs[0], pairs[1], pairs[2], pairs[3]));
}

bool wide(const float* p, int64_t ld) {
  return p == nullptr || (reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0);
}
bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

LibraryStatus said(CudaStatus status, const char* what) {
  if (status.ok()) return {};
  return {status.code, std::string(what) + ": " + status.message()};
}

uint64_t rows_bytes(const MatmulArgs& a) {
  return (static_cast<uint64_t>(a.T * a.K) * sizeof(uint16_t) + kWorkspaceAlignment - 1) /
         kWorkspaceAlignment * kWorkspaceAlignment;
}

}  // namespace

std::unique_ptr<LibraryProducts> LibraryProducts::make(const CublasLtApi& api, std::string* why) {
  auto lt = CublasLt::make(api, why);
  if (lt == nullptr) return nullptr;
  return std::unique_ptr<LibraryProducts>(new LibraryProducts(std::move(lt)));
}

LtPlan* LibraryProducts::plan_of(const MatmulArgs& a, const MatmulSegment& s) {
  if (!aligned(s.w) || !aligned(s.bias) || s.out_col % 4 != 0) return nullptr;
  const bool bias = s.bias != nullptr;
  const auto [at, is_new] = plans_.try_emplace({s.n, a.K, a.ldo, bias});
  std::optional<LtPlan>& plan = at->second;
  if (is_new) {
    const LtProduct product = {LtTypes::kBf16, LtScale::kNone, bias, s.n, a.K, a.K, a.ldo};
    LtPlan made;
    // A prompt may end in a row of its own.
    if (lt_->prepare(product, kPlannedRows, kMostWorkspace, &made).ok() && lt_->check(made, 1).ok())
      plan = made;
  }
  return plan.has_value() ? &*plan : nullptr;
}

uint64_t LibraryProducts::scratch(const MatmulArgs& a) {
  uint64_t workspace = 0;
  bool any = false;
  for (int64_t i = 0; i < a.num_segments; ++i) {
    const LtPlan* plan = plan_of(a, a.segments[i]);
    any = any || plan != nullptr;
    if (plan != nullptr) workspace = std::max(workspace, plan->workspace_bytes());
  }
  return any && a.T > 0 ? rows_bytes(a) + workspace : 0;
}

template <class Own>
LibraryStatus LibraryProducts::run(const MatmulArgs& a, const Gate& g, void* scratch, Stream stream,
                                   const Own& own) {
  if (a.T <= 0) return {};
  bool narrowed = false;
  for (int64_t i = 0; i < a.num_segments; ++i) {
    const MatmulSegment& s = a.segments[i];
    LtPlan* plan = plan_of(a, s);
    if (plan == nullptr) {
      MatmulArgs one = a;
      one.segments = &s;
      one.num_segments = 1;
      if (LibraryStatus failed = said(own(one), "our own product"); !failed.ok()) return failed;
      continue;
    }
    if (!narrowed) {
      const dim3 grid(static_cast<unsigned>(a.T),
                      static_cast<unsigned>((a.K / kElements + kThreads - 1) / kThreads));
      const bool both = wide(a.x, a.ldx) && wide(g.gate, g.ld);
      const int error = launch(both ? narrow_kernel<true> : narrow_kernel<false>, grid, kThreads, 0, stream,
                               static_cast<uint16_t*>(scratch), a.x, g.gate, a.K, a.ldx, g.ld, g.act);
      if (error != 0) return said({error}, "rounding rows to bf16");
      narrowed = true;
    }
    LtOperands o;
    o.out = a.out + s.out_col;
    o.x = scratch;
    o.w = s.w;
    o.residual = a.residual != nullptr ? a.residual + s.out_col : nullptr;
    o.bias = s.bias;
    o.workspace = static_cast<char*>(scratch) + rows_bytes(a);
    o.rows = a.T;
    if (LibraryStatus failed = lt_->run(*plan, o, stream); !failed.ok()) return failed;
  }
  return {};
}

LibraryStatus LibraryProducts::run(const MatmulArgs& a, void* scratch, Stream stream) {
  return run(a, {nullptr, 0, UnaryOp::kSilu}, scratch, stream,
             [&](const MatmulArgs& one) { return run_matmul(one, launch_bf16, stream); });
}

LibraryStatus LibraryProducts::run(const GatedMatmulArgs& a, void* scratch, Stream stream) {
  return run(a.matmul, {a.gate, a.ld_gate, a.act}, scratch, stream, [&](const MatmulArgs& one) {
    GatedMatmulArgs its = a;
    its.matmul = one;
    return run_gated(its, launch_bf16, stream);
  });
}

}  // namespace oar::cuda
