// What our constants, shapes and movements are in Paddle (phi/ops/yaml/ops.yaml).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/format.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

using Ints = std::vector<int64_t>;

// The shape operand i as Paddle takes it: numbers where they are known, else a tensor.
ValueIndex shape_operand(NodeWriter& n, size_t i) {
  const auto known = n.known_ints(i);
  if (!known) return n.in(i);
  const ValueIndex v = n.ints(*known);
  n.file().extents[v] = *known;
  return v;
}

// ---- constants

void constant_of_shape(NodeWriter& n) {
  n.expect_attrs({});
  const auto shape = n.known_ints(0);
  const auto value = n.has(1) ? n.known_number(1) : std::optional<double>(0);
  const DType dtype = n.has(1) ? n.in_type(1).dtype : DType::kF32;
  const bool exact = value && (dtype_is_float(dtype) || std::abs(*value) < 1LL << 53);
  if (shape && exact) return n.out(0, n.number(*value, dtype, *shape));
  const ValueIndex filler = exact ? n.number(*value, dtype) : n.in_shaped(1, {1});
  const ValueIndex dims = shape_operand(n, 0);
  n.out(0, n.op("full_with_tensor", {filler, dims}, {{"dtype", std::string(word_of(dtype))}},
                {dtype, n.extents(dims)}));
}
void range(NodeWriter& n) {
  n.expect_attrs({});
  const DType dtype = n.in_type(0).dtype;
  std::vector<Operand> in;
  for (size_t i = 0; i < 3; ++i) {
    const auto v = n.known_number(i);
    in.push_back(v && std::abs(*v) < 1LL << 53 ? n.number(*v, dtype) : n.in_shaped(i, {1}));
  }
  n.out(0, n.op("arange", std::move(in), {{"dtype", std::string(word_of(dtype))}}, {dtype, {-1}}));
}

// ---- shapes

void shape_of(NodeWriter& n) {
  n.expect_attrs({"start", "end"});
  const int64_t rank = n.in_type(0).rank();
  const auto at = [&](const char* name, int64_t fallback) {
    const int64_t v = n.attrs().get_int(name, fallback);
    return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank);
  };
  const int64_t start = at("start", 0), end = at("end", rank);
  const ValueIndex all = n.shape_of(n.in(0));
  if (start == 0 && end == rank) return n.out(0, all);
  if (end <= start) return n.out(0, n.constant(std::span<const double>(), DType::kI64, {0}));
  n.out(0, n.slice(all, 0, start, end));
}
void size_of(NodeWriter& n) {
  n.expect_attrs({});
  n.out(0, n.op("numel", {n.in(0)}, {}, {DType::kI64, {}}));
}
void reshape(NodeWriter& n) {
  n.expect_attrs({"allowzero"});
  const auto shape = n.known_ints(1);
  const bool zeros = !shape || std::find(shape->begin(), shape->end(), 0) != shape->end();
  if (n.attrs().get_bool("allowzero", false) && zeros) return n.fail("a shape whose zeros are extents");
  if (!shape) return n.out(0, n.reshape_to(n.in(0), n.in(1)));
  n.out(0, n.reshape(n.in(0), *shape));
}
// A matrix, split at `axis`.
void flatten(NodeWriter& n) {
  n.expect_attrs({"axis"});
  const Declared x = n.in_type(0);
  const int64_t axis = n.attrs().get_int("axis", 1), at = axis < 0 ? axis + x.rank() : axis;
  if (at < 0 || at > x.rank()) return n.fail("an axis out of range");
  if (at == 0) return n.out(0, n.reshape(n.in(0), {1, -1}));
  if (at == 1) return n.out(0, n.reshape(n.in(0), {0, -1}));
  if (at == x.rank()) return n.out(0, n.reshape(n.in(0), {-1, 1}));
  const auto rows = count_of({x.dims.begin(), x.dims.begin() + at}),
             columns = count_of({x.dims.begin() + at, x.dims.end()});
  if (rows) return n.out(0, n.reshape(n.in(0), {*rows, -1}));
  if (columns) return n.out(0, n.reshape(n.in(0), {-1, *columns}));
  // Rows are the product of the first extents.
  const ValueIndex product = n.reduce("prod", n.slice(n.shape_of(n.in(0)), 0, 0, at), {0}, true);
  const double open = -1;
  const ValueIndex shape = n.concat({product, n.constant({&open, 1}, DType::kI64, {1})}, 0);
  n.out(0, n.reshape_to(n.in(0), shape));
}
void transpose(NodeWriter& n) {
  n.expect_attrs({"perm"});
  Ints perm = n.attrs().get_ints("perm");
  if (!n.attrs().has("perm")) {
    perm.resize(static_cast<size_t>(n.in_type(0).rank()));
    std::iota(perm.rbegin(), perm.rend(), int64_t{0});
  }
  n.out(0, n.transpose(n.in(0), perm));
}
// A view of a computed shape keeps what is known of its elements.
void out_like(NodeWriter& n, ValueIndex y) {
  const auto it = n.file().extents.find(n.in(0));
  if (it != n.file().extents.end() && count_of(n.type(y).dims) == static_cast<int64_t>(it->second.size()))
    n.file().extents[y] = it->second;
  n.out(0, y);
}
void squeeze(NodeWriter& n) {
  n.expect_attrs({"axes"});
  auto axes = n.ints_or_attr(1, "axes");
  if (!axes) {
    axes.emplace();
    for (size_t k = 0; const int64_t d : n.in_type(0).dims) {
      if (d < 0) return n.fail("axes that depend on extents");
      if (d == 1) axes->push_back(static_cast<int64_t>(k));
      ++k;
    }
    if (axes->empty()) return n.out(0, n.same("assign", n.in(0)));
  }
  out_like(n, n.squeeze(n.in(0), *axes));
}
void unsqueeze(NodeWriter& n) {
  n.expect_attrs({"axes"});
  const auto axes = n.ints_or_attr(1, "axes");
  if (!axes) return n.fail("no axes");
  out_like(n, n.unsqueeze(n.in(0), *axes));
}

