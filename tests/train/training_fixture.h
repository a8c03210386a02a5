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
  // Logits so many times as large as where a config multiplies them by 1. Behind a frozen head of random rows
  // a hidden state of the final norm's length cannot say more than about 9 nats for one token, which is a
  // loss of 0.05; with 4 it can say 36. A config that multiplies logits by less takes as much away.
  void speak_up(double factor) {
    const oar::Checkpoint c = oar::load_checkpoint(folder).value();
    const oar::ModelConfig config = oar::read_model_config(c.config).value();
    const auto louder = static_cast<float>(factor / config.logit_scale),
               offset = static_cast<float>(config.norm_offset);
    std::string name;
    for (const char* at : {"model.norm", "model.embedding_norm", "model.final_layernorm", "backbone.norm_f",
                           "transformer.ln_f"})
      if (c.tensors.contains(std::string(at) + ".weight")) name = std::string(at) + ".weight";
    REQUIRE(!name.empty());
    const oar::Tensor& norm = c.tensors.at(name);
    std::vector<float> values;
    const oar::Tensor plain = oar::to_f32(norm).value();
    for (const float w : plain.values<float>()) values.push_back(louder * (offset + w) - offset);
    options.model = folder + "/louder";
    std::filesystem::remove_all(options.model);
    REQUIRE(
        oar::train::write_model(options.model, c, {{name, norm.shape()}}, {f32(norm.shape(), values)}).ok());
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

// Samples beside each other as a step reads them; what is not learned has no targets, and padding fills up.
struct SampleRows {
  std::vector<int32_t> tokens, positions, segments, targets;
  int32_t first_position = 0, samples = 0;

  void add(const std::vector<int32_t>& ids, const std::vector<int32_t>& wanted) {
    for (size_t k = 0; k < ids.size(); ++k) {
      tokens.push_back(ids[k]), targets.push_back(wanted[k]), segments.push_back(samples);
      positions.push_back(first_position + static_cast<int32_t>(k));
    }
    ++samples;
  }
  void pad(size_t rows) {
    const size_t n = rows - tokens.size();
    add(std::vector<int32_t>(n, 0), std::vector<int32_t>(n, -1));
  }
};

// What a language model is to predict behind each token of a sample.
inline std::vector<int32_t> next_tokens(const std::vector<int32_t>& ids) {
  std::vector<int32_t> out(ids.begin() + 1, ids.end());
  out.push_back(-1);
  return out;
}

// The gradients of one micro-batch by parameter, and the loss behind them. `more`: the inputs behind the
// weight of the loss.
inline std::vector<oar::Tensor> micro_batch(const oar::train::ModelGraphs& graphs,
                                            const std::vector<oar::Tensor>& values, const SampleRows& rows,
                                            const std::vector<oar::Datum>& more = {}) {
  using oar::Datum;
  auto backend = cpu(1);
  const auto evaluator = oar::Evaluator::create(graphs.step, *backend);
  INFO((evaluator.ok() ? std::string() : evaluator.status().message()));
  REQUIRE(evaluator.ok());
  std::vector<oar::Tensor> states = values, out;
  for (const oar::train::Parameter& p : graphs.parameters)
    states.push_back(out.emplace_back(oar::Tensor::zeros(p.shape, oar::Format::f32()).value()));
  oar::EvalOptions e;
  e.backend = backend.get();
  e.states = states;
  std::vector<Datum> in{Datum(i32(rows.tokens)), Datum(i32(rows.positions)), Datum(i32(rows.segments)),
                        Datum(i32(rows.targets)), Datum(f32({}, {0.2f}))};
  in.insert(in.end(), more.begin(), more.end());
  const auto loss = (*evaluator)->run(in, e);
  INFO((loss.ok() ? std::string() : loss.status().message()));
  REQUIRE(loss.ok());
  out.push_back((*loss)[0].tensor);
  return out;
}

inline std::vector<oar::Tensor> first_values(const oar::train::ModelGraphs& graphs,
                                             const oar::Checkpoint& checkpoint) {
  std::vector<oar::Tensor> out;
  for (size_t k = 0; k < graphs.parameters.size(); ++k)
    out.push_back(oar::train::initial_value(graphs.parameters[k], k, checkpoint, 0).value());
  return out;
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
