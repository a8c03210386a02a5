// hadamard(x, scale or nothing) {block, axis, inverse, seed, begin, end, divide, head} -> like x: every run
// of `block` elements along the axis is multiplied by the orthonormal matrix H diag(s), or its inverse
// (quant/transforms/hadamard.h; s: random signs of `seed` counted along the whole axis, none for seed 0).
//   axis -1 (the default)   rows: activations, and weights on the side of their input
//   axis 0                  columns: weights and biases on the side of their output; [begin, end) limits it
//   to these
//                           rows (end 0: all), as where one matrix makes query, key and value
// scale: positive factors f of the channels, H diag(s f) x or diag(s f) H^T x; `divide`: 1 / f. As many as
// there are channels below axis 0 (in [begin, end) along it), or as many as a part of them: query heads of
// `head` channels take the factors of the key head they share.
// Without a scale it is a rotation, and its gradient the inverse applied.
#include <algorithm>
#include <cmath>

#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
#include "kernels/hadamard.h"
#include "quant/transforms/hadamard.h"

namespace oar {
namespace {

// What the attributes say, for an operand of `rank` axes.
struct Transform {
  HadamardOrder order;
  std::vector<std::vector<float>> cores;  // innermost first, transposed for the inverse
  std::vector<float> signs;               // along the axis, from `begin`; empty: none
  int64_t begin = 0, end = 0;             // along the axis
  bool columns = false, inverse = false;
};

// Axis 0 of a vector is its last.
bool along_columns(const Attrs& attrs, size_t rank) { return attrs.get_int("axis", -1) == 0 && rank > 1; }

Types hadamard_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 2));
  const DimVector& x = shape_of(g, in[0]);
  if (x.empty()) return invalid_argument("x is a scalar");
  const int64_t axis = attrs.get_int("axis", -1), block = attrs.get_int("block");
  if (axis != 0 && axis != -1) return invalid_argument(cat("axis ", axis, " is neither 0 nor -1"));
  const Dim& extent = axis == 0 ? x[0] : x.back();
  if (!extent.is_const()) return invalid_argument("the axis has a symbolic size");
  const int64_t n = extent.const_value(), begin = attrs.get_int("begin"),
                end = attrs.get_int("end") > 0 ? attrs.get_int("end") : n;
  if (begin < 0 || end > n || begin >= end || block < 1 || (end - begin) % block != 0)
    return invalid_argument(cat("blocks of ", block, " do not fill [", begin, ", ", end, ") of ", n));
  if (axis == -1 && (begin != 0 || end != n)) return invalid_argument("a range needs axis 0");
  const auto order = hadamard_order(block);
  if (!order || order->cores.size() > kMaxHadamardCores)
    return invalid_argument(cat("there is no Hadamard matrix of order ", block, " here"));
  if (given(in, 1)) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 1, "scale"));
    const bool part = axis == 0 || x.size() == 1;
    const Dim channels = part ? Dim(end - begin) : product(x, 1);
    const int64_t scales = shape_of(g, in[1])[0].const_value(), head = attrs.get_int("head", scales);
    if (!channels.is_const() || scales < 1 || head < 1 || scales % head != 0 ||
        channels.const_value() % scales != 0)
      return invalid_argument(cat("a scale of ", scales, " factors in heads of ", head,
                                  " does not suit the channels of ", g.type_string(type_of(g, in[0]))));
  }
  return std::vector<TensorType>{f32_type(x)};
}

Transform transform_of(const Attrs& attrs, size_t rank, int64_t extent) {
  Transform t;
  t.order = *hadamard_order(attrs.get_int("block"));
  t.inverse = attrs.get_bool("inverse");
  t.columns = along_columns(attrs, rank);
  t.begin = attrs.get_int("begin");
  t.end = attrs.get_int("end") > 0 ? attrs.get_int("end") : extent;
  for (size_t c = t.order.cores.size(); c-- > 0;) {
    const int64_t K = t.order.cores[c];
    const std::vector<int8_t> core = hadamard_core(K);
    auto& matrix = t.cores.emplace_back(core.begin(), core.end());
    if (!t.inverse) continue;
    for (int64_t r = 0; r < K; ++r) {
      for (int64_t k = 0; k < K; ++k)
        matrix[static_cast<size_t>(r * K + k)] = core[static_cast<size_t>(k * K + r)];
    }
  }
  if (const auto seed = static_cast<uint64_t>(attrs.get_int("seed")); seed != 0) {
    for (int64_t i = t.begin; i < t.end; ++i)
      t.signs.push_back(static_cast<float>(random_sign(seed, static_cast<uint64_t>(i - t.begin))));
  }
  return t;
}

