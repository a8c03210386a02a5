// Ops that move elements and compute nothing: reshape, transpose, slice, concat, cast, contiguous,
// gather. Reshapes and column slices cost nothing at run time (memory_planner.h makes them views).
#include <algorithm>

#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/moved.h"
#include "engine/ops/tensor/util.h"
#include "kernels/embedding.h"
#include "kernels/partition.h"
#include "kernels/rope.h"
#include "kernels/strided_copy.h"

namespace oar {
namespace {

int64_t positive_axis(int64_t axis, size_t rank) {
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

// Sizes that an op takes as operand k or, where that is left out, as an attribute. A graph that knows its
// types knows them too: the operand is a constant there.
Result<std::vector<int64_t>> sizes_of(const Graph& g, Ids in, size_t k, const Attrs& attrs,
                                      const char* name) {
  if (!given(in, k)) return attrs.get_ints(name);
  const Value& v = g.value(in[k]);
  if (v.kind != ValueKind::kConstant) return invalid_argument(cat(name, " are computed"));
  if (v.constant.shape().rank() > 1 || !dtype_is_integer(v.constant.format().dtype()))
    return invalid_argument(cat(name, " must be a list of integers"));
  std::vector<int64_t> out(static_cast<size_t>(v.constant.numel()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = element_as_int(v.constant, static_cast<int64_t>(i));
  return out;
}

// ---- reshape(x, shape or none) {shape, allowzero}: 0 keeps the operand's extent at that axis (with
// allowzero it is 0), -1 is the one that follows from the rest

Types reshape_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 2));
  const TensorType& t = type_of(g, in[0]);
  DimVector shape;
  int unknown = -1;
  OAR_ASSIGN(const std::vector<int64_t> wanted, sizes_of(g, in, 1, attrs, "shape"));
  for (size_t k = 0; k < wanted.size(); ++k) {
    const bool keep = wanted[k] == 0 && !attrs.get_bool("allowzero");
    if (wanted[k] == -1) unknown = static_cast<int>(k);
    if (keep && k >= t.shape.size()) return invalid_argument(cat("no axis ", k, " to keep"));
    if (!keep && wanted[k] < 1 && wanted[k] != -1)
      return invalid_argument(cat("extent ", wanted[k], " is out of range"));
    shape.push_back(keep ? t.shape[k] : Dim(std::max<int64_t>(wanted[k], 1)));
  }
  const Dim total = product(t.shape), known = product(shape);
  if (unknown >= 0) shape[unknown] = Dim::floordiv(total, known);
  if (!(product(shape) == total)) {
    return invalid_argument(cat("element counts differ: ", total.to_string(g.symbols()), " and ",
                                product(shape).to_string(g.symbols())));
  }
  return std::vector<TensorType>{{t.format, std::move(shape)}};
}

// ---- transpose {perm}

Types transpose_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 1));
  const TensorType& t = type_of(g, in[0]);
  const std::vector<int64_t> perm = attrs.get_ints("perm");
  std::vector<bool> used(t.shape.size(), false);
  if (perm.size() != t.shape.size()) return invalid_argument("perm must name every axis once");
  DimVector shape;
  for (int64_t p : perm) {
    if (p < 0 || p >= static_cast<int64_t>(used.size()) || used[p])
      return invalid_argument("perm must name every axis once");
    used[p] = true;
    shape.push_back(t.shape[p]);
  }
  return std::vector<TensorType>{{t.format.plain() ? t.format : Format::f32(), std::move(shape)}};
}

// ---- slice(x, starts, ends, axes, steps: or none) {starts, ends, axes, steps}, as tensor::slice_box() has
// them. Where types are known bounds lie inside the axis, whose extent is no symbol.

