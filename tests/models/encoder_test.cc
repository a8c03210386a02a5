// Encoders: every family against transformers' hidden states and logits (tests/golden/encoders), padding and
// company that change nothing, and the text side: lengths, pairs, pooling, files that contradict themselves.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/models/encoder.h"
#include "engine/runtime/text_encoder.h"
#include "engine/tensor/element.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT
namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

LoadedEncoder load(const std::string& folder) {
  PredictorOptions options;
  options.threads = 2;
  auto loaded = load_text_encoder(folder, options);
  REQUIRE_OK(loaded);
  return std::move(*loaded);
}

EncoderTokens tokens_of(const json::value& c) {
  EncoderTokens out;
  for (const json::value& v : c.at("ids").as_array()) out.ids.push_back(static_cast<int32_t>(v.as_int64()));
  for (const json::value& v : c.at("types").as_array())
    out.types.push_back(static_cast<int32_t>(v.as_int64()));
  return out;
}

std::vector<Datum> run(const LoadedEncoder& e, const EncoderTokens& tokens) {
  auto inputs = e.encoder->inputs(tokens);
  REQUIRE_OK(inputs);
  auto out = e.runner->run(std::move(*inputs));
  REQUIRE_OK(out);
  return std::move(*out);
}

double largest_difference(const Tensor& got, const json::value& want) {
  const json::array& values = want.as_array();
  REQUIRE(static_cast<size_t>(got.numel()) >= values.size());
  double worst = 0;
  for (size_t k = 0; k < values.size(); ++k)
    worst = std::max(worst,
                     std::abs(static_cast<double>(got.values<float>()[k]) - values[k].to_number<double>()));
  return worst;
}

TEST_CASE("Encoders equal transformers' hidden states and logits") {
  for (const char* name :
       {"bert", "bert-tanh-gelu", "bert-classifier", "ernie", "roberta", "xlm-roberta-classifier",
        "distilbert", "electra", "electra-classifier", "modernbert", "modernbert-classifier", "nomic-bert",
        "nomic-bert-published", "nomic-bert-classifier", "gte", "gte-published", "gte-classifier"}) {
    INFO(name);
    const LoadedEncoder e = load(write_tiny_encoder(name));
    const json::object g = encoder_golden(name);
    const json::object& config = g.at("config").as_object();
    const json::value* const layers = config.if_contains("num_hidden_layers");
    const double bound = 1e-5 * std::max(1.0, layers != nullptr ? layers->to_number<double>() / 3 : 0);
    for (const json::value& c : g.at("cases").as_array()) {
      const auto out = run(e, tokens_of(c));
      // Values are of unit scale after the last norm (logits about that). A layer rounds at some dozen places
      // to 2^-24 relative and sums of 80 products grow that tenfold at most: 1e-5 holds with room over three
      // layers, and grows with their number.
      CHECK(largest_difference(out[static_cast<size_t>(e.encoder->info().hidden_output)].tensor,
                               c.at("hidden")) < bound);
      if (!c.as_object().contains("logits")) continue;
      CHECK(largest_difference(out[static_cast<size_t>(e.encoder->info().logits_output)].tensor,
                               c.at("logits")) < bound);
    }
  }
}

TEST_CASE("Encoders: nomic_bert's older spellings say what transformers' do") {
  json::object config = encoder_golden("nomic-bert-published").at("config").as_object();
  const auto both = read_encoder_config(config);
  REQUIRE_OK(both);
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                          "layer_norm_eps", "max_position_embeddings", "rope_parameters", "hidden_act"})
    REQUIRE(config.erase(key) == 1);
  config["rotary_emb_base"] = 500;
  const auto old = read_encoder_config(config);
  REQUIRE_OK(old);
  CHECK(old->width == both->width);
  CHECK(old->layers == both->layers);
  CHECK(old->heads == both->heads);
  CHECK(old->ffn == both->ffn);
  CHECK(old->norm_eps == both->norm_eps);
  CHECK(old->activation == both->activation);
  CHECK(old->max_context == 40);  // how far it was trained, not n_positions
  CHECK(both->rope.theta == 1000);
  CHECK(old->rope.theta == 500);
  CHECK(old->unknown_keys.empty());
}

