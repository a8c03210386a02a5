// Paddle models, run whole, against PaddlePaddle (generate_paddle_models.py): our own small ones of
// tests/data, and published ones and topologies where the data collection is there. The same inputs, and the
// same made-up weights where a topology came without.
#include <cmath>

#include "engine/base/json.h"
#include "engine/runtime/predictor.h"
#include "tests/import/paddle_topology.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test;

namespace {

void run_model(const std::string& file, const json::value& c) {
  std::vector<int64_t> dims;
  for (const auto& d : c.at("input").as_array()) dims.push_back(d.to_number<int64_t>());
  PredictorOptions run;
  run.threads = 4;
  auto predictor = Predictor::create(import_paddle_program(file), run);
  REQUIRE_OK(predictor);
  auto outputs = (*predictor)->run({Datum(made_up(dims, 0, false))});
  REQUIRE_OK(outputs);
  const auto& want = c.at("outputs").as_array();
  REQUIRE(outputs->size() == want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    const Tensor& y = (*outputs)[k].tensor;
    std::string shape = "[";
    for (const auto& d : want[k].at("shape").as_array()) {
      shape += (shape.size() > 1 ? ", " : "") + std::to_string(d.to_number<int64_t>());
    }
    REQUIRE(y.shape().to_string() == shape + "]");
    double magnitude = 0, largest = 0;
    for (int64_t i = 0; i < y.numel(); ++i) {
      magnitude += std::abs(element_as_double(y, i));
      largest = std::max(largest, std::abs(element_as_double(y, i)));
    }
    // The bound the project sets for real models in f32: 1e-4 relative to the output's own size.
    const double expected = want[k].at("magnitude").to_number<double>();
    CHECK(std::abs(magnitude - expected) <= 1e-4 * expected);
    const auto& at = want[k].at("at").as_array();
    const auto& values = want[k].at("values").as_array();
    for (size_t i = 0; i < at.size(); ++i) {
      const double g = element_as_double(y, at[i].to_number<int64_t>()), w = values[i].to_number<double>();
      INFO("element " << at[i].to_number<int64_t>() << ": " << g << " instead of " << w);
      REQUIRE(std::abs(g - w) <= 1e-4 * std::max(std::abs(w), largest));
    }
  }
}

json::array cases_of(const char* golden) {
  const std::string path = oar_test::source_path(std::string("tests/import/golden/") + golden);
  auto cases = parse_json(oar_test::read_file(path), path);
  REQUIRE_OK(cases);
  return std::move(cases->as_array());
}

}  // namespace

TEST_CASE("Paddle models of both formats equal PaddlePaddle") {
  const json::array own = cases_of("paddle_own_models.json"), published = cases_of("paddle_models.json");
  CHECK(own.size() == 6);
  CHECK(published.size() == 15);
  for (const auto& c : own) {
    const std::string path(c.at("path").get_string());
    DYNAMIC_SECTION(path) { run_model(oar_test::source_path("tests/data/" + path), c); }
  }
  for (const auto& c : published) {
    const std::string path(c.at("path").get_string());
    const auto file = oar_test::data_path(path);
    if (!file) continue;
    DYNAMIC_SECTION(path << " " << serialize(c.at("input"))) { run_model(*file, c); }
  }
}
