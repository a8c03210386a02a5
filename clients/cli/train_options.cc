#include "clients/cli/train_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "clients/cli/finetune_images.h"
#include "clients/cli/ranges.h"
#include "engine/base/format.h"

namespace oar::cli {

std::vector<CLI::Option*> add_peak_options(CLI::App& c, train::TrainerOptions& t, PeakChoices& o,
                                           bool any_model) {
  t.graph.tokens = 0;
  std::vector<CLI::Option*> out{
      c.add_option("--eval", t.held_out, "held-out data; the weights with the least loss on it are kept")
          ->type_name("FILE"),
      c.add_option(
           "--hold-out", t.hold_out,
           "samples of --data that are kept for what --eval names otherwise: below 1 a share, else how "
           "many")
          ->check(in_range(0.0, 1e9))
          ->type_name("N"),
      c.add_option(
           "--sample-tokens", t.sample_tokens,
           "of a language model, most tokens with which it goes on behind the beginning of a held-out "
           "sample, beside each held-out loss; 0: none")
          ->check(in_range(0, 4096))
          ->capture_default_str(),
      c.add_option("--length", t.samples.length, "the most tokens of a sample")
          ->check(in_range(2, 1 << 20))
          ->capture_default_str(),
      c.add_option("--tokens", t.graph.tokens,
                   "tokens of a micro-batch, into which samples are packed; 0: --length")
          ->check(in_range(0, 1 << 20))
          ->capture_default_str(),
      c.add_option(
           "--recompute", o.recompute,
           "less memory for more time, to the same bits: compute activations and norms again on the way back "
           "(activations), all but what each layer is given (layers), or every few layers are (full)")
          ->check(CLI::IsMember(passes::recompute_names()))
          ->capture_default_str(),
      c.add_option("--white", t.graph.precision.white, "with --precision: more ops in bf16, by name")
          ->delimiter(',')
          ->type_name("OPS"),
      c.add_option("--black", t.graph.precision.black, "with --precision: more ops in f32, by name")
          ->delimiter(',')
          ->type_name("OPS"),
      c.add_option("--optimizer", o.optimizer, "how parameters are updated")
          ->check(CLI::IsMember({"adamw", "sgd"}))
          ->capture_default_str(),
      c.add_option("--accumulate", t.accumulate, "micro-batches of a step")
          ->check(in_range(1, 1 << 16))
          ->capture_default_str(),
      c.add_option("--clip", t.clip, "the largest norm of a step's gradient; 0: any")
          ->check(zero_or_more())
          ->capture_default_str(),
      c.add_option("--freeze", t.graph.freeze, "--full: parameters of these names stay, '*' is any text")
          ->type_name("PATTERN"),
      c.add_option("--dropout", t.graph.dropout,
                   "--full: the share of what each layer adds that a step drops, and of the first rows")
          ->check(in_range(0.0, 0.95))
          ->capture_default_str(),
      c.add_option(
           "--average", t.average,
           "evaluate and write a moving average of what is trained, of which each step keeps this part "
           "(0.99); 0: the last step's")
          ->check(in_range(0.0, 0.999999))
          ->capture_default_str(),
      c.add_option(
           "--ranks", o.ranks,
           "processes that train together on this host: a step has --accumulate micro-batches of each, "
           "and gives the bits of one process with so many times --accumulate")
          ->check(in_range(1, Group::kMostRanks))
          ->capture_default_str()};
  if (!any_model) return out;
  out.push_back(
      c.add_option(
           "--labels", t.labels,
           "an encoder's classes, in order: others than its head's give it a new one. Left out: those of "
           "its head, or of the data")
          ->delimiter(',')
          ->type_name("LIST"));
  for (CLI::Option* option : add_image_sizes(c, t.images)) out.push_back(option);
  return out;
}

Result<train::LoraOptions> parse_lora(std::string_view text) {
  train::LoraOptions out;
  bool has_alpha = false;
  const auto wrong = [&](std::string_view part, std::string_view what) {
    return invalid_argument(
        cat("--lora: '", part, "' ", what, "; expected rank=16,alpha=32,targets=q_proj,v_proj"));
  };
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    if (equals == std::string_view::npos) return wrong(part, "has no '='");
    const std::string_view value = part.substr(equals + 1);
    if (key == "targets") {
      out.targets.clear();
      for (std::string_view rest = text.substr(equals + 1);;) {
        const size_t end = rest.find(',');
        const std::string_view target = rest.substr(0, end);
        if (target.empty() || target.find('=') != std::string_view::npos)
          return wrong(target, "is no layer's name; targets come last");
        out.targets.emplace_back(target);
        if (end == std::string_view::npos) break;
        rest.remove_prefix(end + 1);
      }
      break;
    }
    double number = 0;
    const auto r = std::from_chars(value.data(), value.data() + value.size(), number);
    if (r.ec != std::errc() || r.ptr != value.data() + value.size()) return wrong(part, "is no number");
    if (key == "rank") {
      if (!(number >= 1 && number <= 4096) || number != std::floor(number))
        return wrong(part, "is no rank from 1 to 4096");
      out.rank = static_cast<int64_t>(number);
    } else if (key == "alpha") {
      if (!(number > 0 && number <= 1e6)) return wrong(part, "is not above 0 and at most 1000000");
      out.alpha = number;
      has_alpha = true;
    } else if (key == "dropout") {
      if (!(number >= 0 && number < 1)) return wrong(part, "is no share from 0 to below 1");
      out.dropout = number;
    } else {
      return wrong(part, "is not known");
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (!has_alpha) out.alpha = 2 * static_cast<double>(out.rank);
  return out;
}

Status settle_peak(const PeakChoices& o, train::TrainerOptions& t) {
  const auto wrong = [](std::string message, StatusCode code = StatusCode::kInvalidArgument) {
    return Status(code, std::move(message), "command line");
  };
  if (!t.graph.full && t.graph.dropout > 0)
    return wrong("--dropout is for --full: adapters have their own, --lora dropout=0.1");
  if (!t.graph.full && !t.graph.freeze.empty())
    return wrong("--freeze is for --full: with --lora the model stays as it is");
  const auto& modes = passes::recompute_names();
  t.graph.recompute =
      static_cast<train::Recompute>(std::find(modes.begin(), modes.end(), o.recompute) - modes.begin());
  const auto& levels = passes::amp_names();
  const auto level = std::find(levels.begin(), levels.end(), o.precision);
  if (level == levels.end())
    return wrong(cat("--precision ", o.precision, ": training computes in f32, O1 or O2"));
  t.graph.precision.level = static_cast<passes::Amp>(level - levels.begin());
  if (const Status s = passes::check_amp(t.graph.precision); !s.ok()) return wrong(s.message(), s.code());
  t.optimizer.kind = o.optimizer == "sgd" ? train::Optimizer::kSgd : train::Optimizer::kAdamW;
  return ok_status();
}

std::string peak_line(const train::Learner& t, bool recomputed) {
  const train::MemoryUse& m = t.memory();
  const int ranks = t.options().ranks();
  return cat("memory at the peak: ", format_bytes(m.total()),
             ranks > 1 ? cat(" in each of ", ranks, " ranks") : "", " (weights that stay ",
             format_bytes(m.frozen), ", parameters with moments", m.gradients > 0 ? " and gradients " : " ",
             format_bytes(m.states() - m.bucket),
             m.bucket > 0 ? cat(", a bucket of gradients ", format_bytes(m.bucket)) : "", ", a step ",
             m.gradients > 0 ? "" : "with its gradients ", format_bytes(m.activations),
             recomputed ? ", whose layers are computed again" : "", ")");
}

}  // namespace oar::cli
