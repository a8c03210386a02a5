// The Backend over a plug-in's table: one opened device, one stream. Small uploads go through page-locked
// staging memory where the plug-in has it, so that a step's inputs cost no wait; everything else is a call of
// the table and a look at its status.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/device_usage.h"
#include "engine/base/format.h"
#include "engine/tensor/backend.h"
#include "engine/tensor/plugin_table.h"

namespace oar {
namespace {

constexpr uint64_t kStagingHalf = uint64_t{256} << 10;  // a step's inputs are some tens of KiB
constexpr uint64_t kStagingAlign = 64;

// Families of the plug-in interface (plugin.h).
bool in_interface(KernelFamily family) {
  switch (family) {
    case KernelFamily::kConv:
    case KernelFamily::kDepthwise:
    case KernelFamily::kPool:
    case KernelFamily::kSoftmax:
    case KernelFamily::kSegmentAttention:
    case KernelFamily::kDenseAttention:
    case KernelFamily::kResize:
    case KernelFamily::kQuantizedConv:
    case KernelFamily::kNarrow:
    case KernelFamily::kActivate:
    case KernelFamily::kCausalConv:
    case KernelFamily::kStateScan:
    case KernelFamily::kStridedCopy:
    case KernelFamily::kReduce:
    case KernelFamily::kRecurrent:
    case KernelFamily::kSample:
    case KernelFamily::kFeedTokens:
    case KernelFamily::kLora:
    case KernelFamily::kGatedMatmul: return true;
    default: return family <= KernelFamily::kHadamard;
  }
}

const char* status_name(oar_plugin_status status) {
  switch (status) {
    case OAR_PLUGIN_OUT_OF_MEMORY: return "out of memory";
    case OAR_PLUGIN_UNSUPPORTED: return "unsupported";
    case OAR_PLUGIN_INVALID: return "invalid argument";
    case OAR_PLUGIN_DEVICE_ERROR: return "device error";
    default: return "unknown status";
  }
}

std::string words(const oar_plugin& table, oar_plugin_device* device, oar_plugin_status status) {
  const char* text = table.error_message != nullptr ? table.error_message(device) : nullptr;
  return text != nullptr && *text != '\0' ? cat(status_name(status), ": ", text)
                                          : cat(status_name(status), " (", status, ")");
}

// An opened device with its stream, and the first error that it met. Buffers and captures share it: it is
// closed when the last of them is gone.
struct Device {
  oar_plugin table{};
  std::string name;
  oar_plugin_device* handle = nullptr;
  oar_plugin_stream* stream = nullptr;
  Status fault;
  std::shared_ptr<const void> hearing;  // of what the plug-in logs
  std::shared_ptr<const void> watched;  // by who asks what the device does

