// The slice of one axis with known bounds: what model files write, the memory planner sees as a view, and
// passes look through. The op itself takes any number of axes and steps (engine/ops/shape_ops.cc).
#pragma once

#include <optional>

#include "engine/graph/graph.h"

namespace oar {

// Entries [begin, end) of an axis.
struct Cut {
  int64_t axis = 0, begin = 0, end = 0;
};

inline Attrs cut_attrs(int64_t axis, int64_t begin, int64_t end) {
  using Ints = std::vector<int64_t>;
  return {{"axes", Ints{axis}}, {"starts", Ints{begin}}, {"ends", Ints{end}}};
}

// Of a slice node in a graph that knows its types; its axis counted from the first. Nothing for other ops and
// for slices of several axes, with steps or with operands for bounds.
inline std::optional<Cut> cut_of(const Graph& graph, const Node& n) {
  if (!n.is("slice") || n.inputs.size() != 1 || n.attrs.has("steps")) return std::nullopt;
  const std::vector<int64_t> axes = n.attrs.get_ints("axes"), starts = n.attrs.get_ints("starts");
  if (axes.size() != 1 || starts.size() != 1) return std::nullopt;
  const DimVector& x = graph.value(n.inputs[0]).type.shape;
  Cut cut{axes[0] < 0 ? axes[0] + static_cast<int64_t>(x.size()) : axes[0], starts[0]};
  if (cut.begin < 0) cut.begin += x[static_cast<size_t>(cut.axis)].const_value();
  const DimVector& y = graph.value(n.outputs[0]).type.shape;
  cut.end = cut.begin + y[static_cast<size_t>(cut.axis)].const_value();
  return cut;
}

}  // namespace oar
