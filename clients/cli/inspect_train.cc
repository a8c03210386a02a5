#include "clients/cli/inspect_train.h"

#include <cstdio>
#include <set>

#include "clients/cli/logging.h"
#include "clients/cli/ranges.h"

namespace oar::cli {

void add_train_options(CLI::App& c, TrainInspection& o) {
  auto* train =
      c.add_option("--train", o.what,
                   "what `finetune` would take, for each --recompute: full, or an adapter as its --lora "
                   "takes it (rank=16,targets=q_proj,v_proj)")
          ->type_name("LIST");
  c.add_option("--tokens", o.tokens, "with --train: tokens of a micro-batch")
      ->check(in_range(1, 1 << 20))
      ->capture_default_str()
      ->needs(train);
  c.add_option("--labels", o.trainer.labels, "with --train: the classes of a new head of an encoder")
      ->delimiter(',')
      ->type_name("LIST")
      ->needs(train);
}

void check_train_options(const CLI::App& c) {
  static const std::set<std::string> read{"MODEL", "--train", "--tokens", "--labels", "--weights"};
  for (const CLI::Option* option : c.get_options())
    if (option->count() > 0 && !read.contains(option->get_name()))
      throw CLI::ValidationError(option->get_name(), "says nothing of training; leave it out beside --train");
}

Status inspect_train(TrainInspection o) {
  train::TrainerOptions& t = o.trainer;
  t.graph.full = o.what == "full";
  if (!t.graph.full) { OAR_ASSIGN(t.graph.lora, train::parse_lora(o.what)); }
  t.graph.tokens = o.tokens;
  for (size_t k = 0; k < passes::recompute_names().size(); ++k) {
    t.graph.recompute = static_cast<train::Recompute>(k);
    OAR_ASSIGN(const auto trainer, train::Trainer::create(t, make_logger(LogLevel::kWarning)));
    const train::MemoryUse& m = trainer->memory();
    if (k == 0)
      std::printf(
          "%lld numbers are trained in %zu tensors, %lld tokens a micro-batch\n"
          "weights that stay  %s\nparameters         %s\nmoments            %s\ngradients          %s\n",
          static_cast<long long>(trainer->trained()), trainer->parameters().size(),
          static_cast<long long>(o.tokens), format_bytes(m.frozen).c_str(),
          format_bytes(m.parameters).c_str(), format_bytes(m.moments).c_str(),
          format_bytes(m.gradients).c_str());
    std::printf("--recompute %-6s a step %s (a block of logits %s in it), %s in all\n",
                passes::recompute_names()[k].c_str(), format_bytes(m.activations).c_str(),
                format_bytes(m.logits).c_str(), format_bytes(m.total()).c_str());
  }
  return ok_status();
}

}  // namespace oar::cli
