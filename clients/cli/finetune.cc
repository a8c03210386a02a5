// oar finetune: an adapter, a whole model or a classifier trained on text or images (train/finetune.h).
#include "clients/cli/finetune.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/finetune_images.h"
#include "clients/cli/logging.h"
#include "clients/cli/model_options.h"
#include "clients/cli/ranges.h"
#include "clients/cli/rank_processes.h"
#include "clients/cli/signals.h"
#include "clients/cli/sizes.h"
#include "engine/base/format.h"
#include "engine/base/reservation.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/text_encoder.h"

namespace oar::cli {
namespace {

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 120) return cat(s, " s");
  if (s < 7200) return cat(s / 60, " min");
  return cat(s / 3600, " h ", s / 60 % 60, " min");
}

// ", accuracy 91.2 %"; nothing where there is none.
std::string accuracy(double share) {
  char text[32] = "";
  if (share >= 0) std::snprintf(text, sizeof(text), ", accuracy %.1f %%", 100 * share);
  return text;
}

// What a run shows: one line that is written over on a terminal, else a line now and then.
class Display {
 public:
  explicit Display(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

  void begin(const train::Learner& t, int64_t resumed, bool recomputed) {
    steps_ = t.steps();
    unit_ = t.unit();
    first_ = resumed;
    if (quiet_) return;
    for (const std::string& note : t.notes()) std::fprintf(stderr, "%s\n", note.c_str());
    std::fprintf(stderr, "%s; %lld numbers are trained in %zu tensors\n", t.size().c_str(),
                 static_cast<long long>(t.trained()), t.parameters().size());
    std::fprintf(stderr, "%s\n", peak_line(t, recomputed).c_str());
    if (resumed > 0) std::fprintf(stderr, "goes on behind step %lld\n", static_cast<long long>(resumed));
  }

  void step(const train::StepReport& r, double seconds) {
    rows_ += r.rows;
    if (quiet_) return;
    const int64_t here = r.step - first_;
    const bool last = r.step == steps_;
    if (!terminal_ && !last && seconds - shown_ < 10) return;
    shown_ = seconds;
    const double left = seconds / static_cast<double>(here) * static_cast<double>(steps_ - r.step);
    std::fprintf(stderr, "%sstep %lld/%lld  loss %.4f  %.0f %s/s%s%s", terminal_ ? "\r\x1b[K" : "",
                 static_cast<long long>(r.step), static_cast<long long>(steps_), r.loss,
                 static_cast<double>(rows_) / std::max(seconds, 1e-9), unit_,
                 last ? "" : cat("  ", duration(left), " left").c_str(), terminal_ && !last ? "" : "\n");
    std::fflush(stderr);
  }

  // Behind the last step, where that came before its time.
  void end(const train::FinetuneReport& r, int64_t patience) const {
    if (quiet_ || r.steps >= steps_) return;
    std::fprintf(stderr, "ended early: %lld held-out losses behind step %lld were not better\n",
                 static_cast<long long>(patience), static_cast<long long>(r.best_step));
  }

  void held_out(int64_t step, const train::HeldOutReport& r, bool best) {
    if (quiet_) return;
    std::fprintf(stderr, "%sstep %lld  held-out loss %.4f%s%s\n", terminal_ ? "\r\x1b[K" : "",
                 static_cast<long long>(step), r.loss, accuracy(r.accuracy).c_str(),
                 best ? ", the best so far" : "");
    if (r.prompt.empty()) return;
    std::fprintf(stderr, "  %s goes on %s\n", json::serialize(json::string(r.prompt)).c_str(),
                 json::serialize(json::string(r.continuation)).c_str());
  }

 private:
  const bool quiet_, terminal_;
  int64_t steps_ = 0, first_ = 0, rows_ = 0;
  const char* unit_ = "";
  double shown_ = -1e9;
};

Status settle(FinetuneCommand& o) {
  train::TrainerOptions& t = o.run.trainer;
  if (!o.lora.empty() == t.graph.full) {
    return Status(StatusCode::kInvalidArgument,
                  t.graph.full ? "--full and --lora exclude each other"
                               : "either --full or --lora rank=16,targets=q_proj,v_proj is needed",
                  "command line");
  }
  if (!o.lora.empty()) { OAR_ASSIGN(t.graph.lora, parse_lora(o.lora)); }
  OAR_ASSIGN(t.schedule.decay, train::find_decay(o.schedule));
  OAR_RETURN_IF_ERROR(settle_peak(o.peak, t));
  if (!o.memory.empty()) {
    OAR_ASSIGN(const MemoryWish wish, parse_memory(o.memory));
    t.may_take = wish.bytes > 0 ? wish.bytes : share_of(available_memory(), wish.percent);
  }
  t.samples.too_long = o.too_long == "refuse" ? train::TooLong::kRefuse : train::TooLong::kCut;
  t.samples.draw_cuts = o.cuts == "drawn";
  for (const std::string& r : o.rates) {
    const size_t equals = r.rfind('=');
    double factor = -1;
    const char* const end = r.data() + r.size();
    const char* const read =
        equals != std::string::npos ? std::from_chars(r.data() + equals + 1, end, factor).ptr : nullptr;
    if (read != end || !(factor >= 0 && factor <= 1e6))
      return Status(StatusCode::kInvalidArgument, cat("--rate-of ", r, ": expected PATTERN=FACTOR"),
                    "command line");
    t.optimizer.rates.emplace_back(r.substr(0, equals), factor);
  }
  return ok_status();
}

bool is_encoder(const std::string& model) {
  const auto path = resolve_model_path(model);
  return path.ok() && is_text_encoder(*path);
}

// Flags that would change nothing beside the others.
Status check_idle_flags(const CLI::App& command, const FinetuneCommand& o) {
  const bool sgd = o.peak.optimizer == "sgd";
  const auto given = [&](const char* flag) {
    const CLI::Option* const option = command.get_option_no_throw(flag);
    return option != nullptr && option->count() > 0;
  };
  const bool held_out = given("--eval") || given("--hold-out");
  const struct {
    const char* flag;
    bool idle;
    const char* why;
  } all[] = {
      {"--beta1", sgd, "is of --optimizer adamw"},
      {"--beta2", sgd, "is of --optimizer adamw"},
      {"--epsilon", sgd, "is of --optimizer adamw"},
      {"--momentum", !sgd, "is of --optimizer sgd"},
      {"--eval-every", !held_out, "needs held-out data: give --eval or --hold-out"},
      {"--patience", !held_out, "needs held-out data: give --eval or --hold-out"},
      {"--sample-tokens", !held_out, "needs held-out data: give --eval or --hold-out"},
      {"--sample-tokens", is_encoder(o.run.trainer.model),
       "is of language models: a classifier writes no text"},
      {"--hold-out", given("--eval"), "and --eval exclude each other"},
      {"--least-rate", o.schedule == "constant",
       "has no meaning beside --schedule constant, which never falls"},
      {"--rank-wait", o.peak.ranks == 1, "is for several processes: give --ranks"},
      {"--epochs", given("--steps"), "and --steps exclude each other"},
  };
  for (const auto& a : all)
    if (a.idle && given(a.flag))
      return Status(StatusCode::kInvalidArgument, cat(a.flag, " ", a.why), "command line");
  return ok_status();
}

}  // namespace

