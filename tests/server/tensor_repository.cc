#include "tests/server/tensor_repository.h"

#include <atomic>
#include <filesystem>
#include <fstream>

#include "engine/base/format.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/test_data.h"

namespace oar_test {
namespace fs = std::filesystem;
using oar::cat;

const std::vector<std::pair<std::string, int>>& wire_types() {
  static const std::vector<std::pair<std::string, int>> types = {
      {"FP32", 1},  {"UINT8", 2}, {"INT8", 3},  {"UINT16", 4}, {"INT16", 5},   {"INT32", 6},   {"INT64", 7},
      {"BYTES", 8}, {"BOOL", 9},  {"FP16", 10}, {"FP64", 11},  {"UINT32", 12}, {"UINT64", 13}, {"BF16", 16}};
  return types;
}

void write_below(const std::string& repository, const std::string& path, const std::string& bytes) {
  const fs::path file = fs::path(repository) / path;
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

std::string write_repository() {
  static std::atomic<int> number{0};
  const std::string folder = cat(temp_dir(), "/repository", number++);
  for (const int version : {1, 3}) {
    write_below(folder, cat("scale/", version, "/model.onnx"),
                model_bytes(graph_proto({node_proto("Mul", {"x", "v"}, {"y"})},
                                        {tensor_proto("v", {1}, {static_cast<float>(version)})},
                                        {value_proto("x", {-1, 3})}, {value_proto("y", {-1, 3})})));
  }
  write_below(folder, "scale/config.pbtxt",
              "name: \"scale\"  # both versions\nmax_batch_size: 8\nversion_policy: { all {} }\n"
              "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }\n"
              "instance_group [ { count: 2 kind: KIND_CPU } ]\n");
  write_below(folder, "two/1/model.onnx",
              model_bytes(graph_proto(
                  {node_proto("Add", {"a", "b"}, {"sum"}), node_proto("Add", {"a", "a"}, {"twice"})}, {},
                  {value_proto("a", {-1, 2}), value_proto("b", {-1, 2})},
                  {value_proto("sum", {-1, 2}), value_proto("twice", {-1, 2})})));
  write_below(folder, "table/1/model.onnx",
              model_bytes(graph_proto({node_proto("Gather", {"t", "i"}, {"y"})},
                                      {tensor_proto("t", {4, 2}, {0, 1, 10, 11, 20, 21, 30, 31})},
                                      {value_proto("i", {-1}, 7)}, {value_proto("y", {-1, 2})})));
  for (const auto& [name, type] : wire_types()) {
    write_below(
        folder, cat("same_", name, "/1/model.onnx"),
        model_bytes(graph_proto({node_proto("Identity", {"x"}, {"y"})}, {}, {value_proto("x", {-1, 3}, type)},
                                {value_proto("y", {-1, 3}, type)})));
  }
  write_below(folder, "fixed/1/model.onnx",
              model_bytes(graph_proto({node_proto("Neg", {"x"}, {"y"})}, {}, {value_proto("x", {2, 3})},
                                      {value_proto("y", {2, 3})})));
  write_below(folder, "broken/1/model.onnx", "not a model");
  return folder;
}

}  // namespace oar_test
