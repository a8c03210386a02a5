#include "train/finetune.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/base/format.h"
#include "engine/loader/file_writer.h"
#include "engine/tensor/mapped_file.h"
#include "engine/tune/measure/svg_plot.h"
#include "train/image_trainer.h"

namespace oar::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct LossPoint {
  int64_t step = 0;
  double loss = 0;
};

// What a run remembers beside its states. Losses travel as bits: a run that goes on compares them exactly.
struct History {
  std::vector<LossPoint> steps, held_out;
  double best = INFINITY, best_accuracy = -1;
  int64_t best_step = 0;

  static json::array to_json(const std::vector<LossPoint>& points) {
    json::array out;
    for (const LossPoint& p : points) out.emplace_back(json::array{p.step, std::bit_cast<int64_t>(p.loss)});
    return out;
  }
  static std::vector<LossPoint> from_json(const json::value& list) {
    std::vector<LossPoint> out;
    for (const json::value& p : list.as_array())
      out.push_back({p.at(0).as_int64(), std::bit_cast<double>(p.at(1).as_int64())});
    return out;
  }
  json::object save() const {
    return {{"steps", to_json(steps)},
            {"held_out", to_json(held_out)},
            {"best", std::bit_cast<int64_t>(best)},
            {"best_accuracy", best_accuracy},
            {"best_step", best_step}};
  }
  Status load(const json::object& o, const std::string& path) {
    try {
      steps = from_json(o.at("steps"));
      held_out = from_json(o.at("held_out"));
      best = std::bit_cast<double>(o.at("best").as_int64());
      best_accuracy = o.at("best_accuracy").to_number<double>();
      best_step = o.at("best_step").as_int64();
      return ok_status();
    } catch (const std::exception& e) {
      return data_loss(cat(path, " is no checkpoint of a run: ", e.what()));
    }
  }
};

Status of_flag(const char* flag, const Status& s) { return Status(s.code(), cat(flag, ": ", s.message())); }

// One line a step. Lines of steps that are done again go first.
class Log {
 public:
  static Result<Log> open(const std::string& path, int64_t done) {
    Log out;
    out.path_ = path;
    if (path.empty()) return out;
    std::string kept;
    if (done > 0) {
      std::ifstream before(path, std::ios::binary);
      for (std::string line; std::getline(before, line);) {
        const auto v = parse_json(line, "log");
        const json::object* o = v.ok() ? v->if_object() : nullptr;
        const json::value* step = o != nullptr ? o->if_contains("step") : nullptr;
        if (step != nullptr && step->is_int64() && step->get_int64() <= done) kept += line + "\n";
      }
    }
    if (const Status s = write_file_atomically(path, kept); !s.ok()) return of_flag("--log", s);
    out.file_.open(path, std::ios::binary | std::ios::app);
    if (!out.file_) return unavailable(cat("--log: ", path, " cannot be written"));
    return out;
  }
  Status line(const json::object& o) {
    if (path_.empty()) return ok_status();
    file_ << json::serialize(o) << '\n';
    file_.flush();
    return file_ ? ok_status() : unavailable(cat("--log: ", path_, " cannot be written; is the disk full?"));
  }

 private:
  std::string path_;
  std::ofstream file_;
};

// At most so many points: each the mean of as many losses.
std::vector<PlotPoint> points(const std::vector<LossPoint>& losses) {
  constexpr size_t kMost = 300;
  const size_t each = (losses.size() + kMost - 1) / kMost;
  std::vector<PlotPoint> out;
  for (size_t begin = 0; begin < losses.size(); begin += each) {
    const size_t end = std::min(losses.size(), begin + each);
    double sum = 0;
    for (size_t k = begin; k < end; ++k) sum += losses[k].loss;
    out.push_back({"", static_cast<double>(losses[end - 1].step), sum / static_cast<double>(end - begin)});
  }
  return out;
}

Status write_plot(const std::string& path, const History& h) {
  if (path.empty()) return ok_status();
  Plot plot{"Loss", "step", "nats", {}};
  plot.series.push_back({"training", points(h.steps), true});
  if (!h.held_out.empty()) plot.series.push_back({"held out", points(h.held_out), true});
  const Status s = write_file_atomically(path, svg(plot));
  return s.ok() ? s : of_flag("--plot", s);
}