int finetune(const CLI::App& command, FinetuneCommand& o) {
  if (const Status s = check_image_flags(command, train::is_image_network(o.run.trainer.model)); !s.ok())
    return fail(s);
  if (const Status s = check_idle_flags(command, o); !s.ok()) return fail(s);
  if (const Status s = settle(o); !s.ok()) return fail(s);
  SignalWatcher signals;
  std::unique_ptr<RankProcesses> processes;
  if (o.peak.ranks > 1) {
    auto started = RankProcesses::start(o.peak.ranks);
    if (!started.ok()) return fail(started.status());
    processes = std::move(*started);
    o.run.trainer.group = processes->group();
  }
  const Group* const group = o.run.trainer.group.get();
  const bool first = group == nullptr || group->rank() == 0;
  Display display(o.quiet || !first);
  train::FinetuneEvents events;
  events.begin = [&](const train::Learner& t, int64_t resumed) {
    if (first) display.begin(t, resumed, o.run.trainer.graph.recompute > train::Recompute::kActivations);
  };
  events.step = [&](const train::StepReport& r, double seconds) { display.step(r, seconds); };
  events.held_out = [&](int64_t step, const train::HeldOutReport& r, bool best) {
    display.held_out(step, r, best);
  };
  events.stop = [&] { return signals.requested(); };
  const auto report = train::finetune(o.run, events, first ? make_logger(LogLevel::kWarning) : Logger());
  // All ranks meet the same errors; the others speak when the first one cannot.
  const bool speaks = first || (group->failed_silently() && group->failed_rank() == 0);
  o.run.trainer.group.reset();  // so that `processes` is the last to hold it
  if (!report.ok()) return speaks ? fail(report.status()) : kFailure;
  if (o.run.dry || !first) return kSuccess;
  display.end(*report, o.run.patience);
  std::printf("%s: %lld steps, loss %.4f", o.run.out.c_str(), static_cast<long long>(report->steps),
              report->loss);
  if (report->held_out >= 0)
    std::printf("; held-out loss %.4f%s, of step %lld", report->held_out, accuracy(report->accuracy).c_str(),
                static_cast<long long>(report->best_step));
  std::printf("\n");
  return kSuccess;
}

