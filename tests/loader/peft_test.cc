// Adapters as PEFT saves them: what is read, and what is refused by name.
#include "engine/loader/peft.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace {
using namespace oar_test;
namespace fs = std::filesystem;

constexpr const char* kLayer = "base_model.model.model.layers.0.self_attn.q_proj";

// `more` is put before the other keys, so the first of two equal keys is not it.
oar::json::object peft_config(const std::string& more = "") {
  const std::string text =
      R"({"peft_type":"LORA","task_type":"CAUSAL_LM","r":2,"lora_alpha":4,"target_modules":["q_proj"],"bias":"none")" +
      (more.empty() ? std::string() : "," + more) + "}";
  auto value = oar::parse_json(text, "test");
  REQUIRE(value.ok());
  return value->as_object();
}

oar::Tensor floats_of(std::initializer_list<int64_t> shape, float value) {
  auto t = oar::Tensor::allocate(oar::Shape(std::vector<int64_t>(shape)), oar::Format::f32());
  REQUIRE(t.ok());
  for (float& v : t->mutable_values<float>()) v = value;
  return *t;
}

oar::TensorMap pair_of(const std::string& module, int64_t r = 2) {
  oar::TensorMap out;
  out[module + ".lora_A.weight"] = floats_of({r, 3}, 1);
  out[module + ".lora_B.weight"] = floats_of({5, r}, 2);
  return out;
}

std::string refusal(const oar::json::object& config, const oar::TensorMap& tensors) {
  const auto adapter = oar::parse_peft_adapter(config, tensors);
  REQUIRE_FALSE(adapter.ok());
  return std::string(adapter.status().message());
}

