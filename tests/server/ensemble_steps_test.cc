// Ensembles without a server: what their configuration may not say, how their steps run, and what they do
// when steps fail, come and go.
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "engine/base/format.h"
#include "server/api/ensemble.h"
#include "server/repository/repository.h"
#include "tests/server/ensemble_texts.h"
#include "tests/server/tensor_repository.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using namespace oar;       // NOLINT
using api::EnsembleStep;
using api::TensorModel;
using api::TensorModelConfig;
using api::TensorModelPtr;

TEST_CASE("Ensemble: what its configuration may not say") {
  const std::string io = tensor("input", "raw") + tensor("output", "out");
  const auto scheduled = [&](const std::string& steps, const std::string& more = {}) {
    return cat(more.empty() ? io : more, "ensemble_scheduling {\n", steps, "}\n");
  };
  const std::string scale = step("scale", {{"x", "raw"}}, {{"y", "out"}});
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {scheduled(step("nowhere", {{"x", "raw"}}, {{"y", "out"}})), "there is no model \"nowhere\""},
      {scheduled(step("broken", {{"x", "raw"}}, {{"y", "out"}})), "the step 'broken'"},
      {scheduled(step("scale", {{"z", "raw"}}, {{"y", "out"}})), "no input 'z'; it has x"},
      {scheduled(step("scale", {{"x", "raw"}}, {{"z", "out"}})), "no output 'z'; it has y"},
      {scheduled(step("scale", {{"x", "raw"}}, {{"y", "out"}}, "model_version: 7")), "has no version \"7\""},
      {scheduled(step("two", {{"a", "raw"}}, {{"sum", "out"}}),
                 tensor("input", "raw", "FP32", "-1, 2") + tensor("output", "out", "FP32", "-1, 2")),
       "needs its input 'b'"},
      {scheduled(step("scale", {{"x", "lost"}}, {{"y", "out"}})), "reads the tensor 'lost'"},
      {scheduled(scale + step("same_FP32", {{"x", "out"}}, {{"y", "more"}})),
       "nobody reads the tensor 'more'"},
      {scheduled(scale + step("same_FP32", {{"x", "raw"}}, {{"y", "out"}})),
       "'out' is written by the steps 'scale' and 'same_FP32'"},
      {scheduled(step("scale", {{"x", "raw"}}, {{"y", "raw"}})), "'raw', which is an input"},
      {scheduled(scale, io + tensor("input", "idle")), "no step reads the input 'idle'"},
      {scheduled(scale, io + tensor("output", "ghost")), "no step writes the output 'ghost'"},
      {scheduled(scale + step("same_FP32", {{"x", "b"}}, {{"y", "a"}}) +
                 step("scale", {{"x", "a"}}, {{"y", "b"}})),
       "'same_FP32', 'scale' wait for each other"},
      {scheduled(
           step("same_INT8", {{"x", "raw"}}, {{"y", "q"}}) + step("scale", {{"x", "q"}}, {{"y", "out"}}),
           tensor("input", "raw", "INT8") + tensor("output", "out")),
       "the output 'y' of the step 'same_INT8' is INT8 [-1, 3], the input 'x' of the step 'scale' is FP32"},
      {scheduled(step("scale", {{"x", "raw"}}, {{"y", "m"}}) +
                 step("two", {{"a", "m"}, {"b", "m"}}, {{"sum", "out"}})),
       "is FP32 [-1, 3], the input 'a' of the step 'two' is FP32 [-1, 2]"},
      {scheduled(scale, tensor("input", "raw", "INT8") + tensor("output", "out")), "data_type INT8"},
      {cat("max_batch_size: 2\n", tensor("input", "raw", "FP32", "3"), tensor("output", "out", "FP32", "3"),
           "ensemble_scheduling {", step("fixed", {{"x", "raw"}}, {{"y", "out"}}), "}"),
       "the step 'fixed' has no batch axis"},
      {cat("max_batch_size: 9\n", tensor("input", "raw", "FP32", "3"), tensor("output", "out", "FP32", "3"),
           "ensemble_scheduling {", scale, "}"),
       "'scale' takes 8 rows at most"},
      {cat("platform: \"ensemble\"\n", io), "has no steps"},
      {cat("platform: \"onnxruntime\"\n", scheduled(scale)), "makes it an ensemble"},
      {cat("dynamic_batching {}\n", scheduled(scale)), "'dynamic_batching' is for models"},
      {cat("instance_group [ { count: 2 } ]\n", scheduled(scale)), "'instance_group' is for models"},
      {cat("version_policy { all {} }\n", scheduled(scale)), "'version_policy' is for models with files"},
      {scheduled("step { model_name: \"scale\" }\n"), "no input_map"},
      {scheduled("step { model_name: \"scale\" color: 3 }\n"), "no field 'color'"},
      {cat(io, "ensemble_scheduling { stage {} }"), "no field 'stage'"},
      {cat("ensemble_scheduling {", scale, "}"), "names its inputs"},
      {cat("wrong_field: 1\n", scheduled(scale)), "no field 'wrong_field'"}};
  const std::string folder = write_repository();
  for (size_t k = 0; k < wrong.size(); ++k) write_below(folder, cat("e", k, "/config.pbtxt"), wrong[k].first);
  const auto circle = [&](const char* own, const char* other) {
    write_below(folder, cat(own, "/config.pbtxt"),
                scheduled(step(other, {{"raw", "raw"}}, {{"out", "out"}})));
  };
  circle("ring_a", "ring_b");
  circle("ring_b", "ring_a");
  RepositoryOptions r;
  r.predictor.threads = 1;
  auto opened = open_repository(folder, "", r);
  REQUIRE_OK(opened);
  const auto reason = [&](const std::string& name) {
    for (const auto& m : (*opened)->index())
      if (m.name == name) return m.reason;
    return std::string("not listed");
  };
  for (size_t k = 0; k < wrong.size(); ++k) {
    INFO(wrong[k].first);
    CHECK_THAT(reason(cat("e", k)), Contains(wrong[k].second));
  }
  CHECK_THAT(reason("ring_a"), Contains("ring_a -> ring_b -> ring_a"));
  // JSON in the load request, with names that look like fields of protobuf's JSON.
  CHECK((*opened)
            ->load("e0", R"({"input":[{"name":"rawX","dataType":"TYPE_FP32","dims":["-1","3"]}],)"
                         R"("output":[{"name":"out","dataType":"TYPE_FP32","dims":["-1","3"]}],)"
                         R"("ensembleScheduling":{"step":[{"modelName":"scale","modelVersion":"-1",)"
                         R"("inputMap":{"x":"rawX"},"outputMap":{"y":"out"}}]}})")
            .ok());
  CHECK((*opened)->find("e0", "")->tensor->config.inputs[0].name == "rawX");
}

