// Builder: what a model file or a definition writes with. Emits nodes into a Graph and keeps the first error,
// so that equations read without checks; finish() returns it. After an error every call returns an empty Val.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "engine/graph/op.h"

namespace oar {

class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}

  Graph& graph() { return graph_; }
  const Status& status() const { return status_; }
  void fail(Status s) {
    if (status_.ok()) status_ = std::move(s);
  }

  // The single output of an op, or all of them.
  Val op(std::string_view name, std::initializer_list<Val> inputs, Attrs attrs = {});
  Val op(std::string_view name, std::span<const Val> inputs, Attrs attrs = {});
  std::vector<Val> ops(std::string_view name, std::span<const Val> inputs, Attrs attrs = {});

  Val constant(std::string name, Tensor t);
  Val scalar(double v);  // f32 of rank 0

  const TensorType& type(Val v) const { return graph_.value(v.id).type; }
  const DimVector& shape(Val v) const { return type(v).shape; }
  Dim dim(Val v, int axis) const;  // negative axes count from the end

 private:
  Graph& graph_;
  Status status_;
};

}  // namespace oar