  ~Device() {
    watched.reset();
    if (stream != nullptr) table.destroy_stream(handle, stream);
    if (handle != nullptr) table.close(handle);
  }
  // Remembers what is no mere lack of memory.
  Status check(oar_plugin_status status, const char* what) {
    if (status == OAR_PLUGIN_OK) return ok_status();
    fault = unavailable(cat("device ", name, ": ", what, " failed: ", words(table, handle, status)));
    return fault;
  }
  // Waits for what was given to the device before something it may still read is released: also after a
  // fault, which need not have ended the work before it. An error shows at the next call that matters.
  void settle() {
    const oar_plugin_status status = table.synchronize(handle, stream);
    if (fault.ok()) (void)check(status, "synchronize");
  }
};

bool usage_of(const oar_plugin& table, int32_t index, DeviceUsage* out) {
  oar_plugin_usage u{};
  u.size = sizeof u;
  for (double* number :
       {&u.memory_total_bytes, &u.memory_used_bytes, &u.utilization, &u.power_watts, &u.power_limit_watts,
        &u.energy_joules, &u.clock_hertz, &u.memory_clock_hertz, &u.temperature_celsius})
    *number = NAN;
  if (table.device_usage(index, &u) != OAR_PLUGIN_OK) return false;
  out->uuid.assign(u.uuid, strnlen(u.uuid, sizeof u.uuid));
  out->memory_total_bytes = u.memory_total_bytes;
  out->memory_used_bytes = u.memory_used_bytes;
  out->utilization = u.utilization;
  out->power_watts = u.power_watts;
  out->power_limit_watts = u.power_limit_watts;
  out->energy_joules = u.energy_joules;
  out->clock_hertz = u.clock_hertz;
  out->memory_clock_hertz = u.memory_clock_hertz;
  out->temperature_celsius = u.temperature_celsius;
  return true;
}

// What a Buffer of device memory owns.
struct Allocation {
  Allocation(std::shared_ptr<Device> d, void* m) : device(std::move(d)), memory(m) {}
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    device->settle();
    if (memory != nullptr) device->table.release(device->handle, memory);
  }
  std::shared_ptr<Device> device;
  void* memory;
};

struct EventMark : Backend::Mark {
  explicit EventMark(std::shared_ptr<Device> d) : device(std::move(d)) {}
  ~EventMark() override {
    if (event != nullptr) device->table.destroy_event(device->handle, event);
  }
  std::shared_ptr<Device> device;
  oar_plugin_event* event = nullptr;
};

// What a Buffer of page-locked memory owns.
struct Locked {
  Locked(std::shared_ptr<Device> d, void* m) : device(std::move(d)), memory(m) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() {
    device->settle();
    device->table.host_release(device->handle, memory);
  }
  std::shared_ptr<Device> device;
  void* memory;
};

struct Recorded {
  Recorded(std::shared_ptr<Device> d, oar_plugin_capture* c) : device(std::move(d)), capture(c) {}
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  ~Recorded() {
    device->settle();  // a replay may still be under way
    device->table.destroy_capture(device->handle, capture);
  }
  std::shared_ptr<Device> device;
  oar_plugin_capture* capture;
};

// What the graph sees as a Kernel: its plan and run are this backend's affair.
struct PluginKernel : Kernel {
  std::string text;
  const oar_plugin_kernel* handle = nullptr;
};

// Two halves of host memory: while copies out of one are under way the other is written.
class Staging {
 public:
  explicit Staging(std::shared_ptr<Device> device) : d_(std::move(device)) {}
  ~Staging() {
    for (Half& h : halves_) {
      if (h.event != nullptr) d_->table.destroy_event(d_->handle, h.event);
      if (h.locked != nullptr) d_->table.host_release(d_->handle, h.locked);
    }
  }

  Status open() {
    const oar_plugin& t = d_->table;
    for (Half& h : halves_) {
      void* memory = nullptr;
      if (t.host_allocate != nullptr && t.host_allocate(d_->handle, kStagingHalf, &memory) == OAR_PLUGIN_OK) {
        h.locked = h.memory = static_cast<std::byte*>(memory);
      } else {
        OAR_ASSIGN(h.ordinary, Buffer::allocate(kStagingHalf));
        h.memory = static_cast<std::byte*>(h.ordinary.mutable_data());
      }
      if (t.create_event != nullptr)
        OAR_RETURN_IF_ERROR(d_->check(t.create_event(d_->handle, &h.event), "create_event"));
    }
    return ok_status();
  }

  // Memory for `bytes` <= kStagingHalf that no copy reads any more.
  Result<std::byte*> take(uint64_t bytes) {
    const oar_plugin& t = d_->table;
    if (halves_[at_].used + bytes > kStagingHalf) {
      if (t.create_event != nullptr) {
        OAR_RETURN_IF_ERROR(
            d_->check(t.record_event(d_->handle, d_->stream, halves_[at_].event), "record_event"));
        halves_[at_].pending = true;
        at_ = 1 - at_;
        if (halves_[at_].pending)
          OAR_RETURN_IF_ERROR(
              d_->check(t.synchronize_event(d_->handle, halves_[at_].event), "synchronize_event"));
        halves_[at_].pending = false;
        halves_[at_].used = 0;
      } else {
        OAR_RETURN_IF_ERROR(d_->check(t.synchronize(d_->handle, d_->stream), "synchronize"));
        reset();
      }
    }
    std::byte* p = halves_[at_].memory + halves_[at_].used;
    halves_[at_].used += (bytes + kStagingAlign - 1) / kStagingAlign * kStagingAlign;
    return p;
  }
  // All copies are over.
  void reset() {
    for (Half& h : halves_) h.used = 0, h.pending = false;
    at_ = 0;
  }