// ---- steps that the test answers itself ----

// Keeps its jobs until the test answers or cancels them.
class HeldRunner final : public JobRunner {
 public:
  Result<uint64_t> submit(InferJob job) override {
    std::lock_guard lock(mutex_);
    if (full_) return resource_exhausted("the queue is full");
    jobs_.emplace(++last_, std::move(job));
    return last_;
  }
  void cancel(uint64_t ticket) override {
    ++cancels;
    answer(ticket, Status(StatusCode::kCancelled, "cancelled"));
  }
  InferStats stats() const override { return {}; }
  void observe(std::shared_ptr<InferObserver>) override {}
  // The oldest job; false when there is none.
  bool answer_one(Result<std::vector<Datum>> result) {
    uint64_t ticket = 0;
    {
      std::lock_guard lock(mutex_);
      if (jobs_.empty()) return false;
      ticket = jobs_.begin()->first;
    }
    answer(ticket, std::move(result));
    return true;
  }
  size_t held() const {
    std::lock_guard lock(mutex_);
    return jobs_.size();
  }
  const InferJob& first() const {
    std::lock_guard lock(mutex_);
    return jobs_.begin()->second;
  }
  void set_full() { full_ = true; }
  std::atomic<int> cancels{0};

 private:
  void answer(uint64_t ticket, Result<std::vector<Datum>> result) {
    InferJob job;
    {
      std::lock_guard lock(mutex_);
      auto node = jobs_.extract(ticket);
      if (!node) return;
      job = std::move(node.mapped());
    }
    job.inputs.clear();
    job.done(std::move(result));
  }
  mutable std::mutex mutex_;
  std::map<uint64_t, InferJob> jobs_;
  uint64_t last_ = 0;
  std::atomic<bool> full_{false};
};

Datum number(float v) {
  Tensor t = *Tensor::allocate({1}, Format::f32());
  t.mutable_values<float>()[0] = v;
  return t;
}
float value(const Datum& d) { return d.tensor.values<float>()[0]; }

