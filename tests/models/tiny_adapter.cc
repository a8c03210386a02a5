#include "tests/models/tiny_adapter.h"

#include <filesystem>
#include <fstream>

#include "tests/loader/builders.h"
#include "tests/support/test_data.h"

namespace oar_test {
namespace fs = std::filesystem;
namespace json = oar::json;

std::string write_adapter(const std::string& name, const json::object& config,
                          std::span<const TinyTensor> tensors, uint64_t seed) {
  const fs::path folder = fs::path(temp_dir()) / name;
  fs::create_directories(folder);
  std::ofstream(folder / "adapter_config.json") << json::serialize(config);
  json::object header;
  std::string data;
  for (const TinyTensor& t : tensors) {
    const std::vector<float> values = tiny_weights(t.name, t.shape, seed);
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header[t.name] = {{"dtype", "F32"},
                      {"shape", json::array(t.shape.begin(), t.shape.end())},
                      {"data_offsets", {begin, data.size()}}};
  }
  write_file((folder / "adapter_model.safetensors").string(),
             safetensors_bytes(json::serialize(header), data));
  return folder.string();
}

}  // namespace oar_test
