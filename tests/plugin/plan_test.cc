// Graphs on a device: each kernel family through the table against the same kernel of the processor, bit for
// bit; ops that the device lacks by their definitions or on the CPU; captured runs.
#include <set>

#include "engine/graph/cut.h"
#include "tests/graph/graph_fixture.h"
#include "tests/plugin/tested_device.h"

namespace {
using namespace oar;
using namespace oar_test;

// Sums of at most 100 terms in f32, and a few roundings more.
constexpr double kOfF32 = 2.0 * 100 / (1 << 24);
// Products of 64 values where a device rounds rows to bf16: errors of 64 terms add up as their root.
constexpr double kOfRounded = 8 * 2.0 / (1 << 9);

// The loopback device has the processor's reference kernels: the same bits. Another one is within `bound`.
void check_same(const GraphFixture& f, const std::string& config = "", double bound = kOfF32) {
  INFO("OAR_LOOPBACK='" << config << "'");
  constexpr int kRuns = 3;  // the second is captured, the third replayed
  if (!on_loopback()) {
    if (config.empty()) CHECK(distance(f.planned_on(*tested_backend(), {}, kRuns), f.reference()) < bound);
    return;
  }
  const auto expected = f.planned(Isa::kReference);
  const auto backend = loopback_backend(config);
  Warnings warnings;
  ProgramOptions options;
  options.log = warnings.logger();
  CHECK(f.planned_on(*backend, options, kRuns) == expected);
  CHECK((config.find("missing") != std::string::npos) == !warnings.lines().empty());
}

Tensor weight(int64_t n, int64_t K, const char* format) {
  const Format stored = *Format::find(format);
  auto t = Tensor::allocate(Shape({n, K}), stored);
  REQUIRE_OK(t);
  std::mt19937 random(5);
  std::uniform_real_distribution<float> u(-1, 1);
  std::vector<float> row(static_cast<size_t>(K));
  for (int64_t r = 0; r < n; ++r) {
    for (float& x : row) x = u(random);
    stored.encode_row(row.data(), K, static_cast<std::byte*>(t->mutable_data()) + r * *stored.row_bytes(K));
  }
  return *t;
}

// Two weights with bias and residual on one x.
void add_linear(GraphFixture& f, const char* format) {
  const Val x = f.input("x", {64}), residual = f.input("r", {20});
  f.output(f.b.op("linear", {x, residual, f.b.constant("w0", weight(12, 64, format)), f.constant("b0", {12}),
                             f.b.constant("w1", weight(8, 64, format)), Val{}}));
}

}  // namespace

TEST_CASE("plugin: elementwise kernels, norms and rotations give the processor's bits", "[any]") {
  for (const char* name : {"neg", "exp", "silu", "gelu", "tanh", "rsqrt"}) {
    GraphFixture f;
    INFO(name);
    f.output(f.b.op(name, {f.b.op("square", {f.input("x", {37})})}));
    check_same(f);
    check_same(f, "plain=1");
  }
  for (const char* name : {"add", "sub", "mul", "div"}) {
    GraphFixture f;
    INFO(name);
    // A row that is a constant, a column, a scalar and a whole operand.
    const Val x = f.input("x", {37});
    Val y = f.b.op(name, {x, f.constant("row", {37})});
    y = f.b.op(name, {y, f.input("column", {1})});
    y = f.b.op(name, {y, f.b.scalar(3)});
    f.output(f.b.op(name, {y, x}));
    check_same(f);
  }
  GraphFixture swiglu;
  swiglu.output(swiglu.b.op("swiglu", {swiglu.input("g", {37}), swiglu.input("u", {37})}));
  check_same(swiglu);
  GraphFixture norms;
  const Val rms =
      norms.b.op("rms_norm", {norms.input("x", {96}), norms.constant("w", {96})}, {{"epsilon", 1e-6}});
  norms.output(norms.b.op("layer_norm", {rms, norms.constant("w2", {96}), norms.constant("b", {96})},
                          {{"epsilon", 1e-5}}));
  check_same(norms);
  GraphFixture rope;
  rope.output(rope.b.op("rope",
                        {rope.input("x", {3, 16}), rope.positions(), rope.constant("freq", {8}), Val{}},
                        {{"interleaved", int64_t{0}}, {"mscale", 1.25}, {"norm_eps", 1e-6}}));
  // Angles up to 136 are rounded to f32.
  check_same(rope, "", kOfF32 + 136.0 / (1 << 23));
}

