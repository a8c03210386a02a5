#include "tests/models/tiny_adapter.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "engine/base/format.h"
#include "engine/loader/peft.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace oar_test {
namespace fs = std::filesystem;
namespace json = oar::json;
namespace {

// Linear layers that adapters are trained for, by the last part of their names. A latent's kv_b_proj is read
// head by head, and experts have matrices of their own: adapters of these are refused.
const std::set<std::string> kAdaptedModules = {
    "q_proj",    "k_proj",       "v_proj",       "o_proj",   "qkv_proj",           "gate_proj",
    "up_proj",   "down_proj",    "gate_up_proj", "in_proj",  "out_proj",           "w1",
    "w2",        "w3",           "q_a_proj",     "q_b_proj", "kv_a_proj_with_mqa", "in_proj_qkv",
    "in_proj_z", "in_proj_qkvz", "c_fc",         "c_proj"};

}  // namespace

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

std::string write_adapter_of(const TinyGolden& golden, uint64_t seed) {
  std::vector<TinyTensor> halves;
  std::set<std::string> modules;
  for (const TinyTensor& t : golden.tensors) {
    if (t.shape.size() != 2 || !t.name.ends_with(".weight") || t.name.find(".experts.") != t.name.npos)
      continue;
    const std::string module = t.name.substr(0, t.name.size() - 7);
    const std::string last = module.substr(module.rfind('.') + 1);
    if (!kAdaptedModules.contains(last)) continue;
    modules.insert(last);
    halves.push_back({"base_model.model." + module + ".lora_A.weight", {4, t.shape[1]}, 0});
    halves.push_back({"base_model.model." + module + ".lora_B.weight", {t.shape[0], 4}, 0});
  }
  REQUIRE(!halves.empty());
  const json::object config = {{"peft_type", "LORA"},
                               {"r", 4},
                               {"lora_alpha", 8},
                               {"target_modules", json::array(modules.begin(), modules.end())}};
  return write_adapter(oar::cat("of-type-", golden.name, "-", seed), config, halves, seed);
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
