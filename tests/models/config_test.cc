// config.json of strangers: what is missing, out of range or contradictory is named.
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "engine/models/model.h"
#include "engine/runtime/serving_plan.h"
#include "tests/runtime/counting_allocator.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
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
      {"rms_norm_eps", 2.0, "at least 0 and less than 1"},
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

TEST_CASE("an unknown model type is told the nearest one and what that lacks") {
  using oar_test::Contains;
  auto config = base();
  config["model_type"] = "lama";
  CHECK_THAT(error_of(config), Contains("the nearest is llama, which knows all keys of its config"));
  // A kin of Qwen 3 MoE: no other knows more of its keys.
  config = {{"model_type", "qwen9_moe"},
            {"hidden_size", 64},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"vocab_size", 256},
            {"num_experts", 8},
            {"num_experts_per_tok", 2},
            {"mlp_only_layers", oar::json::array{}},
            {"moe_intermediate_size", 32},
            {"norm_topk_prob", true},
            {"hyena_order", 2},
            {"hyena_filter", 4}};
  CHECK_THAT(error_of(config), Contains("the nearest is qwen3_moe, which has nothing for ") &&
                                   Contains("'hyena_order'") && Contains("'hyena_filter'"));
}

TEST_CASE("keys that any architecture reads are refused by others, but spellings that files repeat") {
  // What each architecture has under one of these names: released files have others too, which classes pass
  // over. They are logged.
  const std::set<std::string> spellings = {"activation_function",
                                           "hidden_act",
                                           "hidden_activation",
                                           "layer_norm_eps",
                                           "layer_norm_epsilon",
                                           "mlp_hidden_act",
                                           "n_embd",
                                           "n_head",
                                           "n_inner",
                                           "n_layer",
                                           "n_positions",
                                           "norm_eps",
                                           "norm_epsilon",
                                           "rms_norm_eps"};
  std::map<std::string, oar::json::object> bases;
  std::set<std::string> keys;
  for (const std::string& name : oar::architecture_names()) {
    const std::string file = oar_test::source_path("tests/golden/config_keys/" + name + ".json");
    const auto g = oar::parse_json(oar_test::read_file(file), file, {.python_floats = true});
    REQUIRE_OK(g);
    const oar::json::object& o = g->as_object();
    for (const auto& key : o.at("base").as_object()) keys.emplace(key.key());
    for (const oar::json::value& c : o.at("cases").as_array()) {
      if (const auto* set = c.as_object().if_contains("set"))
        for (const auto& key : set->as_object()) keys.emplace(key.key());
    }
    bases[name] = o.at("base").as_object();
  }
  CHECK(keys.size() > 200);
  // Who refuses this value has read it as a number, a list or a known word, or knows that others do.
  std::set<std::string> matter, logged;
  std::map<std::string, std::string> by;
  for (const auto& [name, base] : bases) {
    for (const std::string& key : keys) {
      auto config = base;
      config[key] = "no such value";
      const auto read = oar::read_model_config(config);
      if (!read.ok()) matter.insert(key);
      else if (read->unknown_keys.find("'" + key + "'") != std::string::npos)
        logged.insert(key), by[key] = name;
    }
  }
  CHECK(matter.size() > 150);
  for (const std::string& key : matter) {
    INFO(key << " by " << by[key]);
    CHECK(logged.contains(key) == spellings.contains(key));
  }
}

TEST_CASE("a mixture of fewer experts than a token takes is refused by the names that its config has") {
  for (const auto& [name, experts, taken] :
       {std::tuple{"mixtral", "num_local_experts", "num_experts_per_tok"},
        {"qwen3-moe", "num_experts", "num_experts_per_tok"},
        {"ernie4_5-moe", "moe_num_experts", "moe_k"}}) {
    json::object config = json::parse(oar_test::load_tiny_golden(name).config).as_object();
    REQUIRE(config.contains(experts));
    REQUIRE(config.contains(taken));
    config[experts] = 1, config[taken] = 2;
    CHECK_THAT(error_of(config),
               Contains(oar::cat("'", taken, "' is 2, more than the 1 of '", experts, "'")));
  }
}

