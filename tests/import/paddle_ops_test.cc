// Each Paddle op by itself: programs that PaddlePaddle exported, inputs, and what PaddlePaddle computed
// (generate_paddle_ops.py). PIR json and ProgramDesc of the same cases.
#include <cmath>

#include "engine/base/json.h"
#include "engine/import/paddle.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

std::string text(const json::value& v) { return {v.get_string().data(), v.get_string().size()}; }

std::string base64(const std::string& s) {
  std::string out;
  uint32_t bits = 0;
  int have = 0;
  for (char c : s) {
    const int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                  : c >= 'a' && c <= 'z' ? c - 'a' + 26
                  : c >= '0' && c <= '9' ? c - '0' + 52
                  : c == '+'             ? 62
                  : c == '/'             ? 63
                                         : -1;
    if (v < 0) continue;
    bits = bits << 6 | static_cast<uint32_t>(v);
    have += 6;
    if (have >= 8) out += static_cast<char>(bits >> (have -= 8));
  }
  return out;
}

double number(const json::value& v) {
  if (v.is_string()) return text(v) == "inf" ? INFINITY : text(v) == "-inf" ? -INFINITY : NAN;
  return v.to_number<double>();
}

Tensor tensor(const json::value& v) {
  std::vector<int64_t> dims;
  for (const auto& d : v.at("shape").as_array()) dims.push_back(d.to_number<int64_t>());
  const auto dtype = paddle::dtype_named(text(v.at("dtype")));
  REQUIRE(dtype);
  Tensor t = must(allocate_elements(Shape(std::span<const int64_t>(dims)), *dtype));
  const auto& data = v.at("data").as_array();
  REQUIRE(static_cast<int64_t>(data.size()) == t.numel());
  dispatch_number(*dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    for (size_t k = 0; k < data.size(); ++k) {
      mutable_elements<T>(t)[k] = Element<T>::store(static_cast<C>(number(data[k])));
    }
  });
  return t;
}

// f32 of a few hundred products at most, in another order of summation, and functions within a few units of
// the last place: 2e-5 relative is far above both and far below any wrong formula.
void check_equal(const Tensor& got, const Tensor& want) {
  REQUIRE(got.shape().to_string() == want.shape().to_string());
  CHECK(got.format().name() == std::string(want.format().name()));
  for (int64_t k = 0; k < want.numel(); ++k) {
    const double w = element_as_double(want, k), g = element_as_double(got, k);
    if (std::isnan(w) ? std::isnan(g) : w == g) continue;
    INFO("element " << k << ": " << g << " instead of " << w);
    REQUIRE(std::abs(g - w) <= 2e-5 * std::max(1.0, std::abs(w)));
  }
}

void run_case(const json::value& c) {
  const json::value& program = c.at("program");
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
  auto outputs = (*evaluator)->run(inputs, EvalOptions{});
  REQUIRE_OK(outputs);
  const auto& want = c.at("outputs").as_array();
  REQUIRE(outputs->size() == want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    INFO("output " << k);
    REQUIRE((*outputs)[k].is_tensor());
    check_equal((*outputs)[k].tensor, tensor(want[k]));
  }
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
    DYNAMIC_SECTION(text(c.at("name"))) { run_case(c); }
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
