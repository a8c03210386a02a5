// linear(x (..., K), residual or none, w0 (N0, K), b0 (N0) or none, w1, b1, ...) -> (..., N0 + N1 + ...):
// x . concat(w)^T + concat(b) + residual. Several weights share one conversion of x (passes/fuse_linear.cc).
// Attributes:
//   format       storage format to compute in ("int8" weights of a bf16 file); empty: as stored
//   input_major  1: weights lie as (K, N), as ONNX and Paddle store them
//   activation, act_alpha, act_beta   what the sum ends with (passes/fuse_epilogues.cc)
//   precision    of operands that are rounded in the run (passes/lower_precision.cc)
//   matrix       1: x has two axes (ONNX's Gemm)
//   many_rows    1: see in_panels(), weights.h
// In ordinary models (tensor/linear.cc) operands have any dtype, and bias and residual broadcast.
#include <algorithm>

#include "engine/ops/gradient/gradients.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/tensor/linear.h"
#include "engine/ops/weights.h"

namespace oar {

Format compute_format(Format stored, const Shape& shape, const std::string& wanted, const Backend& backend) {
  if (wanted.empty()) return stored;
  const auto format = Format::find(wanted);
  OAR_CHECK(format.has_value(), "format was checked when it was asked for");
  if (*format == stored) return *format;
  if (!format->row_bytes(shape[1])) return stored;
  return backend.packs_from(*format, stored, shape[0], shape[1]) ? *format : stored;
}

namespace {

// Row-major copy of a matrix in another format that has an encoder, rows in parallel.
Result<Tensor> reencode(ThreadPool& pool, const Tensor& w, Format format) {
  const int64_t n = w.shape()[0], K = w.shape()[1];
  OAR_ASSIGN(Tensor out, Tensor::allocate(w.shape(), format));
  const int64_t from_row = *w.format().row_bytes(K), to_row = *format.row_bytes(K);
  const auto* from = static_cast<const std::byte*>(w.data());
  auto* to = static_cast<std::byte*>(out.mutable_data());
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(K));
    for (int64_t r = begin; r < end; ++r) {
      w.format().decode_row(from + r * from_row, K, row.data());
      format.encode_row(row.data(), K, to + r * to_row);
    }
  });
  w.buffer().release_pages();
  return out;
}

}  // namespace

Result<const StoredWeight*> weight_rows(const LowerContext& ctx, size_t input, Format format) {
  return ctx.weight(input, cat("rows ", format.name()), [&](const Tensor& w) -> Result<StoredWeight> {
    if (w.format() == format) return ctx.weights.place(w, ctx.is_expression(input));
    OAR_ASSIGN(const Tensor rows, reencode(ctx.backend.host_pool(), w, format));
    return ctx.weights.place(rows, true);
  });
}

Result<const StoredWeight*> matmul_weight(const LowerContext& ctx, size_t input, Format format) {
  const Shape shape = ctx.weight_shape(input);
  OAR_ASSIGN(const uint64_t bytes, ctx.backend.packed_bytes(format, shape[0], shape[1]));
  if (bytes == 0) return weight_rows(ctx, input, format);
  return ctx.weight(input, cat("matmul ", format.name()), [&](const Tensor& w) -> Result<StoredWeight> {
    OAR_ASSIGN(Buffer packed, Buffer::allocate(bytes));
    OAR_RETURN_IF_ERROR(
        ctx.backend.pack(format, w.format(), shape[0], shape[1], packed.mutable_data(), w.data()));
    w.buffer().release_pages();
    return ctx.weights.place(std::move(packed), true);
  });
}