TEST_CASE("a mixture ends at the first tensor that is missing, whatever its config claims") {
  using namespace oar_test;
  const TinyGolden golden = load_tiny_golden("mixtral");
  const auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
  REQUIRE_OK(checkpoint);
  auto config = checkpoint->config;
  config["num_local_experts"] = config["num_hidden_layers"] = 4096;
  const auto read = oar::read_model_config(config);
  REQUIRE_OK(read);
  const int64_t before = allocations();
  const auto model = oar::build_model(*checkpoint, *read, {});
  CHECK_THAT(model.status().message(), Contains("model.layers.0.block_sparse_moe.experts.4.w1.weight"));
  CHECK(allocations() - before < 1000000);  // the names of all experts alone are 50 million
}

TEST_CASE("queries that sharpen by their position: a config alone asks for a table of 4 MiB at most") {
  using namespace oar_test;
  for (const char* name : {"ministral3", "llama4", "mistral4"}) {
    INFO(name);
    const TinyGolden golden = load_tiny_golden(name);
    const auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    auto config = checkpoint->config;
    config["max_position_embeddings"] = 1 << 30;
    const auto read = oar::read_model_config(config);
    REQUIRE_OK(read);
    const auto rows = [&](int64_t max_context) -> int64_t {
      const auto model = oar::build_model(*checkpoint, *read, {.max_context = max_context});
      REQUIRE_OK(model);
      for (size_t v = 0; v < model->graph.num_values(); ++v) {
        const oar::Value& value = model->graph.value(static_cast<oar::ValueId>(v));
        if (value.name == "position_scale") return value.constant.numel();
      }
      return 0;
    };
    CHECK(rows(0) == 1 << 20);
    CHECK(rows((1 << 20) + 64) == (1 << 20) + 64);
    const auto refused = oar::build_model(*checkpoint, *read, {.max_context = (int64_t{1} << 25) + 1});
    CHECK_THAT(refused.status().message(), Contains("'max_context' is 33554433"));
    // Serving says what it left.
    oar::LanguageModelOptions options;
    std::string logged;
    options.log.callback = [&](oar::LogLevel, std::string_view line) { logged += line; };
    const auto graph = oar::build_serving_graph(*checkpoint, *read, options);
    REQUIRE_OK(graph);
    CHECK(graph->max_context == 1 << 20);
    CHECK_THAT(logged, Contains("context of 1048576 tokens: the model has 1073741824"));
  }
}

TEST_CASE("heads and keys of several kinds of layers: wrong values are named") {
  using oar_test::Contains;
  struct Case {
    const char* key;
    oar::json::value value;
  };
  const std::vector<Case> cases = {
      {"global_head_dim", 0},
      {"num_global_key_value_heads", 3},
      {"num_kv_shared_layers", 6},
      {"num_kv_shared_layers", 5},
      {"vocab_size_per_layer_input", 255},
      {"enable_moe_block", true},
      {"use_bidirectional_attention", "all"},
      {"sliding_window", nullptr},
      {"per_layer_config", oar::json::array{}},
      {"per_layer_config", {{"6", {{"head_dim", 8}}}}},
      {"per_layer_config", {{"0", {{"head_dim", 8}}}}},
      {"per_layer_config", {{"5", {{"heads", 8}}}}},
      {"layer_types", oar::json::array(6, "sliding_attention")},
  };
  for (const Case& c : cases) {
    auto config = base();
    config["model_type"] = "gemma4_text";
    config["num_hidden_layers"] = 6;
    config["attention_k_eq_v"] = true;
    config["vocab_size_per_layer_input"] = 256;
    config["num_key_value_heads"] = 2;
    CHECK(error_of(config) == "");
    config[c.key] = c.value;
    INFO(c.key << " " << oar::json::serialize(c.value));
    CHECK_THAT(error_of(config), Contains(std::string("'") + c.key + "'"));
  }
}

