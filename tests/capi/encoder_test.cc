// Encoders through the C interface: vectors whose right values can be written down (a graph that looks tokens
// up in a table), a tiny BERT alone and in company, a classifier's scores, and every wrong argument.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/capi/fixture.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {

using namespace oar_test;  // NOLINT
namespace fs = std::filesystem;

// Row t of the table is (t, t * t / 100, 1): the vector of token t.
constexpr int kWords = 96;
std::array<double, 3> token_vector(int t) { return {double(t), double(t) * t / 100, 1}; }

// An input or output of [batch, sequence] and, unless 0, `width`.
Proto text_proto(const std::string& name, int64_t batch, int type, int64_t width) {
  Proto shape;
  shape.message(1, batch < 0 ? Proto().text(2, "batch") : Proto().number(1, batch));
  shape.message(1, Proto().text(2, "sequence"));
  if (width > 0) shape.message(1, Proto().number(1, width));
  return Proto().text(1, name).message(2, Proto().message(1, Proto().number(1, type).message(2, shape)));
}

// last_hidden_state = table[input_ids], as a folder with a vocabulary. `batch` -1: any.
std::string write_lookup(const std::string& name, int64_t batch) {
  const fs::path folder = fs::path(temp_dir()) / name;
  fs::create_directories(folder);
  std::vector<float> table;
  for (int t = 0; t < kWords; ++t)
    for (const double v : token_vector(t)) table.push_back(static_cast<float>(v));
  const Proto graph =
      graph_proto({node_proto("Gather", {"table", "input_ids"}, {"last_hidden_state"})},
                  {tensor_proto("table", {kWords, 3}, table)}, {text_proto("input_ids", batch, 7, 0)},
                  {text_proto("last_hidden_state", batch, 1, 3)});
  std::ofstream(folder / "model.onnx", std::ios::binary) << model_bytes(graph);
  std::ofstream vocab(folder / "vocab.txt", std::ios::binary);
  vocab << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int k = 5; k < kWords; ++k) vocab << "w" << k << "\n";
  return folder.string();
}

oar_encoder open_encoder(const std::string& folder) {
  oar_encoder e = 0;
  INFO(folder);
  const oar_status status = oar_encoder_load(folder.c_str(), 2, &e);
  INFO(oar_last_error());
  REQUIRE(status == OAR_OK);
  return e;
}

oar_embed_options plain() {
  oar_embed_options o;
  REQUIRE(oar_embed_options_init(&o, sizeof o) == OAR_OK);
  return o;
}

struct Embedded {
  std::vector<std::vector<float>> vectors;
  std::vector<int64_t> tokens;
};
Embedded take(oar_outputs outputs) {
  oar_tensor values, lengths;
  REQUIRE(oar_outputs_get(outputs, 0, &values) == OAR_OK);
  REQUIRE(oar_outputs_get(outputs, 1, &lengths) == OAR_OK);
  oar_tensor none;
  CHECK(oar_outputs_get(outputs, 2, &none) == OAR_OUT_OF_RANGE);
  CHECK(values.dtype == OAR_F32);
  CHECK(lengths.dtype == OAR_I64);
  REQUIRE(lengths.rank == 1);
  REQUIRE(values.shape[0] == lengths.shape[0]);
  const size_t width = values.rank == 2 ? static_cast<size_t>(values.shape[1]) : 1;
  Embedded out;
  for (int64_t i = 0; i < values.shape[0]; ++i) {
    const auto* row = static_cast<const float*>(values.data) + static_cast<size_t>(i) * width;
    out.vectors.emplace_back(row, row + width);
    out.tokens.push_back(static_cast<const int64_t*>(lengths.data)[i]);
  }
  REQUIRE(oar_outputs_close(outputs) == OAR_OK);
  return out;
}
Embedded embed(oar_encoder e, const std::vector<std::string>& texts,
               const oar_embed_options* options = nullptr) {
  std::vector<const char*> pointers;
  for (const std::string& t : texts) pointers.push_back(t.c_str());
  oar_outputs outputs = 0;
  const oar_status status = oar_embed(e, pointers.data(), pointers.size(), options, &outputs);
  INFO(oar_last_error());
  REQUIRE(status == OAR_OK);
  return take(outputs);
}

std::string words(int first, int count) {
  std::string out;
  for (int k = 0; k < count; ++k) out += (k ? " w" : "w") + std::to_string(5 + (first + k * 3) % 91);
  return out;
}

