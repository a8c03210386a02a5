// The kernels of training against their definitions in double.
#include "engine/ops/train/ops.h"

#include <cmath>
#include <limits>
#include <random>

#include "engine/graph/pass.h"
#include "engine/graph/passes/grad.h"
#include "engine/graph/reference.h"
#include "tests/kernels/matmul_problem.h"
#include "tests/train/gradient_check.h"
#include "tests/train/training_fixture.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

std::vector<float> random_values(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& v : out) v = normal(random);
  return out;
}

TensorType f32_of(std::initializer_list<int64_t> dims) {
  TensorType t{Format::f32(), {}};
  for (const int64_t d : dims) t.shape.emplace_back(d);
  return t;
}

// The same bytes, ending at a guard page.
Tensor guarded(const Tensor& t) {
  if (t.bytes() == 0) return t;
  const auto bytes =
      std::make_shared<Guarded<char>>(t.bytes(), static_cast<size_t>(t.format().info().alignment));
  std::memcpy(bytes->data(), t.data(), t.bytes());
  return Tensor::make(t.shape(), t.format(), Buffer::wrap_const(bytes->data(), t.bytes(), bytes)).value();
}

// One node over these operands, the last `states` of which are states.
struct OneOp {
  Graph graph;
  std::vector<Datum> inputs;
  std::vector<Tensor> states;

  OneOp(const OpDef& op, const std::vector<Tensor>& operands, size_t first_state, Attrs attrs = {},
        size_t results = 0, int64_t constant = -1) {
    std::vector<ValueId> ids;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Tensor& t = operands[k];
      const TensorType type{t.format(), DimVector(t.shape().begin(), t.shape().end())};
      if (k >= first_state) ids.push_back(graph.add_state("s", type)), states.push_back(t);
      else if (static_cast<int64_t>(k) == constant) ids.push_back(graph.add_constant("w", guarded(t)));
      else ids.push_back(graph.add_input("x", type)), inputs.emplace_back(guarded(t));
    }
    auto made = graph.add_node(&op, std::move(ids), std::move(attrs));
    INFO((made.ok() ? std::string() : made.status().message()));
    REQUIRE(made.ok());
    if (results > 0) graph.nodes().back().outputs.resize(results);
    for (const ValueId v : graph.nodes().back().outputs) graph.add_output("y", v);
  }
  Result<std::vector<Datum>> try_run(int threads = 1, Isa isa = best_isa()) {
    auto backend = cpu(threads, isa);
    auto evaluator = Evaluator::create(std::make_shared<const Graph>(graph), *backend);
    REQUIRE(evaluator.ok());
    EvalOptions o;
    o.backend = backend.get();
    o.states = states;
    return (*evaluator)->run(inputs, o);
  }
  std::vector<Tensor> run(int threads = 1, Isa isa = best_isa()) {
    auto r = try_run(threads, isa);
    INFO((r.ok() ? std::string() : r.status().message()));
    REQUIRE(r.ok());
    std::vector<Tensor> out;
    for (const Datum& d : *r) out.push_back(d.tensor);
    return out;
  }
};

Tensor hyper(double rate, double most, double c1, double c2) {
  Tensor t = Tensor::allocate({4}, Format::of(DType::kF64)).value();
  const double v[] = {rate, most, c1, c2};
  std::memcpy(t.mutable_data(), v, sizeof v);
  return t;
}

// Each instruction set, alone and with threads: the same bits for any number of these.
std::vector<std::pair<Isa, int>> runs() {
  std::vector<std::pair<Isa, int>> out;
  for (const Isa isa : levels()) out.emplace_back(isa, 1), out.emplace_back(isa, 3);
  return out;
}

HostValue host(const Tensor& t) { return host_value(t).value(); }

// Within a few roundings of f32 at the size of what is added up.
void check_close(const Tensor& got, const std::vector<double>& want, double unit) {
  REQUIRE(static_cast<size_t>(got.numel()) == want.size());
  double worst = 0;
  for (size_t k = 0; k < want.size(); ++k)
    worst = std::max(
        worst, std::abs(static_cast<double>(got.values<float>()[k]) - want[k]) / (std::abs(want[k]) + unit));
  CHECK(worst < 8 * 0x1p-24);
}

// What an op's definition makes of these, in double.
std::vector<HostValue> defined_results(const OpDef& op, const std::vector<Tensor>& operands,
                                       const Attrs& attrs) {
  std::vector<HostValue> values;
  for (const Tensor& t : operands) values.push_back(host(t));
  std::vector<const HostValue*> given;
  for (const HostValue& v : values) given.push_back(&v);
  const auto made = evaluate_node(op, given, attrs);
  INFO((made.ok() ? std::string() : made.status().message()));
  REQUIRE(made.ok());
  return *made;
}