// Ours spreads both ways: an extent of 1 in the shape keeps x's.
void expand(NodeWriter& n) {
  n.expect_attrs({});
  const ValueIndex x = n.in(0);
  const Ints dims = n.in_type(0).dims;
  if (auto shape = n.known_ints(1)) {
    if (shape->size() < dims.size()) shape->insert(shape->begin(), dims.size() - shape->size(), 1);
    const size_t head = shape->size() - dims.size();
    for (size_t k = head; k < shape->size(); ++k)
      if ((*shape)[k] == 1 || (*shape)[k] == dims[k - head]) (*shape)[k] = -1;
    return n.out(0, n.expand(x, *shape));
  }
  ValueIndex shape = n.in(1), own = n.shape_of(x);
  const auto given = static_cast<int64_t>(n.extents(shape).size()), rank = static_cast<int64_t>(dims.size());
  const auto ones = [&](int64_t count) {
    const std::vector<double> values(static_cast<size_t>(count), 1);
    return n.constant(values, DType::kI64, {count});
  };
  Ints known = n.extents(shape);
  if (given < rank) shape = n.concat({ones(rank - given), shape}, 0);
  if (rank < given) own = rank == 0 ? ones(given) : n.concat({ones(given - rank), own}, 0);
  const auto result = broadcast(dims, known);
  const ValueIndex larger = n.binary("maximum", shape, own);
  if (result) n.file().extents[larger] = *result;
  n.out(0, n.expand_to(x, larger));
}
void tile(NodeWriter& n) {
  n.expect_attrs({});
  Declared t = n.in_type(0);
  const auto repeats = n.known_ints(1);
  for (size_t k = 0; k < t.dims.size(); ++k)
    t.dims[k] = repeats && t.dims[k] >= 0 && k < repeats->size() ? t.dims[k] * (*repeats)[k] : -1;
  n.out(0, n.op("tile", {n.in(0), shape_operand(n, 1)}, {}, t));
}

// ---- movement

void concat(NodeWriter& n) {
  n.expect_attrs({"axis"});
  std::vector<ValueIndex> parts;
  for (size_t k = 0; k < n.node().inputs.size(); ++k) parts.push_back(n.in(k));
  n.out(0, n.concat(parts, n.attrs().get_int("axis", 0)));
}
void split(NodeWriter& n) {
  n.expect_attrs({"axis", "num_outputs"});
  const Declared x = n.in_type(0);
  const auto at = positive_axes({n.attrs().get_int("axis", 0)}, x.rank());
  if (!at) return n.fail("an axis out of range");
  const auto axis = static_cast<size_t>((*at)[0]);
  const auto count = static_cast<int64_t>(n.node().outputs.size());
  const int64_t extent = x.dims[axis];
  std::vector<Declared> parts(static_cast<size_t>(count), x);
  const ValueIndex where = n.number(static_cast<double>(axis), DType::kI32);
  Ints sizes;
  if (n.has(1)) sizes = n.want_ints(1, "sizes");
  if (!n.has(1) && extent >= 0 && extent % count != 0) {  // the last is smaller
    const int64_t each = (extent + count - 1) / count;
    for (int64_t k = 0; k < count; ++k) sizes.push_back(std::clamp<int64_t>(extent - k * each, 0, each));
  }
  std::vector<ValueIndex> results;
  if (sizes.empty()) {
    for (Declared& p : parts) p.dims[axis] = extent < 0 ? -1 : extent / count;
    results = n.emit("split_with_num", {n.in(0), where}, {{"num", count}}, {parts})[0];
  } else {
    if (sizes.size() != parts.size()) return n.fail(cat(sizes.size(), " sizes for ", count, " results"));
    for (size_t k = 0; k < parts.size(); ++k) parts[k].dims[axis] = sizes[k];
    results = n.emit("split", {n.in(0), n.ints(sizes), where}, {}, {parts})[0];
  }
  for (size_t k = 0; k < results.size(); ++k) n.out(k, results[k]);
}