// in -> left -> l, in -> right -> r, (l, r) -> join -> out
struct Diamond {
  explicit Diamond(bool lists = false) {
    const auto spec = [](const char* name, bool list = false) {
      api::TensorSpec s;
      s.name = name;
      s.dims = {1};
      s.list = list;
      return s;
    };
    TensorModelConfig c;
    c.name = "diamond";
    c.inputs = {spec("in")};
    c.outputs = {spec("out")};
    c.steps = {{"left", -1, {{"x", "in"}}, {{"y", "l"}}},
               {"right", -1, {{"x", "in"}}, {{"y", "r"}}},
               {"join", -1, {{"a", "l"}, {"b", "r"}}, {{"y", "out"}}}};
    for (const char* name : {"left", "right"}) { add(name, {spec("x")}, {spec("y", lists)}); }
    add("join", {spec("a"), spec("b", false)}, {spec("y")});
    ensemble = std::make_unique<api::Ensemble>(c, [this](const EnsembleStep& s) -> Result<TensorModelPtr> {
      if (s.model == gone) return unavailable("unloaded");
      return models.at(s.model);
    });
  }
  void add(const std::string& name, std::vector<api::TensorSpec> in, std::vector<api::TensorSpec> out) {
    auto m = std::make_shared<TensorModel>();
    m->config.name = name;
    m->config.inputs = std::move(in);
    m->config.outputs = std::move(out);
    auto r = std::make_unique<HeldRunner>();
    runners[name] = r.get();
    m->runner = std::move(r);
    models[name] = std::move(m);
  }
  uint64_t ask(std::optional<Clock::time_point> end_by = {}) {
    InferJob job;
    job.inputs = {number(1)};
    job.end_by = end_by;
    job.id = "seven";
    job.done = [this](Result<std::vector<Datum>> r) {
      ++answers;
      last = r;
    };
    const auto ticket = ensemble->submit(std::move(job));
    REQUIRE_OK(ticket);
    return *ticket;
  }
  HeldRunner& operator[](const std::string& name) { return *runners.at(name); }

  std::map<std::string, HeldRunner*> runners;
  std::map<std::string, TensorModelPtr> models;
  std::string gone;
  std::unique_ptr<api::Ensemble> ensemble;
  int answers = 0;
  Result<std::vector<Datum>> last = std::vector<Datum>();
};

TEST_CASE("Ensemble: steps that do not depend on each other run at once; what is read is not copied") {
  Diamond d;
  const auto end = Clock::now() + std::chrono::hours(1);
  d.ask(end);
  REQUIRE(d["left"].held() == 1);
  REQUIRE(d["right"].held() == 1);
  CHECK(d["left"].first().inputs[0].tensor.data() == d["right"].first().inputs[0].tensor.data());
  CHECK(d["left"].first().end_by == end);
  CHECK(d["left"].first().id == "seven");
  const Datum l = number(5), r = number(7);
  d["right"].answer_one(std::vector<Datum>{r});
  CHECK(d["join"].held() == 0);
  d["left"].answer_one(std::vector<Datum>{l});
  REQUIRE(d["join"].held() == 1);
  CHECK(d["join"].first().inputs[0].tensor.data() == l.tensor.data());
  CHECK(d.ensemble->stats().running == 1);
  d["join"].answer_one(std::vector<Datum>{number(12)});
  REQUIRE(d.answers == 1);
  REQUIRE_OK(d.last);
  CHECK(value((*d.last)[0]) == 12);
  CHECK(d.ensemble->stats().success == 1);
  CHECK(d.ensemble->stats().running == 0);
}