// The largest difference; infinity where a number is none.
double farthest(const Tensor& got, const std::vector<double>& want) {
  REQUIRE(static_cast<size_t>(got.numel()) == want.size());
  double worst = 0;
  for (size_t k = 0; k < want.size(); ++k) {
    const double d = std::abs(static_cast<double>(got.values<float>()[k]) - want[k]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

}  // namespace

TEST_CASE("adamw and sgd do what their definitions say, over steps and sizes, and clear the gradient") {
  for (const int64_t n : {1, 3, 17, 40000}) {
    for (const bool adam : {true, false}) {
      Tensor p = f32({n}, random_values(static_cast<size_t>(n), 1)),
             m = f32({n}, random_values(static_cast<size_t>(n), 2, 0.1f)),
             v = f32({n}, random_values(static_cast<size_t>(n), 3, 0.1f)),
             g = f32({n}, random_values(static_cast<size_t>(n), 4));
      for (float& x : v.mutable_values<float>()) x *= x;
      UpdateRule rule;
      rule.rate = 0.01, rule.decay = 0.1, rule.beta1 = 0.9, rule.beta2 = 0.99, rule.epsilon = 1e-6,
      rule.step = 3;
      rule.momentum = 0.8;
      Graph d;
      Builder b(d);
      std::map<std::string, HostValue> given{{"p", host(p)}, {"m", host(m)}, {"v", host(v)}, {"g", host(g)}};
      const auto in = [&](const char* name) { return Val{d.add_input(name, f32_of({n}))}; };
      const Val vp = in("p"), vm = in("m"), vv = in("v"), vg = in("g");
      const auto defined =
          adam ? adamw_definition(b, vp, vm, vv, vg, rule) : sgd_definition(b, vp, vm, vg, rule);
      REQUIRE(b.status().ok());
      for (size_t k = 0; k < defined.size(); ++k) d.add_output(std::string(1, "pmv"[k]), defined[k].id);
      const auto want = evaluate_reference(d, given).value();
      Attrs attrs{{"decay", std::vector<double>{0.1}}, {"rate", std::vector<double>{1.0}}};
      if (adam) attrs.set("beta1", 0.9), attrs.set("beta2", 0.99), attrs.set("epsilon", 1e-6);
      else attrs.set("momentum", 0.8);
      const Tensor h = hyper(0.01, 0, 1 - std::pow(0.9, 3), 1 - std::pow(0.99, 3));
      double squares = 0;
      for (const float x : g.values<float>()) squares += static_cast<double>(x) * x;
      std::vector<Tensor> operands{h, p, m};
      if (adam) operands.push_back(v);
      operands.push_back(g);
      const auto norm = OneOp(adam ? op_adamw : op_sgd, operands, 1, attrs).run(n == 17 ? 3 : 1);
      CHECK(std::abs(norm[0].values<double>()[0] / std::sqrt(squares) - 1) < 1e-12);
      check_close(p, want.at("p").f, 0.1);
      check_close(m, want.at("m").f, 0.1);
      if (adam) check_close(v, want.at("v").f, 0.01);
      for (const float x : g.values<float>()) CHECK(x == 0);
    }
  }
}

TEST_CASE(
    "updates: gradients are clipped as one vector, for any number of threads alike; no number changes "
    "nothing") {
  std::vector<std::vector<Tensor>> results;
  for (const int threads : {1, 2, 3}) {
    std::vector<Tensor> operands{hyper(0.1, 1.5, 1, 1)}, kept;
    for (uint32_t k = 0; k < 3; ++k) {
      const int64_t n = 30000 + 1000 * k;
      for (int j = 0; j < 3; ++j)
        operands.push_back(f32({n}, random_values(static_cast<size_t>(n), 10 * k + j)));
      kept.push_back(operands[operands.size() - 3]);
    }
    Attrs attrs{
        {"decay", std::vector<double>(3, 0)}, {"rate", std::vector<double>{1, 0.5, 0}}, {"momentum", 0.0}};
    const auto norm = OneOp(op_sgd, operands, 1, attrs).run(threads);
    kept.push_back(norm[0]);
    results.push_back(kept);
    // The third has a rate of 0.
    CHECK(same_bits(kept[2], f32({32000}, random_values(32000, 20))));
    for (size_t k = 0; k < kept.size(); ++k) CHECK(same_bits(kept[k], results[0][k]));
    const double scale = 1.5 / norm[0].values<double>()[0];
    const float before = random_values(30000, 0)[5], g = random_values(30000, 2)[5];
    CHECK(std::abs(kept[0].values<float>()[5] - (before - 0.1 * scale * g)) < 1e-6);
  }
  Tensor p = f32({2}, {1, 2}), m = f32({2}, {0, 0}), g = f32({2}, {NAN, 1});
  const Attrs one{{"decay", std::vector<double>{0}}, {"rate", std::vector<double>{1}}, {"momentum", 0.0}};
  const auto norm = OneOp(op_sgd, {hyper(0.1, 1, 1, 1), p, m, g}, 1, one).run();
  CHECK(std::isnan(norm[0].values<double>()[0]));
  CHECK(p.values<float>()[0] == 1);
  CHECK(p.values<float>()[1] == 2);
}

TEST_CASE("linear_cross_entropy: loss and gradients are those of its definition, block by block") {
  for (const double softcap : {0.0, 3.0}) {
    for (const auto& [T, E, V] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {1, 5, 3}, {9, 8, 70}, {33, 16, 251}, {1025, 3, 19}}) {
      const Tensor hidden = f32({T, E}, random_values(static_cast<size_t>(T * E), 1)),
                   head = f32({V, E}, random_values(static_cast<size_t>(V * E), 2, 0.5f)),
                   weight = f32({}, {0.25f}), bias = f32({V}, random_values(static_cast<size_t>(V), 3));
      std::vector<int32_t> targets;
      for (int64_t t = 0; t < T; ++t) targets.push_back(t % 4 == 2 ? -1 : static_cast<int32_t>(t * 7 % V));
      const Attrs attrs{{"scale", 0.7}, {"softcap", softcap}};
      Graph d;
      Builder b(d);
      const Val vh{d.add_input("hidden", f32_of({T, E}))}, vw{d.add_input("head", f32_of({V, E}))},
          vt{d.add_input("targets", {Format::i32(), {Dim(T)}})}, scale{d.add_input("weight", f32_of({}))},
          vb{d.add_input("bias", f32_of({V}))};
      const Val loss = cross_entropy_definition(b, vh, vw, vt, scale, attrs, vb);
      INFO(b.status().message());
      REQUIRE(b.status().ok());
      d.add_output("loss", loss.id);
      const ValueId outputs[] = {loss.id}, wanted[] = {vh.id, vw.id, vb.id};
      const auto g = passes::grad(d, outputs, wanted);
      INFO((g.ok() ? std::string() : g.status().message()));
      REQUIRE(g.ok());
      const auto want = evaluate_reference(*g, {{"hidden", host(hidden)},
                                                {"head", host(head)},
                                                {"targets", host(i32(targets))},
                                                {"weight", host(weight)},
                                                {"bias", host(bias)}});
      // The largest of f32 logits, whose order is that of the numbers they stand for but for near ties.
      int64_t hits = 0;
      for (int64_t t = 0; t < T; ++t) {
        std::vector<double> z;
        for (int64_t v = 0; v < V; ++v) {
          z.push_back(bias.values<float>()[static_cast<size_t>(v)]);
          for (int64_t e = 0; e < E; ++e)
            z.back() += static_cast<double>(hidden.values<float>()[static_cast<size_t>(t * E + e)]) *
                        head.values<float>()[static_cast<size_t>(v * E + e)];
        }
        const auto best = std::max_element(z.begin(), z.end()) - z.begin();
        hits += targets[static_cast<size_t>(t)] == best;
      }
      INFO((want.ok() ? std::string() : want.status().message()));
      REQUIRE(want.ok());
      const auto defined =
          defined_results(op_linear_cross_entropy, {hidden, head, i32(targets), weight, bias}, attrs);
      REQUIRE(defined.size() == 6);
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        const auto got = OneOp(op_linear_cross_entropy, {hidden, head, i32(targets), weight, bias}, 9, attrs)
                             .run(threads, isa);
        // Sums of f32 products over E, then over V or T.
        const double unit = std::max(4.0, static_cast<double>(T) / 64);
        check_close(got[0], want->at("loss").f, unit);
        check_close(got[3], want->at("grad/hidden").f, unit);
        check_close(got[4], want->at("grad/bias").f, unit);
        check_close(got[5], want->at("grad/head").f, unit);
        CHECK(got[1].values<int32_t>()[0] == hits);
        for (const size_t k : {1, 2}) CHECK(got[k].values<int32_t>()[0] == defined[k].i.at(0));
        for (const size_t k : {0, 3, 4, 5}) check_close(got[k], defined[k].f, unit);
        if (first.empty()) first = got;
        for (size_t k = 0; k < 6; ++k) CHECK(same_bits(got[k], first[k]));
      }
    }
  }
}