namespace {

Types linear_infer(const Graph& g, Ids in, const Attrs& attrs) {
  const bool input_major = attrs.get_int("input_major") != 0;
  if (in.size() < 4 || in.size() % 2 != 0)
    return invalid_argument("takes x, residual and (weight, bias) pairs");
  DimVector shape = shape_of(g, in[0]);
  if (shape.empty()) return invalid_argument("x is a scalar");
  const Dim K = shape.back();
  Dim N = 0;
  for (size_t k = 2; k < in.size(); k += 2) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, k, 2, "weight"));
    const DimVector& w = shape_of(g, in[k]);
    const Dim n = w[input_major ? 1 : 0];
    OAR_RETURN_IF_ERROR(check_same(w[input_major ? 0 : 1], K, "inputs of the weight and columns of x"));
    if (given(in, k + 1)) {
      OAR_RETURN_IF_ERROR(check_rank(g, in, k + 1, 1, "bias"));
      OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[k + 1])[0], n, "bias and outputs of the weight"));
    }
    N = N + n;
  }
  shape.back() = N;
  if (given(in, 1) && !(shape_of(g, in[1]) == shape))
    return invalid_argument("residual has another shape than the result");
  return std::vector<TensorType>{f32_type(std::move(shape))};
}

void fill_matmul(MatmulArgs& a, const Operand& x, const Operand& residual, const Operand& out) {
  a.x = x.as<const float>();
  a.residual = residual.as<const float>();
  a.out = out.as<float>();
  a.K = x.cols();
  a.T = x.rows();
  a.ldx = x.rank == 2 ? x.row_stride : a.K;
  a.ldo = out.cols();
}

// Leaves the rows of one class, of a value with phases.
void keep_rows(MatmulArgs& a, RowClass rows, int64_t prompts_from) {
  if (rows == RowClass::kAny) return;
  const int64_t begin = rows == RowClass::kPrompt ? prompts_from : 0;
  a.T = rows == RowClass::kPrompt ? a.T - begin : prompts_from;
  a.x += begin * a.ldx;
  a.out += begin * a.ldo;
  if (a.residual != nullptr) a.residual += begin * a.ldo;
}

// The kernel that rows of prompts have, where it is another than that of all others. A backend whose kernels
// serve both says the same one twice.
const Kernel* kernel_of_prompts(const LowerContext& ctx, size_t x, KernelFamily family, Format format) {
  if (ctx.probe || !ctx.graph.has_phases(ctx.graph.value(ctx.node.inputs[x]).type)) return nullptr;
  const Kernel* of_all = ctx.backend.find_kernel({family, format});
  const Kernel* own =
      ctx.backend.find_kernel({.family = family, .weight = format, .rows = RowClass::kPrompt});
  return own != of_all ? own : nullptr;
}

// The weights of a product. They are shared by all runs, unless a bias is computed: then each run has its own
// behind its arguments.
class Segments {
 public:
  // `first` is the operand of the first weight; its bias is the next.
  Segments(std::vector<MatmulSegment> segments, size_t first, bool computed_bias)
      : segments_(std::move(segments)), first_(first), computed_bias_(computed_bias) {}
  // Of the arguments of one run, and of what lies behind them.
  size_t bytes() const { return computed_bias_ ? segments_.size() * sizeof(MatmulSegment) : 0; }
  void fill(MatmulArgs& a, void* behind, const Operand* in) const {
    a.segments = segments_.data();
    a.num_segments = static_cast<int64_t>(segments_.size());
    if (!computed_bias_) return;
    auto* const own = static_cast<MatmulSegment*>(behind);
    for (size_t i = 0; i < segments_.size(); ++i) {
      new (own + i) MatmulSegment(segments_[i]);
      if (own[i].bias == nullptr) own[i].bias = in[first_ + 2 * i + 1].as<const float>();
    }
    a.segments = own;
  }

 private:
  std::vector<MatmulSegment> segments_;
  size_t first_;
  bool computed_bias_;
};

class LinearOp final : public LoweredOp {
 public:
  LinearOp(const Kernel* kernel, Segments segments, Format format, RowClass rows)
      : kernel_(kernel), segments_(std::move(segments)), rows_(rows) {
    args_.format = format;
  }
  const Kernel* kernel() const override { return kernel_; }
  size_t args_bytes() const override { return sizeof(MatmulArgs) + segments_.bytes(); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    auto& a = *new (args) MatmulArgs(args_);
    segments_.fill(a, &a + 1, in);
    fill_matmul(a, in[0], in[1], out[0]);
    keep_rows(a, rows_, in[0].prompts_from);
  }

