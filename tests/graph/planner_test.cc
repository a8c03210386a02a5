// The memory planner against its own rule: at any size, values that live at the same time do not overlap.
#include <cstring>
#include <random>

#include "engine/graph/cut.h"
#include "engine/graph/memory_planner.h"
#include "tests/graph/graph_fixture.h"

namespace {
using namespace oar;

struct Range {
  int64_t begin, end;
};

// Byte ranges of every stored value for the given symbols.
std::vector<Range> ranges(const Graph& g, const MemoryPlan& plan, const std::vector<int64_t>& symbols) {
  std::vector<Range> out(g.num_values(), {0, 0});
  for (size_t v = 0; v < g.num_values(); ++v) {
    const Placement& p = plan.placements[v];
    if (p.offset < 0 || p.root != static_cast<ValueId>(v)) continue;
    int64_t bytes = 4;
    for (const Dim& d : g.value(static_cast<ValueId>(v)).type.shape) bytes *= d.evaluate(symbols);
    out[v] = {p.offset, p.offset + bytes};
    REQUIRE(out[v].end <= static_cast<int64_t>(plan.arena_bytes));
  }
  return out;
}

}  // namespace

TEST_CASE("random graphs: no two live values share bytes, at any size") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    Graph g;
    Builder b(g);
    const SymbolId T = g.add_symbol("T", 64), R = g.add_symbol("R", 16);
    std::vector<Val> live{{g.add_input("a", {Format::f32(), {g.dim(T), Dim(8)}})},
                          {g.add_input("b", {Format::f32(), {g.dim(R), Dim(24)}})}};
    for (int k = 0; k < 20; ++k) {
      const Val x = live[random() % live.size()];
      const char* unary[] = {"exp", "tanh", "neg"};
      if (random() % 4 == 0) live.push_back(b.op("add", {x, x}));
      else if (random() % 4 == 0)
        live.push_back(b.op("slice", {x}, cut_attrs(-1, 0, b.dim(x, -1).const_value() / 2 + 1)));
      else live.push_back(b.op(unary[random() % 3], {x}));
    }
    REQUIRE_OK(b.status());
    g.add_output("out", live.back().id);
    REQUIRE_OK(insert_copies(g));
    const auto plan = plan_memory(g);
    REQUIRE_OK(plan);
    for (const std::vector<int64_t>& symbols : {std::vector<int64_t>{64, 16}, {1, 16}, {64, 1}, {5, 3}}) {
      const auto r = ranges(g, *plan, symbols);
      // While node i runs, its outputs must not touch any root that is read at i or later.
      for (size_t i = 0; i < g.nodes().size(); ++i) {
        for (const ValueId out : g.nodes()[i].outputs) {
          if (plan->placements[out].root != out) continue;
          std::vector<ValueId> needed;
          for (size_t j = i; j < g.nodes().size(); ++j) {
            for (const ValueId v : g.nodes()[j].inputs) needed.push_back(plan->placements[v].root);
          }
          for (const auto& o : g.outputs()) needed.push_back(plan->placements[o.value].root);
          for (const ValueId v : needed) {
            if (v == out) continue;
            bool defined = g.value(v).kind == ValueKind::kInput;
            for (size_t j = 0; j <= i; ++j) {
              for (const ValueId w : g.nodes()[j].outputs) defined = defined || w == v;
            }
            if (defined) REQUIRE((r[out].end <= r[v].begin || r[v].end <= r[out].begin));
          }
        }
      }
    }
  }
}

TEST_CASE("a chain reuses its memory") {
  oar_test::GraphFixture f;
  Val x = f.input("x", {64});
  for (int k = 0; k < 10; ++k) x = f.b.op("tanh", {x});
  f.output(x);
  const auto plan = plan_memory(f.graph);
  REQUIRE_OK(plan);
  CHECK(plan->arena_bytes == 2 * (32 * 256 + 320));  // two values of the longest batch, not at the same sets
}

