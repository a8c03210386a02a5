// Control flow and containers: if, loop, scan over subgraphs; sequences and optionals. A body sees only the
// operands it is handed; trips and nesting are bounded against hostile files.
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

Status set_all(EvalContext& ctx, std::vector<Datum> values) {
  for (size_t k = 0; k < values.size(); ++k) ctx.set(k, std::move(values[k]));
  return ok_status();
}

// Operands [from, to) as they are.
std::vector<Datum> operands(const EvalContext& ctx, size_t from, size_t to) {
  std::vector<Datum> out;
  for (size_t k = from; k < to; ++k) out.push_back(ctx.datum(k));
  return out;
}

// if(condition, inputs of the then branch..., inputs of the else branch...) {then_inputs}
Status if_(EvalContext& ctx) {
  OAR_ASSIGN(const int64_t condition, ctx.scalar_int(0));
  const auto yes = static_cast<size_t>(ctx.attrs().get_int("then_inputs"));
  OAR_CHECK(ctx.num_inputs() > yes, "if without its inputs");
  auto r = condition ? ctx.run_subgraph(0, operands(ctx, 1, 1 + yes))
                     : ctx.run_subgraph(1, operands(ctx, 1 + yes, ctx.num_inputs()));
  OAR_RETURN_IF_ERROR(r.status());
  return set_all(ctx, std::move(*r));
}

// The results of all trips along a new axis 0.
Result<Tensor> stack(const EvalContext& ctx, const std::vector<Datum>& parts, int axis) {
  std::vector<Tensor> tensors;
  for (const Datum& d : parts) {
    if (!d.is_tensor()) return invalid_argument("only tensors can be stacked");
    tensors.push_back(d.tensor);
    OAR_RETURN_IF_ERROR(check_same_dtype(tensors[0], d.tensor));
    if (!(d.tensor.shape() == tensors[0].shape()))
      return invalid_argument("trips yield tensors of different shapes");
  }
  // No trip: no element, and nothing says of which shape.
  if (tensors.empty()) return ctx.zeros({0}, DType::kF32);
  std::vector<int64_t> dims = dims_of(tensors[0].shape());
  if (axis < 0 || axis > static_cast<int>(dims.size())) return invalid_argument("axis out of range");
  dims.insert(dims.begin() + axis, static_cast<int64_t>(tensors.size()));
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(tensors[0])));
  const int64_t outer = extent(shape, 0, axis), inner = extent(shape, axis + 1, shape.rank());
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (int64_t o = 0; o < outer; ++o) {
      copy_elements(tensors[t], o * inner, y, (o * shape[axis] + static_cast<int64_t>(t)) * inner, inner);
    }
  }
  return y;
}

// loop(trips?, condition?, states..., captured...) {states}: the body maps (trip, condition, states...,
// captured...) to (condition, states..., stacked...).
Status loop(EvalContext& ctx) {
  const auto n = static_cast<size_t>(ctx.attrs().get_int("states"));
  int64_t trips = INT64_MAX, go = 1;
  if (ctx.has(0)) { OAR_ASSIGN(trips, ctx.scalar_int(0)); }
  if (ctx.has(1)) { OAR_ASSIGN(go, ctx.scalar_int(1)); }
  OAR_CHECK(ctx.num_inputs() >= 2 + n, "loop without its states");
  std::vector<Datum> states = operands(ctx, 2, 2 + n);
  const std::vector<Datum> captured = operands(ctx, 2 + n, ctx.num_inputs());
  std::vector<std::vector<Datum>> stacked(ctx.num_outputs() - n);
  for (int64_t trip = 0; trip < trips && go; ++trip) {
    if (trip >= ctx.options().loop_limit) return resource_exhausted(cat("a loop exceeds ", trip, " trips"));
    std::vector<Datum> in;
    OAR_ASSIGN(Tensor i, ctx.zeros({}, DType::kI64));
    *mutable_elements<int64_t>(i) = trip;
    OAR_ASSIGN(Tensor c, ctx.zeros({}, DType::kBool));
    *mutable_elements<uint8_t>(c) = 1;
    in.emplace_back(std::move(i));
    in.emplace_back(std::move(c));
    for (Datum& d : states) in.push_back(std::move(d));
    in.insert(in.end(), captured.begin(), captured.end());
    OAR_ASSIGN(std::vector<Datum> out, ctx.run_subgraph(0, std::move(in)));
    if (!out[0].is_tensor() || out[0].tensor.numel() != 1 || dtype_of(out[0].tensor) == DType::kString) {
      return invalid_argument("a loop's condition must be one bool");
    }
    go = element_as_int(out[0].tensor, 0);
    for (size_t k = 0; k < n; ++k) states[k] = std::move(out[1 + k]);
    for (size_t k = 0; k < stacked.size(); ++k) stacked[k].push_back(std::move(out[1 + n + k]));
  }
  for (size_t k = 0; k < n; ++k) ctx.set(k, std::move(states[k]));
  for (size_t k = 0; k < stacked.size(); ++k) {
    OAR_ASSIGN(Tensor t, stack(ctx, stacked[k], 0));
    ctx.set(n + k, std::move(t));
  }
  return ok_status();
}

