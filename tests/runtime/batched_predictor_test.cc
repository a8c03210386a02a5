// BatchedPredictor: requests that share a run get what they get alone; one that is at fault is the only one
// to hear of it; cancellation, deadlines, a full queue, and the end while jobs wait.
#include "engine/runtime/batched_predictor.h"

#include <atomic>
#include <fstream>
#include <future>
#include <mutex>
#include <random>

#include "engine/base/format.h"
#include "engine/runtime/predictor.h"
#include "engine/tensor/element.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT
using std::chrono::milliseconds;
using Results = Result<std::vector<Datum>>;

std::unique_ptr<Predictor> open_graph(const Proto& graph) {
  static std::atomic<int> number{0};
  const std::string path = cat(temp_dir(), "/batched", number++, ".onnx");
  std::ofstream(path, std::ios::binary) << model_bytes(graph);
  PredictorOptions options;
  options.threads = 2;
  auto predictor = Predictor::open(path, options);
  REQUIRE_OK(predictor);
  return std::move(*predictor);
}

// y = x . W, x (batch, 8), W (8, 5).
std::unique_ptr<Predictor> matmul_model() {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> w(40);
  for (float& v : w) v = uniform(random);
  return open_graph(graph_proto({node_proto("MatMul", {"x", "w"}, {"y"})}, {tensor_proto("w", {8, 5}, w)},
                                {value_proto("x", {-1, 8})}, {value_proto("y", {-1, 5})}));
}

// Rows of a table: an index outside it fails the whole run.
std::unique_ptr<Predictor> gather_model() {
  return open_graph(graph_proto({node_proto("Gather", {"table", "i"}, {"y"})},
                                {tensor_proto("table", {4, 2}, {0, 1, 10, 11, 20, 21, 30, 31})},
                                {value_proto("i", {-1}, 7)}, {value_proto("y", {-1, 2})}));
}

Tensor rows_of(int64_t rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor t = must(Tensor::allocate({rows, 8}, Format::f32()));
  for (float& v : t.mutable_values<float>()) v = uniform(random);
  return t;
}
Tensor index(std::vector<int64_t> values) {
  Tensor t = must(allocate_elements({static_cast<int64_t>(values.size())}, DType::kI64));
  std::copy(values.begin(), values.end(), mutable_elements<int64_t>(t));
  return t;
}

// A loop whose condition stays true.
std::unique_ptr<Predictor> endless_model() {
  const Proto body =
      graph_proto({node_proto("Identity", {"c"}, {"go"}), node_proto("Add", {"s", "s"}, {"t"})}, {},
                  {value_proto("i", {}, 7), value_proto("c", {}, 9), value_proto("s", {-1, 8})},
                  {value_proto("go", {}, 9), value_proto("t", {-1, 8})});
  return open_graph(graph_proto({node_proto("Loop", {"", "", "x"}, {"y"}, {graph_attr("body", body)})}, {},
                                {value_proto("x", {-1, 8})}, {value_proto("y", {-1, 8})}));
}

struct Pending {
  std::future<Results> result;
  uint64_t ticket = 0;
};
Pending submit(BatchedPredictor& p, Tensor input, int64_t rows = 1,
               std::optional<Clock::time_point> deadline = std::nullopt) {
  auto promise = std::make_shared<std::promise<Results>>();
  Pending out{promise->get_future()};
  InferJob job;
  job.inputs = {std::move(input)};
  job.rows = rows;
  job.deadline = deadline;
  job.done = [promise](Results r) { promise->set_value(std::move(r)); };
  auto ticket = p.submit(std::move(job));
  REQUIRE_OK(ticket);
  out.ticket = *ticket;
  return out;
}

// Holds the only instance of a predictor inside a job's `done` until let go, so that what follows must queue.
class Held {
 public:
  explicit Held(BatchedPredictor& p, Tensor input) {
    InferJob job;
    job.inputs = {std::move(input)};
    job.done = [entered = &entered_, go = go_.get_future().share()](Results) {
      entered->set_value();
      go.wait();
    };
    REQUIRE_OK(p.submit(std::move(job)));
    entered_.get_future().wait();
  }
  ~Held() { let_go(); }
  void let_go() {
    if (!std::exchange(gone_, true)) go_.set_value();
  }

