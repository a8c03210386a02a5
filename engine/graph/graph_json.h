// A graph of an ordinary model as JSON, its tensors apart by name: what a cache of prepared models stores.
// Not an exchange format: another version of the program may mean another thing by the same words, so what
// reads it must know that the same program wrote it. Models travel as ONNX or Paddle files.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/base/json.h"
#include "engine/graph/graph.h"

namespace oar {

using NamedTensors = std::map<std::string, Tensor, std::less<>>;

// Constants that have bytes go to `tensors` under names that begin with `prefix`. UNIMPLEMENTED for constants
// of strings.
Result<json::object> graph_to_json(const Graph& graph, const std::string& prefix, NamedTensors& tensors);

// The same graph, values numbered anew. `input(graph, k)` adds the k-th input. DATA_LOSS for anything that
// graph_to_json() did not write.
Result<std::shared_ptr<Graph>> graph_from_json(const json::value& json, const NamedTensors& tensors,
                                               const std::function<ValueId(Graph&, size_t)>& input);

// Any bytes as JSON text, which is UTF-8: hex where they are not plain ASCII.
json::value json_bytes(std::string_view bytes);
Result<std::string> bytes_of_json(const json::value& v);

}  // namespace oar