// slice(x, starts, ends, axes?, steps?)
void slice(NodeWriter& n) {
  n.expect_attrs({});
  const ValueIndex x = n.in(0);
  Declared t = n.in_type(0);
  const auto starts = n.known_ints(1), ends = n.known_ints(2);
  Ints axes;
  if (n.has(3)) axes = n.want_ints(3, "axes");
  else {
    const Ints dims = n.in_type(1).dims;
    if (dims.size() != 1 || dims[0] < 0) return n.fail("starts of unknown number");
    axes.resize(static_cast<size_t>(dims[0]));
    std::iota(axes.begin(), axes.end(), int64_t{0});
  }
  const auto at = positive_axes(axes, t.rank());
  if (!at) return n.fail("axes out of range");
  Ints steps(at->size(), 1);
  if (n.has(4)) steps = n.want_ints(4, "steps");
  if (steps.size() != at->size() || (starts && starts->size() != at->size()) ||
      (ends && ends->size() != at->size()))
    return n.fail("starts, ends and axes of different number");
  const bool plain = std::all_of(steps.begin(), steps.end(), [](int64_t s) { return s == 1; });
  if (plain && at->size() == 1 && starts && ends)
    return n.out(0, n.slice(x, (*at)[0], (*starts)[0], (*ends)[0]));
  for (size_t k = 0; k < at->size(); ++k) {
    int64_t& extent = t.dims[static_cast<size_t>((*at)[k])];
    if (!starts || !ends || extent < 0) {
      extent = -1;
      continue;
    }
    const int64_t step = steps[k], low = step < 0 ? -1 : 0, high = step < 0 ? extent - 1 : extent;
    if (step == 0) return n.fail("a step of 0");
    const auto place = [&](int64_t v) { return std::clamp(v < 0 ? v + extent : v, low, high); };
    const int64_t span =
        step > 0 ? place((*ends)[k]) - place((*starts)[k]) : place((*starts)[k]) - place((*ends)[k]);
    const int64_t size = std::abs(step);
    extent = std::max<int64_t>((span + size - 1) / size, 0);
  }
  const auto bounds = [&](size_t i, const std::optional<Ints>& known) {
    if (!known) return n.in(i);
    Ints v = *known;  // as far as 32 bits say
    for (int64_t& e : v) e = std::clamp<int64_t>(e, INT32_MIN, INT32_MAX);
    return n.ints(v);
  };
  const ValueIndex first = bounds(1, starts), last = bounds(2, ends);
  const Ints flags(at->size(), starts && ends ? 1 : -1);
  if (plain) return n.out(0, n.op("slice", {x, first, last}, {{"axes", *at}, {"infer_flags", flags}}, t));
  n.out(0,
        n.op("strided_slice", {x, first, last, n.ints(steps)}, {{"axes", *at}, {"infer_flags", flags}}, t));
}

void trilu(NodeWriter& n) {
  n.expect_attrs({"upper"});
  const auto k = n.has(1) ? n.known_number(1) : std::optional<double>(0);
  if (!k) return n.fail("a diagonal that is computed");
  n.out(0, n.same(n.attrs().get_bool("upper", true) ? "triu" : "tril", n.in(0),
                  {{"diagonal", static_cast<int64_t>(*k)}}));
}