TEST_CASE("plugin: linear layers of every kind of format, on the device and beside it", "[any]") {
  for (const char* format : {"f32", "bf16", "q8_0", "q4_0"}) {
    INFO(format);
    GraphFixture f;
    add_linear(f, format);
    check_same(f, "", kOfRounded);
    check_same(f, "plain=1");
    check_same(f, "missing=matmul");
    check_same(f, std::string("missing=matmul:") + format);
  }
}

TEST_CASE("plugin: an op the device lacks runs on the CPU, and the warning says what that costs") {
  GraphFixture f;
  add_linear(f, "bf16");
  const auto backend = loopback_backend("missing=matmul");
  Warnings warnings;
  ProgramOptions options;
  options.log = warnings.logger();
  f.planned_on(*backend, options);
  const auto lines = warnings.lines();
  REQUIRE(lines.size() == 1);
  INFO(lines[0]);
  CHECK(lines[0].find("no kernel for linear (bf16) on loopback:0") == 0);
  CHECK(lines[0].find("1 call") != std::string::npos);
  // x, the residual and the result at T = 32: 4 * 32 * (64 + 20 + 20) bytes.
  CHECK(lines[0].find("13.0 KiB") != std::string::npos);
}

TEST_CASE("plugin: composites without a kernel run by their definition") {
  GraphFixture f;
  f.output(f.b.op("rms_norm", {f.input("x", {96}), f.constant("w", {96})}, {{"epsilon", 1e-6}}));
  const auto backend = loopback_backend("missing=rms_norm");
  // As on the processor: sums of at most 100 terms in f32.
  CHECK(distance(f.planned_on(*backend), f.reference()) < 2.0 * 100 / (1 << 24));
  GraphFixture softmax;  // no device has it
  softmax.output(softmax.b.op("softmax", {softmax.input("x", {33})}));
  CHECK(distance(softmax.planned_on(*backend), softmax.reference()) < 2.0 * 100 / (1 << 24));
}

TEST_CASE("plugin: views of wider results, read by the device and by the processor", "[any]") {
  for (const char* config : configs({"", "missing=rms_norm+matmul", "missing=unary"})) {
    GraphFixture f;
    const Val wide = f.b.op("exp", {f.input("x", {48})});
    const Val part = f.b.op("slice", {wide}, cut_attrs(1, 16, 48));
    const Val norm = f.b.op("rms_norm", {part, f.constant("w", {32})}, {{"epsilon", 1e-6}});
    f.output(f.b.op("linear", {norm, Val{}, f.b.constant("m", weight(5, 32, "bf16")), Val{}}));
    INFO(config);
    const auto backend = tested_backend(config);
    CHECK(distance(f.planned_on(*backend), f.reference()) < (on_loopback() ? kOfF32 : kOfRounded));
  }
}

TEST_CASE("plugin: sizes seen twice are captured, and replays see new inputs", "[any]") {
  GraphFixture f;
  add_linear(f, "bf16");
  const auto backend = tested_backend();
  const int64_t captures = tested_counter(loopback::kCaptures), replays = tested_counter(loopback::kReplays);
  const auto plan_program = Program::create(f.graph, *backend);
  REQUIRE_OK(plan_program);
  const auto plan = Run::create(*plan_program);
  REQUIRE_OK(plan);
  const auto cpu = cpu_backend();
  const auto truth_program = Program::create(f.graph, *cpu);
  REQUIRE_OK(truth_program);
  const auto truth = Run::create(*truth_program);
  REQUIRE_OK(truth);
  std::vector<std::vector<float>> inputs;
  for (ValueId id : f.graph.inputs()) {
    const auto t = to_tensor(f.inputs.at(f.graph.value(id).name));
    REQUIRE_OK(t);
    inputs.emplace_back(t->values<float>().begin(), t->values<float>().end());
  }
  for (int run = 0; run < 6; ++run) {
    const std::vector<int64_t> symbols{run % 3 == 2 ? f.rows - 1 : f.rows};
    for (auto& values : inputs) {
      for (float& x : values) x = x * 0.5f + 0.1f;
    }
    const std::vector<const void*> bytes{inputs[0].data(), inputs[1].data()};
    REQUIRE_OK((*plan)->run(symbols, bytes));
    REQUIRE_OK((*truth)->run(symbols, bytes));
    std::vector<float> got(static_cast<size_t>((*plan)->output(0).numel())), want(got.size());
    REQUIRE_OK((*plan)->read_output(0, got));
    REQUIRE_OK((*truth)->read_output(0, want));
    CHECK(distance_of(got, want) <= (on_loopback() ? 0 : kOfRounded));
  }
  if (!on_loopback()) return;
  CHECK(loopback_counter(loopback::kCaptures) - captures == 2);  // two sizes
  CHECK(loopback_counter(loopback::kReplays) - replays == 4);    // each but its first
}