TEST_CASE("rope scaling of an unknown kind is refused by name") {
  auto config = base();
  config["rope_scaling"] = oar::json::object{{"type", "spiral"}};
  const auto c = oar::read_model_config(config);
  REQUIRE_OK(c);
  const auto table = oar::rope_table(*c, c->rope, 0);
  REQUIRE(!table.ok());
  CHECK(table.status().message().find("spiral") != std::string::npos);
}

TEST_CASE("rope that depends on a length takes the longest context that is served") {
  auto config = base();
  const auto factors = [](double first) {
    oar::json::array list;
    for (int k = 0; k < 8; ++k) list.push_back(first + k);
    return list;
  };
  config["max_position_embeddings"] = 64;
  config["rope_scaling"] = {{"type", "longrope"},
                            {"original_max_position_embeddings", 16},
                            {"long_factor", factors(2)},
                            {"short_factor", factors(1)}};
  const auto c = oar::read_model_config(config);
  REQUIRE_OK(c);
  // Up to the original length the short list; the growth of queries and keys is the model's, not the
  // context's.
  for (const auto& [served, first] : {std::pair<int64_t, float>{16, 1.f}, {17, 0.5f}, {0, 0.5f}}) {
    const auto table = oar::rope_table(*c, c->rope, served);
    REQUIRE_OK(table);
    CHECK(table->inv_freq.size() == 8);
    CHECK(table->inv_freq[0] == first);
    CHECK(table->mscale == Approx(std::sqrt(1 + std::log(4.0) / std::log(16.0))));
  }
  config["rope_scaling"].as_object()["long_factor"].as_array().pop_back();
  const auto cut = oar::read_model_config(config);
  REQUIRE_OK(cut);
  CHECK_THAT(oar::rope_table(*cut, cut->rope, 0).status().message(), oar_test::Contains("long_factor"));

  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  const auto dynamic = oar::read_model_config(config);
  REQUIRE_OK(dynamic);
  const auto within = oar::rope_table(*dynamic, dynamic->rope, 64),
             beyond = oar::rope_table(*dynamic, dynamic->rope, 128);
  REQUIRE_OK(within);
  REQUIRE_OK(beyond);
  CHECK(within->inv_freq[1] == Approx(std::pow(1e4, -0.125)));
  CHECK(beyond->inv_freq[1] == Approx(std::pow(1e4 * std::pow(3.0, 16.0 / 14), -0.125)));
}

