// Configurations of ensembles over the models of tensor_repository.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/format.h"

namespace oar_test {

using oar::cat;

inline std::string link(const char* map, const std::string& own, const std::string& tensor) {
  return cat(" ", map, " { key: \"", own, "\" value: \"", tensor, "\" }");
}
inline std::string step(const std::string& model, const std::vector<std::pair<std::string, std::string>>& in,
                        const std::vector<std::pair<std::string, std::string>>& out,
                        const std::string& more = {}) {
  std::string text = cat("step { model_name: \"", model, "\" ", more);
  for (const auto& [own, tensor] : in) text += link("input_map", own, tensor);
  for (const auto& [own, tensor] : out) text += link("output_map", own, tensor);
  return text + " }\n";
}
inline std::string tensor(const char* kind, const std::string& name, const std::string& type = "FP32",
                          const std::string& dims = "-1, 3") {
  return cat(kind, " { name: \"", name, "\" data_type: TYPE_", type, " dims: [ ", dims, " ] }\n");
}
// raw -> scale (x3) -> same -> out, and scale version 1 of the same -> other.
inline std::string chain(const std::string& more = "max_batch_size: 4\n", const std::string& dims = "3") {
  return cat("platform: \"ensemble\"\n", more, tensor("input", "raw", "FP32", dims),
             tensor("output", "out", "FP32", dims), tensor("output", "other", "FP32", dims),
             "ensemble_scheduling {\n", step("same_FP32", {{"x", "scaled"}}, {{"y", "out"}}),
             step("scale", {{"x", "raw"}}, {{"y", "scaled"}}),
             step("scale", {{"x", "raw"}}, {{"y", "other"}}, "model_version: 1"), "}\n");
}

}  // namespace oar_test