// Entry i along an axis, without the axis.
Result<Tensor> entry(const EvalContext& ctx, const Tensor& x, int axis, int64_t i) {
  std::vector<int64_t> dims = dims_of(x.shape());
  dims.erase(dims.begin() + axis);
  OAR_ASSIGN(Tensor y, ctx.allocate(Shape(dims), dtype_of(x)));
  const int64_t outer = extent(x.shape(), 0, axis), inner = extent(x.shape(), axis + 1, x.shape().rank());
  for (int64_t o = 0; o < outer; ++o)
    copy_elements(x, (o * x.shape()[axis] + i) * inner, y, o * inner, inner);
  return y;
}

// One scan over tensors without a batch axis.
Status scan_once(EvalContext& ctx, std::vector<Datum> states, const std::vector<Tensor>& xs,
                 const std::vector<Datum>& captured, std::vector<Datum>& results) {
  const std::vector<int64_t> in_axes = ctx.attrs().get_ints("scan_input_axes"),
                             in_dirs = ctx.attrs().get_ints("scan_input_directions"),
                             out_axes = ctx.attrs().get_ints("scan_output_axes"),
                             out_dirs = ctx.attrs().get_ints("scan_output_directions");
  auto at = [](const std::vector<int64_t>& v, size_t k) { return k < v.size() ? v[k] : 0; };
  const size_t n = states.size(), outputs = ctx.num_outputs() - n;
  std::vector<int> axes;
  int64_t trips = -1;
  for (size_t k = 0; k < xs.size(); ++k) {
    OAR_ASSIGN(const int axis, checked_axis(at(in_axes, k), xs[k].shape().rank()));
    axes.push_back(axis);
    if (trips >= 0 && trips != xs[k].shape()[axis])
      return invalid_argument("scanned operands differ in length");
    trips = xs[k].shape()[axis];
  }
  std::vector<std::vector<Datum>> stacked(outputs);
  for (int64_t t = 0; t < trips; ++t) {
    std::vector<Datum> in = std::move(states);
    states.clear();
    for (size_t k = 0; k < xs.size(); ++k) {
      OAR_ASSIGN(Tensor e, entry(ctx, xs[k], axes[k], at(in_dirs, k) ? trips - 1 - t : t));
      in.emplace_back(std::move(e));
    }
    in.insert(in.end(), captured.begin(), captured.end());
    OAR_ASSIGN(std::vector<Datum> out, ctx.run_subgraph(0, std::move(in)));
    for (size_t k = 0; k < n; ++k) states.push_back(std::move(out[k]));
    for (size_t k = 0; k < outputs; ++k) stacked[k].push_back(std::move(out[n + k]));
  }
  results = std::move(states);
  for (size_t k = 0; k < outputs; ++k) {
    if (at(out_dirs, k)) std::reverse(stacked[k].begin(), stacked[k].end());
    const int rank =
        stacked[k].empty() || !stacked[k][0].is_tensor() ? 1 : stacked[k][0].tensor.shape().rank() + 1;
    OAR_ASSIGN(const int axis, checked_axis(at(out_axes, k), rank));
    OAR_ASSIGN(Tensor y, stack(ctx, stacked[k], axis));
    results.emplace_back(std::move(y));
  }
  return ok_status();
}