TEST_CASE("steps that a device may do at once do not write over what one of them reads") {
  for (const bool together : {false, true}) {
    oar_test::GraphFixture f;
    const Val x = f.b.op("exp", {f.input("x", {2, 64})}), at = f.positions();
    const Val frequencies = f.constant("frequencies", {32});
    const ValueId pool = f.graph.add_state("pool", {Format::bf16(), {Dim(4), Dim(4096)}});
    const Val k = f.b.op("rope", {x, at, frequencies});
    const Val k2 = f.b.op("hadamard", {k}, {{"block", int64_t{64}}}),
              v = f.b.op("hadamard", {x}, {{"block", int64_t{64}}});
    const Val filled = f.b.op("kv_append", {{pool}, k2, v, at});
    f.output(f.b.op("tanh", {v}));
    REQUIRE_OK(f.b.status());
    const auto plan = plan_memory(f.graph, {.together = together});
    REQUIRE_OK(plan);
    const std::vector<Range> r = ranges(f.graph, *plan, {32});
    const auto meet = [&](Val a, Val b) {
      return r[a.id].begin < r[b.id].end && r[b.id].begin < r[a.id].end;
    };
    REQUIRE(filled);
    // The last transform may take the memory of what was rotated, unless all are done at once.
    bool any = false;
    for (const auto& [a, b] : {std::pair{x, k}, {x, k2}, {x, v}, {k, k2}, {k, v}, {k2, v}})
      any = any || meet(a, b);
    CHECK(any != together);
  }
}

TEST_CASE("what a gate reads stays until the product of experts behind it is done, if that may do both") {
  for (const bool together : {false, true}) {
    oar_test::GraphFixture f;
    const Val start{f.graph.add_input("start", {Format::i32(), {Dim(3)}})};
    const Val gate = f.b.op("exp", {f.input("x", {64})}), up = f.b.op("tanh", {gate});
    const Val made = f.b.op("swiglu", {gate, up});
    const Val w = f.constant("w", {64, 64});
    const Val y = f.b.op("grouped_linear", {made, {}, start, {}, w, w}, {{"experts", int64_t{2}}});
    f.output(f.b.op("tanh", {y}));
    REQUIRE_OK(f.b.status());
    const auto plan = plan_memory(f.graph, {.together = together});
    REQUIRE_OK(plan);
    const std::vector<Range> r = ranges(f.graph, *plan, {32});
    bool any = false;
    for (const Val read : {gate, up})
      any = any || (r[read.id].begin < r[y.id].end && r[y.id].begin < r[read.id].end);
    CHECK(any != together);
  }
}

namespace {

// Heads over a latent: a key of a normalized latent and of columns that rotate, and queries of products and
// of columns that rotate.
struct LatentHeads : oar_test::GraphFixture {
  Val q, key, query, latent, turned;
  explicit LatentHeads() {
    const Val at = positions(), frequencies = constant("frequencies", {4}), w = constant("w", {24});
    const Val made = b.op("exp", {input("x", {32})});
    q = b.op("exp", {input("q", {2, 20})});
    latent = b.op("rms_norm", {cut(made, 0, 24), w});
    const Val turning = b.op("reshape", {cut(made, 24, 32)}, shaped({0, 1, 8}));
    const Val turned_key = b.op("rope", {turning, at, frequencies});
    key = joined(b.op("reshape", {latent}, shaped({0, 1, 24})), turned_key);
    const Val m = constant("m", {24, 12});
    const Val over = b.op("grouped_linear", {q, {}, {}, {}, m, m}, {{"experts", int64_t{2}}});
    turned = b.op("rope", {cut(q, 12, 20), at, frequencies});
    query = joined(over, turned);
  }
  Val cut(Val v, int64_t begin, int64_t end) { return b.op("slice", {v}, cut_attrs(-1, begin, end)); }
  Val joined(Val a, Val c) { return b.op("concat", {a, c}, {{"axis", int64_t{2}}}); }
  static Attrs shaped(std::vector<int64_t> shape) { return {{"shape", std::move(shape)}}; }
  // Copies that are put in, and what of the plan is asked about.
  MemoryPlan placed(bool heads_apart) {
    REQUIRE_OK(b.status());
    graph.sort();
    const MemoryRules rules{.heads_apart = heads_apart};
    REQUIRE_OK(insert_copies(graph, rules));
    auto plan = plan_memory(graph, rules);
    REQUIRE_OK(plan);
    return *std::move(plan);
  }
  int copies() const {
    return static_cast<int>(
        std::ranges::count_if(graph.nodes(), [](const Node& n) { return n.is("contiguous"); }));
  }
};

}  // namespace