TEST_CASE("encoder: vectors are pooled as asked") {
  for (const int64_t batch : {-1, 1}) {  // 1: the graph refuses company, and texts run alone
    INFO(batch);
    const oar_encoder e = open_encoder(write_lookup(batch < 0 ? "lookup" : "lookup_alone", batch));
    oar_encoder_info info;
    REQUIRE(oar_encoder_get_info(e, &info, sizeof info) == OAR_OK);
    CHECK(info.max_tokens == 512);
    CHECK(info.dimensions == 3);
    CHECK(info.vocab_size == kWords);
    CHECK(info.embeds == 1);
    CHECK(info.scores == 0);
    CHECK(info.normalizes == 1);
    const std::vector<std::string> texts = {"w10 w20 w30", "w7", "w40 w50 w6"};
    const std::vector<std::vector<int>> ids = {{2, 10, 20, 30, 3}, {2, 7, 3}, {2, 40, 50, 6, 3}};
    for (int pooling = OAR_POOLING_MODEL; pooling <= OAR_POOLING_WEIGHTED_MEAN; ++pooling) {
      for (const int normalize : {0, 1, -1}) {
        INFO(pooling << " " << normalize);
        oar_embed_options o = plain();
        o.pooling = pooling;
        o.normalize = normalize;
        const Embedded got = embed(e, texts, &o);
        REQUIRE(got.vectors.size() == 3);
        for (size_t i = 0; i < 3; ++i) {
          const size_t n = ids[i].size();
          CHECK(got.tokens[i] == static_cast<int64_t>(n));
          std::array<double, 3> want = {};
          for (size_t k = 0; k < 3; ++k) {
            double sum = 0, weighted = 0, most = -1e30, weights = 0;
            for (size_t t = 0; t < n; ++t) {
              const double v = token_vector(ids[i][t])[k], weight = static_cast<double>(t + 1);
              sum += v, weighted += v * weight, weights += weight, most = std::max(most, v);
            }
            const double count = static_cast<double>(n);
            const double by_pooling[] = {sum / count,
                                         sum / count,
                                         token_vector(ids[i].front())[k],
                                         token_vector(ids[i].back())[k],
                                         most,
                                         sum / std::sqrt(count),
                                         weighted / weights};
            want[k] = by_pooling[pooling];
          }
          const double norm =
              normalize == 0 ? 1 : std::sqrt(want[0] * want[0] + want[1] * want[1] + want[2] * want[2]);
          REQUIRE(got.vectors[i].size() == 3);
          // Sums in double, rounded to f32 once, and once more with the norm.
          for (size_t k = 0; k < 3; ++k) CHECK(got.vectors[i][k] == Approx(want[k] / norm).epsilon(3e-7));
        }
      }
    }
    CHECK(oar_encoder_close(e) == OAR_OK);
  }
}

TEST_CASE("encoder: fewer dimensions, longer texts") {
  const oar_encoder e = open_encoder(write_lookup("lookup_cut", -1));
  oar_embed_options o = plain();
  o.dimensions = 2;
  const Embedded two = embed(e, {"w10 w20"}, &o);
  const Embedded three = embed(e, {"w10 w20"});
  REQUIRE(two.vectors[0].size() == 2);
  const double norm = std::hypot(double(three.vectors[0][0]), double(three.vectors[0][1]));
  CHECK(two.vectors[0][0] == Approx(three.vectors[0][0] / norm).epsilon(1e-6));
  CHECK(two.vectors[0][1] == Approx(three.vectors[0][1] / norm).epsilon(1e-6));

  const std::string text = words(0, 600);
  const char* texts[] = {"w5", text.c_str()};
  oar_outputs out = 1;
  CHECK(oar_embed(e, texts, 2, nullptr, &out) == OAR_OUT_OF_RANGE);
  CHECK(out == 0);
  CHECK_THAT(oar_last_error(), Contains("texts[1]") && Contains("602 tokens") && Contains("max_tokens"));
  o = plain();
  o.max_tokens = -1;
  CHECK(embed(e, {text}, &o).tokens[0] == 512);
  o.max_tokens = 10;
  CHECK(embed(e, {"w5", text}, &o).tokens == std::vector<int64_t>{3, 10});
  CHECK(oar_encoder_close(e) == OAR_OK);
}