 private:
  const Kernel* kernel_;
  const Segments segments_;
  const RowClass rows_;
  MatmulArgs args_;
};

class GatedLinearOp final : public LoweredOp {
 public:
  GatedLinearOp(const Kernel* kernel, const Kernel* swiglu, UnaryOp act, Segments segments, Format format,
                RowClass rows)
      : kernel_(kernel), segments_(std::move(segments)), rows_(rows) {
    args_.matmul.format = format;
    args_.swiglu = swiglu;
    args_.act = act;
  }
  const Kernel* kernel() const override { return kernel_; }
  size_t args_bytes() const override { return sizeof(GatedMatmulArgs) + segments_.bytes(); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    auto& a = *new (args) GatedMatmulArgs(args_);
    segments_.fill(a.matmul, &a + 1, in);
    fill_matmul(a.matmul, in[1], in[2], out[0]);
    a.gate = in[0].as<const float>();
    a.ld_gate = in[0].row_stride;
    keep_rows(a.matmul, rows_, in[1].prompts_from);
    if (rows_ == RowClass::kPrompt) a.gate += in[1].prompts_from * a.ld_gate;
  }

 private:
  const Kernel* kernel_;
  const Segments segments_;
  const RowClass rows_;
  GatedMatmulArgs args_;
};

// Whether the bias of a weight operand is made in each run.
bool computed_bias(const LowerContext& ctx, size_t weight) {
  return ctx.given(weight + 1) && ctx.graph.value(ctx.node.inputs[weight + 1]).kind != ValueKind::kConstant;
}

// Weight operand k in the format it is computed in, with the bias behind it, unless that is computed.
Result<MatmulSegment> make_segment(LowerContext& ctx, size_t k, Format format, int64_t column,
                                   uint64_t& weight_bytes) {
  OAR_ASSIGN(const StoredWeight* w, matmul_weight(ctx, k, format));
  OAR_ASSIGN(const float* bias, ctx.f32_operand(k + 1));
  weight_bytes += w->bytes;
  if (ctx.progress && !ctx.progress("preparing weights", w->bytes, 0)) {
    return Status(StatusCode::kCancelled, "loading was cancelled");
  }
  return MatmulSegment{w->data(), bias, ctx.weight_shape(k)[0], column};
}

Lowered linear_lower(LowerContext& ctx) {
  if (ctx.in_run()) return tensor::lower_linear(ctx);
  const Node& node = ctx.node;
  if (node.attrs.get_int("input_major") != 0) return not_lowered();  // no kernel over symbolic sizes reads it
  if (ctx.is_weight(2) &&
      in_panels(node, compute_format(ctx, 2, node.attrs.get_string("format")), ctx.backend))
    return lower_in_panels(ctx);
  if (node.attrs.has("activation")) return not_lowered();  // nor ends so
  std::vector<MatmulSegment> segments;
  std::optional<Format> format;
  uint64_t weight_bytes = 0;
  int64_t column = 0;
  bool computed = false;
  for (size_t k = 2; k < node.inputs.size(); k += 2) {
    if (!ctx.is_weight(k) || !ctx.is_f32_operand(k + 1)) return not_lowered();
    const Format own = compute_format(ctx, k, node.attrs.get_string("format"));
    if (format && !(*format == own)) return internal_error("weights of one linear have different formats");
    format = own;
    // Before the weight is copied anywhere.
    if (ctx.backend.find_kernel({KernelFamily::kMatmul, own}) == nullptr) return not_lowered();
    OAR_ASSIGN(const MatmulSegment segment, make_segment(ctx, k, own, column, weight_bytes));
    segments.push_back(segment);
    column += segment.n;
    computed = computed || computed_bias(ctx, k);
  }
  const Kernel* kernel = ctx.backend.find_kernel({KernelFamily::kMatmul, *format});
  const Kernel* prompts = kernel_of_prompts(ctx, 0, KernelFamily::kMatmul, *format);
  const Segments all(std::move(segments), 2, computed);
  auto op = std::make_unique<LinearOp>(kernel, all, *format,
                                       prompts != nullptr ? RowClass::kGenerated : RowClass::kAny);
  op->weight_bytes = weight_bytes;
  if (prompts != nullptr) op->prompts = std::make_unique<LinearOp>(prompts, all, *format, RowClass::kPrompt);
  return std::unique_ptr<LoweredOp>(std::move(op));
}

