// Each Paddle op by itself: programs that PaddlePaddle exported, inputs, and what PaddlePaddle computed
// (generate_paddle_ops.py). PIR json and ProgramDesc of the same cases.
#include "engine/import/paddle.h"
#include "engine/runtime/predictor.h"
#include "tests/import/golden_case.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test::golden;

namespace {

void check_outputs(const json::value& c, const Result<std::vector<Datum>>& outputs) {
  REQUIRE_OK(outputs);
  const auto& want = c.at("outputs").as_array();
  REQUIRE(outputs->size() == want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    INFO("output " << k);
    REQUIRE((*outputs)[k].is_tensor());
    check_equal((*outputs)[k].tensor, tensor(want[k]));
  }
}

// `program`: the case's own, or one of several spellings.
void run_case(const json::value& c, const json::value& program) {
  const std::string bytes = program.is_string() ? base64(text(program)) : json::serialize(program);
  paddle::Model model;
  auto parsed = paddle::parse_program(bytes, text(c.at("name")));
  REQUIRE_OK(parsed);
  model.program = std::move(*parsed);
  const std::string records = c.as_object().contains("parameters") ? base64(text(c.at("parameters"))) : "";
  auto parameters = paddle::read_parameters(
      model.program, Buffer::wrap_const(records.data(), records.size(), nullptr), "parameters");
  REQUIRE_OK(parameters);
  model.parameters = std::move(*parameters);
  auto imported = import_paddle_model(model);
  REQUIRE_OK(imported);
  std::vector<Datum> inputs(imported->inputs.size());
  for (const auto& in : c.at("inputs").as_array()) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (imported->inputs[k].name == text(in.at("name"))) inputs[k] = tensor(in);
    }
  }
  auto evaluator = Evaluator::create(imported->graph);
  REQUIRE_OK(evaluator);
  check_outputs(c, (*evaluator)->run(inputs, EvalOptions{}));
  // Behind all passes, and by a memory plan where sizes do not depend on values.
  PredictorOptions options;
  options.threads = 1;
  auto predictor = Predictor::create(std::move(*imported), options);
  REQUIRE_OK(predictor);
  for (int run = 0; run < 2; ++run) check_outputs(c, (*predictor)->run(inputs));
}

void run_all(const char* file, size_t at_least) {
  const std::string bytes =
      oar_test::read_file(oar_test::source_path(std::string("tests/import/golden/") + file));
  JsonLimits limits;
  limits.max_depth = 512;
  const auto cases = parse_json(bytes, file, limits);
  REQUIRE_OK(cases);
  CHECK(cases->as_array().size() >= at_least);
  for (const auto& c : cases->as_array()) {
    DYNAMIC_SECTION(text(c.at("name"))) {
      if (const json::value* programs = c.as_object().if_contains("programs")) {
        for (const json::value& program : programs->as_array()) {
          INFO((program.is_string() ? "ProgramDesc" : "PIR"));
          run_case(c, program);
        }
      } else {
        run_case(c, c.at("program"));
      }
    }
  }
}

}  // namespace

TEST_CASE("PIR ops equal PaddlePaddle") { run_all("paddle_pir.json", 182); }

TEST_CASE("ProgramDesc ops equal PaddlePaddle") { run_all("paddle_legacy.json", 163); }

TEST_CASE("an op that does not exist is refused by name and place") {
  paddle::Model model;
  paddle::Op op;
  op.type = "frobnicate";
  op.location = 4711;
  model.program.file = "model.pdmodel";
  model.program.blocks.emplace_back();
  model.program.blocks[0].ops.push_back(op);
  const Status s = import_paddle_model(model).status();
  CHECK(s.code() == StatusCode::kUnimplemented);
  CHECK(s.message() == "model.pdmodel: op 'frobnicate' at byte 4711: this op is not supported");
}

TEST_CASE("quantization as PaddleSlim writes it equals PaddlePaddle") { run_all("paddle_quantize.json", 20); }

TEST_CASE("detection ops equal PaddlePaddle") { run_all("paddle_detection.json", 41); }