// By themselves, and in the inputs' copy; each time more of them, so that they come to lie elsewhere.
TEST_CASE("plugin: bytes beside the inputs come along, and captures follow where all lies", "[any]") {
  GraphFixture f;
  add_linear(f, "bf16");
  const auto backend = tested_backend();
  const auto program = Program::create(f.graph, *backend);
  REQUIRE_OK(program);
  const auto plan = Run::create(*program);
  REQUIRE_OK(plan);
  std::vector<std::vector<float>> inputs;
  std::vector<const void*> bytes;
  for (ValueId id : f.graph.inputs()) {
    const auto t = to_tensor(f.inputs.at(f.graph.value(id).name));
    REQUIRE_OK(t);
    inputs.emplace_back(t->values<float>().begin(), t->values<float>().end());
    bytes.push_back(inputs.back().data());
  }
  const std::vector<int64_t> symbols{f.rows};
  std::vector<float> want;
  std::set<const std::byte*> places;
  for (size_t run = 0; run < 14; ++run) {
    // Three of each size, so that there is a capture when the next one makes them move.
    std::vector<std::byte> beside(run / 3 * 3000, static_cast<std::byte>(run + 1)), back(beside.size());
    const auto came_along = [&] {
      std::ranges::fill(back, std::byte{0});
      REQUIRE_OK(backend->download(back.data(), (*plan)->beside(), back.size()));
      REQUIRE_OK(backend->synchronize());
      CHECK(back == beside);
      CHECK(reinterpret_cast<uintptr_t>((*plan)->beside()) % Buffer::kAlignment == 0);
    };
    REQUIRE_OK((*plan)->load(symbols, bytes, beside));
    places.insert((*plan)->beside());
    came_along();
    REQUIRE_OK((*plan)->execute());
    std::vector<float> got(static_cast<size_t>((*plan)->output(0).numel()));
    REQUIRE_OK((*plan)->read_output(0, got));
    if (want.empty()) want = got;
    CHECK(got == want);
    std::ranges::reverse(beside);
    beside.resize(beside.size() + run * 1000, std::byte{7});
    back.resize(beside.size());
    REQUIRE_OK((*plan)->load_beside(beside));
    came_along();
  }
  CHECK(places.size() > 2);
}

TEST_CASE("plugin: one capture goes for another, the longest unused first, and none for sizes seen once") {
  CaptureCache cache;
  const auto find = [&](int64_t n) {
    const int64_t symbols[] = {n};
    return cache.find(symbols);
  };
  constexpr auto kMost = static_cast<int64_t>(CaptureCache::kEntries);
  const auto captured = std::make_shared<int>();
  for (int64_t n = 0; n < kMost; ++n) {
    CHECK(find(n) == nullptr);
    REQUIRE(find(n) != nullptr);
    find(n)->capture = captured;
  }
  // Of sizes seen once the last ones are remembered.
  for (int64_t n = 1000; n < 1000 + 2 * kMost; ++n) CHECK(find(n) == nullptr);
  CHECK(find(1000) == nullptr);
  for (int64_t n = 0; n < kMost; ++n) {
    CaptureCache::Entry* const kept = find(n);
    REQUIRE(kept != nullptr);
    CHECK(kept->capture == captured);
  }
  // One more that comes again takes the place of the longest unused.
  CHECK(find(0) != nullptr);
  REQUIRE(find(1000) != nullptr);
  CHECK(find(1000)->capture == nullptr);
  CHECK(find(0) != nullptr);
  CHECK(find(1) == nullptr);
  CHECK(captured.use_count() == kMost);
  cache.clear();
  CHECK(find(0) == nullptr);
  CHECK(captured.use_count() == 1);
}