 private:
  struct Half {
    std::byte* memory = nullptr;
    std::byte* locked = nullptr;  // the same, where the plug-in gave it
    Buffer ordinary;
    uint64_t used = 0;
    oar_plugin_event* event = nullptr;
    bool pending = false;
  };
  std::shared_ptr<Device> d_;
  Half halves_[2];
  int at_ = 0;
};

class PluginBackend final : public Backend {
 public:
  PluginBackend(std::shared_ptr<Device> device, std::unique_ptr<Backend> host)
      : d_(std::move(device)), table_(d_->table), host_(std::move(host)), staging_(d_) {}

  ~PluginBackend() override {
    // Copies out of the staging memory must be over.
    d_->settle();
  }

  Status open() { return table_.copy_to_device_async != nullptr ? staging_.open() : ok_status(); }

  const char* name() const override { return d_->name.c_str(); }
  MemoryKind memory() const override { return MemoryKind::kDevice; }
  Status fault() const override { return d_->fault; }

  Result<Buffer> allocate(uint64_t bytes) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    if (bytes == 0) return Buffer();
    void* memory = nullptr;
    const oar_plugin_status status = table_.allocate(d_->handle, bytes, &memory);
    if (status == OAR_PLUGIN_OUT_OF_MEMORY) {
      return resource_exhausted(cat("device ", d_->name, " cannot allocate ", format_bytes(bytes)));
    }
    OAR_RETURN_IF_ERROR(d_->check(status, "allocate"));
    auto owner = std::make_shared<Allocation>(d_, memory);
    if (memory == nullptr || reinterpret_cast<uintptr_t>(memory) % Buffer::kAlignment != 0) {
      d_->fault = internal_error(cat("device ", d_->name, ": allocate returned memory that is not aligned"));
      return d_->fault;
    }
    return Buffer::wrap(memory, bytes, std::move(owner), MemoryKind::kDevice);
  }

  Result<std::optional<uint64_t>> available_memory() override {
    OAR_RETURN_IF_ERROR(d_->fault);
    if (table_.memory_stats == nullptr) return total_ > 0 ? std::optional(total_) : std::nullopt;
    oar_plugin_memory memory{};
    memory.size = sizeof memory;
    OAR_RETURN_IF_ERROR(d_->check(table_.memory_stats(d_->handle, &memory), "memory_stats"));
    return std::optional(memory.free_bytes);
  }
  void set_total(uint64_t bytes) { total_ = bytes; }

