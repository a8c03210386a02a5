// A model repository of small ONNX models, written by the test itself:
//
//   scale/1, scale/3     y = x * version, f32 (batch, 3), batched
//   two                  sum = a + b, twice = a * 2: two inputs, two outputs, f32 (batch, 2), batched
//   table                rows of a (4, 2) table, i64 (batch): an index outside it is an error of the run
//   same_<datatype>      y = x for every datatype of the protocol, f32-like shapes (batch, n), no merging
//   fixed                y = -x, f32 (2, 3): no batch axis
//   broken               a file that is no model
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace oar_test {

// Writes the repository below temp_dir() and returns its path.
std::string write_repository();
// One file below a repository.
void write_below(const std::string& repository, const std::string& path, const std::string& bytes);
// "FP32" and so on with the ONNX element type.
const std::vector<std::pair<std::string, int>>& wire_types();

}  // namespace oar_test
