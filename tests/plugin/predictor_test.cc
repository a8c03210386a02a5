// Ordinary models on the loopback device: the bits of the processor's reference kernels, whatever part of the
// graph the device has kernels for. Cases without [any] have the device lack something, fail or be small.
#include <random>
#include <thread>

#include "engine/runtime/text_encoder.h"
#include "tests/import/onnx_predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/import/quantized_network.h"
#include "tests/import/random_model.h"
#include "tests/plugin/tested_device.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {
using namespace oar;
using namespace oar_test;

PredictorOptions options_on(const std::string& device, Logger log = {}) {
  PredictorOptions o;
  o.threads = 2;
  o.reference = true;
  o.device = device;
  o.log = std::move(log);
  return o;
}

std::vector<float> random_values(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> u(-1, 1);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = u(random);
  return v;
}

Datum random_input(const Shape& shape, uint32_t seed) {
  return input(shape, random_values(shape.numel(), seed));
}

Proto weight(const std::string& name, const std::vector<int64_t>& dims, uint32_t seed) {
  return tensor_proto(name, dims, random_values(Shape(std::span(dims)).numel(), seed));
}

Datum zeros(const Shape& shape, const Format& format) {
  Tensor t = must(Tensor::allocate(shape, format));
  std::memset(t.mutable_data(), 0, t.bytes());
  return Datum(t);
}

// Extents that a model leaves open: one image of 32 x 96. What is no f32 is 0.
std::vector<Datum> inputs_of(const Predictor& p, uint32_t seed) {
  const int64_t open[] = {1, 3, 32, 96};
  std::vector<Datum> in;
  for (const IoSpec& spec : p.inputs()) {
    std::vector<int64_t> dims;
    for (size_t k = 0; k < spec.dims.size(); ++k)
      dims.push_back(spec.dims[k].value > 0 ? spec.dims[k].value : open[std::min<size_t>(k, 3)]);
    const Shape shape(std::span<const int64_t>{dims});
    const bool f32 = spec.dtype == DType::kF32;
    in.push_back(f32 ? random_input(shape, seed) : zeros(shape, Format::of(spec.dtype)));
  }
  return in;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.format() == b.format() &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// The processor's bits, or of another device's kernels numbers as close as f32 in another order leaves them.
bool agree(const Tensor& got, const Tensor& want) {
  if (on_loopback() || want.format() != Format::f32()) return same_bits(got, want);
  return got.shape() == want.shape() && distance_of(got.values<float>(), want.values<float>()) < 1e-4;
}

// Runs both on the same inputs, three times: without a plan, with one, and once more in memory that was used.
void check_same(const TensorRunner& device, const TensorRunner& cpu, const std::vector<Datum>& in) {
  const auto expected = cpu.run(in);
  REQUIRE_OK(expected);
  for (int round = 0; round < 3; ++round) {
    const auto got = device.run(in);
    REQUIRE_OK(got);
    REQUIRE(got->size() == expected->size());
    for (size_t k = 0; k < got->size(); ++k) CHECK(agree((*got)[k].tensor, (*expected)[k].tensor));
  }
}

// A stem, a residual block with a projection, pools and a classifier: what a ResNet is made of.
std::string small_resnet() {
  const auto conv = [](const std::string& x, const std::string& w, const std::string& y, int64_t k,
                       int64_t stride) {
    return node_proto("Conv", {x, w, w + "_b"}, {y},
                      {ints_attr("kernel_shape", {k, k}), ints_attr("strides", {stride, stride}),
                       ints_attr("pads", {k / 2, k / 2, k / 2, k / 2})});
  };
  return model_bytes(graph_proto(
      {conv("x", "stem", "a", 3, 2), node_proto("Relu", {"a"}, {"b"}),
       node_proto("MaxPool", {"b"}, {"c"},
                  {ints_attr("kernel_shape", {3, 3}), ints_attr("strides", {2, 2}),
                   ints_attr("pads", {1, 1, 1, 1})}),
       conv("c", "first", "d", 3, 2), node_proto("Relu", {"d"}, {"e"}), conv("e", "second", "f", 3, 1),
       conv("c", "shortcut", "g", 1, 2), node_proto("Add", {"f", "g"}, {"h"}),
       node_proto("Relu", {"h"}, {"i"}), node_proto("GlobalAveragePool", {"i"}, {"j"}),
       node_proto("Flatten", {"j"}, {"k"}),
       node_proto("Gemm", {"k", "fc", "fc_b"}, {"y"}, {int_attr("transB", 1)})},
      {weight("stem", {8, 3, 3, 3}, 1), weight("stem_b", {8}, 2), weight("first", {16, 8, 3, 3}, 3),
       weight("first_b", {16}, 4), weight("second", {16, 16, 3, 3}, 5), weight("second_b", {16}, 6),
       weight("shortcut", {16, 8, 1, 1}, 7), weight("shortcut_b", {16}, 8), weight("fc", {10, 16}, 9),
       weight("fc_b", {10}, 10)},
      {value_proto("x", {-1, 3, 32, 40})}, {value_proto("y", {-1, 10})}));
}

// x' = relu(x w + b), `trips` times.
std::string loop_of_layers(int64_t trips) {
  const Proto body =
      graph_proto({node_proto("MatMul", {"v", "w"}, {"p"}), node_proto("Add", {"p", "b"}, {"q"}),
                   node_proto("Relu", {"q"}, {"v_out"}), node_proto("Identity", {"go"}, {"go_out"})},
                  {weight("w", {6, 6}, 20), weight("b", {6}, 21)},
                  {value_proto("i", {}, 7), value_proto("go", {}, 9), value_proto("v", {-1, 6})},
                  {name_proto("go_out"), name_proto("v_out")});
  return model_bytes(graph_proto({node_proto("Loop", {"n", "", "x"}, {"y"}, {graph_attr("body", body)})},
                                 {ints_proto("n", {trips})}, {value_proto("x", {-1, 6})},
                                 {value_proto("y", {-1, 6})}));
}

std::string lstm(bool lengths = false) {
  return model_bytes(graph_proto({node_proto("LSTM", {"x", "w", "r", "b", lengths ? "lengths" : ""},
                                             {"y", "h", ""}, {int_attr("hidden_size", 5)})},
                                 {weight("w", {1, 20, 4}, 30), weight("r", {1, 20, 5}, 31),
                                  weight("b", {1, 40}, 32), raw_proto<int32_t>("lengths", 6, {2}, {7, 3})},
                                 {value_proto("x", {7, -1, 4})}, {name_proto("y"), name_proto("h")}));
}

}  // namespace

