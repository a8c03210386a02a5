// A Run again and again: what it keeps from one run to the next must not show.
#include "tests/graph/graph_fixture.h"

using namespace oar;
using namespace oar_test;

namespace {

// tanh(x . w^T), x (T, 64) and w (48, 64).
struct Layer {
  GraphFixture f;
  std::unique_ptr<Backend> backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), best_isa());
  std::shared_ptr<const Program> program;

  Layer() {
    const Val x = f.input("x", {64}), w = f.constant("w", {48, 64});
    f.output(f.b.op("tanh", {f.b.op("linear", {x, Val{}, w, Val{}})}));
    auto made = Program::create(f.graph, *backend);
    REQUIRE_OK(made);
    program = std::move(*made);
  }
};

}  // namespace

TEST_CASE("plan: sizes that stay, change and come back give the rows they always gave") {
  Layer layer;
  const auto computed = Run::create(layer.program);
  REQUIRE_OK(computed);
  std::vector<float> data(layer.f.inputs.at("x").f.begin(), layer.f.inputs.at("x").f.end());
  const auto run = [&](int64_t first, int64_t rows) {
    const std::vector<int64_t> symbols{rows};
    const std::vector<const void*> inputs{data.data() + first * 64};
    REQUIRE_OK((*computed)->run(symbols, inputs));
    const Operand out = (*computed)->output(0);
    CHECK(out.rows() == rows);
    return std::vector<float>(out.as<float>(), out.as<float>() + out.numel());
  };
  const std::vector<float> all = run(0, layer.f.rows);
  const auto expect = [&](int64_t first, int64_t rows) {
    INFO("rows " << first << " + " << rows);
    CHECK(run(first, rows) ==
          std::vector<float>(all.begin() + first * 48, all.begin() + (first + rows) * 48));
  };
  expect(0, layer.f.rows);
  expect(4, 1);
  expect(7, 1);
  expect(2, 5);
  expect(0, layer.f.rows);
  expect(12, 1);
}

TEST_CASE("program: two runs of other sizes share its weights and nothing else") {
  Layer layer;
  const auto first = Run::create(layer.program), second = Run::create(layer.program);
  REQUIRE_OK(first);
  REQUIRE_OK(second);
  Run* const runs[] = {first->get(), second->get()};
  const std::vector<float> data(layer.f.inputs.at("x").f.begin(), layer.f.inputs.at("x").f.end());
  const std::vector<const void*> inputs{data.data()};
  const auto run = [&](Run& r, int64_t rows) {
    const std::vector<int64_t> symbols{rows};
    REQUIRE_OK(r.run(symbols, inputs));
  };
  const auto rows_of = [&](const Run& r) {
    const Operand out = r.output(0);
    return std::vector<float>(out.as<float>(), out.as<float>() + out.numel());
  };
  run(*runs[0], layer.f.rows);
  const std::vector<float> all = rows_of(*runs[0]);
  run(*runs[1], 3);
  CHECK(rows_of(*runs[0]) == all);  // its arena is its own
  CHECK(rows_of(*runs[1]) == std::vector<float>(all.begin(), all.begin() + 3 * 48));
  const uint64_t bytes = layer.program->copied_weight_bytes() + layer.program->in_place_weight_bytes();
  const auto third = Run::create(layer.program);
  REQUIRE_OK(third);
  CHECK(layer.program->copied_weight_bytes() + layer.program->in_place_weight_bytes() == bytes);
}

TEST_CASE("program: a weight that several ops read lies in the store once for each layout") {
  const auto stored = [](int uses, const std::string& format) {
    GraphFixture f;
    const Val w = f.constant("w", {64, 64});
    Val x = f.input("x", {64});
    for (int k = 0; k < uses; ++k) x = f.b.op("linear", {x, Val{}, w, Val{}}, {{"format", format}});
    f.output(x);
    const auto backend =
        make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 1}), best_isa());
    const auto program = Program::create(f.graph, *backend);
    REQUIRE_OK(program);
    return std::pair((*program)->copied_weight_bytes(), (*program)->in_place_weight_bytes());
  };
  CHECK(stored(1, "q8_0").first >= 64 * 64);
  CHECK(stored(3, "q8_0") == stored(1, "q8_0"));
  CHECK(stored(1, "f32") == std::pair<uint64_t, uint64_t>(0, 64 * 64 * 4));
  CHECK(stored(3, "f32") == stored(1, "f32"));
}
