#include "clients/cli/inspect_times.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tensor/mapped_file.h"
#include "engine/tune/measure/random_checkpoint.h"
#include "kernels/sample.h"

namespace oar::cli {
namespace {

// Addresses without memory behind them: zeros to who reads, nothing to who does not.
Result<Buffer> reserve(uint64_t bytes, MemoryKind kind) {
  constexpr uint64_t kPage = 4096;
  const uint64_t size = (std::max<uint64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return resource_exhausted(cat("no addresses for ", format_bytes(bytes)));
  const std::shared_ptr<const void> owner(at, [size](const void* p) { munmap(const_cast<void*>(p), size); });
  return Buffer::wrap(at, bytes, owner, kind);
}

// Calls of one kernel of the same sizes.
struct Calls {
  int64_t count = 0;
  // Of all: one that is part of the launch before it takes less, and adds none.
  int64_t launches = 0;
  double seconds = 0;
  LaunchCost each;

  double seconds_each() const { return seconds / static_cast<double>(count); }
};

// A device whose memory is addresses alone and whose launches are added up instead of done.
class PaperDevice final : public Backend {
 public:
  explicit PaperDevice(std::shared_ptr<Backend> device) : device_(std::move(device)) {}

  int64_t context = 0;
  std::map<std::pair<std::string, double>, Calls> calls;  // by kernel and bytes
  std::string untold;                                     // a kernel of which the device cannot tell

  const char* name() const override { return device_->name(); }
  MemoryKind memory() const override { return MemoryKind::kDevice; }
  Result<Buffer> allocate(uint64_t bytes) override { return reserve(bytes, MemoryKind::kDevice); }
  Status upload(void*, const void*, uint64_t) override { return ok_status(); }
  Status download(void*, const void*, uint64_t) override { return ok_status(); }
  Status copy(void*, const void*, uint64_t) override { return ok_status(); }
  Status synchronize() override { return ok_status(); }
  const Kernel* find_kernel(const KernelKey& key) const override { return device_->find_kernel(key); }
  Result<uint64_t> packed_bytes(Format f, int64_t n, int64_t K) const override {
    return device_->packed_bytes(f, n, K);
  }
  bool packs_from(Format f, Format from, int64_t n, int64_t K) const override {
    return device_->packs_from(f, from, n, K);
  }
  Status pack(Format, Format, int64_t, int64_t, void*, const void*) const override { return ok_status(); }
  int64_t filter_panel() const override { return device_->filter_panel(); }
  int workers() const override { return device_->workers(); }
  Status plan(const Kernel& kernel, const void* args, KernelPlan* out) override {
    return device_->plan(kernel, args, out);
  }
  void reserve_worker_scratch(size_t) override {}
  Status launch(const Kernel& kernel, const void* args, const KernelPlan&, void*,
                const NextKernel&) override {
    const auto cost = device_->cost(kernel, args, context);
    if (!cost) {
      untold = kernel.name;
      return ok_status();
    }
    Calls& c = calls[{kernel.name, cost->bytes}];
    ++c.count;
    c.launches += cost->launches;
    c.seconds += cost->seconds;
    c.each = *cost;
    return ok_status();
  }
  ThreadPool& host_pool() override { return device_->host_pool(); }
  Backend& host() override { return device_->host(); }

 private:
  std::shared_ptr<Backend> device_;
};

Result<Checkpoint> checkpoint_of(const std::string& path) {
  if (!path.ends_with(".json")) {
    OAR_ASSIGN(const std::string resolved, resolve_model_path(path));
    return load_checkpoint(resolved);
  }
  OAR_ASSIGN(const std::string text, read_small_file(path, uint64_t{1} << 20));
  OAR_ASSIGN(const json::value config, parse_json(text, path, {.python_floats = true}));
  if (!config.is_object())
    return invalid_argument(cat(path, " must hold a JSON object, as config.json does"));
  Checkpoint out;
  out.source_path = path;
  out.kind = "shape";
  out.config = config.get_object();
  OAR_ASSIGN(const std::vector<TensorSpec> specs, checkpoint_tensors(out.config));
  for (const TensorSpec& spec : specs) {
    const Shape shape(std::span<const int64_t>(spec.shape));
    OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, Format::bf16()));
    OAR_ASSIGN(Buffer buffer, reserve(static_cast<uint64_t>(bytes), MemoryKind::kHost));
    OAR_ASSIGN(Tensor tensor, Tensor::make(shape, Format::bf16(), std::move(buffer)));
    out.tensors.emplace(spec.name, std::move(tensor));
    out.bytes += static_cast<uint64_t>(bytes);
  }
  return out;
}

// As quantize_at_load(), of shapes alone.
Status quantize_shapes(Checkpoint& checkpoint, const std::string& weights) {
  OAR_ASSIGN(const WeightScheme scheme, weight_scheme(weights));
  if (scheme.by_kernel) return ok_status();
  OAR_ASSIGN(checkpoint, unstack_experts(std::move(checkpoint)));
  OAR_ASSIGN(const std::vector<WeightTarget> targets, weight_targets(checkpoint));
  for (const WeightTarget& target : targets) {
    const Tensor from = checkpoint.tensors.at(target.source);
    const auto format = target_format(scheme, target, from);
    if (!format) continue;
    OAR_ASSIGN(const int64_t bytes, tensor_bytes(from.shape(), *format));
    OAR_ASSIGN(Buffer buffer, reserve(static_cast<uint64_t>(bytes), MemoryKind::kHost));
    OAR_ASSIGN(checkpoint.tensors[target.name], Tensor::make(from.shape(), *format, std::move(buffer)));
  }
  return ok_status();
}

// Draws of the device, where it has kernels for them: one row of logits a sequence, and tokens that the step
// before it drew. The device takes rows to be greedy; what is asked of them lies in its memory.
struct DeviceDraws {
  const Kernel *sample, *feed;
  explicit DeviceDraws(const Backend& device)
      : sample(device.find_kernel({KernelFamily::kSample})),
        feed(device.find_kernel({KernelFamily::kFeedTokens})) {}
  bool there() const { return sample != nullptr && feed != nullptr; }
};

// One step: `sequences` of `rows` tokens each, in front of which each has context - rows. Where they have
// one, it is what the step before drew.
Status run_step(const ServingPlan& serving, PaperDevice& device, int64_t sequences, int64_t rows,
                int64_t context) {
  device.calls.clear();
  device.context = context;
  const DeviceDraws draws(device);
  Backend& backend = device;
  if (draws.there() && rows == 1) {
    FeedTokensArgs feed;
    feed.T = sequences;
    OAR_RETURN_IF_ERROR(backend.launch(*draws.feed, &feed, {}, nullptr));
  }
  std::vector<int64_t> symbols(serving.run->graph().symbols().size(), 0);
  symbols[static_cast<size_t>(serving.T)] = sequences * rows;
  symbols[static_cast<size_t>(serving.R)] = sequences;
  symbols[static_cast<size_t>(serving.layout.sequences)] = sequences;
  for (const ServeLayout::Group& g : serving.layout.groups)
    symbols[static_cast<size_t>(g.max_blocks)] = (context + serving.page_tokens - 1) / serving.page_tokens;
  const std::vector<const void*> nothing(serving.run->graph().inputs().size(), nullptr);
  OAR_RETURN_IF_ERROR(serving.run->run(symbols, nothing));
  if (!draws.there()) return ok_status();
  SampleArgs sample;
  sample.num_rows = sequences;
  sample.V = serving.vocab_size;
  return backend.launch(*draws.sample, &sample, {}, nullptr);
}

struct Sum {
  double seconds = 0, bytes = 0;
  int64_t calls = 0, launches = 0;
};
Sum sum_of(const PaperDevice& device) {
  Sum out;
  for (const auto& [key, c] : device.calls) {
    out.seconds += c.seconds;
    out.bytes += c.each.bytes * static_cast<double>(c.count);
    out.calls += c.count;
    out.launches += c.launches;
  }
  return out;
}

void print(const PaperDevice& device, const std::string& title, double tokens) {
  const Sum all = sum_of(device);
  std::printf("\n%s: %.3f ms computed, %.0f tokens/s; %s of memory, %lld kernel calls in %lld launches\n",
              title.c_str(), all.seconds * 1e3, tokens / all.seconds,
              format_bytes(static_cast<uint64_t>(all.bytes)).c_str(), static_cast<long long>(all.calls),
              static_cast<long long>(all.launches));
  std::printf("  %-34s %6s %8s %11s %10s %10s %9s %6s\n", "kernel", "calls", "launches", "bytes each",
              "matrix op", "other op", "us each", "share");
  std::vector<std::pair<std::string, Calls>> rows;
  for (const auto& [key, c] : device.calls) rows.emplace_back(key.first, c);
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [name, c] : rows) {
    std::printf("  %-34s %6lld %8lld %11s %9.2fG %9.2fG %9.2f %5.1f%%\n", name.c_str(),
                static_cast<long long>(c.count), static_cast<long long>(c.launches),
                format_bytes(static_cast<uint64_t>(c.each.bytes)).c_str(), c.each.matrix_operations / 1e9,
                c.each.operations / 1e9, c.seconds_each() * 1e6, 100 * c.seconds / all.seconds);
  }
}