TEST_CASE("predictor on a device: a residual network", "[any]") {
  const auto cpu = open_test_model(small_resnet(), options_on("cpu"));
  const int64_t launches = tested_counter(loopback::kLaunches);
  const auto device = open_test_model(small_resnet(), options_on(tested_device()));
  for (const int64_t batch : {1, 3}) check_same(*device, *cpu, {random_input({batch, 3, 32, 40}, 40)});
  // Six runs of four convolutions, two pools and a layer.
  if (on_loopback()) CHECK(loopback_counter(loopback::kLaunches) - launches >= 6 * 7);
}

TEST_CASE("predictor on a device: reductions, their axes an attribute or a constant", "[any]") {
  const std::string model = model_bytes(graph_proto(
      {node_proto("ReduceMean", {"x"}, {"m"}, {ints_attr("axes", {2, 3})}),
       node_proto("ReduceSum", {"m", "axes"}, {"s"}, {int_attr("keepdims", 0)}),
       node_proto("ReduceMin", {"x"}, {"y"}, {ints_attr("axes", {-1})})},
      {ints_proto("axes", {1})}, {value_proto("x", {-1, 3, 9, 7})}, {name_proto("s"), name_proto("y")}));
  const auto cpu = open_test_model(model, options_on("cpu"));
  const auto device = open_test_model(model, options_on(tested_device()));
  const int64_t launches = tested_counter(loopback::kLaunches);
  check_same(*device, *cpu, {random_input({2, 3, 9, 7}, 41)});
  if (on_loopback()) CHECK(loopback_counter(loopback::kLaunches) - launches >= 3);
}