TEST_CASE("linear_cross_entropy: many blocks give what one gives, and no number stays with its row") {
  // A vocabulary so large that a block has few rows.
  const int64_t V = kLogitBytes / 4 / 3, T = 5, E = 2;
  Tensor hidden = f32({T, E}, random_values(static_cast<size_t>(T * E), 1));
  const Tensor head = f32({V, E}, random_values(static_cast<size_t>(V * E), 2));
  const std::vector<int32_t> targets{5, 1, 2, -1, 4};
  double sum = 0;
  for (int64_t t = 0; t < T; ++t) {
    const auto one =
        OneOp(op_linear_cross_entropy,
              {hidden.slice(t, t + 1), head, i32({targets[static_cast<size_t>(t)]}), f32({}, {1})}, 9, {}, 2)
            .run(2);
    sum += one[0].values<float>()[0];
  }
  const auto all =
      OneOp(op_linear_cross_entropy, {hidden, head, i32(targets), f32({}, {1})}, 9, {}, 4).run(2);
  CHECK(std::abs(all[0].values<float>()[0] - sum) < 1e-5 * sum);
  hidden.mutable_values<float>()[4] = NAN;
  const auto bad =
      OneOp(op_linear_cross_entropy, {hidden, head, i32(targets), f32({}, {1})}, 9, {}, 4).run(2);
  CHECK(std::isnan(bad[0].values<float>()[0]));
  for (size_t k = 0; k < static_cast<size_t>(T * E); ++k) {
    const float before = all[3].values<float>()[k], now = bad[3].values<float>()[k];
    if (k / 2 == 2) CHECK(std::isnan(now));
    else CHECK(before == now);
  }
  CHECK_FALSE(OneOp(op_linear_cross_entropy,
                    {hidden, head, i32({0, 0, 0, 0, static_cast<int32_t>(V)}), f32({}, {1})}, 9)
                  .try_run()
                  .ok());
}

TEST_CASE("linear_cross_entropy: logits are never in memory as a whole") {
  const int64_t T = 4096, V = 32768, E = 8;
  auto backend = cpu(1);
  Graph g;
  const auto made = g.add_node(&op_linear_cross_entropy,
                               {g.add_input("h", f32_of({T, E})), g.add_state("w", f32_of({V, E})),
                                g.add_input("t", {Format::i32(), {Dim(T)}}), g.add_input("s", f32_of({}))},
                               {});
  REQUIRE(made.ok());
  for (const ValueId v : *made) g.add_output("y", v);
  const auto evaluator = Evaluator::create(std::make_shared<const Graph>(g), *backend);
  REQUIRE(evaluator.ok());
  EvalOptions o;
  o.backend = backend.get();
  const Tensor state[] = {Tensor::without_bytes({V, E}, Format::f32())};
  o.states = state;
  const auto plan =
      (*evaluator)
          ->size({Datum(Tensor::zeros({T, E}, Format::f32()).value()),
                  Datum(i32(std::vector<int32_t>(static_cast<size_t>(T)))), Datum(f32({}, {1}))},
                 o);
  REQUIRE(plan.ok());
  // 512 MiB whole; a block of them, what the way back through the head packs, and the gradients.
  CHECK(plan->peak_bytes() < 64 << 20);
}

TEST_CASE("products with stored matrices, forwards and back, are those with the numbers they stand for") {
  const int64_t T = 5, N = 48, K = 256;
  const Tensor x = f32({T, K}, random_values(static_cast<size_t>(T * K), 1)),
               dy = f32({T, N}, random_values(static_cast<size_t>(T * N), 2)),
               plain = f32({N, K}, random_values(static_cast<size_t>(N * K), 3));
  for (const char* name :
       {"f32", "bf16", "f16", "q8_0", "q4_0", "i8_channel", "e4m3_channel", "e5m2_channel", "e4m3_g128",
        "i4_s8_g32", "w4a8_g128", "u4_g64", "q2_k", "q4_k", "q6_k", "iq4_nl", "mxfp4", "nvfp4"}) {
    const auto format = Format::find(name);
    INFO(name);
    REQUIRE(format.has_value());
    const auto bytes = encode({plain.values<float>().begin(), plain.values<float>().end()}, K, *format);
    Tensor w = Tensor::allocate({N, K}, *format).value();
    REQUIRE(w.bytes() == bytes.size());
    std::memcpy(w.mutable_data(), bytes.data(), bytes.size());
    const Tensor decoded = to_f32(w).value();
    const auto v = decoded.values<float>();
    // Kernels round what blocks' minima add apart from the rest.
    std::vector<float> minima = decode_minima(bytes, K, *format);
    minima.resize(v.size(), 0);
    for (const Isa isa : levels()) {
      const auto y = OneOp(op_rows_linear, {x, w}, 9, {}, 0, 1).run(2, isa),
                 dx = OneOp(op_rows_product, {dy, w}, 9, {}, 0, 1).run(2, isa);
      // Kernels may round x as they serve: to bf16 beside bf16, a part in 512 of each number; to 8 bits a
      // group or row beside fewer bits, a part in 254 of its largest. Those of f32 and f16 do not.
      const double rounding = *format == Format::bf16() ? 0x1p-9
                              : format->plain()         ? 256 * 0x1p-24
                                                        : 1.0 / 254;
      double worst = 0, worst_back = 0;
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t n = 0; n < N; ++n) {
          double sum = 0, size = 0, largest = 0, weights = 0;
          for (int64_t k = 0; k < K; ++k) {
            const double a = x.values<float>()[static_cast<size_t>(t * K + k)],
                         b = v[static_cast<size_t>(n * K + k)];
            const double least = minima[static_cast<size_t>(n * K + k)];
            sum += a * b, size += std::abs(a * b), weights += std::abs(b - least) + std::abs(least);
            largest = std::max(largest, std::abs(a));
          }
          const double bound = rounding * (format->plain() ? size : largest * weights);
          worst =
              std::max(worst, std::abs(sum - y[0].values<float>()[static_cast<size_t>(t * N + n)]) / bound);
        }
        for (int64_t k = 0; k < K; ++k) {
          double sum = 0;
          for (int64_t n = 0; n < N; ++n)
            sum += static_cast<double>(dy.values<float>()[static_cast<size_t>(t * N + n)]) *
                   v[static_cast<size_t>(n * K + k)];
          worst_back =
              std::max(worst_back, std::abs(sum - dx[0].values<float>()[static_cast<size_t>(t * K + k)]));
        }
      }
      INFO(isa_name(isa));
      CHECK(worst < 1);
      CHECK(worst_back < 48 * 0x1p-24 * 16);
    }
    const auto rows = OneOp(op_table_rows, {w, i32({3, 47, 3})}, 9, {{"scale", 2.0}}, 0, 0).run();
    for (int64_t k = 0; k < K; ++k) {
      CHECK(rows[0].values<float>()[static_cast<size_t>(k)] == 2 * v[static_cast<size_t>(3 * K + k)]);
      CHECK(rows[0].values<float>()[static_cast<size_t>(K + k)] == 2 * v[static_cast<size_t>(47 * K + k)]);
    }
    CHECK_FALSE(OneOp(op_table_rows, {w, i32({48})}, 9, {}, 0, 0).try_run().ok());
  }
}

