#include "server/api/traced_models.h"

#include "engine/base/format.h"

namespace oar::api {
namespace {

class TracedGenerations final : public GenerationObserver {
 public:
  TracedGenerations(std::shared_ptr<TraceFile> trace, const ModelHandle& model,
                    std::shared_ptr<GenerationObserver> next, std::shared_ptr<TraceSwitch> gate)
      : trace_(std::move(trace)),
        model_(trace_->add_model(model.name, {"engine"}, model.version)),
        next_(std::move(next)),
        gate_(std::move(gate)) {}

  void on_step(const StepInfo& step) override {
    if (gate_->on()) trace_->add(StepRecord{model_, step});
    next_->on_step(step);
  }
  void on_first_token(double seconds) override { next_->on_first_token(seconds); }
  void on_next_tokens(double seconds, size_t tokens) override { next_->on_next_tokens(seconds, tokens); }
  void on_finish(const PromptOutcome& outcome, const GenerationSpec& spec) override {
    const ModelHandle& model = *spec.model;
    if (gate_->takes_request())
      trace_->add(PromptRecord{model_, spec.request.id, model.adapter ? model.name : std::string(),
                               static_cast<int64_t>(outcome.prompt), spec.request.n, outcome.stats,
                               outcome.finish, spec.trace});
    next_->on_finish(outcome, spec);
  }
  void on_refused(const GenerationSpec& spec, StatusCode why) override {
    if (gate_->on()) trace_->add(RefusalRecord{model_, spec.request.id, why, Clock::now(), spec.trace});
    next_->on_refused(spec, why);
  }
  RequestTotals totals() const override { return next_->totals(); }

 private:
  const std::shared_ptr<TraceFile> trace_;
  const int32_t model_;
  const std::shared_ptr<GenerationObserver> next_;
  const std::shared_ptr<TraceSwitch> gate_;
};

class TracedRuns final : public InferObserver {
 public:
  TracedRuns(std::shared_ptr<TraceFile> trace, const TensorModelConfig& model,
             std::shared_ptr<TraceSwitch> gate)
      : trace_(std::move(trace)),
        model_(trace_->add_model(model.name, instances(model), model.version)),
        gate_(std::move(gate)) {}
  void on_run(const InferRun& run) override {
    if (gate_->on()) trace_->add(RunRecord{model_, run});
  }
  void on_answer(const InferAnswer& answer) override {
    if (!gate_->takes_request()) return;
    AnswerRecord r{model_, std::string(answer.id), answer, std::string(answer.trace),
                   std::string(answer.span)};
    r.answer.id = r.answer.trace = r.answer.span = {};  // they end with the job
    trace_->add(std::move(r));
  }

 private:
  static std::vector<std::string> instances(const TensorModelConfig& model) {
    std::vector<std::string> out;
    for (int k = 1; k <= model.instances; ++k) out.push_back(cat("instance ", k));
    return out;
  }

  const std::shared_ptr<TraceFile> trace_;
  const int32_t model_;
  const std::shared_ptr<TraceSwitch> gate_;
};

}  // namespace

std::shared_ptr<InferObserver> traced(std::shared_ptr<TraceFile> trace, const TensorModel& model,
                                      std::shared_ptr<TraceSwitch> gate) {
  return std::make_shared<TracedRuns>(std::move(trace), model.config, std::move(gate));
}

std::shared_ptr<GenerationObserver> traced(std::shared_ptr<TraceFile> trace, const ModelHandle& model,
                                           std::shared_ptr<GenerationObserver> next,
                                           std::shared_ptr<TraceSwitch> gate) {
  return std::make_shared<TracedGenerations>(std::move(trace), model, std::move(next), std::move(gate));
}

}  // namespace oar::api