// pad(x, begins and ends, value?, axes?; mode)
void pad(NodeWriter& n) {
  n.expect_attrs({"mode"});
  const ValueIndex x = n.in(0);
  Declared t = n.in_type(0);
  const auto rank = static_cast<size_t>(t.rank());
  const Ints given = n.want_ints(1, "pads");
  Ints axes(rank);
  std::iota(axes.begin(), axes.end(), int64_t{0});
  if (n.has(3)) axes = n.want_ints(3, "axes");
  const auto at = positive_axes(axes, t.rank());
  if (!at || given.size() != 2 * at->size()) return n.fail("pads that do not fit the axes");
  Ints pads(2 * rank, 0);  // before and after of each axis
  for (size_t k = 0; k < at->size(); ++k) {
    const auto a = static_cast<size_t>((*at)[k]);
    pads[2 * a] = given[k], pads[2 * a + 1] = given[k + at->size()];
    if (t.dims[a] >= 0) t.dims[a] += pads[2 * a] + pads[2 * a + 1];
  }
  if (std::any_of(pads.begin(), pads.end(), [](int64_t p) { return p < 0; }))
    return n.fail("pads that take away");
  const std::string mode = n.attrs().get_string("mode", "constant");
  if (mode == "constant") {
    const auto value = n.has(2) ? n.known_number(2) : std::optional<double>(0);
    if (!value) return n.fail("a value that is computed");
    return n.out(0, n.op("pad", {x, n.number(*value, t.dtype)}, {{"paddings", pads}}, t));
  }
  // Of the last three of five axes, given from the last to the first; axes of extent 1 fill up, behind batch
  // and channels or, of a vector or matrix, before the last.
  const size_t front = rank < 3 ? rank - 1 : 2, missing = 5 - rank;
  for (size_t k = 0; k < 2 * front; ++k)
    if (pads[k] != 0) return n.fail(cat("mode '", mode, "' of batch or channels"));
  if (rank < 1 || rank > 5) return n.fail(cat("mode '", mode, "' of ", rank, " axes"));
  const char* theirs = mode == "reflect" ? "reflect" : mode == "edge" ? "replicate" : "circular";
  Ints ones(missing), window(6, 0);
  std::iota(ones.begin(), ones.end(), static_cast<int64_t>(front));
  for (size_t k = 0; k < 3 && front + k < rank; ++k) {
    window[2 * k] = pads[2 * (rank - 1 - k)];
    window[2 * k + 1] = pads[2 * (rank - 1 - k) + 1];
  }
  Declared wide = t;
  wide.dims.insert(wide.dims.begin() + static_cast<int64_t>(front), missing, 1);
  ValueIndex y = ones.empty() ? x : n.unsqueeze(x, ones);
  y = n.op("pad3d", {y, n.ints(window)}, {{"mode", std::string(theirs)}}, wide);
  n.out(0, ones.empty() ? y : n.squeeze(y, ones));
}
// Blocks of channels become blocks of pixels. CRD is Paddle's pixel_shuffle; DCR is a transposition.
void depth_to_space(NodeWriter& n) {
  n.expect_attrs({"blocksize", "mode"});
  const int64_t size = n.attrs().get_int("blocksize", 1);
  const Declared x = n.in_type(0);
  if (x.rank() != 4 || size < 1) return n.fail("an image of other than 4 axes");
  const auto times = [](int64_t d, int64_t f) { return d < 0 ? -1 : d * f; };
  const int64_t c = x.dims[1] < 0 ? -1 : x.dims[1] / (size * size);
  const Declared t{x.dtype, {x.dims[0], c, times(x.dims[2], size), times(x.dims[3], size)}};
  if (n.attrs().get_string("mode", "DCR") == "CRD")
    return n.out(0, n.op("pixel_shuffle", {n.in(0)}, {{"upscale_factor", size}}, t));
  if (c < 0 || x.dims[2] < 0 || x.dims[3] < 0) return n.fail("mode DCR of unknown extents");
  const ValueIndex blocks = n.reshape(n.in(0), {-1, size, size, c, x.dims[2], x.dims[3]});
  n.out(0, n.reshape(n.transpose(blocks, {0, 3, 4, 1, 5, 2}), {-1, c, t.dims[2], t.dims[3]}));
}

constexpr OpWriterEntry kShapeWriters[] = {
    {"concat", concat},
    {"constant_of_shape", constant_of_shape},
    {"depth_to_space", depth_to_space},
    {"expand", expand},
    {"flatten", flatten},
    {"pad", pad},
    {"range", range},
    {"reshape", reshape},
    {"shape_of", shape_of},
    {"size_of", size_of},
    {"slice", slice},
    {"split", split},
    {"squeeze", squeeze},
    {"tile", tile},
    {"transpose", transpose},
    {"trilu", trilu},
    {"unsqueeze", unsqueeze},
};

}  // namespace

std::span<const OpWriterEntry> shape_writers() { return kShapeWriters; }

}  // namespace oar::paddle
