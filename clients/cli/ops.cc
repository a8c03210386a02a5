// oar ops: the vocabulary of graphs. docs/ops.md is this table.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "clients/cli/command.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/graph/op.h"
#include "engine/ops/train/ops.h"

namespace oar::cli {
namespace {

struct OpFacts {
  const char *graphs, *computed, *defined;
  std::string gradient;
};

std::string gradient_of(const OpDef& op, const char* how_often) {
  return op.no_gradient_of == nullptr ? std::string(how_often)
                                      : cat(how_often, "; not of ", op.no_gradient_of);
}

OpFacts facts_of(const OpDef& op) {
  OpFacts f{};
  f.graphs = op.infer == nullptr ? "ordinary" : op.evaluate == nullptr ? "language" : "both";
  f.computed = op.lower == nullptr && op.by_kernels != nullptr ? "host kernel, else evaluated"
               : op.lower == nullptr                           ? "evaluated"
               : op.evaluate != nullptr                        ? "kernel, else evaluated"
               : op.define != nullptr                          ? "kernel, else definition"
                                                               : "kernel";
  if (op.lower == nullptr && op.evaluate == nullptr && op.fold == nullptr) f.computed = "definition";
  f.defined = op.define != nullptr ? "by others" : "primitive";
  f.gradient = gradient_of(op, differentiability(op));
  return f;
}

OpFacts facts_of(const train::TrainingOp& t) {
  return {"training", t.op->by_kernels != nullptr ? "host kernel" : "evaluated",
          t.op->define != nullptr ? "by others" : "primitive", gradient_of(*t.op, t.gradient)};
}

int print_ops(bool as_json) {
  std::vector<std::pair<const OpDef*, OpFacts>> ops;
  for (const OpDef* op : all_ops()) ops.emplace_back(op, facts_of(*op));
  for (const train::TrainingOp& t : train::training_ops()) ops.emplace_back(t.op, facts_of(t));
  std::ranges::sort(ops, {}, [](const auto& o) { return std::string_view(o.first->name); });
  if (!as_json) std::printf("%-28s %-9s %-28s %-10s %s\n", "op", "models", "computed", "defined", "gradient");
  json::array list;
  for (const auto& [op, f] : ops) {
    if (as_json) {
      list.emplace_back(json::object{{"op", op->name},
                                     {"models", f.graphs},
                                     {"computed", f.computed},
                                     {"defined", f.defined},
                                     {"gradient", f.gradient}});
    } else {
      std::printf("%-28s %-9s %-28s %-10s %s\n", op->name, f.graphs, f.computed, f.defined,
                  f.gradient.c_str());
    }
  }
  if (as_json) std::printf("%s\n", json::serialize(list).c_str());
  return kSuccess;
}

}  // namespace

void add_ops(CLI::App& app, Action& action) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* c =
      app.add_subcommand("ops", "The ops of graphs: in which models, how computed, whether differentiable");
  c->add_flag("--json", *as_json, "print one JSON array");
  c->footer("Examples:\n  oar ops\n  oar ops --json");
  c->callback([as_json, &action] { action = [as_json] { return print_ops(*as_json); }; });
}

}  // namespace oar::cli
