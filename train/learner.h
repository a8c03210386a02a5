// Learner: parameters, an optimizer and steps; what is common to all that is trained, whatever it reads. A
// step is `accumulate` micro-batches; each one's gradient is finished before it is added to the sum, and the
// optimizer then updates every parameter in place. The loss is the mean over all that is learned in the step.
//
// With a Group (engine/tensor/group.h) a step is `accumulate` micro-batches of each rank: those of one round
// lie behind each other, rank by rank, and their gradients are added in this order. So N ranks give the bits
// of one process that accumulates N times as many. Every rank has all states and updates them alike.
//
// The same seed, data, options and instruction set give the same bits for any number of threads, and a
// learner that was restored goes on as if it had never stopped.
//
// One thread at a time; owns all states.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/graph/evaluate.h"
#include "engine/tensor/group.h"
#include "train/model_graph.h"
#include "train/result.h"
#include "train/schedule.h"

namespace oar::train {

struct LearnerOptions {
  OptimizerOptions optimizer;
  double rate = 0;    // 0: what is usual for what is trained
  Schedule schedule;  // its steps are found from `epochs` where 0
  double epochs = 1;
  double hold_out = 0;  // samples of the data that are held out: below 1 a share, else how many; 0: none
  double clip = 1;      // the largest norm of the gradients; 0: any
  // What a step keeps of the parameters' moving average, which is then evaluated and written; 0: there is
  // none. At most n / (n + 10) behind n steps, so that an average follows closely at first.
  double average = 0;
  int64_t accumulate = 1;  // micro-batches of a step, of each rank
  uint64_t seed = 0;
  int threads = 0;                         // of this process; 0: all processors, of a rank its share
  std::shared_ptr<Group> group = nullptr;  // whose rank this process is; null: it is alone
  double rank_wait = 0;   // seconds that all other ranks wait for one; 0: until it falls behind their pace
  int assumed_ranks = 1;  // without a group and without data: those that memory() is asked for
  uint64_t may_take = 0;  // bytes beside the weights, of all ranks; 0: the memory that is free
  int ranks() const { return group ? group->size() : assumed_ranks; }
  int threads_each() const;
  // What a step itself updates parameters with, so that gradients take no memory of their own: where it is
  // one micro-batch. Else none.
  std::optional<StepUpdate> update_in_step() const {
    return accumulate == 1 && ranks() == 1 ? std::optional(StepUpdate{optimizer, clip > 0}) : std::nullopt;
  }
};

struct MemoryUse {
  uint64_t frozen = 0;  // weights that stay, as a step reads them
  // Of all that is trained, its average too; no gradients where a step updates.
  uint64_t parameters = 0, moments = 0, gradients = 0;
  uint64_t activations = 0;  // what lives within a step, at its peak
  uint64_t logits = 0;       // of that the block that the loss goes through
  uint64_t bucket = 0;       // of a rank: gradients of a micro-batch, which all ranks read
  uint64_t states() const { return parameters + moments + gradients + bucket; }
  uint64_t to_get() const { return states() + activations; }
  uint64_t total() const { return frozen + to_get(); }
};

struct StepReport {
  int64_t step = 0;
  double loss = 0;  // nats, the mean over what is learned
  double norm = 0;  // of the gradients, before clipping
  double rate = 0;
  int64_t rows = 0;     // tokens that were no padding, images
  int64_t learned = 0;  // of them, those with something to predict
};

struct HeldOutReport {
  double loss = 0;       // mean over what is learned
  double accuracy = -1;  // of a classifier: the share of labels that are likeliest; below 0: none
  // Of a language model: how a held-out sample begins, and how the model goes on; both empty: not asked for.
  std::string prompt, continuation;
};

class Learner {
 public:
  virtual ~Learner();
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  virtual const LearnerOptions& options() const = 0;
  const MemoryUse& memory() const { return memory_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  int64_t trained() const;  // numbers that are trained
  int64_t steps() const { return options().schedule.steps; }
  int64_t done() const { return step_; }
  virtual bool has_held_out() const = 0;

  // For people: what a row is ("tokens"), what is worth a line before the first step, and the run's size
  // ("6 samples, 30 steps of 1 x 64 tokens").
  virtual const char* unit() const = 0;
  virtual std::vector<std::string> notes() const = 0;
  virtual std::string size() const = 0;

  // FAILED_PRECONDITION when the loss or a gradient is no number: names step, samples and the first op.
  // UNAVAILABLE when the group has ended; what save() writes is then behind the last whole step.
  Result<StepReport> step();
  // Over the held-out data; FAILED_PRECONDITION where there is none, and as step() where a loss is no number.
  virtual Result<HeldOutReport> evaluate() = 0;

  // FAILED_PRECONDITION names a number that was learned and is none: the last step made it.
  Status check_finite() const;
  // What lies in a checkpoint beside the position: everything the next step depends on. As check_finite(),
  // before anything is written.
  Status save(const std::string& path, const json::object& extra) const;
  // Returns `extra`. FAILED_PRECONDITION names the option or file that differs from those it was made with.
  Result<json::object> restore(const std::string& path);
  // What was learned alone, to a file and back: for the best so far.
  Status save_parameters(const std::string& path) const;
  Status restore_parameters(const std::string& path);

  // Writes what was trained to a path that must not exist, or be an empty folder.
  virtual Status write_result(const std::string& path) const = 0;

  // By parameter; views of the states. For tests.
  const Tensor& value(size_t parameter) const { return values_[parameter]; }
  // By parameter, what is evaluated and written: averages, or the values themselves.
  const std::vector<Tensor>& final_values() const { return options().average > 0 ? means_ : values_; }

 protected:
  // A graph with the memory of its runs.
  struct Runner {
    std::unique_ptr<const Evaluator> evaluator;
    RunMemory memory;
    std::shared_ptr<const BlockPlan> plan;
    std::vector<Tensor> states;
    Backend* backend = nullptr;
    const Group* group = nullptr;  // whose end ends a run; null: nobody's
    bool marks = false;            // and whose other ranks run the same, node by node

    static Result<std::unique_ptr<Runner>> make(std::shared_ptr<const Graph> graph,
                                                const std::shared_ptr<WeightStore>& weights,
                                                const Group* group);
    EvalOptions options() const;
    // Of states that have no bytes yet.
    Status size(std::vector<Datum> inputs);
    Result<std::vector<Datum>> run(std::vector<Datum> inputs, const EvalOptions* more = nullptr);
  };
  // A micro-batch of the training data: epochs are endless.
  struct Position {
    int64_t epoch = 0, batch = 0;
  };
  struct Counts {
    int64_t rows = 0, learned = 0;
  };
  // A number that steps move towards each micro-batch's own, and no gradient does: a running average of a
  // batch norm's. The step graph has the micro-batch's as an output behind the loss.
  struct Statistic {
    std::string name;
    double momentum = 0;
    Tensor value;  // f32
  };

  Learner() = default;
  virtual int64_t batches(int64_t epoch) = 0;
  virtual Counts counts(Position at) = 0;
  // Of the step graph, its loss weighted by `weight`.
  virtual Result<std::vector<Datum>> inputs(Position at, float weight) = 0;
  virtual std::string samples(Position at) = 0;  // which ones, for people
  // A run's graph again, watched node by node, whose loss or gradients held what is no number. Ok where all
  // is finite, unless it is `certain` that something is not.
  Status not_finite(Runner& runner, std::vector<Datum> given, int64_t step, const std::string& samples,
                    bool certain) const;
  // By option its value: what a run that goes on must share, of the data and model too.
  virtual json::object described() const = 0;

  // Graphs made ready, and what they take; nothing large is allocated. `loss` null: there is no held-out
  // data. `first`, `first_loss`: inputs of the largest sizes that there are.
  Status prepare(std::shared_ptr<const Graph> step, std::shared_ptr<const Graph> loss,
                 std::vector<Parameter> parameters, std::vector<Datum> first, std::vector<Datum> first_loss);
  // Bytes that one rank may take beside its weights.
  uint64_t free_memory() const;
  // RESOURCE_EXHAUSTED where states and a step of a rank do not fit into them, with what would: `remedy`.
  Status check_memory(const std::function<std::string()>& remedy) const;
  // States with their first values, by parameter.
  Status begin(std::vector<Tensor> values);

  std::shared_ptr<Backend> backend_;     // given before prepare()
  std::shared_ptr<WeightStore> packed_;  // frozen weights as kernels want them, of all graphs
  std::vector<Parameter> parameters_;
  std::vector<Tensor> values_, means_, sums_;
  std::vector<std::vector<Tensor>> moments_;  // by moment, by parameter
  std::vector<Statistic> statistics_;
  std::unique_ptr<Runner> step_runner_, loss_runner_, update_runner_;
  MemoryUse memory_;

 private:
  json::object fingerprint() const;
  std::vector<NamedState> learned_states() const;  // parameters and statistics
  std::vector<NamedState> all_states() const;
  Result<std::vector<Datum>> given(Position at, float weight, const Tensor& hyper);
  void move_means();
  Status run_round(std::span<const Position> at, float weight, const Tensor& hyper,
                   std::vector<Tensor>& averages, StepReport& report);

  std::vector<uint64_t> places_;  // in a bucket: of each parameter, each statistic, and the loss
  Position position_;
  int64_t step_ = 0;
  bool whole_ = true;  // false: a step ended in the midst of its updates
};

// Scalars and lists of whole numbers, as graphs take them.
Result<Datum> datum_of(float value);
Result<Datum> datum_of(const std::vector<int32_t>& values);
// "a, b, c"; of many the first.
std::string name_list(const std::vector<std::string>& names);
// "3 classes: a, b, c".
std::string class_list(const std::vector<std::string>& classes);

}  // namespace oar::train