class Run {
 public:
  Run(const FinetuneOptions& options, const FinetuneEvents& events, std::unique_ptr<Learner> trainer)
      : o_(options),
        events_(events),
        trainer_(std::move(trainer)),
        folder_(options.out + ".training"),
        checkpoint_(folder_ + "/checkpoint.safetensors"),
        best_(folder_ + "/best.safetensors"),
        group_(options.trainer.group.get()),
        first_(group_ == nullptr || group_->rank() == 0) {}

  Result<FinetuneReport> run() {
    std::error_code ec;
    if (first_) {
      if (o_.restart) fs::remove_all(folder_, ec);
      fs::create_directories(folder_, ec);
      if (ec) return unavailable(cat("cannot write ", folder_, ": ", ec.message(), "; choose another --out"));
      remove_orphans(folder_);
    }
    OAR_RETURN_IF_ERROR(meet());
    if (is_regular_file(checkpoint_)) {
      OAR_ASSIGN(const json::object extra, trainer_->restore(checkpoint_));
      OAR_RETURN_IF_ERROR(history_.load(extra, checkpoint_));
      kept_ = trainer_->done();
    }
    OAR_RETURN_IF_ERROR(meet());
    const int64_t done = trainer_->done();
    OAR_ASSIGN(Log log, Log::open(first_ ? o_.log : "", done));
    if (first_) OAR_RETURN_IF_ERROR(write_plot(o_.plot, history_));  // a place that takes none is told now
    if (events_.begin && first_) events_.begin(*trainer_, done);
    // A rank that went on alone may have written a step that was not evaluated.
    if (done > 0 && due(done) && (history_.held_out.empty() || history_.held_out.back().step < done))
      OAR_RETURN_IF_ERROR(evaluate(done, log));
    const auto start = Clock::now();
    while (trainer_->done() < trainer_->steps() && !tired()) {
      OAR_ASSIGN(const bool stop, any(events_.stop && events_.stop()));
      if (stop) {
        if (first_) OAR_RETURN_IF_ERROR(checkpoint());
        return Status(StatusCode::kCancelled,
                      cat("stopped after step ", trainer_->done(), " of ", trainer_->steps(),
                          "; the same command goes on from there"));
      }
      OAR_ASSIGN(const StepReport r, trainer_->step());
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      history_.steps.push_back({r.step, r.loss});
      OAR_RETURN_IF_ERROR(log.line({{"step", r.step},
                                    {"loss", r.loss},
                                    {"norm", r.norm},
                                    {"rate", r.rate},
                                    {trainer_->unit(), r.rows},
                                    {"learned", r.learned}}));
      if (events_.step && first_) events_.step(r, seconds);
      if (due(r.step)) OAR_RETURN_IF_ERROR(evaluate(r.step, log));
      if (first_ && r.step < trainer_->steps() && !tired() && o_.checkpoint_every > 0 &&
          r.step % o_.checkpoint_every == 0)
        OAR_RETURN_IF_ERROR(checkpoint());
    }
    FinetuneReport report;
    report.steps = trainer_->done();
    if (!first_) return report;
    report.loss = history_.steps.empty() ? 0 : history_.steps.back().loss;
    if (history_.best_step > 0) {
      OAR_RETURN_IF_ERROR(trainer_->restore_parameters(best_));
      report.held_out = history_.best;
      report.accuracy = history_.best_accuracy;
      report.best_step = history_.best_step;
    }
    OAR_RETURN_IF_ERROR(trainer_->check_finite());
    OAR_RETURN_IF_ERROR(trainer_->write_result(o_.out));
    fs::remove_all(folder_, ec);
    OAR_RETURN_IF_ERROR(write_plot(o_.plot, history_));
    return report;
  }

  // Behind an error of run(): where the group has ended, the first of its ranks that goes on writes a
  // checkpoint of the last whole step. What it says of that.
  std::string survive() {
    const int failed = group_ == nullptr ? -1 : group_->failed_rank();
    if (failed < 0 || group_->rank() != (failed == 0 ? 1 : 0)) return "";
    const bool best = history_.best_step > 0 && history_.best_step == trainer_->done();
    Status s = best ? trainer_->save_parameters(best_) : ok_status();
    if (s.ok()) s = checkpoint();
    if (!s.ok()) return cat("; no checkpoint could be written: ", s.message());
    return cat("; a checkpoint of step ", trainer_->done(),
               " is written, the same command goes on from there");
  }

