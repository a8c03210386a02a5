// Control flow and lists of Paddle programs. PIR's if and while own regions that yield their results. A
// ProgramDesc's conditional_block and while write variables of the blocks around them, so what a block writes
// becomes the result of the node, and what it only reads an operand.
#include <algorithm>

#include "engine/import/paddle_node.h"

namespace oar::paddle {
namespace {

// builtin.combine: values side by side are one list.
void combine(Node& n) {
  std::vector<Val> all;
  for (size_t k = 0; k < n.num_inputs(); ++k) {
    for (Val v : n.list(k)) all.push_back(v);
  }
  n.out_list(0, std::move(all));
}
void take_apart(Node& n) {
  const std::vector<Val> all = n.list(0);
  if (all.size() != n.num_outputs()) {
    return n.fail(invalid_argument(cat("a list of ", all.size(), " is split into ", n.num_outputs())));
  }
  for (size_t k = 0; k < all.size(); ++k) n.out(k, all[k]);
}
void element(Node& n) {
  const std::vector<Val> all = n.list(0);
  const int64_t index = n.get_int("index", 0);
  if (index < 0 || index >= static_cast<int64_t>(all.size())) {
    return n.fail(invalid_argument(cat("element ", index, " of a list of ", all.size())));
  }
  n.out(0, all[static_cast<size_t>(index)]);
}

// A branch: its scope with the graph outputs it yields.
Status yield_all(Scope& scope, const std::vector<ValueIndex>& yielded) {
  for (ValueIndex v : yielded) {
    const std::vector<Val> vals = scope.lookup(v);
    if (vals.size() != 1)
      return data_loss(cat("a branch yields ", scope.program().values[v].name, ", which is no tensor"));
    scope.graph()->add_output(scope.program().values[v].name, vals[0].id);
  }
  return ok_status();
}

void emit_if(Node& n, Val condition, Scope& yes, Scope& no, size_t results, std::vector<Val>& out) {
  std::vector<Val> in{condition};
  in.insert(in.end(), yes.captured().begin(), yes.captured().end());
  in.insert(in.end(), no.captured().begin(), no.captured().end());
  out = n.w().ops("if", std::move(in), results,
                  {{"then_inputs", static_cast<int64_t>(yes.captured().size())}}, {yes.graph(), no.graph()});
}

void if_op(Node& n) {
  if (n.op().blocks.size() != 2) return n.fail(data_loss("an if needs two regions"));
  const Program& p = n.scope().program();
  Scope branches[2] = {Scope(p, &n.scope()), Scope(p, &n.scope())};
  for (int k = 0; k < 2; ++k) {
    std::vector<ValueIndex> yielded;
    Status s =
        branches[k].run(p.blocks[static_cast<size_t>(n.op().blocks[static_cast<size_t>(k)])], &yielded);
    if (s.ok()) s = yield_all(branches[k], yielded);
    if (s.ok() && yielded.size() != n.num_outputs()) {
      s = data_loss(cat("a branch yields ", yielded.size(), " values for ", n.num_outputs(), " results"));
    }
    if (!s.ok()) return n.fail(std::move(s));
  }
  std::vector<Val> out;
  emit_if(n, n.in(0), branches[0], branches[1], n.num_outputs(), out);
  for (size_t k = 0; k < out.size(); ++k) n.out(k, out[k]);
}

// Emits a loop whose body has been written to `body` with formal inputs (trip, condition, states...).
void emit_loop(Node& n, Val condition, const std::vector<Val>& states, Scope& body, std::vector<Val>& out) {
  out = write_loop(n.w(), Val{}, n.reshape(condition, {}), states, body.captured(), body.graph(),
                   states.size());
}

void while_op(Node& n) {
  if (n.op().blocks.size() != 1) return n.fail(data_loss("a while needs one region"));
  const Program& p = n.scope().program();
  const Block& block = p.blocks[static_cast<size_t>(n.op().blocks[0])];
  std::vector<Val> states;
  for (size_t k = 1; k < n.num_inputs(); ++k) states.push_back(n.in(k));
  if (block.args.size() != states.size() || n.num_outputs() != states.size()) {
    return n.fail(data_loss(cat("a while of ", states.size(), " values has a region of ", block.args.size(),
                                " arguments and ", n.num_outputs(), " results")));
  }
  Scope body(p, &n.scope());
  body.add_formal("trip");
  body.add_formal("condition");
  for (ValueIndex v : block.args) body.define(v, {body.add_formal(p.values[v].name)});
  std::vector<ValueIndex> yielded;
  Status s = body.run(block, &yielded);
  if (s.ok() && yielded.size() != states.size() + 1) {
    s = data_loss(cat("a while of ", states.size(), " values yields ", yielded.size()));
  }
  if (s.ok()) s = yield_all(body, yielded);
  if (!s.ok()) return n.fail(std::move(s));
  std::vector<Val> out;
  emit_loop(n, n.in(0), states, body, out);
  for (size_t k = 0; k < out.size(); ++k) n.out(k, out[k]);
}

// Variables that the block writes and that live outside it, in the order written.
std::vector<ValueIndex> written(Scope& outer, Scope& inner, const Block& block) {
  std::vector<ValueIndex> out;
  for (const Op& op : block.ops) {
    for (const Slot& s : op.outputs) {
      for (ValueIndex v : s.values) {
        if (!inner.defines(v) || std::find(out.begin(), out.end(), v) != out.end()) continue;
        if (!outer.lookup(v).empty()) out.push_back(v);
      }
    }
  }
  return out;
}

// ProgramDesc: while(X, Condition) with a sub-block that writes the loop's variables, the condition included.
void legacy_while(Node& n) {
  const Program& p = n.scope().program();
  if (n.op().blocks.size() != 1 || !n.has_in(1))
    return n.fail(data_loss("a while needs a condition and a block"));
  const Block& block = p.blocks[static_cast<size_t>(n.op().blocks[0])];
  const ValueIndex condition = n.op().inputs[1].values[0];
  n.ignore_in(0);  // what the body reads, which its ops say themselves
  // What the body writes is carried; what that is, the program says before the body is written.
  std::vector<ValueIndex> carried;
  std::vector<Val> states;
  for (const Op& op : block.ops) {
    for (const Slot& s : op.outputs) {
      for (ValueIndex v : s.values) {
        if (std::find(carried.begin(), carried.end(), v) != carried.end()) continue;
        const std::vector<Val> before = n.scope().lookup(v);
        if (before.size() != 1) continue;
        carried.push_back(v);
        states.push_back(before[0]);
      }
    }
  }
  Scope body(p, &n.scope());
  body.add_formal("trip");
  body.add_formal("condition");
  for (ValueIndex v : carried) body.define(v, {body.add_formal(p.values[v].name)});
  Status s = body.run(block, nullptr);
  std::vector<ValueIndex> yielded{condition};
  yielded.insert(yielded.end(), carried.begin(), carried.end());
  if (s.ok()) s = yield_all(body, yielded);
  if (!s.ok()) return n.fail(std::move(s));
  std::vector<Val> out;
  emit_loop(n, n.in(1), states, body, out);
  for (size_t k = 0; k < out.size(); ++k) n.scope().define(carried[k], {out[k]});
}

// ProgramDesc: conditional_block(Cond): where the condition is false, its variables keep what they had, or
// have no value; select_input then never asks for them.
void conditional_block(Node& n) {
  const Program& p = n.scope().program();
  if (n.op().blocks.size() != 1 || !n.has_in(0))
    return n.fail(data_loss("a conditional_block needs a condition and a block"));
  const Block& block = p.blocks[static_cast<size_t>(n.op().blocks[0])];
  n.ignore_in(1);  // what the block reads
  Scope yes(p, &n.scope()), no(p, &n.scope());
  if (Status s = yes.run(block, nullptr); !s.ok()) return n.fail(std::move(s));
  std::vector<ValueIndex> results = written(n.scope(), yes, block);
  for (const Slot& slot : n.op().outputs) {
    for (ValueIndex v : slot.values) {
      if (yes.defines(v) && std::find(results.begin(), results.end(), v) == results.end())
        results.push_back(v);
    }
  }
  for (ValueIndex v : results) {
    const std::vector<Val> after = yes.lookup(v);
    std::vector<Val> before = no.lookup(v);
    if (before.empty()) before = {no.writer().op("none", {})};
    if (after.size() != 1 || before.size() != 1)
      return n.fail(unimplemented("a conditional_block that writes a list"));
    yes.graph()->add_output(p.values[v].name, after[0].id);
    no.graph()->add_output(p.values[v].name, before[0].id);
  }
  if (results.empty()) return;
  std::vector<Val> out;
  emit_if(n, n.reshape(n.in(0), {}), yes, no, results.size(), out);
  for (size_t k = 0; k < out.size(); ++k) n.scope().define(results[k], {out[k]});
}

// select_input(X = [where 0, where 1], Mask).
void select_input(Node& n) {
  const std::vector<Val> x = n.list(0);
  if (x.size() != 2) return n.fail(invalid_argument(cat("select_input of ", x.size(), " values")));
  auto pass = [] {
    auto g = std::make_shared<Graph>();
    g->add_output("out", g->add_input("in", TensorType::unknown()));
    return g;
  };
  const Val mask = n.cast(n.reshape(n.in(1), {}), DType::kBool);
  n.out(0, n.w().ops("if", {mask, x[1], x[0]}, 1, {{"then_inputs", int64_t{1}}}, {pass(), pass()})[0]);
}

constexpr OpEntry kControlOps[] = {
    {"builtin.combine", combine},
    {"builtin.slice", element},
    {"builtin.split", take_apart},
    {"conditional_block", conditional_block},
    {"if", if_op},
    {"legacy_while", legacy_while},
    {"select_input", select_input},
    {"while", while_op},
};

}  // namespace

std::span<const OpEntry> control_ops() { return kControlOps; }

}  // namespace oar::paddle
