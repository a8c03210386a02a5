// Outliers planted where trained models have them, and what rotation and page means are worth against them:
// the signal-to-noise ratio of the logits under a 4-bit cache. The models are random Qwen 2 of two layers, in
// memory; tests/golden/plant_outliers.py plants the same in a larger one, for the tables of
// docs/quantization.md.
#include <random>

#include "engine/runtime/model_tokenizer.h"
#include "engine/tune/measure/compare.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

constexpr int64_t kE = 256, kF = 512, kLayers = 2, kHeads = 4, kKv = 2, kD = 128;

struct Planted {
  bool channels = false;  // x20: two value channels, two rope pairs of the keys; undone by what reads them
  bool bias = false;      // +30 on four key channels that rope turns slowly
  bool token0 = false;    // a massive activation at BOS
  bool spikes = false;    // x1000: rows of the up projection, undone by the down projection
};

Tensor normal(std::mt19937& rng, int64_t rows, int64_t cols, float scale) {
  Tensor t = Tensor::allocate({rows, cols}, Format::f32()).value();
  std::normal_distribution<float> dist(0, scale);
  for (float& x : t.mutable_values<float>()) x = dist(rng);
  return t;
}

Tensor filled(int64_t n, float value) {
  Tensor t = Tensor::allocate({n}, Format::f32()).value();
  for (float& x : t.mutable_values<float>()) x = value;
  return t;
}

void scale_row(const Tensor& t, int64_t row, float by) {
  const auto w = t.mutable_values<float>().subspan(static_cast<size_t>(row * t.shape().cols()),
                                                   static_cast<size_t>(t.shape().cols()));
  for (float& x : w) x *= by;
}
void scale_column(const Tensor& t, int64_t column, float by) {
  const auto w = t.mutable_values<float>();
  for (auto i = static_cast<size_t>(column); i < w.size(); i += static_cast<size_t>(t.shape().cols()))
    w[i] *= by;
}

void plant(const TensorMap& t, const std::string& layer, const Planted& p) {
  const auto at = [&](const char* name) { return t.at(layer + name); };
  if (p.channels) {
    for (const int64_t c : {7, 45}) {
      for (const int64_t pair : {c, c + kD / 2}) {
        for (int64_t h = 0; h < kKv; ++h) scale_row(at("self_attn.k_proj.weight"), h * kD + pair, 20);
        for (int64_t h = 0; h < kHeads; ++h) scale_row(at("self_attn.q_proj.weight"), h * kD + pair, 0.05f);
      }
      for (int64_t h = 0; h < kKv; ++h) scale_row(at("self_attn.v_proj.weight"), h * kD + c, 20);
      for (int64_t h = 0; h < kHeads; ++h) scale_column(at("self_attn.o_proj.weight"), h * kD + c, 0.05f);
    }
  }
  if (p.bias) {
    for (const int64_t c : {48, 52, 56, 60}) {
      for (int64_t h = 0; h < kKv; ++h)
        at("self_attn.k_proj.bias").mutable_values<float>()[static_cast<size_t>(h * kD + c)] = 30;
    }
  }
  if (p.spikes) {
    for (const int64_t f : {3, 400}) {
      scale_row(at("mlp.up_proj.weight"), f, 1000);
      scale_column(at("mlp.down_proj.weight"), f, 0.001f);
    }
  }
}