 private:
  std::promise<void> entered_, go_;
  bool gone_ = false;
};

TEST_CASE("BatchedPredictor: results do not depend on company") {
  const auto alone = matmul_model();
  BatchedPredictorOptions options;
  options.max_batch = 16;
  options.instances = 2;
  BatchedPredictor p(matmul_model(), options);
  std::vector<Pending> pending;
  std::vector<Tensor> inputs;
  for (uint32_t n = 0; n < 200; ++n) {
    const int64_t rows = 1 + n % 5;
    inputs.push_back(rows_of(rows, n));
    pending.push_back(submit(p, inputs.back(), rows));
  }
  for (size_t n = 0; n < pending.size(); ++n) {
    Results got = pending[n].result.get();
    REQUIRE_OK(got);
    auto want = alone->run({Datum(inputs[n])});
    REQUIRE_OK(want);
    REQUIRE((*got)[0].tensor.shape() == (*want)[0].tensor.shape());
    for (int64_t k = 0; k < (*want)[0].tensor.numel(); ++k) {
      // Two orders of eight products of at most 1 differ by no more than 8 roundings each.
      REQUIRE((*got)[0].tensor.values<float>()[static_cast<size_t>(k)] ==
              Approx((*want)[0].tensor.values<float>()[static_cast<size_t>(k)]).margin(2 * 8 * 6e-8 * 8));
    }
  }
  const InferStats s = p.stats();
  CHECK(s.success == 200);
  CHECK(s.inferences == 600);
  CHECK(s.executions <= 200);
  CHECK(s.failure == 0);
  CHECK(s.running == 0);
  uint64_t runs = 0, rows = 0;
  for (const InferStats::Batch& b : s.batches) {
    CHECK(b.rows <= 16);
    runs += b.count;
    rows += b.count * static_cast<uint64_t>(b.rows);
  }
  CHECK(runs == s.executions);
  CHECK(rows == s.inferences);
}

TEST_CASE("BatchedPredictor: what waits together runs together") {
  BatchedPredictorOptions options;
  options.max_batch = 8;
  BatchedPredictor p(matmul_model(), options);
  std::vector<Pending> pending;
  {
    Held held(p, rows_of(1, 0));
    for (uint32_t n = 0; n < 8; ++n) pending.push_back(submit(p, rows_of(1, n)));
    CHECK(p.stats().waiting == 8);
  }
  for (Pending& one : pending) REQUIRE_OK(one.result.get());
  const InferStats s = p.stats();
  CHECK(s.executions == 2);
  REQUIRE(s.batches.size() == 2);
  CHECK(s.batches[1].rows == 8);
}

