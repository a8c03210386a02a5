// Ordinary models on the device: a residual network, detection, recognition and classification of text, and
// encoders, all cut down. Each within a bound of the processor, and no op beside the device.
#include "engine/runtime/text_encoder.h"
#include "tests/cuda/networks.h"
#include "tests/import/quantized_network.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {
using namespace oar;
using namespace oar_test;

// ResNet-50 with fewer of all.
std::string bottlenecks() { return Bottlenecks().bytes(32, 40, 8, {{8, 2}, {16, 2}}, 10); }

// Layers with matrices over rows of tokens, and a residual.
std::string feed_forward() {
  const auto weight = [](const char* name, const std::vector<int64_t>& dims, uint32_t seed) {
    std::vector<float> v = random_values(static_cast<size_t>(dims[0] * dims[1]), Values::kNormal, seed);
    for (float& x : v) x /= std::sqrt(static_cast<float>(dims[0]));
    return tensor_proto(name, dims, v);
  };
  return model_bytes(
      graph_proto({node_proto("MatMul", {"x", "up"}, {"a"}), node_proto("Relu", {"a"}, {"b"}),
                   node_proto("MatMul", {"b", "down"}, {"c"}), node_proto("Add", {"c", "x"}, {"d"}),
                   node_proto("MatMul", {"d", "head"}, {"y"})},
                  {weight("up", {68, 150}, 1), weight("down", {150, 68}, 2), weight("head", {68, 33}, 3)},
                  {value_proto("x", {-1, 21, 68})}, {value_proto("y", {-1, 21, 33})}));
}

}  // namespace

TEST_CASE("cuda: a network of bottlenecks, and no op waits for the processor", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string bytes = bottlenecks();
  Detours detours;
  PredictorOptions on_device = options_on(kCudaPlugin);
  on_device.log = detours.logger();
  const auto cpu = open_test_model(bytes, options_on("cpu")), device = open_test_model(bytes, on_device);
  // Sixteen layers; the stem sums 147 products, no other more than 144.
  for (const int64_t batch : {1, 2})
    check_near(*device, *cpu, {random_input({batch, 3, 32, 40}, 40)}, 16, 147);
  CHECK(detours.said() == "");
  CHECK_FALSE(detours.cudnn());
}

TEST_CASE("cuda: images that transposed layers enlarge, and no op waits for the processor",
          "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto weight = [](const char* name, const std::vector<int64_t>& dims, uint32_t seed) {
    const Shape shape{std::span<const int64_t>(dims)};
    return tensor_proto(name, dims, random_values(static_cast<size_t>(shape.numel()), Values::kNormal, seed));
  };
  // The head of a text detector: windows without overlap, of a step and of two steps, wide and high.
  const auto larger = [](const char* x, const char* w, const char* b, const char* y, int64_t h,
                         int64_t wide) {
    std::vector<std::string> in{x, w};
    if (*b != 0) in.emplace_back(b);
    return node_proto("ConvTranspose", in, {y},
                      {ints_attr("kernel_shape", {h, wide}), ints_attr("strides", {h, wide})});
  };
  const std::string bytes =
      model_bytes(graph_proto({node_proto("Conv", {"x", "k"}, {"a"}), larger("a", "w", "b", "c", 2, 2),
                               node_proto("Relu", {"c"}, {"d"}), larger("d", "v", "", "e", 3, 2),
                               node_proto("Sigmoid", {"e"}, {"y"})},
                              {weight("k", {6, 3, 1, 1}, 60), weight("w", {6, 5, 2, 2}, 61),
                               weight("b", {5}, 62), weight("v", {5, 1, 3, 2}, 63)},
                              {value_proto("x", {-1, 3, 7, 9})}, {value_proto("y", {-1, 1, 42, 36})}));
  BothSides sides(bytes);
  for (const int64_t batch : {1, 3})
    check_near(*sides.device, *sides.cpu, {random_input({batch, 3, 7, 9}, 64)}, 3, 64);
  check_all_on_device(sides, {1, 3, 7, 9});
}

