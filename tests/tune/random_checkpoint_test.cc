// Checkpoints with random weights have the tensors that transformers' have, name by name and shape by shape.
#include <map>

#include "engine/tune/measure/random_checkpoint.h"
#include "tests/support/catch.h"
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

}  // namespace
}  // namespace oar
