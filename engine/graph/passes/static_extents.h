// What a graph that knows no types tells of ranks and extents all the same: targets of reshapes, orders of
// transposes, shapes of constants. For passes that match ops along the last axis.
#pragma once

#include <optional>
#include <vector>

#include "engine/graph/graph.h"

namespace oar::passes {

// A graph of one moment.
class StaticExtents {
 public:
  explicit StaticExtents(const Graph& g) : g_(g), producer_(g.producers()) {}
  std::optional<int> rank(ValueId v) const { return rank(v, kDepth); }
  // Of the last axis but `behind`.
  std::optional<int64_t> extent(ValueId v, int behind = 0) const { return extent(v, behind, kDepth); }
  // Whether `axis` is the last of v.
  bool is_last(int64_t axis, ValueId v) const;
  // Integers from operand k of a node, or its attribute; nothing where they are computed.
  std::optional<std::vector<int64_t>> ints(const Node& n, size_t k, const char* attr) const;
  // Of a split of `whole` elements; nothing where its sizes are computed.
  std::optional<std::vector<int64_t>> part_sizes(const Node& split, int64_t whole) const;
  // An entry of a list of extents: a number, or what is read from an axis of a value.
  struct Entry {
    ValueId of = kNoValue;
    int64_t axis = 0;  // from the first
    int64_t number = 0;
    bool operator==(const Entry&) const = default;
  };
  // The entries of integers that an exporter computes from shapes: read, cut, picked and joined. One at
  // least, and no more than a shape has axes, so that lists of lists end soon.
  std::optional<std::vector<Entry>> entries(ValueId v) const { return entries(v, kDepth); }
  // Those that a reshape asks for, numbers or computed.
  std::optional<std::vector<Entry>> wanted(const Node& reshape) const { return wanted(reshape, kDepth); }
  // The same as integers; kRead - k for an extent that is read from axis k of some value. Nothing where
  // their number is unknown.
  static constexpr int64_t kRead = -2;
  std::optional<std::vector<int64_t>> target(const Node& reshape) const { return target(reshape, kDepth); }
  const Node* maker(ValueId v) const {
    const int p =
        v == kNoValue || static_cast<size_t>(v) >= producer_.size() ? -1 : producer_[static_cast<size_t>(v)];
    const Node* n = p < 0 ? nullptr : &g_.nodes()[static_cast<size_t>(p)];
    return n != nullptr && !n->inputs.empty() ? n : nullptr;  // a file may leave operands out
  }

 private:
  static constexpr int kDepth = 12;
  std::optional<int> rank(ValueId v, int depth) const;
  std::optional<std::vector<Entry>> entries(ValueId v, int depth) const;
  std::optional<std::vector<Entry>> wanted(const Node& reshape, int depth) const;
  std::optional<std::vector<int64_t>> target(const Node& reshape, int depth) const;
  std::optional<int64_t> extent(ValueId v, int behind, int depth) const;
  const Graph& g_;
  std::vector<int> producer_;
};

}  // namespace oar::passes