// linear(act(gate) * up, residual, w, b): the second layer of a gated feed-forward network in one call
// (passes/fuse_gated_linear.cc).
Types gated_infer(const Graph& g, Ids in, const Attrs& attrs) {
  if (in.size() != 5) return invalid_argument("takes gate, up, residual, weight and bias");
  if (shape_of(g, in[0]).size() != 2 || !(shape_of(g, in[0]) == shape_of(g, in[1])))
    return invalid_argument("gate and up must be matrices of one shape");
  return linear_infer(g, in.subspan(1), attrs);
}

std::vector<Val> gated_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  Attrs gate;
  if (attrs.has("act")) gate.set("act", attrs.get_string("act"));
  const Val product = b.op("swiglu", {in[0], in[1]}, std::move(gate));
  return {b.op("linear", {product, in[2], in[3], in[4]}, attrs)};
}

Lowered gated_lower(LowerContext& ctx) {
  const Kernel* swiglu = ctx.backend.find_kernel({KernelFamily::kSwiGlu, Format::f32()});
  if (swiglu == nullptr || !ctx.is_f32_operand(4)) return not_lowered();
  const bool gelu = ctx.node.attrs.get_string("act", "silu") == "gelu_tanh";
  const UnaryOp act = gelu ? UnaryOp::kGeluTanh : UnaryOp::kSilu;
  if (ctx.probe) {
    // Weights are packed in the format that is asked for or the stored one.
    const std::string wanted = ctx.node.attrs.get_string("format");
    const Format stored = ctx.graph.value(ctx.node.inputs[3]).type.format;
    for (const Format f : {Format::find(wanted).value_or(stored), stored}) {
      if (ctx.backend.find_kernel({KernelFamily::kGatedMatmul, f}) == nullptr) return not_lowered();
    }
    return std::unique_ptr<LoweredOp>(std::make_unique<GatedLinearOp>(
        swiglu, swiglu, act, Segments({}, 3, false), Format::f32(), RowClass::kAny));
  }
  const Format own = compute_format(ctx, 3, ctx.node.attrs.get_string("format"));
  const Kernel* kernel = ctx.backend.find_kernel({KernelFamily::kGatedMatmul, own});
  OAR_CHECK(kernel != nullptr, "the probe asked for both formats it may be");
  uint64_t weight_bytes = 0;
  OAR_ASSIGN(const MatmulSegment segment, make_segment(ctx, 3, own, 0, weight_bytes));
  const Kernel* prompts = kernel_of_prompts(ctx, 1, KernelFamily::kGatedMatmul, own);
  const Segments all({segment}, 3, computed_bias(ctx, 3));
  auto op = std::make_unique<GatedLinearOp>(kernel, swiglu, act, all, own,
                                            prompts != nullptr ? RowClass::kGenerated : RowClass::kAny);
  op->weight_bytes = weight_bytes;
  if (prompts != nullptr)
    op->prompts = std::make_unique<GatedLinearOp>(prompts, swiglu, act, all, own, RowClass::kPrompt);
  return std::unique_ptr<LoweredOp>(std::move(op));
}

}  // namespace

extern const OpDef op_linear = {.name = "linear",
                                .strided_inputs = 1,
                                .infer = linear_infer,
                                .vjp = gradient::linear,
                                .evaluate = tensor::linear,
                                .by_kernels = tensor::linear_by_kernels,
                                .prepare = tensor::prepare_linear,
                                .lower = linear_lower,
                                .weight_expressions = true};
extern const OpDef op_gated_linear = {.name = "gated_linear",
                                      .strided_inputs = 3,
                                      .infer = gated_infer,
                                      .define = gated_define,
                                      .lower = gated_lower,
                                      .weight_expressions = true};

}  // namespace oar
