// An engine over a tiny model on the device under test, by whichever runner draws its tokens; and the same
// without captures, so that every step runs with the sizes it has.
#pragma once

#include "engine/runtime/device_runner.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/serving_plan.h"
#include "tests/cuda/device_memory.h"
#include "tests/models/served_fixture.h"

namespace oar_test {

// A device as it is but for captures.
class WithoutCaptures : public oar::Backend {
 public:
  explicit WithoutCaptures(std::shared_ptr<Backend> device) : d_(std::move(device)) {}
  const char* name() const override { return d_->name(); }
  oar::MemoryKind memory() const override { return d_->memory(); }
  oar::Status fault() const override { return d_->fault(); }
  oar::Result<oar::Buffer> allocate(uint64_t bytes) override { return d_->allocate(bytes); }
  oar::Status upload(void* device, const void* host, uint64_t bytes) override {
    return d_->upload(device, host, bytes);
  }
  oar::Status download(void* host, const void* device, uint64_t bytes) override {
    return d_->download(host, device, bytes);
  }
  oar::Status copy(void* to, const void* from, uint64_t bytes) override { return d_->copy(to, from, bytes); }
  oar::Status synchronize() override { return d_->synchronize(); }
  const oar::Kernel* find_kernel(const oar::KernelKey& key) const override { return d_->find_kernel(key); }
  oar::Result<uint64_t> packed_bytes(oar::Format format, int64_t n, int64_t K) const override {
    return d_->packed_bytes(format, n, K);
  }
  bool packs_from(oar::Format format, oar::Format from, int64_t n, int64_t K) const override {
    return d_->packs_from(format, from, n, K);
  }
  oar::Status pack(oar::Format format, oar::Format from, int64_t n, int64_t K, void* to,
                   const void* rows) const override {
    return d_->pack(format, from, n, K, to, rows);
  }
  int64_t filter_panel() const override { return d_->filter_panel(); }
  int workers() const override { return d_->workers(); }
  oar::Status plan(const oar::Kernel& kernel, const void* args, oar::KernelPlan* out) override {
    return d_->plan(kernel, args, out);
  }
  void reserve_worker_scratch(size_t bytes) override { d_->reserve_worker_scratch(bytes); }
  oar::Status launch(const oar::Kernel& kernel, const void* args, const oar::KernelPlan& plan, void* scratch,
                     const oar::NextKernel& next) override {
    return d_->launch(kernel, args, plan, scratch, next);
  }
  oar::ThreadPool& host_pool() override { return d_->host_pool(); }
  oar::Backend& host() override { return d_->host(); }

 private:
  std::shared_ptr<Backend> d_;
};

// kHost: without captures, too.
enum class Draws { kHost, kLockstep, kOneAhead };

struct DeviceEngine {
  std::unique_ptr<oar::Engine> engine;
  int64_t vocab = 0;
  bool phases = false;  // RunnerLimits
  int64_t layer_count = 0;

  DeviceEngine(const std::string& path, const std::string& kv, Draws draws, int32_t blocks = 64,
               oar::EngineOptions with = {}, int32_t layers = 0, const std::string& weights = "auto")
      : DeviceEngine(load_with_weights(path, weights), kv, draws, blocks, std::move(with), layers, weights) {}
  // `weights`: as the checkpoint's were loaded.
  DeviceEngine(const oar::Checkpoint& checkpoint, const std::string& kv, Draws draws, int32_t blocks,
               oar::EngineOptions with, int32_t layers, const std::string& weights) {
    oar::LanguageModelOptions o;
    o.device = kCudaPlugin;
    o.threads = 2;
    o.kv = kv;
    o.weights = weights;
    o.max_batch_tokens = 32;
    o.max_sequences = 8;
    o.max_context = 192;
    o.page_tokens = 16;
    o.memory_bytes = uint64_t{256} << 20;
    auto config = oar::read_model_config(checkpoint.config);
    REQUIRE_OK(config);
    vocab = config->vocab;
    if (layers > 0) config->layers = layers;  // the first ones alone
    layer_count = config->layers;
    auto graph = oar::build_serving_graph(checkpoint, *config, o);
    REQUIRE_OK(graph);
    std::vector<int32_t> pool(graph->layout.groups.size(), blocks);
    auto backend = oar::make_backend(o);
    REQUIRE_OK(backend);
    std::shared_ptr<oar::Backend> device = *backend;
    if (draws == Draws::kHost) device = std::make_shared<WithoutCaptures>(device);
    auto plan = oar::compile_serving_plan(std::move(graph).value(), *config, o, device, {});
    REQUIRE_OK(plan);
    std::unique_ptr<oar::ModelRunner> runner;
    if (draws == Draws::kHost) {
      auto made = oar::make_plan_runner(std::move(plan).value(), std::move(pool));
      REQUIRE_OK(made);
      runner = std::move(made).value();
    } else {
      const int32_t depth = draws == Draws::kOneAhead ? 1 : 0;
      auto made = oar::make_serving_runner(std::move(plan).value(), std::move(pool), depth);
      REQUIRE_OK(made);
      runner = std::move(made).value();
      REQUIRE(runner->limits().depth == depth);
    }
    with.seed = 5;
    phases = runner->limits().phases;
    auto made = oar::Engine::create(std::move(runner), with);
    REQUIRE_OK(made);
    engine = std::move(made).value();
  }

  std::shared_ptr<CollectSink> submit(const std::vector<int32_t>& prompt, int64_t max_tokens,
                                      const oar::SamplingParams& sampling, int32_t n = 1,
                                      std::shared_ptr<const oar::Constraint> constraint = nullptr) {
    oar::Request r;
    r.prompt = prompt;
    r.n = n;
    r.stop.max_tokens = max_tokens;
    r.sampling = sampling;
    r.constraint = std::move(constraint);
    if (!r.sampling.seed) r.sampling.seed = 11;
    auto sink = std::make_shared<CollectSink>(n);
    r.sink = sink;
    REQUIRE_OK(engine->submit(std::move(r)));
    return sink;
  }
};

}  // namespace oar_test