// scan(states..., scanned..., captured...) {states, scans, batched, directions, axes}
Status scan(EvalContext& ctx) {
  const auto n = static_cast<size_t>(ctx.attrs().get_int("states")),
             m = static_cast<size_t>(ctx.attrs().get_int("scans"));
  std::vector<Tensor> xs;
  for (size_t k = 0; k < m; ++k) {
    OAR_ASSIGN(Tensor t, ctx.tensor(n + k));
    xs.push_back(std::move(t));
  }
  const std::vector<Datum> captured = operands(ctx, n + m, ctx.num_inputs());
  std::vector<Datum> results;
  if (!ctx.attrs().get_int("batched")) {
    OAR_RETURN_IF_ERROR(scan_once(ctx, operands(ctx, 0, n), xs, captured, results));
    return set_all(ctx, std::move(results));
  }
  // Opset 8: axis 0 of everything is a batch; each entry is scanned by itself.
  if (xs[0].shape().rank() < 1) return invalid_argument("scanned operands need a batch axis");
  const int64_t batch = xs[0].shape()[0];
  std::vector<std::vector<Datum>> all(ctx.num_outputs());
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<Datum> states;
    std::vector<Tensor> parts;
    for (size_t k = 0; k < n + m; ++k) {
      OAR_ASSIGN(const Tensor t, ctx.tensor(k));
      if (t.shape().rank() < 1 || t.shape()[0] != batch) return invalid_argument("batch extents differ");
      OAR_ASSIGN(Tensor e, entry(ctx, t, 0, b));
      if (k < n) states.emplace_back(std::move(e));
      else parts.push_back(std::move(e));
    }
    OAR_RETURN_IF_ERROR(scan_once(ctx, std::move(states), parts, captured, results));
    for (size_t k = 0; k < all.size(); ++k) all[k].push_back(results[k]);
  }
  for (size_t k = 0; k < all.size(); ++k) {
    OAR_ASSIGN(Tensor y, stack(ctx, all[k], 0));
    ctx.set(k, std::move(y));
  }
  return ok_status();
}

// ---- sequences

Result<const std::vector<Datum>*> sequence(const EvalContext& ctx, size_t i) {
  if (ctx.datum(i).kind != Datum::Kind::kSequence)
    return invalid_argument(cat("operand ", i, " is no sequence"));
  return ctx.datum(i).items.get();
}

Result<int64_t> position(const EvalContext& ctx, size_t operand, int64_t size, bool insert) {
  OAR_ASSIGN(int64_t at, ctx.scalar_int(operand));
  if (at < -size || at >= size + (insert ? 1 : 0))
    return invalid_argument(cat("position ", at, " of a sequence of ", size));
  return at < 0 ? at + size : at;
}

Status sequence_empty(EvalContext& ctx) {
  ctx.set(0, Datum::sequence({}));
  return ok_status();
}
Status sequence_construct(EvalContext& ctx) {
  ctx.set(0, Datum::sequence(operands(ctx, 0, ctx.num_inputs())));
  return ok_status();
}
Status sequence_at(EvalContext& ctx) {
  OAR_ASSIGN(const auto* items, sequence(ctx, 0));
  OAR_ASSIGN(const int64_t at, position(ctx, 1, static_cast<int64_t>(items->size()), false));
  ctx.set(0, (*items)[static_cast<size_t>(at)]);
  return ok_status();
}
Status sequence_insert(EvalContext& ctx) {
  OAR_ASSIGN(const auto* items, sequence(ctx, 0));
  std::vector<Datum> copy = *items;
  int64_t at = static_cast<int64_t>(copy.size());
  if (ctx.has(2)) { OAR_ASSIGN(at, position(ctx, 2, at, true)); }
  copy.insert(copy.begin() + at, ctx.datum(1));
  ctx.set(0, Datum::sequence(std::move(copy)));
  return ok_status();
}
Status sequence_erase(EvalContext& ctx) {
  OAR_ASSIGN(const auto* items, sequence(ctx, 0));
  std::vector<Datum> copy = *items;
  if (copy.empty()) return invalid_argument("nothing to erase");
  int64_t at = static_cast<int64_t>(copy.size()) - 1;
  if (ctx.has(1)) { OAR_ASSIGN(at, position(ctx, 1, static_cast<int64_t>(copy.size()), false)); }
  copy.erase(copy.begin() + at);
  ctx.set(0, Datum::sequence(std::move(copy)));
  return ok_status();
}
Status sequence_length(EvalContext& ctx) {
  OAR_ASSIGN(const auto* items, sequence(ctx, 0));
  OAR_ASSIGN(Tensor n, ctx.zeros({}, DType::kI64));
  *mutable_elements<int64_t>(n) = static_cast<int64_t>(items->size());
  ctx.set(0, std::move(n));
  return ok_status();
}

// split_to_sequence(x, sizes?) {axis, keepdims}
Status split_to_sequence(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis"), x.shape().rank()));
  const int64_t n = x.shape()[axis], outer = extent(x.shape(), 0, axis),
                inner = extent(x.shape(), axis + 1, x.shape().rank());
  std::vector<int64_t> sizes;
  bool keep = true;
  if (!ctx.has(1)) {
    sizes.assign(static_cast<size_t>(n), 1);
    keep = ctx.attrs().get_int("keepdims", 1) != 0;
  } else if (ctx.datum(1).is_tensor() && ctx.datum(1).tensor.shape().rank() == 0) {
    OAR_ASSIGN(const int64_t each, ctx.scalar_int(1));
    if (each <= 0) return invalid_argument("parts must have a positive size");
    for (int64_t left = n; left > 0; left -= each) sizes.push_back(std::min(each, left));
  } else {
    OAR_ASSIGN(sizes, ctx.ints(1));
  }
  int64_t at = 0;
  std::vector<Datum> items;
  for (int64_t size : sizes) {
    if (size < 0 || size > n - at) return invalid_argument("the parts exceed the axis");
    std::vector<int64_t> dims = dims_of(x.shape());
    dims[static_cast<size_t>(axis)] = size;
    if (!keep) dims.erase(dims.begin() + axis);
    OAR_ASSIGN(Tensor y, ctx.allocate(Shape(dims), dtype_of(x)));
    for (int64_t o = 0; o < outer; ++o)
      copy_elements(x, (o * n + at) * inner, y, o * size * inner, size * inner);
    items.emplace_back(std::move(y));
    at += size;
  }
  ctx.set(0, Datum::sequence(std::move(items)));
  return ok_status();
}