TEST_CASE("Encoders: probabilities of labels follow from the logits") {
  const LoadedEncoder e = load(write_tiny_encoder("modernbert-classifier"));
  const json::object golden = encoder_golden("modernbert-classifier");
  for (const json::value& c : golden.at("cases").as_array()) {
    const auto p = e.encoder->probabilities(run(e, tokens_of(c)));
    REQUIRE_OK(p);
    REQUIRE(p->size() == 2);
    const double apart = c.at("logits").at(1).to_number<double>() - c.at("logits").at(0).to_number<double>();
    CHECK((*p)[1] == Approx(1 / (1 + std::exp(-apart))).margin(1e-5));
    CHECK((*p)[0] + (*p)[1] == Approx(1).margin(1e-6));
  }
  TextEncoder::Info info = e.encoder->info();
  info.labels_apart = true;
  info.label_names = {"", "second"};
  const std::shared_ptr<const Tokenizer> words(e.encoder, &e.encoder->tokenizer());
  const TextEncoder apart(words, info);
  const json::value& c = golden.at("cases").at(0);
  const auto p = apart.probabilities(run(e, tokens_of(c)));
  REQUIRE_OK(p);
  for (size_t k = 0; k < 2; ++k)
    CHECK((*p)[k] == Approx(1 / (1 + std::exp(-c.at("logits").at(k).to_number<double>()))).margin(1e-5));
  CHECK(apart.label_name(0) == "LABEL_0");
  CHECK(apart.label_name(1) == "second");
  CHECK(apart.label_name(7) == "LABEL_7");
}

TEST_CASE("Encoders: bf16 weights are widened") {
  const LoadedEncoder e = load(write_tiny_encoder("bert", TinyDtype::bf16));
  const json::value c = encoder_golden("bert").at("cases").at(1);
  // Weights rounded to 2^-9 of themselves: the answer moves by about that, and no more than some times.
  const double d = largest_difference(run(e, tokens_of(c))[0].tensor, c.at("hidden"));
  CHECK(d > 1e-5);
  CHECK(d < 0.1);
}

TEST_CASE("Encoders: lengths that rows share") {
  int64_t previous = 0;
  std::set<int64_t> lengths;
  for (int64_t n = 1; n <= 512; ++n) {
    const int64_t padded = shared_length(n, 512);
    CHECK(padded >= n);
    CHECK(padded <= std::max<int64_t>(n + 3, n + n / 8 + 1));
    CHECK(padded >= previous);
    previous = padded;
    lengths.insert(padded);
  }
  CHECK(lengths.size() < 60);
  CHECK(shared_length(509, 510) == 510);
}

TEST_CASE("Encoders: texts, pairs, truncation") {
  const LoadedEncoder e = load(write_tiny_encoder("bert"));
  const TextEncoder& t = *e.encoder;
  CHECK(t.info().max_tokens == 40);
  CHECK(t.info().dimensions == 32);
  CHECK(t.embeds());
  CHECK_FALSE(t.classifies());
  auto row = t.encode("w5 W6 nothing", 0);
  REQUIRE_OK(row);
  CHECK(row->ids == std::vector<int32_t>{2, 5, 6, 1, 3});
  std::string text;
  for (int k = 0; k < 50; ++k) text += "w9 ";
  CHECK_THAT(t.encode(text, 0).status().message(), Contains("52 tokens") && Contains("at most 40"));
  row = t.encode(text, INT64_MAX);
  REQUIRE_OK(row);
  CHECK(row->ids.size() == 40);
  CHECK(row->ids.back() == 3);
  row = t.encode(text, 6);
  REQUIRE_OK(row);
  CHECK(row->ids == std::vector<int32_t>{2, 9, 9, 9, 9, 3});
  CHECK_THAT(t.accept({96}, 0).status().message(), Contains("token 96"));
  CHECK_FALSE(t.accept({-1}, 0).ok());
  CHECK_FALSE(t.accept({}, 0).ok());
  auto pair = t.encode_pair("w5", text);
  REQUIRE_OK(pair);
  CHECK(pair->ids.size() == 40);
  CHECK(std::vector<int32_t>(pair->ids.begin(), pair->ids.begin() + 4) == std::vector<int32_t>{2, 5, 3, 9});
  CHECK(std::vector<int32_t>(pair->types.begin(), pair->types.begin() + 4) ==
        std::vector<int32_t>{0, 0, 0, 1});
  CHECK(pair->types.back() == 1);
  CHECK_THAT(t.encode_pair(text, "w5").status().message(), Contains("no room"));
  // Both are cut, the first text no further than a short second one wants.
  pair = t.encode_pair(text, "w5", true);
  REQUIRE_OK(pair);
  CHECK(pair->ids.size() == 40);
  CHECK(pair->left_out == 14);
  CHECK(std::vector<int32_t>(pair->ids.end() - 3, pair->ids.end()) == std::vector<int32_t>{3, 5, 3});
  pair = t.encode_pair(text, text, true);
  REQUIRE_OK(pair);
  CHECK(pair->ids.size() == 40);
  CHECK(pair->left_out == 63);
  CHECK(std::ranges::count(pair->types, 1) == 19);
  pair = t.encode_pair("w5 w6", text, true);
  REQUIRE_OK(pair);
  CHECK(pair->ids == t.encode_pair("w5 w6", text)->ids);
}

