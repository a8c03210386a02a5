// Every key of every architecture's config.json, varied on its own: the model computes what transformers
// computes (tests/golden/config_keys), or is refused by the key's name.
#include <cmath>
#include <filesystem>
#include <set>

#include "engine/models/encoder.h"
#include "engine/runtime/text_encoder.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace json = oar::json;

std::vector<float> floats(const json::value& list) { return json::value_to<std::vector<float>>(list); }

// The values the generator took: evenly spaced, the first and the last among them.
std::vector<float> probes(const std::vector<float>& values, size_t count) {
  std::vector<float> out;
  for (size_t k = 0; k < count; ++k) {
    const double step = static_cast<double>(values.size() - 1) / static_cast<double>(count - 1);
    const double at = k + 1 == count ? static_cast<double>(values.size() - 1) : static_cast<double>(k) * step;
    out.push_back(values[static_cast<size_t>(at)]);
  }
  return out;
}

void set_tensors(TinyGolden& golden, const json::value& list) {
  for (const json::value& t : list.as_array()) {
    const std::string name(t.at(0).as_string());
    const auto shape = json::value_to<std::vector<int64_t>>(t.at(1));
    const auto same = [&](const TinyTensor& o) { return o.name == name; };
    const auto found = std::find_if(golden.tensors.begin(), golden.tensors.end(), same);
    if (found == golden.tensors.end()) golden.tensors.push_back({name, shape, 0});
    else found->shape = shape;
  }
}

std::vector<float> decoder_values(const TinyGolden& golden) {
  oar::LanguageModelOptions options;
  options.threads = 1;
  options.max_batch_tokens = 32;
  options.max_sequences = 32;  // bounds the rows of logits too
  options.page_tokens = 16;
  RunnerFixture model(write_tiny_model(golden, TinyDtype::f32), options, 4);
  return model.run_prompt(golden.tokens);
}

std::vector<float> encoder_values(const TinyGolden& golden) {
  const std::string folder = write_tiny_model(golden, TinyDtype::f32);
  write_tiny_vocabulary(folder);
  oar::PredictorOptions options;
  options.threads = 1;
  auto loaded = oar::load_text_encoder(folder, options);
  REQUIRE_OK(loaded);
  oar::EncoderTokens tokens;
  tokens.ids = golden.tokens;
  tokens.types.assign(tokens.ids.size(), 0);
  auto inputs = loaded->encoder->inputs(tokens);
  REQUIRE_OK(inputs);
  auto out = loaded->runner->run(std::move(*inputs));
  REQUIRE_OK(out);
  const oar::Tensor& hidden = (*out)[static_cast<size_t>(loaded->encoder->info().hidden_output)].tensor;
  const auto values = hidden.values<float>();
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("every key of a config does what it does in the reference, or is refused by name", "[keys]") {
  std::vector<std::string> names = oar::architecture_names();
  CHECK(names.size() >= 26);
  for (const std::string& n : oar::encoder_names()) names.push_back(n);
  Sample sample(13);  // every config is read; of those that are computed some in each architecture
  for (const std::string& name : names) {
    const std::string file = source_path("tests/golden/config_keys/" + name + ".json");
    // Some limits are infinite, by Python's word for it.
    const json::object g =
        oar::parse_json(read_file(file), file, {.python_floats = true}).value().as_object();
    const bool encoder = g.at("encoder").as_bool();
    TinyGolden base;
    base.name = "keys-" + name;
    base.weight_seed = g.at("weight_seed").to_number<uint64_t>();
    base.tokens = json::value_to<std::vector<int32_t>>(g.at("tokens"));
    set_tensors(base, g.at("tensors"));
    size_t compared = 0;
    for (const json::value& c : g.at("cases").as_array()) {
      const json::object& o = c.as_object();
      json::object config = g.at("base").as_object();
      std::string what;
      if (const json::value* set = o.if_contains("set")) {
        what = "set " + json::serialize(*set);
        for (const auto& [key, value] : set->as_object()) config[key] = value;
      } else {
        what = "remove " + json::serialize(o.at("remove"));
        for (const json::value& key : o.at("remove").as_array()) config.erase(key.as_string());
      }
      INFO(name << ": " << what);
      if (const json::value* key = o.if_contains("refused")) {
        const oar::Status status =
            encoder ? oar::read_encoder_config(config).status() : oar::read_model_config(config).status();
        CHECK_THAT(status.message(), Contains("'" + std::string(key->as_string()) + "'"));
        continue;
      }
      ++compared;
      if (!sample.take()) {
        REQUIRE_OK(encoder ? oar::read_encoder_config(config).status()
                           : oar::read_model_config(config).status());
        continue;
      }
      TinyGolden golden = base;
      golden.config = json::serialize(config);
      if (const json::value* changed = o.if_contains("tensors")) set_tensors(golden, *changed);
      if (const json::value* without = o.if_contains("without")) {
        for (const json::value& gone : without->as_array())
          std::erase_if(golden.tensors, [&](const TinyTensor& t) { return t.name == gone.as_string(); });
      }
      const std::vector<float> want = floats(o.contains("logits") ? o.at("logits") : g.at("logits"));
      const std::vector<float> values = encoder ? encoder_values(golden) : decoder_values(golden);
      const double error = relative_error(probes(values, want.size()), want);
      CAPTURE(error);
      CHECK(error < 1e-4);  // as golden_test.cc
    }
    CHECK(compared > 10);
  }
}

TEST_CASE("released configs have no key that is unknown") {
  for (const std::string& name : all_golden_names()) {
    const auto read = oar::read_model_config(json::parse(load_tiny_golden(name).config).as_object());
    REQUIRE_OK(read);
    INFO(name);
    CHECK(read->unknown_keys == "");
  }
}

TEST_CASE("shapes of released models are read without an unknown key, and say where they are from") {
  size_t shapes = 0;
  std::set<std::string> types;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("configs/shapes"))) {
    const std::string file = entry.path().string();
    const json::object config = oar::parse_json(read_file(file), file).value().as_object();
    const auto read = oar::read_model_config(config);
    INFO(file);
    REQUIRE_OK(read);
    CHECK(read->unknown_keys == "");
    CHECK(!config.at("_source").as_string().empty());
    CHECK(!config.at("_name_or_path").as_string().empty());
    types.insert(read->model_type);
    ++shapes;
  }
  CHECK(shapes >= types.size());
  CHECK(types.size() == oar::architecture_names().size());  // a released model of each
}

