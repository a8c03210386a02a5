// Ops of com.microsoft against onnxruntime: models of one node each (generate_contrib.py,
// generate_transformers.py), and a decoder as onnxruntime-genai spells it.
#include <algorithm>

#include "engine/import/onnx.h"
#include "engine/runtime/predictor.h"
#include "tests/import/golden_case.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test::golden;
using oar_test::Contains;

namespace {

struct Case {
  ImportedModel model;
  std::vector<Datum> inputs;
};
Case case_of(const json::value& c) {
  const auto bytes = std::make_shared<std::string>(base64(text(c.at("model"))));
  auto imported =
      import_onnx_bytes(Buffer::wrap_const(bytes->data(), bytes->size(), bytes), text(c.at("name")), "");
  REQUIRE_OK(imported);
  std::vector<Datum> inputs;
  for (const auto& in : c.at("inputs").as_array()) inputs.emplace_back(tensor(in));
  return {std::move(*imported), std::move(inputs)};
}
// As imported, by each op's definition.
std::vector<Datum> evaluate(const Case& c) {
  auto evaluator = Evaluator::create(c.model.graph);
  REQUIRE_OK(evaluator);
  auto outputs = (*evaluator)->run(c.inputs, EvalOptions{});
  REQUIRE_OK(outputs);
  return std::move(*outputs);
}
// As it is served, behind all passes.
std::unique_ptr<Predictor> served(const Case& c, PredictorOptions options = {}) {
  options.threads = 1;
  ImportedModel copy = c.model;
  copy.graph = std::make_shared<Graph>(*c.model.graph);
  auto predictor = Predictor::create(std::move(copy), options);
  REQUIRE_OK(predictor);
  return std::move(*predictor);
}
std::vector<Datum> predict(const Predictor& predictor, const Case& c) {
  auto outputs = predictor.run(c.inputs);
  REQUIRE_OK(outputs);
  return std::move(*outputs);
}
void check_outputs(const json::value& c, const std::vector<Datum>& outputs) {
  const auto& want = c.at("outputs").as_array();
  REQUIRE(outputs.size() == want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    INFO("output " << k);
    const Tensor t = tensor(want[k]);
    // onnxruntime multiplies by what we divide by, in f32: a value at half a step may round either way.
    check_equal(outputs[k].tensor, t, dtype_is_integer(t.format().dtype()) ? 1 : 0);
  }
}

json::value read_golden(const char* name) {
  const std::string file = oar_test::source_path(cat("tests/import/golden/", name));
  auto parsed = parse_json(oar_test::read_file(file), file);
  REQUIRE_OK(parsed);
  return std::move(*parsed);
}

}  // namespace

TEST_CASE("ops of com.microsoft equal onnxruntime") {
  size_t count = 0;
  for (const char* file : {"onnx_contrib.json", "onnx_transformers.json"}) {
    const json::value cases = read_golden(file);
    for (const auto& c : cases.as_array()) {
      ++count;
      if (text(c.at("name")).ends_with("_level4")) continue;  // below
      DYNAMIC_SECTION(text(c.at("name"))) {
        const Case given = case_of(c);
        check_outputs(c, evaluate(given));
        check_outputs(c, predict(*served(given), given));
      }
    }
  }
  CHECK(count >= 110);
}

// Where a file allows activations of 8 bits, kernels of few bits multiply. Scalar kernels read the same bytes
// and take activations as they are: they show that the weights are the file's. The committed results are
// those without rounded activations.
TEST_CASE("MatMulNBits with accuracy_level 4 keeps its weights in few bits") {
  size_t count = 0;
  const json::value cases = read_golden("onnx_transformers.json");
  for (const auto& c : cases.as_array()) {
    const std::string name = text(c.at("name"));
    if (!name.ends_with("_level4")) continue;
    ++count;
    DYNAMIC_SECTION(name) {
      const Case given = case_of(c);
      PredictorOptions options;
      std::string said;
      options.log = Logger{[&](LogLevel, std::string_view line) { said += line; }};
      const Tensor want = tensor(c.at("outputs").at(0));
      const auto fast = served(given, options);
      CHECK(said.empty());
      const Tensor y = predict(*fast, given)[0].tensor;
      REQUIRE(y.shape() == want.shape());
      double largest = 0;
      for (int64_t k = 0; k < want.numel(); ++k)
        largest = std::max(largest, std::abs(element_as_double(want, k)));
      for (int64_t k = 0; k < want.numel(); ++k)
        CHECK(std::abs(element_as_double(y, k) - element_as_double(want, k)) <= 0.04 * largest);
      options.reference = true;
      check_outputs(c, predict(*served(given, options), given));
    }
  }
  CHECK(count >= 9);
}

TEST_CASE("MatMulNBits without accuracy_level 4 says what its weights take") {
  const json::value cases = read_golden("onnx_transformers.json");
  for (const auto& c : cases.as_array()) {
    if (text(c.at("name")) != "nbits_4_32") continue;
    PredictorOptions options;
    std::string said;
    options.log = Logger{[&](LogLevel level, std::string_view line) {
      if (level == LogLevel::kWarning) said += line;
    }};
    served(case_of(c), options);
    CHECK_THAT(said, Contains("1 MatMulNBits layers compute in f32") && Contains("accuracy_level is not 4"));
  }
}

