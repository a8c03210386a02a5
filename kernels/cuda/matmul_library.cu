#include "kernels/cuda/matmul_library.h"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace oar::cuda {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

LibraryStatus said(CudaStatus status, const char* what) {
  if (status.ok()) return {};
  return {status.code, std::string(what) + ": " + status.message()};
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
  return any && a.T > 0 ? narrow_bytes(a) + workspace : 0;
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
      const int error = narrow_rows(scratch, a, g, stream);
      if (error != 0) return said({error}, "rounding rows to bf16");
      narrowed = true;
    }
    LtOperands o;
    o.out = a.out + s.out_col;
    o.x = scratch;
    o.w = s.w;
    o.residual = a.residual != nullptr ? a.residual + s.out_col : nullptr;
    o.bias = s.bias;
    o.workspace = static_cast<char*>(scratch) + narrow_bytes(a);
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