TEST_CASE("predictor on a device: bounds that are constants, others beside it", "[any]") {
  const auto clipped = [](bool computed) {
    return model_bytes(
        graph_proto({node_proto("ReduceMax", {"x"}, {"top"}, {int_attr("keepdims", 0)}),
                     node_proto("Clip", {"x", "low", computed ? "top" : "high"}, {"y"}),
                     node_proto("Clip", {"y", "", "low"}, {"z"})},
                    {raw_proto<float>("low", 1, {}, {-0.5f}), raw_proto<float>("high", 1, {}, {0.25f})},
                    {value_proto("x", {-1, 7})}, {name_proto("y"), name_proto("z")}));
  };
  for (const bool computed : {false, true}) {
    INFO(computed);
    const auto cpu = open_test_model(clipped(computed), options_on("cpu"));
    const auto device = open_test_model(clipped(computed), options_on(tested_device()));
    check_same(*device, *cpu, {random_input({5, 7}, 42)});
    const auto profile = [&] {
      std::vector<NodeTime> times;
      std::vector<Datum> in;
      in.emplace_back(random_input({5, 7}, 43));
      REQUIRE_OK(device->profile(std::move(in), &times));
      return std::ranges::count_if(
          times, [](const NodeTime& t) { return t.op == "clip" && t.where.starts_with("loopback."); });
    };
    if (on_loopback()) CHECK(profile() == (computed ? 1 : 2));
  }
}

TEST_CASE("predictor on a device: detection, recognition and classification of text", "[any]") {
  for (const char* name : {"det", "det.onnx", "rec", "cls"}) {
    INFO(name);
    const std::string path = source_path(std::string("tests/data/ocr/") + name);
    const auto cpu = Predictor::open(path, options_on("cpu")),
               device = Predictor::open(path, options_on(tested_device()));
    REQUIRE_OK(cpu);
    REQUIRE_OK(device);
    check_same(**device, **cpu, inputs_of(**cpu, 41));
  }
}

TEST_CASE("predictor on a device: recurrent layers and loops", "[any]") {
  const auto check = [](const std::string& bytes, const Shape& shape) {
    const auto cpu = open_test_model(bytes, options_on("cpu")),
               device = open_test_model(bytes, options_on(tested_device()));
    check_same(*device, *cpu, {random_input(shape, 42)});
  };
  check(lstm(), {7, 2, 4});
  check(loop_of_layers(3), {2, 6});
  // With lengths, which are looked at before the steps, and without.
  for (const bool lengths : {false, true}) {
    const std::string bytes = lstm(lengths);
    const auto cpu = open_test_model(bytes, options_on("cpu")),
               device = open_test_model(bytes, options_on(tested_device()));
    check_same(*device, *cpu, {random_input({7, 2, 4}, 43)});
    const auto groups = device->steps(std::vector<Shape>{{7, 2, 4}});
    REQUIRE_OK(groups);
    const auto layer = std::ranges::find(*groups, "lstm", &StepGroup::op);
    REQUIRE(layer != groups->end());
    CHECK((layer->on_device || !on_loopback()));
  }
}

TEST_CASE("predictor on a device: quantization, its sums and pools of bytes", "[any]") {
  const auto both = [](const std::string& x, const std::string& out) {
    return std::vector<Proto>{node_proto("QuantizeLinear", {x, "s", "z"}, {out + "_q"}),
                              node_proto("DequantizeLinear", {out + "_q", "s", "z"}, {out})};
  };
  std::vector<Proto> nodes;
  const auto add = [&](const std::vector<Proto>& more) {
    nodes.insert(nodes.end(), more.begin(), more.end());
  };
  add(both("x", "a"));
  nodes.push_back(node_proto("MaxPool", {"a"}, {"b"},
                             {ints_attr("kernel_shape", {3, 3}), ints_attr("pads", {1, 1, 1, 1})}));
  add(both("b", "c"));
  nodes.push_back(node_proto("Add", {"a", "c"}, {"d"}));
  add(both("d", "e"));
  nodes.push_back(node_proto("DynamicQuantizeLinear", {"e"}, {"f", "scale", "zero"}));
  nodes.push_back(node_proto("Cast", {"f"}, {"y"}, {int_attr("to", 1)}));
  const std::string bytes = model_bytes(graph_proto(
      nodes, {tensor_proto("s", {}, {0.03f}), raw_proto<uint8_t>("z", 2, {}, {100})},
      {value_proto("x", {-1, 3, 9, 12})}, {name_proto("y"), name_proto("scale"), name_proto("zero")}));
  const auto cpu = open_test_model(bytes, options_on("cpu")),
             device = open_test_model(bytes, options_on(tested_device()));
  check_same(*device, *cpu, {random_input({2, 3, 9, 12}, 44)});
  const auto groups = device->steps(std::vector<Shape>{{2, 3, 9, 12}});
  REQUIRE_OK(groups);
  for (const char* op :
       {"quantize_linear", "quantized_add", "dequantize_linear", "dynamic_quantize_linear", "cast"}) {
    INFO(op);
    const auto found = std::ranges::find(*groups, op, &StepGroup::op);
    REQUIRE(found != groups->end());
    CHECK((found->on_device || !on_loopback()));
  }
}