  Status upload(void* to, const void* from, uint64_t bytes) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    if (bytes == 0) return ok_status();
    if (table_.copy_to_device_async == nullptr || bytes > kStagingHalf) {
      return d_->check(table_.copy_to_device(d_->handle, d_->stream, to, from, bytes), "copy_to_device");
    }
    OAR_ASSIGN(std::byte* const staged, staging_.take(bytes));
    std::memcpy(staged, from, bytes);
    return d_->check(table_.copy_to_device_async(d_->handle, d_->stream, to, staged, bytes),
                     "copy_to_device_async");
  }
  Status download(void* to, const void* from, uint64_t bytes) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    if (bytes == 0) return ok_status();
    if (table_.copy_to_host_async != nullptr) {
      return d_->check(table_.copy_to_host_async(d_->handle, d_->stream, to, from, bytes),
                       "copy_to_host_async");
    }
    return d_->check(table_.copy_to_host(d_->handle, d_->stream, to, from, bytes), "copy_to_host");
  }
  Status copy(void* to, const void* from, uint64_t bytes) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    if (bytes == 0) return ok_status();
    return d_->check(table_.copy_on_device(d_->handle, d_->stream, to, from, bytes), "copy_on_device");
  }
  Status synchronize() override {
    OAR_RETURN_IF_ERROR(d_->fault);
    OAR_RETURN_IF_ERROR(d_->check(table_.synchronize(d_->handle, d_->stream), "synchronize"));
    staging_.reset();
    return ok_status();
  }

  Result<std::unique_ptr<Mark>> make_mark() override {
    OAR_RETURN_IF_ERROR(d_->fault);
    if (table_.create_event == nullptr) return std::make_unique<Mark>();
    auto mark = std::make_unique<EventMark>(d_);
    OAR_RETURN_IF_ERROR(d_->check(table_.create_event(d_->handle, &mark->event), "create_event"));
    return std::unique_ptr<Mark>(std::move(mark));
  }
  Status set(Mark& mark) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    if (table_.create_event == nullptr) return ok_status();
    return d_->check(table_.record_event(d_->handle, d_->stream, static_cast<EventMark&>(mark).event),
                     "record_event");
  }
  Status wait(Mark& mark) override {
    if (table_.create_event == nullptr) return synchronize();
    OAR_RETURN_IF_ERROR(d_->fault);
    return d_->check(table_.synchronize_event(d_->handle, static_cast<EventMark&>(mark).event),
                     "synchronize_event");
  }
  Result<Buffer> allocate_landing(uint64_t bytes) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    void* memory = nullptr;
    if (table_.host_allocate == nullptr ||
        table_.host_allocate(d_->handle, bytes, &memory) != OAR_PLUGIN_OK) {
      return Buffer::allocate(bytes);
    }
    return Buffer::wrap(memory, bytes, std::make_shared<Locked>(d_, memory), MemoryKind::kHost);
  }

  const Kernel* find_kernel(const KernelKey& key) const override {
    if (!in_interface(key.family) || !d_->fault.ok()) return nullptr;
    const auto known = std::ranges::find(kernels_, key, &Found::first);
    if (known != kernels_.end()) return known->second.get();
    const oar_plugin_query query = {.size = sizeof query,
                                    .family = static_cast<int32_t>(key.family),
                                    .format = key.weight.name(),
                                    .input = key.input.name(),
                                    .layout = static_cast<int32_t>(key.layout),
                                    .rows = static_cast<int32_t>(key.rows),
                                    .sum = static_cast<int32_t>(key.sum),
                                    .keys = key.keys ? kv_code_name(*key.keys) : nullptr,
                                    .values = key.values ? kv_code_name(*key.values) : nullptr};
    const oar_plugin_kernel* handle = nullptr;
    const oar_plugin_status status = table_.find_kernel(d_->handle, &query, &handle);
    std::unique_ptr<PluginKernel> k;
    if (status == OAR_PLUGIN_OK) {
      k = std::make_unique<PluginKernel>();
      k->text = cat(table_.name, ".", family_name(key.family), ".", key.weight.name());
      k->family = key.family;
      k->isa = Isa::kGeneric;
      k->name = k->text.c_str();
      k->format = key.weight;
      k->input = key.input;
      k->sum = key.sum;
      k->plan = nullptr;
      k->run = nullptr;
      k->handle = handle;
    } else if (status != OAR_PLUGIN_UNSUPPORTED) {
      (void)d_->check(status, "find_kernel");  // the next call says so
    }
    return kernels_.emplace_back(key, std::move(k)).second.get();
  }
  Result<uint64_t> packed_bytes(Format format, int64_t n, int64_t K) const override {
    uint64_t bytes = 0;
    if (table_.packed_bytes == nullptr) return bytes;
    const oar_plugin_status status = table_.packed_bytes(format.name(), n, K, &bytes);
    if (status != OAR_PLUGIN_OK) return refused("packed_bytes", status, format, n, K);
    return bytes;
  }
  bool packs_from(Format format, Format from, int64_t, int64_t) const override {
    return format == from || format.info().encode != nullptr;
  }
  Status pack(Format format, Format from, int64_t n, int64_t K, void* to, const void* rows) const override {
    Buffer encoded;
    if (!(format == from)) {
      const int64_t stride = format.stride(K), from_stride = from.stride(K);
      OAR_ASSIGN(encoded, Buffer::allocate(static_cast<uint64_t>(n * stride)));
      auto* made = static_cast<std::byte*>(encoded.mutable_data());
      host_->host_pool().parallel_for(n, 16, [&](int64_t begin, int64_t end) {
        std::vector<float> row(static_cast<size_t>(K));
        for (int64_t r = begin; r < end; ++r) {
          from.decode_row(static_cast<const std::byte*>(rows) + r * from_stride, K, row.data());
          format.encode_row(row.data(), K, made + r * stride);
        }
      });
      rows = made;
    }
    const oar_plugin_status status = table_.pack_weight(format.name(), n, K, to, rows);
    return status == OAR_PLUGIN_OK ? ok_status() : refused("pack_weight", status, format, n, K);
  }
  int64_t filter_panel() const override { return 1; }
  int workers() const override { return host_->workers(); }

  Status plan(const Kernel& kernel, const void* args, KernelPlan* out) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    *out = KernelPlan{};
    if (table_.kernel_scratch == nullptr) return ok_status();
    uint64_t bytes = 0;
    const oar_plugin_status status = table_.kernel_scratch(d_->handle, handle_of(kernel), args, &bytes);
    if (status == OAR_PLUGIN_UNSUPPORTED)
      return Status(StatusCode::kUnimplemented,
                    cat("device ", d_->name, ": ", family_name(kernel.family), ": ",
                        words(table_, d_->handle, status), "; run the model without --device"),
                    "device");
    OAR_RETURN_IF_ERROR(d_->check(status, "kernel_scratch"));
    out->shared_scratch = bytes;
    return ok_status();
  }
  void reserve_worker_scratch(size_t) override {}
  Status launch(const Kernel& kernel, const void* args, const KernelPlan& plan, void* shared,
                const NextKernel&) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    const oar_plugin_status status =
        table_.launch(d_->handle, d_->stream, handle_of(kernel), args,
                      plan.shared_scratch > 0 ? shared : nullptr, plan.shared_scratch);
    return status == OAR_PLUGIN_OK ? ok_status() : d_->check(status, kernel.name);
  }
  std::optional<LaunchCost> cost(const Kernel& kernel, const void* args, int64_t context) const override {
    if (table_.kernel_cost == nullptr || !d_->fault.ok()) return std::nullopt;
    oar_plugin_cost c{};
    c.size = sizeof c;
    c.launches = 1;
    if (table_.kernel_cost(d_->handle, handle_of(kernel), args, context, &c) != OAR_PLUGIN_OK)
      return std::nullopt;
    return LaunchCost{c.bytes, c.matrix_operations, c.operations, c.seconds, c.launches};
  }
  ThreadPool& host_pool() override { return host_->host_pool(); }
  Backend& host() override { return *host_; }

  bool captures() const override { return table_.begin_capture != nullptr; }
  Status begin_capture() override {
    OAR_RETURN_IF_ERROR(d_->fault);
    return d_->check(table_.begin_capture(d_->handle, d_->stream), "begin_capture");
  }
  Result<Capture> end_capture() override {
    OAR_RETURN_IF_ERROR(d_->fault);
    oar_plugin_capture* capture = nullptr;
    OAR_RETURN_IF_ERROR(d_->check(table_.end_capture(d_->handle, d_->stream, &capture), "end_capture"));
    return Capture(std::make_shared<Recorded>(d_, capture));
  }
  Status replay(const Capture& capture) override {
    OAR_RETURN_IF_ERROR(d_->fault);
    const auto* recorded = static_cast<const Recorded*>(capture.get());
    return d_->check(table_.replay(d_->handle, d_->stream, recorded->capture), "replay");
  }

 private:
  using Found = std::pair<KernelKey, std::unique_ptr<PluginKernel>>;

  Status refused(const char* what, oar_plugin_status status, Format format, int64_t n, int64_t K) const {
    return unavailable(cat("device ", d_->name, ": ", what, " of ", n, " x ", K, " ", format.name(),
                           " failed: ", status_name(status)));
  }
  static const oar_plugin_kernel* handle_of(const Kernel& k) {
    return static_cast<const PluginKernel&>(k).handle;
  }

  std::shared_ptr<Device> d_;
  const oar_plugin& table_;
  std::unique_ptr<Backend> host_;
  Staging staging_;
  uint64_t total_ = 0;
  mutable std::vector<Found> kernels_;  // asked for so far; null: there is none
};

}  // namespace