 private:
  Status meet() { return group_ != nullptr ? group_->barrier() : ok_status(); }
  Result<bool> any(bool mine) { return group_ != nullptr ? group_->any(mine) : Result<bool>(mine); }
  Status checkpoint() {
    Status s = write_plot(o_.plot, history_);
    if (s.ok()) s = trainer_->save(checkpoint_, history_.save());
    if (s.ok()) kept_ = trainer_->done();
    else
      s = Status(s.code(), cat(s.message(), kept_ > 0 ? cat("; the checkpoint of step ", kept_,
                                                            " stays, the same command goes on from there")
                                                      : "; there is no checkpoint yet"));
    return s;
  }
  bool due(int64_t step) const {
    return trainer_->has_held_out() &&
           (step == trainer_->steps() || (o_.eval_every > 0 && step % o_.eval_every == 0));
  }
  // Whether held-out losses were not the best for too long.
  bool tired() const {
    const auto& h = history_.held_out;
    const auto after =
        std::count_if(h.begin(), h.end(), [&](const LossPoint& p) { return p.step > history_.best_step; });
    return o_.patience > 0 && after >= o_.patience;
  }
  Status evaluate(int64_t step, Log& log) {
    HeldOutReport r;
    if (first_) { OAR_ASSIGN(r, trainer_->evaluate()); }
    if (group_ != nullptr) {
      double told[] = {r.loss, r.accuracy};
      OAR_RETURN_IF_ERROR(group_->from_first(told));
      r.loss = told[0], r.accuracy = told[1];
    }
    history_.held_out.push_back({step, r.loss});
    const bool best = r.loss < history_.best;
    if (best) {
      history_.best = r.loss;
      history_.best_accuracy = r.accuracy;
      history_.best_step = step;
    }
    if (!first_) return ok_status();
    if (best) OAR_RETURN_IF_ERROR(trainer_->save_parameters(best_));
    if (events_.held_out) events_.held_out(step, r, best);
    json::object line{{"step", step}, {"held_out", r.loss}, {"best", best}};
    if (r.accuracy >= 0) line["accuracy"] = r.accuracy;
    if (!r.prompt.empty())
      line["sample"] = json::object{{"prompt", r.prompt}, {"continuation", r.continuation}};
    return log.line(line);
  }

  const FinetuneOptions& o_;
  const FinetuneEvents& events_;
  std::unique_ptr<Learner> trainer_;
  const std::string folder_, checkpoint_, best_;
  Group* const group_;
  const bool first_;  // the rank that writes and tells
  History history_;
  int64_t kept_ = 0;  // the step of the checkpoint that there is
};

}  // namespace

bool is_image_network(const std::string& model) { return model.ends_with(".onnx"); }

Result<std::unique_ptr<Learner>> make_learner(const TrainerOptions& options, const Logger& log) {
  const auto as_learner = [](auto made) -> Result<std::unique_ptr<Learner>> {
    if (!made.ok()) return made.status();
    return std::unique_ptr<Learner>(std::move(*made));
  };
  return is_image_network(options.model) ? as_learner(ImageTrainer::create(options, log))
                                         : as_learner(Trainer::create(options, log));
}

namespace {

Result<FinetuneReport> finetune_alone(const FinetuneOptions& options, const FinetuneEvents& events,
                                      const Logger& log) {
  std::error_code ec;
  if (fs::exists(options.out, ec) && !fs::is_empty(options.out, ec))
    return Status(StatusCode::kAlreadyExists,
                  cat("--out ", options.out, " is there already; choose another name or remove it"));
  if (is_image_network(options.trainer.model) && !options.out.ends_with(".onnx"))
    return invalid_argument(cat("--out ", options.out,
                                ": a network over images comes out as an ONNX file; "
                                "give a name that ends in .onnx"));
  OAR_ASSIGN(auto trainer, make_learner(options.trainer, log));
  if (options.dry) {
    if (events.begin) events.begin(*trainer, 0);
    return FinetuneReport();
  }
  Run run(options, events, std::move(trainer));
  auto report = run.run();
  if (report.ok() || report.status().code() == StatusCode::kCancelled) return report;
  return Status(report.status().code(), report.status().message() + run.survive());
}

}  // namespace

Result<FinetuneReport> finetune(const FinetuneOptions& options, const FinetuneEvents& events,
                                const Logger& log) {
  auto report = finetune_alone(options, events, log);
  // Where it was asked to stop all ranks were.
  if (!report.ok() && report.status().code() != StatusCode::kCancelled && options.trainer.group)
    options.trainer.group->fail(report.status().message());
  return report;
}

}  // namespace oar::train
