#include "engine/ops/tensor/moved.h"

#include <algorithm>

#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"
#include "kernels/strided_copy.h"

namespace oar::tensor {
namespace {

// One axis of a box: its extent, and elements between neighbours in the operand and in the result.
struct BoxAxis {
  int64_t n, x, out;
};

// A box of an operand that becomes one of a result, both counted from an element of theirs.
struct Box {
  std::vector<BoxAxis> axes;
  int64_t x_first = 0, out_first = 0;
  uint8_t operand = 0, result = 0;
  bool zeros = false;  // instead of an operand
};

struct FillCopy {
  int64_t x_bytes, out_bytes;
  bool zeros;
  void operator()(StridedCopyArgs& a, const Operand* in, const Operand* out) const {
    a.out = out[0].as<std::byte>() + out_bytes;
    if (!zeros) a.x = in[0].as<const std::byte>() + x_bytes;
  }
};

// The calls that fill `results` from `boxes`, in order; none where there is nothing to move.
Lowered lower_boxes(LowerContext& ctx, const std::vector<Shape>& results, const std::vector<Box>& boxes) {
  const Kernel* const kernel = ctx.backend.find_kernel({KernelFamily::kStridedCopy});
  const Format format = ctx.operands[0].format;
  if (kernel == nullptr || !format.plain() || format.dtype() == DType::kString) return not_lowered();
  if (results.size() > LoweredCall::kBetween - LoweredCall::kResult) return not_lowered();
  const int64_t width = format.block_bytes();
  auto op = std::make_unique<LoweredCalls>();
  for (const Box& box : boxes) {
    StridedCopyArgs a;
    a.element = static_cast<int32_t>(width);
    int64_t elements = 1;
    for (const BoxAxis& axis : box.axes) {
      elements *= axis.n;
      if (axis.n == 1) continue;
      if (a.rank == StridedCopyArgs::kMostAxes) return not_lowered();
      a.dims[a.rank] = axis.n, a.x_steps[a.rank] = axis.x, a.out_steps[a.rank] = axis.out;
      ++a.rank;
    }
    if (elements == 0) continue;
    op->calls.push_back(part_call(*kernel, a, 0.4 * static_cast<double>(elements), {box.operand},
                                  {static_cast<uint8_t>(LoweredCall::kResult + box.result)},
                                  FillCopy{box.x_first * width, box.out_first * width, box.zeros}));
  }
  if (op->calls.empty()) return not_lowered();
  ctx.results->clear();
  for (const Shape& s : results) ctx.results->push_back({format, s, true});
  return std::unique_ptr<LoweredOp>(std::move(op));
}

// Every operand from `first` on is of the type of operand 0.
bool one_type(const LowerContext& ctx, size_t first) {
  return std::all_of(ctx.operands.begin() + static_cast<std::ptrdiff_t>(std::min(first, ctx.operands.size())),
                     ctx.operands.end(),
                     [&](const ValueInfo& v) { return v.given && v.format == ctx.operands[0].format; });
}

// Integers that are known before a run: of an operand that is a constant, or of the attribute where it is
// left out. Nullopt where they are computed.
std::optional<std::vector<int64_t>> known_ints(const LowerContext& ctx, size_t k, const char* name) {
  if (k >= ctx.node.inputs.size() || ctx.node.inputs[k] == kNoValue) return ctx.node.attrs.get_ints(name);
  const Value& v = ctx.graph.value(ctx.node.inputs[k]);
  if (v.kind != ValueKind::kConstant || !v.constant.has_bytes() || v.constant.shape().rank() > 1 ||
      !dtype_is_integer(v.constant.format().dtype()))
    return std::nullopt;
  std::vector<int64_t> out(static_cast<size_t>(v.constant.numel()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = element_as_int(v.constant, static_cast<int64_t>(i));
  return out;
}

bool on_host(const LowerContext& ctx) { return ctx.backend.memory() == MemoryKind::kHost; }

// Whether the operand is there at all; attributes and shapes beyond are what evaluate() checks and names.
bool movable(const LowerContext& ctx) {
  return ctx.in_run() && !ctx.operands.empty() && ctx.operands[0].given;
}

// A whole operand as a box of a result that is as wide along all axes but is laid out by `to`.
Box whole(const Shape& from, std::span<const int64_t> to) {
  Box box;
  const auto own = strides_of(from);
  for (int k = 0; k < from.rank(); ++k)
    box.axes.push_back({from[k], own[static_cast<size_t>(k)], to[static_cast<size_t>(k)]});
  return box;
}

// The operand repeated to a shape; axes align at the last.
Lowered expanded(LowerContext& ctx, const Shape& wanted) {
  const Shape& x = ctx.operands[0].shape;
  const auto b = Broadcast::make({&x, &wanted});
  if (!b.ok() || (b->shape() == x && on_host(ctx))) return not_lowered();
  const Shape& to = b->shape();
  const auto own = strides_of(x), strides = strides_of(to);
  Box box;
  for (int k = 0; k < to.rank(); ++k) {
    const int j = k - (to.rank() - x.rank());
    const bool repeats = j < 0 || x[j] == 1;
    box.axes.push_back({to[k], repeats ? 0 : own[static_cast<size_t>(j)], strides[static_cast<size_t>(k)]});
  }
  return lower_boxes(ctx, {to}, {box});
}

// (N, C b b, H, W) and (N, C, H b, W b) as one box of six axes, whichever is the operand.
Lowered shuffled(LowerContext& ctx, bool to_space) {
  if (!movable(ctx)) return not_lowered();
  const Shape& x = ctx.operands[0].shape;
  const int64_t b = ctx.node.attrs.get_int("blocksize");
  const std::string mode = ctx.node.attrs.get_string("mode", "DCR");
  if (x.rank() != 4 || b < 1 || b > 65536) return not_lowered();
  const int64_t N = x[0];
  if (to_space ? x[1] % (b * b) != 0 : x[2] % b != 0 || x[3] % b != 0) return not_lowered();
  const int64_t C = to_space ? x[1] / (b * b) : x[1], H = to_space ? x[2] : x[2] / b,
                W = to_space ? x[3] : x[3] / b;
  const auto result = checked_shape(to_space ? std::vector<int64_t>{N, C, H * b, W * b}
                                             : std::vector<int64_t>{N, C * b * b, H, W});
  if (!result.ok()) return not_lowered();
  const bool crd = mode == "CRD";
  // Of channel, row of a block, column of a block on the deep side.
  const int64_t deep_c = (crd ? b * b : 1) * H * W, deep_y = (crd ? b : b * C) * H * W,
                deep_x = (crd ? 1 : C) * H * W;
  const int64_t image = C * b * b * H * W, line = W * b;
  struct Both {
    int64_t n, deep, wide;
  };
  const Both axes[] = {{N, image, image}, {C, deep_c, H * b * line},
                       {H, W, b * line},  {b, deep_y, line},
                       {W, 1, b},         {b, deep_x, 1}};
  Box box;
  for (const Both& a : axes)
    box.axes.push_back(to_space ? BoxAxis{a.n, a.deep, a.wide} : BoxAxis{a.n, a.wide, a.deep});
  // The last axis of the result last.
  if (!to_space) std::swap(box.axes[4], box.axes[5]);
  return lower_boxes(ctx, {*result}, {box});
}

}  // namespace

Lowered lower_transpose(LowerContext& ctx) {
  if (!movable(ctx)) return not_lowered();
  const Shape& x = ctx.operands[0].shape;
  const int rank = x.rank();
  std::vector<int64_t> perm = ctx.node.attrs.get_ints("perm"), dims;
  const bool reversed = perm.empty();
  for (int k = rank - 1; reversed && k >= 0; --k) perm.push_back(k);
  if (perm.size() != static_cast<size_t>(rank)) return not_lowered();
  const auto own = strides_of(x);
  std::vector<BoxAxis> axes;
  uint32_t used = 0;
  bool in_order = true;
  int64_t last = -1;
  for (int64_t p : perm) {
    if (p < 0) p += rank;
    if (p < 0 || p >= rank || (used >> p & 1) != 0) return not_lowered();
    used |= 1u << p;
    const int64_t n = x[static_cast<int>(p)];
    dims.push_back(n);
    axes.push_back({n, own[static_cast<size_t>(p)], 0});
    if (n == 1) continue;
    in_order = in_order && p > last;
    last = p;
  }
  if (in_order && on_host(ctx)) return not_lowered();
  const Shape result{std::span<const int64_t>(dims)};
  const auto to = strides_of(result);
  for (size_t k = 0; k < axes.size(); ++k) axes[k].out = to[k];
  return lower_boxes(ctx, {result}, {{std::move(axes)}});
}

Lowered lower_slice(LowerContext& ctx) {
  if (!movable(ctx)) return not_lowered();
  const Shape& x = ctx.operands[0].shape;
  const auto starts = known_ints(ctx, 1, "starts"), ends = known_ints(ctx, 2, "ends"),
             axes = known_ints(ctx, 3, "axes"), steps = known_ints(ctx, 4, "steps");
  if (!starts || !ends || !axes || !steps) return not_lowered();
  const auto cut = slice_box(dims_of(x), *starts, *ends, *axes, *steps);
  if (!cut.ok()) return not_lowered();
  const auto result = checked_shape(cut->count);
  if (!result.ok()) return not_lowered();
  const bool forwards = std::all_of(cut->step.begin(), cut->step.end(), [](int64_t s) { return s > 0; });
  if (*result == x && forwards && on_host(ctx)) return not_lowered();
  const auto own = strides_of(x), to = strides_of(*result);
  Box box;
  for (size_t k = 0; k < cut->count.size(); ++k) {
    if (cut->count[k] > 1) box.axes.push_back({cut->count[k], own[k] * cut->step[k], to[k]});
    else if (cut->count[k] == 0) return not_lowered();
    box.x_first += cut->start[k] * own[k];
  }
  return lower_boxes(ctx, {*result}, {box});
}

Lowered lower_split(LowerContext& ctx) {
  if (!movable(ctx)) return not_lowered();
  const Shape& x = ctx.operands[0].shape;
  const auto axis = checked_axis(ctx.node.attrs.get_int("axis"), x.rank());
  auto sizes = known_ints(ctx, 1, "sizes");
  if (!axis.ok() || !sizes) return not_lowered();
  const auto parts = static_cast<int64_t>(ctx.node.outputs.size());
  const int64_t n = x[*axis], each = (n + parts - 1) / parts;
  const bool equal = sizes->empty();
  for (int64_t k = 0, left = n; equal && k < parts; ++k, left -= sizes->back())
    sizes->push_back(std::min(each, left));
  int64_t total = 0;
  for (const int64_t s : *sizes) {
    if (s < 0 || s > n) return not_lowered();
    total += s;
  }
  if (static_cast<int64_t>(sizes->size()) != parts || total != n) return not_lowered();
  std::vector<Shape> results;
  std::vector<Box> boxes;
  int64_t at = 0;
  for (const int64_t s : *sizes) {
    std::vector<int64_t> dims = dims_of(x);
    dims[static_cast<size_t>(*axis)] = s;
    results.emplace_back(std::span<const int64_t>(dims));
    const auto own = strides_of(x), to = strides_of(results.back());
    Box box;
    for (size_t k = 0; k < dims.size(); ++k) box.axes.push_back({dims[k], own[k], to[k]});
    box.x_first = at * own[static_cast<size_t>(*axis)];
    box.result = static_cast<uint8_t>(results.size() - 1);
    boxes.push_back(std::move(box));
    at += s;
  }
  return lower_boxes(ctx, results, boxes);
}

Lowered lower_concat(LowerContext& ctx) {
  if (!movable(ctx) || !one_type(ctx, 1) || ctx.operands.size() > LoweredCall::kResult) return not_lowered();
  const Shape& first = ctx.operands[0].shape;
  const auto axis = checked_axis(ctx.node.attrs.get_int("axis"), first.rank());
  if (!axis.ok()) return not_lowered();
  std::vector<int64_t> dims = dims_of(first);
  int64_t& total = dims[static_cast<size_t>(*axis)];
  total = 0;
  for (const ValueInfo& v : ctx.operands) {
    if (v.shape.rank() != first.rank()) return not_lowered();
    for (int k = 0; k < first.rank(); ++k)
      if (k != *axis && v.shape[k] != first[k]) return not_lowered();
    if (__builtin_add_overflow(total, v.shape[*axis], &total)) return not_lowered();
  }
  const auto result = checked_shape(dims);
  if (!result.ok()) return not_lowered();
  const auto to = strides_of(*result);
  std::vector<Box> boxes;
  int64_t at = 0;
  for (size_t k = 0; k < ctx.operands.size(); ++k) {
    Box box = whole(ctx.operands[k].shape, to);
    box.operand = static_cast<uint8_t>(k);
    box.out_first = at * to[static_cast<size_t>(*axis)];
    boxes.push_back(std::move(box));
    at += ctx.operands[k].shape[*axis];
  }
  return lower_boxes(ctx, {*result}, boxes);
}

// By a constant. The processor fills what lies around the operand; a device, for which a call costs more than
// bytes, all of the result before.
Lowered lower_pad(LowerContext& ctx) {
  if (!movable(ctx) || ctx.node.attrs.get_string("mode", "constant") != "constant") return not_lowered();
  const Shape& x = ctx.operands[0].shape;
  const auto pads = known_ints(ctx, 1, "pads");
  auto axes = known_ints(ctx, 3, "axes");
  const bool valued = ctx.operands.size() > 2 && ctx.operands[2].given;
  if (!pads || !axes ||
      (valued && (!(ctx.operands[2].format == ctx.operands[0].format) || ctx.operands[2].shape.numel() != 1)))
    return not_lowered();
  if (ctx.operands.size() < 4 || !ctx.operands[3].given) {
    axes->clear();
    for (int k = 0; k < x.rank(); ++k) axes->push_back(k);
  }
  if (pads->size() != 2 * axes->size()) return not_lowered();
  std::vector<int64_t> dims = dims_of(x), before(dims.size(), 0);
  for (size_t k = 0; k < axes->size(); ++k) {
    const auto axis = checked_axis((*axes)[k], x.rank());
    if (!axis.ok()) return not_lowered();
    const auto a = static_cast<size_t>(*axis);
    before[a] = (*pads)[k];
    if (__builtin_add_overflow(dims[a], (*pads)[k], &dims[a]) ||
        __builtin_add_overflow(dims[a], (*pads)[k + axes->size()], &dims[a]))
      return not_lowered();
  }
  const auto result = checked_shape(dims);
  if (!result.ok() || result->numel() == 0 || (*result == x && on_host(ctx))) return not_lowered();
  const auto own = strides_of(x), to = strides_of(*result);
  Box around, inside;
  around.operand = valued ? 2 : 0;
  around.zeros = !valued;
  for (size_t k = 0; k < dims.size(); ++k) around.axes.push_back({dims[k], 0, to[k]});
  std::vector<Box> boxes;
  if (!on_host(ctx)) boxes.push_back(around);
  for (size_t k = 0; k < dims.size(); ++k) {
    // Negative pads crop.
    const int64_t skip = std::max<int64_t>(0, -before[k]), at = std::clamp<int64_t>(before[k], 0, dims[k]),
                  n = std::max<int64_t>(0, std::min(x[static_cast<int>(k)] - skip, dims[k] - at));
    inside.axes.push_back({n, own[k], to[k]});
    inside.x_first += skip * own[k];
    inside.out_first += at * to[k];
    if (!on_host(ctx)) continue;
    // Along this axis, of what no axis before has filled.
    for (const auto& [first, count] : {std::pair(int64_t{0}, at), std::pair(at + n, dims[k] - at - n)}) {
      Box side = around;
      side.axes[k].n = count;
      side.out_first += first * to[k];
      if (count > 0) boxes.push_back(std::move(side));
    }
    around.axes[k].n = n;
    around.out_first += at * to[k];
  }
  boxes.push_back(std::move(inside));
  return lower_boxes(ctx, {*result}, boxes);
}

Lowered lower_expand(LowerContext& ctx) {
  if (!movable(ctx)) return not_lowered();
  if (ctx.given(2)) {
    const Shape& like = ctx.operands[2].shape;
    const auto b = Broadcast::make({&ctx.operands[0].shape, &like});
    return b.ok() && b->shape() == like && !ctx.given(1) ? expanded(ctx, like) : not_lowered();
  }
  const auto dims = known_ints(ctx, 1, "shape");
  if (!dims) return not_lowered();
  const auto wanted = checked_shape(*dims);
  if (!wanted.ok()) return not_lowered();
  return expanded(ctx, *wanted);
}

Lowered lower_tile(LowerContext& ctx) {
  auto repeats = movable(ctx) ? known_ints(ctx, 1, "repeats") : std::nullopt;
  if (!repeats) return not_lowered();
  std::vector<int64_t> own = dims_of(ctx.operands[0].shape), dims;
  while (own.size() < repeats->size()) own.insert(own.begin(), 1);
  while (repeats->size() < own.size()) repeats->insert(repeats->begin(), 1);
  for (size_t k = 0; k < own.size(); ++k) {
    int64_t d = -1;
    if ((*repeats)[k] < 0 || __builtin_mul_overflow(own[k], (*repeats)[k], &d)) return not_lowered();
    dims.push_back(d);
  }
  const auto result = checked_shape(dims), from = checked_shape(own);
  if (!result.ok() || !from.ok() || (*result == ctx.operands[0].shape && on_host(ctx))) return not_lowered();
  const auto x = strides_of(*from), to = strides_of(*result);
  Box box;
  for (size_t k = 0; k < own.size(); ++k) {
    box.axes.push_back({(*repeats)[k], 0, own[k] * to[k]});
    box.axes.push_back({own[k], x[k], to[k]});
  }
  return lower_boxes(ctx, {*result}, {box});
}

Lowered lower_depth_to_space(LowerContext& ctx) { return shuffled(ctx, true); }
Lowered lower_space_to_depth(LowerContext& ctx) { return shuffled(ctx, false); }

}  // namespace oar::tensor
