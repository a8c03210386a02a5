#include "kernels/cuda/matmul_library.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul_codes.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::string_view kFormat = "e4m3_g128";

// Codes [n, K] and scales [K / 128, n] of panels of 16 rows, codes row behind row and behind them the scales
// of each 128 k, of rows g and g + 8 side by side. A panel a block along x; a thread copies 16 bytes.
// Roofline: 2 bytes a code.
__global__ void __launch_bounds__(kThreads)
    panels_to_rows(uint4* codes, float* scales, const uint4* panels, int64_t n, int64_t K) {
  wait_for_launches();
  const int64_t panel = blockIdx.x, i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t of_codes = K, of_scales = K / kLtScaleDepth * (kCodePanelRows / 4);
  if (i >= of_codes + of_scales) return;
  const uint4 words = load_once(panels + panel * (of_codes + of_scales) + i);
  if (i < of_codes) return store(codes + panel * of_codes + i, words);
  const int64_t group = (i - of_codes) / 4, first = (i - of_codes) % 4 * 4;
  float* const to = scales + group * n + panel * kCodePanelRows + first / 2;
  store(to, __uint_as_float(words.x));
  store(to + 8, __uint_as_float(words.y));
  store(to + 1, __uint_as_float(words.z));
  store(to + 9, __uint_as_float(words.w));
}

// Rows in fours.
int64_t whole_rows(const MatmulArgs& a) { return (a.T + kLtScaleRows - 1) / kLtScaleRows * kLtScaleRows; }
uint64_t whole(int64_t bytes) { return (static_cast<uint64_t>(bytes) + 255) / 256 * 256; }

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
  return plan_of({LtTypes::kBf16, LtScale::kNone, s.bias != nullptr, s.n, a.K, a.K, a.ldo}, 1);
}

LtPlan* LibraryProducts::plan_of_codes(const MatmulArgs& a, const MatmulSegment& s) {
  if (!packs(a.K) || !aligned(s.w) || !aligned(s.bias) || s.out_col % 4 != 0) return nullptr;
  return plan_of({LtTypes::kE4m3, LtScale::kGroup, s.bias != nullptr, s.n, a.K, a.K, a.ldo}, kLtScaleRows);
}