Checkpoint random_model(const Planted& p, const Checkpoint& demo) {
  std::mt19937 rng(11);
  const int64_t V = demo.config.at("vocab_size").to_number<int64_t>();
  Checkpoint out = demo;
  out.config = {{"architectures", {"Qwen2ForCausalLM"}},
                {"model_type", "qwen2"},
                {"vocab_size", V},
                {"hidden_size", kE},
                {"intermediate_size", kF},
                {"num_hidden_layers", kLayers},
                {"num_attention_heads", kHeads},
                {"num_key_value_heads", kKv},
                {"head_dim", kD},
                {"max_position_embeddings", 2048},
                {"rope_theta", 10000.0},
                {"rms_norm_eps", 1e-5},
                {"hidden_act", "silu"},
                {"tie_word_embeddings", false},
                {"bos_token_id", 0},
                {"eos_token_id", 1}};
  TensorMap& t = out.tensors;
  t.clear();
  const float e = 1 / std::sqrt(static_cast<float>(kE)), f = 1 / std::sqrt(static_cast<float>(kF)),
              o = 1 / std::sqrt(static_cast<float>(kHeads * kD));
  t["model.embed_tokens.weight"] = normal(rng, V, kE, 1);
  t["model.norm.weight"] = filled(kE, 1);
  t["lm_head.weight"] = normal(rng, V, kE, 2 * e);
  for (int64_t n = 0; n < kLayers; ++n) {
    const std::string l = "model.layers." + std::to_string(n) + ".";
    t[l + "self_attn.q_proj.weight"] = normal(rng, kHeads * kD, kE, e);
    t[l + "self_attn.k_proj.weight"] = normal(rng, kKv * kD, kE, e);
    t[l + "self_attn.v_proj.weight"] = normal(rng, kKv * kD, kE, e);
    t[l + "self_attn.o_proj.weight"] = normal(rng, kE, kHeads * kD, o);
    t[l + "self_attn.q_proj.bias"] = filled(kHeads * kD, 0);
    t[l + "self_attn.k_proj.bias"] = filled(kKv * kD, 0);
    t[l + "self_attn.v_proj.bias"] = filled(kKv * kD, 0);
    t[l + "mlp.gate_proj.weight"] = normal(rng, kF, kE, e);
    t[l + "mlp.up_proj.weight"] = normal(rng, kF, kE, e);
    t[l + "mlp.down_proj.weight"] = normal(rng, kE, kF, f);
    t[l + "input_layernorm.weight"] = filled(kE, 1);
    t[l + "post_attention_layernorm.weight"] = filled(kE, 1);
    plant(t, l, p);
  }
  if (p.token0) {
    for (const size_t channel : {size_t{100}, size_t{200}})
      t["model.embed_tokens.weight"].mutable_values<float>()[channel] *= 100;
  }
  return out;
}

// SNR of the logits, in dB, by tier and rotation.
class Snr {
 public:
  explicit Snr(const Planted& planted)
      : demo_(load_checkpoint(oar_test::source_path("configs/demo")).value()),
        model_(random_model(planted, demo_)),
        tokenizer_(make_tokenizer(demo_.tokenizer, 2048).value()) {}
  // Rotated alone: without the scales that equalize_heads puts before it.
  double alone(const std::string& kv) const { return (*this)(kv, "auto", {"equalize_heads"}); }
  double operator()(const std::string& kv, const std::string& rotate,
                    const std::vector<std::string>& without = {}) const {
    CompareOptions options;
    options.model.disabled_passes = without;
    options.contexts = {256};
    const std::string text = oar_test::read_file(oar_test::source_path("configs/demo/heldout.txt"));
    const auto report = compare_models(model_, *tokenizer_, text.substr(0, 1200),
                                       {{"planted", &model_, "auto", kv, rotate}}, options);
    REQUIRE(report.ok());
    return report->rows[0].logit_snr_db;
  }

 private:
  Checkpoint demo_, model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace

TEST_CASE("outlier channels: a rotated 4-bit cache keeps 8 dB more") {
  for (const bool all : {false, true}) {
    if (oar_test::kSlow && !all) continue;
    const Snr snr({.channels = true, .bias = all, .token0 = all, .spikes = all});
    const double plain = snr("int4", "none"), rotated = snr.alone("int4"), balanced = snr("int4", "auto");
    CAPTURE(all, plain, rotated, balanced);
    CHECK(rotated >= plain + 8);
    CHECK(balanced >= rotated + 4);
  }
}

TEST_CASE("a bias of the keys: page means keep 8 dB more again") {
  const Snr snr({.bias = true});
  const double rotated = snr.alone("int4"), balanced = snr("int4", "auto"), mean = snr("int4-mean", "auto");
  CAPTURE(rotated, balanced, mean);
  CHECK(mean >= rotated + 8);
  CHECK(balanced >= rotated + 3);  // a scale does what it can without means
  CHECK(mean >= balanced + 2);
  if (oar_test::kSlow) return;
  // Where there is no bias they cost what keys lose by levels that lie evenly around zero: the farther end of
  // 64 Gaussian values asks for a step 0.9 dB larger than their range does. Values lose nothing.
  const Snr none({});
  CHECK(none("int4-mean", "auto") >= none("int4", "auto") - 0.7);
}

TEST_CASE("outlier channels: balanced before they are rotated, k4v3 beats a static scale per channel") {
  const Snr snr({.channels = true}), none({});
  const double ours = snr("k4v3", "auto"), paddle = snr("paddle-c4", "none");
  CAPTURE(ours, paddle);
  CHECK(ours > paddle);
  if (oar_test::kSlow) return;
  // The imbalance is all in the weights, so that it costs next to nothing.
  CHECK(ours > none("k4v3", "auto") - 0.5);
  CHECK(snr("int4", "auto") > none("int4", "auto") - 0.5);
}

TEST_CASE("8 bits survive everything that was planted") {
  const Snr snr({.channels = true, .bias = true, .token0 = true, .spikes = true});
  CHECK(snr("int8", "auto") > 40);
}
