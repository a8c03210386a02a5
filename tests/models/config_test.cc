// config.json of strangers: what is missing, out of range or contradictory is named.
#include "engine/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace {

oar::json::object base() {
  return {{"model_type", "llama"},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"vocab_size", 256}};
}

std::string error_of(const oar::json::object& config) {
  const auto r = oar::read_model_config(config);
  return r.ok() ? "" : r.status().message();
}

}  // namespace

TEST_CASE("a config is read with the defaults of its architecture") {
  const auto c = oar::read_model_config(base());
  REQUIRE_OK(c);
  CHECK(c->kv_heads == 4);
  CHECK(c->head_dim == 16);
  CHECK(c->windows == std::vector<int64_t>{0, 0});
}

TEST_CASE("config errors name the key and the value") {
  using oar_test::Contains;
  struct Case {
    const char* key;
    oar::json::value value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"model_type", nullptr, "model_type"},
      {"model_type", "no_such_model", "no_such_model"},
      {"model_type", "qwen2moe", "qwen2moe"},
      {"hidden_size", nullptr, "hidden_size"},
      {"hidden_size", -1, "-1"},
      {"hidden_size", "64", "not an integer"},
      {"hidden_size", 1e300, "not an integer"},
      {"hidden_size", 62, "no multiple"},
      {"num_hidden_layers", 0, "num_hidden_layers"},
      {"num_attention_heads", int64_t{1} << 62, "num_attention_heads"},
      {"num_key_value_heads", 3, "no multiple"},
      {"vocab_size", 0, "vocab_size"},
      {"rms_norm_eps", 2.0, "epsilon"},
      {"rope_theta", -5.0, "rope_theta"},
      {"layer_types", oar::json::array{"full_attention"}, "layer_types"},
  };
  for (const Case& c : cases) {
    auto config = base();
    if (std::string(c.key) == "layer_types")
      config["sliding_window"] = 8, config["use_sliding_window"] = true;
    config[c.key] = c.value;
    INFO(c.key);
    CHECK_THAT(error_of(config), Contains(c.message));
  }
}

TEST_CASE("rope scaling of an unknown kind is refused by name") {
  auto config = base();
  config["rope_scaling"] = oar::json::object{{"type", "longrope"}};
  const auto c = oar::read_model_config(config);
  REQUIRE_OK(c);
  const auto table = oar::rope_table(*c);
  REQUIRE(!table.ok());
  CHECK(table.status().message().find("longrope") != std::string::npos);
}

TEST_CASE("a config that contradicts the tensors is refused by tensor and size") {
  using oar_test::Contains;
  const oar_test::TinyGolden golden = oar_test::load_tiny_golden("gpt2");
  auto checkpoint = oar::load_checkpoint(oar_test::write_tiny_model(golden, oar_test::TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  struct Case {
    const char* key;
    int64_t value;
    const char* message;
  };
  for (const Case& c :
       {Case{"vocab_size", 257, "transformer.wte.weight"}, Case{"n_positions", 65, "transformer.wpe.weight"},
        Case{"vocab_size", 255, "vocab_size"}, Case{"n_layer", 3, "transformer.h.2"},
        Case{"n_embd", 128, "slice"}, Case{"n_embd", 32, "64 and 32"}}) {
    auto changed = *checkpoint;
    changed.config[c.key] = c.value;
    INFO(c.key << " " << c.value);
    const auto config = oar::read_model_config(changed.config);
    REQUIRE_OK(config);
    const auto model = oar::build_model(changed, *config, {});
    REQUIRE(!model.ok());
    CHECK_THAT(model.status().message(), Contains(c.message));
  }
}