Result<std::unique_ptr<Backend>> make_plugin_backend(const std::string& device, std::unique_ptr<Backend> host,
                                                     const Logger& log) {
  OAR_ASSIGN(const DeviceName wanted, parse_device_name(device));
  auto d = std::make_shared<Device>();
  d->hearing = hear_plugins(log);
  OAR_ASSIGN(d->table, load_plugin(wanted.plugin, log));
  const oar_plugin& t = d->table;
  int32_t count = 0;
  if (const auto status = t.device_count(&count); status != OAR_PLUGIN_OK) {
    return unavailable(cat("plug-in ", t.name, ": device_count failed: ", words(t, nullptr, status)));
  }
  if (wanted.index >= count) {
    return unavailable(count == 0 ? cat("plug-in ", t.name, " finds no device on this machine")
                                  : cat("plug-in ", t.name, " has ", count, " device", count > 1 ? "s" : "",
                                        ", numbered from 0; there is no ", wanted.index));
  }
  oar_plugin_device_info info{};
  info.size = sizeof info;
  if (const auto status = t.device_info(wanted.index, &info); status != OAR_PLUGIN_OK) {
    return unavailable(cat("plug-in ", t.name, ": device_info failed: ", words(t, nullptr, status)));
  }
  info.name[sizeof info.name - 1] = '\0';
  d->name = cat(t.name, ":", wanted.index, info.name[0] != '\0' ? cat(" (", info.name, ")") : "");
  if (const auto status = t.open(wanted.index, &d->handle); status != OAR_PLUGIN_OK) {
    d->handle = nullptr;
    return unavailable(cat("device ", d->name, " cannot be opened: ", words(t, nullptr, status)));
  }
  if (t.device_usage != nullptr) {
    d->watched = answer_for_device(
        d->name, [table = t, index = wanted.index](DeviceUsage* out) { return usage_of(table, index, out); });
  }
  if (t.create_stream != nullptr)
    OAR_RETURN_IF_ERROR(d->check(t.create_stream(d->handle, &d->stream), "create_stream"));
  auto backend = std::make_unique<PluginBackend>(std::move(d), std::move(host));
  backend->set_total(info.memory_bytes);
  OAR_RETURN_IF_ERROR(backend->open());
  return std::unique_ptr<Backend>(std::move(backend));
}

Result<std::shared_ptr<Backend>> make_backend(const std::string& device, std::shared_ptr<ThreadPool> pool,
                                              Isa isa, const Logger& log) {
  auto host = make_cpu_backend(std::move(pool), isa);
  if (device.empty() || device == "cpu") return std::shared_ptr<Backend>(std::move(host));
  OAR_ASSIGN(auto there, make_plugin_backend(device, std::move(host), log));
  return std::shared_ptr<Backend>(std::move(there));
}

}  // namespace oar