TEST_CASE("predictor on a device: images are resized there", "[any]") {
  const auto resized = [](const char* mode, const char* place) {
    return model_bytes(graph_proto(
        {node_proto("Relu", {"x"}, {"a"}),
         node_proto("Resize", {"a", "", "scales"}, {"b"},
                    {text_attr("mode", mode), text_attr("coordinate_transformation_mode", place)}),
         node_proto("Relu", {"b"}, {"y"})},
        {tensor_proto("scales", {4}, {1, 1, 2, 1.5})}, {value_proto("x", {-1, 3, 6, 8})},
        {value_proto("y", {-1, 3, 12, 12})}));
  };
  for (const auto& [mode, place] : {std::pair{"nearest", "asymmetric"}, std::pair{"linear", "half_pixel"},
                                    std::pair{"cubic", "align_corners"}}) {
    INFO(mode);
    const std::string bytes = resized(mode, place);
    const auto cpu = open_test_model(bytes, options_on("cpu"));
    const int64_t launches = tested_counter(loopback::kLaunches);
    const auto device = open_test_model(bytes, options_on(tested_device()));
    check_same(*device, *cpu, {random_input({2, 3, 6, 8}, 44)});
    if (on_loopback()) CHECK(loopback_counter(loopback::kLaunches) - launches >= 3);
  }
}

TEST_CASE("predictor on a device: layers of 8-bit integers", "[any]") {
  const std::string bytes = quantized_network();
  const auto cpu = open_test_model(bytes, options_on("cpu")),
             device = open_test_model(bytes, options_on(tested_device()));
  for (const int64_t batch : {1, 3}) check_same(*device, *cpu, {random_input({batch, 8, 6, 7}, 45)});
  const auto groups = device->steps(std::vector<Shape>{{1, 8, 6, 7}});
  REQUIRE_OK(groups);
  int layers = 0;
  for (const StepGroup& g : *groups) {
    UNSCOPED_INFO(g.op << " on " << g.where << (g.on_device ? ", the device, " : ", ") << g.steps);
    if (!g.op.starts_with("quantized_")) continue;
    CHECK((g.on_device || !on_loopback()));
    layers += g.steps;
  }
  CHECK(layers == 3);
}

TEST_CASE("predictor on a device: attention of ordinary models is one launch", "[any]") {
  const auto attention = [](bool causal, int64_t cap) {
    return model_bytes(
        graph_proto(
            {node_proto("Attention", {"q", "k", "v", "m"}, {"y"},
                        {int_attr("is_causal", causal), float_attr("softcap", static_cast<float>(cap))})},
            {weight("m", {5, 9}, 33)},
            {value_proto("q", {-1, 4, 5, 8}), value_proto("k", {-1, 2, 9, 8}),
             value_proto("v", {-1, 2, 9, 6})},
            {name_proto("y")}),
        23);
  };
  for (const bool causal : {false, true}) {
    const std::string bytes = attention(causal, causal ? 2 : 0);
    const auto cpu = open_test_model(bytes, options_on("cpu")),
               device = open_test_model(bytes, options_on(tested_device()));
    const std::vector<Datum> in = {random_input({2, 4, 5, 8}, 50), random_input({2, 2, 9, 8}, 51),
                                   random_input({2, 2, 9, 6}, 52)};
    const int64_t launches = tested_counter(loopback::kLaunches);
    check_same(*device, *cpu, in);
    if (on_loopback()) CHECK(loopback_counter(loopback::kLaunches) - launches == 3);
  }
}