TEST_CASE("products of a layer's way back: of f32, and of two bf16 with f32 sums") {
  for (const auto& [T, N, K] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1, 1, 1},
                                                                                  {2, 17, 5},
                                                                                  {37, 33, 16},
                                                                                  {64, 32, 48},
                                                                                  {65, 100, 31},
                                                                                  {33, 70, 90},
                                                                                  {100, 300, 16},
                                                                                  {1025, 17, 33}}) {
    for (const bool narrow : {false, true}) {
      const auto numbers = [&](int64_t rows, int64_t cols, uint32_t seed) {
        const Tensor wide = f32({rows, cols}, random_values(static_cast<size_t>(rows * cols), seed));
        if (!narrow) return wide;
        Tensor t = Tensor::allocate({rows, cols}, Format::bf16()).value();
        for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i)
          static_cast<bf16*>(t.mutable_data())[i] = to_bf16(wide.values<float>()[i]);
        return t;
      };
      const Tensor dy = numbers(T, N, 1), x = numbers(T, K, 2), w = numbers(N, K, 3);
      const Tensor dy32 = to_f32(dy).value(), x32 = to_f32(x).value(), w32 = to_f32(w).value();
      const auto product = [](const Tensor& a, bool a_turned, const Tensor& b, int64_t rows, int64_t terms,
                              int64_t cols) {
        std::vector<double> out;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < cols; ++c) {
            double sum = 0;
            for (int64_t t = 0; t < terms; ++t)
              sum += static_cast<double>(
                         a.values<float>()[static_cast<size_t>(a_turned ? t * rows + r : r * terms + t)]) *
                     b.values<float>()[static_cast<size_t>(t * cols + c)];
            out.push_back(sum);
          }
        return out;
      };
      const auto dw = product(dy32, true, x32, N, T, K), dx = product(dy32, false, w32, T, N, K);
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        INFO(T << " x " << N << " x " << K << (narrow ? " bf16" : " f32"));
        const auto got = OneOp(op_rows_gradient, {dy, x}, 9, {}).run(threads, isa),
                   back = OneOp(op_rows_product, {dy, w}, 9, {}).run(threads, isa);
        CHECK(farthest(got[0], dw) <= 0x1p-23 * 16 * static_cast<double>(T));
        CHECK(farthest(back[0], dx) <= 0x1p-23 * 16 * static_cast<double>(N));
        if (first.empty()) first = {got[0], back[0]};
        CHECK(same_bits(got[0], first[0]));
        CHECK(same_bits(back[0], first[1]));
      }
    }
  }
}

TEST_CASE("a layer of f32 there: slice by slice, of rows in f32 and in bf16, with its bias") {
  for (const auto& [T, N, K] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {3, 2100, 9}, {17, 33, 50}, {2, 16, 40}, {1025, 17, 9}}) {
    const Tensor w = f32({N, K}, random_values(static_cast<size_t>(N * K), 1)),
                 bias = f32({N}, random_values(static_cast<size_t>(N), 2)),
                 x = f32({T, K}, random_values(static_cast<size_t>(T * K), 3));
    Tensor x16 = Tensor::allocate({T, K}, Format::bf16()).value();
    for (size_t i = 0; i < static_cast<size_t>(T * K); ++i)
      static_cast<bf16*>(x16.mutable_data())[i] = to_bf16(x.values<float>()[i]);
    for (const bool narrow : {false, true}) {
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        INFO(T << " x " << N << " x " << K << (narrow ? " bf16" : " f32"));
        const auto y = OneOp(op_rows_linear, {narrow ? x16 : x, w, bias}, 9, {}).run(threads, isa);
        // A weight beside rows in bf16 is rounded to it.
        const auto number = [&](const Tensor& t, int64_t i) {
          const float v = t.values<float>()[static_cast<size_t>(i)];
          return static_cast<double>(narrow ? to_f32(to_bf16(v)) : v);
        };
        double worst = 0;
        for (int64_t t = 0; t < T; ++t)
          for (int64_t n = 0; n < N; ++n) {
            double sum = static_cast<double>(bias.values<float>()[static_cast<size_t>(n)]);
            for (int64_t k = 0; k < K; ++k) sum += number(x, t * K + k) * number(w, n * K + k);
            worst = std::max(
                worst,
                std::abs(sum - static_cast<double>(y[0].values<float>()[static_cast<size_t>(t * N + n)])));
          }
        CHECK(worst <= 0x1p-23 * 16 * static_cast<double>(K));
        if (first.empty()) first = y;
        CHECK(same_bits(y[0], first[0]));
      }
    }
  }
}

TEST_CASE("a layer and its adapter at once: forwards and back those of products in double") {
  for (const auto& [T, N, K, r] :
       std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>{{1, 1, 1, 1},
                                                                   {2, 17, 5, 3},
                                                                   {37, 33, 16, 4},
                                                                   {64, 32, 48, 16},
                                                                   {65, 100, 31, 17},
                                                                   {1025, 9, 17, 2}}) {
    for (const bool narrow : {false, true}) {
      const auto numbers = [&](int64_t rows, int64_t cols, uint32_t seed) {
        const Tensor wide = f32({rows, cols}, random_values(static_cast<size_t>(rows * cols), seed));
        if (!narrow) return wide;
        Tensor t = Tensor::allocate({rows, cols}, Format::bf16()).value();
        for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i)
          static_cast<bf16*>(t.mutable_data())[i] = to_bf16(wide.values<float>()[i]);
        return t;
      };
      const Tensor x = numbers(T, K, 1), w = numbers(N, K, 2), a = numbers(r, K, 3), b = numbers(N, r, 4),
                   dy = numbers(T, N, 5), bias = f32({N}, random_values(static_cast<size_t>(N), 6));
      using Matrix = std::vector<double>;
      const auto wide = [](const Tensor& t) {
        const Tensor v = to_f32(t).value();
        return Matrix(v.values<float>().begin(), v.values<float>().end());
      };
      // out (rows, cols) = l (rows, terms) . m, where m is (terms, cols) or turned (cols, terms)
      const auto product = [](const Matrix& l, const Matrix& m, bool turned, int64_t rows, int64_t terms,
                              int64_t cols) {
        Matrix out(static_cast<size_t>(rows * cols), 0);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < cols; ++j)
            for (int64_t k = 0; k < terms; ++k)
              out[static_cast<size_t>(i * cols + j)] +=
                  l[static_cast<size_t>(i * terms + k)] *
                  m[static_cast<size_t>(turned ? j * terms + k : k * cols + j)];
        return out;
      };
      const double factor = 0.5;
      Matrix low = product(wide(x), wide(a), true, T, K, r),
             back = product(wide(dy), wide(b), false, T, N, r);
      for (Matrix* m : {&low, &back})
        for (double& v : *m) v *= factor;
      Matrix y = product(wide(x), wide(w), true, T, K, N), up = product(low, wide(b), true, T, r, N);
      Matrix dx = product(wide(dy), wide(w), false, T, N, K), down = product(back, wide(a), false, T, r, K);
      for (size_t i = 0; i < y.size(); ++i)
        y[i] += up[i] + static_cast<double>(bias.values<float>()[i % static_cast<size_t>(N)]);
      for (size_t i = 0; i < dx.size(); ++i) dx[i] += down[i];
      // Sums in f32; of bf16 `low` is rounded to 2^-9 of its size before the second product.
      const auto close = [&](const Tensor& got, const Matrix& want, int64_t terms, double rounded) {
        REQUIRE(static_cast<size_t>(got.numel()) == want.size());
        const double most = 0x1p-23 * 16 * static_cast<double>(terms) + (narrow ? rounded : 0);
        CHECK(farthest(got, want) <= most);
      };
      const auto largest = [](const Matrix& m) {
        double most = 0;
        for (const double v : m) most = std::max(most, std::abs(v));
        return most;
      };
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        INFO(T << " x " << N << " x " << K << ", rank " << r << (narrow ? " bf16" : " f32"));
        const Attrs attrs{{"factor", factor}};
        auto got = OneOp(op_lora_linear, {x, w, bias, a, b}, 9, attrs).run(threads, isa);
        const auto there = OneOp(op_lora_back, {dy, w, a, b}, 9, attrs).run(threads, isa);
        const auto alone = OneOp(op_lora_back, {dy, w, a, b}, 9, attrs, 1).run(threads, isa);
        CHECK(same_bits(alone[0], there[0]));
        const double one = 0x1p-9 * static_cast<double>(r);
        close(got[0], y, K + r, one * largest(low) * largest(wide(b)));
        close(got[1], low, K, 0);
        close(there[0], back, N, 0);
        close(there[1], dx, N + r, one * largest(back) * largest(wide(a)));
        got.insert(got.end(), there.begin(), there.end());
        if (first.empty()) first = got;
        for (size_t k = 0; k < got.size(); ++k) CHECK(same_bits(got[k], first[k]));
        // A row does not depend on those beside it.
        if (T < 2) continue;
        const auto single = OneOp(op_lora_linear, {x.slice(1, 2), w, bias, a, b}, 9, attrs).run(threads, isa);
        CHECK(same_bits(single[0], got[0].slice(1, 2)));
      }
    }
  }
}

