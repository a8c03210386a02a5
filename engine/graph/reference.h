// The oracle: runs a graph on the host in double precision (integers exactly), expanding every composite into
// its definition. It is how definitions are tested against kernels, how constants are folded, and how a
// primitive without a kernel still runs. Slow on purpose: correct by eye.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/graph/op.h"

namespace oar {

// A dense host value. Floats of any width are held in double; storing rounds to the value's dtype only where
// that is narrower than f32, so that an oracle for f32 is not itself limited to f32.
struct HostValue {
  Shape shape;
  DType dtype = DType::kF32;
  std::vector<double> f;   // float dtypes
  std::vector<int64_t> i;  // integer dtypes and bool

  bool is_float() const {
    return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 || dtype == DType::kBF16;
  }
  size_t size() const { return is_float() ? f.size() : i.size(); }
};

// Decodes any format; integers stay integers.
Result<HostValue> host_value(const Tensor& t);
// Rounds to the dtype.
Result<Tensor> to_tensor(const HostValue& v);

// Evaluates all graph outputs. `inputs` by name; symbol values are read off the inputs' shapes.
Result<std::map<std::string, HostValue>> evaluate_reference(const Graph& graph,
                                                            const std::map<std::string, HostValue>& inputs);

// Evaluates one node whose inputs are known (null for a missing optional one). Composites are expanded.
Result<std::vector<HostValue>> evaluate_node(const OpDef& op, std::span<const HostValue* const> inputs,
                                             const Attrs& attrs);

}  // namespace oar