TEST_CASE("cuda: networks in bf16, f16 and TF32, and no op waits for the processor", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Network {
    const char* name;
    std::string path, bytes;  // one of them
    Shape shape;
    const char* said;
    int layers;  // that are rounded
  };
  const auto ocr = [](const char* name) { return source_path(std::string("tests/data/ocr/") + name); };
  const Shape text{1, 3, 32, 96};
  // Of the bottlenecks the stem's input is in planes, and four layers have 8 values a filter.
  const Network networks[] = {{"bottlenecks", "", bottlenecks(), {2, 3, 32, 40}, ": 11 of 16 layers", 11},
                              {"feed forward", "", feed_forward(), {3, 21, 68}, ": 3 of 3 layers", 3},
                              {"det", ocr("det"), "", text, ": 4 of 10 layers", 4},
                              {"rec", ocr("rec"), "", text, ": 4 of 7 layers", 4},
                              {"cls", ocr("cls"), "", text, ": 3 of 8 layers", 3}};
  for (const Network& n : networks) {
    Detours detours;
    const auto open = [&](const char* where, Precision precision) {
      PredictorOptions o = options_on(where);
      o.precision = precision;
      // Shapes of "rec" are the processor's.
      if (std::string_view(n.name) != "rec") o.log = detours.logger();
      if (n.path.empty()) return open_test_model(n.bytes, o);
      auto p = Predictor::open(n.path, o);
      REQUIRE_OK(p);
      return std::move(*p);
    };
    const auto cpu = open("cpu", Precision::kF32);
    for (const Precision precision : {Precision::kBf16, Precision::kF16, Precision::kTf32}) {
      const auto device = open(kCudaPlugin, precision);
      INFO(n.name << " " << precision_name(precision) << "\n" << device->summary());
      CHECK_THAT(device->summary(), Contains(cat("precision ", precision_name(precision), n.said)));
      const double d = distance(*device, *cpu, {random_input(n.shape, 40)});
      INFO("distance " << d);
      // A layer's operands are each off by at most 2^-bits of their norm, and layers' errors are independent:
      // they add up like their squares.
      const double u = precision == Precision::kBf16 ? 0x1p-8 : 0x1p-11;
      CHECK(d <= 2 * u * std::sqrt(n.layers));
      // It does compute in fewer bits; scores of "cls" are 0 and 1 in any.
      CHECK((d > u / 64 || std::string_view(n.name) == "cls"));
    }
    CHECK(detours.said() == "");
  }
  PredictorOptions o = options_on("cpu");
  for (const Precision precision : {Precision::kF16, Precision::kTf32}) {
    o.precision = precision;
    const auto p = Predictor::create(import_test_model(bottlenecks()), o);
    REQUIRE(!p.ok());
    CHECK_THAT(p.status().message(),
               Contains(cat("precision ", precision_name(precision), " is of a device")));
  }
}

TEST_CASE("cuda: encoders of checkpoints in bf16, and what they are refused in", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string folder = write_tiny_encoder("bert");
  PredictorOptions o = options_on(kCudaPlugin);
  const auto cpu = load_text_encoder(folder, options_on("cpu"));
  o.precision = Precision::kBf16;
  const auto device = load_text_encoder(folder, o);
  REQUIRE_OK(cpu);
  REQUIRE_OK(device);
  const auto tokens = cpu->encoder->accept({7, 9, 11, 20, 33, 5}, 0);
  REQUIRE_OK(tokens);
  const auto in = cpu->encoder->inputs(*tokens);
  REQUIRE_OK(in);
  const double d = distance(*device->runner, *cpu->runner, *in);
  INFO("distance " << d);
  // Weights of at most two dozen products; rows are not rounded.
  CHECK(d <= 0x1p-8 * std::sqrt(24));
  CHECK(d > 0x1p-14);
  for (const Precision precision : {Precision::kF16, Precision::kTf32}) {
    o.precision = precision;
    const auto refused = load_text_encoder(folder, o);
    REQUIRE(!refused.ok());
    CHECK_THAT(refused.status().message(),
               Contains(cat("precision ", precision_name(precision), " is of ordinary models")));
  }
}