Status concat_from_sequence(EvalContext& ctx) {
  OAR_ASSIGN(const auto* items, sequence(ctx, 0));
  if (items->empty()) return invalid_argument("nothing to concatenate");
  const int64_t wanted = ctx.attrs().get_int("axis");
  if (!(*items)[0].is_tensor()) return invalid_argument("items must be tensors");
  const int rank = (*items)[0].tensor.shape().rank();
  if (ctx.attrs().get_int("new_axis")) {
    OAR_ASSIGN(const int axis, checked_axis(wanted, rank + 1));
    OAR_ASSIGN(Tensor y, stack(ctx, *items, axis));
    ctx.set(0, std::move(y));
    return ok_status();
  }
  Node node;
  node.op = find_op("concat");
  node.attrs.set("axis", wanted);
  node.outputs.resize(1);
  std::vector<const Datum*> in;
  for (const Datum& d : *items) in.push_back(&d);
  OAR_ASSIGN(auto out, evaluate_op(node, in, ctx.options()));
  return set_all(ctx, std::move(out));
}

// sequence_map(sequence, more..., captured...) {items}: the body once per item; tensors among `more` are
// handed to every call.
Status sequence_map(EvalContext& ctx) {
  OAR_ASSIGN(const auto* items, sequence(ctx, 0));
  const auto formal = static_cast<size_t>(ctx.attrs().get_int("items"));
  std::vector<std::vector<Datum>> results(ctx.num_outputs());
  for (size_t i = 0; i < items->size(); ++i) {
    std::vector<Datum> in;
    for (size_t k = 0; k < ctx.num_inputs(); ++k) {
      const Datum& d = ctx.datum(k);
      if (k < formal && d.kind == Datum::Kind::kSequence) {
        if (d.items->size() != items->size()) return invalid_argument("sequences differ in length");
        in.push_back((*d.items)[i]);
      } else {
        in.push_back(d);
      }
    }
    OAR_ASSIGN(std::vector<Datum> out, ctx.run_subgraph(0, std::move(in)));
    for (size_t k = 0; k < results.size(); ++k) results[k].push_back(std::move(out[k]));
  }
  for (size_t k = 0; k < results.size(); ++k) ctx.set(k, Datum::sequence(std::move(results[k])));
  return ok_status();
}

Status optional_get_element(EvalContext& ctx) {
  if (!ctx.has(0)) return invalid_argument("the optional is empty");
  ctx.set(0, ctx.datum(0));
  return ok_status();
}
Status optional_has_element(EvalContext& ctx) {
  OAR_ASSIGN(Tensor y, ctx.zeros({}, DType::kBool));
  *mutable_elements<uint8_t>(y) = ctx.has(0);
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(concat_from_sequence, tensor::concat_from_sequence);
extern const OpDef op_if_else = {.name = "if", .evaluate = tensor::if_, .sizes = SizesFrom::kValues};
OAR_TENSOR_OP(loop, tensor::loop, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(optional_get_element, tensor::optional_get_element);
OAR_TENSOR_OP(optional_has_element, tensor::optional_has_element, .sizes = SizesFrom::kItself);
OAR_TENSOR_OP(scan, tensor::scan, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(sequence_at, tensor::sequence_at);
OAR_TENSOR_OP(sequence_construct, tensor::sequence_construct);
OAR_TENSOR_OP(sequence_empty, tensor::sequence_empty);
OAR_TENSOR_OP(sequence_erase, tensor::sequence_erase);
OAR_TENSOR_OP(sequence_insert, tensor::sequence_insert);
OAR_TENSOR_OP(sequence_length, tensor::sequence_length, .sizes = SizesFrom::kItself);
OAR_TENSOR_OP(sequence_map, tensor::sequence_map, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(split_to_sequence, tensor::split_to_sequence, .sizes = SizesFrom::kValues);
}  // namespace oar