// What channels 0 .. are multiplied by in front of the transform, or behind the inverse one; empty: nothing.
std::vector<float> factors(const Transform& t, const Attrs& attrs, int64_t channels,
                           std::span<const float> scale) {
  std::vector<float> out;
  if (t.signs.empty() && scale.empty()) return out;
  const auto scales = static_cast<int64_t>(scale.size()), head = attrs.get_int("head", scales);
  const int64_t extent = t.end - t.begin, sharing = scale.empty() ? 1 : channels / scales;
  for (int64_t i = 0; i < channels; ++i) {
    float f = t.signs.empty() ? 1.f : t.signs[static_cast<size_t>(i % extent)];
    if (!scale.empty()) {
      const float by = scale[static_cast<size_t>(i / head / sharing * head + i % head)];
      f = attrs.get_bool("divide") ? f / by : f * by;
    }
    out.push_back(f);
  }
  return out;
}

Status hadamard_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const Shape& shape = in[0]->shape;
  const auto rank = static_cast<size_t>(shape.rank());
  const bool columns = along_columns(attrs, rank);
  const int64_t extent = columns ? shape[0] : shape.cols();
  const int64_t inner = columns && extent > 0 ? shape.numel() / extent : 1;
  const Transform t = transform_of(attrs, rank, extent);
  const int64_t block = t.order.n, lines = extent > 0 ? shape.numel() / extent : 0;
  const double norm = 1 / std::sqrt(static_cast<double>(block));
  const int64_t channels = columns || rank == 1 ? t.end - t.begin
                           : shape[0] > 0       ? shape.numel() / shape[0]
                                                : 0;
  std::vector<float> scale;
  if (in.size() > 1) scale.assign(in[1]->f.begin(), in[1]->f.end());
  const std::vector<float> factor = factors(t, attrs, channels, scale);
  out[0].f = in[0]->f;
  std::vector<double> v(static_cast<size_t>(block));
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t first = t.begin; first < t.end; first += block) {
      const auto at = [&](int64_t i) {
        return static_cast<size_t>(columns ? (first + i) * inner + line : line * extent + first + i);
      };
      const auto by = [&](int64_t i) {
        const int64_t channel = first - t.begin + i + (columns ? 0 : line * extent % channels);
        return factor.empty() ? 1.0 : static_cast<double>(factor[static_cast<size_t>(channel)]);
      };
      for (int64_t i = 0; i < block; ++i)
        v[static_cast<size_t>(i)] = in[0]->f[at(i)] * (t.inverse ? 1.0 : by(i));
      hadamard_transform(v.data(), t.order, t.inverse);
      for (int64_t i = 0; i < block; ++i)
        out[0].f[at(i)] = v[static_cast<size_t>(i)] * norm * (t.inverse ? by(i) : 1.0);
    }
  }
  return ok_status();
}

HadamardArgs arguments(const Transform& t) {
  HadamardArgs a;
  a.block = t.order.n;
  a.power = t.order.power;
  a.inverse = t.inverse ? 1 : 0;
  for (size_t c = 0; c < t.cores.size(); ++c) {
    a.core_order[c] = t.order.cores[t.order.cores.size() - 1 - c];
    a.cores[c] = t.cores[c].data();
  }
  a.num_cores = static_cast<int32_t>(t.cores.size());
  return a;
}

// Rows through the kernel on this thread.
void run_rows(const Kernel& kernel, HadamardArgs a, std::vector<float>& scratch) {
  KernelPlan plan;
  kernel.plan(&a, 1, &plan);
  scratch.resize(plan.worker_scratch / sizeof(float) + 16);
  auto at = reinterpret_cast<uintptr_t>(scratch.data());
  KernelScratch s;
  s.worker = reinterpret_cast<void*>((at + 63) / 64 * 64);
  kernel.run(&a, 0, 0, plan.chunks[0], s);
}