TEST_CASE("predictor on a device: whole published models", "[slow][.]") {
  int models = 0;
  for (const char* name :
       {"onnx/mnist_cntk/mnist.onnx", "onnx/fastestdet/FastestDet.onnx", "onnx/ppocr_v3_det/model.onnx",
        "onnx/super_resolution/super_resolution.onnx", "onnx/ultraface/version-RFB-320.onnx",
        "onnx/bert_like_graphs/dummy_transformer.onnx"}) {
    const auto path = data_path(name);
    if (!path) continue;
    INFO(name);
    const auto cpu = Predictor::open(*path, options_on("cpu")),
               device = Predictor::open(*path, options_on("loopback"));
    REQUIRE_OK(cpu);
    REQUIRE_OK(device);
    check_same(**device, **cpu, inputs_of(**cpu, 60));
    ++models;
  }
  if (models == 0) OAR_SKIP("no published models beside the repository");
}

TEST_CASE("predictor on a device: encoders", "[any]") {
  struct Case {
    const char *name, *weights, *config;
    const char* named;       // in the warnings, for want of a kernel
    bool same_graph = true;  // or an op became its definition, an activation a step of its own
  };
  for (const Case& c :
       {Case{"bert", "", "", ""}, Case{"xlm-roberta-classifier", "", "", ""}, Case{"bert", "int8", "", ""},
        Case{"bert", "", "missing=segment_attention", "no kernel for attention"},
        Case{"xlm-roberta-classifier", "", "missing=embedding+gather_rows", "no kernel for gather"},
        Case{"xlm-roberta-classifier", "", "missing=conv+matmul+layer_norm", "no kernel for linear",
             false}}) {
    if (!on_loopback() && *c.config != 0) continue;
    INFO(c.name << " " << c.weights << " " << c.config);
    LoopbackConfig config(c.config);
    Warnings warnings;
    const std::string folder = write_tiny_encoder(c.name);
    PredictorOptions on_cpu = options_on("cpu"), on_device = options_on(tested_device(), warnings.logger());
    on_cpu.weights = on_device.weights = c.weights;
    const auto cpu = load_text_encoder(folder, on_cpu), device = load_text_encoder(folder, on_device);
    REQUIRE_OK(cpu);
    REQUIRE_OK(device);
    std::string said;
    for (const std::string& line : warnings.lines()) said += line + "\n";
    CHECK_THAT(said, Contains(c.named));
    if (on_loopback()) CHECK((said.find("no kernel") == std::string::npos) == (*c.named == 0));
    const auto tokens = cpu->encoder->accept({7, 9, 11, 20}, 0);
    REQUIRE_OK(tokens);
    const auto in = cpu->encoder->inputs(*tokens);
    REQUIRE_OK(in);
    const int64_t launches = tested_counter(loopback::kLaunches);
    if (c.same_graph) {
      check_same(*device->runner, *cpu->runner, *in);
    } else {
      // States are of the size of 1, each of the dozen steps rounds once more than 2^-24.
      const auto got = device->runner->run(*in), want = cpu->runner->run(*in);
      REQUIRE_OK(got);
      REQUIRE_OK(want);
      const auto values = [](const Datum& d) { return d.tensor.values<float>(); };
      for (size_t i = 0; i < values((*want)[0]).size(); ++i)
        CHECK(values((*got)[0])[i] == Approx(values((*want)[0])[i]).margin(1e-5));
    }
    if (on_loopback()) CHECK(loopback_counter(loopback::kLaunches) > launches);
  }
}