TEST_CASE("gates and norms of rows, and their ways back, are those of the definitions in double") {
  for (const auto& [T, E] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 5}, {7, 300}, {33, 129}, {1025, 17}}) {
    const auto n = static_cast<size_t>(T * E);
    const Tensor x = f32({T, E}, random_values(n, 1, 3)), y = f32({T, E}, random_values(n, 2)),
                 dy = f32({T, E}, random_values(n, 3)),
                 w = f32({E}, random_values(static_cast<size_t>(E), 4));
    const auto want = [&, rows = T, cols = E](const char* op, const Tensor& second) {
      Graph g;
      Builder b(g);
      const TensorType matrix = f32_of({rows, cols});
      const Val vx{g.add_input("x", matrix)}, seed{g.add_input("dy", matrix)};
      const Val vs{g.add_input("s", second.shape().rank() == 1 ? f32_of({cols}) : matrix)};
      const Val out = b.op(op, {vx, vs}, op == std::string("rms_norm") ? Attrs{{"epsilon", 1e-3}} : Attrs{});
      REQUIRE(b.status().ok());
      g.add_output("y", out.id);
      const ValueId of[] = {out.id}, by[] = {vx.id, vs.id};
      passes::GradOptions o;
      o.seeds = {seed.id};
      const Graph d = passes::grad(g, of, by, o).value();
      auto all = evaluate_reference(d, {{"x", host(x)}, {"s", host(second)}, {"dy", host(dy)}}).value();
      return std::vector{all.at("y"), all.at("grad/x"), all.at("grad/s")};
    };
    const auto compare = [&](const char* op, const OpDef& there, const OpDef& back, const Tensor& second,
                             const Attrs& attrs, double terms) {
      const auto expected = want(op, second);
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        INFO(op << " of " << T << " x " << E);
        auto got = OneOp(there, {x, second}, 9, attrs).run(threads, isa);
        for (const Tensor& t : OneOp(back, {x, second, dy}, 9, attrs).run(threads, isa)) got.push_back(t);
        REQUIRE(got.size() == 3);
        check_close(got[0], expected[0].f, 1);
        check_close(got[1], expected[1].f, 10);
        check_close(got[2], expected[2].f, terms);
        if (first.empty()) first = got;
        for (size_t k = 0; k < 3; ++k) CHECK(same_bits(got[k], first[k]));
      }
    };
    compare("swiglu", op_rows_swiglu, op_rows_swiglu_back, y, {}, 10);
    compare("rms_norm", op_rows_rms_norm, op_rows_rms_norm_back, w, {{"epsilon", 1e-3}},
            static_cast<double>(T));
    // Operands in bf16 are those numbers.
    const auto rounded = [](const Tensor& t) {
      Tensor out = Tensor::allocate(t.shape(), Format::bf16()).value();
      for (size_t i = 0; i < static_cast<size_t>(t.numel()); ++i)
        static_cast<bf16*>(out.mutable_data())[i] = to_bf16(t.values<float>()[i]);
      return out;
    };
    const Tensor x16 = rounded(x), y16 = rounded(y), d16 = rounded(dy);
    const auto narrow = OneOp(op_rows_swiglu_back, {x16, y16, d16}, 9, {}).run(2),
               wide = OneOp(op_rows_swiglu_back,
                            {to_f32(x16).value(), to_f32(y16).value(), to_f32(d16).value()}, 9, {})
                          .run(2);
    for (size_t k = 0; k < 2; ++k) CHECK(same_bits(narrow[k], wide[k]));
    CHECK(same_bits(OneOp(op_rows_swiglu, {x16, y16}, 9, {}).run(2)[0],
                    OneOp(op_rows_swiglu, {to_f32(x16).value(), to_f32(y16).value()}, 9, {}).run()[0]));
  }
}

TEST_CASE("adapters are computed with their layers, but where what they read is dropped in part") {
  for (const double dropout : {0.0, 0.1}) {
    const TinyGolden golden = load_tiny_golden("llama3");
    const Checkpoint c = load_checkpoint(write_tiny_model(golden, TinyDtype::f32)).value();
    GraphOptions o;
    o.tokens = 16;
    o.lora.targets = {"all"}, o.lora.dropout = dropout;
    const ModelGraphs graphs = build_model_graphs(c, read_model_config(c.config).value(), o).value();
    const auto count = [&](const OpDef& op) {
      return static_cast<size_t>(std::count_if(graphs.step->nodes().begin(), graphs.step->nodes().end(),
                                               [&](const Node& n) { return n.op == &op; }));
    };
    CHECK(count(op_lora_linear) == (dropout > 0 ? 0 : graphs.parameters.size() / 2));
    CHECK(count(op_lora_back) == count(op_lora_linear));
  }
}

TEST_CASE("linear_cross_entropy of bf16: its gradients are those of f32 within the roundings") {
  const int64_t T = 33, E = 16, V = 251;
  const Tensor hidden = f32({T, E}, random_values(static_cast<size_t>(T * E), 1)),
               head = f32({V, E}, random_values(static_cast<size_t>(V * E), 2, 0.5f));
  const auto rounded = [](const Tensor& t) {
    Tensor out = Tensor::allocate(t.shape(), Format::bf16()).value();
    for (size_t i = 0; i < static_cast<size_t>(t.numel()); ++i)
      static_cast<bf16*>(out.mutable_data())[i] = to_bf16(t.values<float>()[i]);
    return out;
  };
  std::vector<int32_t> targets;
  for (int64_t t = 0; t < T; ++t) targets.push_back(t % 4 == 2 ? -1 : static_cast<int32_t>(t * 7 % V));
  const Tensor narrow = rounded(hidden), table = rounded(head);
  const auto want = OneOp(op_linear_cross_entropy,
                          {to_f32(narrow).value(), to_f32(table).value(), i32(targets), f32({}, {1})}, 9)
                        .run(2);
  std::vector<Tensor> first;
  for (const auto& [isa, threads] : runs()) {
    if (threads == 1) first.clear();
    INFO(isa_name(isa) << ", threads " << threads);
    const auto got =
        OneOp(op_linear_cross_entropy, {narrow, table, i32(targets), f32({}, {1})}, 9).run(threads, isa);
    CHECK(std::abs(got[0].values<float>()[0] - want[0].values<float>()[0]) <
          1e-5 * want[0].values<float>()[0]);
    for (const size_t k : {size_t{3}, size_t{5}}) {
      double worst = 0, largest = 0;
      for (size_t i = 0; i < static_cast<size_t>(want[k].numel()); ++i) {
        const double x = want[k].values<float>()[i];
        worst = std::max(worst, std::abs(got[k].values<float>()[i] - x)),
        largest = std::max(largest, std::abs(x));
      }
      CHECK(worst <= 0x1p-8 * largest);
    }
    if (first.empty()) first = got;
    for (const size_t k : {size_t{0}, size_t{3}, size_t{5}}) CHECK(same_bits(got[k], first[k]));
  }
}