TEST_CASE("encoder: a text's vector is the same alone and in company") {
  const oar_encoder e = open_encoder(write_tiny_encoder("bert"));
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(words(i * 7, 1 + i * 11 % 37));
  const Embedded all = embed(e, texts);
  REQUIRE(all.vectors.size() == 200);
  for (size_t i = 0; i < texts.size(); i += 9) {
    const Embedded alone = embed(e, {texts[i]});
    double square = 0;
    for (size_t k = 0; k < 32; ++k) {
      CHECK(all.vectors[i][k] == Approx(alone.vectors[0][k]).margin(2e-6));
      square += double(alone.vectors[0][k]) * double(alone.vectors[0][k]);
    }
    CHECK(square == Approx(1).margin(1e-5));
  }
  // From many threads at once, and while the handle is closed.
  std::atomic<int> right{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 20; ++i) {
        const size_t at = (i * 4 + static_cast<size_t>(t)) % 200;
        const char* text = texts[at].c_str();
        oar_outputs out = 0;
        oar_tensor v;
        if (oar_embed(e, &text, 1, nullptr, &out) != OAR_OK) {
          ++refused;
          continue;
        }
        if (oar_outputs_get(out, 0, &v) == OAR_OK)
          right += std::abs(static_cast<const float*>(v.data)[5] - all.vectors[at][5]) < 2e-6F;
        oar_outputs_close(out);
      }
    });
  }
  while (right < 10 && refused == 0) std::this_thread::yield();
  CHECK(oar_encoder_close(e) == OAR_OK);
  for (std::thread& t : threads) t.join();
  CHECK(right + refused == 80);
  CHECK(oar_encoder_close(e) == OAR_INVALID_ARGUMENT);
}

TEST_CASE("encoder: a classifier scores pairs") {
  const oar_encoder e = open_encoder(write_tiny_encoder("bert-classifier"));
  oar_encoder_info info;
  REQUIRE(oar_encoder_get_info(e, &info, sizeof info) == OAR_OK);
  CHECK(info.scores == 1);
  const std::string longest = words(3, 300);
  const std::vector<std::string> texts = {"w9", "w5 w6", longest, "w20 w21"};
  std::vector<const char*> documents;
  for (const std::string& t : texts) documents.push_back(t.c_str());
  oar_outputs out = 0;
  REQUIRE(oar_score(e, "w5 w6", documents.data(), documents.size(), &out) == OAR_OK);
  const Embedded all = take(out);
  CHECK(all.tokens == std::vector<int64_t>{6, 7, info.max_tokens, 7});
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(oar_score(e, "w5 w6", &documents[i], 1, &out) == OAR_OK);
    const float alone = take(out).vectors[0][0];
    CHECK(alone > 0);
    CHECK(alone < 1);
    CHECK(all.vectors[i][0] == Approx(alone).margin(2e-6));
  }
  CHECK(oar_score(e, longest.c_str(), documents.data(), 1, &out) == OAR_OUT_OF_RANGE);
  CHECK_THAT(oar_last_error(), Contains("no room"));
  CHECK(oar_encoder_close(e) == OAR_OK);
}