TEST_CASE("predictor on a device: what it lacks runs beside it, and is said once") {
  const auto cpu = open_test_model(small_resnet(), options_on("cpu"));
  const Datum x = random_input({2, 3, 32, 40}, 43);
  struct Case {
    const char* config;
    const char* named;  // in the warning
  };
  for (const Case& c :
       {Case{"missing=pool", "max_pool"}, Case{"missing=conv", "max_pool"}, Case{"plain=1", ""}}) {
    INFO(c.config);
    LoopbackConfig config(c.config);
    Warnings warnings;
    const auto device = open_test_model(small_resnet(), options_on("loopback", warnings.logger()));
    check_same(*device, *cpu, {x});
    const auto lines = warnings.lines();
    CHECK(lines.size() <= 1);
    if (std::string(c.named) == "max_pool" && std::string(c.config) == "missing=pool") {
      REQUIRE(lines.size() == 1);
      CHECK(lines[0].find("max_pool") != std::string::npos);
      CHECK(lines[0].find("KiB") != std::string::npos);
    }
  }
  LoopbackConfig none(
      "missing=conv+depthwise+pool+softmax+activate+layer_norm+rms_norm+unary+binary+matmul+strided_copy");
  const auto device = open_test_model(small_resnet(), options_on("loopback"));
  const int64_t launches = loopback_counter(loopback::kLaunches);
  check_same(*device, *cpu, {x});
  CHECK(loopback_counter(loopback::kLaunches) == launches);
}

TEST_CASE("predictor on a device: of what depends on values only that op runs beside it, on what it reads",
          "[any]") {
  // As many rows as `v` has numbers above zero. All but NonZero is the device's; its size alone is used.
  const std::string model = model_bytes(graph_proto(
      {node_proto("Relu", {"v"}, {"a"}), node_proto("NonZero", {"a"}, {"n"}),
       node_proto("Shape", {"n"}, {"s"}), node_proto("Relu", {"x"}, {"b"}),
       node_proto("Reshape", {"b", "s"}, {"c"}),
       node_proto("Gemm", {"c", "w"}, {"y"}, {int_attr("transB", 1)})},
      {weight("w", {5, 6}, 44)}, {value_proto("v", {12}), value_proto("x", {2, 3})}, {name_proto("y")}));
  std::vector<float> v(12, -1);
  for (const size_t k : {0, 1, 4, 7, 8, 11}) v[k] = 0.5f;
  const std::vector<Datum> in = {input({12}, v), random_input({2, 3}, 45)};
  Warnings warnings;
  const auto cpu = open_test_model(model, options_on("cpu")),
             device = open_test_model(model, options_on(tested_device(), warnings.logger()));
  const int64_t launches = tested_counter(loopback::kLaunches);
  check_same(*device, *cpu, in);
  if (on_loopback()) CHECK(loopback_counter(loopback::kLaunches) - launches >= 3 * 3);
  if (!on_loopback()) return;
  const auto lines = warnings.lines();
  REQUIRE(lines.size() == 1);
  INFO(lines[0]);
  CHECK(lines[0].find("(non_zero): ") != std::string::npos);
  // There: both inputs. Back: what NonZero reads, and the result.
  CHECK(lines[0].find("a run copied 72 B to the device and 68 B from it") != std::string::npos);
}

TEST_CASE("predictor on a device: an error of the device stays, and others go on") {
  const auto cpu = open_test_model(small_resnet(), options_on("cpu"));
  const Datum x = random_input({1, 3, 32, 40}, 44);
  std::unique_ptr<Predictor> failing;
  for (const char* how : {"fail_launch=4", "fail_later=4"}) {
    INFO(how);
    {
      LoopbackConfig config(how);
      failing = open_test_model(small_resnet(), options_on("loopback"));
    }
    const auto first = failing->run({x});
    REQUIRE(!first.ok());
    CHECK(first.status().code() == StatusCode::kUnavailable);
    CHECK(std::string(first.status().message()).find("loopback") != std::string::npos);
    CHECK(failing->run({x}).status().code() == StatusCode::kUnavailable);
    const auto healthy = open_test_model(small_resnet(), options_on("loopback"));
    check_same(*healthy, *cpu, {x});
  }
}

TEST_CASE("predictor on a device: memory that is not there is an error, and nothing is lost") {
  const auto alive = [] { return loopback_counter(loopback::kAllocations); };
  const int64_t before = alive();
  {
    LoopbackConfig config("memory=40000");
    const auto device = open_test_model(small_resnet(), options_on("loopback"));
    const auto large = device->run({random_input({8, 3, 32, 40}, 45)});
    REQUIRE(!large.ok());
    CHECK(large.status().code() == StatusCode::kResourceExhausted);
  }
  CHECK(alive() == before);
}

