// Ops that move elements and compute nothing: reshape, transpose, slice, concat, cast, contiguous,
// gather_rows. Reshapes and column slices cost nothing at run time (memory_planner.h makes them views).
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "kernels/embedding.h"

namespace oar {
namespace {

int64_t positive_axis(int64_t axis, size_t rank) {
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

// Copies element `from` of x to element `to` of y, whichever kind they hold.
void copy_element(const HostValue& x, size_t from, HostValue& y, size_t to) {
  if (y.is_float()) y.f[to] = x.is_float() ? x.f[from] : static_cast<double>(x.i[from]);
  else y.i[to] = x.is_float() ? static_cast<int64_t>(x.f[from]) : x.i[from];
}

// ---- reshape {shape: extents, -1 for the one that follows from the rest, -2 keeps the operand's extent at
// that axis}

Types reshape_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 1));
  const TensorType& t = type_of(g, in[0]);
  DimVector shape;
  int unknown = -1;
  const std::vector<int64_t> wanted = attrs.get_ints("shape");
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (wanted[k] == -1) unknown = static_cast<int>(k);
    if (wanted[k] == -2 && k >= t.shape.size()) return invalid_argument(cat("no axis ", k, " to keep"));
    shape.push_back(wanted[k] == -2 ? t.shape[k] : Dim(std::max<int64_t>(wanted[k], 1)));
  }
  const Dim total = product(t.shape), known = product(shape);
  if (unknown >= 0) shape[unknown] = Dim::floordiv(total, known);
  if (!(product(shape) == total)) {
    return invalid_argument(cat("element counts differ: ", total.to_string(g.symbols()), " and ",
                                product(shape).to_string(g.symbols())));
  }
  return std::vector<TensorType>{{t.format, std::move(shape)}};
}

Status copy_reference(HostInputs in, const Attrs&, std::span<HostValue> out) {
  for (size_t k = 0; k < out[0].size(); ++k) copy_element(*in[0], k, out[0], k);
  return ok_status();
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

Status transpose_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const std::vector<int64_t> perm = attrs.get_ints("perm");
  const Shape& from = in[0]->shape;
  int64_t strides[Shape::kMaxRank];
  int64_t stride = 1;
  for (int k = from.rank() - 1; k >= 0; --k) strides[k] = stride, stride *= from[k];
  const Shape& to = out[0].shape;
  for (int64_t flat = 0; flat < to.numel(); ++flat) {
    int64_t rest = flat, index = 0;
    for (int k = to.rank() - 1; k >= 0; --k) {
      index += rest % to[k] * strides[perm[k]];
      rest /= to[k];
    }
    copy_element(*in[0], static_cast<size_t>(index), out[0], static_cast<size_t>(flat));
  }
  return ok_status();
}

// ---- slice {axis, begin, end}

Types slice_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 1));
  TensorType t = type_of(g, in[0]);
  const int64_t axis = positive_axis(attrs.get_int("axis"), t.shape.size());
  if (axis < 0 || axis >= static_cast<int64_t>(t.shape.size())) return invalid_argument("axis out of range");
  const int64_t begin = attrs.get_int("begin"), end = attrs.get_int("end");
  if (!t.shape[axis].is_const() || begin < 0 || end < begin || end > t.shape[axis].const_value()) {
    return invalid_argument(cat("slice [", begin, ", ", end, ") is outside the axis"));
  }
  t.shape[axis] = Dim(end - begin);
  return std::vector<TensorType>{std::move(t)};
}

Status slice_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const Shape& from = in[0]->shape;
  const Shape& to = out[0].shape;
  const auto axis = static_cast<int>(positive_axis(attrs.get_int("axis"), static_cast<size_t>(from.rank())));
  int64_t inner = 1;
  for (int k = axis + 1; k < from.rank(); ++k) inner *= from[k];
  for (int64_t flat = 0; flat < to.numel(); ++flat) {
    const int64_t low = flat % inner, at = flat / inner % to[axis], high = flat / inner / to[axis];
    const int64_t source = (high * from[axis] + at + attrs.get_int("begin")) * inner + low;
    copy_element(*in[0], static_cast<size_t>(source), out[0], static_cast<size_t>(flat));
  }
  return ok_status();
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

