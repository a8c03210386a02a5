// A Run again and again: what it keeps from one run to the next must not show.
#include "tests/graph/graph_fixture.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("plan: sizes that stay, change and come back give the rows they always gave") {
  GraphFixture f;
  const Val x = f.input("x", {64}), w = f.constant("w", {48, 64});
  f.output(f.b.op("tanh", {f.b.op("linear", {x, Val{}, w, Val{}})}));
  const auto backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), best_isa());
  const auto program = Program::create(f.graph, *backend);
  REQUIRE_OK(program);
  const auto computed = Run::create(*program);
  REQUIRE_OK(computed);
  std::vector<float> data(f.inputs.at("x").f.begin(), f.inputs.at("x").f.end());
  const auto run = [&](int64_t first, int64_t rows) {
    const std::vector<int64_t> symbols{rows};
    const std::vector<const void*> inputs{data.data() + first * 64};
    REQUIRE_OK((*computed)->run(symbols, inputs));
    const Operand out = (*computed)->output(0);
    CHECK(out.rows() == rows);
    return std::vector<float>(out.as<float>(), out.as<float>() + out.numel());
  };
  const std::vector<float> all = run(0, f.rows);
  const auto expect = [&](int64_t first, int64_t rows) {
    INFO("rows " << first << " + " << rows);
    CHECK(run(first, rows) ==
          std::vector<float>(all.begin() + first * 48, all.begin() + (first + rows) * 48));
  };
  expect(0, f.rows);
  expect(4, 1);
  expect(7, 1);
  expect(2, 5);
  expect(0, f.rows);
  expect(12, 1);
}