TEST_CASE("predictor on a device: its arena is given back", "[any]") {
  const auto device = open_test_model(small_resnet(), options_on(tested_device()));
  const Datum x = random_input({2, 3, 32, 40}, 46);
  REQUIRE_OK(device->run({x}));
  const int64_t held = tested_counter(loopback::kAllocations);
  const uint64_t host = device->arena_bytes();
  CHECK(device->shrink() > host);
  if (on_loopback()) CHECK(loopback_counter(loopback::kAllocations) < held);
  REQUIRE_OK(device->run({x}));
}

TEST_CASE("predictor on a device: handles and threads share it", "[any]") {
  const auto device = open_test_model(small_resnet(), options_on(tested_device()));
  const auto alone = open_test_model(small_resnet(), options_on(on_loopback() ? "cpu" : tested_device()));
  std::vector<std::vector<Datum>> in;
  std::vector<Tensor> expected;
  for (uint32_t k = 0; k < 4; ++k) {
    in.push_back({random_input({1 + k % 2, 3, 32, 40}, 50 + k)});
    expected.push_back((*alone->run(in.back()))[0].tensor);
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t k = 0; k < in.size(); ++k) {
    threads.emplace_back([&, k, handle = std::shared_ptr<Predictor>(device->clone())] {
      for (int round = 0; round < 5; ++round) {
        const auto out = handle->run(in[k]);
        wrong += !out.ok() || !same_bits((*out)[0].tensor, expected[k]);
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("predictor on a device: random graphs", "[any]") {
  const auto pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2});
  const int64_t launches = tested_counter(loopback::kLaunches);
  for (uint32_t seed = 1; seed <= (on_loopback() ? 150 : 15); ++seed) {
    INFO("seed " << seed);
    RandomModel model(seed);
    PredictorOptions o = options_on("cpu");
    o.resources.pool = pool;
    const auto cpu = open_test_model(model.bytes(), o);
    o.device = tested_device();
    const auto device = open_test_model(model.bytes(), o);
    std::vector<Datum> in;
    for (const auto& dims : model.inputs())
      in.push_back(random_input(Shape(std::span<const int64_t>(dims)), seed));
    check_same(*device, *cpu, in);
  }
  if (on_loopback()) CHECK(loopback_counter(loopback::kLaunches) - launches > 500);
}

TEST_CASE("predictor on a device: a precision that it has no kernels for is refused by name") {
  for (const Precision precision : {Precision::kInt8, Precision::kBf16, Precision::kF16, Precision::kTf32}) {
    PredictorOptions o = options_on("loopback");
    o.precision = precision;
    const auto p = Predictor::create(import_test_model(small_resnet()), o);
    REQUIRE(!p.ok());
    CHECK(p.status().code() == StatusCode::kInvalidArgument);
    CHECK(p.status().param() == "precision");
    CHECK_THAT(p.status().message(),
               Contains(cat("precision ", precision_name(precision), " is not of device loopback")) &&
                   Contains(", which has f32: name one of these"));
  }
}

TEST_CASE("predictor on a device: values in double precision are warned about by name", "[any]") {
  std::string said;
  PredictorOptions o = options_on(tested_device());
  o.log = Logger([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning && text.find("f64") != std::string_view::npos) said = text;
  });
  const auto model = [](bool wide) {
    const int64_t to = wide ? 11 : 1;
    return model_bytes(graph_proto({node_proto("Cast", {"x"}, {"inside"}, {int_attr("to", to)}),
                                    node_proto("Mul", {"inside", "inside"}, {"squares"}),
                                    node_proto("Cast", {"squares"}, {"y"}, {int_attr("to", 1)})},
                                   {}, {value_proto("x", {4})}, {value_proto("y", {4})}));
  };
  const auto device = open_test_model(model(true), o);
  CHECK_THAT(said, Contains(" computes in f32, and 1 value is f64: the_Cast; "));
  CHECK(values(*device, input({4}, std::vector<float>{1, 2, 3, 4})) == std::vector<float>{1, 4, 9, 16});
  said.clear();
  open_test_model(model(false), o);
  o.device = "cpu";
  open_test_model(model(true), o);
  CHECK(said == "");
}
