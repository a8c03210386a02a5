// Ops that move elements are kernel calls in a run: equal to their evaluation to the bit, in every type, at
// every level, and left alone where nothing moves or values decide.
#include "engine/graph/bound_call.h"
#include "engine/graph/evaluate.h"
#include "tests/graph/graph_fixture.h"

namespace {
using namespace oar;
using Ints = std::vector<int64_t>;

struct Move {
  const char* op;
  Attrs attrs;
  std::vector<Ints> operands;  // shapes, all of one type
  size_t results = 1;
  bool moved = true;
  std::vector<Ints> sizes = {};  // constant operands behind them
};

const std::vector<Move>& moves() {
  static const std::vector<Move> all{
      {"transpose", {{"perm", Ints{0, 2, 3, 1}}}, {{2, 3, 5, 7}}},
      {"transpose", {{"perm", Ints{0, 3, 1, 2}}}, {{2, 5, 7, 33}}},
      {"transpose", {{"perm", Ints{1, 0}}}, {{37, 19}}},
      {"transpose", {}, {{3, 4, 5}}},
      {"transpose", {{"perm", Ints{2, 0, 4, 1, 3}}}, {{2, 3, 4, 1, 6}}},
      {"transpose", {{"perm", Ints{0, 2, 1}}}, {{3, 1, 5}}, 1, false},
      {"slice", {{"starts", Ints{1, -2}}, {"ends", Ints{4, 5}}, {"axes", Ints{1, 0}}}, {{5, 7}}},
      {"slice",
       {{"starts", Ints{-1}}, {"ends", Ints{-8}}, {"axes", Ints{-1}}, {"steps", Ints{-3}}},
       {{2, 7}}},
      {"slice", {}, {{4, 6}}, 1, true, {{0, 1}, {4, 6}, {0, 1}, {3, 2}}},
      {"slice", {{"starts", Ints{0}}, {"ends", Ints{99}}}, {{4, 6}}, 1, false},
      {"slice", {{"starts", Ints{3}}, {"ends", Ints{3}}}, {{4, 6}}, 1, false},
      {"split", {{"axis", int64_t{1}}}, {{3, 6, 2}}, 3},
      {"split", {{"axis", int64_t{-1}}}, {{3, 7}}, 2},
      {"split", {}, {{5, 4}}, 2, true, {{2, 3}}},
      {"split", {{"axis", int64_t{1}}}, {{3, 6, 2}}, 6, false},  // more results than a node's calls have
      {"concat", {{"axis", int64_t{1}}}, {{2, 3, 4}, {2, 1, 4}, {2, 5, 4}}},
      {"concat", {{"axis", int64_t{-1}}}, {{6, 3}, {6, 0}, {6, 1}}},
      {"concat", {}, {{2, 5}}},
      {"pad", {{"pads", Ints{1, 0, 2, 3}}}, {{3, 5}}},
      {"pad", {{"pads", Ints{-1, 2, 0, -2}}}, {{4, 6}}},
      {"pad", {{"pads", Ints{1, 3, 0, -4}}}, {{3, 2}}},  // nothing of the operand is left
      {"pad", {{"pads", Ints{0, 2, 0, 0}}, {"mode", std::string("edge")}}, {{3, 5}}, 1, false},
      {"expand", {{"shape", Ints{2, 3, 5}}}, {{3, 1}}},
      {"expand", {}, {{1, 4}}, 1, true, {{6, 4}}},
      {"expand", {{"shape", Ints{1}}}, {{3, 4}}, 1, false},
      {"tile", {{"repeats", Ints{2, 1, 3}}}, {{2, 3}}},
      {"tile", {{"repeats", Ints{1, 1}}}, {{2, 3}}, 1, false},
      {"depth_to_space", {{"blocksize", int64_t{2}}}, {{2, 12, 3, 5}}},
      {"depth_to_space", {{"blocksize", int64_t{2}}, {"mode", std::string("CRD")}}, {{2, 12, 3, 5}}},
      {"space_to_depth", {{"blocksize", int64_t{3}}}, {{2, 2, 6, 9}}},
      {"transpose", {{"perm", Ints{1, 0}}}, {{0, 4}}, 1, false},
  };
  return all;
}

Tensor numbered(const Ints& dims, DType dtype) {
  Tensor t = Tensor::allocate(Shape(dims), Format::of(dtype)).value();
  auto* const p = static_cast<uint8_t*>(t.mutable_data());
  for (uint64_t i = 0; i < t.bytes(); ++i) p[i] = static_cast<uint8_t>(i * 37 + i / 251 + 1);
  return t;
}

}  // namespace

