// Ops of com.microsoft against onnxruntime: models of one node each (generate_contrib.py).
#include <algorithm>

#include "engine/import/onnx.h"
#include "engine/runtime/predictor.h"
#include "tests/import/golden_case.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test::golden;

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
std::unique_ptr<Predictor> served(const Case& c) {
  PredictorOptions options;
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

}  // namespace

TEST_CASE("ops of com.microsoft equal onnxruntime") {
  const std::string file = oar_test::source_path("tests/import/golden/onnx_contrib.json");
  const auto cases = parse_json(oar_test::read_file(file), file);
  REQUIRE_OK(cases);
  CHECK(cases->as_array().size() >= 42);
  for (const auto& c : cases->as_array()) {
    DYNAMIC_SECTION(text(c.at("name"))) {
      const Case given = case_of(c);
      check_outputs(c, evaluate(given));
      check_outputs(c, predict(*served(given), given));
    }
  }
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
              return std::string_view(n.op->name) == "quantized_dense";
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
