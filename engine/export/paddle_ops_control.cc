// If and loop as PIR's if and while; a ProgramDesc makes blocks of them (paddle_program_desc.cc). Branches
// and bodies see the values around them by themselves there.
#include <algorithm>

#include "engine/base/format.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

// A subgraph in a block of its own: the first inputs are `formal`, the rest operands of the node from
// `captured` on. Its results are yielded, behind what `more` adds.
struct Body {
  int32_t block = 0;
  std::vector<ValueIndex> results;
};
Body open_body(NodeWriter& n) {
  auto& blocks = n.file().program.blocks;
  blocks.emplace_back();
  blocks.back().parent = n.block().block();
  return {static_cast<int32_t>(blocks.size() - 1), {}};
}
void fill_body(NodeWriter& n, Body& body, const Graph& g, const std::vector<ValueIndex>& formal,
               size_t captured) {
  BlockWriter inner(n.file(), g, body.block);
  for (size_t k = 0; k < g.inputs().size(); ++k)
    inner.bind(g.inputs()[k], k < formal.size() ? formal[k] : n.in(captured + k - formal.size()));
  if (!n.status().ok()) return;
  if (Status s = inner.write_nodes(); !s.ok()) return n.fail(std::move(s));
  const std::vector<int> producers = g.producers();
  for (const Graph::Output& o : g.outputs()) {
    const int from = producers[static_cast<size_t>(o.value)];
    if (from >= 0 && g.nodes()[static_cast<size_t>(from)].is("none")) {
      body.results.push_back(kAbsent);
      continue;
    }
    auto v = inner.value_of(o.value);
    if (!v.ok()) return n.fail(v.status());
    body.results.push_back(*v);
  }
}
void yield(NodeWriter& n, const Body& body) {
  Op op;
  op.type = "cf.yield";
  for (const ValueIndex v : body.results) op.inputs.push_back({"", {v}});
  n.file().program.blocks[static_cast<size_t>(body.block)].ops.push_back(std::move(op));
}
// Adds the op that owns the bodies; its results are of these types.
std::vector<ValueIndex> own(NodeWriter& n, const char* name, const std::vector<ValueIndex>& in,
                            std::vector<int32_t> blocks, const std::vector<Declared>& types) {
  std::vector<ValueIndex> results(types.size(), kAbsent);
  if (!n.status().ok()) return results;
  Op op;
  op.type = name;
  op.blocks = std::move(blocks);
  for (const ValueIndex v : in) op.inputs.push_back({"", {v}});
  for (size_t k = 0; k < types.size(); ++k) {
    auto v = n.file().add_value(n.node().name.empty() ? name : n.node().name.c_str(), types[k]);
    if (!v.ok()) return n.fail(v.status()), results;
    results[k] = *v;
    op.outputs.push_back({"", {*v}});
  }
  n.block().add_op(std::move(op));
  return results;
}
ValueIndex flag(NodeWriter& n, ValueIndex v) { return n.type(v).rank() == 0 ? v : n.reshape(v, {}); }

// Where a branch yields no value, nobody reads one; Paddle wants one of the other branch's type.
void fill_nothing(NodeWriter& n, Body& body, const Body& other) {
  const Graph none{};
  BlockWriter inside(n.file(), none, body.block);
  NodeWriter w(inside, n.node());
  for (size_t j = 0; j < body.results.size(); ++j) {
    if (body.results[j] != kAbsent) continue;
    if (other.results[j] == kAbsent) return n.fail("a result that neither branch yields");
    Declared t = n.type(other.results[j]);
    for (int64_t& d : t.dims) d = d < 0 ? 1 : d;
    body.results[j] = w.number(0, t.dtype, t.dims);
  }
  if (!w.status().ok()) n.fail(w.status());
}

