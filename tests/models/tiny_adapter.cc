#include "tests/models/tiny_adapter.h"

#include <filesystem>
#include <fstream>

#include "engine/base/format.h"
#include "engine/loader/peft.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"
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

oar::Checkpoint merged(oar::Checkpoint checkpoint, const std::string& folder) {
  const auto adapter = oar::load_peft_adapter(folder);
  REQUIRE(adapter.ok());
  for (const auto& [name, module] : adapter->modules) {
    oar::Tensor& w = checkpoint.tensors.at(name + ".weight");
    auto sum = oar::to_f32(w);
    REQUIRE(sum.ok());
    const auto values = sum->mutable_values<float>();
    const auto a = module.a.values<float>(), b = module.b.values<float>();
    const int64_t r = module.a.shape()[0], K = module.a.shape()[1], N = module.b.shape()[0];
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t k = 0; k < K; ++k) {
        double delta = 0;
        for (int64_t i = 0; i < r; ++i)
          delta += static_cast<double>(b[static_cast<size_t>(n * r + i)]) *
                   static_cast<double>(a[static_cast<size_t>(i * K + k)]);
        float& v = values[static_cast<size_t>(n * K + k)];
        v = static_cast<float>(static_cast<double>(v) + module.factor * delta);
      }
    }
    w = std::move(*sum);
  }
  return checkpoint;
}

}  // namespace oar_test