TEST_CASE("layers without rope, windows in a pattern, multipliers: wrong values are named") {
  using oar_test::Contains;
  struct Case {
    const char *type, *key;
    oar::json::value value;
  };
  const std::vector<Case> cases = {
      {"smollm3", "no_rope_layers", oar::json::array{1}},
      {"smollm3", "no_rope_layers", oar::json::array{1, 2}},
      {"smollm3", "no_rope_layers", "all"},
      {"smollm3", "no_rope_layer_interval", 0},
      {"granite", "residual_multiplier", 0},
      {"granite", "logits_scaling", -8},
      {"cohere2", "sliding_window_pattern", 0},
      {"cohere2", "logit_scale", "much"},
      {"gemma2", "query_pre_attn_scalar", -1},
      {"gemma2", "hidden_activation", "gelu"},
      {"gemma3_text", "rope_local_base_freq", 0},
      {"gemma3_text", "rope_parameters", {{"rope_type", "linear"}, {"factor", 2}}},
      {"gemma3_text", "use_bidirectional_attention", true},
      {"ministral3", "rope_parameters", nullptr},
      {"llama", "rope_parameters", {{"full_attention", {{"rope_theta", 5}}}}},
  };
  for (const Case& c : cases) {
    auto config = base();
    config["model_type"] = c.type;
    config["intermediate_size"] = 128;
    config["head_dim"] = 16;
    config["num_key_value_heads"] = 2;
    config[c.key] = c.value;
    INFO(c.type << " " << c.key);
    CHECK_THAT(error_of(config), Contains(std::string("'") + c.key + "'"));
  }
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

TEST_CASE("stacks of experts that contradict the config are refused by tensor") {
  using oar_test::Contains;
  size_t changed = 0;
  for (const char* name : {"gemma4-26b-a4b", "llama4", "gpt-oss", "granitemoehybrid", "qwen3_5-moe"}) {
    const auto golden = oar_test::load_tiny_golden(name);
    auto checkpoint = oar::load_checkpoint(oar_test::write_tiny_model(golden, oar_test::TinyDtype::f32));
    REQUIRE_OK(checkpoint);
    const auto config = oar::read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    for (const auto& [tensor, whole] : std::map(checkpoint->tensors)) {
      const bool stack = tensor.find(".experts.") != tensor.npos || tensor.find("put_linear") != tensor.npos;
      if (!stack || whole.shape().rank() != 3) continue;
      for (int axis = 0; axis < 3; ++axis) {
        for (const int64_t more : {-1, 1}) {
          std::vector<int64_t> dims;
          for (int k = 0; k < 3; ++k) dims.push_back(whole.shape()[k] + (k == axis ? more : 0));
          auto other = oar::Tensor::allocate(oar::Shape(dims), oar::Format::f32());
          REQUIRE_OK(other);
          checkpoint->tensors.insert_or_assign(tensor, *other);
          INFO(name << ": " << tensor << " is " << oar::Shape(dims).to_string());
          const auto model = oar::build_model(*checkpoint, *config, {});
          REQUIRE(!model.ok());
          CHECK_THAT(std::string(model.status().message()), Contains("'" + tensor + "'"));
          ++changed;
        }
      }
      checkpoint->tensors.insert_or_assign(tensor, whole);
    }
  }
  CHECK(changed > 5 * 2 * 6);
}

TEST_CASE("words of Python for numbers that JSON has not: tagged, within strings they stay") {
  constexpr std::string_view text = R"({"a": [0.0, Infinity, -Infinity], "b": "\"NaN", "c": NaN})";
  CHECK(!oar::parse_json(text, "config.json").ok());
  const auto parsed = oar::parse_json(text, "config.json", {.python_floats = true});
  REQUIRE_OK(parsed);
  CHECK(oar::special_float(parsed->at("a").at(1)) == std::numeric_limits<double>::infinity());
  CHECK(oar::special_float(parsed->at("a").at(2)) == -std::numeric_limits<double>::infinity());
  CHECK(!oar::special_float(parsed->at("a").at(0)));
  CHECK(parsed->at("b").as_string() == "\"NaN");
  CHECK(std::isnan(oar::special_float(parsed->at("c")).value()));
}

TEST_CASE("layers of Mamba-2: sizes and limits that contradict are refused by name") {
  const oar::json::object base = oar::json::parse(oar_test::load_tiny_golden("mamba2").config).as_object();
  REQUIRE_OK(oar::read_model_config(base));
  const std::pair<const char*, oar::json::value> wrong[] = {{"num_heads", 7},
                                                            {"n_groups", 3},
                                                            {"time_step_limit", oar::json::array{0.5, 0.25}},
                                                            {"time_step_limit", oar::json::array{0.5}},
                                                            {"time_step_limit", "wide"},
                                                            {"hidden_act", "gelu"}};
  for (const auto& [key, value] : wrong) {
    oar::json::object config = base;
    config[key] = value;
    INFO(key);
    CHECK_THAT(oar::read_model_config(config).status().message(), Contains(std::string("'") + key + "'"));
  }
}