// Two layers of GroupQueryAttention with rotary embedding inside, MatMulNBits and norms by the root of the
// mean square: a prompt, then a token on the past that the prompt left.
TEST_CASE("a decoder as onnxruntime-genai spells it equals onnxruntime") {
  const json::value c = read_golden("onnx_decoder.json");
  const auto bytes = std::make_shared<std::string>(base64(text(c.at("model"))));
  auto imported = import_onnx_bytes(Buffer::wrap_const(bytes->data(), bytes->size(), bytes), "decoder", "");
  REQUIRE_OK(imported);
  const Case given{std::move(*imported), {}};
  const auto predictor = served(given);
  std::vector<Datum> past(4, Datum(must(allocate_elements({1, 1, 0, 16}, DType::kF32))));
  REQUIRE(c.at("steps").as_array().size() == 2);
  for (const auto& step : c.at("steps").as_array()) {
    Case now = given;
    for (const auto& in : step.at("inputs").as_array()) now.inputs.emplace_back(tensor(in));
    now.inputs.insert(now.inputs.end(), past.begin(), past.end());
    check_outputs(step, evaluate(now));
    const std::vector<Datum> outputs = predict(*predictor, now);
    check_outputs(step, outputs);
    past.assign(outputs.begin() + 1, outputs.end());
  }
}

TEST_CASE("gather_nbits: codes that are elements of 4 bits, whose zero is 0") {
  for (const DType dtype : {DType::kU4, DType::kI4}) {
    Tensor codes = must(allocate_elements({3, 32}, dtype)),
           scales = must(allocate_elements({3, 2}, DType::kF32));
    for (int64_t k = 0; k < 96; ++k) {
      if (dtype == DType::kU4)
        mutable_elements<u4>(codes)[k] = Element<u4>::store(static_cast<uint8_t>(k * 7 % 16));
      else mutable_elements<i4>(codes)[k] = Element<i4>::store(static_cast<int8_t>(k * 7 % 16 - 8));
    }
    for (int64_t k = 0; k < 6; ++k) mutable_elements<float>(scales)[k] = 0.5f + static_cast<float>(k);
    Tensor rows = must(allocate_elements({2}, DType::kI64));
    mutable_elements<int64_t>(rows)[0] = 2, mutable_elements<int64_t>(rows)[1] = -3;
    Node node;
    node.op = find_op("gather_nbits");
    node.attrs = {{"bits", int64_t{4}}, {"block_size", int64_t{16}}};
    node.outputs.resize(1);
    const Datum data[] = {codes, rows, scales};
    const Datum* in[] = {&data[0], &data[1], &data[2]};
    const auto y = evaluate_op(node, in, EvalOptions{});
    REQUIRE_OK(y);
    REQUIRE((*y)[0].tensor.shape() == Shape{2, 32});
    for (int64_t k = 0; k < 64; ++k) {
      const int64_t row = k < 32 ? 2 : 0, column = k % 32;
      CHECK(element_as_double((*y)[0].tensor, k) ==
            element_as_double(codes, row * 32 + column) * element_as_double(scales, row * 2 + column / 16));
    }
  }
}

