// What our gathers, scatters and orders are in Paddle (phi/ops/yaml/ops.yaml).
#include <algorithm>

#include "engine/base/format.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

using Ints = std::vector<int64_t>;

// One row or element of x: where the index is a number, a slice takes it, which counts from the end too.
void gather_one(NodeWriter& n, int64_t index, int64_t axis) {
  const ValueIndex x = n.in(0);
  Declared t = n.in_type(0);
  t.dims.erase(t.dims.begin() + axis);
  const ValueIndex y =
      n.op("slice", {x, n.ints({index}), n.ints({index == -1 ? INT32_MAX : index + 1})},
           {{"axes", Ints{axis}}, {"infer_flags", Ints{1}}, {"decrease_axis", Ints{axis}}}, t);
  if (const auto it = n.file().extents.find(x); it != n.file().extents.end() && t.rank() == 0) {
    const auto size = static_cast<int64_t>(it->second.size()), at = index < 0 ? index + size : index;
    if (at >= 0 && at < size) n.file().extents[y] = {it->second[static_cast<size_t>(at)]};
  }
  n.out(0, y);
}
void gather(NodeWriter& n) {
  n.expect_attrs({"axis"});
  const Declared x = n.in_type(0), index = n.in_type(1);
  const auto at = positive_axes({n.attrs().get_int("axis", 0)}, x.rank());
  if (!at) return n.fail("an axis out of range");
  const auto axis = (*at)[0];
  if (const auto one = n.known_ints(1); one && index.rank() == 0) return gather_one(n, (*one)[0], axis);
  Declared t{x.dtype, {x.dims.begin(), x.dims.begin() + axis}};
  t.dims.insert(t.dims.end(), index.dims.begin(), index.dims.end());
  t.dims.insert(t.dims.end(), x.dims.begin() + axis + 1, x.dims.end());
  if (axis == 0 && x.rank() == 2 && dtype_is_float(x.dtype) && index.rank() > 1)
    return n.out(0, n.op("embedding", {n.in(1), n.in(0)}, {}, t));
  const ValueIndex where = n.number(static_cast<double>(axis), DType::kI32);
  if (index.rank() <= 1) return n.out(0, n.op("gather", {n.in(0), n.in(1), where}, {}, t));
  // Rows by a flat index, then in its shape.
  Declared flat = x;
  flat.dims[static_cast<size_t>(axis)] = -1;
  const ValueIndex rows = n.op("gather", {n.in(0), n.in_shaped(1, {-1}), where}, {}, flat);
  std::vector<ValueIndex> parts;
  const ValueIndex whole = n.shape_of(n.in(0));
  if (axis > 0) parts.push_back(n.slice(whole, 0, 0, axis));
  parts.push_back(n.shape_of(n.in(1)));
  if (axis + 1 < x.rank()) parts.push_back(n.slice(whole, 0, axis + 1, x.rank()));
  n.out(0, n.reshape_to(rows, n.concat(parts, 0)));
}
void gather_elements(NodeWriter& n) {
  n.expect_attrs({"axis"});
  const auto at = positive_axes({n.attrs().get_int("axis", 0)}, n.in_type(0).rank());
  if (!at) return n.fail("an axis out of range");
  n.out(0, n.op("take_along_axis", {n.in(0), n.in(1)}, {{"axis", (*at)[0]}},
                {n.in_type(0).dtype, n.in_type(1).dims}));
}
void gather_nd(NodeWriter& n) {
  n.expect_attrs({"batch_dims"});
  if (n.attrs().get_int("batch_dims", 0) != 0) return n.fail("batch_dims");
  const Declared x = n.in_type(0), index = n.in_type(1);
  if (index.rank() == 0 || index.dims.back() < 0 || index.dims.back() > x.rank())
    return n.fail("an index of unknown width");
  Declared t{x.dtype, {index.dims.begin(), index.dims.end() - 1}};
  t.dims.insert(t.dims.end(), x.dims.begin() + index.dims.back(), x.dims.end());
  n.out(0, n.op("gather_nd", {n.in(0), n.in(1)}, {}, t));
}

