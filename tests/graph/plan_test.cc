// A Run again and again: what it keeps from one run to the next must not show.
#include "engine/graph/passes/serve.h"
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

namespace {

// Numbers by name in the order in which they are first asked for: constants of the graph, or operands that a
// run computes of an input. Both are -0.125, 0, 0.125 and so on, which is exact.
struct Numbers {
  GraphFixture& f;
  bool computed;
  std::vector<std::vector<float>> inputs = {};

  Val operator()(const char* name, int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.125f * static_cast<float>(i % 5) - 0.125f;
    if (!computed) {
      auto t = Tensor::allocate({n}, Format::f32());
      std::ranges::copy(values, t->mutable_values<float>().begin());
      return f.b.constant(name, std::move(*t));
    }
    for (float& x : values) x = -x;
    inputs.push_back(std::move(values));
    return f.b.op("neg", {Val{f.graph.add_input(name, {Format::f32(), {n}})}});
  }
};

// A sequence's rows through a convolution, a product of two weights, attention with sinks over a cache of
// `kv`, and a gated second layer. Biases and sinks are constants of the graph, or computed.
std::vector<float> served_layer(bool computed, const std::string& kv) {
  GraphFixture f;
  Numbers numbers{f, computed};
  const int64_t T = f.rows;
  const Val x = f.input("x", {32});
  const Val positions{f.graph.add_input("positions", {Format::i32(), {f.graph.dim(f.T)}})};
  const Val segments{f.graph.add_input("segments", {Format::i32(), {f.graph.dim(f.T)}})};
  const Val mixed = f.b.op("causal_conv", {x, f.constant("taps", {32, 3}), numbers("conv", 32), segments});
  const Val both = f.b.op("linear", {mixed, Val{}, f.constant("wq", {32, 32}), numbers("bq", 32),
                                     f.constant("wk", {16, 32}), numbers("bk", 16)});
  using Ints = std::vector<int64_t>;
  const auto columns = [&](int64_t begin, int64_t end, int64_t heads) {
    const Val part =
        f.b.op("slice", {both}, {{"axes", Ints{1}}, {"starts", Ints{begin}}, {"ends", Ints{end}}});
    return f.b.op("reshape", {part}, {{"shape", Ints{0, heads, 8}}});
  };
  const Val k = columns(32, 48, 2);
  const Val heads = f.b.op("attention", {columns(0, 32, 4), k, k, positions, segments, numbers("sinks", 4)},
                           {{"scale", 0.5}});
  const Val rows = f.b.op("reshape", {heads}, {{"shape", Ints{0, 32}}});
  f.output(f.b.op("gated_linear", {rows, x, Val{}, f.constant("wo", {24, 32}), numbers("bo", 24)}));

  ServeOptions options{.page_tokens = 16, .max_sequences = 1, .max_context = 64};
  auto format = kv_format(kv);
  REQUIRE_OK(format);
  options.kv = {*format};
  const auto layout = serve(f.graph, options);
  REQUIRE_OK(layout);
  const auto backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), best_isa());
  const auto program = Program::create(f.graph, *backend);
  REQUIRE_OK(program);
  const auto run = Run::create(*program);
  REQUIRE_OK(run);
  for (const auto& group : layout->groups) {
    for (size_t i = 0; i < group.states.size(); ++i) {
      auto block = Buffer::allocate(2 * group.state_block_bytes[i]);
      REQUIRE_OK(block);
      std::memset(block->mutable_data(), 0, block->size());
      (*run)->bind_state(group.states[i], std::move(*block));
    }
  }
  // Tokens 0 to T - 1 of one sequence, in block 0 of every group.
  std::vector<int32_t> at(static_cast<size_t>(T)), zeros(static_cast<size_t>(T)),
      starts{0, static_cast<int32_t>(T)}, length{static_cast<int32_t>(T)};
  std::iota(at.begin(), at.end(), 0);
  std::vector<float> data(f.inputs.at("x").f.begin(), f.inputs.at("x").f.end());
  std::vector<const void*> bytes;
  size_t own = 0;
  for (const ValueId id : f.graph.inputs()) {
    const std::string& name = f.graph.value(id).name;
    const bool of_numbers = f.graph.value(id).type.format == Format::f32() && name != "x";
    bytes.push_back(name == "x"                 ? static_cast<const void*>(data.data())
                    : of_numbers                ? static_cast<const void*>(numbers.inputs[own++].data())
                    : name == "seq_start"       ? starts.data()
                    : name == "context_len"     ? length.data()
                    : name.starts_with("slots") ? at.data()
                    : name == "positions"       ? at.data()
                                                : zeros.data());
  }
  std::vector<int64_t> symbols(f.graph.symbols().size(), 1);
  symbols[f.T] = T;
  REQUIRE_OK((*run)->run(symbols, bytes));
  std::vector<float> out(static_cast<size_t>(T * 24));
  REQUIRE_OK((*run)->read_output(0, out));
  return out;
}

}  // namespace

TEST_CASE("program: biases and sinks that a run computes give the rows of constant ones") {
  for (const char* kv : {"f32", "int8"}) {
    INFO(kv);
    const std::vector<float> constant = served_layer(false, kv);
    CHECK(*std::ranges::max_element(constant) > 0.1f);
    CHECK(served_layer(true, kv) == constant);
  }
}