TEST_CASE("Encoders: pooling and normalization as the files say") {
  const std::string folder = write_tiny_encoder("bert");
  const EncoderTokens row = tokens_of(encoder_golden("bert").at("cases").at(1));
  const auto hidden = run(load(folder), row)[0].tensor;
  const auto value = [&](size_t token, size_t k) {
    return static_cast<double>(hidden.values<float>()[token * 32 + k]);
  };
  const auto with = [&](const std::string& pooling, bool normalize) {
    write(fs::path(folder) / "modules.json",
          cat(R"([{"type":"sentence_transformers.models.Transformer","path":""},)"
              R"({"type":"sentence_transformers.models.Pooling","path":"1_Pooling"})",
              normalize ? R"(,{"type":"sentence_transformers.models.Normalize","path":"2_Normalize"})" : "",
              "]"));
    write(fs::path(folder) / "1_Pooling/config.json",
          cat(R"({"word_embedding_dimension":32,)", pooling, "}"));
    const LoadedEncoder e = load(folder);
    auto v = e.encoder->vector(run(e, row), row.ids.size());
    REQUIRE_OK(v);
    CHECK(static_cast<int64_t>(v->size()) == e.encoder->info().dimensions);
    return *v;
  };
  CHECK(with(R"("pooling_mode_cls_token":true)", false)[3] == Approx(value(0, 3)).margin(1e-6));
  CHECK(with(R"("pooling_mode_lasttoken":true)", false)[3] == Approx(value(6, 3)).margin(1e-6));
  double mean = 0, weighted = 0, most = -INFINITY;
  for (size_t n = 0; n < 7; ++n) {
    mean += value(n, 3) / 7;
    weighted += value(n, 3) * static_cast<double>(n + 1) / 28;
    most = std::max(most, value(n, 3));
  }
  CHECK(with(R"("pooling_mode_mean_tokens":true)", false)[3] == Approx(mean).margin(1e-6));
  CHECK(with(R"("pooling_mode_mean_sqrt_len_tokens":true)", false)[3] ==
        Approx(mean * 7 / std::sqrt(7.0)).margin(1e-6));
  CHECK(with(R"("pooling_mode_weightedmean_tokens":true)", false)[3] == Approx(weighted).margin(1e-6));
  CHECK(with(R"("pooling_mode_max_tokens":true)", false)[3] == Approx(most).margin(1e-6));
  CHECK(with(R"("pooling_mode":"mean")", false)[3] == Approx(mean).margin(1e-6));
  const auto both = with(R"("pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true)", true);
  REQUIRE(both.size() == 64);
  double square = 0;
  for (const float v : both) square += static_cast<double>(v) * static_cast<double>(v);
  CHECK(square == Approx(1).margin(1e-6));
  CHECK(both[3] / both[35] == Approx(value(0, 3) / mean).epsilon(1e-4));
}

TEST_CASE("Encoders: files that cannot be served say why") {
  const std::string folder = write_tiny_encoder("bert");
  const auto error = [&] {
    const auto r = load_text_encoder(folder, {});
    return r.ok() ? std::string() : r.status().message();
  };
  CHECK(error().empty());
  write(fs::path(folder) / "modules.json",
        R"([{"type":"sentence_transformers.models.Dense","path":"2_Dense"}])");
  CHECK_THAT(error(), Contains("Dense"));
  write(fs::path(folder) / "modules.json", R"([{"type":"x.Pooling","path":"../../etc"}])");
  CHECK_THAT(error(), Contains("leaves the model's folder"));
  fs::remove(fs::path(folder) / "modules.json");
  const std::string config = read_file(folder + "/config.json");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    write(fs::path(folder) / "config.json", text.replace(at, from.size(), to));
    return error();
  };
  CHECK_THAT(changed("\"hidden_size\":32", "\"hidden_size\":64"), Contains("config.json needs"));
  CHECK_THAT(changed("\"hidden_size\":32", "\"hidden_size\":-1"), Contains("hidden_size"));
  CHECK_THAT(changed("\"num_attention_heads\":4", "\"num_attention_heads\":5"), Contains("no multiple"));
  CHECK_THAT(changed("\"num_hidden_layers\":2", "\"num_hidden_layers\":3"), Contains("encoder.layer.2"));
  CHECK_THAT(changed("\"hidden_act\":\"gelu\"", "\"hidden_act\":\"sinus\""), Contains("sinus"));
  CHECK_THAT(changed("\"model_type\":\"bert\"", "\"model_type\":\"bart\""), Contains("bart"));
}

}  // namespace