TEST_CASE("cuda: the same networks with convolutions and pools by cuDNN", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const WithLibraries with("cudnn");
  Detours detours;
  PredictorOptions on_device = options_on(kCudaPlugin);
  on_device.log = detours.logger();
  const std::string bytes = bottlenecks();
  const auto cpu = open_test_model(bytes, options_on("cpu")), device = open_test_model(bytes, on_device);
  if (!detours.cudnn()) OAR_SKIP("no cuDNN here");
  for (const int64_t batch : {1, 2})
    check_near(*device, *cpu, {random_input({batch, 3, 32, 40}, 40)}, 16, 147);
  CHECK(detours.said() == "");
  for (const char* name : {"det", "rec", "cls"}) {
    INFO(name);
    const std::string path = source_path(std::string("tests/data/ocr/") + name);
    const auto here = Predictor::open(path, options_on("cpu")),
               there = Predictor::open(path, options_on(kCudaPlugin));
    REQUIRE_OK(here);
    REQUIRE_OK(there);
    check_near(**there, **here, {random_input({1, 3, 32, 96}, 41)}, 100, 600);
  }
}

TEST_CASE("cuda: detection, recognition and classification of text", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Case {
    const char* name;
    const char* beside;  // what the processor makes of shapes alone
  };
  for (const Case& c : {Case{"det", ""}, Case{"rec", "(cast, constant_of_shape)"}, Case{"cls", ""}}) {
    INFO(c.name);
    const std::string path = source_path(std::string("tests/data/ocr/") + c.name);
    Detours detours;
    PredictorOptions on_device = options_on(kCudaPlugin);
    on_device.log = detours.logger();
    const auto cpu = Predictor::open(path, options_on("cpu")), device = Predictor::open(path, on_device);
    REQUIRE_OK(cpu);
    REQUIRE_OK(device);
    check_near(**device, **cpu, {random_input({1, 3, 32, 96}, 41)}, 100, 600);
    if (*c.beside == 0) CHECK(detours.said() == "");
    else CHECK_THAT(detours.said(), Contains(c.beside));
  }
}

TEST_CASE("cuda: a network of layers in 8-bit integers, all of them on the device", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string bytes = quantized_network();
  BothSides sides(bytes);
  // Bytes are the same; the last layer scales its sums once.
  for (const int64_t batch : {1, 3})
    check_near(*sides.device, *sides.cpu, {random_input({batch, 8, 6, 7}, 45)}, 1, 1);
  const auto groups = sides.device->steps(std::vector<Shape>{{1, 8, 6, 7}});
  REQUIRE_OK(groups);
  int layers = 0;
  for (const StepGroup& g : *groups) {
    if (g.op.ends_with("quantize_linear")) CHECK(g.on_device);  // the borders, both ways
    if (!g.op.starts_with("quantized_")) continue;
    CHECK(g.on_device);
    layers += g.steps;
  }
  CHECK(layers == 3);
  CHECK(sides.detours.said() == "");
}

