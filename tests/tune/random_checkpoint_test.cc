// Checkpoints with random weights have the tensors that transformers' have, name by name and shape by shape.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "engine/loader/checkpoint.h"
#include "engine/tune/measure/random_checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace oar {
namespace {

TEST_CASE("random checkpoints have the tensors of transformers'") {
  for (const char* name :
       {"llama2",      "qwen3-moe",       "qwen3-next",    "qwen3_5",     "qwen3_5-moe", "granitemoehybrid",
        "deepseek-v2", "deepseek-v3",     "glm4-moe-lite", "mistral4",    "minicpm3",    "lfm2",
        "lfm2-long",   "lfm2-moe",        "mamba2",        "mamba2-long", "falcon_h1",   "falcon_h1-long",
        "nemotron_h",  "nemotron_h-long", "nemotron_h-moe"}) {
    INFO(name);
    const oar_test::TinyGolden golden = oar_test::load_tiny_golden(name);
    const auto made = checkpoint_tensors(json::parse(golden.config).as_object());
    REQUIRE_OK(made);
    std::map<std::string, std::vector<int64_t>> want, got;
    for (const auto& t : golden.tensors) want[t.name] = t.shape;
    for (const TensorSpec& t : *made) got[t.name] = t.shape;
    CHECK(got.size() == made->size());
    CHECK((got == want));
  }
}

TEST_CASE("random checkpoints of other types, or with biases none was released with, are refused by name") {
  json::object keys = json::parse(oar_test::load_tiny_golden("deepseek-v3").config).as_object();
  keys["attention_bias"] = true;
  for (const json::object& config :
       {keys, json::parse(oar_test::load_tiny_golden("gpt-oss").config).as_object()}) {
    const auto made = checkpoint_tensors(config);
    CHECK(made.status().code() == StatusCode::kInvalidArgument);
    CHECK_THAT(made.status().message(), oar_test::Contains(std::string(config.at("model_type").as_string())));
  }
}

TEST_CASE("models that are to be trained begin as such do: branches smaller by their number, biases 0") {
  const std::string folder = oar_test::temp_dir() + "/first-weights";
  std::filesystem::create_directories(folder);
  json::object config = json::parse(oar_test::load_tiny_golden("llama-bias").config).as_object();
  config["dtype"] = "float32";
  config.erase("torch_dtype");
  ThreadPoolOptions two;
  two.threads = 2;
  ThreadPool pool(two);
  RandomCheckpointOptions options;
  options.to_train = true;
  REQUIRE_OK(write_random_checkpoint(config, folder, pool, options));
  auto made = load_checkpoint(folder);
  REQUIRE_OK(made);
  const double branch = 0.02 / std::sqrt(2 * config.at("num_hidden_layers").to_number<double>());
  for (const auto& [name, t] : made->tensors) {
    INFO(name);
    REQUIRE(t.format() == Format::f32());
    double sum = 0, squares = 0;
    for (const float v : t.values<float>()) sum += v, squares += static_cast<double>(v) * v;
    const auto n = static_cast<double>(t.numel());
    const bool ends = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    if (t.shape().rank() == 1) {
      CHECK(sum == (name.ends_with("bias") ? 0 : n));
      CHECK(squares == sum);
    } else {
      // Five deviations of what so many draws give.
      const double want = ends ? branch : 0.02;
      CHECK(std::abs(std::sqrt(squares / n) / want - 1) < 5 / std::sqrt(2 * n));
      CHECK(std::abs(sum / n) < 5 * want / std::sqrt(n));
    }
  }
  config["dtype"] = "bfloat16";
  REQUIRE_OK(write_random_checkpoint(config, folder, pool, options));
  made = load_checkpoint(folder);
  REQUIRE_OK(made);
  CHECK(made->tensors.begin()->second.format() == Format::bf16());
  config["dtype"] = "float16";
  CHECK_THAT(write_random_checkpoint(config, folder, pool, options).message(),
             oar_test::Contains("bfloat16 or float32"));
}

}  // namespace
}  // namespace oar
