// Tiny models with a tokenizer whose tokens are numbers, and runs of graphs.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/graph/evaluate.h"
#include "engine/tensor/mapped_file.h"
#include "kernels/thread_pool.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"
#include "train/finetune.h"
#include "train/result.h"

namespace oar_test {

inline std::shared_ptr<oar::Backend> cpu(int threads, oar::Isa isa = oar::best_isa()) {
  oar::ThreadPoolOptions pool;
  pool.threads = threads;
  return oar::make_cpu_backend(std::make_shared<oar::ThreadPool>(pool), isa);
}

inline oar::Tensor f32(const oar::Shape& shape, const std::vector<float>& values) {
  oar::Tensor t = oar::Tensor::allocate(shape, oar::Format::f32()).value();
  REQUIRE(static_cast<size_t>(t.numel()) == values.size());
  if (!values.empty()) std::memcpy(t.mutable_data(), values.data(), t.bytes());
  return t;
}

inline oar::Tensor i32(const std::vector<int32_t>& values) {
  oar::Tensor t = oar::Tensor::allocate({static_cast<int64_t>(values.size())}, oar::Format::i32()).value();
  std::memcpy(t.mutable_data(), values.data(), t.bytes());
  return t;
}

// A tokenizer of the numbers below `vocab`, apart by white space.
inline void write_number_tokenizer(const std::string& folder, int64_t vocab) {
  std::string words;
  for (int64_t k = 0; k < vocab; ++k)
    words += (k ? "," : "") + ("\"" + std::to_string(k) + "\":" + std::to_string(k));
  std::ofstream(folder + "/tokenizer.json")
      << R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},)"
         R"("post_processor":null,"decoder":null,"model":{"type":"WordLevel","unk_token":"0","vocab":{)"
      << words << "}}}";
}

inline std::string text_of(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
  return out;
}

// A tiny golden model in a folder of its own, with samples as one file of texts.
struct TinyRun {
  std::string folder, data;
  TinyGolden golden;
  oar::train::TrainerOptions options;

  explicit TinyRun(std::string_view name, std::vector<std::vector<int32_t>> samples = {},
                   TinyDtype dtype = TinyDtype::f32)
      : golden(load_tiny_golden(name)) {
    folder = write_tiny_model(golden, dtype);
    write_number_tokenizer(folder, golden.vocab);
    if (samples.empty()) {
      for (int k = 0; k < 3; ++k) {
        samples.emplace_back();
        for (int j = 0; j < 5 + 3 * k; ++j)
          samples.back().push_back((37 * k * k + 11 * j * (k + 2) + 5) % 251);
      }
    }
    data = folder + "/data.jsonl";
    std::ofstream out(data);
    for (const auto& s : samples) out << "{\"text\":\"" << text_of(s) << "\"}\n";
    options.model = folder;
    options.data = {data};
    options.samples.length = 32;
    options.graph.tokens = 48;
    options.graph.lora.rank = 4;
    options.graph.lora.alpha = 8;
    options.graph.lora.targets = {"all"};
    options.schedule = {oar::train::Decay::kConstant, 0, 200, 0};
    options.threads = 1;
  }
  // Logits so many times as large. Behind a frozen head of random rows a hidden state of the final norm's
  // length cannot say more than about 9 nats for one token, which is a loss of 0.05; with 4 it can say 36.
  void speak_up(float factor) {
    const oar::Checkpoint c = oar::load_checkpoint(folder).value();
    const std::string name = "model.norm.weight";
    const oar::Tensor& norm = c.tensors.at(name);
    const float offset = c.config.at("model_type").as_string().starts_with("gemma") ? 1 : 0;
    std::vector<float> values;
    const oar::Tensor plain = oar::to_f32(norm).value();
    for (const float w : plain.values<float>()) values.push_back(factor * (offset + w) - offset);
    const std::string louder = folder + "/louder";
    std::filesystem::remove_all(louder);
    REQUIRE(oar::train::write_model(louder, c, {{name, norm.shape()}}, {f32(norm.shape(), values)}).ok());
    options.model = louder;
  }
  // Other values of config.json's keys.
  void configure(const oar::json::object& changes) const {
    const std::string path = folder + "/config.json";
    oar::json::value config = oar::parse_json(oar::read_small_file(path, 1 << 20).value(), path).value();
    for (const auto& [key, value] : changes) config.as_object()[key] = value;
    std::ofstream(path) << oar::json::serialize(config);
  }
  std::unique_ptr<oar::train::Trainer> trainer() const {
    auto t = oar::train::Trainer::create(options, {});
    INFO((t.ok() ? std::string() : t.status().message()));
    REQUIRE(t.ok());
    return std::move(*t);
  }
};

inline oar::train::StepReport step(oar::train::Learner& t) {
  auto r = t.step();
  INFO((r.ok() ? std::string() : r.status().message()));
  REQUIRE(r.ok());
  return *r;
}

// A path of a result that nothing is left of.
inline std::string fresh(const std::string& path) {
  std::filesystem::remove_all(path);
  std::filesystem::remove_all(path + ".training");
  return path;
}

inline bool same_bits(const oar::Tensor& a, const oar::Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

}  // namespace oar_test