TEST_CASE(
    "cuda: networks of layers of 8-bit integers, their sums and pools of bytes, and no op waits for the "
    "processor",
    "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<int8_t> w(5 * 3 * 9), m(5 * 5);
  for (size_t k = 0; k < w.size(); ++k) w[k] = static_cast<int8_t>(static_cast<int>(k * 37 % 255) - 127);
  for (size_t k = 0; k < m.size(); ++k) m[k] = static_cast<int8_t>(static_cast<int>(k * 91 % 255) - 127);
  const auto model = [&](const Proto& zero) {
    const auto q = [](const std::string& x, const std::string& out) {
      return node_proto("QuantizeLinear", {x, "s", "z"}, {out});
    };
    const auto dq = [](const std::string& x, const std::string& out) {
      return node_proto("DequantizeLinear", {x, "s", "z"}, {out});
    };
    return model_bytes(graph_proto(
        {q("x", "a"), dq("a", "b"), node_proto("DequantizeLinear", {"w", "sw"}, {"wd"}),
         node_proto("Conv", {"b", "wd"}, {"c"}), q("c", "d"), dq("d", "e"),
         node_proto("MaxPool", {"e"}, {"f"},
                    {ints_attr("kernel_shape", {3, 3}), ints_attr("strides", {2, 2}),
                     ints_attr("pads", {1, 1, 1, 1})}),
         q("f", "g"), dq("g", "h"),
         node_proto("MaxPool", {"e"}, {"i"},
                    {ints_attr("kernel_shape", {1, 1}), ints_attr("strides", {2, 2})}),
         q("i", "j"), dq("j", "k"), node_proto("Add", {"h", "k"}, {"l"}), node_proto("Relu", {"l"}, {"n"}),
         node_proto("QuantizeLinear", {"n", "t", "z"}, {"o"}),
         node_proto("DequantizeLinear", {"o", "t", "z"}, {"r"}),
         node_proto("DequantizeLinear", {"m", "sw"}, {"md"}), node_proto("Conv", {"r", "md"}, {"y"})},
        {zero, tensor_proto("s", {}, {0.0625f}), tensor_proto("t", {}, {0.09f}),
         tensor_proto("sw", {}, {0.01f}), raw_proto("w", 3, {5, 3, 3, 3}, w),
         raw_proto("m", 3, {5, 5, 1, 1}, m)},
        {value_proto("x", {-1, 3, 9, 12})}, {value_proto("y", {-1, 5, 4, 5})}));
  };
  for (const bool is_signed : {false, true}) {
    INFO("signed " << is_signed);
    const std::string bytes =
        model(is_signed ? raw_proto<int8_t>("z", 3, {}, {-7}) : raw_proto<uint8_t>("z", 2, {}, {100}));
    BothSides sides(bytes);
    for (const int64_t batch : {1, 3})
      check_near(*sides.device, *sides.cpu, {random_input({batch, 3, 9, 12}, 47)}, 1, 1);
    const std::vector<StepGroup> groups = check_all_on_device(sides, {1, 3, 9, 12});
    for (const char* op : {"max_pool", "quantized_add"})
      CHECK(std::ranges::any_of(groups, [&](const StepGroup& g) { return g.op == op; }));
  }
}

TEST_CASE(
    "cuda: networks of layers of 8-bit integers whose ranges are a run's, and no op waits for the processor",
    "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<int8_t> w(5 * 3 * 9);
  std::vector<uint8_t> m(63 * 11);
  for (size_t k = 0; k < w.size(); ++k) w[k] = static_cast<int8_t>(static_cast<int>(k * 37 % 255) - 127);
  for (size_t k = 0; k < m.size(); ++k) m[k] = static_cast<uint8_t>(k * 91 + k / 127);
  // A convolution, whose channels' results are rows of a product with weights of u8 and a zero point each.
  const std::string bytes = model_bytes(graph_proto(
      {node_proto("DynamicQuantizeLinear", {"x"}, {"q", "s", "z"}),
       node_proto("ConvInteger", {"q", "w", "z"}, {"sums"}, {ints_attr("pads", {1, 1, 1, 1})}),
       node_proto("Cast", {"sums"}, {"wide"}, {int_attr("to", 1)}), node_proto("Mul", {"s", "sw"}, {"scale"}),
       node_proto("Mul", {"wide", "scale"}, {"pixels"}), node_proto("Relu", {"pixels"}, {"seen"}),
       node_proto("Reshape", {"seen", "flat"}, {"rows"}),
       node_proto("DynamicQuantizeLinear", {"rows"}, {"q2", "s2", "z2"}),
       node_proto("MatMulInteger", {"q2", "m", "z2", "zm"}, {"sums2"}),
       node_proto("Cast", {"sums2"}, {"wide2"}, {int_attr("to", 1)}),
       node_proto("Mul", {"s2", "sw"}, {"scale2"}), node_proto("Mul", {"wide2", "scale2"}, {"scaled"}),
       node_proto("Add", {"scaled", "bias"}, {"y"})},
      {raw_proto("w", 3, {5, 3, 3, 3}, w), raw_proto("m", 2, {63, 11}, m), tensor_proto("sw", {}, {0.01f}),
       raw_proto<uint8_t>("zm", 2, {11}, {128, 0, 255, 127, 1, 2, 3, 200, 128, 90, 17}),
       tensor_proto("bias", {11}, std::vector<float>(11, 0.25f)), ints_proto("flat", {0, 5, 63})},
      {value_proto("x", {-1, 3, 7, 9})}, {value_proto("y", {-1, 5, 11})}));
  BothSides sides(bytes);
  // Ranges, sums and products are of the same bits.
  for (const int64_t batch : {1, 3})
    check_near(*sides.device, *sides.cpu, {random_input({batch, 3, 7, 9}, 46)}, 0, 0);
  check_all_on_device(sides, {1, 3, 7, 9});
}

