#include "engine/graph/builder.h"

#include "engine/base/format.h"

namespace oar {

std::vector<Val> Builder::ops(std::string_view name, std::span<const Val> inputs, Attrs attrs) {
  const OpDef* def = find_op(name);
  OAR_CHECK(def != nullptr, name);
  if (!status_.ok()) return {};
  std::vector<ValueId> ids;
  for (Val v : inputs) ids.push_back(v.id);
  auto out = graph_.add_node(def, std::move(ids), std::move(attrs));
  if (!out.ok()) {
    fail(out.status());
    return {};
  }
  std::vector<Val> vals;
  for (ValueId id : *out) vals.push_back({id});
  return vals;
}

Val Builder::op(std::string_view name, std::span<const Val> inputs, Attrs attrs) {
  const std::vector<Val> out = ops(name, inputs, std::move(attrs));
  return out.empty() ? Val{} : out[0];
}

Val Builder::op(std::string_view name, std::initializer_list<Val> inputs, Attrs attrs) {
  return op(name, std::span<const Val>(inputs.begin(), inputs.size()), std::move(attrs));
}

Val Builder::constant(std::string name, Tensor t) {
  return {graph_.add_constant(std::move(name), std::move(t))};
}

Val Builder::scalar(double v) {
  auto t = Tensor::allocate({}, Format::f32());
  if (!t.ok()) {
    fail(t.status());
    return {};
  }
  t->mutable_values<float>()[0] = static_cast<float>(v);
  return constant("", std::move(*t));
}

Dim Builder::dim(Val v, int axis) const {
  if (!status_.ok()) return Dim(0);
  const DimVector& s = shape(v);
  if (axis < 0) axis += static_cast<int>(s.size());
  OAR_CHECK(axis >= 0 && axis < static_cast<int>(s.size()), "axis out of range");
  return s[axis];
}

}  // namespace oar