void add_run_options(CLI::App& c, FinetuneCommand& o) {
  train::TrainerOptions& t = o.run.trainer;
  t.schedule.steps = 0;  // found from the data
  c.add_option(
       "--memory", o.memory,
       "the most that all ranks may take beside the weights, a size (4GiB) or a share of what is free "
       "(80%); left out: all of that")
      ->type_name("BYTES|%");
  c.add_option("--eval-every", o.run.eval_every, "steps between held-out losses; 0: at the end alone")
      ->check(in_range(0, 1 << 30))
      ->capture_default_str();
  c.add_option("--patience", o.run.patience,
               "end behind so many held-out losses one after another that are not the best; 0: never")
      ->check(in_range(0, 1 << 30))
      ->capture_default_str();
  c.add_option("--too-long", o.too_long, "samples above --length: cut and count them, or refuse the file")
      ->check(CLI::IsMember({"cut", "refuse"}))
      ->capture_default_str();
  c.add_option(
       "--cuts", o.cuts,
       "of documents: the same pieces of --length, or others for each epoch, as long or half, a quarter, "
       "an eighth of it (drawn)")
      ->check(CLI::IsMember({"fixed", "drawn"}))
      ->capture_default_str();
  c.add_option(
       "--precision", o.peak.precision,
       "which ops of a step compute in bf16, with f32 sums and f32 weights behind them: none, products "
       "and what reads only their results (O1), or nearly all of the way there (O2)")
      ->check(CLI::IsMember(passes::amp_names()))
      ->capture_default_str();
  c.add_option("--epochs", t.epochs, "how often the data is seen")
      ->check(above_zero())
      ->capture_default_str();
  c.add_option("--steps", t.schedule.steps, "steps instead of epochs")->check(in_range(1, 1 << 30));
  c.add_option("--rate-of", o.rates,
               "PATTERN=FACTOR: another rate for parameters of these names, '*' is any text")
      ->type_name("LIST");
  c.add_option("--schedule", o.schedule, "how the rate falls after the warm-up")
      ->check(CLI::IsMember(train::decay_names()))
      ->capture_default_str();
  c.add_option("--warmup", t.schedule.warmup, "steps in which the rate rises")
      ->check(in_range(0, 1 << 30))
      ->capture_default_str();
  c.add_option("--least-rate", t.schedule.least, "the part of the rate that is left at the end")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  c.add_option("--decay", t.optimizer.decay, "weight decay of matrices")
      ->check(zero_or_more())
      ->capture_default_str();
  c.add_option("--beta1", t.optimizer.beta1, "adamw")->check(in_range(0.0, 0.999999))->capture_default_str();
  c.add_option("--beta2", t.optimizer.beta2, "adamw")->check(in_range(0.0, 0.999999))->capture_default_str();
  c.add_option("--epsilon", t.optimizer.epsilon, "adamw")->check(above_zero())->capture_default_str();
  c.add_option("--momentum", t.optimizer.momentum, "sgd")->check(in_range(0.0, 1.0))->capture_default_str();
  c.add_option("--seed", t.seed, "of first values and of the order of samples")->capture_default_str();
  c.add_option("--checkpoint-every", o.run.checkpoint_every, "steps; 0: none but when interrupted")
      ->check(in_range(0, 1 << 30))
      ->capture_default_str();
  c.add_flag("--dry-run", o.run.dry, "say what it would take, and end");
  c.add_flag("--restart", o.run.restart, "begin anew where a run was interrupted");
  c.add_option("--log", o.run.log, "a line of JSON a step")->type_name("FILE");
  c.add_option("--plot", o.run.plot, "the losses as a picture (SVG)")->type_name("FILE");
  c.add_option(
       "--rank-wait", t.rank_wait,
       "seconds that all other ranks wait for a slow one before the run ends; 0: until it does less than a "
       "fifth of what they do")
      ->check(in_range(0.0, 1e6))
      ->capture_default_str();
  c.add_option("--threads", t.threads, "worker threads of a rank; 0: its share of all usable CPUs")
      ->check(in_range(0, 4096))
      ->capture_default_str();
  c.add_flag("-q,--quiet", o.quiet, "no line per step");
}