void scatter_elements(NodeWriter& n) {
  n.expect_attrs({"axis", "reduction"});
  const auto at = positive_axes({n.attrs().get_int("axis", 0)}, n.in_type(0).rank());
  if (!at) return n.fail("an axis out of range");
  const std::string reduction = n.attrs().get_string("reduction", "none");
  if (reduction != "none" && reduction != "add" && reduction != "mul")
    return n.fail(cat("reduction '", reduction, "'"));
  n.out(0, n.op("put_along_axis", {n.in(0), n.in(1), n.in(2)},
                {{"axis", (*at)[0]}, {"reduce", reduction == "none" ? "assign" : reduction}}, n.in_type(0)));
}
// Replacing takes one index per axis there, adding takes them together.
void scatter_nd(NodeWriter& n) {
  n.expect_attrs({"reduction"});
  const std::string reduction = n.attrs().get_string("reduction", "none");
  const Declared index = n.in_type(1);
  if (reduction == "add")
    return n.out(0, n.op("scatter_nd_add", {n.in(0), n.in(1), n.in(2)}, {}, n.in_type(0)));
  if (reduction != "none") return n.fail(cat("reduction '", reduction, "'"));
  if (index.rank() == 0 || index.dims.back() < 1) return n.fail("an index of unknown width");
  const int64_t last = index.rank() - 1, width = index.dims.back();
  std::vector<ValueIndex> columns;
  for (int64_t k = 0; k < width; ++k) columns.push_back(n.squeeze(n.slice(n.in(1), last, k, k + 1), {last}));
  n.out(0, n.op("index_put", {n.in(0), columns, n.in(2)}, {{"accumulate", false}}, n.in_type(0)));
}
// Ours has one row per axis, Paddle's one per element.
void non_zero(NodeWriter& n) {
  n.expect_attrs({});
  const ValueIndex rows = n.op("nonzero", {n.in(0)}, {}, {DType::kI64, {-1, n.in_type(0).rank()}});
  n.out(0, n.transpose(rows, {1, 0}));
}
void one_hot(NodeWriter& n) {
  n.expect_attrs({"axis"});
  const int rank = n.in_type(0).rank();
  const int64_t axis = n.attrs().get_int("axis", -1);
  const Tensor* values = n.known(2);
  const auto depth = n.known_number(1);
  if ((axis != -1 && axis != rank) || !depth || values == nullptr || values->numel() != 2)
    return n.fail("another axis than the last, or a depth or values that are computed");
  const double off = element_as_double(*values, 0), on = element_as_double(*values, 1);
  const DType dtype = values->format().dtype();
  Declared t{DType::kF32, n.in_type(0).dims};
  t.dims.push_back(static_cast<int64_t>(*depth));
  ValueIndex y = n.op("one_hot", {n.cast(n.in(0), DType::kI64), n.number(*depth, DType::kI32)}, {}, t);
  if (off == 0 && on == 1) return n.out(0, dtype == DType::kF32 ? y : n.cast(y, dtype));
  n.out(0, n.select(n.cast(y, DType::kBool), n.scalar(on, dtype), n.scalar(off, dtype)));
}
void top_k(NodeWriter& n) {
  n.expect_attrs({"axis", "largest", "sorted"});
  Declared t = n.in_type(0);
  const auto at = positive_axes({n.attrs().get_int("axis", -1)}, t.rank());
  if (!at) return n.fail("an axis out of range");
  const auto k = n.known_number(1);
  t.dims[static_cast<size_t>((*at)[0])] = k ? static_cast<int64_t>(*k) : -1;
  const ValueIndex count = k ? n.number(*k, DType::kI32) : n.in_shaped(1, {1});
  const auto results = n.emit("topk", {n.in(0), count},
                              {{"axis", (*at)[0]},
                               {"largest", n.attrs().get_bool("largest", true)},
                               {"sorted", n.attrs().get_bool("sorted", true)}},
                              {{t}, {{DType::kI64, t.dims}}});
  n.out(0, results[0][0]);
  n.out(1, results[1][0]);
}

constexpr OpWriterEntry kIndexWriters[] = {
    {"gather", gather},         {"gather_elements", gather_elements},
    {"gather_nd", gather_nd},   {"non_zero", non_zero},
    {"one_hot", one_hot},       {"scatter_elements", scatter_elements},
    {"scatter_nd", scatter_nd}, {"top_k", top_k},
};

}  // namespace

std::span<const OpWriterEntry> index_writers() { return kIndexWriters; }

}  // namespace oar::paddle
