#include "engine/ops/tensor/kernel_call.h"

#include <limits>

#include "engine/graph/bound_call.h"
#include "kernels/embedding.h"
#include "kernels/narrow.h"

namespace oar::tensor {

const Kernel& kernel_of(const Backend& backend, const KernelKey& key) {
  const Kernel* k = backend.find_kernel(key);
  OAR_CHECK(k != nullptr, "kernel family without a kernel");
  return *k;
}

Status run_kernel(const KernelContext& ctx, const Kernel& kernel, const void* args, double nanoseconds) {
  const int workers = ctx.backend().workers();
  const bool alone = workers == 1 || nanoseconds <= EvalContext::kWorthPool;
  KernelPlan plan;
  kernel.plan(args, alone ? 1 : workers, &plan);
  return run_on_host(ctx, kernel, args, plan, alone);
}

namespace {
bool is_half(DType t) { return t == DType::kF16 || t == DType::kBF16; }
}  // namespace

Result<Tensor> as_f32(const KernelContext& ctx, const Tensor& t) {
  const EvalContext& plain = ctx;
  if (!is_half(dtype_of(t))) return as_f32(plain, t);
  OAR_ASSIGN(Tensor out, ctx.allocate(t.shape(), DType::kF32));
  float* to = mutable_elements<float>(out);
  const Kernel& kernel = f32_kernel(ctx.backend(), KernelFamily::kEmbedding);  // rows of a table, decoded
  ctx.parallel(t.numel(), 0.15, [&](int64_t begin, int64_t end) {
    const int32_t first = 0;
    EmbeddingArgs a;
    a.out = to + begin, a.table = elements<uint16_t>(t) + begin, a.ids = &first;
    a.T = a.V = 1, a.E = end - begin, a.format = t.format();
    kernel.run(&a, 0, 0, 1, {});
  });
  return out;
}

Result<Tensor> from_f32(const KernelContext& ctx, const Tensor& t, DType dtype) {
  const EvalContext& plain = ctx;
  if (!is_half(dtype)) return from_f32(plain, t, dtype);
  OAR_ASSIGN(Tensor out, ctx.allocate(t.shape(), dtype));
  NarrowArgs a;
  a.out = mutable_elements<uint16_t>(out), a.x = elements<float>(t), a.rows = 1, a.n = t.numel();
  a.f16 = dtype == DType::kF16, a.bf16 = dtype == DType::kBF16;
  OAR_RETURN_IF_ERROR(
      run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kNarrow), &a, 0.2 * static_cast<double>(a.n)));
  return out;
}

double Activation::apply(double x) const {
  return epilogue_value(kind, x, static_cast<double>(alpha), static_cast<double>(beta));
}

Result<Activation> activation_of(const Attrs& attrs) {
  Activation a;
  if (!attrs.has("activation")) return a;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::string name = attrs.get_string("activation");
  a.alpha = static_cast<float>(attrs.get_float("act_alpha"));
  a.beta = static_cast<float>(attrs.get_float("act_beta"));
  if (name == "relu") return Activation{Epilogue::kClamp, 0, kInfinity};
  constexpr struct {
    const char* name;
    Epilogue kind;
  } kNames[] = {{"clip", Epilogue::kClamp},
                {"sigmoid", Epilogue::kSigmoid},
                {"silu", Epilogue::kSilu},
                {"hard_sigmoid", Epilogue::kHardSigmoid},
                {"hard_swish", Epilogue::kHardSwish},
                {"leaky_relu", Epilogue::kLeakyRelu},
                {"tanh", Epilogue::kTanh},
                {"gelu", Epilogue::kGelu},
                {"gelu_tanh", Epilogue::kGeluTanh}};
  for (const auto& n : kNames) {
    if (name == n.name) return a.kind = n.kind, a;
  }
  return invalid_argument(cat("unknown activation '", name, "'"));
}

