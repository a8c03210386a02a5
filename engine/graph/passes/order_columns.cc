// A layer whose columns lie head by head, each head in parts, as a gate beside its query or the keys, values
// and gates of a delta rule: where it is read part by part its rows take that order, part behind part. Then a
// part is columns side by side, which nobody copies. The rows are moved when the weight's layout is made.
//
//   slice(reshape(linear(x, w), (T, H, S)), parts of S)  ->  slice(linear(x, stored_matrix(w)), columns)
//   concat(slice(y, a, b), slice(y, b, c))               ->  slice(y, a, c)
#include <map>

#include "engine/graph/builder.h"
#include "engine/graph/cut.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {
namespace {

class OrderColumns {
 public:
  explicit OrderColumns(Graph& graph) : g_(graph), b_(graph), readers_(graph.num_values()) {
    for (size_t i = 0; i < g_.nodes().size(); ++i)
      for (const ValueId v : g_.nodes()[i].inputs)
        if (v != kNoValue) readers_[v].push_back(i);
    for (const auto& o : g_.outputs()) readers_[o.value].push_back(kOutside);
  }

  Result<int> run() {
    int ordered = 0;
    const size_t count = g_.nodes().size();
    for (size_t i = 0; i < count; ++i) {
      if (order(i)) ++ordered;
      OAR_RETURN_IF_ERROR(b_.status());
    }
    if (ordered == 0) return 0;
    g_.sort();
    join();
    OAR_RETURN_IF_ERROR(b_.status());
    g_.sort();
    return ordered;
  }

 private:
  static constexpr size_t kOutside = SIZE_MAX;

  // The nodes that read v; nothing where one is no `op`.
  std::optional<std::vector<size_t>> readers(ValueId v, std::string_view op) const {
    for (const size_t i : readers_[v])
      if (i == kOutside || !g_.nodes()[i].is(op)) return std::nullopt;
    return readers_[v];
  }

  bool order(size_t layer) {
    const Node linear = g_.nodes()[layer];  // a copy: nodes are appended
    if (!linear.is("linear") || linear.inputs.size() != 4 || linear.inputs[1] != kNoValue ||
        linear.inputs[3] != kNoValue || g_.value(linear.inputs[2]).kind != ValueKind::kConstant)
      return false;
    const ValueId y = linear.outputs[0];
    const auto reshapes = readers(y, "reshape");
    if (!reshapes || reshapes->empty()) return false;
    int64_t heads = 0, width = 0;
    std::map<int64_t, int64_t> parts;  // of a head: where each begins and ends
    std::vector<size_t> slices;
    for (const size_t r : *reshapes) {
      const DimVector& shape = g_.value(g_.nodes()[r].outputs[0]).type.shape;
      if (shape.size() != 3 || !(shape[0] == g_.value(y).type.shape[0]) || !shape[1].is_const()) return false;
      if (heads != 0 && shape[1].const_value() != heads) return false;
      heads = shape[1].const_value(), width = shape[2].const_value();
      const auto its = readers(g_.nodes()[r].outputs[0], "slice");
      if (!its) return false;
      for (const size_t s : *its) {
        const auto cut = cut_of(g_, g_.nodes()[s]);
        if (!cut || cut->axis != 2 || !parts.try_emplace(cut->begin, cut->end).second) return false;
        slices.push_back(s);
      }
    }
    if (heads < 2 || parts.size() < 2) return false;
    std::vector<int64_t> bounds;
    int64_t next = 0;
    for (const auto& [begin, end] : parts) {
      if (begin != next) return false;
      bounds.insert(bounds.end(), {begin, end});
      next = end;
    }
    if (next != width) return false;
    const Val w = b_.op("stored_matrix", {Val{linear.inputs[2]}},
                        {{"rows", heads * width}, {"step", width}, {"parts", bounds}});
    const Val made = b_.op("linear", {Val{linear.inputs[0]}, Val{}, w, Val{}}, linear.attrs);
    if (!made) return false;
    for (const size_t s : slices) {
      const Cut cut = *cut_of(g_, g_.nodes()[s]);
      const int64_t wide = cut.end - cut.begin;
      const Val part = b_.op("slice", {made}, cut_attrs(-1, heads * cut.begin, heads * cut.end));
      const Val whole = b_.op("reshape", {part}, {{"shape", std::vector<int64_t>{0, heads, wide}}});
      if (!whole) return false;
      for (const size_t reader : readers_[g_.nodes()[s].outputs[0]]) {
        // Whoever reads its rows has them without the heads.
        const bool rows = reader != kOutside && g_.nodes()[reader].is("reshape") &&
                          g_.value(g_.nodes()[reader].outputs[0]).type == b_.type(part);
        if (rows) g_.replace_uses(g_.nodes()[reader].outputs[0], part.id);
      }
      g_.replace_uses(g_.nodes()[s].outputs[0], whole.id);
    }
    return true;
  }

  // Neighbours that are joined are one.
  void join() {
    const std::vector<int> producer = g_.producers();
    const size_t count = g_.nodes().size();
    for (size_t i = 0; i < count; ++i) {
      const Node joined = g_.nodes()[i];  // a copy: nodes are appended
      if (!joined.is("concat") || joined.inputs.empty()) continue;
      const auto axes = static_cast<int64_t>(g_.value(joined.outputs[0]).type.shape.size());
      const int64_t axis = joined.attrs.get_int("axis");
      if (axis != -1 && axis != axes - 1) continue;
      ValueId of = kNoValue;
      std::optional<Cut> all;
      for (const ValueId v : joined.inputs) {
        const int p = v == kNoValue ? -1 : producer[v];
        const auto cut = p < 0 ? std::nullopt : cut_of(g_, g_.nodes()[static_cast<size_t>(p)]);
        const ValueId from = cut ? g_.nodes()[static_cast<size_t>(p)].inputs[0] : kNoValue;
        const bool follows = cut && cut->axis == axes - 1 && (!all || (from == of && cut->begin == all->end));
        if (!follows) {
          all.reset();
          break;
        }
        if (all) all->end = cut->end;
        else all = cut, of = from;
      }
      if (!all) continue;
      const Val one = b_.op("slice", {Val{of}}, cut_attrs(-1, all->begin, all->end));
      if (one) g_.replace_uses(joined.outputs[0], one.id);
    }
  }

  Graph& g_;
  Builder b_;
  std::vector<std::vector<size_t>> readers_;  // of each value: nodes, or kOutside
};

}  // namespace

Result<int> order_columns(Graph& graph) { return OrderColumns(graph).run(); }

}  // namespace oar::passes