TEST_CASE("segment attention and its way back are those of attention's definition") {
  struct Case {
    int64_t H, K, D, window;
    double softcap;
    std::vector<int64_t> segments;
  };
  for (const Case& c :
       {Case{4, 2, 8, 0, 0, {1}}, Case{4, 2, 8, 0, 0, {5, 1, 9}}, Case{3, 3, 5, 4, 2.0, {7, 6}},
        Case{2, 1, 16, 3, 0, {17, 2}}, Case{2, 1, 4, 0, 0, {130, 3}}, Case{2, 2, 4, 70, 3.0, {65, 150}}}) {
    std::vector<int32_t> positions, segments;
    for (size_t s = 0; s < c.segments.size(); ++s)
      for (int64_t k = 0; k < c.segments[s]; ++k)
        positions.push_back(static_cast<int32_t>(k)), segments.push_back(static_cast<int32_t>(7 - s));
    const auto T = static_cast<int64_t>(positions.size());
    const auto values = [&](int64_t heads, uint32_t seed) {
      return f32({T, heads, c.D}, random_values(static_cast<size_t>(T * heads * c.D), seed));
    };
    const Tensor q = values(c.H, 1), k = values(c.K, 2), v = values(c.K, 3), dy = values(c.H, 4);
    const Attrs attrs{{"scale", 0.4}, {"window", c.window}, {"softcap", c.softcap}};
    Graph d;
    Builder b(d);
    std::vector<Val> in{{d.add_input("q", f32_of({T, c.H, c.D}))},
                        {d.add_input("k", f32_of({T, c.K, c.D}))},
                        {d.add_input("v", f32_of({T, c.K, c.D}))},
                        {d.add_input("p", {Format::i32(), {Dim(T)}})},
                        {d.add_input("s", {Format::i32(), {Dim(T)}})}};
    const ValueId seed = d.add_input("dy", f32_of({T, c.H, c.D}));
    const Val y = b.op("attention", in, attrs);
    REQUIRE(b.status().ok());
    d.add_output("y", y.id);
    const ValueId outputs[] = {y.id}, wanted[] = {in[0].id, in[1].id, in[2].id};
    passes::GradOptions o;
    o.seeds = {seed};
    const auto g = passes::grad(d, outputs, wanted, o);
    INFO((g.ok() ? std::string() : g.status().message()));
    REQUIRE(g.ok());
    const auto want = evaluate_reference(*g, {{"q", host(q)},
                                              {"k", host(k)},
                                              {"v", host(v)},
                                              {"p", host(i32(positions))},
                                              {"s", host(i32(segments))},
                                              {"dy", host(dy)}});
    INFO((want.ok() ? std::string() : want.status().message()));
    REQUIRE(want.ok());
    std::vector<Tensor> first;
    for (const auto& [isa, threads] : runs()) {
      if (threads == 1) first.clear();
      INFO(isa_name(isa) << ", threads " << threads);
      const auto got =
          OneOp(op_segment_attention, {q, k, v, i32(positions), i32(segments)}, 9, attrs).run(threads, isa);
      auto back = OneOp(op_segment_attention_back, {q, k, v, i32(positions), i32(segments), dy}, 9, attrs)
                      .run(threads, isa);
      // A score is a sum of D products of f32, what follows sums of T of them.
      check_close(got[0], want->at("y").f, 2);
      check_close(back[0], want->at("grad/q").f, 8);
      check_close(back[1], want->at("grad/k").f, 8);
      check_close(back[2], want->at("grad/v").f, 8);
      back.push_back(got[0]);
      if (first.empty()) first = back;
      for (size_t j = 0; j < back.size(); ++j) CHECK(same_bits(back[j], first[j]));
    }
    std::vector<int32_t> torn = segments;
    torn.back() = torn.front(), torn.push_back(5);
    if (c.segments.size() > 1) {
      torn.pop_back();
      CHECK_FALSE(OneOp(op_segment_attention, {q, k, v, i32(positions), i32(torn)}, 9, attrs).try_run().ok());
    }
  }
}

TEST_CASE("no number in one sample stays with its rows, in each op of rows, there and back") {
  const int64_t T = 9, first_of_second = 4, heads = 2, D = 16, E = heads * D, N = 24, r = 4;
  const auto numbers = [](const Shape& shape, uint32_t seed) {
    return f32(shape, random_values(static_cast<size_t>(shape.numel()), seed));
  };
  const auto rounded = [](const Tensor& t) {
    Tensor out = Tensor::allocate(t.shape(), Format::bf16()).value();
    Format::bf16().encode_row(t.values<float>().data(), t.numel(), out.mutable_data());
    return out;
  };
  struct Case {
    const char* name;
    const OpDef& op;
    std::vector<Tensor> operands;
    Attrs attrs;
    size_t of_rows;  // results that have a row for each token; behind them are sums over tokens
  };
  const Tensor q = numbers({T, heads, D}, 1), k = numbers({T, heads, D}, 2), v = numbers({T, heads, D}, 3),
               d_heads = numbers({T, heads, D}, 4), positions = i32({0, 1, 2, 3, 0, 1, 2, 3, 4}),
               segments = i32({0, 0, 0, 0, 1, 1, 1, 1, 1}), x = numbers({T, E}, 5), y = numbers({T, E}, 6),
               dx = numbers({T, E}, 7), dn = numbers({T, N}, 8), w = numbers({N, E}, 9),
               a = numbers({r, E}, 10), b = numbers({N, r}, 11), norm = numbers({E}, 12),
               frequencies = numbers({D / 2}, 13);
  const Attrs attention{{"scale", 0.3}, {"window", int64_t{0}}, {"softcap", 0.0}}, lora{{"factor", 0.5}},
      epsilon{{"epsilon", 1e-3}};
  const std::vector<Case> cases{
      {"attention", op_segment_attention, {q, k, v, positions, segments}, attention, 1},
      {"attention back", op_segment_attention_back, {q, k, v, positions, segments, d_heads}, attention, 3},
      {"rotate", op_rotate, {q, positions, frequencies}, {}, 1},
      {"linear", op_rows_linear, {x, w}, {}, 1},
      {"linear back", op_rows_product, {dn, w}, {}, 1},
      {"lora", op_lora_linear, {x, w, numbers({N}, 14), a, b}, lora, 2},
      {"lora back", op_lora_back, {dn, w, a, b}, lora, 2},
      {"lora of bf16",
       op_lora_linear,
       {rounded(x), rounded(w), numbers({N}, 14), rounded(a), rounded(b)},
       lora,
       2},
      {"lora of bf16 back", op_lora_back, {rounded(dn), rounded(w), rounded(a), rounded(b)}, lora, 2},
      {"norm", op_rows_rms_norm, {x, norm}, epsilon, 1},
      {"norm back", op_rows_rms_norm_back, {x, norm, dx}, epsilon, 1},
      {"gate", op_rows_swiglu, {x, y}, {}, 1},
      {"gate back", op_rows_swiglu_back, {x, y, dx}, {}, 2}};
  for (const Case& c : cases) {
    const std::vector<Tensor> good = OneOp(c.op, c.operands, 9, c.attrs).run(2);
    for (size_t k_spoiled = 0; k_spoiled < c.operands.size(); ++k_spoiled) {
      const Tensor& operand = c.operands[k_spoiled];
      if (operand.shape()[0] != T || operand.format() == Format::i32()) continue;
      for (const int64_t row : {int64_t{1}, int64_t{6}}) {
        INFO(c.name << ", operand " << k_spoiled << ", row " << row);
        std::vector<Tensor> operands = c.operands;
        const Tensor plain = to_f32(operand).value();
        std::vector<float> values(plain.values<float>().begin(), plain.values<float>().end());
        values[static_cast<size_t>(row * (operand.numel() / T) + 3)] = NAN;
        const Tensor spoiled = f32(operand.shape(), values);
        operands[k_spoiled] = operand.format() == Format::f32() ? spoiled : rounded(spoiled);
        const std::vector<Tensor> bad = OneOp(c.op, operands, 9, c.attrs).run(2);
        const bool in_second = row >= first_of_second;
        bool broken = false;
        for (size_t n = 0; n < c.of_rows; ++n) {
          const auto rows = [&](const Tensor& t, bool of_second) {
            return of_second ? t.slice(first_of_second, T) : t.slice(0, first_of_second);
          };
          CHECK(same_bits(rows(bad[n], !in_second), rows(good[n], !in_second)));
          const Tensor own = to_f32(rows(bad[n], in_second)).value();
          for (const float value : own.values<float>()) broken = broken || std::isnan(value);
        }
        CHECK(broken);
      }
    }
  }
}

