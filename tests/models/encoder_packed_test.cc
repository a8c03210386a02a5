// Encoders over packed rows: company, padding and masks that change nothing to the last bit, weights in every
// scheme and as quantized files have them, and what is refused. encoder_test.cc has the goldens.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>

#include "engine/base/format.h"
#include "engine/graph/run_guard.h"
#include "engine/loader/safetensors.h"
#include "engine/loader/safetensors_writer.h"
#include "engine/runtime/batched_predictor.h"
#include "engine/runtime/encoder_model.h"
#include "engine/runtime/text_encoder.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT
namespace fs = std::filesystem;

PredictorOptions with_weights(const std::string& weights) {
  PredictorOptions options;
  options.threads = 2;
  options.weights = weights;
  options.cache_bytes = 0;
  return options;
}

std::unique_ptr<EncoderModel> open(const std::string& folder, const std::string& weights = "") {
  auto model = EncoderModel::load(folder, with_weights(weights));
  REQUIRE_OK(model);
  return std::move(*model);
}

// A request of one row per list; columns behind a row are masked and hold `padding`.
std::vector<Datum> request(const std::vector<std::vector<int64_t>>& rows, int64_t columns,
                           int64_t padding = 0) {
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<Datum> out;
  for (int input = 0; input < 3; ++input) {
    Tensor t = must(allocate_elements({count, columns}, DType::kI64));
    for (int64_t r = 0; r < count; ++r) {
      const auto& row = rows[static_cast<size_t>(r)];
      for (int64_t s = 0; s < columns; ++s) {
        const bool real = s < static_cast<int64_t>(row.size());
        const int64_t id = real ? row[static_cast<size_t>(s)] : padding;
        mutable_elements<int64_t>(t)[r * columns + s] = input == 0 ? id : input == 1 ? int64_t{real} : s % 2;
      }
    }
    out.emplace_back(std::move(t));
  }
  return out;
}
std::vector<Datum> request(const std::vector<int64_t>& row) {
  return request(std::vector<std::vector<int64_t>>{row}, static_cast<int64_t>(row.size()));
}

// Rows of 1 to `most` tokens: the tiny BERT takes 40, the tiny RoBERTa two fewer.
std::vector<std::vector<int64_t>> random_rows(size_t count, size_t most = 40) {
  std::mt19937 random(9);
  std::vector<std::vector<int64_t>> rows{{2}, {2, 3}};
  while (rows.size() < count) {
    std::vector<int64_t>& row = rows.emplace_back(1 + random() % most);
    for (int64_t& id : row) id = static_cast<int64_t>(random() % 96);
  }
  rows.back().resize(most, 7);
  return rows;
}

std::vector<Datum> run(const TensorRunner& model, std::vector<Datum> inputs) {
  auto out = model.run(std::move(inputs));
  REQUIRE_OK(out);
  return std::move(*out);
}

// Rows [at, at + n) of a (1, S, E) result.
std::span<const float> states(const Datum& hidden, int64_t row, int64_t n) {
  const Shape& s = hidden.tensor.shape();
  return {elements<float>(hidden.tensor) + row * s[1] * s[2], static_cast<size_t>(n * s[2])};
}
bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    ab += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    aa += static_cast<double>(a[k]) * static_cast<double>(a[k]);
    bb += static_cast<double>(b[k]) * static_cast<double>(b[k]);
  }
  return ab / std::sqrt(aa * bb);
}

TEST_CASE("Encoders: a row packed with others is what it is alone, to the last bit, in every format") {
  const auto rows = random_rows(70, 38);  // more tokens than one run takes
  std::vector<std::vector<Datum>> requests;
  for (const auto& row : rows) requests.push_back(request(row));
  for (const char* name : {"bert", "xlm-roberta-classifier"}) {
    for (const char* weights : {"", "bf16", "f16", "int8", "int4", "fp8", "w4a8"}) {
      INFO(name << " " << weights);
      const auto model = open(write_tiny_encoder(name), weights);
      const size_t inputs = model->inputs().size();
      std::vector<std::vector<Datum>> mine = requests;
      for (auto& r : mine) r.resize(inputs);
      if (inputs == 3 && model->config().types == 1)
        for (auto& r : mine) r[2] = Datum(must(allocate_elements(r[0].tensor.shape(), DType::kI64)));
      const auto together = model->run_together(mine, nullptr);
      REQUIRE_OK(together);
      for (size_t k = 0; k < rows.size(); ++k) {
        const auto alone = run(*model, mine[k]);
        const auto n = static_cast<int64_t>(rows[k].size());
        REQUIRE(same_bits(states((*together)[k][0], 0, n), states(alone[0], 0, n)));
        if (alone.size() < 2) continue;
        const auto logits = [&](const Datum& d) {
          return std::span<const float>(elements<float>(d.tensor), static_cast<size_t>(d.tensor.numel()));
        };
        REQUIRE(same_bits(logits((*together)[k][1]), logits(alone[1])));
      }
    }
  }
}