LtPlan* LibraryProducts::plan_of(const LtProduct& product, int64_t least_rows) {
  const auto [at, is_new] =
      plans_.try_emplace({product.types, product.n, product.K, product.ldo, product.bias});
  std::optional<LtPlan>& plan = at->second;
  if (is_new) {
    LtPlan made;
    // A prompt may end in a few rows of its own.
    if (lt_->prepare(product, kPlannedRows, kMostWorkspace, &made).ok() && lt_->check(made, least_rows).ok())
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
  const auto takes = [&](const MatmulSegment& s) { return plan_of(a, s) != nullptr; };
  if (std::any_of(a.segments, a.segments + a.num_segments, takes)) {
    const int error = narrow_rows(scratch, a, g, stream);
    if (error != 0) return said({error}, "rounding rows to bf16");
  }
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

LibraryStatus LibraryProducts::run(const MatmulArgs& a, void* scratch, Stream stream, const RowSteps* steps) {
  return run(a, {nullptr, 0, UnaryOp::kSilu, steps}, scratch, stream,
             [&](const MatmulArgs& one) { return run_matmul(one, launch_bf16, stream); });
}

LibraryStatus LibraryProducts::run(const GatedMatmulArgs& a, void* scratch, Stream stream) {
  return run(a.matmul, {a.gate, a.ld_gate, a.act}, scratch, stream, [&](const MatmulArgs& one) {
    GatedMatmulArgs its = a;
    its.matmul = one;
    return run_gated(its, launch_bf16, stream);
  });
}

// Of a call: its rows as codes, then what one product after the other has.
struct LibraryCodes::Places {
  NarrowCodes rows;
  char *codes, *scales;  // of a weight
  char* out;             // [whole_rows, ldo], where rows are no fours
  char* workspace;
  uint64_t bytes;
};

LibraryCodes::Places LibraryCodes::places_of(const MatmulArgs& a, void* scratch) {
  int64_t most = 0;
  uint64_t workspace = 0;
  for (int64_t i = 0; i < a.num_segments; ++i) {
    const LtPlan* plan = products_.plan_of_codes(a, a.segments[i]);
    if (plan == nullptr) continue;
    most = std::max(most, a.segments[i].n);
    workspace = std::max(workspace, plan->workspace_bytes());
  }
  Places at = {};
  if (most == 0 || a.T <= 0) return at;
  const int64_t rows = whole_rows(a), groups = a.K / kLtScaleDepth;
  const auto take = [&](int64_t bytes) {
    const auto piece = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(scratch) + at.bytes);
    at.bytes += whole(bytes);
    return piece;
  };
  at.rows.codes = reinterpret_cast<uint8_t*>(take(rows * a.K));
  at.rows.scales = reinterpret_cast<float*>(take(groups * rows * int64_t{sizeof(float)}));
  at.rows.ld_scales = rows;
  at.codes = take(most * a.K);
  at.scales = take(groups * most * int64_t{sizeof(float)});
  at.out = take(rows == a.T ? 0 : rows * a.ldo * int64_t{sizeof(float)});
  at.workspace = take(static_cast<int64_t>(workspace));
  return at;
}

uint64_t LibraryCodes::scratch(const MatmulArgs& a) { return places_of(a, nullptr).bytes; }

LibraryStatus LibraryCodes::multiply(const MatmulArgs& a, const MatmulSegment& s, const Places& at,
                                     Stream stream) {
  const int64_t words = a.K + a.K / kLtScaleDepth * (kCodePanelRows / 4);
  const dim3 grid(static_cast<unsigned>(s.n / kCodePanelRows),
                  static_cast<unsigned>((words + kThreads - 1) / kThreads));
  const int error = launch(panels_to_rows, grid, kThreads, 0, stream, reinterpret_cast<uint4*>(at.codes),
                           reinterpret_cast<float*>(at.scales), static_cast<const uint4*>(s.w), s.n, a.K);
  if (error != 0) return said({error}, "a weight's rows");
  LtOperands o;
  o.out = a.out + s.out_col;
  o.x = at.rows.codes;
  o.w = at.codes;
  o.residual = a.residual != nullptr ? a.residual + s.out_col : nullptr;
  o.bias = s.bias;
  o.x_scale = at.rows.scales;
  o.w_scale = reinterpret_cast<const float*>(at.scales);
  o.workspace = at.workspace;
  o.rows = whole_rows(a);
  LtPlan& plan = *products_.plan_of_codes(a, s);
  if (o.rows == a.T) return products_.lt_->run(plan, o, stream);
  const auto copy = [&](void* to, const void* from) {
    const size_t row = static_cast<size_t>(a.ldo) * sizeof(float);
    return cudaMemcpy2DAsync(to, row, from, row, static_cast<size_t>(s.n) * sizeof(float),
                             static_cast<size_t>(a.T), cudaMemcpyDeviceToDevice,
                             static_cast<cudaStream_t>(stream));
  };
  void* const out = std::exchange(o.out, at.out);
  if (o.residual != nullptr) {
    if (const int failed = copy(at.out, o.residual); failed != 0)
      return said({failed}, "rows of the residual");
    o.residual = at.out;
  }
  if (LibraryStatus failed = products_.lt_->run(plan, o, stream); !failed.ok()) return failed;
  return said({copy(out, at.out)}, "rows of the result");
}

template <class Own>
LibraryStatus LibraryCodes::run(const MatmulArgs& a, const Gate& g, void* scratch, Stream stream,
                                const Own& own) {
  if (a.T <= 0) return {};
  const Places at = places_of(a, scratch);
  if (at.bytes > 0) {  // a weight at least is taken
    const int error = narrow_rows_to_codes(at.rows, a, g, stream);
    if (error != 0) return said({error}, "rounding rows to e4m3");
  }
  for (int64_t i = 0; i < a.num_segments; ++i) {
    const MatmulSegment& s = a.segments[i];
    if (products_.plan_of_codes(a, s) == nullptr) {
      MatmulArgs one = a;
      one.segments = &s;
      one.num_segments = 1;
      if (LibraryStatus failed = said(own(one), "our own product"); !failed.ok()) return failed;
      continue;
    }
    if (LibraryStatus failed = multiply(a, s, at, stream); !failed.ok()) return failed;
  }
  return {};
}

LibraryStatus LibraryCodes::run(const MatmulArgs& a, void* scratch, Stream stream, const RowSteps* steps) {
  const DeviceKernel* own = find_device_kernel(KernelFamily::kMatmul, kFormat);
  return run(a, {nullptr, 0, UnaryOp::kSilu, steps}, scratch, stream,
             [&](const MatmulArgs& one) { return own->launch(&one, nullptr, stream); });
}

LibraryStatus LibraryCodes::run(const GatedMatmulArgs& a, void* scratch, Stream stream) {
  const DeviceKernel* own = find_device_kernel(KernelFamily::kGatedMatmul, kFormat);
  return run(a.matmul, {a.gate, a.ld_gate, a.act}, scratch, stream, [&](const MatmulArgs& one) {
    GatedMatmulArgs its = a;
    its.matmul = one;
    return own->launch(&its, nullptr, stream);
  });
}

}  // namespace oar::cuda
