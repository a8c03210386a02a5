// Calls of f32 kernels by ops (lower(), by_kernels()): the best kernel of a family for this processor, its
// scratch, and the pool where the work is worth waking it.
#pragma once

#include "engine/graph/lowering.h"
#include "engine/graph/precision.h"
#include "engine/ops/tensor/util.h"
#include "kernels/conv.h"

namespace oar::tensor {

// The backend's kernel for a key, or of a family for f32; there always is one.
const Kernel& kernel_of(const Backend& backend, const KernelKey& key);
inline const Kernel& f32_kernel(const Backend& backend, KernelFamily family) {
  return kernel_of(backend, {family});
}

// --- for lower() of ops of ordinary models ---

inline bool is_f32(const ValueInfo& v) { return v.given && v.format == Format::f32(); }
// The call of a kernel, where there is one, whose result 0 is f32 of this shape. `nanoseconds` as
// run_kernel() has them; `overwrites` as LoweredOp does.
template <class Args, class Fill>
Lowered lowered_call(LowerContext& ctx, const Kernel* kernel, const Args& args, const Shape& result,
                     double nanoseconds, uint32_t overwrites, Fill fill) {
  if (kernel == nullptr) return not_lowered();
  ctx.results->assign(1, {Format::f32(), result, true});
  auto op = std::make_unique<KernelOp<Args, Fill>>(kernel, args, std::move(fill));
  op->nanoseconds = nanoseconds;
  op->overwrites = overwrites;
  return std::unique_ptr<LoweredOp>(std::move(op));
}

// The same of the backend's f32 kernel of a family.
template <class Args, class Fill>
Lowered lowered_call(LowerContext& ctx, KernelFamily family, const Args& args, const Shape& result,
                     double nanoseconds, uint32_t overwrites, Fill fill) {
  return lowered_call(ctx, ctx.backend.find_kernel({family, Format::f32()}), args, result, nanoseconds,
                      overwrites, std::move(fill));
}

// An operand of run_lowered() whose sizes its op knows.
inline Operand memory_at(const void* data) {
  Operand o;
  o.data = const_cast<void*>(data);
  return o;
}
// A call among several, and what it works on (lowering.h).
template <class Args, class Fill>
LoweredCall part_call(const Kernel& kernel, const Args& args, double nanoseconds, std::vector<uint8_t> in,
                      std::vector<uint8_t> out, Fill fill) {
  auto op = std::make_unique<KernelOp<Args, Fill>>(&kernel, args, std::move(fill));
  op->nanoseconds = nanoseconds;
  return {std::move(op), std::move(in), std::move(out)};
}

// Plans and runs. `nanoseconds`: a rough cost on one thread; small calls stay on the caller's.
Status run_kernel(const KernelContext& ctx, const Kernel& kernel, const void* args, double nanoseconds);
// For run_kernel(): how long one worker takes to multiply `rows` by `weights`, at `ns` a product. Each weight
// comes from the last cache once, at some 40 GB/s, which is most of it where rows are few.
inline double product_ns(double rows, double weights, double ns, double bytes_per_weight) {
  return weights * (rows * ns + bytes_per_weight / 40);
}

// Runs a kernel on the calling thread with scratch of its own, reused from call to call.
class OneThread {
 public:
  void run(const Kernel& kernel, const void* args) {
    KernelPlan plan;
    kernel.plan(args, 1, &plan);
    const KernelScratch scratch{grown(worker_, plan.worker_scratch), grown(shared_, plan.shared_scratch)};
    for (int phase = 0; phase < plan.phases; ++phase) kernel.run(args, phase, 0, plan.chunks[phase], scratch);
  }

 private:
  static void* grown(Buffer& b, size_t bytes) {
    if (b.size() < bytes) b = must_buffer(bytes);
    return bytes > 0 ? b.mutable_data() : nullptr;
  }
  static Buffer must_buffer(size_t bytes) { return std::move(Buffer::allocate(bytes)).value(); }
  Buffer worker_, shared_;
};

// An epilogue as attributes of a node: `activation` (relu, clip, sigmoid, ...), `act_alpha`, `act_beta`.
struct Activation {
  Epilogue kind = Epilogue::kNone;
  float alpha = 0, beta = 0;
  bool given() const { return kind != Epilogue::kNone; }
  // One value, in double: for element types without a kernel.
  double apply(double x) const;
};
Result<Activation> activation_of(const Attrs& attrs);

// y = x with the axes of (N, C, inner) exchanged to (N, inner, C), and back. Both dense.
void to_channels_last(const EvalContext& ctx, const float* x, float* y, int64_t N, int64_t C, int64_t inner);
void to_channels_first(const EvalContext& ctx, const float* x, float* y, int64_t N, int64_t C, int64_t inner);
// y (N, cols, rows) = x (N, rows, cols) of bytes.
void turn_bytes(const EvalContext& ctx, const uint8_t* x, uint8_t* y, int64_t N, int64_t rows, int64_t cols);

// out (rows, N) = x (rows, K) . w packed for the convolution kernel, + bias + residual, activation.
struct PackedProduct {
  int64_t rows = 0, K = 0, N = 0;
  int64_t ldx = 0, ldo = 0;
  const float* x = nullptr;
  const float* w = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  float* out = nullptr;
  Activation activation;
};
Status packed_product(const KernelContext& ctx, const PackedProduct& p);
// The call of it, and its rough nanoseconds on one thread.
ConvArgs product_args(const Backend& backend, const PackedProduct& p);
double product_cost(const PackedProduct& p);

}  // namespace oar::tensor