TEST_CASE("Encoders: tensors with padded rows; what is masked is left out and zero") {
  const auto model = open(write_tiny_encoder("bert"));
  const auto rows = random_rows(12);
  for (const int64_t padding : {0, 5}) {
    const auto padded = run(*model, request(rows, 40, padding));
    CHECK(padded[0].tensor.shape() == Shape({12, 40, 32}));
    for (size_t k = 0; k < rows.size(); ++k) {
      const auto n = static_cast<int64_t>(rows[k].size());
      const auto alone = run(*model, request(rows[k]));
      const auto all = states(padded[0], static_cast<int64_t>(k), 40);
      CHECK(same_bits(all.first(static_cast<size_t>(n * 32)), states(alone[0], 0, n)));
      for (const float v : all.subspan(static_cast<size_t>(n * 32))) REQUIRE(v == 0);
    }
  }
  // A hole keeps the positions of what stands behind it, whatever lies in it; any mask but 0 is a token.
  std::vector<Datum> hole = request({2, 9, 11, 3, 8}), other = request({2, 70, 11, 3, 8});
  for (auto* r : {&hole, &other}) mutable_elements<int64_t>((*r)[1].tensor)[1] = 0;
  mutable_elements<int64_t>(other[1].tensor)[2] = 7;
  const auto a = run(*model, hole), b = run(*model, other), whole = run(*model, request({2, 9, 11, 3, 8}));
  CHECK(same_bits(states(a[0], 0, 5), states(b[0], 0, 5)));
  CHECK_FALSE(same_bits(states(a[0], 0, 1), states(whole[0], 0, 1)));
  for (const float v : states(a[0], 0, 2).subspan(32)) CHECK(v == 0);
  // Nothing at all.
  const auto none = run(*model, request(std::vector<std::vector<int64_t>>{{}, {2, 3}}, 4));
  for (const float v : states(none[0], 0, 4)) CHECK(v == 0);
  CHECK(run(*model, request(std::vector<std::vector<int64_t>>{{}}, 3))[0].tensor.shape() ==
        Shape({1, 3, 32}));
}

TEST_CASE("Encoders: requests of different lengths share a run of the queue") {
  const std::string folder = write_tiny_encoder("bert");
  const auto model = open(folder);
  const auto rows = random_rows(8);
  BatchedPredictorOptions options;
  options.max_batch = 8;
  options.max_queue_delay = std::chrono::seconds(20);  // until all eight are there
  options.preferred_batches = {8};
  BatchedPredictor queue(open(folder), options);
  std::vector<std::promise<Result<std::vector<Datum>>>> answers(rows.size());
  for (size_t k = 0; k < rows.size(); ++k) {
    InferJob job;
    job.inputs = request(rows[k]);
    job.done = [&answers, k](Result<std::vector<Datum>> r) { answers[k].set_value(std::move(r)); };
    REQUIRE_OK(queue.submit(std::move(job)));
  }
  for (size_t k = 0; k < rows.size(); ++k) {
    const auto got = answers[k].get_future().get();
    REQUIRE_OK(got);
    const auto n = static_cast<int64_t>(rows[k].size());
    CHECK(same_bits(states((*got)[0], 0, n), states(run(*model, request(rows[k]))[0], 0, n)));
  }
  CHECK(queue.stats().executions == 1);
}

