// Shape rules of ordinary ops where types are known, and evaluations by a plain loop: asked once a graph or
// as a last resort, so they are compiled for size.
#include "engine/graph/evaluate.h"
#include "engine/graph/evaluated_types.h"
#include "engine/ops/op_util.h"

namespace oar {

Types typed_as_first(const Graph& g, Ids in, const Attrs&) {
  if (!given(in, 0)) return invalid_argument("operand 0 is missing");
  return std::vector<TensorType>{type_of(g, in[0])};
}

Types condition_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  if (!given(in, 0) || !given(in, 1)) return invalid_argument("both operands are needed");
  OAR_ASSIGN(DimVector shape, broadcast(shape_of(g, in[0]), shape_of(g, in[1])));
  return std::vector<TensorType>{{Format::of(DType::kBool), std::move(shape)}};
}

Types where_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 3, 3));
  for (size_t k = 0; k < 3; ++k) {
    if (!given(in, k)) return invalid_argument("all operands are needed");
  }
  if (!(type_of(g, in[1]).format == type_of(g, in[2]).format))
    return invalid_argument("the choices have different element types");
  OAR_ASSIGN(const DimVector either, broadcast(shape_of(g, in[1]), shape_of(g, in[2])));
  OAR_ASSIGN(DimVector shape, broadcast(shape_of(g, in[0]), either));
  return std::vector<TensorType>{{type_of(g, in[1]).format, std::move(shape)}};
}

Types gather_elements_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  const DimVector &x = shape_of(g, in[0]), &at = shape_of(g, in[1]);
  if (x.size() != at.size()) return invalid_argument("operand and indices have different numbers of axes");
  OAR_RETURN_IF_ERROR(checked_axis(attrs.get_int("axis"), static_cast<int>(x.size())).status());
  return std::vector<TensorType>{{type_of(g, in[0]).format, at}};
}

Types scatter_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 3, 3));
  if (!(type_of(g, in[0]).format == type_of(g, in[2]).format))
    return invalid_argument("the operand and its updates have different element types");
  return std::vector<TensorType>{type_of(g, in[0])};
}

Types pad_infer(const Graph& g, Ids in, const Attrs& attrs) {
  if (given(in, 1) || given(in, 3)) return evaluated_types(g, *find_op("pad"), in, attrs);
  TensorType t = type_of(g, in[0]);
  const std::vector<int64_t> pads = attrs.get_ints("pads");
  const size_t rank = t.shape.size();
  if (pads.size() != 2 * rank) return invalid_argument("pads must hold two numbers for each axis");
  for (size_t k = 0; k < rank; ++k) {
    t.shape[k] = t.shape[k] + Dim(pads[k]) + Dim(pads[k + rank]);
    if (t.shape[k].is_const() && t.shape[k].const_value() < 0)
      return invalid_argument(cat("pads leave less than nothing of axis ", k));
  }
  return std::vector<TensorType>{std::move(t)};
}

Types loss_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 3));
  if (!given(in, 0) || !given(in, 1)) return invalid_argument("scores and targets are needed");
  DimVector scores = shape_of(g, in[0]);
  const DimVector& targets = shape_of(g, in[1]);
  if (scores.size() < 2 || scores.size() != targets.size() + 1)
    return invalid_argument("targets must have the axes of the scores but the second");
  scores.erase(scores.begin() + 1);
  for (size_t k = 0; k < targets.size(); ++k) {
    OAR_RETURN_IF_ERROR(check_same(scores[k], targets[k], "axes of scores and targets"));
    if (k > 0 && !targets[k].is_const())
      return invalid_argument("only the first axis of targets may be a symbol");
  }
  const bool each = attrs.get_string("reduction", "mean") == "none";
  return std::vector<TensorType>{f32_type(each ? targets : DimVector())};
}

Types scored_loss_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_ASSIGN(auto types, loss_infer(g, in, attrs));
  types.push_back(f32_type(shape_of(g, in[0])));
  return types;
}

Types expand_infer(const Graph& g, Ids in, const Attrs& attrs) {
  if (!given(in, 2)) return evaluated_types(g, *find_op("expand"), in, attrs);
  if (!given(in, 0) || given(in, 1)) return invalid_argument("x and one of shape and like are needed");
  OAR_ASSIGN(const DimVector shape, broadcast(shape_of(g, in[0]), shape_of(g, in[2])));
  if (!(shape == shape_of(g, in[2]))) return invalid_argument("the operand does not repeat to that shape");
  return std::vector<TensorType>{{type_of(g, in[0]).format, shape}};
}

Status evaluate_as(EvalContext& ctx, Types (*infer)(const Graph&, Ids, const Attrs&),
                   Status (*loop)(HostInputs, const Attrs&, std::span<HostValue>)) {
  Graph g;
  std::vector<ValueId> ids;
  std::vector<HostValue> values(ctx.num_inputs());
  std::vector<const HostValue*> operands(ctx.num_inputs(), nullptr);
  DType dtype = DType::kF32;
  for (size_t k = 0; k < ctx.num_inputs(); ++k) {
    ids.push_back(kNoValue);
    if (!ctx.has(k)) continue;
    OAR_ASSIGN(const Tensor t, ctx.tensor(k));
    TensorType type{t.format(), {}};
    if (t.format().plain() && t.format().dtype() == DType::kString)
      return invalid_argument(cat("operand ", k, " is text"));
    for (const int64_t d : t.shape()) type.shape.emplace_back(d);
    if (k == 0 && t.format().plain()) dtype = t.format().dtype();
    ids.back() = g.add_input("", std::move(type));
    operands[k] = &values[k];
    if (ctx.options().sizing) continue;
    OAR_ASSIGN(values[k], host_value(t));
    // A loop may want numbers where a file gives integers.
    if (!values[k].is_float()) values[k].f.assign(values[k].i.begin(), values[k].i.end());
  }
  HostValue held;
  held.dtype = dtype;
  if (!held.is_float()) return invalid_argument("operand 0 must be f32, f64, f16 or bf16");
  OAR_ASSIGN(const auto types, infer(g, ids, ctx.attrs()));
  std::vector<HostValue> out(types.size());
  for (size_t k = 0; k < types.size(); ++k) {
    std::vector<int64_t> dims;
    for (const Dim& d : types[k].shape) dims.push_back(d.const_value());
    OAR_ASSIGN(out[k].shape, checked_shape(dims));
    out[k].dtype = types[k].format == Format::f32() ? dtype : types[k].format.dtype();
    if (ctx.options().sizing) {
      OAR_ASSIGN(Tensor sized, ctx.allocate(out[k].shape, out[k].dtype));
      ctx.set(k, std::move(sized));
      continue;
    }
    out[k].is_float() ? out[k].f.resize(static_cast<size_t>(out[k].shape.numel()))
                      : out[k].i.resize(static_cast<size_t>(out[k].shape.numel()));
  }
  if (ctx.options().sizing) return ok_status();
  OAR_RETURN_IF_ERROR(loop(operands, ctx.attrs(), out));
  for (size_t k = 0; k < out.size(); ++k) {
    OAR_ASSIGN(Tensor t, to_tensor(out[k]));
    ctx.set(k, std::move(t));
  }
  return ok_status();
}

}  // namespace oar
