// The loss of a head, in blocks of logits, against its definition in double.

#include "tests/train/one_op.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

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