TEST_CASE("BatchedPredictor: an observer hears of each run, and behind it of its answers") {
  struct Seen final : InferObserver {
    void on_run(const InferRun& run) override {
      const std::lock_guard lock(mutex);
      runs.push_back(run);
      text += cat("run of ", run.rows, " rows, ", run.requests, " requests; ");
    }
    void on_answer(const InferAnswer& a) override {
      const std::lock_guard lock(mutex);
      answers.push_back(a);
      text += cat(a.id, " of ", a.rows, " ", status_code_name(a.status), "; ");
    }
    std::mutex mutex;
    std::vector<InferRun> runs;
    std::vector<InferAnswer> answers;
    std::string text;
  };
  BatchedPredictorOptions options;
  options.max_batch = 16;
  BatchedPredictor p(matmul_model(), options);
  const auto seen = std::make_shared<Seen>();
  std::vector<std::future<Results>> results;
  {
    Held held(p, rows_of(1, 0));
    p.observe(seen);
    for (uint32_t n = 1; n <= 3; ++n) {
      auto promise = std::make_shared<std::promise<Results>>();
      results.push_back(promise->get_future());
      InferJob job;
      job.inputs = {rows_of(n, n)};
      job.rows = n;
      job.id = cat("job", n);
      job.done = [promise](Results r) { promise->set_value(std::move(r)); };
      const auto ticket = p.submit(std::move(job));
      REQUIRE_OK(ticket);
      if (n == 2) p.cancel(*ticket);
    }
  }
  for (auto& result : results) result.wait();
  p.observe(nullptr);
  submit(p, rows_of(1, 9)).result.wait();  // told to nobody
  const std::lock_guard lock(seen->mutex);
  CHECK(seen->text == "job2 of 2 CANCELLED; run of 4 rows, 2 requests; job1 of 1 OK; job3 of 3 OK; ");
  REQUIRE(seen->answers.size() == 3);
  CHECK(seen->answers[0].started == Clock::time_point{});
  for (size_t k = 1; k < 3; ++k) {
    const InferAnswer& a = seen->answers[k];
    CHECK(a.arrived <= a.started);
    CHECK(a.started == seen->runs[0].began);
    CHECK(a.started + std::chrono::nanoseconds(seen->runs[0].times.compute) <= a.ended);
  }
}

TEST_CASE("BatchedPredictor: one bad request in a batch is the only one to fail") {
  std::vector<std::string> warnings;
  BatchedPredictorOptions options;
  options.max_batch = 8;
  options.log = {[&](LogLevel, std::string_view m) { warnings.emplace_back(m); }};
  BatchedPredictor p(gather_model(), options);
  std::vector<Pending> pending;
  {
    Held held(p, index({0}));
    for (const int64_t i : {0, 3, 99, 1}) pending.push_back(submit(p, index({i})));
  }
  for (size_t n = 0; n < pending.size(); ++n) {
    Results r = pending[n].result.get();
    CHECK(r.ok() == (n != 2));
    if (r.ok()) CHECK((*r)[0].tensor.values<float>()[1] == (n == 0 ? 1.f : n == 1 ? 31.f : 11.f));
  }
  CHECK(warnings.size() == 1);
}

TEST_CASE("BatchedPredictor: outputs without a batch axis are computed apart") {
  // y = the sum over the batch: not one row per row.
  BatchedPredictorOptions options;
  options.max_batch = 8;
  BatchedPredictor p(
      open_graph(graph_proto({node_proto("ReduceSum", {"x", "axes"}, {"y"})}, {ints_proto("axes", {0})},
                             {value_proto("x", {-1, 8})}, {value_proto("y", {1, 8})})),
      options);
  std::vector<Pending> pending;
  std::vector<Tensor> inputs;
  {
    Held held(p, rows_of(1, 0));
    for (uint32_t n = 0; n < 3; ++n) {
      inputs.push_back(rows_of(1, n));
      pending.push_back(submit(p, inputs.back()));
    }
  }
  for (size_t n = 0; n < pending.size(); ++n) {
    Results r = pending[n].result.get();
    REQUIRE_OK(r);
    for (size_t k = 0; k < 8; ++k)
      CHECK((*r)[0].tensor.values<float>()[k] == inputs[n].values<float>()[k]);  // a sum of one row, exact
  }
}

TEST_CASE("BatchedPredictor: cancel, deadline, full queue") {
  BatchedPredictorOptions options;
  options.max_queue = 2;
  BatchedPredictor p(matmul_model(), options);
  Held held(p, rows_of(1, 0));
  Pending first = submit(p, rows_of(1, 1));
  Pending late = submit(p, rows_of(1, 2), 1, Clock::now() + milliseconds(1));
  InferJob over;
  over.inputs = {rows_of(1, 3)};
  over.done = [](Results) { FAIL("a refused job has no answer"); };
  CHECK(p.submit(std::move(over)).status().code() == StatusCode::kResourceExhausted);
  p.cancel(first.ticket);
  CHECK(first.result.get().status().code() == StatusCode::kCancelled);
  p.cancel(first.ticket);  // nothing more
  std::this_thread::sleep_for(milliseconds(3));
  held.let_go();
  CHECK(late.result.get().status().code() == StatusCode::kDeadlineExceeded);
  const InferStats s = p.stats();
  CHECK(s.cancelled == 1);
  CHECK(s.expired == 1);
  CHECK(s.refused == 1);
  CHECK(s.failure == 2);
}