namespace {

// y (cols, rows) = x (rows, cols)^T for rows [r0, r1), in tiles that the first-level cache holds.
template <class T>
void turn(const T* x, T* y, int64_t rows, int64_t cols, int64_t r0, int64_t r1) {
  constexpr int64_t kTile = 16;
  for (int64_t r = r0; r < r1; r += kTile) {
    for (int64_t c = 0; c < cols; c += kTile) {
      const int64_t rn = std::min(r1, r + kTile), cn = std::min(cols, c + kTile);
      for (int64_t j = c; j < cn; ++j) {
        for (int64_t i = r; i < rn; ++i) y[j * rows + i] = x[i * cols + j];
      }
    }
  }
}

// The same of columns [c0, c1) where R rows are so few that a tile would be one of them.
template <int64_t R, class T>
void turn_few(const T* x, T* y, int64_t cols, int64_t c0, int64_t c1) {
  for (int64_t c = c0; c < c1; ++c) {
    for (int64_t r = 0; r < R; ++r) y[c * R + r] = x[r * cols + c];
  }
}

template <class T>
void turn_all(const EvalContext& ctx, const T* x, T* y, int64_t N, int64_t rows, int64_t cols) {
  if (rows >= 2 && rows <= 4) {  // the planes of an image
    ctx.parallel(N * cols, 0.3 * static_cast<double>(rows), [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t n = begin / cols, c0 = begin % cols, c1 = std::min(cols, c0 + end - begin);
        const T* from = x + n * rows * cols;
        T* to = y + n * rows * cols;
        if (rows == 2) turn_few<2>(from, to, cols, c0, c1);
        else if (rows == 3) turn_few<3>(from, to, cols, c0, c1);
        else turn_few<4>(from, to, cols, c0, c1);
        begin += c1 - c0;
      }
    });
    return;
  }
  constexpr int64_t kBand = 64;
  const int64_t bands = (rows + kBand - 1) / kBand;
  ctx.parallel(N * bands, 0.7 * static_cast<double>(std::min(rows, kBand) * cols),
               [&](int64_t begin, int64_t end) {
                 for (int64_t u = begin; u < end; ++u) {
                   const int64_t n = u / bands, r0 = u % bands * kBand;
                   turn(x + n * rows * cols, y + n * rows * cols, rows, cols, r0, std::min(rows, r0 + kBand));
                 }
               });
}

}  // namespace

void to_channels_last(const EvalContext& ctx, const float* x, float* y, int64_t N, int64_t C, int64_t inner) {
  turn_all(ctx, x, y, N, C, inner);
}
void to_channels_first(const EvalContext& ctx, const float* x, float* y, int64_t N, int64_t C,
                       int64_t inner) {
  turn_all(ctx, x, y, N, inner, C);
}

void turn_bytes(const EvalContext& ctx, const uint8_t* x, uint8_t* y, int64_t N, int64_t rows, int64_t cols) {
  turn_all(ctx, x, y, N, rows, cols);
}

ConvArgs product_args(const Backend& backend, const PackedProduct& p) {
  ConvArgs a;
  a.out = p.out, a.x = p.x, a.w = p.w, a.bias = p.bias, a.residual = p.residual;
  a.window.N = a.window.H = a.window.OH = 1;
  a.window.W = a.window.OW = p.rows;
  a.C = p.K, a.M = p.N;
  a.ldx = p.ldx != 0 ? p.ldx : p.K, a.ldo = p.ldo != 0 ? p.ldo : p.N;
  a.panel = backend.filter_panel();
  a.epilogue = p.activation.kind, a.alpha = p.activation.alpha, a.beta = p.activation.beta;
  return a;
}

double product_cost(const PackedProduct& p) {
  return product_ns(static_cast<double>(p.rows), static_cast<double>(p.K * p.N), 0.02, 4);
}

Status packed_product(const KernelContext& ctx, const PackedProduct& p) {
  if (p.rows == 0 || p.N == 0) return ok_status();
  const ConvArgs a = product_args(ctx.backend(), p);
  return run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kConv), &a, product_cost(p));
}

}  // namespace oar::tensor