TEST_CASE("Encoders: weights in fewer bits stay near") {
  const std::string folder = write_tiny_encoder("bert");
  const auto exact = open(folder);
  const auto rows = random_rows(20);
  // Two layers have eight products in a chain, between norms. A weight of a normal row errs by (relative to
  // its spread): int8, 1/254 of the largest, some three spreads, uniformly: 0.7 %; activations the same. int4
  // in groups of 32, 1/14 of the largest, some two: 8 %. e4m3 has three bits: 2^-4 / sqrt 3 = 3.6 %. Errors
  // of the eight add up as squares, and a relative error e leaves a cosine of 1 - e^2 / 2. The bounds have
  // twice e.
  struct Case {
    const char *weights, *format;
    double error;
  };
  for (const Case& c : {Case{"int8", "int8", 0.01}, Case{"int4", "i4_s8_g32", 0.08},
                        Case{"fp8", "e4m3_channel", 0.036}, Case{"bf16", "bf16", 0.004}}) {
    INFO(c.weights);
    const auto model = open(folder, c.weights);
    CHECK_THAT(model->weights(), Contains(c.format));
    const double e = 2 * c.error * std::sqrt(8.0), bound = 1 - e * e / 2;
    double least = 1;
    for (const auto& row : rows) {
      const auto n = static_cast<int64_t>(row.size());
      const auto got = run(*model, request(row)), want = run(*exact, request(row));
      least = std::min(least, cosine(states(got[0], 0, n), states(want[0], 0, n)));
      CHECK_FALSE(same_bits(states(got[0], 0, n), states(want[0], 0, n)));
    }
    CHECK(least > bound);
  }
}

TEST_CASE("Encoders: a checkpoint quantized by compressed-tensors") {
  const std::string folder = write_tiny_encoder("bert");
  auto file = open_safetensors(folder + "/model.safetensors");
  REQUIRE_OK(file);
  // Every layer's matrix as 8-bit integers with a scale a row; beside it the same numbers as f32.
  const std::string quantized = folder + "-w8", plain = folder + "-w8-plain";
  std::vector<SafetensorsEntry> entries[2];
  std::vector<std::vector<std::byte>> bytes[2];
  const auto add = [&](size_t to, const std::string& name, const char* dtype, std::vector<int64_t> shape,
                       const void* data, uint64_t size) {
    entries[to].push_back({name, dtype, std::move(shape), size});
    const auto* p = static_cast<const std::byte*>(data);
    bytes[to].emplace_back(p, p + size);
  };
  for (const auto& [name, t] : file->tensors) {
    const std::vector<int64_t> shape(t.shape().begin(), t.shape().end());
    const bool linear = name.find("encoder.") != std::string::npos && t.shape().rank() == 2;
    add(linear ? 1 : 0, name, "F32", shape, t.data(), t.bytes());
    if (!linear) {
      add(1, name, "F32", shape, t.data(), t.bytes());
      continue;
    }
    const int64_t N = shape[0], K = shape[1];
    std::vector<int8_t> codes(static_cast<size_t>(N * K));
    std::vector<float> scales(static_cast<size_t>(N)), values(codes.size());
    for (int64_t r = 0; r < N; ++r) {
      const float* row = t.values<float>().data() + r * K;
      float most = 0;
      for (int64_t k = 0; k < K; ++k) most = std::max(most, std::fabs(row[k]));
      scales[static_cast<size_t>(r)] = most / 127;
      for (int64_t k = 0; k < K; ++k) {
        const auto at = static_cast<size_t>(r * K + k);
        codes[at] = static_cast<int8_t>(std::lround(row[k] * 127 / most));
        values[at] = static_cast<float>(codes[at]) * scales[static_cast<size_t>(r)];
      }
    }
    entries[1].pop_back(), bytes[1].pop_back();
    add(1, name, "F32", shape, values.data(), values.size() * 4);
    add(0, name, "I8", shape, codes.data(), codes.size());
    add(0, name + "_scale", "F32", {N, 1}, scales.data(), scales.size() * 4);
  }
  const std::string config = read_file(folder + "/config.json");
  const std::string folders[] = {quantized, plain};
  for (size_t to = 0; to < 2; ++to) {
    fs::create_directories(folders[to]);
    write_tiny_vocabulary(folders[to]);
    auto writer = SafetensorsWriter::open(folders[to] + "/model.safetensors", entries[to], {}, false);
    REQUIRE_OK(writer);
    for (size_t k = 0; k < entries[to].size(); ++k)
      REQUIRE(writer->write(entries[to][k].name, bytes[to][k].data(), bytes[to][k].size()).ok());
    REQUIRE(writer->sync().ok());
    const size_t end = config.rfind('}');
    std::ofstream(folders[to] + "/config.json")
        << config.substr(0, end)
        << (to == 1 ? "}"
                    : R"(,"quantization_config":{"quant_method":"compressed-tensors","format":"int-quantized",
           "config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":8,"type":"int","symmetric":true,
           "strategy":"channel"}}}}})");
  }
  const auto model = open(quantized), exact = open(plain);
  INFO(model->weights());
  CHECK(model->weights().find("f32") == std::string::npos);
  for (const auto& row : random_rows(8)) {
    const auto n = static_cast<int64_t>(row.size());
    // The same weights: what remains is the rounding of activations, 0.7 % in eight products.
    CHECK(cosine(states(run(*model, request(row))[0], 0, n), states(run(*exact, request(row))[0], 0, n)) >
          1 - 2 * 0.007 * 0.007 * 8);
  }
}