TEST_CASE("BatchedPredictor: its end answers what waits, also when a `done` ends it") {
  auto p = std::make_unique<BatchedPredictor>(matmul_model(), BatchedPredictorOptions{});
  Held held(*p, rows_of(1, 0));
  Pending waiting = submit(*p, rows_of(1, 1));
  std::thread end([&] { p.reset(); });  // joins the instance, which is held
  const Results r = waiting.result.get();
  CHECK(r.status().code() == StatusCode::kUnavailable);
  held.let_go();
  end.join();

  auto owner = std::make_shared<std::unique_ptr<BatchedPredictor>>();
  *owner = std::make_unique<BatchedPredictor>(matmul_model(), BatchedPredictorOptions{});
  std::promise<void> ended;
  InferJob job;
  job.inputs = {rows_of(1, 0)};
  job.done = [&ended, owner](Results) {
    owner->reset();
    ended.set_value();
  };
  REQUIRE_OK((*owner)->submit(std::move(job)));
  CHECK(ended.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
}

TEST_CASE("BatchedPredictor: threads that submit and cancel at random get one answer each") {
  BatchedPredictorOptions options;
  options.max_batch = 8;
  options.instances = 2;
  options.max_queue_delay = std::chrono::microseconds(100);
  BatchedPredictor p(matmul_model(), options);
  std::atomic<int> answers{0}, refused{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int n = 0; n < 200; ++n) {
        InferJob job;
        job.rows = 1 + static_cast<int64_t>(random() % 4);
        job.inputs = {rows_of(job.rows, random())};
        if (random() % 8 == 0) job.deadline = Clock::now() + std::chrono::microseconds(random() % 200);
        job.done = [&](Results) { ++answers; };
        const auto ticket = p.submit(std::move(job));
        if (!ticket.ok()) ++refused;
        else if (random() % 4 == 0) p.cancel(*ticket);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (answers + refused < 800 && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
  CHECK(answers + refused == 800);
  const InferStats s = p.stats();
  CHECK(s.success + s.failure + s.refused == 800);
}

TEST_CASE("BatchedPredictor: a run that nobody wants any more ends between two of its steps") {
  BatchedPredictorOptions options;
  options.max_batch = 4;
  BatchedPredictor p(endless_model(), options);
  const auto running = [&](size_t jobs) {
    while (p.stats().running != jobs) std::this_thread::sleep_for(milliseconds(1));
  };
  Pending one = submit(p, rows_of(1, 1));
  running(1);
  // Two that share the next run, which goes on while one of them is wanted.
  Pending two = submit(p, rows_of(1, 2)), three = submit(p, rows_of(1, 3));
  p.cancel(one.ticket);
  CHECK(one.result.get().status().code() == StatusCode::kCancelled);
  running(2);
  p.cancel(two.ticket);
  CHECK(two.result.wait_for(milliseconds(50)) == std::future_status::timeout);
  p.cancel(three.ticket);
  CHECK(two.result.get().status().code() == StatusCode::kCancelled);
  CHECK(three.result.get().status().code() == StatusCode::kCancelled);
  CHECK(p.stats().cancelled == 3);
  CHECK(p.stats().failure == 3);

  auto promise = std::make_shared<std::promise<Results>>();
  InferJob late;
  late.inputs = {rows_of(1, 4)};
  late.end_by = Clock::now() + milliseconds(30);
  late.done = [promise](Results r) { promise->set_value(std::move(r)); };
  REQUIRE_OK(p.submit(std::move(late)));
  CHECK(promise->get_future().get().status().code() == StatusCode::kDeadlineExceeded);
  CHECK(p.stats().running == 0);
}

}  // namespace
