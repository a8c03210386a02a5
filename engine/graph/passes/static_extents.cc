#include "engine/graph/passes/static_extents.h"

#include <algorithm>
#include <string_view>

#include "engine/graph/op.h"
#include "engine/tensor/element.h"

namespace oar::passes {
namespace {

bool one_of(const Node& n, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return n.is(name); });
}
// Results shaped like operand 0.
bool keeps_shape(const Node& n) {
  return one_of(n, {"neg", "cast", "identity", "rms_norm", "layer_norm", "rope", "sigmoid", "silu", "tanh",
                    "softmax", "sqrt", "square"});
}
bool broadcasts(const Node& n) { return one_of(n, {"add", "sub", "mul", "div"}) && n.inputs.size() == 2; }

}  // namespace

std::optional<std::vector<int64_t>> StaticExtents::ints(const Node& n, size_t k, const char* attr) const {
  if (k >= n.inputs.size() || n.inputs[k] == kNoValue)
    return n.attrs.has(attr) ? std::optional(n.attrs.get_ints(attr)) : std::nullopt;
  const Value& v = g_.value(n.inputs[k]);
  if (v.kind != ValueKind::kConstant || v.constant.shape().rank() > 1 || !v.constant.format().plain() ||
      !dtype_is_integer(v.constant.format().dtype()))
    return std::nullopt;
  std::vector<int64_t> out(static_cast<size_t>(v.constant.numel()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = element_as_int(v.constant, static_cast<int64_t>(i));
  return out;
}

std::optional<std::vector<int64_t>> StaticExtents::part_sizes(const Node& split, int64_t whole) const {
  if ((split.inputs.size() > 1 && split.inputs[1] != kNoValue) || split.attrs.has("sizes"))
    return ints(split, 1, "sizes");
  const auto parts = static_cast<int64_t>(split.outputs.size());
  if (whole % parts != 0) return std::nullopt;
  return std::vector<int64_t>(split.outputs.size(), whole / parts);
}

std::optional<std::vector<StaticExtents::Entry>> StaticExtents::wanted(const Node& reshape, int depth) const {
  const auto numbers = ints(reshape, 1, "shape");
  if (!numbers) return reshape.inputs.size() > 1 ? entries(reshape.inputs[1], depth - 1) : std::nullopt;
  std::vector<Entry> out;
  for (const int64_t n : *numbers) out.push_back({kNoValue, 0, n});
  return out;
}

std::optional<std::vector<int64_t>> StaticExtents::target(const Node& reshape, int depth) const {
  const auto list = wanted(reshape, depth);
  if (!list) return std::nullopt;
  std::vector<int64_t> out;
  for (const Entry& e : *list) out.push_back(e.of == kNoValue ? e.number : kRead - e.axis);
  return out;
}

std::optional<std::vector<StaticExtents::Entry>> StaticExtents::entries(ValueId v, int depth) const {
  if (v == kNoValue || depth == 0) return std::nullopt;
  std::vector<Entry> out;
  if (g_.value(v).kind == ValueKind::kConstant) {
    const Node constant{nullptr, {v}, {}, {}, {}, {}};
    const auto numbers = ints(constant, 0, "");
    if (!numbers || numbers->empty() || numbers->size() > Shape::kMaxRank) return std::nullopt;
    for (const int64_t n : *numbers) out.push_back({kNoValue, 0, n});
    return out;
  }
  const Node* n = maker(v);
  if (n == nullptr) return std::nullopt;
  if (n->is("shape_of")) {
    const ValueId x = n->inputs[0];
    const auto r = rank(x, depth - 1);
    int64_t from = n->attrs.get_int("start"),
            to = n->attrs.has("end") ? n->attrs.get_int("end") : r.value_or(-1);
    if (r) {
      from = std::clamp<int64_t>(from < 0 ? from + *r : from, 0, *r);
      to = std::clamp<int64_t>(to < 0 ? to + *r : to, 0, *r);
    }
    if (from < 0 || to < 0 || to > Shape::kMaxRank)
      return std::nullopt;  // from the end, of which nothing is known
    for (int64_t axis = from; axis < to; ++axis) out.push_back({x, axis, 0});
    return out.empty() ? std::nullopt : std::optional(out);
  }
  if (one_of(*n, {"cast", "identity", "unsqueeze", "squeeze"})) {
    const auto all = entries(n->inputs[0], depth - 1);
    return all && (all->size() == 1 || one_of(*n, {"cast", "identity"})) ? all : std::nullopt;
  }
  if (n->is("concat")) {
    for (const ValueId part : n->inputs) {
      const auto all = entries(part, depth - 1);
      if (!all || out.size() + all->size() > Shape::kMaxRank) return std::nullopt;
      out.insert(out.end(), all->begin(), all->end());
    }
    return out;
  }
  if (n->is("gather")) {
    const auto which = ints(*n, 1, "");
    if (!which || which->empty() || which->size() > Shape::kMaxRank || n->attrs.get_int("axis") != 0)
      return std::nullopt;
    const Node* whole = maker(n->inputs[0]);
    const bool plain = whole != nullptr && whole->is("shape_of") && whole->attrs.get_int("start") == 0;
    const auto all = entries(n->inputs[0], depth - 1);
    for (const int64_t k : *which) {
      const auto size = all ? static_cast<int64_t>(all->size()) : Shape::kMaxRank;
      if (!all && (!plain || k < 0)) return std::nullopt;
      if (k < -size || k >= size) return std::nullopt;
      out.push_back(all ? (*all)[static_cast<size_t>(k < 0 ? k + size : k)] : Entry{whole->inputs[0], k, 0});
    }
    return out;
  }
  if (n->is("slice")) {
    const auto all = entries(n->inputs[0], depth - 1);
    const auto starts = ints(*n, 1, "starts"), ends = ints(*n, 2, "ends"), steps = ints(*n, 4, "steps");
    if (!all || !starts || !ends || starts->size() != 1 || ends->size() != 1 ||
        (steps && *steps != std::vector<int64_t>{1}))
      return std::nullopt;
    const auto size = static_cast<int64_t>(all->size());
    const auto at = [&](int64_t k) {
      return std::clamp<int64_t>(k < -size ? 0 : k < 0 ? k + size : k, 0, size);
    };
    for (int64_t k = at((*starts)[0]); k < at((*ends)[0]); ++k) out.push_back((*all)[static_cast<size_t>(k)]);
    return out.empty() ? std::nullopt : std::optional(out);
  }
  return std::nullopt;
}

std::optional<int> StaticExtents::rank(ValueId v, int depth) const {
  if (v == kNoValue || depth == 0) return std::nullopt;
  const Value& value = g_.value(v);
  if (value.kind == ValueKind::kConstant) return value.constant.shape().rank();
  if (value.type.known) return static_cast<int>(value.type.shape.size());
  const Node* n = maker(v);
  if (n == nullptr) return std::nullopt;
  if (n->is("transpose") && n->attrs.has("perm")) return static_cast<int>(n->attrs.get_ints("perm").size());
  if (n->is("reshape")) {
    const auto to = target(*n, depth);
    return to ? std::optional(static_cast<int>(to->size())) : std::nullopt;
  }
  if (n->is("unsqueeze")) {
    const auto axes = ints(*n, 1, "axes");
    const auto inner = rank(n->inputs[0], depth - 1);
    return axes && inner ? std::optional(*inner + static_cast<int>(axes->size())) : std::nullopt;
  }
  if (n->is("squeeze")) {
    const auto axes = ints(*n, 1, "axes");
    const auto inner = rank(n->inputs[0], depth - 1);
    return axes && inner ? std::optional(*inner - static_cast<int>(axes->size())) : std::nullopt;
  }
  if (n->is("expand")) {
    if (n->inputs.size() > 2 && n->inputs[2] != kNoValue) return rank(n->inputs[2], depth - 1);
    const auto to = ints(*n, 1, "shape");
    const auto inner = rank(n->inputs[0], depth - 1);
    return to && inner ? std::optional(std::max(*inner, static_cast<int>(to->size()))) : std::nullopt;
  }
  if (broadcasts(*n)) {
    const auto a = rank(n->inputs[0], depth - 1), b = rank(n->inputs[1], depth - 1);
    return a && b ? std::optional(std::max(*a, *b)) : std::nullopt;
  }
  return keeps_shape(*n) || one_of(*n, {"slice", "split", "concat"}) ? rank(n->inputs[0], depth - 1)
                                                                     : std::nullopt;
}

bool StaticExtents::is_last(int64_t axis, ValueId v) const {
  if (axis == -1) return true;
  const auto r = rank(v);
  return r && axis == *r - 1;
}

std::optional<int64_t> StaticExtents::extent(ValueId v, int behind, int depth) const {
  if (v == kNoValue || depth == 0) return std::nullopt;
  const Value& value = g_.value(v);
  if (value.kind == ValueKind::kConstant) {
    const Shape& s = value.constant.shape();
    return behind < s.rank() ? std::optional(s[s.rank() - 1 - behind]) : std::nullopt;
  }
  if (value.type.known) {
    const DimVector& s = value.type.shape;
    const auto at = static_cast<size_t>(behind) + 1;
    return at <= s.size() && s[s.size() - at].is_const() ? std::optional(s[s.size() - at].const_value())
                                                         : std::nullopt;
  }
  const Node* n = maker(v);
  if (n == nullptr) return std::nullopt;
  if (n->is("transpose")) {
    const std::vector<int64_t> perm = n->attrs.get_ints("perm");
    const auto r = static_cast<int>(perm.size());
    if (behind >= r) return std::nullopt;
    return extent(n->inputs[0], r - 1 - static_cast<int>(perm[static_cast<size_t>(r - 1 - behind)]),
                  depth - 1);
  }
  if (n->is("reshape")) {
    const auto to = target(*n, depth);
    if (!to || behind >= static_cast<int>(to->size())) return std::nullopt;
    const int64_t wanted = (*to)[to->size() - 1 - static_cast<size_t>(behind)];
    return wanted > 0 ? std::optional(wanted) : std::nullopt;
  }
  if (broadcasts(*n)) {
    for (const ValueId side : n->inputs) {
      if (const auto e = extent(side, behind, depth - 1); e && *e > 1) return e;
    }
    return std::nullopt;
  }
  if (one_of(*n, {"rms_norm", "layer_norm"}) && behind == 0 && n->inputs.size() > 1) {
    if (const auto e = extent(n->inputs[1], 0, depth - 1); e && *e > 1) return e;
  }
  if (keeps_shape(*n)) return extent(n->inputs[0], behind, depth - 1);
  if (n->is("squeeze")) {
    // Axes in front of the one that is asked for do not move it from the end.
    const auto axes = ints(*n, 1, "axes");
    const auto inner = rank(n->inputs[0], depth - 1);
    if (!axes || !inner) return std::nullopt;
    const bool in_front = std::all_of(axes->begin(), axes->end(), [&](int64_t a) {
      return (a < 0 ? a + *inner : a) < *inner - 1 - behind;
    });
    return in_front ? extent(n->inputs[0], behind, depth - 1) : std::nullopt;
  }
  if (n->is("slice") || n->is("split")) {
    const auto whole = extent(n->inputs[0], behind, depth - 1);
    if (n->is("slice") && whole) {
      // Along other axes alone.
      const auto axes = ints(*n, 3, "axes");
      const auto r = rank(n->inputs[0], depth - 1);
      if (axes && r && std::all_of(axes->begin(), axes->end(), [&](int64_t a) {
            return (a < 0 ? a + *r : a) != *r - 1 - behind;
          }))
        return whole;
    }
    if (behind > 0 || !whole) return std::nullopt;
    if (n->is("split")) {
      const auto axis = n->attrs.get_int("axis");
      const auto sizes = part_sizes(*n, *whole);
      if (!is_last(axis, n->inputs[0])) return std::nullopt;
      const auto k =
          static_cast<size_t>(std::find(n->outputs.begin(), n->outputs.end(), v) - n->outputs.begin());
      return sizes && k < sizes->size() ? std::optional((*sizes)[k]) : std::nullopt;
    }
    const auto starts = ints(*n, 1, "starts"), ends = ints(*n, 2, "ends"), axes = ints(*n, 3, "axes"),
               steps = ints(*n, 4, "steps");
    if (!starts || !ends || starts->size() != 1 || ends->size() != 1 || !axes || axes->size() != 1 ||
        (steps && *steps != std::vector<int64_t>{1}) || !is_last((*axes)[0], n->inputs[0]))
      return std::nullopt;
    const auto inside = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + *whole : at, 0, *whole); };
    return std::max<int64_t>(0, inside((*ends)[0]) - inside((*starts)[0]));
  }
  return std::nullopt;
}

}  // namespace oar::passes
