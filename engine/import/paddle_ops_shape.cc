// Constants, shapes, movement and indexing of Paddle (phi/ops/yaml/ops.yaml).
#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>

#include "engine/import/paddle_node.h"

namespace oar::paddle {
namespace {

// ---- constants

void full_of(Node& n, Val shape, Val value) { n.out(0, n.w().op("constant_of_shape", {shape, value})); }

// A ProgramDesc writes the value as text too, which alone is exact: the attribute is a float.
double fill_value(Node& n) {
  const std::string text = n.get_string("str_value");
  const double rounded = n.get_float("value", 0);
  double value = 0;  // from_chars knows inf and nan
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return rounded;
}
// full(shape; value, dtype); operands of a ProgramDesc: shape, value.
void full(Node& n) {
  const DType dtype = n.get_dtype("dtype", DType::kF32);
  const double number = fill_value(n);
  const Val value = n.has_in(1) ? n.reshape(n.cast(n.in(1), dtype), {}) : n.number(number, dtype);
  const auto shape = n.known_ints(0, "shape");
  if (shape && !n.has_in(1)) {
    int64_t count = 1;
    bool plain = shape->size() <= static_cast<size_t>(Shape::kMaxRank);
    for (int64_t d : *shape)
      plain = plain && d >= 0 && d <= 4096 && (count *= std::max<int64_t>(d, 1)) <= 4096;
    if (plain) {
      const Shape dims{std::span<const int64_t>(*shape)};
      return n.out(0, n.w().constant(filled(*shape, dtype,
                                            std::vector<double>(static_cast<size_t>(dims.numel()), number))));
    }
  }
  full_of(n, n.ints_in(0, "shape"), value);
}
void full_int_array(Node& n) {
  const std::vector<int64_t> v = n.get_ints("value");
  const DType dtype = n.get_dtype("dtype", DType::kI64);
  n.out(0, n.w().constant(
               filled({static_cast<int64_t>(v.size())}, dtype, std::vector<double>(v.begin(), v.end()))));
}
void full_with_tensor(Node& n) {
  const DType dtype = n.get_dtype("dtype", n.dtype(0));
  full_of(n, n.ints_in(1, "shape"), n.reshape(n.cast(n.in(0), dtype), {}));
}
void full_like(Node& n) {
  const DType dtype = n.get_dtype("dtype", n.dtype(0));
  full_of(n, n.shape_of(n.in(0)), n.scalar_in(1, "value", 0, dtype));
}
void full_batch_size_like(Node& n) {
  std::vector<int64_t> shape = n.get_ints("shape");
  const int64_t from = n.get_int("input_dim_idx", 0), to = n.get_int("output_dim_idx", 0);
  if (to < 0 || to >= static_cast<int64_t>(shape.size()))
    return n.fail(invalid_argument("output_dim_idx out of range"));
  const std::vector<int64_t> head(shape.begin(), shape.begin() + to),
      tail(shape.begin() + to + 1, shape.end());
  const Val dims = n.concat({n.w().ints(head), n.shape_of(n.in(0), from, from + 1), n.w().ints(tail)});
  full_of(n, dims, n.number(fill_value(n), n.get_dtype("dtype", DType::kF32)));
}
// The one list that is not empty: a ProgramDesc has one per element type.
std::vector<double> listed_values(Node& n) {
  std::vector<double> values;
  for (const char* name :
       {"values", "fp32_values", "fp64_values", "int32_values", "int64_values", "bool_values"}) {
    std::vector<double> list = n.get_floats(name);
    if (!list.empty() && !values.empty()) n.fail(invalid_argument("values of two element types"));
    if (!list.empty()) values = std::move(list);
  }
  return values;
}
// assign_value(; shape, dtype, values): a ProgramDesc names the list after the type.
void assign_value(Node& n) {
  const std::vector<int64_t> shape = n.get_ints("shape");
  const DType dtype = n.get_dtype("dtype", DType::kF32);
  n.ignore_in(0);  // the destination of the in-place spelling
  const std::vector<double> values = listed_values(n);
  int64_t count = 1;
  for (int64_t d : shape) {
    if (d < 0 || __builtin_mul_overflow(count, d, &count))
      return n.fail(invalid_argument("a shape that is negative or overflows"));
  }
  if (shape.size() > static_cast<size_t>(Shape::kMaxRank) || count != static_cast<int64_t>(values.size())) {
    return n.fail(invalid_argument(cat(values.size(), " values for a shape of ", count, " elements")));
  }
  n.out(0, n.w().constant(filled(shape, dtype, values)));
}
void arange(Node& n) {
  const DType dtype = n.get_dtype("dtype", n.dtype(0));
  n.out(0, n.w().op("range", {n.scalar_in(0, "start", 0, dtype), n.scalar_in(1, "end", 0, dtype),
                              n.scalar_in(2, "step", 1, dtype)}));
}
// start + k (stop - start) / (count - 1)
void linspace(Node& n) {
  const DType dtype = n.get_dtype("dtype", DType::kF32);
  const Val start = n.scalar_in(0, "", 0, DType::kF64), stop = n.scalar_in(1, "", 0, DType::kF64);
  const Val count = n.scalar_in(2, "", 0, DType::kI64);
  const Val gaps = n.w().op("max", {n.w().op("sub", {count, n.w().int_scalar(1)}), n.w().int_scalar(1)});
  const Val step = n.w().op("div", {n.w().op("sub", {stop, start}), n.cast(gaps, DType::kF64)});
  const Val k = n.cast(n.w().op("range", {n.w().int_scalar(0), count, n.w().int_scalar(1)}), DType::kF64);
  n.out(0, n.cast(n.w().op("add", {start, n.w().op("mul", {k, step})}), dtype));
}
void cast(Node& n) { n.out(0, n.cast(n.in(0), n.get_dtype("dtype|out_dtype", DType::kF32))); }
void one_hot(Node& n) {
  const Val depth = n.scalar_in(1, "depth", 0, DType::kI64);
  const DType dtype = n.get_dtype("dtype", DType::kF32);
  const Val off_on = n.w().constant(filled({2}, dtype, std::vector<double>{0, 1}));
  n.out(0, n.w().op("one_hot", {n.in(0), depth, off_on}, {{"axis", int64_t{-1}}}));
}

// ---- shapes

void reshape(Node& n) { n.out(0, n.w().op("reshape", {n.in(0), n.ints_in(1, "shape")})); }
void transpose(Node& n) { n.out(0, n.transpose(n.in(0), n.get_ints("perm|axis"))); }
void unsqueeze(Node& n) { n.out(0, n.w().op("unsqueeze", {n.in(0), n.ints_in(1, "axis|axes")})); }
void squeeze(Node& n) {
  const auto axes = n.known_ints(1, "axis|axes");
  if (!axes) return n.out(0, n.w().op("squeeze", {n.in(0), n.ints_in(1, "axis|axes")}));
  if (axes->empty()) return n.out(0, n.w().op("squeeze", {n.in(0), {}}));
  // Axes that are declared longer than one stay, silently.
  const ValueType* t = n.in_type(0);
  std::vector<int64_t> keep;
  for (int64_t a : *axes) {
    const auto rank = t ? static_cast<int64_t>(t->dims.size()) : 0;
    const int64_t k = a < 0 ? a + rank : a;
    if (k >= 0 && k < rank && t->dims[static_cast<size_t>(k)] > 1) {
      n.scope().rely_on_extents();
      continue;
    }
    keep.push_back(a);
  }
  n.out(0, keep.empty() ? n.in(0) : n.squeeze(n.in(0), keep));
}
void flatten(Node& n) {
  const int rank = n.rank(0);
  int64_t start = n.get_int("start_axis", 1), stop = n.get_int("stop_axis", 1);
  if (rank == 0) return n.out(0, n.reshape(n.in(0), {1}));
  if (start < 0) start += rank;
  if (stop < 0) stop += rank;
  if (start < 0 || stop >= rank || start > stop)
    return n.fail(invalid_argument(cat("axes ", start, " to ", stop, " of rank ", rank)));
  if (stop == rank - 1) {
    std::vector<int64_t> shape(static_cast<size_t>(start), 0);
    shape.push_back(-1);
    return n.out(0, n.reshape(n.in(0), shape));
  }
  const Val dims = n.concat({n.shape_of(n.in(0), 0, start), n.w().ints({-1}), n.shape_of(n.in(0), stop + 1)});
  n.out(0, n.w().op("reshape", {n.in(0), dims}));
}
// flatten2: a matrix, split at `axis`.
void flatten2(Node& n) { n.out(0, n.w().op("flatten", {n.in(0)}, {{"axis", n.get_int("axis", 1)}})); }
void shape32(Node& n) { n.out(0, n.cast(n.shape_of(n.in(0)), DType::kI32)); }
void shape64(Node& n) { n.out(0, n.shape_of(n.in(0))); }
void numel(Node& n) { n.out(0, n.as_declared(0, n.w().op("size_of", {n.in(0)}))); }

// -1 keeps the extent, which broadcasting spells 1.
void expand(Node& n) {
  const auto known = n.known_ints(1, "shape");
  Val shape;
  if (known) {
    std::vector<int64_t> dims = *known;
    for (int64_t& d : dims) d = d == -1 ? 1 : d;
    shape = n.w().ints(dims);
  } else {
    shape = n.w().op("abs", {n.ints_in(1, "shape")});
  }
  n.out(0, n.w().op("expand", {n.in(0), shape}));
}
void expand_as(Node& n) {
  if (n.has_in(1)) n.ignore("target_shape");
  const Val shape = n.has_in(1) ? n.shape_of(n.in(1)) : n.w().ints(n.get_ints("target_shape"));
  n.out(0, n.w().op("expand", {n.in(0), shape}));
}
void tile(Node& n) {
  auto repeats = n.known_ints(1, "repeat_times");
  if (!repeats) return n.out(0, n.w().op("tile", {n.in(0), n.ints_in(1, "repeat_times")}));
  const auto rank = static_cast<size_t>(n.rank(0));
  Val x = n.in(0);
  if (repeats->size() < rank) repeats->insert(repeats->begin(), rank - repeats->size(), 1);
  if (repeats->size() > rank) {
    std::vector<int64_t> axes(repeats->size() - rank);
    std::iota(axes.begin(), axes.end(), 0);
    x = n.unsqueeze(x, axes);
  }
  n.out(0, n.w().op("tile", {x, n.w().ints(*repeats)}));
}
Val broadcast_shape(Node& n, const std::vector<Val>& all) {
  // Zeros of each shape added up have the shape that all broadcast to.
  const Val zero = n.number(0, DType::kBool);
  Val sum;
  for (Val v : all) {
    const Val z = n.w().op("constant_of_shape", {n.shape_of(v), zero});
    sum = sum ? n.w().op("logical_or", {sum, z}) : z;
  }
  return n.shape_of(sum);
}
void broadcast_tensors(Node& n) {
  std::vector<Val> all = n.list(0);
  if (all.empty()) return n.fail(invalid_argument("no operands"));
  const Val shape = broadcast_shape(n, all);
  for (Val& v : all) v = n.w().op("expand", {v, shape});
  n.out_list(0, std::move(all));
}
void meshgrid(Node& n) {
  std::vector<Val> all = n.list(0);
  std::vector<Val> sizes;
  for (Val v : all) sizes.push_back(n.reshape(n.w().op("size_of", {v}), {1}));
  const Val shape = n.concat(sizes);
  for (size_t k = 0; k < all.size(); ++k) {
    std::vector<int64_t> dims(all.size(), 1);
    dims[k] = -1;
    all[k] = n.w().op("expand", {n.reshape(all[k], dims), shape});
  }
  n.out_list(0, std::move(all));
}

// ---- movement

void concat(Node& n) {
  const auto axis = n.known_scalar(1, "axis", 0);
  if (!axis) return n.fail(unimplemented("an axis that is computed"));
  n.out(0, n.concat(n.list(0), static_cast<int64_t>(*axis)));
}
void stack(Node& n) {
  std::vector<Val> parts = n.list(0);
  const int64_t axis = n.get_int("axis", 0);
  for (Val& v : parts) v = n.unsqueeze(v, {axis});
  n.out(0, n.concat(std::move(parts), axis));
}
std::vector<Val> pieces(Node& n, Val sizes, size_t count, int64_t axis) {
  return n.w().ops("split", {n.in(0), sizes}, count, {{"axis", axis}});
}
// The number of results of a list result: declared by a ProgramDesc, else by what takes it apart.
void split(Node& n) {
  const auto axis = n.known_scalar(2, "axis", 0);
  if (!axis) return n.fail(unimplemented("an axis that is computed"));
  const auto at = static_cast<int64_t>(*axis);
  const auto sizes = n.known_ints(1, "sections");
  const int64_t num = n.get_int("num", 0);
  const size_t listed = n.op().outputs.empty() ? 0 : n.op().outputs[0].values.size();
  if (!sizes && listed < 2) return n.fail(unimplemented("sections that are computed"));
  if (!sizes) return n.out_list(0, pieces(n, n.ints_in(1, "sections"), listed, at));
  if (sizes->empty()) {
    const auto count = static_cast<size_t>(std::clamp<int64_t>(num, 0, 4096));
    if (count == 0) return n.fail(invalid_argument("neither sections nor num"));
    return n.out_list(0, pieces(n, {}, count, at));
  }
  // One section may be -1: what the others leave.
  const auto open = std::find(sizes->begin(), sizes->end(), -1);
  Val given = n.w().ints(*sizes);
  if (open != sizes->end()) {
    int64_t sum = 1;
    for (int64_t s : *sizes) sum += s;
    const Val whole = n.squeeze(n.slice(n.shape_of(n.in(0)), 0, at, at == -1 ? INT64_MAX : at + 1), {0});
    const Val rest = n.reshape(n.w().op("sub", {whole, n.w().int_scalar(sum)}), {1});
    std::vector<Val> parts;
    for (auto it = sizes->begin(); it != sizes->end(); ++it)
      parts.push_back(it == open ? rest : n.w().ints({*it}));
    given = n.concat(parts);
  }
  n.out_list(0, pieces(n, given, sizes->size(), at));
}
void split_with_num(Node& n) {
  const auto axis = n.known_scalar(1, "axis", 0);
  const int64_t count = n.get_int("num", 0);
  if (!axis || count < 1 || count > 4096)
    return n.fail(invalid_argument("num must be 1 to 4096 and the axis known"));
  n.out_list(0, pieces(n, {}, static_cast<size_t>(count), static_cast<int64_t>(*axis)));
}
void unbind(Node& n) {
  const int64_t axis = n.get_int("axis", 0);
  const ValueType* t = n.in_type(0);
  const auto rank = t ? static_cast<int64_t>(t->dims.size()) : 0;
  const int64_t at = axis < 0 ? axis + rank : axis;
  const int64_t count = at >= 0 && at < rank ? t->dims[static_cast<size_t>(at)] : -1;
  if (count < 1 || count > 4096) return n.fail(unimplemented("an extent that the program does not declare"));
  n.scope().rely_on_extents();
  std::vector<Val> parts = pieces(n, {}, static_cast<size_t>(count), axis);
  for (Val& v : parts) v = n.squeeze(v, {axis});
  n.out_list(0, std::move(parts));
}
void slice(Node& n) {
  Val y = n.w().op("slice",
                   {n.in(0), n.ints_in(1, "starts"), n.ints_in(2, "ends"), n.w().ints(n.get_ints("axes"))});
  const std::vector<int64_t> drop = n.get_ints("decrease_axis");
  if (!drop.empty()) y = n.as_declared(0, n.squeeze(y, drop));
  n.out(0, y);
}
void strided_slice(Node& n) {
  const Val axes = n.w().ints(n.get_ints("axes"));
  Val y = n.w().op("slice",
                   {n.in(0), n.ints_in(1, "starts"), n.ints_in(2, "ends"), axes, n.ints_in(3, "strides")});
  const std::vector<int64_t> drop = n.get_ints("decrease_axis");
  if (!drop.empty()) y = n.as_declared(0, n.squeeze(y, drop));
  n.out(0, y);
}
void flip(Node& n) {
  Val x = n.in(0);
  for (int64_t a : n.get_ints("axis")) x = n.slice(x, a, -1, INT64_MIN, -1);
  n.out(0, x);
}
void roll(Node& n) {
  const auto shifts = n.known_ints(1, "shifts");
  if (!shifts) return n.fail(unimplemented("shifts that are computed"));
  std::vector<int64_t> axes = n.get_ints("axis");
  Val x = n.in(0);
  const bool flat = axes.empty();
  const Val shape = n.shape_of(x);
  if (flat) x = n.reshape(x, {-1}), axes = {0};
  if (axes.size() != shifts->size()) return n.fail(invalid_argument("as many shifts as axes are needed"));
  for (size_t k = 0; k < axes.size(); ++k) {
    const int64_t s = (*shifts)[k];
    if (s != 0) x = n.concat({n.slice(x, axes[k], -s, INT64_MAX), n.slice(x, axes[k], 0, -s)}, axes[k]);
  }
  n.out(0, flat ? n.w().op("reshape", {x, shape}) : x);
}
void triangle(Node& n, int64_t upper) {
  n.out(0, n.w().op("trilu", {n.in(0), n.w().int_scalar(n.get_int("diagonal", 0))}, {{"upper", upper}}));
}
void triu(Node& n) { triangle(n, 1); }
void tril(Node& n) { triangle(n, 0); }
void tril_triu(Node& n) { triangle(n, n.get_int("lower", 0) ? 0 : 1); }
void diag(Node& n) {
  if (n.get_int("offset", 0) != 0) return n.fail(unimplemented("an offset"));
  const Val x = n.in(0);
  const double padding = n.get_float("padding_value", 0);  // read for matrices too, which have none
  if (n.rank(0) == 2) return n.out(0, n.w().op("einsum", {x}, {{"equation", std::string("ii->i")}}));
  // The vector down a column, kept where row and column are the same.
  const Val size = n.w().op("size_of", {x});
  const Val k = n.w().op("range", {n.w().int_scalar(0), size, n.w().int_scalar(1)});
  const Val same = n.w().op("equal", {n.unsqueeze(k, {1}), k});
  n.out(0, n.w().op("where", {same, n.unsqueeze(x, {1}), n.number(padding, n.dtype(0))}));
}
void pad(Node& n) {
  const std::vector<int64_t> p = n.get_ints("paddings");
  std::vector<int64_t> begin_end(p.size());
  for (size_t k = 0; k < p.size() / 2; ++k)
    begin_end[k] = p[2 * k], begin_end[p.size() / 2 + k] = p[2 * k + 1];
  n.out(0, n.w().op("pad", {n.in(0), n.w().ints(begin_end), n.scalar_in(1, "pad_value", 0, n.dtype(0))},
                    {{"mode", std::string("constant")}}));
}
// paddings: left, right, top, bottom, front, back of the spatial axes.
void pad3d(Node& n) {
  const auto p = n.known_ints(1, "paddings");
  if (!p || p->size() % 2 != 0) return n.fail(unimplemented("paddings that are computed"));
  const std::string format = n.get_string("data_format", "NCDHW"), mode = n.get_string("mode", "constant");
  const size_t spatial = p->size() / 2;
  const bool last = format.back() == 'C';
  std::vector<int64_t> pads(2 * (spatial + 2), 0);
  for (size_t k = 0; k < spatial; ++k) {
    const size_t axis = (last ? 1 : 2) + spatial - 1 - k;
    pads[axis] = (*p)[2 * k];
    pads[spatial + 2 + axis] = (*p)[2 * k + 1];
  }
  const char* ours = mode == "constant"    ? "constant"
                     : mode == "reflect"   ? "reflect"
                     : mode == "replicate" ? "edge"
                     : mode == "circular"  ? "wrap"
                                           : nullptr;
  if (!ours) return n.fail(unimplemented(cat("mode '", mode, "'")));
  const Val value = n.number(n.get_float("value|pad_value", 0), n.dtype(0));
  n.out(0, n.w().op("pad", {n.in(0), n.w().ints(pads), ours == std::string_view("constant") ? value : Val{}},
                    {{"mode", std::string(ours)}}));
}

// ---- indexing

Val flat_index(Node& n, size_t i) {
  const ValueType* t = n.in_type(i);
  return t && t->dims.size() > 1 ? n.reshape(n.in(i), {-1}) : n.in(i);
}
void gather(Node& n) {
  const auto axis = n.known_scalar(2, "axis", 0);
  if (!axis) return n.fail(unimplemented("an axis that is computed"));
  n.out(0, n.w().op("gather", {n.in(0), flat_index(n, 1)}, {{"axis", static_cast<int64_t>(*axis)}}));
}
void index_select(Node& n) {
  n.out(0, n.w().op("gather", {n.in(0), n.in(1)}, {{"axis", n.get_int("axis|dim", 0)}}));
}
void gather_nd(Node& n) { n.out(0, n.w().op("gather_nd", {n.in(0), n.in(1)}, {{"batch_dims", int64_t{0}}})); }
void take_along_axis(Node& n) {
  n.out(0, n.w().op("gather_elements", {n.in(0), n.in(1)}, {{"axis", n.get_int("axis|Axis", 0)}}));
}
void index_sample(Node& n) {
  n.out(0, n.w().op("gather_elements", {n.in(0), n.in(1)}, {{"axis", int64_t{1}}}));
}
void embed(Node& n, Val ids) {
  Val y = n.w().op("gather", {n.in(1), ids}, {{"axis", int64_t{0}}});
  const int64_t padding = n.get_int("padding_idx", -1);
  if (padding >= 0) {  // that row reads as zeros
    const Val is_padding =
        n.unsqueeze(n.w().op("equal", {ids, n.number(static_cast<double>(padding), n.dtype(0))}), {-1});
    y = n.w().op("where", {is_padding, n.number(0, n.dtype(1)), y});
  }
  n.out(0, y);
}
void embedding(Node& n) { embed(n, n.in(0)); }
// The first generation's lookup_table: ids have a last axis of one.
void lookup_table(Node& n) { embed(n, n.squeeze(n.in(0), {-1})); }
// scatter(x, index, updates; overwrite): rows replaced, or cleared and then added up.
void scatter(Node& n) {
  const Val index = n.unsqueeze(flat_index(n, 1), {-1});
  if (n.get_bool("overwrite", true)) {
    return n.out(0, n.w().op("scatter_nd", {n.in(0), index, n.in(2)}, {{"reduction", std::string("none")}}));
  }
  const Val zeros = n.w().op("constant_of_shape", {n.shape_of(n.in(2)), n.number(0, n.dtype(2))});
  const Val cleared = n.w().op("scatter_nd", {n.in(0), index, zeros}, {{"reduction", std::string("none")}});
  n.out(0, n.w().op("scatter_nd", {cleared, index, n.in(2)}, {{"reduction", std::string("add")}}));
}
void scatter_nd_add(Node& n) {
  n.out(0, n.w().op("scatter_nd", {n.in(0), n.in(1), n.in(2)}, {{"reduction", std::string("add")}}));
}
void put_along_axis(Node& n) {
  const std::string reduce = n.get_string("reduce|Reduce", "assign");
  const char* ours = reduce == "assign"                        ? "none"
                     : reduce == "add"                         ? "add"
                     : reduce == "mul" || reduce == "multiply" ? "mul"
                                                               : nullptr;
  if (!n.get_bool("include_self|Include_self", true) || !ours)
    return n.fail(unimplemented(cat("reduce '", reduce, "' or include_self")));
  n.out(0, n.w().op("scatter_elements", {n.in(0), n.in(1), n.in(2)},
                    {{"axis", n.get_int("axis|Axis", 0)}, {"reduction", std::string(ours)}}));
}
void nonzero(Node& n) { n.out(0, n.transpose(n.w().op("non_zero", {n.in(0)}), {1, 0})); }
void masked_select(Node& n) {
  const Val x = n.in(0), mask = n.in(1);
  const Val shape = broadcast_shape(n, {x, mask});
  const Val where = n.transpose(n.w().op("non_zero", {n.w().op("expand", {mask, shape})}), {1, 0});
  n.out(0, n.w().op("gather_nd", {n.w().op("expand", {x, shape}), where}, {{"batch_dims", int64_t{0}}}));
}
void masked_fill(Node& n) {
  n.out(0, n.w().op("where", {n.in(1), n.scalar_in(2, "value", 0, n.dtype(0)), n.in(0)}));
}
void where(Node& n) { n.out(0, n.w().op("where", {n.in(0), n.in(1), n.in(2)})); }
void index_put(Node& n) {
  const std::vector<Val> indices = n.list(1);
  if (indices.size() == 1 && n.in_type(1) && n.in_type(1)->dtype == "bool")
    return n.fail(unimplemented("a mask as index"));
  const Val shape = broadcast_shape(n, indices);
  std::vector<Val> columns;
  for (Val v : indices)
    columns.push_back(n.unsqueeze(n.w().op("expand", {n.cast(v, DType::kI64), shape}), {-1}));
  const Val index = n.concat(columns, -1);
  const Val rows = n.concat({shape, n.shape_of(n.in(0), static_cast<int64_t>(indices.size()))});
  const char* reduction = n.get_bool("accumulate", false) ? "add" : "none";
  n.out(0, n.w().op("scatter_nd", {n.in(0), index, n.w().op("expand", {n.in(2), rows})},
                    {{"reduction", std::string(reduction)}}));
}
void topk(Node& n) {
  const Val k = n.ints_in(1, "k");
  const auto r = n.w().ops("top_k", {n.in(0), k}, 2,
                           {{"axis", n.get_int("axis", -1)},
                            {"largest", n.get_int("largest", 1)},
                            {"sorted", n.get_int("sorted", 1)}});
  n.out(0, r[0]);
  n.out(1, r[1]);
}
void argsort(Node& n) {
  const int rank = n.rank(0);
  int64_t axis = n.get_int("axis", -1);
  if (axis < 0) axis += rank;
  const auto r = n.w().ops("top_k", {n.in(0), n.shape_of(n.in(0), axis, axis + 1)}, 2,
                           {{"axis", axis}, {"largest", n.get_int("descending", 0)}, {"sorted", int64_t{1}}});
  n.out(0, r[0]);
  n.out(1, r[1]);
}
void repeat_interleave(Node& n) {
  const int64_t times = n.get_int("repeats|Repeats", 1), rank = n.rank(0);
  int64_t axis = n.get_int("axis|dim", 0);
  if (axis < 0) axis += rank;
  std::vector<int64_t> repeats(static_cast<size_t>(rank + 1), 1);
  repeats[static_cast<size_t>(axis + 1)] = times;
  const Val tiled = n.w().op("tile", {n.unsqueeze(n.in(0), {axis + 1}), n.w().ints(repeats)});
  n.out(0, n.w().op("reshape", {tiled, n.concat({n.shape_of(n.in(0), 0, axis), n.w().ints({-1}),
                                                 n.shape_of(n.in(0), axis + 1)})}));
}
// x with a strided part replaced by values that broadcast to it: slices of the flat positions say where.
void set_value(Node& n, Val values, size_t first) {
  const Val x = n.in(0);
  if (!n.get_ints("none_axes").empty()) return n.fail(unimplemented("none_axes"));
  const Val shape = n.shape_of(x), zero = n.w().int_scalar(0), one = n.w().int_scalar(1);
  const Val at = n.w().op("reshape", {n.w().op("range", {zero, n.w().op("size_of", {x}), one}), shape});
  Val part = n.w().op("slice", {at, n.ints_in(first, "starts"), n.ints_in(first + 1, "ends"),
                                n.w().ints(n.get_ints("axes")), n.ints_in(first + 2, "steps")});
  const std::vector<int64_t> drop = n.get_ints("decrease_axes");
  if (!drop.empty()) part = n.squeeze(part, drop);
  const Val spread = n.reshape(n.w().op("expand", {values, n.shape_of(part)}), {-1});
  const Val flat = n.w().op("scatter_elements", {n.reshape(x, {-1}), n.reshape(part, {-1}), spread},
                            {{"axis", int64_t{0}}, {"reduction", std::string("none")}});
  n.out(0, n.w().op("reshape", {flat, shape}));
}
void set_value_constant(Node& n) {
  const DType dtype = n.dtype(0);
  const std::vector<double> values = listed_values(n);
  const std::vector<int64_t> shape = n.get_ints("shape");
  int64_t count = 1;
  for (int64_t d : shape) {
    if (d < 0 || __builtin_mul_overflow(count, d, &count))
      return n.fail(invalid_argument("a shape that is negative or overflows"));
  }
  if (shape.size() > static_cast<size_t>(Shape::kMaxRank) || count != static_cast<int64_t>(values.size())) {
    return n.fail(invalid_argument(cat(values.size(), " values for a shape of ", count, " elements")));
  }
  set_value(n, n.w().constant(filled(shape, dtype, values)), 1);
}
void set_value_with_tensor(Node& n) {
  const Val v = n.in_type(1) && n.in_type(0) && n.in_type(1)->dtype != n.in_type(0)->dtype
                    ? n.cast(n.in(1), n.dtype(0))
                    : n.in(1);
  set_value(n, v, 2);
}
void increment(Node& n) {
  n.out(0, n.w().op("add", {n.in(0), n.number(n.get_float("value|step", 1), n.dtype(0))}));
}

constexpr OpEntry kShapeOps[] = {
    {"arange", arange},
    {"argsort", argsort},
    {"assign_value", assign_value},
    {"broadcast_tensors", broadcast_tensors},
    {"cast", cast},
    {"concat", concat},
    {"diag", diag},
    {"embedding", embedding},
    {"expand", expand},
    {"expand_as", expand_as},
    {"flatten", flatten},
    {"flatten2", flatten2},
    {"flip", flip},
    {"full", full},
    {"full_batch_size_like", full_batch_size_like},
    {"full_int_array", full_int_array},
    {"full_like", full_like},
    {"full_with_tensor", full_with_tensor},
    {"gather", gather},
    {"gather_nd", gather_nd},
    {"increment", increment},
    {"index_put", index_put},
    {"index_sample", index_sample},
    {"index_select", index_select},
    {"linspace", linspace},
    {"lookup_table", lookup_table},
    {"masked_fill", masked_fill},
    {"masked_select", masked_select},
    {"meshgrid", meshgrid},
    {"nonzero", nonzero},
    {"numel", numel},
    {"one_hot", one_hot},
    {"pad", pad},
    {"pad3d", pad3d},
    {"put_along_axis", put_along_axis},
    {"repeat_interleave", repeat_interleave},
    {"reshape", reshape},
    {"roll", roll},
    {"scatter", scatter},
    {"scatter_nd_add", scatter_nd_add},
    {"set_value", set_value_constant},
    {"set_value_with_tensor", set_value_with_tensor},
    {"shape", shape32},
    {"shape64", shape64},
    {"slice", slice},
    {"split", split},
    {"split_with_num", split_with_num},
    {"squeeze", squeeze},
    {"stack", stack},
    {"strided_slice", strided_slice},
    {"take_along_axis", take_along_axis},
    {"tile", tile},
    {"topk", topk},
    {"transpose", transpose},
    {"tril", tril},
    {"tril_triu", tril_triu},
    {"triu", triu},
    {"unbind", unbind},
    {"unsqueeze", unsqueeze},
    {"unstack", unbind},
    {"where", where},
};

}  // namespace

std::span<const OpEntry> shape_ops() { return kShapeOps; }

}  // namespace oar::paddle