TEST_CASE("encoder: every wrong argument has its message") {
  const oar_encoder e = open_encoder(write_lookup("lookup_misuse", -1));
  const char* texts[] = {"w5", nullptr, ""};
  oar_outputs out = 1;
  const auto refused = [&](oar_status status, const char* param) {
    const bool named = std::string(oar_last_error_param()) == param;
    return status == OAR_INVALID_ARGUMENT && named && oar_last_error()[0] != '\0';
  };
  oar_encoder made = 1;
  CHECK(refused(oar_encoder_load(nullptr, 1, &made), "path"));
  oar_predictor_options o;
  REQUIRE(oar_predictor_options_init(&o, sizeof o) == OAR_OK);
  o.params = "x";
  CHECK(refused(oar_encoder_open("x", &o, &made), "params"));
  CHECK(made == 0);
  CHECK(refused(oar_encoder_load("x", 1, nullptr), "encoder"));
  CHECK(refused(oar_encoder_load("x", -1, &made), "threads"));
  CHECK(oar_encoder_load("/nonexistent", 1, &made) == OAR_NOT_FOUND);
  CHECK(oar_encoder_load(OAR_SOURCE_DIR "/configs/demo", 1, &made) != OAR_OK);  // a language model
  CHECK(oar_last_error()[0] != '\0');
  CHECK(refused(oar_embed_options_init(nullptr, sizeof(oar_embed_options)), "options"));
  oar_encoder_info info;
  CHECK(refused(oar_encoder_get_info(e, nullptr, sizeof info), "info"));
  CHECK(refused(oar_encoder_get_info(e, &info, 0), "size"));
  CHECK(refused(oar_embed(e, texts, 1, nullptr, nullptr), "vectors"));
  CHECK(refused(oar_embed(e, nullptr, 1, nullptr, &out), "texts"));
  CHECK(out == 0);
  CHECK(refused(oar_embed(e, texts, 0, nullptr, &out), "count"));
  CHECK(refused(oar_embed(e, texts, SIZE_MAX, nullptr, &out), "count"));
  CHECK(refused(oar_embed(e, texts, 2, nullptr, &out), "texts"));
  CHECK(refused(oar_embed(e, texts + 2, 1, nullptr, &out), "texts"));
  const auto spoiled = [&](auto&& spoil) {
    oar_embed_options o = plain();
    spoil(o);
    return oar_embed(e, texts, 1, &o, &out);
  };
  CHECK(refused(spoiled([](oar_embed_options& o) { o.reserved = 1; }), "reserved"));
  CHECK(refused(spoiled([](oar_embed_options& o) { o.pooling = -1; }), "pooling"));
  CHECK(refused(spoiled([](oar_embed_options& o) { o.pooling = 7; }), "pooling"));
  CHECK(refused(spoiled([](oar_embed_options& o) { o.normalize = 2; }), "normalize"));
  CHECK(refused(spoiled([](oar_embed_options& o) { o.dimensions = -1; }), "dimensions"));
  CHECK(refused(spoiled([](oar_embed_options& o) { o.dimensions = 4; }), "dimensions"));
  CHECK(refused(spoiled([](oar_embed_options& o) { o.struct_size = 0; }), "embed_options"));
  CHECK(oar_score(e, "w5", texts, 1, &out) == OAR_FAILED_PRECONDITION);
  CHECK(refused(oar_score(e, nullptr, texts, 1, &out), "query"));
  CHECK(refused(oar_score(e, "", texts, 1, &out), "query"));
  CHECK(refused(oar_score(e, "w5", texts, 1, nullptr), "scores"));
  for (const uint64_t h : {uint64_t{0}, ~uint64_t{0}, uint64_t{6} << 56 | 1, e + 1, demo_model()}) {
    CHECK(oar_embed(h, texts, 1, nullptr, &out) == OAR_INVALID_ARGUMENT);
    CHECK(oar_score(h, "w5", texts, 1, &out) == OAR_INVALID_ARGUMENT);
    CHECK(oar_encoder_get_info(h, &info, sizeof info) == OAR_INVALID_ARGUMENT);
    CHECK(oar_encoder_close(h) == OAR_INVALID_ARGUMENT);
  }
  CHECK(oar_predictor_close(e) == OAR_INVALID_ARGUMENT);
  CHECK_THAT(oar_last_error(), Contains("handle of an encoder, not of a predictor"));
  REQUIRE(oar_encoder_close(e) == OAR_OK);
}

TEST_CASE("encoder: a caller with an older or a newer header") {
  const oar_encoder e = open_encoder(write_lookup("lookup_headers", -1));
  const char* text = "w10 w20";
  oar_outputs out = 0;
  struct {
    oar_embed_options known;
    int64_t unknown;
  } newer;
  REQUIRE(oar_embed_options_init(&newer.known, sizeof newer) == OAR_OK);
  CHECK(newer.unknown == 0);
  CHECK(oar_embed(e, &text, 1, &newer.known, &out) == OAR_OK);
  CHECK(oar_outputs_close(out) == OAR_OK);
  newer.unknown = 1;
  CHECK(oar_embed(e, &text, 1, &newer.known, &out) == OAR_UNIMPLEMENTED);
  oar_embed_options older = plain();
  older.struct_size = 2 * sizeof(int32_t);  // knows of pooling alone
  older.pooling = OAR_POOLING_FIRST;
  older.dimensions = -5;  // not the library's to read
  REQUIRE(oar_embed(e, &text, 1, &older, &out) == OAR_OK);
  CHECK(take(out).vectors[0].size() == 3);
  CHECK(oar_encoder_close(e) == OAR_OK);
}

}  // namespace