void write_if(NodeWriter& n) {
  n.expect_attrs({"then_inputs"});
  const size_t captured[] = {1, 1 + static_cast<size_t>(n.attrs().get_int("then_inputs"))};
  const ValueIndex condition = flag(n, n.in(0));
  Body bodies[2];
  for (size_t k = 0; k < 2; ++k) {
    bodies[k] = open_body(n);
    fill_body(n, bodies[k], *n.node().subgraphs[k], {}, captured[k]);
    if (!n.status().ok()) return;
  }
  for (size_t k = 0; k < 2; ++k) fill_nothing(n, bodies[k], bodies[1 - k]);
  if (!n.status().ok()) return;
  for (const Body& b : bodies) yield(n, b);
  std::vector<Declared> types;
  for (size_t j = 0; j < bodies[0].results.size(); ++j) {
    Declared t = n.type(bodies[0].results[j]);
    const Declared& other = n.type(bodies[1].results[j]);
    if (t.dtype != other.dtype || t.rank() != other.rank())
      return n.fail(cat("branches that yield another type or rank of result ", j));
    for (size_t d = 0; d < t.dims.size(); ++d)
      if (t.dims[d] != other.dims[d]) t.dims[d] = -1;
    types.push_back(std::move(t));
  }
  const auto results = own(n, "if", {condition}, {bodies[0].block, bodies[1].block}, types);
  for (size_t k = 0; k < results.size(); ++k) n.out(k, results[k]);
}

// loop(most?, go?, states...): trips are counted in a state of its own.
void loop(NodeWriter& n) {
  n.expect_attrs({"states"});
  const auto states = static_cast<size_t>(n.attrs().get_int("states"));
  if (n.node().outputs.size() != states) return n.fail("a value that is collected from every trip");
  const ValueIndex zero = n.scalar(0, DType::kI64), one = n.scalar(1, DType::kI64);
  const ValueIndex most = n.has(0) ? (n.in_type(0).rank() == 0 ? n.in(0) : n.reshape(n.in(0), {})) : kAbsent;
  ValueIndex go = n.has(1) ? flag(n, n.in(1)) : n.scalar(1, DType::kBool);
  if (most != kAbsent) go = n.compare("logical_and", go, n.compare("less_than", zero, most));
  Body body = open_body(n);
  std::vector<ValueIndex> in{go, zero};
  std::vector<Declared> types{{DType::kI64, {}}};
  for (size_t k = 0; k < states; ++k) {
    in.push_back(n.in(2 + k));
    types.push_back(n.in_type(2 + k));
    std::fill(types.back().dims.begin(), types.back().dims.end(), -1);  // may change from trip to trip
  }
  if (!n.status().ok()) return;
  std::vector<ValueIndex> args;
  for (const Declared& t : types) {
    auto v = n.file().add_value("state", t);
    if (!v.ok()) return n.fail(v.status());
    args.push_back(*v);
  }
  n.file().program.blocks[static_cast<size_t>(body.block)].args = args;
  std::vector<ValueIndex> formal{args[0], n.scalar(1, DType::kBool)};
  formal.insert(formal.end(), args.begin() + 1, args.end());
  fill_body(n, body, *n.node().subgraphs[0], formal, 2 + states);
  if (!n.status().ok()) return;
  for (const ValueIndex v : body.results)
    if (v == kAbsent) return n.fail("a body that yields no value");
  for (size_t k = 0; k < states; ++k) {
    const Declared &from = types[k + 1], &to = n.type(body.results[k + 1]);
    if (from.dtype != to.dtype || from.rank() != to.rank())
      return n.fail(cat("state ", k, " that changes its type or rank"));
  }
  // In the body: the next count, and whether another trip follows.
  const Graph none{};
  BlockWriter inside(n.file(), none, body.block);
  NodeWriter w(inside, n.node());
  const ValueIndex count = w.binary("add", args[0], one);
  ValueIndex again = flag(w, body.results[0]);
  if (most != kAbsent) again = w.compare("logical_and", again, w.compare("less_than", count, most));
  if (!w.status().ok()) return n.fail(w.status());
  body.results[0] = again;
  body.results.insert(body.results.begin() + 1, count);
  yield(n, body);
  const auto results = own(n, "while", in, {body.block}, types);
  for (size_t k = 0; k < states; ++k) n.out(k, results[k + 1]);
}

constexpr OpWriterEntry kControlWriters[] = {
    {"if", write_if}, {"loop", loop}, {"none", [](NodeWriter&) {}},  // bound to nothing: fill_nothing()
};

}  // namespace

std::span<const OpWriterEntry> control_writers() { return kControlWriters; }

}  // namespace oar::paddle
