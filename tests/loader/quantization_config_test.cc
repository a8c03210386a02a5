// Quantized Hugging Face checkpoints: against each method's reference dequantization
// (make_quantized_goldens.py), and what happens when they lie.
#include "engine/loader/quantization_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/loader/checkpoint.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

using oar_test::Contains;

struct Golden {
  json::object config;
  TensorMap tensors, expected;
  std::map<std::string, std::string> formats;  // of the expected weights
};

Golden load_golden(const std::string& name) {
  auto file = open_safetensors(oar_test::source_path("tests/loader/quantized/" + name + ".safetensors"));
  REQUIRE(file.ok());
  Golden g;
  g.config = parse_json(file->metadata["config"], "golden").value().get_object();
  for (const auto& [key, value] : file->metadata) {
    if (key.starts_with("format:")) g.formats[key.substr(7)] = value;
  }
  for (auto& [tensor, value] : file->tensors) {
    if (tensor.starts_with("expected:")) g.expected.emplace(tensor.substr(9), value);
    else g.tensors.emplace(tensor, value);
  }
  return g;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& f : std::filesystem::directory_iterator(oar_test::source_path("tests/loader/quantized"))) {
    names.push_back(f.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("quantized checkpoints decode to their reference, bit for bit") {
  const auto names = golden_names();
  CHECK(names.size() == 22);
  for (const std::string& name : names) {
    CAPTURE(name);
    Golden g = load_golden(name);
    std::vector<std::string> notices;
    const Status s = apply_quantization_config(g.config, g.tensors, &notices);
    INFO(s.message());
    REQUIRE(s.ok());
    CHECK(g.tensors.size() == g.expected.size());  // the parts are gone
    for (const auto& [module, reference] : g.expected) {
      CAPTURE(module);
      const Tensor& weight = g.tensors.at(module + ".weight");
      CHECK(weight.format().name() == g.formats.at(module));
      REQUIRE(weight.shape() == reference.shape());
      const Tensor ours = to_f32(weight).value(), theirs = to_f32(reference).value();
      // The reference's arithmetic ends with one rounding to its type; ours is the number before it.
      std::vector<std::byte> rounded(reference.bytes());
      reference.format().info().encode(ours.values<float>().data(), ours.numel(), rounded.data());
      std::vector<float> values(static_cast<size_t>(ours.numel()));
      reference.format().info().decode(rounded.data(), 0, ours.numel(), values.data());
      const auto expected = theirs.values<float>();
      for (size_t i = 0; i < values.size(); ++i) {
        CAPTURE(i);
        REQUIRE(values[i] == expected[i]);
      }
    }
    const bool decoded = g.formats.begin()->second == "f16" || g.formats.begin()->second == "bf16";
    CHECK(notices.size() == (decoded || name == "fp8_tensor" ? 1 : 0));
  }
}

TEST_CASE("activation order is said to cost memory") {
  Golden g = load_golden("gptq_act_order");
  std::vector<std::string> notices;
  REQUIRE(apply_quantization_config(g.config, g.tensors, &notices).ok());
  CHECK_THAT(notices.at(0),
             Contains("1 weights: kept decoded, in f16: its columns are grouped in activation order"));
}

Tensor tensor_of(const Shape& shape, Format format, float value) {
  Tensor t = Tensor::zeros(shape, format).value();
  std::vector<float> row(static_cast<size_t>(t.numel()), value);
  format.info().encode(row.data(), t.numel(), t.mutable_data());
  return t;
}

// The message of the failure after `spoil` had its way with a golden.
template <class F>
Status failure(const std::string& name, F&& spoil) {
  Golden g = load_golden(name);
  spoil(g);
  std::vector<std::string> notices;
  const Status s = apply_quantization_config(g.config, g.tensors, &notices);
  REQUIRE_FALSE(s.ok());
  return s;
}

json::object& quant(Golden& g) { return g.config["quantization_config"].get_object(); }

const std::string kGptq = "model.layers.0.self_attn.q_proj.", kAwq = "model.layers.0.mlp.up_proj.",
                  kFp8 = "model.layers.0.mlp.down_proj.", kCt = "model.layers.1.self_attn.k_proj.";

TEST_CASE("quantized checkpoints that lie: the tensor, the value, what to do") {
  SECTION("scales of the wrong shape") {
    Status s = failure("awq_g128", [](Golden& g) {
      g.tensors[kAwq + "scales"] = tensor_of({2, 16}, Format::f16(), 1);
    });
    CHECK(s.code() == StatusCode::kDataLoss);
    CHECK_THAT(s.message(), Contains(kAwq + "scales' is f16 [2, 16]") && Contains("have scales [1, 16]"));
    s = failure("gptq_asym_g32", [](Golden& g) {
      g.tensors[kGptq + "scales"] = tensor_of({4, 8}, Format::f16(), 1);
    });
    CHECK_THAT(s.message(), Contains("scales' is f16 [4, 8]") && Contains("for 16 rows"));
    s = failure("fp8_block", [](Golden& g) {
      g.tensors[kFp8 + "weight_scale_inv"] = tensor_of({2, 3}, Format::f32(), 1);
    });
    CHECK_THAT(s.message(), Contains("weight_scale_inv' is f32 [2, 3]") && Contains("has [2, 2]"));
    s = failure("ct_w8a8", [](Golden& g) {
      g.tensors[kCt + "weight_scale"] = tensor_of({16, 3}, Format::f32(), 1);
    });
    CHECK_THAT(s.message(), Contains("weight_scale' is f32 [16, 3]") && Contains("divides 128"));
  }
  SECTION("a zero, infinite or NaN scale") {
    for (const float bad : {0.0f, -0.0f, NAN, INFINITY}) {
      for (const auto& [golden, tensor] : {std::pair{"gptq_v2", kGptq + "scales"},
                                           {"awq_g128", kAwq + "scales"},
                                           {"fp8_block", kFp8 + "weight_scale_inv"},
                                           {"fp8_tensor", kFp8 + "weight_scale"},
                                           {"ct_w8a8", kCt + "weight_scale"},
                                           {"ct_w4a16_g128", kCt + "weight_scale"}}) {
        const Status s = failure(golden, [&, t = tensor](Golden& g) {
          Tensor& scale = g.tensors.at(t);
          Tensor copy = Tensor::allocate(scale.shape(), scale.format()).value();
          memcpy(copy.mutable_data(), scale.data(), scale.bytes());
          scale.format().info().encode(&bad, 1,
                                       static_cast<std::byte*>(copy.mutable_data()) + copy.bytes() -
                                           static_cast<size_t>(scale.format().block_bytes()));
          scale = copy;
        });
        CHECK(s.code() == StatusCode::kDataLoss);
        CHECK_THAT(s.message(), Contains(tensor) && Contains("a finite number other than 0"));
      }
    }
  }
  SECTION("a group size that does not divide, or contradicts") {
    Status s = failure("awq_g128", [](Golden& g) { quant(g)["group_size"] = 48; });
    CHECK_THAT(s.message(), Contains("its 128 columns do not divide into groups of 48"));
    s = failure("gptq_asym_g32", [](Golden& g) { quant(g)["group_size"] = 64; });
    CHECK_THAT(s.message(), Contains("4 groups of 128 columns contradict group_size 64"));
    s = failure("gptq_asym_g32", [](Golden& g) { quant(g)["group_size"] = 0; });
    CHECK(s.code() == StatusCode::kInvalidArgument);
    s = failure("ct_w4a16_g128", [](Golden& g) {
      quant(g)["config_groups"].get_object()["group_0"].get_object()["weights"].get_object()["group_size"] =
          64;
    });
    CHECK_THAT(s.message(), Contains("describe 4-bit integers in groups of 64"));
  }
  SECTION("an unknown method, an unread variant") {
    Status s = failure("awq_g128", [](Golden& g) { quant(g)["quant_method"] = "bitsandbytes"; });
    CHECK(s.code() == StatusCode::kUnimplemented);
    CHECK_THAT(s.message(), Contains("'bitsandbytes'") && Contains("'compressed-tensors'"));
    s = failure("awq_g128", [](Golden& g) { quant(g)["version"] = "gemv"; });
    CHECK_THAT(s.message(), Contains("version is 'gemv'"));
    s = failure("gptq_v2", [](Golden& g) { quant(g)["bits"] = 3; });
    CHECK_THAT(s.message(), Contains("bits is 3"));
    s = failure("gptq_v2", [](Golden& g) { quant(g)["checkpoint_format"] = "marlin"; });
    CHECK_THAT(s.message(), Contains("'marlin'"));
    s = failure("ct_w8a8", [](Golden& g) {
      quant(g)["transform_config"] = json::object{{"config_groups", 1}};
    });
    CHECK_THAT(s.message(), Contains("rotations"));
    s = failure("ct_w8a8", [](Golden& g) {
      quant(g)["sparsity_config"] = json::object{{"format", "sparse-24-bitmask"}};
    });
    CHECK_THAT(s.message(), Contains("sparse-24-bitmask"));
  }
  SECTION("a config of another checkpoint") {
    Status s = failure("gptq_v2", [](Golden& g) { quant(g)["bits"] = 8; });
    CHECK_THAT(s.message(), Contains("contradict") || Contains("'bits' of quantization_config is 8"));
    s = failure("ct_w8a8", [](Golden& g) {
      quant(g)["config_groups"].get_object()["group_0"].get_object()["weights"].get_object()["type"] =
          "float";
    });
    CHECK_THAT(s.message(), Contains("8-bit integers, but config_groups") && Contains("8-bit floats"));
    s = failure("ct_w8a8",
                [](Golden& g) { quant(g)["ignore"] = json::array{"model.layers.1.self_attn.k_proj"}; });
    CHECK_THAT(s.message(), Contains("ignore lists 'model.layers.1.self_attn.k_proj'"));
    s = failure("ct_w8a8", [](Golden& g) { quant(g)["quant_method"] = "awq"; });
    CHECK_THAT(s.message(), Contains("has no scale beside it"));
    s = failure("awq_g128", [](Golden& g) { quant(g)["quant_method"] = "fp8"; });
    CHECK_THAT(s.message(), Contains("qweight") && Contains("is part of a quantized weight"));
    s = failure("fp8_block", [](Golden& g) { quant(g).erase("weight_block_size"); });
    CHECK_THAT(s.message(), Contains("scales of blocks need weight_block_size"));
    s = failure("awq_g128", [](Golden& g) { g.config.erase("quantization_config"); });
    CHECK_THAT(s.message(), Contains("config.json has no quantization_config"));
  }
  SECTION("parts that are missing or of another type") {
    Status s = failure("awq_g128", [](Golden& g) { g.tensors.erase(kAwq + "qzeros"); });
    CHECK_THAT(s.message(), Contains(kAwq + "qzeros' is missing"));
    s = failure("gptq_v2", [](Golden& g) {
      g.tensors[kGptq + "qweight"] = tensor_of({16, 16}, Format::f32(), 1);
    });
    CHECK_THAT(s.message(), Contains("qweight' is f32 [16, 16]") && Contains("matrix of i32"));
    s = failure("fp8_block", [](Golden& g) { g.tensors.erase(kFp8 + "weight_scale_inv"); });
    CHECK_THAT(s.message(), Contains("down_proj.weight' is e4m3") && Contains("no scale beside it"));
    s = failure("ct_w4a16_g128", [](Golden& g) {
      Tensor shape = Tensor::zeros({2}, Format::of(DType::kI64)).value();
      shape.mutable_values<int64_t>()[0] = 16;
      shape.mutable_values<int64_t>()[1] = int64_t{1} << 62;
      g.tensors[kCt + "weight_shape"] = shape;
    });
    CHECK_THAT(s.message(), Contains("weight_shape says [16, 4611686018427387904]"));
    s = failure("gptq_act_order",
                [](Golden& g) { g.tensors[kGptq + "g_idx"] = tensor_of({128}, Format::i32(), 4); });
    CHECK_THAT(s.message(), Contains("puts column 0 into group 4; there are 4"));
  }
  SECTION("fields of the wrong type") {
    Status s = failure("awq_g128", [](Golden& g) { quant(g)["bits"] = "four"; });
    CHECK_THAT(s.message(), Contains("quantization_config.bits must be an integer, not \"four\""));
    s = failure("awq_g128", [](Golden& g) { g.config["quantization_config"] = 3; });
    CHECK_THAT(s.message(), Contains("quantization_config must be an object"));
    s = failure("fp8_block", [](Golden& g) { quant(g)["weight_block_size"] = json::array{128, 0}; });
    CHECK_THAT(s.message(), Contains("weight_block_size is [128,0]"));
    s = failure("ct_w8a8", [](Golden& g) { quant(g).erase("config_groups"); });
    CHECK_THAT(s.message(), Contains("config_groups must be an object"));
  }
}

TEST_CASE("many modules are repacked side by side, and the first that fails is named") {
  const Golden one = load_golden("awq_g128");
  const auto many = [&](TensorMap& tensors, int modules) {
    for (int i = 0; i < modules; ++i) {
      const std::string number = std::to_string(10000 + i);
      for (const char* part : {"qweight", "qzeros", "scales"}) {
        tensors.emplace("model.layers." + number + ".mlp.up_proj." + part, one.tensors.at(kAwq + part));
      }
    }
  };
  // Beyond 4 MB of parts several threads do it.
  const int modules = 4200;
  TensorMap tensors;
  many(tensors, modules);
  std::vector<std::string> notices;
  REQUIRE(apply_quantization_config(one.config, tensors, &notices).ok());
  REQUIRE(tensors.size() == static_cast<size_t>(modules));
  TensorMap alone = one.tensors;
  REQUIRE(apply_quantization_config(one.config, alone, &notices).ok());
  const Tensor& want = alone.at(kAwq + "weight");
  for (const auto& [name, tensor] : tensors) {
    REQUIRE(tensor.bytes() == want.bytes());
    REQUIRE(memcmp(tensor.data(), want.data(), want.bytes()) == 0);
  }
  tensors.clear();
  many(tensors, modules);
  for (const char* bad : {"13999", "10777", "12000"}) {
    tensors["model.layers." + std::string(bad) + ".mlp.up_proj.scales"] =
        tensor_of({2, 16}, Format::f16(), 1);
  }
  const Status s = apply_quantization_config(one.config, tensors, &notices);
  CHECK_THAT(s.message(), Contains("model.layers.10777."));
}

TEST_CASE("scales outside f16 keep the weight decoded, in the reference's own numbers") {
  Golden g = load_golden("ct_w4a16_g128");
  g.tensors[kCt + "weight_scale"] = tensor_of({16, 1}, Format::bf16(), std::ldexp(1.0f, -30));
  std::vector<std::string> notices;
  REQUIRE(apply_quantization_config(g.config, g.tensors, &notices).ok());
  CHECK(g.tensors.at(kCt + "weight").format() == Format::bf16());
  CHECK_THAT(notices.at(0), Contains("not representable in f16"));
}

TEST_CASE("unquantized modules of a quantized checkpoint stay as they are") {
  Golden g = load_golden("awq_g128");
  g.tensors.emplace("lm_head.weight", tensor_of({4, 4}, Format::bf16(), 1));
  g.tensors.emplace(kAwq + "bias", tensor_of({16}, Format::f16(), 2));
  std::vector<std::string> notices;
  REQUIRE(apply_quantization_config(g.config, g.tensors, &notices).ok());
  CHECK(g.tensors.size() == 3);
  CHECK(g.tensors.at("lm_head.weight").format() == Format::bf16());
  CHECK(notices.empty());
}

}  // namespace
}  // namespace oar
