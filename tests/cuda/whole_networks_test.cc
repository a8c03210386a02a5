// Whole published networks on the device, as large as they are: ResNet-50, BERT-base, and PP-OCR's detection,
// recognition and classification where their files are. Each within a bound of the processor. On the emulated
// device they take minutes, so --all alone runs them.
#include "engine/runtime/text_encoder.h"
#include "tests/cuda/networks.h"
#include "tests/import/paddle_topology.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {
using namespace oar;
using namespace oar_test;

// A sum of `terms` products is off by at most 2^-24 of its magnitude at each addition. Roundings are
// independent, so those of a sum and of `steps` layers add up like their squares; residuals keep norms.
double rounding_bound(double steps, double terms) { return std::sqrt(steps * terms) * std::ldexp(1.0, -24); }

void check_distance(const TensorRunner& device, const TensorRunner& cpu, const std::vector<Datum>& in,
                    double steps, double terms) {
  const double d = distance(device, cpu, in);
  INFO("distance " << d << ", bound " << rounding_bound(steps, terms));
  CHECK(d <= rounding_bound(steps, terms));
}

// The checkpoint of a BERT with random weights: https://arxiv.org/abs/1810.04805, section 3.
std::string write_bert(int layers, int64_t width, int64_t heads, int64_t inner, int64_t vocabulary,
                       int64_t positions) {
  TinyGolden g;
  g.name = cat("bert-", width, "-", layers);
  g.config = json::serialize(json::object{{"architectures", json::array{"BertModel"}},
                                          {"model_type", "bert"},
                                          {"vocab_size", vocabulary},
                                          {"hidden_size", width},
                                          {"intermediate_size", inner},
                                          {"num_hidden_layers", layers},
                                          {"num_attention_heads", heads},
                                          {"max_position_embeddings", positions},
                                          {"type_vocab_size", 2},
                                          {"layer_norm_eps", 1e-12},
                                          {"hidden_act", "gelu"},
                                          {"pad_token_id", 0}});
  g.weight_seed = 1;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    g.tensors.push_back({name, shape});
  };
  const auto norm = [&](const std::string& name) {
    for (const char* part : {".weight", ".bias"}) add(name + part, {width});
  };
  const auto dense = [&](const std::string& name, int64_t rows, int64_t cols) {
    add(name + ".weight", {rows, cols});
    add(name + ".bias", {rows});
  };
  add("embeddings.word_embeddings.weight", {vocabulary, width});
  add("embeddings.position_embeddings.weight", {positions, width});
  add("embeddings.token_type_embeddings.weight", {2, width});
  norm("embeddings.LayerNorm");
  for (int k = 0; k < layers; ++k) {
    const std::string layer = cat("encoder.layer.", k, ".");
    for (const char* part : {"query", "key", "value"})
      dense(cat(layer, "attention.self.", part), width, width);
    dense(layer + "attention.output.dense", width, width);
    norm(layer + "attention.output.LayerNorm");
    dense(layer + "intermediate.dense", inner, width);
    dense(layer + "output.dense", width, inner);
    norm(layer + "output.LayerNorm");
  }
  dense("pooler.dense", width, width);
  const std::string folder = write_tiny_model(g, TinyDtype::f32);
  write_tiny_vocabulary(folder);
  return folder;
}

}  // namespace

TEST_CASE("cuda: ResNet-50 as it is, and no op waits for the processor", "[cuda][slow][.]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr int64_t side = 224;
  BothSides sides(Bottlenecks().bytes(side, side, 64, {{64, 3}, {128, 4}, {256, 6}, {512, 3}}, 1000));
  // 54 layers; the last 3 x 3 sum 4,608 products.
  check_distance(*sides.device, *sides.cpu, {random_input({1, 3, side, side}, 70)}, 54, 9 * 512);
  check_all_on_device(sides, {1, 3, side, side});
}

TEST_CASE("cuda: BERT-base as it is, and no op waits for the processor", "[cuda][slow][.]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string folder = write_bert(12, 768, 12, 3072, 30522, 512);
  Detours detours;
  PredictorOptions on_device = options_on(kCudaPlugin);
  on_device.log = detours.logger();
  const auto cpu = load_text_encoder(folder, options_on("cpu")),
             device = load_text_encoder(folder, on_device);
  REQUIRE_OK(cpu);
  REQUIRE_OK(device);
  std::vector<int32_t> ids;
  for (int32_t k = 0; k < 20; ++k) ids.push_back(5 + k * 37 % 91);
  const auto tokens = cpu->encoder->accept(ids, 0);
  REQUIRE_OK(tokens);
  const auto in = cpu->encoder->inputs(*tokens);
  REQUIRE_OK(in);
  // A dozen steps for each of twelve layers; feed-forward layers sum 3,072 products.
  check_distance(*device->runner, *cpu->runner, *in, 12 * 12, 3072);
  CHECK(detours.said() == "");
}

TEST_CASE("cuda: PP-OCR's networks as they are published", "[cuda][slow][.]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Case {
    const char* path;
    Shape image;
    const char* beside;  // what waits for the processor: shapes, and what no device has kernels for
    double steps, terms;
  };
  // Layers one behind the other, and the products of the largest sum. Of a topology weights are made up.
  const Case cases[] = {
      {"paddle/v3_ch_det", {1, 3, 320, 320}, "", 80, 9 * 96},
      {"paddle/v2_en_rec", {1, 3, 32, 320}, "(constant_of_shape)", 100, 576},
      {"paddle/v2_cls", {1, 3, 48, 192}, "(cast x 2, reshape)", 60, 200},
      {"paddle/topology_only/ch_PP-OCRv4_det_infer", {1, 3, 64, 96}, "", 80, 9 * 96},
      {"paddle/topology_only/ch_PP-OCRv4_rec_infer", {1, 3, 48, 96}, "(cast x 3, reshape x 5)", 100, 9 * 480},
      {"paddle3_pir/topology_only/PP-OCRv5_mobile_det_infer", {1, 3, 64, 96}, "", 80, 9 * 96}};
  int networks = 0;
  for (const Case& c : cases) {
    const auto path = data_path(c.path);
    if (!path) continue;
    INFO(c.path);
    Detours detours;
    PredictorOptions on_device = options_on(kCudaPlugin);
    on_device.log = detours.logger();
    const auto cpu = Predictor::create(import_paddle_program(*path), options_on("cpu")),
               device = Predictor::create(import_paddle_program(*path), on_device);
    REQUIRE_OK(cpu);
    REQUIRE_OK(device);
    check_distance(**device, **cpu, {random_input(c.image, 71)}, c.steps, c.terms);
    if (*c.beside == 0) CHECK(detours.said() == "");
    else CHECK_THAT(detours.said(), Contains(c.beside));
    ++networks;
  }
  if (networks == 0) OAR_SKIP("no published networks beside the repository");
}
