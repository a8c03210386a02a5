#include "engine/runtime/device_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/runtime/core/sample_rows.h"

namespace oar {
namespace {

// Memory that is made again, twice as large, where a step needs more than any before: penalties have a list
// as long as a text.
struct Growing {
  Buffer buffer;
  template <class Allocate>
  Status reserve(uint64_t bytes, const Allocate& allocate) {
    if (bytes <= buffer.size()) return ok_status();
    buffer = {};
    OAR_ASSIGN(buffer, allocate(std::max<uint64_t>(2 * bytes, uint64_t{4} << 10)));
    return ok_status();
  }
};

SampleArgs args_of(int64_t rows, int64_t vocab) {
  SampleArgs a;
  a.num_rows = rows;
  a.V = vocab;
  return a;
}

class DeviceRunner final : public ModelRunner {
 public:
  DeviceRunner(PlanStep step, const Kernel& sample, const Kernel& feed, std::unique_ptr<Backend::Mark> drawn)
      : step_(std::move(step)),
        backend_(step_.backend()),
        sample_(sample),
        feed_(feed),
        rows_(step_.limits().vocab_size),
        drawn_(std::move(drawn)) {}

  const RunnerLimits& limits() const override { return step_.limits(); }
  Status copy_blocks(std::span<const BlockCopy> copies) override { return step_.copy_blocks(copies); }

  Status submit(const Batch& batch) override {
    Batch known = batch;
    const bool fed = std::ranges::any_of(batch.tokens, [](int32_t t) { return t < 0; });
    if (fed) {
      tokens_.assign(batch.tokens.begin(), batch.tokens.end());
      for (int32_t& t : tokens_) {
        if (t >= 0) continue;
        // Where nothing could be drawn any token will do: that choice ends, and its rows with it.
        const int32_t row = rows_.first_row(static_cast<size_t>(~t));
        t = row >= 0 ? ~row : 0;
      }
      known.tokens = tokens_;
    }
    OAR_RETURN_IF_ERROR(
        step_.load(known, told_ ? std::span<const std::byte>(staged_) : std::span<const std::byte>()));
    OAR_RETURN_IF_ERROR(draw());
    if (fed) {
      FeedTokensArgs feed;
      feed.tokens = static_cast<int32_t*>(step_.tokens().data);
      feed.draws = static_cast<const SampleDraw*>(draws_.buffer.data());
      feed.T = static_cast<int64_t>(tokens_.size());
      OAR_RETURN_IF_ERROR(backend_.launch(feed_, &feed, {}, nullptr));
    }
    return step_.run().execute();
  }

  Status sample(const SampleSpec& spec) override {
    rows_.make(spec);
    const auto rows = rows_.rows();
    const auto words = rows_.words();
    told_ = !rows.empty();
    if (!told_) return ok_status();
    staged_.resize(rows.size_bytes() + words.size_bytes());
    std::memcpy(staged_.data(), rows.data(), rows.size_bytes());
    if (!words.empty()) std::memcpy(staged_.data() + rows.size_bytes(), words.data(), words.size_bytes());
    logits_ = step_.logits().as<const float>();
    return ok_status();
  }

  Result<SampleResult*> collect() override {
    if (told_) {  // no step came behind that would have brought it along
      OAR_RETURN_IF_ERROR(step_.run().load_beside(staged_));
      OAR_RETURN_IF_ERROR(draw());
    }
    const size_t rows = rows_.rows().size();
    if (rows > 0) OAR_RETURN_IF_ERROR(backend_.wait(*drawn_));
    const auto* const landed = static_cast<const std::byte*>(landing_.buffer.data());
    rows_.read({reinterpret_cast<const SampleDraw*>(landed), rows},
               {reinterpret_cast<const SampleTop*>(landed + rows * sizeof(SampleDraw)),
                rows * static_cast<size_t>(rows_.max_logprobs())},
               result_);
    return &result_;
  }

  Status reserve_scratch() {
    const SampleArgs a = args_of(limits().max_logit_rows, limits().vocab_size);
    KernelPlan plan;
    OAR_RETURN_IF_ERROR(backend_.plan(sample_, &a, &plan));
    OAR_ASSIGN(scratch_.buffer, backend_.allocate(std::max<uint64_t>(plan.shared_scratch, 1)));
    return ok_status();
  }

