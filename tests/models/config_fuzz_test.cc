// Each key of each architecture's config.json with values that it cannot have, or that contradict its
// tensors: an error that names a key or a tensor, or a model that can be built; never a crash, nor more
// memory than a tiny model's, whatever sizes a config claims.
#include <fstream>
#include <string>

#include "engine/base/json.h"
#include "engine/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace json = oar::json;

const json::array kWrong = {nullptr,
                            -1,
                            0,
                            1,
                            3,
                            1000003,
                            1 << 30,
                            -0.5,
                            3.5,
                            1e300,
                            "word",
                            "",
                            true,
                            false,
                            json::array{},
                            json::array{-1, "a", nullptr},
                            json::array{1 << 30},
                            json::object{},
                            json::object{{"rope_type", "yarn"}, {"factor", -1}}};

// Pages of this process in memory, in KiB: now ("VmRSS:"), or the most since the last reset_peak ("VmHWM:").
int64_t resident(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (status >> word)
    if (word == field) status >> kib;
  return kib;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

TEST_CASE("configs with impossible values: every key of every architecture", "[types]") {
  Sample models(7);
  size_t refused = 0, built = 0, turn = 0, next = 0;
  for (const std::string& name : tiny_golden_names()) {
    if (!models.take()) continue;
    const TinyGolden golden = load_tiny_golden(name);
    const auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    const json::object base = json::parse(golden.config).as_object();
    for (const auto& [key, own] : base) {
      for (const json::value& wrong : kWrong) {
        // A fifth of the values for each key, others for the next and in the next architecture.
        if (next++ % 5 != 0) continue;
        json::object config = base;
        config[key] = wrong;
        INFO(name << ": " << std::string(key) << " is " << json::serialize(wrong));
        const auto read = oar::read_model_config(config);
        if (!read.ok()) {
          ++refused;
          CHECK_THAT(std::string(read.status().message()), Contains("'"));
          continue;
        }
        if (turn++ % 2 != 0) continue;  // each graph takes a millisecond
        const auto model = oar::build_model(*checkpoint, *read, {});
        if (model.ok()) ++built;
        else CHECK_THAT(std::string(model.status().message()), Contains("'") || Contains("config.json"));
      }
      json::object without = base;
      without.erase(key);
      const auto read = oar::read_model_config(without);
      // Of two keys that contradict each other then, one is named.
      if (!read.ok()) CHECK_THAT(std::string(read.status().message()), Contains("'"));
    }
  }
  CHECK(refused > (kSlow ? 50 : 500));
  CHECK(built > (kSlow ? 5 : 50));
}

TEST_CASE("configs that claim more than the file has take no memory for it", "[types]") {
  Sample models(11);
  for (const std::string& name : tiny_golden_names()) {
    if (!models.take()) continue;
    const TinyGolden golden = load_tiny_golden(name);
    const auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
                            "num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size",
                            "num_attention_heads", "max_position_embeddings", "kv_lora_rank", "mamba_d_state",
                            "state_size", "ssm_state_size", "linear_value_head_dim", "conv_L_cache"}) {
      json::object config = json::parse(golden.config).as_object();
      if (!config.contains(key)) continue;
      for (const int64_t most : {int64_t{4096}, int64_t{1} << 14, int64_t{1} << 20}) {
        config[key] = most;
        INFO(name << ": " << key << " is " << most);
        reset_peak();
        const int64_t before = resident("VmRSS:");
        const auto read = oar::read_model_config(config);
        if (read.ok()) (void)oar::build_model(*checkpoint, *read, {});
        // A sanitizer keeps what is freed.
        if (!kSlow) CHECK(resident("VmHWM:") - before < 64 << 10);
      }
    }
  }
}