TEST_CASE("Ensemble: cancelled, failed and refused, a request is answered once and when nothing of it runs") {
  Diamond d;
  d.ensemble->cancel(d.ask());
  CHECK(d.answers == 1);
  CHECK(d.last.status().code() == StatusCode::kCancelled);
  CHECK(d["left"].cancels == 1);
  CHECK(d["right"].cancels == 1);
  CHECK(d.ensemble->stats().cancelled == 1);

  d.ask();
  d["left"].answer_one(invalid_argument("bad", "x"));  // the other is cancelled along
  CHECK(d.answers == 2);
  CHECK(d.last.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(d.last.status().message(), Contains("step \"left\" of the ensemble \"diamond\": bad"));
  CHECK(d["right"].held() == 0);

  d["join"].set_full();
  d.ask();
  d["left"].answer_one(std::vector<Datum>{number(1)});
  d["right"].answer_one(std::vector<Datum>{number(1)});
  CHECK(d.answers == 3);
  CHECK(d.last.status().code() == StatusCode::kResourceExhausted);

  d.gone = "right";
  InferJob job;
  job.inputs = {number(1)};
  job.done = [&](Result<std::vector<Datum>>) { ++d.answers; };
  const auto refused = d.ensemble->submit(std::move(job));
  CHECK(refused.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(refused.status().message(), Contains("\"right\""));
  CHECK(d.answers == 3);
  CHECK(d.ensemble->ready().code() == StatusCode::kUnavailable);
  CHECK(d.ensemble->stats().refused == 1);
}

TEST_CASE("Ensemble: a request that has begun ends with the models that it began with") {
  Diamond d;
  d.ask();
  std::weak_ptr<const TensorModel> right = d.models["right"];
  d.models.erase("right");
  d.gone = "right";
  CHECK_FALSE(right.expired());
  d["left"].answer_one(std::vector<Datum>{number(1)});
  d["right"].answer_one(std::vector<Datum>{number(1)});
  d["join"].answer_one(std::vector<Datum>{number(2)});
  CHECK(d.answers == 1);
  CHECK(d.last.ok());
  CHECK(right.expired());
}

TEST_CASE("Ensemble: a step of single tensors is asked once for each item of a list") {
  Diamond d(true);
  const auto list = [](int n) {
    std::vector<Datum> items;
    for (int k = 0; k < n; ++k) items.push_back(number(static_cast<float>(k)));
    return std::vector<Datum>{Datum::sequence(std::move(items))};
  };
  d.ask();
  d["left"].answer_one(list(100));
  d["right"].answer_one(list(100));
  CHECK(d["join"].held() == 32);  // no more of one request at once
  for (int k = 0; k < 100; ++k) {
    CHECK(value(d["join"].first().inputs[1]) == static_cast<float>(k));
    REQUIRE(d["join"].answer_one(std::vector<Datum>{number(static_cast<float>(k))}));
  }
  REQUIRE(d.answers == 1);
  REQUIRE_OK(d.last);
  REQUIRE((*d.last)[0].items->size() == 100);
  CHECK(value((*(*d.last)[0].items)[99]) == 99);
  // Of nothing there is nothing to ask, and lists of two lengths do not belong together.
  d.ask();
  d["left"].answer_one(list(0));
  d["right"].answer_one(list(0));
  REQUIRE(d.answers == 2);
  REQUIRE_OK(d.last);
  CHECK((*d.last)[0].items->empty());
  d.ask();
  d["left"].answer_one(list(2));
  d["right"].answer_one(list(3));
  REQUIRE(d.answers == 3);
  CHECK_THAT(d.last.status().message(), Contains("lists of 2 and 3"));
  // Cancelled in the middle of a list.
  const uint64_t ticket = d.ask();
  d["left"].answer_one(list(50));
  d["right"].answer_one(list(50));
  d.ensemble->cancel(ticket);
  CHECK(d.answers == 4);
  CHECK(d.last.status().code() == StatusCode::kCancelled);
  CHECK(d["join"].held() == 0);
}

TEST_CASE("Ensemble: asked, cancelled and reloaded by many at once") {
  const std::string folder = write_repository();
  write_below(folder, "chain/config.pbtxt", chain());
  RepositoryOptions options;
  options.predictor.threads = 1;
  auto opened = open_repository(folder, "", options);
  REQUIRE_OK(opened);
  api::ModelCatalog& catalog = **opened;
  std::atomic<bool> stop{false};
  std::atomic<int> good{0}, gone{0}, strange{0};
  std::vector<std::thread> clients;
  for (int k = 0; k < 3; ++k) {
    clients.emplace_back([&, k] {
      for (int i = 0; !stop; ++i) {
        const auto model = catalog.find("chain", "");
        if (!model.ok()) continue;
        std::promise<StatusCode> done;
        InferJob job;
        Tensor x = *Tensor::allocate({1, 3}, Format::f32());
        for (float& v : x.mutable_values<float>()) v = 1;
        job.inputs = {x};
        job.done = [&](Result<std::vector<Datum>> r) { done.set_value(r.status().code()); };
        const auto ticket = model->tensor->runner->submit(std::move(job));
        StatusCode code = ticket.status().code();
        if (ticket.ok()) {
          if (i % 3 == k) model->tensor->runner->cancel(*ticket);
          code = done.get_future().get();
        }
        if (code == StatusCode::kOk) ++good;
        else if (code == StatusCode::kUnavailable || code == StatusCode::kCancelled) ++gone;
        else ++strange;
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    CHECK(catalog.unload("same_FP32").ok());
    CHECK(catalog.load(i % 2 ? "chain" : "same_FP32", {}).ok());
    CHECK(catalog.load("chain", {}).ok());
  }
  for (int i = 0; i < 500 && good == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  stop = true;
  for (std::thread& c : clients) c.join();
  CHECK(good > 0);
  CHECK(strange == 0);
}

}  // namespace