TEST_CASE("a key that nobody knows does not stop a model and is named for the log") {
  json::object config = json::parse(load_tiny_golden("llama3").config).as_object();
  auto read = oar::read_model_config(config);
  REQUIRE_OK(read);
  CHECK(read->unknown_keys.empty());
  config["training_recipe"] = "v2";
  read = oar::read_model_config(config);
  REQUIRE_OK(read);
  CHECK_THAT(read->unknown_keys, Contains("training_recipe"));
}

TEST_CASE("a key that changes another architecture's computation is refused unless it is neutral") {
  const json::object base = json::parse(load_tiny_golden("llama3").config).as_object();
  const auto refused = [&](const char* key, json::value value) {
    json::object config = base;
    config[key] = std::move(value);
    return oar::read_model_config(config).status().message();
  };
  for (const char* key : {"sliding_window", "attn_logit_softcapping", "num_local_experts", "logit_scale"}) {
    INFO(key);
    CHECK_THAT(refused(key, 3), Contains(key));
    CHECK(refused(key, nullptr).empty());
  }
  CHECK(refused("logit_scale", 1.0).empty());
  CHECK_THAT(refused("logit_scale", 0.5), Contains("0.5") || Contains("5E-1"));
  CHECK_THAT(refused("layer_types", json::array{"full_attention", "chunked_attention"}),
             Contains("chunked_attention"));
  CHECK_THAT(
      refused("rope_scaling", json::object{{"rope_type", "default"}, {"mrope_section", json::array{1}}}),
      Contains("mrope_section"));
  CHECK_THAT(refused("tie_word_embeddings", "yes"), Contains("tie_word_embeddings"));
}

TEST_CASE("biases that the config does not ask for are refused unless they are zero") {
  const TinyGolden golden = load_tiny_golden("llama3");
  auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  const auto config = oar::read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  auto bias = oar::Tensor::allocate({config->heads * config->head_dim}, oar::Format::f32());
  REQUIRE_OK(bias);
  const std::string name = "model.layers.0.self_attn.q_proj.bias";
  std::ranges::fill(bias->mutable_values<float>(), 0.0f);
  checkpoint->tensors[name] = *bias;
  CHECK(oar::build_model(*checkpoint, *config, {}).ok());
  bias->mutable_values<float>()[1] = 0.5f;
  checkpoint->tensors[name] = *bias;
  const auto refused = oar::build_model(*checkpoint, *config, {});
  REQUIRE(!refused.ok());
  CHECK_THAT(refused.status().message(), Contains(name) && Contains("attention_bias"));
}

TEST_CASE("a model without a head of its own must say that it is tied") {
  const TinyGolden golden = load_tiny_golden("llama3");
  auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  checkpoint->tensors.erase("lm_head.weight");
  const auto config = oar::read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  const auto refused = oar::build_model(*checkpoint, *config, {});
  REQUIRE(!refused.ok());
  CHECK_THAT(refused.status().message(), Contains("lm_head.weight"));
}

TEST_CASE("a model that scores texts, and an encoder, are no language models") {
  json::object config = json::parse(load_tiny_golden("llama3").config).as_object();
  const auto refused = [](const json::object& o) { return oar::read_model_config(o).status().message(); };
  config["architectures"] = {"LlamaForCausalLM"};
  CHECK(refused(config).empty());
  for (const char* name :
       {"LlamaForSequenceClassification", "Qwen3ForTokenClassification", "LlamaRewardModel"}) {
    config["architectures"] = {name};
    CHECK_THAT(refused(config), Contains("'architectures'") && Contains(name));
  }
  CHECK_THAT(refused({{"model_type", "bert"}}), Contains("'bert' is an encoder") && Contains("oar serve"));
}

TEST_CASE("tensors that nothing reads are told, and every golden's are read") {
  std::string told;
  oar::LanguageModelOptions options;
  options.log = {[&](oar::LogLevel level, std::string_view text) {
    if (level == oar::LogLevel::kWarning && text.starts_with("tensors that ")) told = text;
  }};
  for (const std::string& name : all_golden_names()) {
    INFO(name);
    told.clear();
    const auto checkpoint = oar::load_checkpoint(write_tiny_model(load_tiny_golden(name), TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    const auto config = oar::read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    REQUIRE_OK(oar::build_serving_graph(*checkpoint, *config, options));
    CHECK(told.empty());
    if (name != "llama3") continue;
    auto more = *checkpoint;
    for (const char* tensor :
         {"score.weight", "model.layers.0.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight",
          "model.layers.0.rotary_emb.inv_freq"})
      more.tensors[tensor] = *oar::Tensor::zeros({8}, oar::Format::f32());
    REQUIRE_OK(oar::build_serving_graph(more, *config, options));
    CHECK(
        told ==
        "tensors that llama does not read: 'model.layers.*.self_attn.q_norm.weight' (2), 'score.weight' (1)");
  }
}