TEST_CASE("cuda: networks of recurrent layers with lengths of entries, and no op waits for the processor",
          "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr int64_t kT = 6, kB = 3, kI = 4, kH = 9;
  const auto weight = [](const std::string& name, const std::vector<int64_t>& dims, uint32_t seed) {
    const Shape shape{std::span<const int64_t>(dims)};
    std::vector<float> v = random_values(static_cast<size_t>(shape.numel()), Values::kNormal, seed);
    for (float& x : v) x *= 0.3f;
    return tensor_proto(name, dims, v);
  };
  const auto model = [&](const char* op, int64_t gates, bool computed) {
    std::vector<Proto> nodes;
    // A box of what is given, which the device cuts.
    if (computed) nodes.push_back(node_proto("Slice", {"lengths", "from", "to"}, {"its"}));
    nodes.push_back(node_proto(op, {"x", "w", "r", "b", computed ? "its" : "lengths"}, {"y", "h"},
                               {int_attr("hidden_size", kH), text_attr("direction", "bidirectional")}));
    return model_bytes(graph_proto(
        nodes,
        {weight("w", {2, gates * kH, kI}, 50), weight("r", {2, gates * kH, kH}, 51),
         weight("b", {2, 2 * gates * kH}, 52), ints_proto("from", {1}), ints_proto("to", {kB + 1})},
        {value_proto("x", {kT, kB, kI}), value_proto("lengths", {-1}, 6)},
        {name_proto("y"), name_proto("h")}));
  };
  const auto entries = [](const std::vector<int32_t>& lengths) {
    Tensor t = must(Tensor::allocate({static_cast<int64_t>(lengths.size())}, Format::i32()));
    std::memcpy(t.mutable_data(), lengths.data(), t.bytes());
    return Datum(t);
  };
  for (const auto& [op, gates] : {std::pair{"LSTM", 4}, std::pair{"GRU", 3}, std::pair{"RNN", 1}}) {
    for (const bool computed : {false, true}) {
      INFO(op << " computed " << computed);
      const std::string bytes = model(op, gates, computed);
      BothSides sides(bytes);
      const Datum x = random_input({kT, kB, kI}, 53);
      std::vector<int32_t> lengths{2, 6, 0};
      if (computed) lengths.insert(lengths.begin(), 77);
      check_near(*sides.device, *sides.cpu, {x, entries(lengths)}, 2 * kT, kI + kH + 16);
      CHECK(sides.detours.said() == "");
      // What the run brings is refused by name; what the device has computed makes its entry no numbers.
      lengths.back() = 7;
      const auto got = sides.device->run(std::vector<Datum>{x, entries(lengths)});
      if (!computed) {
        REQUIRE_FALSE(got.ok());
        CHECK_THAT(got.status().message(), Contains("length 7 is outside of [0, 6]"));
        continue;
      }
      REQUIRE_OK(got);
      const auto h = (*got)[1].tensor.values<float>();
      for (size_t i = 0; i < h.size(); ++i) CHECK(std::isnan(h[i]) == (i / kH % kB == 2));
    }
  }
}

TEST_CASE("cuda: encoders, and no op waits for the processor", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* name : {"bert", "xlm-roberta-classifier", "modernbert", "electra", "gte-published"}) {
    INFO(name);
    const std::string folder = write_tiny_encoder(name);
    Detours detours;
    PredictorOptions on_device = options_on(kCudaPlugin);
    on_device.log = detours.logger();
    const auto cpu = load_text_encoder(folder, options_on("cpu")),
               device = load_text_encoder(folder, on_device);
    REQUIRE_OK(cpu);
    REQUIRE_OK(device);
    const auto tokens = cpu->encoder->accept({7, 9, 11, 20, 33, 5}, 0);
    REQUIRE_OK(tokens);
    const auto in = cpu->encoder->inputs(*tokens);
    REQUIRE_OK(in);
    // A dozen steps for each of at most four layers; feed-forward layers sum 128 products.
    check_near(*device->runner, *cpu->runner, *in, 50, 128);
    CHECK(detours.said() == "");
  }
}