Result<tensor::SliceBox> slice_box(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 5));
  OAR_ASSIGN(const auto starts, sizes_of(g, in, 1, attrs, "starts"));
  OAR_ASSIGN(const auto ends, sizes_of(g, in, 2, attrs, "ends"));
  OAR_ASSIGN(const auto axes, sizes_of(g, in, 3, attrs, "axes"));
  OAR_ASSIGN(const auto steps, sizes_of(g, in, 4, attrs, "steps"));
  std::vector<int64_t> dims;
  for (const Dim& d : shape_of(g, in[0])) dims.push_back(d.is_const() ? d.const_value() : -1);
  for (size_t k = 0; k < starts.size() && k < ends.size(); ++k) {
    const int64_t named = k < axes.size() ? axes[k] : static_cast<int64_t>(k),
                  axis = positive_axis(named, dims.size());
    if (axis < 0 || axis >= static_cast<int64_t>(dims.size())) return invalid_argument("axis out of range");
    const int64_t n = dims[static_cast<size_t>(axis)], begin = starts[k] < 0 ? starts[k] + n : starts[k],
                  end = ends[k] < 0 ? ends[k] + n : ends[k];
    if (n < 0 || (steps.empty() && (begin < 0 || end < begin || end > n))) {
      return invalid_argument(cat("slice [", starts[k], ", ", ends[k], ") is outside the axis"));
    }
  }
  return tensor::slice_box(dims, starts, ends, axes, steps);
}

Types slice_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_ASSIGN(const tensor::SliceBox box, slice_box(g, in, attrs));
  TensorType t = type_of(g, in[0]);
  for (size_t k = 0; k < t.shape.size(); ++k) {
    if (box.cut[k]) t.shape[k] = Dim(box.count[k]);
  }
  return std::vector<TensorType>{std::move(t)};
}

// ---- columns of rows, moved by the processor: floats whose last axis is cut or joined

struct ColumnsArgs {
  static constexpr size_t kMost = 3;
  struct Part {
    const float* x;
    int64_t ld, columns;
  };
  Part parts[kMost];  // side by side in out
  size_t count;
  float* out;
  int64_t rows, columns;
};

void columns_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const ColumnsArgs*>(args);
  *out = {1, {row_chunks(a.rows, rows_per_chunk(a.rows, 8 * a.columns))}};
}

void columns_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ColumnsArgs*>(args);
  const int64_t per = rows_per_chunk(a.rows, 8 * a.columns);
  for (int64_t r = begin * per; r < std::min(end * per, a.rows); ++r) {
    float* to = a.out + r * a.columns;
    for (size_t k = 0; k < a.count; ++k) {
      const ColumnsArgs::Part& part = a.parts[k];
      std::copy_n(part.x + r * part.ld, part.columns, to);
      to += part.columns;
    }
  }
}

const Kernel kColumns = {KernelFamily::kRope, Isa::kGeneric, "columns",
                         std::nullopt,        columns_plan,  columns_run};

// Columns are what lies behind one another from `axis` on. `first`: the first that is taken, of a cut.
class ColumnsOp final : public LoweredOp {
 public:
  ColumnsOp(size_t count, int axis, int64_t first) : count_(count), axis_(axis), first_(first) {}
  const Kernel* kernel() const override { return &kColumns; }
  size_t args_bytes() const override { return sizeof(ColumnsArgs); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    auto& a = *new (args) ColumnsArgs{};
    a.count = count_;
    a.out = out[0].as<float>();
    a.columns = columns(out[0]);
    a.rows = a.columns > 0 ? out[0].numel() / a.columns : 0;
    for (size_t k = 0; k < count_; ++k) {
      const int64_t n = columns(in[k]);
      a.parts[k] = {in[k].as<const float>() + first_, n, count_ == 1 ? a.columns : n};
    }
  }

 private:
  int64_t columns(const Operand& x) const {
    int64_t n = 1;
    for (int k = axis_; k < x.rank; ++k) n *= x.dims[k];
    return n;
  }
  size_t count_;
  int axis_;
  int64_t first_;
};

// The same beside a device: a copy of rows for each part, one behind the other.
struct FillPart {
  size_t part;
  int axis;
  int64_t first;
  void operator()(StridedCopyArgs& a, const Operand* in, const Operand* out) const {
    const auto columns = [this](const Operand& x) {
      int64_t n = 1;
      for (int k = axis; k < x.rank; ++k) n *= x.dims[k];
      return n;
    };
    const int64_t whole = columns(out[0]), own = columns(in[part]);
    int64_t before = 0;
    for (size_t k = 0; k < part; ++k) before += columns(in[k]);
    a.out = out[0].as<float>() + before;
    a.x = in[part].as<const float>() + first;
    a.rank = 2;
    a.dims[0] = whole > 0 ? out[0].numel() / whole : 0;
    a.dims[1] = std::min(own, whole);
    a.x_steps[0] = own;
    a.out_steps[0] = whole;
    a.x_steps[1] = a.out_steps[1] = 1;
  }
};