void add_finetune(CLI::App& app, Action& action) {
  auto o = std::make_shared<FinetuneCommand>();
  train::TrainerOptions& t = o->run.trainer;
  CLI::App* c =
      app.add_subcommand("finetune", "Train an adapter, a whole model or a classifier on text or images");
  c->add_option("model", t.model, "the model to begin from")->required()->type_name("MODEL");
  c->add_option("--data", t.data,
                "what to learn: .txt, or .jsonl of conversations, prompts or texts; of an encoder .tsv or "
                ".jsonl of labels; FILE:2 counts twice. Of a network (.onnx) a folder of class folders with "
                "images, or an IDX file of images")
      ->required()
      ->type_name("FILE");
  add_out(*c, o->run.out, "the folder to write, of a network an .onnx file; must not exist")
      ->type_name("PATH");
  c->add_option("--lora", o->lora,
                "train an adapter: rank=16,alpha=32,dropout=0,targets=q_proj,v_proj (or targets=all)")
      ->type_name("LIST");
  c->add_flag("--full", t.graph.full, "train all parameters");
  add_peak_options(*c, t, o->peak);
  c->add_option("--weights", t.weights,
                "quantize the base at load, for --lora: int8, int4, or a format's name")
      ->check([](const std::string& name) { return weight_scheme(name).status().message(); })
      ->capture_default_str();
  c->add_option("--rate", t.rate,
                "the learning rate at its highest; 0: 1e-4 for --lora, 1e-5 for --full, 1e-3 for a network")
      ->check(zero_or_more())
      ->capture_default_str();
  add_image_options(*c, t.images);
  add_run_options(*c, *o);
  c->footer(
      "Examples:\n"
      "  oar finetune demo --data chats.jsonl --lora rank=8,targets=q_proj,v_proj -o polite\n"
      "  oar finetune demo --data prompts.jsonl --lora rank=8,targets=all --weights int4 -o brief\n"
      "  oar finetune demo --data story.txt:2 chats.jsonl --full --eval wiki.txt --eval-every 50 -o mine\n"
      "  oar finetune bert-base --data train.tsv --eval dev.tsv --full --rate 3e-5 -o classifier\n"
      "  oar finetune lenet.onnx --data digits/ --hold-out 0.2 --full --epochs 5 -o digits.onnx\n"
      "A line of .jsonl is {\"messages\": [...]} in OpenAI's form, of which answers are learned, "
      "{\"prompt\",\n"
      "\"completion\"}, of which the completion is, or {\"text\"}. Interrupted, the same command goes on "
      "where it\n"
      "stopped, to the same bits. `oar generate MODEL --lora DIR` serves an adapter, `oar merge` adds it to "
      "the\n"
      "model. docs/training.md has the rest.");
  c->callback([o, c, &action] { action = [o, c] { return finetune(*c, *o); }; });
}

}  // namespace oar::cli