TEST_CASE("what ops of transformers do not honour is refused by name") {
  using namespace oar_test;  // NOLINT
  const auto refusal = [](const std::string& op, const std::vector<std::string>& in,
                          const std::vector<Proto>& attrs) {
    Proto graph;
    graph.message(1, node_proto(op, in, {"y"}, attrs, "com.microsoft")).text(2, "g");
    graph.message(5, raw_proto<uint8_t>("codes", 2, {2, 1, 16}, std::vector<uint8_t>(32)));
    graph.message(5, tensor_proto("scales", {2, 1}, {1, 1}));
    for (const char* name : {"a", "b", "c", "d"}) graph.message(11, value_proto(name, {2, 2, 2}));
    graph.message(12, value_proto("y", {2, 2, 2}));
    Proto model;
    model.number(1, 8).message(7, graph).message(8, Proto().text(1, "").number(2, 17));
    model.message(8, Proto().text(1, "com.microsoft").number(2, 1));
    const auto bytes = std::make_shared<std::string>(model.bytes);
    const auto got = import_onnx_bytes(Buffer::wrap_const(bytes->data(), bytes->size(), bytes), "m", "");
    REQUIRE(!got.ok());
    CHECK_THAT(got.status().message(), Contains(op));
    return got.status().message();
  };
  const std::vector<std::string> gqa{"a", "b", "c", "", "", "d", "d"};
  const auto with = [](std::vector<std::string> in, size_t at) {
    in.resize(std::max(in.size(), at + 1));
    in[at] = "a";
    return in;
  };
  const auto heads = [](std::vector<Proto> more) {
    more.push_back(int_attr("num_heads", 2));
    return more;
  };
  const auto grouped = [&](std::vector<Proto> more) {
    more.push_back(int_attr("kv_num_heads", 1));
    return heads(std::move(more));
  };
  CHECK_THAT(refusal("GroupQueryAttention", gqa, grouped({int_attr("smooth_softmax", 1)})),
             Contains("'smooth_softmax'"));
  CHECK_THAT(refusal("GroupQueryAttention", gqa, grouped({int_attr("qk_output", 1)})),
             Contains("'qk_output'"));
  CHECK_THAT(refusal("GroupQueryAttention", gqa, grouped({int_attr("sliding_window_cache", 1)})),
             Contains("'sliding_window_cache'"));
  CHECK_THAT(refusal("GroupQueryAttention", gqa, grouped({int_attr("kv_cache_bit_width", 8)})),
             Contains("'kv_cache_bit_width'"));
  CHECK_THAT(refusal("GroupQueryAttention", gqa, grouped({text_attr("k_quant_type", "PER_TENSOR")})),
             Contains("'k_quant_type'"));
  CHECK_THAT(refusal("GroupQueryAttention", gqa, grouped({int_attr("do_rotary", 1)})),
             Contains("'cos_cache'"));
  CHECK_THAT(refusal("GroupQueryAttention", gqa, grouped({int_attr("tomorrow", 1)})), Contains("'tomorrow'"));
  CHECK_THAT(refusal("GroupQueryAttention", with(gqa, 11), grouped({})), Contains("'head_sink'"));
  CHECK_THAT(refusal("GroupQueryAttention", with(gqa, 14), grouped({})), Contains("'q_norm_weight'"));
  CHECK_THAT(refusal("GroupQueryAttention", with(gqa, 16), grouped({})), Contains("'query_seqlens'"));
  CHECK_THAT(refusal("MultiHeadAttention", with({"a", "b", "c"}, 8), heads({})),
             Contains("'past_sequence_length'"));
  CHECK_THAT(refusal("MultiHeadAttention", with({"a", "b", "c"}, 9), heads({})),
             Contains("'cache_indirection'"));
  CHECK_THAT(refusal("Attention", {"a", "b", "c"}, heads({int_attr("do_rotary", 1)})),
             Contains("'do_rotary'"));
  CHECK_THAT(refusal("Attention", {"a", "b", "c"}, heads({int_attr("past_present_share_buffer", 1)})),
             Contains("'past_present_share_buffer'"));
  const std::vector<std::string> nbits{"a", "codes", "scales"};
  const auto sized = [](int64_t bits, std::vector<Proto> more) {
    for (const auto& [name, v] :
         {std::pair{"N", int64_t{2}}, {"K", int64_t{32}}, {"block_size", int64_t{32}}, {"bits", bits}})
      more.push_back(int_attr(name, v));
    return more;
  };
  CHECK_THAT(refusal("MatMulNBits", with(nbits, 4), sized(4, {})),
             Contains("'g_idx'") && Contains("act-order"));
  CHECK_THAT(refusal("MatMulNBits", nbits, sized(2, {})), Contains("'bits'"));
  CHECK_THAT(refusal("MatMulNBits", nbits, sized(4, {int_attr("weight_prepacked", 1)})),
             Contains("'weight_prepacked'"));
  CHECK_THAT(refusal("MatMulNBits", {"a", "b", "scales"}, sized(4, {})),
             Contains("'B'") && Contains("constant"));
  CHECK_THAT(refusal("GatherBlockQuantized", {"b", "a", "scales"}, {}), Contains("'data'"));
  CHECK_THAT(refusal("GatherBlockQuantized", {"codes", "a", "scales"}, {}), Contains("3 axes"));
}

// What onnxruntime's quantizer makes of a ShuffleNet (generate_shufflenet.py).
TEST_CASE("a quantized ShuffleNet equals onnxruntime") {
  const std::string file = oar_test::source_path("tests/import/golden/onnx_shufflenet.json");
  const auto cases = parse_json(oar_test::read_file(file), file);
  REQUIRE_OK(cases);
  for (const auto& c : cases->as_array()) {
    DYNAMIC_SECTION(text(c.at("name"))) {
      const Case given = case_of(c);
      const auto predictor = served(given);
      const auto& nodes = predictor->graph().nodes();
      // The dense layer at the end is one op of integers.
      CHECK(std::count_if(nodes.begin(), nodes.end(), [](const Node& n) {
              return std::string_view(n.op->name) == "quantized_linear";
            }) == 1);
      const Tensor want = tensor(c.at("outputs").at(0));
      for (const auto& outputs : {evaluate(given), predict(*predictor, given)}) {
        REQUIRE(outputs[0].tensor.shape() == want.shape());
        // Everything in between are integers: what rounds the other way at a tie moves the last by a step.
        for (int64_t k = 0; k < want.numel(); ++k) {
          INFO("element " << k);
          CHECK(std::abs(element_as_double(outputs[0].tensor, k) - element_as_double(want, k)) <=
                1.001 * number(c.at("step")));
        }
      }
    }
  }
}