Lowered lower_columns(LowerContext& ctx, size_t count, int axis, int64_t first) {
  if (ctx.backend.memory() == MemoryKind::kHost)
    return std::unique_ptr<LoweredOp>(std::make_unique<ColumnsOp>(count, axis, first));
  std::unique_ptr<LoweredOp> all;
  for (size_t k = count; k-- > 0;) {
    OAR_ASSIGN(auto op,
               lower_kernel(ctx, {KernelFamily::kStridedCopy}, StridedCopyArgs{}, FillPart{k, axis, first}));
    if (op == nullptr) return not_lowered();
    op->more = std::move(all);
    all = std::move(op);
  }
  return all;
}

// Of a served model.
bool moves_columns(const LowerContext& ctx, size_t operands) {
  if (operands > ColumnsArgs::kMost) return false;
  for (size_t k = 0; k < operands; ++k)
    if (!ctx.known(k).f32() || ctx.is_weight(k) || shape_of(ctx.graph, ctx.node.inputs[k]).size() < 2)
      return false;
  return true;
}

Lowered slice_lower(LowerContext& ctx) {
  if (ctx.in_run()) return tensor::lower_slice(ctx);
  if (!moves_columns(ctx, 1)) return not_lowered();
  OAR_ASSIGN(const tensor::SliceBox box, slice_box(ctx.graph, ctx.node.inputs, ctx.node.attrs));
  const size_t last = shape_of(ctx.graph, ctx.node.inputs[0]).size() - 1;
  for (size_t k = 0; k < last; ++k)
    if (box.cut[k]) return not_lowered();
  if (!box.cut[last] || box.step[last] != 1) return not_lowered();
  return lower_columns(ctx, 1, static_cast<int>(last), box.start[last]);
}

Lowered concat_lower(LowerContext& ctx) {
  if (ctx.in_run()) return tensor::lower_concat(ctx);
  const size_t operands = ctx.node.inputs.size();
  if (!moves_columns(ctx, operands)) return not_lowered();
  const size_t rank = shape_of(ctx.graph, ctx.node.inputs[0]).size();
  const auto axis = static_cast<int>(positive_axis(ctx.node.attrs.get_int("axis"), rank));
  if (axis < 1 || operands < 2) return not_lowered();
  return lower_columns(ctx, operands, axis, 0);
}

// ---- concat {axis}

Types concat_infer(const Graph& g, Ids in, const Attrs& attrs) {
  if (in.empty()) return invalid_argument("nothing to concatenate");
  TensorType t = type_of(g, in[0]);
  const int64_t axis = positive_axis(attrs.get_int("axis"), t.shape.size());
  if (axis < 0 || axis >= static_cast<int64_t>(t.shape.size())) return invalid_argument("axis out of range");
  for (size_t k = 1; k < in.size(); ++k) {
    const DimVector& s = shape_of(g, in[k]);
    if (s.size() != t.shape.size()) return invalid_argument("operands have different numbers of axes");
    for (size_t a = 0; a < s.size(); ++a) {
      if (static_cast<int64_t>(a) != axis)
        OAR_RETURN_IF_ERROR(check_same(s[a], t.shape[a], "extents beside the axis"));
    }
    t.shape[axis] = t.shape[axis] + s[axis];
  }
  return std::vector<TensorType>{std::move(t)};
}

// ---- cast(x, like or none) {to: format name}

Types cast_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 2));
  if (given(in, 1)) return std::vector<TensorType>{{type_of(g, in[1]).format, shape_of(g, in[0])}};
  const auto to = Format::find(attrs.get_string("to"));
  if (!to || !to->plain()) return invalid_argument(cat("cannot cast to '", attrs.get_string("to"), "'"));
  return std::vector<TensorType>{{*to, shape_of(g, in[0])}};
}

// ---- contiguous: the same values in dense rows

