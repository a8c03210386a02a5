// Ops of com.microsoft against onnxruntime: models of one node each (generate_contrib.py).
#include "engine/import/onnx.h"
#include "tests/import/golden_case.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test::golden;

namespace {

void run_case(const json::value& c) {
  const std::string bytes = base64(text(c.at("model")));
  auto imported =
      import_onnx_bytes(Buffer::wrap_const(bytes.data(), bytes.size(), nullptr), text(c.at("name")), "");
  REQUIRE_OK(imported);
  std::vector<Datum> inputs;
  for (const auto& in : c.at("inputs").as_array()) inputs.emplace_back(tensor(in));
  auto evaluator = Evaluator::create(imported->graph);
  REQUIRE_OK(evaluator);
  const auto outputs = (*evaluator)->run(inputs, EvalOptions{});
  REQUIRE_OK(outputs);
  const auto& want = c.at("outputs").as_array();
  REQUIRE(outputs->size() == want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    INFO("output " << k);
    const Tensor t = tensor(want[k]);
    // onnxruntime multiplies by what we divide by, in f32: a value at half a step may round either way.
    check_equal((*outputs)[k].tensor, t, dtype_is_integer(t.format().dtype()) ? 1 : 0);
  }
}

}  // namespace

TEST_CASE("ops of com.microsoft equal onnxruntime") {
  const std::string file = oar_test::source_path("tests/import/golden/onnx_contrib.json");
  const auto cases = parse_json(oar_test::read_file(file), file);
  REQUIRE_OK(cases);
  CHECK(cases->as_array().size() >= 28);
  for (const auto& c : cases->as_array()) {
    DYNAMIC_SECTION(text(c.at("name"))) { run_case(c); }
  }
}