bool says(const std::string& text, std::string_view part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("peft: a pair, its rank and its factor") {
  const auto plain = oar::parse_peft_adapter(peft_config(), pair_of(kLayer));
  REQUIRE(plain.ok());
  REQUIRE(plain->modules.size() == 1);
  const auto& [name, module] = *plain->modules.begin();
  CHECK(name == "model.layers.0.self_attn.q_proj");
  CHECK(module.factor == 2);
  CHECK(plain->rank == 2);
  CHECK(module.a.shape() == oar::Shape{2, 3});
  CHECK(module.b.shape() == oar::Shape{5, 2});
  const auto root = oar::parse_peft_adapter(peft_config(R"("use_rslora":true)"), pair_of(kLayer));
  REQUIRE(root.ok());
  CHECK(root->modules.begin()->second.factor == 4 / std::sqrt(2.0));
}

TEST_CASE("peft: modules are called as the base's file calls them") {
  const auto named = [](const std::string& module, std::string_view base) {
    oar::TensorMap tensors = pair_of("base_model.model." + module);
    auto adapter = oar::parse_peft_adapter(peft_config(), tensors);
    REQUIRE(adapter.ok());
    const bool known = oar::call_as_base(*adapter, base).value();
    REQUIRE(adapter->modules.size() == 1);
    CHECK(adapter->modules.begin()->second.factor == 2);
    return std::pair(known, adapter->modules.begin()->first);
  };
  using Named = std::pair<bool, std::string>;
  const std::string ours = "model.layers.3.self_attn.q_proj";
  CHECK(named(ours, "backbone.layers.0.mixer.in_proj") == Named(true, "backbone.layers.3.self_attn.q_proj"));
  for (const char* root : {"backbone.", "model.language_model.", "language_model.model.", "model."})
    CHECK(named(std::string(root) + "layers.3.self_attn.q_proj", "model.layers.0.mlp.up_proj.weight") ==
          Named(true, ours));
  // Layers of other parts are not the model's.
  const std::string tower = "model.vision_tower.encoder.layers.3.self_attn.q_proj";
  CHECK(named(tower, "model.layers.0.mlp.up_proj.weight") == Named(true, tower));
  CHECK(named(ours, "model.embed_tokens.weight") == Named(false, ours));
  CHECK(named(ours, "lm_head.weight") == Named(false, ours));
}

TEST_CASE("peft: two modules that are one of the base's are refused by name") {
  constexpr const char* kModule = "layers.3.self_attn.q_proj";
  oar::TensorMap tensors = pair_of(oar::cat("base_model.model.model.", kModule));
  tensors.merge(pair_of(oar::cat("base_model.model.model.language_model.", kModule)));
  auto adapter = oar::parse_peft_adapter(peft_config(), tensors);
  REQUIRE(adapter.ok());
  const auto called = oar::call_as_base(*adapter, "backbone.layers.0.mixer.in_proj");
  REQUIRE_FALSE(called.ok());
  CHECK(called.status().code() == oar::StatusCode::kInvalidArgument);
  for (const char* part : {"model.", "model.language_model.", "backbone."})
    CHECK(says(std::string(called.status().message()), oar::cat("'", part, kModule, "'")));
  REQUIRE(adapter->modules.size() == 2);
  for (const auto& [name, module] : adapter->modules) CHECK(module.a.defined());
}

TEST_CASE("peft: ranks and alphas by pattern, the first that fits") {
  const struct {
    const char* pattern;
    bool fits;
  } cases[] = {{"q_proj", true},
               {"self_attn.q_proj", true},
               {"layers.0.self_attn.q_proj", true},
               {"^model.layers.0.self_attn.q_proj", true},
               {R"(model\\.layers\\.0\\.self_attn\\.q_proj$)", true},
               {"roj", false},
               {"_proj", false},
               {"^q_proj", false},
               {"k_proj", false}};
  for (const auto& c : cases) {
    INFO(c.pattern);
    const auto config = peft_config(
        oar::cat(R"("rank_pattern":{")", c.pattern, R"(":7},"alpha_pattern":{")", c.pattern, R"(":21})"));
    const auto adapter = oar::parse_peft_adapter(config, pair_of(kLayer, c.fits ? 7 : 2));
    REQUIRE(adapter.ok());
    CHECK(adapter->modules.begin()->second.factor == (c.fits ? 3 : 2));
  }
  CHECK(
      says(refusal(peft_config(R"("rank_pattern":{".*q_proj":2})"), pair_of(kLayer)), "pattern '.*q_proj'"));
  CHECK(
      says(refusal(peft_config(R"("rank_pattern":{"q_proj":0})"), pair_of(kLayer)), "'rank_pattern' is not"));
}

TEST_CASE("peft: what computes something else is refused by its key") {
  const char* set[] = {R"("use_dora":true)",
                       R"("use_qalora":true)",
                       R"("use_bdlora":{"a":1})",
                       R"("modules_to_save":["lm_head"])",
                       R"("trainable_token_indices":[1,2])",
                       R"("target_parameters":["mlp.experts.gate_up_proj"])",
                       R"("layer_replication":[[0,4]])",
                       R"("alora_invocation_tokens":[3])",
                       R"("lora_bias":true)",
                       R"("megatron_config":{"a":1})",
                       R"("arrow_config":{"a":1})",
                       R"("init_lora_weights":"pissa")",
                       R"("something_new":1)"};
  for (const std::string text : set) {
    const std::string key = text.substr(1, text.find('"', 1) - 1);
    CHECK(says(refusal(peft_config(text), pair_of(kLayer)), "'" + key + "'"));
  }
  // The same keys saying nothing, and those that change nothing.
  for (const std::string text :
       {R"("use_dora":false)", R"("modules_to_save":null)", R"("target_parameters":[])",
        R"("layer_replication":null)", R"("init_lora_weights":"gaussian")", R"("something_new":null)",
        R"("lora_dropout":0.1)", R"("fan_in_fan_out":true)"}) {
    INFO(text);
    CHECK(oar::parse_peft_adapter(peft_config(text), pair_of(kLayer)).ok());
  }
  auto config = peft_config();
  config["bias"] = "all";
  CHECK(says(refusal(config, pair_of(kLayer)), "'bias' is \"all\""));
  config = peft_config();
  config["peft_type"] = "IA3";
  CHECK(says(refusal(config, pair_of(kLayer)), "'peft_type' is \"IA3\""));
  config.erase("peft_type");
  CHECK(says(refusal(config, pair_of(kLayer)), "'peft_type' is missing"));
  config = peft_config();
  config["task_type"] = "SEQ_CLS";
  CHECK(says(refusal(config, pair_of(kLayer)), "'task_type' is \"SEQ_CLS\""));
  for (const oar::json::value& r : {oar::json::value(0), oar::json::value(-1), oar::json::value(1e9),
                                    oar::json::value("8"), oar::json::value(nullptr)}) {
    config = peft_config();
    config["r"] = r;
    CHECK(says(refusal(config, pair_of(kLayer)), "'r' is not a whole number"));
  }
  config = peft_config();
  config["lora_alpha"] = 1e300;
  CHECK(says(refusal(config, pair_of(kLayer)), "'lora_alpha' is not"));
}

TEST_CASE("peft: tensors that are no adapter of a linear layer are refused by name") {
  const struct {
    const char* name;
    const char* why;
  } cases[] = {{"base_model.model.lm_head.lora_A.weight", "of embeddings and of the head"},
               {"base_model.model.model.embed_tokens.lora_embedding_A", "of embeddings"},
               {"base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight", "of experts"},
               {"base_model.model.model.layers.0.mlp.experts.lora_A.weight", "of experts"},
               {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", "DoRA"},
               {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", "biases"},
               {"base_model.model.lm_head.weight", "saved whole"},
               {"model.layers.0.self_attn.q_proj.lora_A.weight", "does not begin with"}};
  for (const auto& c : cases) {
    auto tensors = pair_of(kLayer);
    tensors[c.name] = floats_of({2, 3}, 1);
    const std::string message = refusal(peft_config(), tensors);
    CHECK(says(message, c.why));
    CHECK(says(message, c.name));
  }
}

TEST_CASE("peft: halves, shapes and numbers that cannot be") {
  CHECK(says(refusal(peft_config(), {}), "holds no adapter"));
  for (const char* half : {".lora_A.weight", ".lora_B.weight"}) {
    auto tensors = pair_of(kLayer);
    tensors.erase(std::string(kLayer) + half);
    CHECK(says(refusal(peft_config(), tensors), half[6] == 'A' ? "lacks its lora_A" : "lacks its lora_B"));
  }
  CHECK(says(refusal(peft_config(), pair_of(kLayer, 3)),
             "A has 3 rows and B 3 columns, but adapter_config.json says rank 2"));
  auto tensors = pair_of(kLayer);
  tensors[std::string(kLayer) + ".lora_A.weight"] = floats_of({6}, 1);
  CHECK(says(refusal(peft_config(), tensors), "expected a matrix"));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    tensors = pair_of(kLayer);
    tensors[std::string(kLayer) + ".lora_B.weight"].mutable_values<float>()[5] = bad;
    const auto adapter = oar::parse_peft_adapter(peft_config(), tensors);
    CHECK(adapter.status().code() == oar::StatusCode::kDataLoss);
    CHECK(says(std::string(adapter.status().message()), "at row 2"));
  }
}

TEST_CASE("peft: a folder") {
  const fs::path folder = fs::path(temp_dir()) / "peft";
  fs::remove_all(folder);
  CHECK(oar::load_peft_adapter(folder.string()).status().code() == oar::StatusCode::kNotFound);
  fs::create_directories(folder);
  write_file((folder / "adapter_config.json").string(), oar::json::serialize(peft_config()));
  CHECK(says(std::string(oar::load_peft_adapter(folder.string()).status().message()),
             "adapter_model.safetensors"));
  const std::string name = kLayer;
  const std::string header =
      oar::cat("{\"", name, ".lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},\"",
               name, ".lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]}}");
  write_file((folder / "adapter_model.safetensors").string(),
             safetensors_bytes(header, floats({1, 2, 3, 4})));
  const auto adapter = oar::load_peft_adapter(folder.string());
  REQUIRE(adapter.ok());
  CHECK(adapter->modules.begin()->second.b.values<float>()[1] == 4);
  write_file((folder / "adapter_config.json").string(), "[1]");
  CHECK(says(std::string(oar::load_peft_adapter(folder.string()).status().message()),
             "must hold a JSON object"));
  write_file((folder / "adapter_config.json").string(), "{");
  CHECK_FALSE(oar::load_peft_adapter(folder.string()).ok());
}

TEST_CASE("peft: a pair is added to a matrix as it lies") {
  const auto matrix = [](std::initializer_list<int64_t> shape, const std::vector<float>& values) {
    oar::Tensor t = floats_of(shape, 0);
    std::copy(values.begin(), values.end(), t.mutable_values<float>().begin());
    return t;
  };
  const oar::PeftModule pair{matrix({1, 2}, {1, 10}), matrix({2, 1}, {1, 3}), 2};
  const oar::Tensor w = matrix({2, 2}, {0, 0, 0, 1});
  for (const bool turned : {false, true}) {
    const auto sum = oar::add_adapter(w, "layer", pair, turned);
    REQUIRE(sum.ok());
    const auto v = sum->values<float>();
    CHECK(std::vector<float>(v.begin(), v.end()) ==
          (turned ? std::vector<float>{2, 6, 20, 61} : std::vector<float>{2, 20, 6, 61}));
    auto config = peft_config(R"("fan_in_fan_out":)" + std::string(turned ? "true" : "false"));
    CHECK(oar::parse_peft_adapter(config, pair_of(kLayer))->fan_in_fan_out == turned);
  }
  CHECK(w.values<float>()[0] == 0);
  CHECK(oar::add_adapter(floats_of({2, 3}, 0), "layer", pair, true).status().code() ==
        oar::StatusCode::kInvalidArgument);
}
