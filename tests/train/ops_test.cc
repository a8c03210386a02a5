// The kernels of training against their definitions in double: updates, rows, attention, sums.
#include "engine/ops/train/ops.h"

#include <cmath>
#include <limits>

#include "engine/graph/passes/grad.h"
#include "tests/support/sample.h"
#include "tests/train/one_op.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

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

TEST_CASE("segment attention and its way back are those of attention's definition") {
  struct Case {
    int64_t H, K, D, window;
    double softcap;
    std::vector<int64_t> segments;
    bool chunked = false, sinks = false;
  };
  for (const Case& c :
       {Case{4, 2, 8, 0, 0, {1}}, Case{4, 2, 8, 0, 0, {5, 1, 9}}, Case{3, 3, 5, 4, 2.0, {7, 6}},
        Case{2, 1, 16, 3, 0, {17, 2}}, Case{2, 1, 4, 0, 0, {130, 3}}, Case{2, 2, 4, 70, 3.0, {65, 150}},
        Case{2, 1, 8, 4, 0, {11, 3, 8}, true}, Case{2, 2, 4, 70, 0, {65, 150}, true},
        Case{4, 2, 8, 0, 0, {5, 1, 9}, false, true}, Case{2, 1, 4, 40, 3.0, {65, 70}, false, true},
        // Around a tile of 32 and of 64 rows, and thousands.
        Case{1, 1, 3, 0, 0, {31}}, Case{1, 1, 3, 0, 0, {32}}, Case{2, 1, 3, 0, 0, {33}},
        Case{1, 1, 8, 0, 0, {63, 1}}, Case{1, 1, 2, 0, 0, {1025}}, Case{1, 1, 2, 100, 0, {3, 1020, 2}}}) {
    std::vector<int32_t> positions, segments;
    for (size_t s = 0; s < c.segments.size(); ++s)
      for (int64_t k = 0; k < c.segments[s]; ++k)
        positions.push_back(static_cast<int32_t>(k)), segments.push_back(static_cast<int32_t>(7 - s));
    const auto T = static_cast<int64_t>(positions.size());
    if (oar_test::kSlow && T > 1000) continue;  // of its square, in double
    const auto values = [&](int64_t heads, uint32_t seed) {
      return f32({T, heads, c.D}, random_values(static_cast<size_t>(T * heads * c.D), seed));
    };
    const Tensor q = values(c.H, 1), k = values(c.K, 2), v = values(c.K, 3), dy = values(c.H, 4);
    const Attrs attrs{
        {"scale", 0.4}, {"window", c.window}, {"softcap", c.softcap}, {"chunked", int64_t{c.chunked}}};
    Graph d;
    Builder b(d);
    std::vector<Val> in{{d.add_input("q", f32_of({T, c.H, c.D}))},
                        {d.add_input("k", f32_of({T, c.K, c.D}))},
                        {d.add_input("v", f32_of({T, c.K, c.D}))},
                        {d.add_input("p", {Format::i32(), {Dim(T)}})},
                        {d.add_input("s", {Format::i32(), {Dim(T)}})}};
    const ValueId seed = d.add_input("dy", f32_of({T, c.H, c.D}));
    std::vector<Tensor> forward{q, k, v, i32(positions), i32(segments)};
    std::vector<Tensor> backward = forward;
    backward.push_back(dy);
    std::map<std::string, HostValue> given{{"q", host(q)},
                                           {"k", host(k)},
                                           {"v", host(v)},
                                           {"p", host(i32(positions))},
                                           {"s", host(i32(segments))},
                                           {"dy", host(dy)}};
    if (c.sinks) {
      const Tensor sinks = f32({c.H}, random_values(static_cast<size_t>(c.H), 5));
      in.push_back({d.add_input("sinks", f32_of({c.H}))});
      given["sinks"] = host(sinks);
      forward.push_back(sinks), backward.push_back(sinks);
    }
    const Val y = b.op("attention", in, attrs);
    REQUIRE(b.status().ok());
    d.add_output("y", y.id);
    const ValueId outputs[] = {y.id}, wanted[] = {in[0].id, in[1].id, in[2].id};
    passes::GradOptions o;
    o.seeds = {seed};
    const auto g = passes::grad(d, outputs, wanted, o);
    INFO((g.ok() ? std::string() : g.status().message()));
    REQUIRE(g.ok());
    const auto want = evaluate_reference(*g, given);
    INFO((want.ok() ? std::string() : want.status().message()));
    REQUIRE(want.ok());
    std::vector<Tensor> first;
    for (const auto& [isa, threads] : runs()) {
      if (threads == 1) first.clear();
      INFO(isa_name(isa) << ", threads " << threads);
      const auto got = OneOp(op_segment_attention, forward, 9, attrs).run(threads, isa);
      auto back = OneOp(op_segment_attention_back, backward, 9, attrs).run(threads, isa);
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
      {"attention of bf16",
       op_segment_attention,
       {rounded(q), rounded(k), rounded(v), positions, segments},
       attention,
       1},
      {"attention of bf16 back",
       op_segment_attention_back,
       {rounded(q), rounded(k), rounded(v), positions, segments, rounded(d_heads)},
       attention,
       3},
      {"sum", op_rows_add, {x, rounded(y)}, {}, 1},
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
  const int64_t heads = 3, D = 10;
  for (const auto& [T, interleaved] : std::vector<std::pair<int64_t, bool>>{{1, false},
                                                                            {1, true},
                                                                            {6, false},
                                                                            {6, true},
                                                                            {31, true},
                                                                            {33, false},
                                                                            {1025, false},
                                                                            {1025, true}}) {
    const auto n = static_cast<size_t>(T * heads * D);
    const Tensor x = f32({T, heads, D}, random_values(n, 1)), dy = f32({T, heads, D}, random_values(n, 2)),
                 frequencies = f32({3}, {1, 0.3f, 0.01f});
    std::vector<int32_t> positions{0, 1, 2, 0, 900, 5};
    positions.resize(static_cast<size_t>(T));
    for (size_t t = 6; t < positions.size(); ++t) positions[t] = static_cast<int32_t>(t % 700);
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
    Attrs back = attrs;
    back.set("reverse", int64_t{1});
    for (const auto& [isa, threads] : runs()) {
      INFO(T << " rows, " << isa_name(isa) << ", threads " << threads);
      check_close(OneOp(op_rotate, {x, i32(positions), frequencies}, 9, attrs).run(threads, isa)[0],
                  want->at("y").f, 1);
      check_close(OneOp(op_rotate, {dy, i32(positions), frequencies}, 9, back).run(threads, isa)[0],
                  want->at("grad/x").f, 1);
    }
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