TEST_CASE("rotate is rope, and its way back is rotate in reverse") {
  const int64_t T = 6, heads = 3, D = 10;
  for (const bool interleaved : {false, true}) {
    const Tensor x = f32({T, heads, D}, random_values(180, 1)),
                 dy = f32({T, heads, D}, random_values(180, 2)), frequencies = f32({3}, {1, 0.3f, 0.01f});
    const std::vector<int32_t> positions{0, 1, 2, 0, 900, 5};
    const Attrs attrs{{"mscale", 1.2}, {"interleaved", int64_t{interleaved}}};
    Graph d;
    Builder b(d);
    const Val vx{d.add_input("x", f32_of({T, heads, D}))}, vp{d.add_input("p", {Format::i32(), {Dim(T)}})},
        vf{d.add_input("f", f32_of({3}))};
    const ValueId seed = d.add_input("dy", f32_of({T, heads, D}));
    const Val y = b.op("rope", {vx, vp, vf, Val{}}, attrs);
    REQUIRE(b.status().ok());
    d.add_output("y", y.id);
    passes::GradOptions o;
    o.seeds = {seed};
    const ValueId outputs[] = {y.id}, wanted[] = {vx.id};
    const auto g = passes::grad(d, outputs, wanted, o);
    INFO((g.ok() ? std::string() : g.status().message()));
    REQUIRE(g.ok());
    const auto want = evaluate_reference(
        *g, {{"x", host(x)}, {"p", host(i32(positions))}, {"f", host(frequencies)}, {"dy", host(dy)}});
    REQUIRE(want.ok());
    check_close(OneOp(op_rotate, {x, i32(positions), frequencies}, 9, attrs).run(2)[0], want->at("y").f, 1);
    Attrs back = attrs;
    back.set("reverse", int64_t{1});
    check_close(OneOp(op_rotate, {dy, i32(positions), frequencies}, 9, back).run(2)[0], want->at("grad/x").f,
                1);
  }
}

TEST_CASE("accumulate adds to its state in place") {
  Tensor sum = f32({3}, {1, 2, 3});
  Graph g;
  const ValueId state = g.add_state("sum", f32_of({3})), x = g.add_input("x", f32_of({3}));
  REQUIRE(g.add_node(&op_accumulate, {state, x}).ok());
  auto backend = cpu(1);
  auto e = Evaluator::create(std::make_shared<const Graph>(g), *backend);
  REQUIRE(e.ok());
  EvalOptions o;
  CHECK((*e)->run({Datum(f32({3}, {1, 1, 1}))}, o).status().message().find("1 states is given 0") !=
        std::string::npos);
  const Tensor states[] = {sum};
  o.states = states;
  REQUIRE((*e)->run({Datum(f32({3}, {10, 20, 30}))}, o).ok());
  REQUIRE((*e)->run({Datum(f32({3}, {1, 1, 1}))}, o).ok());
  CHECK(same_bits(sum, f32({3}, {12, 23, 34})));
}

namespace {

// An op of training over small operands.
struct Form {
  const OpDef& op;
  std::vector<TensorType> in;  // of no known type: left out
  Attrs attrs = {};
  size_t result = 0;
  std::vector<size_t> wanted = {};  // operands that have a gradient; empty: all floats
};

std::vector<Form> forms() {
  using Ints = std::vector<int64_t>;
  const TensorType matrix = f32_of({4, 6}), out = f32_of({4, 5}), w = f32_of({5, 6}), a = f32_of({2, 6}),
                   up = f32_of({5, 2}), bias = f32_of({5}), columns = f32_of({6}), heads = f32_of({4, 2, 8}),
                   images = f32_of({4, 3, 2}), channels = f32_of({3}), rows{Format::i32(), {Dim(4)}},
                   starts{Format::i32(), {Dim(3)}}, none = TensorType::unknown();
  const Attrs scale{{"scale", 0.3}}, factor{{"factor", 0.5}}, epsilon{{"epsilon", 1e-3}},
      experts{{"experts", int64_t{2}}};
  return {
      {op_segment_attention, {heads, heads, heads, rows, rows}, scale},
      {op_segment_attention_back, {heads, heads, heads, rows, rows, heads}, scale},
      {op_rotate, {heads, rows, f32_of({4})}, {}, 0, {0}},
      {op_table_rows, {f32_of({7, 6}), rows}, {{"scale", 1.5}}},
      {op_barrier, {matrix, matrix}},
      {op_rows_linear, {matrix, w, bias}},
      {op_rows_product, {out, w}},
      {op_rows_gradient, {out, matrix}},
      {op_lora_linear, {matrix, w, bias, a, up}, factor, 0, {0, 3, 4}},
      {op_lora_back, {out, w, a, up}, factor, 1},
      {op_rows_rms_norm, {matrix, columns}, epsilon},
      {op_rows_rms_norm_back, {matrix, columns, matrix}, epsilon},
      {op_rows_swiglu, {matrix, matrix}},
      {op_rows_swiglu_back, {matrix, matrix, matrix}},
      {op_segment_scan,
       {f32_of({4, 1, 3}), f32_of({4, 1, 3}), f32_of({4, 1, 2}), f32_of({4, 1}), f32_of({4, 1}), rows},
       {{"delta", int64_t{1}}}},
      {op_batch_statistics_norm, {images, channels, channels}, epsilon},
      {op_batch_statistics_norm_back, {images, channels, channels, channels, images}, epsilon},
      {op_counted_dropout, {matrix, {Format::of(DType::kI64), {}}}, {{"rate", 0.1}, {"site", int64_t{0}}}},
      {op_expert_rows, {matrix, none, starts, none, w, w}, experts},
      {op_expert_rows_back, {out, none, starts, none, w, w}, experts},
      {op_expert_products, {out, matrix, none, starts}, {{"expert", int64_t{1}}, {"rows", Ints{5}}}},
      {op_route, {matrix}, {{"top_k", int64_t{2}}}, 2}};
}

}  // namespace