// Weights: rows in parallel, columns by tiles of them turned into rows.
Result<bool> fold_inplace(Tensor& x, std::span<const Tensor> rest, const Attrs& attrs, ThreadPool& pool) {
  const Kernel* kernel = calling_thread_backend().find_kernel({KernelFamily::kHadamard, Format::f32()});
  OAR_CHECK(kernel != nullptr, "every level has a hadamard kernel");
  const Shape& shape = x.shape();
  if (!rest.empty() && shape.rank() > 2) return false;
  const bool columns = along_columns(attrs, static_cast<size_t>(shape.rank()));
  const int64_t extent = columns ? shape[0] : shape.cols();
  const Transform t = transform_of(attrs, static_cast<size_t>(shape.rank()), extent);
  const int64_t lines = extent > 0 ? shape.numel() / extent : 0;
  const std::vector<float> factor =
      factors(t, attrs, t.end - t.begin, rest.empty() ? std::span<const float>() : rest[0].values<float>());
  float* values = x.mutable_values<float>().data();
  HadamardArgs a = arguments(t);
  a.n = t.end - t.begin;
  a.signs = factor.empty() ? nullptr : factor.data();
  if (!columns) {
    pool.parallel_for(lines, std::max<int64_t>(1, 65536 / extent), [&](int64_t begin, int64_t end) {
      std::vector<float> scratch;
      HadamardArgs rows = a;
      rows.rows = end - begin;
      rows.ldx = rows.ldo = extent;
      rows.x = rows.out = values + begin * extent + t.begin;
      run_rows(*kernel, rows, scratch);
    });
    return true;
  }
  constexpr int64_t kTile = 16;  // columns of one cache line
  pool.parallel_for((lines + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch, tile(static_cast<size_t>(a.n * kTile));
    for (int64_t c = begin * kTile; c < std::min(lines, end * kTile); c += kTile) {
      const int64_t width = std::min(kTile, lines - c);
      float* from = values + t.begin * lines + c;
      for (int64_t r = 0; r < a.n; ++r) {
        for (int64_t k = 0; k < width; ++k) tile[static_cast<size_t>(k * a.n + r)] = from[r * lines + k];
      }
      HadamardArgs rows = a;
      rows.rows = width;
      rows.ldx = rows.ldo = a.n;
      rows.x = rows.out = tile.data();
      run_rows(*kernel, rows, scratch);
      for (int64_t r = 0; r < a.n; ++r) {
        for (int64_t k = 0; k < width; ++k) from[r * lines + k] = tile[static_cast<size_t>(k * a.n + r)];
      }
    }
  });
  return true;
}

// Numbers that the op makes itself, kept as a weight of its node.
Result<const float*> to_device(const LowerContext& ctx, std::string_view what,
                               const std::vector<float>& values) {
  if (ctx.probe) return static_cast<const float*>(nullptr);
  const auto make = [&]() -> Result<StoredWeight> {
    OAR_ASSIGN(Tensor t, Tensor::allocate({static_cast<int64_t>(values.size())}, Format::f32()));
    std::copy(values.begin(), values.end(), t.mutable_values<float>().begin());
    return ctx.weights.place(t, true);
  };
  OAR_ASSIGN(const StoredWeight* stored,
             ctx.weights.get(cat("%", ctx.node.outputs[0], " hadamard ", what), make));
  return static_cast<const float*>(stored->data());
}

Status hadamard_evaluate(EvalContext& ctx) { return evaluate_as(ctx, hadamard_infer, hadamard_reference); }

Lowered hadamard_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  const Attrs& attrs = ctx.node.attrs;
  const DimVector& shape = shape_of(ctx.graph, ctx.node.inputs[0]);
  if (along_columns(attrs, shape.size())) return not_lowered();
  const Transform t = transform_of(attrs, shape.size(), shape.back().const_value());
  HadamardArgs args = arguments(t);
  // A row of the kernel is everything below axis 0: its heads' blocks repeat the signs of the last axis.
  const Dim channels = shape.size() > 1 ? product(shape, 1) : shape[0];
  if (!channels.is_const()) return not_lowered();
  std::vector<float> scale;
  if (given(ctx.node.inputs, 1)) {
    if (!ctx.is_weight(1)) return not_lowered();
    ctx.taken.push_back(1);
    OAR_ASSIGN(const Tensor stored, ctx.evaluate(1));
    OAR_ASSIGN(const Tensor f32, to_f32(stored));
    const auto values = f32.values<float>();
    scale.assign(values.begin(), values.end());
  }
  const std::vector<float> factor = factors(t, attrs, channels.const_value(), scale);
  for (int c = 0; c < args.num_cores; ++c) {
    OAR_ASSIGN(args.cores[c], to_device(ctx, cat("core ", c), t.cores[static_cast<size_t>(c)]));
  }
  if (!factor.empty()) { OAR_ASSIGN(args.signs, to_device(ctx, "signs", factor)); }
  return lower_kernel(ctx, {KernelFamily::kHadamard}, args,
                      [](HadamardArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.x = in[0].as<const float>();
                        a.rows = in[0].rank > 1 ? in[0].dims[0] : 1;
                        a.n = a.rows > 0 ? in[0].numel() / a.rows : a.block;
                        a.ldx = in[0].rank > 1 ? in[0].row_stride : a.n;
                        a.ldo = a.n;
                      });
}

}  // namespace

extern const OpDef op_hadamard = {.name = "hadamard",
                                  .strided_inputs = 1,
                                  .infer = hadamard_infer,
                                  .vjp = gradient::hadamard,
                                  .evaluate = hadamard_evaluate,
                                  .lower = hadamard_lower,
                                  .fold_inplace = fold_inplace,
                                  .no_gradient_of = "factors"};

}  // namespace oar
