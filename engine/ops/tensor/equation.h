// The equation of an einsum, read for operands of given shapes.
// https://onnx.ai/onnx/operators/onnx__Einsum.html
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/tensor/shape.h"

namespace oar::tensor {

struct Equation {
  std::vector<std::string>
      terms;          // by operand, a letter an axis; axes of "..." are digits, counted from the right
  std::string right;  // of the result
  std::string order;  // those of the result, and then those that are summed over
  std::map<char, int64_t> extents;  // an axis of one repeats along a longer one
};

// INVALID_ARGUMENT where the equation does not match the operands.
Result<Equation> read_equation(const std::string& text, const std::vector<Shape>& operands);

}  // namespace oar::tensor