json::object report(const PaperDevice& device, int64_t sequences, int64_t rows, int64_t context) {
  json::array kernels;
  for (const auto& [key, c] : device.calls) {
    kernels.push_back(json::object{{"kernel", key.first},
                                   {"calls", c.count},
                                   {"launches", c.launches},
                                   {"bytes", c.each.bytes},
                                   {"matrix_operations", c.each.matrix_operations},
                                   {"operations", c.each.operations},
                                   {"computed_microseconds", c.seconds_each() * 1e6}});
  }
  const Sum all = sum_of(device);
  return {{"sequences", sequences},          {"rows", rows},       {"context", context},
          {"computed_seconds", all.seconds}, {"bytes", all.bytes}, {"calls", all.calls},
          {"launches", all.launches},        {"kernels", kernels}};
}

}  // namespace

Status inspect_times(const std::string& path, const TimesInspection& what) {
  OAR_ASSIGN(Checkpoint checkpoint, checkpoint_of(path));
  OAR_RETURN_IF_ERROR(quantize_shapes(checkpoint, what.model.weights));
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  LanguageModelOptions model = what.model;
  constexpr int64_t kStreams[] = {1, 16, 64};
  model.max_sequences = kStreams[2];
  model.max_batch_tokens = std::max(model.max_batch_tokens, what.prompt);
  model.max_context = std::max(what.context, what.prompt);
  OAR_ASSIGN(const std::shared_ptr<Backend> backend, make_backend(model));
  if (backend->memory() != MemoryKind::kDevice)
    return invalid_argument("--times wants a device that computes them, such as --device cuda_emulated",
                            "device");
  const auto device = std::make_shared<PaperDevice>(backend);
  OAR_ASSIGN(model, with_kv_of(*device, checkpoint, config, std::move(model)));
  OAR_ASSIGN(ServingGraph graph, build_serving_graph(checkpoint, config, model));
  const std::string kv = graph.kv, weights = graph.weights;
  OAR_ASSIGN(const ServingPlan serving, compile_serving_plan(std::move(graph), config, model, device, {}));

  json::array steps;
  if (!what.json)
    std::printf(
        "times of %s on an H100, weights %s, KV %s: COMPUTED from bytes and operations of each kernel,\n"
        "never measured on a device (kernels/cuda/cost.h says what is assumed)\n",
        path.c_str(), weights.c_str(), kv.c_str());
  const auto step = [&](int64_t sequences, int64_t rows, int64_t context,
                        const std::string& title) -> Status {
    OAR_RETURN_IF_ERROR(run_step(serving, *device, sequences, rows, context));
    if (!device->untold.empty())
      return unimplemented(cat(device->name(), " computes no time of ", device->untold));
    if (what.json) steps.push_back(report(*device, sequences, rows, context));
    else print(*device, title, static_cast<double>(sequences * rows));
    return ok_status();
  };
  for (const int64_t streams : kStreams)
    OAR_RETURN_IF_ERROR(step(streams, 1, what.context,
                             cat("generating, ", streams, streams == 1 ? " sequence" : " sequences", " of ",
                                 what.context, " tokens")));
  OAR_RETURN_IF_ERROR(step(1, what.prompt, what.prompt, cat("a prompt of ", what.prompt, " tokens")));
  if (what.json) {
    const json::object all = {{"model", path}, {"device", device->name()}, {"weights", weights},
                              {"kv", kv},      {"measured", false},        {"steps", steps}};
    std::printf("%s\n", json::serialize(all).c_str());
  }
  return ok_status();
}

}  // namespace oar::cli
