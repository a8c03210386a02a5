#include "clients/cli/inspect_train.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "clients/cli/finetune_images.h"
#include "clients/cli/logging.h"
#include "engine/base/format.h"
#include "train/finetune.h"

namespace oar::cli {

void add_train_options(CLI::App& c, TrainInspection& o) {
  auto* train =
      c.add_option("--train", o.what,
                   "what `finetune` would take, for each --recompute: full, or an adapter as its --lora "
                   "takes it (rank=16,targets=q_proj,v_proj). Its options that change this are taken too")
          ->type_name("LIST");
  o.options = add_peak_options(c, o.trainer, o.peak);
  for (CLI::Option* option : o.options) option->needs(train);
}

void check_train_options(const CLI::App& c, TrainInspection& o) {
  static const std::set<std::string> read{"MODEL", "--train", "--weights", "--precision", "--threads"};
  for (const CLI::Option* option : c.get_options()) {
    const bool shared = std::find(o.options.begin(), o.options.end(), option) != o.options.end();
    if (option->count() > 0 && !shared && !read.contains(option->get_name()))
      throw CLI::ValidationError(option->get_name(), "says nothing of training; leave it out beside --train");
  }
  o.one = c.count("--recompute") > 0;
  if (const Status s = check_image_flags(c, train::is_image_network(o.trainer.model)); !s.ok())
    throw CLI::ValidationError(s.message());
}

Status inspect_train(TrainInspection o) {
  train::TrainerOptions& t = o.trainer;
  t.graph.full = o.what == "full";
  if (!t.graph.full) { OAR_ASSIGN(t.graph.lora, parse_lora(o.what)); }
  OAR_RETURN_IF_ERROR(settle_peak(o.peak, t));
  t.assumed_ranks = o.peak.ranks;
  const bool images = train::is_image_network(t.model), one = o.one || images;
  const auto& modes = passes::recompute_names();
  for (size_t k = one ? static_cast<size_t>(t.graph.recompute) : 0; k < modes.size(); ++k) {
    t.graph.recompute = static_cast<train::Recompute>(k);
    OAR_ASSIGN(const auto learner, train::make_learner(t, make_logger(LogLevel::kWarning)));
    const auto& settled = static_cast<const train::TrainerOptions&>(learner->options());
    const train::MemoryUse& m = learner->memory();
    if (k == 0 || one) {
      const uint64_t copies = settled.graph.copies != nullptr ? settled.graph.copies->bytes() : 0;
      const std::string copied = copies > 0 ? cat("copies among them  ", format_bytes(copies), "\n") : "";
      std::printf("%lld numbers are trained in %zu tensors, %lld %s a micro-batch\n",
                  static_cast<long long>(learner->trained()), learner->parameters().size(),
                  static_cast<long long>(images ? settled.images.batch : settled.graph.tokens),
                  learner->unit());
      std::printf("weights that stay  %s\n%sparameters         %s\nmoments            %s\n",
                  format_bytes(m.frozen).c_str(), copied.c_str(), format_bytes(m.parameters).c_str(),
                  format_bytes(m.moments).c_str());
      std::printf("gradients          %s\n",
                  m.gradients > 0 ? format_bytes(m.gradients).c_str() : "within a step");
      if (m.bucket > 0) std::printf("bucket of a rank   %s\n", format_bytes(m.bucket).c_str());
    }
    const std::string mode =
        images ? "" : cat("--recompute ", modes[k], std::string(12 - modes[k].size(), ' '));
    const std::string logits = images ? "" : cat(" (a block of logits ", format_bytes(m.logits), " in it)");
    std::printf("%sa step %s%s, %s in all\n", mode.c_str(), format_bytes(m.activations).c_str(),
                logits.c_str(), format_bytes(m.total()).c_str());
    if (one) {
      std::printf("%s\n", peak_line(*learner, t.graph.recompute > train::Recompute::kActivations).c_str());
      break;
    }
  }
  return ok_status();
}

}  // namespace oar::cli