Types contiguous_infer(const Graph& g, Ids in, const Attrs&) {
  return std::vector<TensorType>{type_of(g, in[0])};
}

// Tensors of the host are dense.
Status contiguous_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  ctx.set(0, std::move(x));
  return ok_status();
}

// A rope that turns nothing: its kernel reads rows, and heads, that lie apart and writes dense ones.
Lowered contiguous_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  if (!ctx.known(0).f32() || ctx.known(0).rank() < 2) return not_lowered();
  return lower_kernel(ctx, rope_key(ctx.backend), RopeArgs{},
                      [](RopeArgs& a, const Operand* in, const Operand* out) {
                        a.positions = in[0].as<const int32_t>();  // read and, with nothing to turn, not used
                        Operand x = in[0];
                        if (x.head_step == 0) {  // rows whole
                          x.dims[2] = x.dims[0] > 0 ? x.numel() / x.dims[0] : 0;
                          x.dims[1] = 1;
                          x.rank = 3;
                        }
                        fill_heads(a, x, out[0]);
                      });
}

// ---- gather(x, indices) {axis: 0}: the indices' axes take the place of one of x; negative ones count from
// its end

Types gather_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  OAR_RETURN_IF_ERROR(check_integer(g, in[1], "indices"));
  const TensorType& x = type_of(g, in[0]);
  OAR_ASSIGN(const int axis, checked_axis(attrs.get_int("axis"), static_cast<int>(x.shape.size())));
  DimVector shape(x.shape.begin(), x.shape.begin() + axis);
  const DimVector& at = shape_of(g, in[1]);
  shape.insert(shape.end(), at.begin(), at.end());
  shape.insert(shape.end(), x.shape.begin() + axis + 1, x.shape.end());
  return std::vector<TensorType>{{x.format.plain() ? x.format : Format::f32(), std::move(shape)}};
}

// Whole rows by indices that who wrote the graph vouches for: the kernel does not check them.
Lowered gather_lower(LowerContext& ctx) {
  const Known x = ctx.known(0), at = ctx.known(1);
  if (ctx.in_run() || !x.f32() || !(at.format() == Format::i32()) || ctx.node.attrs.get_int("axis") != 0)
    return not_lowered();
  return lower_kernel(ctx, {KernelFamily::kGatherRows}, GatherRowsArgs{},
                      [](GatherRowsArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.x = in[0].as<const float>();
                        a.rows = in[1].as<const int32_t>();
                        a.R = in[1].numel();
                        a.E = in[0].dims[0] > 0 ? in[0].numel() / in[0].dims[0] : 0;
                      });
}

}  // namespace

extern const OpDef op_reshape = {.name = "reshape",
                                 .infer = reshape_infer,
                                 .vjp = gradient::reshape,
                                 .evaluate = tensor::reshape,
                                 .view = true};
extern const OpDef op_transpose = {.name = "transpose",
                                   .infer = transpose_infer,
                                   .vjp = gradient::transpose,
                                   .evaluate = tensor::transpose,
                                   .lower = tensor::lower_transpose};
extern const OpDef op_slice = {.name = "slice",
                               .infer = slice_infer,
                               .vjp = gradient::slice,
                               .evaluate = tensor::slice,
                               .lower = slice_lower};
extern const OpDef op_concat = {.name = "concat",
                                .infer = concat_infer,
                                .vjp = gradient::concat,
                                .evaluate = tensor::concat,
                                .lower = concat_lower};
extern const OpDef op_cast = {.name = "cast",
                              .infer = cast_infer,
                              .vjp = gradient::identity,
                              .evaluate = tensor::cast,
                              .by_kernels = tensor::cast_by_kernel,
                              .lower = tensor::lower_cast};
extern const OpDef op_contiguous = {.name = "contiguous",
                                    .strided_inputs = 1,
                                    .apart_inputs = 1,
                                    .infer = contiguous_infer,
                                    .vjp = gradient::identity,
                                    .evaluate = contiguous_evaluate,
                                    .lower = contiguous_lower};
extern const OpDef op_gather = {.name = "gather",
                                .infer = gather_infer,
                                .vjp = gradient::gather,
                                .evaluate = tensor::gather,
                                .lower = gather_lower};

}  // namespace oar