TEST_CASE("columns of heads that are joined are written where the joined rows lie") {
  LatentHeads f;
  f.output(f.b.op("exp", {f.key}));
  f.graph.add_output("query", f.query.id);
  const MemoryPlan plan = f.placed(true);
  const auto& at = plan.placements;
  CHECK(f.copies() == 0);
  for (const Node& n : f.graph.nodes()) CHECK((!n.is("concat") || in_place(n, at)));
  // Of one head rows, of several each head's.
  CHECK((at[f.latent.id].root == f.key.id && at[f.latent.id].column == 0 && at[f.latent.id].head_step == 0));
  CHECK((at[f.latent.id].row_stride == Dim(32) && !at[f.latent.id].contiguous));
  const Placement& turned = at[f.turned.id];
  CHECK((turned.root == f.query.id && turned.column == 24 && turned.head_step == 32));
  CHECK(turned.row_stride == Dim(64));
  CHECK(turned.offset == at[f.query.id].offset);
  // What rotates of queries is read where it is.
  for (const Node& n : f.graph.nodes()) {
    if (!n.is("slice") || n.inputs[0] != f.q.id) continue;
    const Placement& cut = at[n.outputs[0]];
    CHECK((cut.root == f.q.id && cut.column == 12 && cut.head_step == 20 && cut.row_stride == Dim(40)));
  }
  // Keys are under way while queries are made: they share nothing, nor with what both are made of.
  const std::vector<Range> r = ranges(f.graph, plan, {32});
  const auto meet = [&](Val a, Val c) { return r[a.id].begin < r[c.id].end && r[c.id].begin < r[a.id].end; };
  CHECK((!meet(f.key, f.query) && !meet(f.key, f.q) && !meet(f.query, f.q)));
}

TEST_CASE("columns of heads are copied where they cannot lie among others") {
  const auto in_places = [](const LatentHeads& f, const MemoryPlan& plan) {
    return std::ranges::count_if(
        f.graph.nodes(), [&](const Node& n) { return n.is("concat") && in_place(n, plan.placements); });
  };
  {
    LatentHeads f;  // no kernel for heads that lie apart
    f.output(f.query);
    CHECK(in_places(f, f.placed(false)) == 0);
  }
  {
    LatentHeads f;  // who else reads them gets a copy
    f.output(f.b.op("exp", {f.turned}));
    f.graph.add_output("query", f.query.id);
    f.graph.add_output("key", f.key.id);
    CHECK(in_places(f, f.placed(true)) == 2);
    CHECK(f.copies() == 1);
  }
  {
    LatentHeads f;  // a result of the graph
    f.output(f.turned);
    f.graph.add_output("query", f.query.id);
    f.graph.add_output("key", f.key.id);
    CHECK(in_places(f, f.placed(true)) == 1);
  }
  {
    LatentHeads f;  // joined twice, with itself, and with what no op writes so
    f.output(f.joined(f.turned, f.turned));
    f.graph.add_output("query", f.query.id);
    f.graph.add_output("mixed", f.joined(f.b.op("exp", {f.query}), f.query).id);
    const MemoryPlan plan = f.placed(true);
    CHECK(in_places(f, plan) == 2);
    CHECK(plan.placements[f.turned.id].root == f.query.id);
  }
}

TEST_CASE("heads among others' columns have the values of those by themselves") {
  for (const int which : {0, 1}) {
    LatentHeads f;
    f.output(which == 0 ? f.query : f.key);
    CHECK(oar_test::distance(f.planned(), f.reference()) < 1e-5);
    CHECK(oar_test::distance(f.planned(Isa::kReference), f.reference()) < 1e-5);
  }
}