TEST_CASE("Encoders: layers end as those of an exported BERT do") {
  // What fuse_epilogues, fuse_attention and fuse_definitions make of an export, a layer: three products for
  // query, key and value (here segments of one), attention, a product with its residual, a norm, a product
  // that ends with GELU, a product with its residual, a norm.
  std::map<std::string, int> ops;
  int products = 0, residuals = 0, activations = 0;
  const auto model = open(write_tiny_encoder("bert"));
  for (const Node& n : model->graph().nodes()) {
    ++ops[n.op->name];
    if (!n.is("linear")) continue;
    products += static_cast<int>(n.inputs.size() - 2) / 2;
    residuals += n.inputs[1] != kNoValue;
    activations += n.attrs.get_string("activation") == "gelu";
  }
  const int layers = static_cast<int>(model->config().layers);
  CHECK(products == 6 * layers);
  CHECK(residuals == 2 * layers);
  CHECK(activations == layers);
  CHECK(ops["attention"] == layers);
  CHECK(ops["layer_norm"] == 2 * layers + 1);
  CHECK(ops["embedding"] == 3);
  CHECK(ops.count("gelu") == 0);
  CHECK(ops["add"] == 2);
}

TEST_CASE("Encoders: what cannot be run says why, and a run can be ended") {
  const std::string folder = write_tiny_encoder("bert");
  const auto model = open(folder);
  const auto error = [&](std::vector<Datum> inputs) { return model->run(std::move(inputs)).status(); };
  CHECK_THAT(error(request({2, 96})).message(), Contains("input_ids") && Contains("96 at [0, 1]"));
  CHECK_THAT(error(request({-1})).message(), Contains("input_ids"));
  std::vector<Datum> types = request({2, 3});
  mutable_elements<int64_t>(types[2].tensor)[1] = 2;
  CHECK_THAT(error(types).message(), Contains("token_type_ids"));
  CHECK_THAT(error(request(std::vector<int64_t>(41, 5))).message(), Contains("at most 40"));
  // Beyond the last token there is no bound: it is padding.
  CHECK(error(request(std::vector<std::vector<int64_t>>{{2, 3}}, 90)).ok());
  std::vector<Datum> shapes = request({2, 3});
  shapes[1] = request({2, 3, 4})[1];
  CHECK_FALSE(error(shapes).ok());
  {
    const RunGuard guard([] { return Status(StatusCode::kCancelled, "enough"); });
    CHECK(error(request({2, 3})).code() == StatusCode::kCancelled);
  }
  CHECK(error(request({2, 3})).ok());

  const auto refused = [&](const PredictorOptions& o) {
    return EncoderModel::load(folder, o).status().message();
  };
  CHECK_THAT(refused(with_weights("int3")), Contains("int3") && Contains("int8"));
  PredictorOptions both = with_weights("int4");
  both.precision = Precision::kInt8;
  CHECK_THAT(refused(both), Contains("weights is int4 and precision int8"));
  both.weights = "";
  auto precise = EncoderModel::load(folder, both);
  REQUIRE_OK(precise);
  CHECK((*precise)->weights() == "int8");
  both.precision = Precision::kTf32;
  CHECK_THAT(refused(both), Contains("precision tf32 is of ordinary models"));
  PredictorOptions calibrated = with_weights("");
  calibrated.calibration = std::make_shared<CalibrationSamples>();
  CHECK_THAT(refused(calibrated), Contains("calibration"));
  PredictorOptions unknown = with_weights("");
  unknown.disabled_passes = {"fuse_everything"};
  CHECK_THAT(refused(unknown), Contains("fuse_everything"));
  unknown.disabled_passes = {"winograd", "fuse_linear"};  // one of ordinary models, one of its own
  CHECK(EncoderModel::load(folder, unknown).ok());
}

}  // namespace