 private:
  // What the last sample() asked for, if it has not been done: staged_ lies beside the step's inputs now.
  Status draw() {
    if (!std::exchange(told_, false)) return ok_status();
    const auto rows = rows_.rows();
    const size_t bytes =
        rows.size() * (sizeof(SampleDraw) + static_cast<size_t>(rows_.max_logprobs()) * sizeof(SampleTop));
    const auto on_device = [&](uint64_t size) { return backend_.allocate(size); };
    OAR_RETURN_IF_ERROR(draws_.reserve(bytes, on_device));
    OAR_RETURN_IF_ERROR(
        landing_.reserve(bytes, [&](uint64_t size) { return backend_.allocate_landing(size); }));
    const std::byte* const asked = step_.run().beside();
    auto* const draws = static_cast<std::byte*>(draws_.buffer.mutable_data());
    SampleArgs a = args_of(static_cast<int64_t>(rows.size()), limits().vocab_size);
    a.draws = reinterpret_cast<SampleDraw*>(draws);
    a.tops = reinterpret_cast<SampleTop*>(draws + rows.size() * sizeof(SampleDraw));
    a.logits = logits_;
    a.rows = reinterpret_cast<const SampleRow*>(asked);
    a.words = reinterpret_cast<const int32_t*>(asked + rows.size_bytes());
    a.max_logprobs = rows_.max_logprobs();
    KernelPlan plan;
    OAR_RETURN_IF_ERROR(backend_.plan(sample_, &a, &plan));
    OAR_RETURN_IF_ERROR(scratch_.reserve(plan.shared_scratch, on_device));
    OAR_RETURN_IF_ERROR(backend_.launch(sample_, &a, plan, scratch_.buffer.mutable_data()));
    OAR_RETURN_IF_ERROR(backend_.download(landing_.buffer.mutable_data(), draws, bytes));
    return backend_.set(*drawn_);
  }

  PlanStep step_;
  Backend& backend_;
  const Kernel &sample_, &feed_;
  SampleRows rows_;  // of the step that was told last what to draw
  SampleResult result_;
  std::vector<int32_t> tokens_;
  std::vector<std::byte> staged_;      // what to draw, as it is uploaded
  bool told_ = false;                  // and it is still to be
  const float* logits_ = nullptr;      // from which
  Growing draws_, scratch_, landing_;  // landing_: on the host, where draws_ come to lie
  std::unique_ptr<Backend::Mark> drawn_;
};

struct Kernels {
  const Kernel *sample = nullptr, *feed = nullptr;
};
Kernels kernels_of(const ServingPlan& serving) {
  const Backend& backend = *serving.backend;
  if (backend.memory() == MemoryKind::kHost) return {};
  const Kernels found{backend.find_kernel({KernelFamily::kSample}),
                      backend.find_kernel({KernelFamily::kFeedTokens})};
  return found.sample != nullptr && found.feed != nullptr ? found : Kernels{};
}

}  // namespace

uint64_t sampling_bytes(const ServingPlan& serving) {
  const Kernels kernels = kernels_of(serving);
  if (kernels.sample == nullptr) return 0;
  const SampleArgs a = args_of(serving.max_logit_rows, serving.vocab_size);
  KernelPlan plan;
  return serving.backend->plan(*kernels.sample, &a, &plan).ok() ? plan.shared_scratch : 0;
}

Result<std::unique_ptr<ModelRunner>> make_serving_runner(ServingPlan serving, std::vector<int32_t> num_blocks,
                                                         int32_t depth) {
  const Kernels kernels = kernels_of(serving);
  if (kernels.sample == nullptr) {
    OAR_ASSIGN(auto runner, make_plan_runner(std::move(serving), std::move(num_blocks)));
    return std::unique_ptr<ModelRunner>(std::move(runner));
  }
  OAR_ASSIGN(PlanStep step, PlanStep::make(std::move(serving), std::move(num_blocks)));
  step.limits().depth = depth;
  step.limits().device_draws = true;
  OAR_ASSIGN(auto drawn, step.backend().make_mark());
  auto runner =
      std::make_unique<DeviceRunner>(std::move(step), *kernels.sample, *kernels.feed, std::move(drawn));
  OAR_RETURN_IF_ERROR(runner->reserve_scratch());
  return std::unique_ptr<ModelRunner>(std::move(runner));
}

}  // namespace oar