TEST_CASE("ops of training are differentiated as often as is said of them") {
  std::map<std::string_view, std::string_view> said;
  for (const TrainingOp& t : training_ops()) {
    CHECK(find_op(t.op->name) == nullptr);  // in no registry
    CHECK(said.emplace(t.op->name, t.gradient).second);
    if (t.gradient == std::string_view("not")) CHECK(t.op->vjp == nullptr);
  }
  for (const Form& c : forms()) {
    INFO(c.op.name);
    Graph g;
    Builder b(g);
    std::vector<Val> in;
    for (const TensorType& type : c.in)
      in.push_back(type.known ? Val{g.add_input(cat("in ", in.size()), type)} : Val{});
    const std::vector<Val> made = emit(b, c.op, in, c.attrs);
    REQUIRE(b.status().ok());
    const ValueId by[] = {in[0].id};
    std::string failure;
    Val y = made[c.result];
    for (int order = 1; order <= 2 && failure.empty(); ++order) {
      const ValueId of[] = {b.op("square", {y}).id};
      REQUIRE(b.status().ok());
      auto next = passes::grad(g, of, by, {.prefix = cat("order ", order, "/")});
      if (!next.ok()) failure = cat(order, ": ", next.status().message());
      else g = std::move(*next), y = {*passes::find_value(g, cat("order ", order, "/in 0"))};
    }
    INFO(failure);
    CHECK(failure.find("1: ") != 0);
    CHECK((said.at(c.op.name) == "any order") == failure.empty());
    if (!failure.empty()) CHECK(failure.find(" has no gradient") != std::string::npos);
    said.erase(c.op.name);
  }
  for (const auto& [name, gradient] : said) {
    INFO(name);
    CHECK(gradient == "not");
  }
}

TEST_CASE("ops of training mean what defines them, and its gradients equal differences to second order") {
  for (const Form& c : forms()) {
    if (c.op.define == nullptr) continue;
    INFO(c.op.name);
    Graph g;
    Builder b(g);
    std::mt19937 random(3);
    Inputs inputs;
    std::vector<Val> in;
    std::vector<std::string> wanted;
    for (size_t k = 0; k < c.in.size(); ++k) {
      in.emplace_back();
      if (!c.in[k].known) continue;
      HostValue v;
      std::vector<int64_t> dims;
      for (const Dim& d : c.in[k].shape) dims.push_back(d.const_value());
      v.shape = Shape(dims), v.dtype = c.in[k].format.dtype();
      const std::string name = cat("in ", k);
      if (!v.is_float()) {
        v.i = dims[0] == 3 ? std::vector<int64_t>{0, 1, 4} : std::vector<int64_t>{0, 0, 1, 1};
      } else {
        v.f = apart(v.shape.numel(), -1.3, 1.2, random);
        if (c.wanted.empty() || std::count(c.wanted.begin(), c.wanted.end(), k) > 0) wanted.push_back(name);
      }
      in.back() = {g.add_input(name, c.in[k])};
      inputs[name] = std::move(v);
    }
    const std::vector<Val> made = emit(b, c.op, in, c.attrs);
    REQUIRE(b.status().ok());
    HostValue by;
    std::vector<int64_t> dims;
    for (const Dim& d : b.shape(made[c.result])) dims.push_back(d.const_value());
    by.shape = Shape(dims);
    by.f = apart(by.shape.numel(), -0.7, 1.1, random);
    const Val seed{g.add_input("seed", type_of(by))};
    inputs["seed"] = by;
    const Val L = b.op("reduce_sum", {b.op("mul", {made[c.result], seed})}, {{"keepdims", int64_t{0}}});
    REQUIRE(b.status().ok());
    g.add_output("L", L.id);
    check_gradients(g, inputs, wanted, 2);
    // What is left out is no tensor; and here no batch has this mean and variance (image_test.cc).
    if (inputs.size() <= in.size() || &c.op == &op_batch_statistics_norm_back) continue;
    std::vector<Tensor> operands;
    for (size_t k = 0; k < in.size(); ++k) operands.push_back(to_tensor(inputs.at(cat("in ", k))).value());
    const auto want = defined_results(c.op, operands, c.attrs);
    const auto got = OneOp(c.op, operands, 9, c.attrs).run();
    REQUIRE(got.size() == want.size());
    for (size_t k = 0; k < got.size(); ++k) check_close(got[k], want[k].f, 4);
  }
}

TEST_CASE("a step decomposes into ops without definitions, which have the gradients that kernels have") {
  for (const char* name : {"llama3", "qwen3-moe"}) {
    for (const bool full : {true, false}) {
      INFO(name << (full ? " full" : " lora"));
      const TinyGolden golden = load_tiny_golden(name);
      const Checkpoint c = load_checkpoint(write_tiny_model(golden, TinyDtype::f32)).value();
      GraphOptions o;
      o.tokens = 12, o.full = full, o.lora.targets = {"all"};
      ModelGraphs graphs = build_model_graphs(c, read_model_config(c.config).value(), o).value();
      std::vector<Tensor> values = first_values(graphs, c);
      for (size_t k = 0; k < values.size() && !full; ++k)  // B is zero, and A would have no gradient
        if (graphs.parameters[k].name.ends_with(".lora_B.weight"))
          values[k] = f32(values[k].shape(), random_values(static_cast<size_t>(values[k].numel()), 5, 0.1f));
      SampleRows rows;
      rows.add({3, 1, 4, 1, 5}, next_tokens({3, 1, 4, 1, 5}));
      rows.add({9, 2, 6}, next_tokens({9, 2, 6}));
      rows.pad(12);
      const std::vector<Tensor> want = micro_batch(graphs, values, rows);
      Graph g = *graphs.step;
      const auto rewrites = decompose(g, [](const Node&) { return false; });
      INFO((rewrites.ok() ? std::string() : rewrites.status().message()));
      REQUIRE(rewrites.ok());
      for (const Node& n : g.nodes()) CHECK(n.op->define == nullptr);
      graphs.step = std::make_shared<const Graph>(std::move(g));
      const std::vector<Tensor> got = micro_batch(graphs, values, rows);
      REQUIRE(got.size() == want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        double most = 1e-3;
        for (const float v : want[k].values<float>()) most = std::max(most, std::abs(static_cast<double>(v)));
        CHECK(farthest(got[k], host(want[k]).f) < 2e-5 * most);
      }
    }
  }
}