Status concat_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const Shape& to = out[0].shape;
  const auto axis = static_cast<int>(positive_axis(attrs.get_int("axis"), static_cast<size_t>(to.rank())));
  int64_t inner = 1, outer = 1;
  for (int k = axis + 1; k < to.rank(); ++k) inner *= to[k];
  for (int k = 0; k < axis; ++k) outer *= to[k];
  int64_t start = 0;
  for (const HostValue* x : in) {
    const int64_t extent = x->shape[axis];
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t e = 0; e < extent * inner; ++e) {
        copy_element(*x, static_cast<size_t>(o * extent * inner + e), out[0],
                     static_cast<size_t>((o * to[axis] + start) * inner + e));
      }
    }
    start += extent;
  }
  return ok_status();
}

// ---- cast {to: format name}

Types cast_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 1));
  const auto to = Format::find(attrs.get_string("to"));
  if (!to || !to->plain()) return invalid_argument(cat("cannot cast to '", attrs.get_string("to"), "'"));
  return std::vector<TensorType>{{*to, shape_of(g, in[0])}};
}

// ---- contiguous: the same values in dense rows

Types contiguous_infer(const Graph& g, Ids in, const Attrs&) {
  return std::vector<TensorType>{type_of(g, in[0])};
}

// ---- gather_rows(x (T, ...), rows (R)): x[rows]

Types gather_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 2, "x"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 1, "rows"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[1], "rows"));
  return std::vector<TensorType>{f32_type({shape_of(g, in[1])[0], shape_of(g, in[0])[1]})};
}

Status gather_reference(HostInputs in, const Attrs&, std::span<HostValue> out) {
  const int64_t cols = in[0]->shape.cols(), rows = in[0]->shape[0];
  for (size_t r = 0; r < in[1]->i.size(); ++r) {
    const int64_t row = in[1]->i[r];
    if (row < 0 || row >= rows) return invalid_argument(cat("row ", row, " is outside [0, ", rows, ")"));
    for (int64_t c = 0; c < cols; ++c) {
      copy_element(*in[0], static_cast<size_t>(row * cols + c), out[0],
                   r * static_cast<size_t>(cols) + static_cast<size_t>(c));
    }
  }
  return ok_status();
}

Lowered gather_lower(LowerContext& ctx) {
  return lower_kernel(ctx, KernelFamily::kGatherRows, Format::f32(), GatherRowsArgs{},
                      [](GatherRowsArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.x = in[0].as<const float>();
                        a.rows = in[1].as<const int32_t>();
                        a.R = in[1].dims[0];
                        a.E = in[0].cols();
                      });
}

}  // namespace

extern const OpDef op_reshape = {.name = "reshape", .infer = reshape_infer, .reference = copy_reference};
extern const OpDef op_transpose = {.name = "transpose",
                                   .infer = transpose_infer,
                                   .reference = transpose_reference,
                                   .evaluate = tensor::transpose};
extern const OpDef op_slice = {.name = "slice", .infer = slice_infer, .reference = slice_reference};
extern const OpDef op_concat = {
    .name = "concat", .infer = concat_infer, .reference = concat_reference, .evaluate = tensor::concat};
extern const OpDef op_cast = {
    .name = "cast", .infer = cast_infer, .reference = copy_reference, .evaluate = tensor::cast};
extern const OpDef op_contiguous = {
    .name = "contiguous", .strided_inputs = 1, .infer = contiguous_infer, .reference = copy_reference};
extern const OpDef op_gather_rows = {
    .name = "gather_rows", .infer = gather_infer, .reference = gather_reference, .lower = gather_lower};

}  // namespace oar