TEST_CASE("ops that move elements: kernels and evaluation are equal to the bit") {
  const auto pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2});
  for (const Move& m : moves()) {
    for (const DType dtype : {DType::kF32, DType::kU8, DType::kF16, DType::kI64}) {
      INFO(m.op << " of " << Shape(m.operands[0]).to_string() << " " << dtype_name(dtype));
      auto graph = std::make_shared<Graph>();
      std::vector<ValueId> ids;
      std::vector<Datum> data;
      for (const Ints& dims : m.operands) {
        data.emplace_back(numbered(dims, dtype));
        ids.push_back(graph->add_input(cat("x", data.size()), TensorType::unknown()));
      }
      const std::vector<Datum> inputs = data;
      for (const Ints& list : m.sizes) {
        Tensor t = Tensor::allocate({static_cast<int64_t>(list.size())}, Format::of(DType::kI64)).value();
        std::copy(list.begin(), list.end(), static_cast<int64_t*>(t.mutable_data()));
        data.emplace_back(t);
        ids.push_back(graph->add_constant(cat("sizes", data.size()), t));
      }
      const auto made = graph->append(find_op(m.op), ids, m.results, m.attrs);
      for (size_t k = 0; k < made.size(); ++k) graph->add_output(cat("y", k), made[k]);
      std::vector<const Datum*> pointers;
      for (const Datum& d : data) pointers.push_back(&d);
      const auto want = evaluate_op(graph->nodes()[0], pointers, {});
      REQUIRE_OK(want);
      for (const Isa isa : {Isa::kReference, best_isa()}) {
        INFO(isa_name(isa));
        const auto backend = make_cpu_backend(pool, isa);
        WeightStore weights(*backend);
        const auto call = bind_call(*graph, graph->nodes()[0], pointers, weights, Prepared());
        REQUIRE_OK(call);
        CHECK(((*call)->op != nullptr) == m.moved);
        const auto evaluator = Evaluator::create(graph, *backend);
        REQUIRE_OK(evaluator);
        EvalOptions options;
        options.backend = backend.get();
        const auto got = (*evaluator)->run(inputs, options);
        REQUIRE_OK(got);
        REQUIRE(got->size() == want->size());
        for (size_t k = 0; k < want->size(); ++k) {
          const Tensor &a = (*got)[k].tensor, &b = (*want)[k].tensor;
          REQUIRE(a.shape() == b.shape());
          CHECK(a.format() == b.format());
          CHECK((a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0));
        }
      }
    }
  }
}

TEST_CASE("ops that move elements: a padding value is an operand") {
  Graph g;
  const ValueId x = g.add_input("x", TensorType::unknown()),
                value = g.add_input("value", TensorType::unknown());
  const auto made =
      g.append(find_op("pad"), std::vector<ValueId>{x, kNoValue, value}, 1, {{"pads", Ints{2, 1}}});
  g.add_output("y", made[0]);
  const auto evaluator = Evaluator::create(std::make_shared<const Graph>(std::move(g)));
  REQUIRE_OK(evaluator);
  Tensor seven = Tensor::allocate({}, Format::of(DType::kI32)).value();
  *static_cast<int32_t*>(seven.mutable_data()) = 7;
  const auto out = (*evaluator)->run({Datum(numbered({2}, DType::kI32)), Datum(seven)}, {});
  REQUIRE_OK(out);
  const Tensor numbers = numbered({2}, DType::kI32);
  const auto* n = static_cast<const int32_t*>(numbers.data());
  const auto* y = static_cast<const int32_t*>((*out)[0].tensor.data());
  CHECK(std::vector<int32_t>(y, y + 5) == std::vector<int32_t>{7, 7, n[0], n[1], 7});
}
