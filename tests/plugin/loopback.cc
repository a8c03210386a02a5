// The loopback device: a plug-in whose device is the processor, made to be as unforgiving as a real one.
//   - Device pointers are addresses of a reserved range without access rights: whoever reads device memory
//     outside of the plug-in faults. The bytes lie elsewhere, one heap allocation each, filled with NaN.
//   - Each stream is a thread. Asynchronous copies read or write the host's bytes late, so that a host that
//   does
//     not wait sees or sends the wrong ones.
//   - Pointers that are not device memory, memory given back while work is on the way, and calls that overlap
//   are
//     device errors.
//
// The environment variable OAR_LOOPBACK, read when the plug-in is loaded, asks for a poorer or a failing
// device:
//   missing=a+b      kernel families (or family:format) it does not have
//   fail_launch=N    the N-th launch returns a device error
//   fail_later=N     the N-th kernel to run fails, replayed ones counted, which the next call tells
//   plain=1          no optional functions: no streams, events, asynchronous copies, page-locked memory,
//   captures memory=BYTES     of the device devices=N        how many there are (1)
//   watts=N          it says what it draws and how fast it runs, invented around N
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/tensor/plugin.h"
#include "tests/plugin/loopback.h"
#include "tests/plugin/loopback_kernels.h"

namespace loopback {
namespace {

struct Config {
  std::string missing;
  int64_t fail_launch = 0, fail_later = 0, memory = int64_t{4} << 30, devices = 1, watts = 0;
  bool plain = false;
};

Config read_config() {
  Config c;
  const char* text = std::getenv("OAR_LOOPBACK");
  std::string rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size()), equals = rest.find('=');
    if (equals > end) break;
    const std::string key = rest.substr(0, equals), value = rest.substr(equals + 1, end - equals - 1);
    if (key == "missing") c.missing = "+" + value + "+";
    const auto number = [&] { return static_cast<int64_t>(std::strtoll(value.c_str(), nullptr, 10)); };
    if (key == "fail_launch") c.fail_launch = number();
    if (key == "fail_later") c.fail_later = number();
    if (key == "memory") c.memory = number();
    if (key == "devices") c.devices = number();
    if (key == "watts") c.watts = number();
    if (key == "plain") c.plain = number() != 0;
    rest = end < rest.size() ? rest.substr(end + 1) : "";
  }
  return c;
}

Config g_config;  // of devices opened from now on
std::atomic<int64_t> g_counters[kNumCounters];
std::atomic<uint64_t> g_used{0};  // bytes of all devices

void count(Counter c, int64_t n = 1) { g_counters[c] += n; }

// Device memory: addresses that fault, and the bytes behind them.
class Memory {
 public:
  Memory() {
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  ~Memory() {
    if (base_ != MAP_FAILED) munmap(base_, kRange);
  }
  bool ok() const { return base_ != MAP_FAILED; }

  void* allocate(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > kRange - next_ || next_ + bytes > kRange - kGuard) return nullptr;
    std::unique_ptr<std::byte, void (*)(void*)> memory(
        static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)), std::free);
    if (!memory) return nullptr;
    if (bytes <= (uint64_t{64} << 20)) std::memset(memory.get(), 0xff, bytes);  // NaN
    std::byte* device = base_ + next_;
    next_ = (next_ + bytes + kGuard + 255) / 256 * 256;
    used_ += bytes;
    blocks_.emplace(device, Block{bytes, std::move(memory)});
    return device;
  }
  bool release(void* device) {
    std::lock_guard lock(mutex_);
    const auto it = blocks_.find(static_cast<std::byte*>(device));
    if (it == blocks_.end()) return false;
    used_ -= it->second.bytes;
    blocks_.erase(it);
    return true;
  }
  // Null when [device, device + bytes) is not inside an allocation.
  void* translate(const void* device, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    const auto* p = static_cast<const std::byte*>(device);
    auto it = blocks_.upper_bound(const_cast<std::byte*>(p));
    if (it == blocks_.begin()) return nullptr;
    --it;
    const auto offset = static_cast<uint64_t>(p - it->first);
    if (offset > it->second.bytes || bytes > it->second.bytes - offset) return nullptr;
    return it->second.memory.get() + offset;
  }
  uint64_t used() {
    std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  static constexpr uint64_t kRange = uint64_t{1} << 38, kGuard = 4096;
  struct Block {
    uint64_t bytes;
    std::unique_ptr<std::byte, void (*)(void*)> memory;
  };
  std::mutex mutex_;
  std::byte* base_;
  uint64_t next_ = 0, used_ = 0;
  std::map<std::byte*, Block> blocks_;
};

using Task = std::function<std::string()>;  // empty, or what went wrong

}  // namespace
}  // namespace loopback

using namespace loopback;

struct oar_plugin_capture {
  std::vector<Task> tasks;
};

struct oar_plugin_stream {
  oar_plugin_stream() : thread([this] { work(); }) {}
  ~oar_plugin_stream() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }
  // The number of the task, for wait().
  uint64_t put(Task task) {
    std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    changed.notify_all();
    return ++last;
  }
  // Until task number `n` is done; then what went wrong so far.
  std::string wait(uint64_t n) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= n; });
    return error;
  }
  std::string wait() {
    uint64_t n = 0;
    {
      std::lock_guard lock(mutex);
      n = last;
    }
    return wait(n);
  }
  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || !tasks.empty(); });
      if (tasks.empty()) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      const bool skip = !error.empty();  // a device that failed does nothing more
      lock.unlock();
      std::string wrong = skip ? "" : task();
      task = nullptr;
      lock.lock();
      if (error.empty()) error = std::move(wrong);
      ++done;
      changed.notify_all();
    }
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  uint64_t last = 0, done = 0;
  bool stop = false;
  std::string error;
  std::unique_ptr<oar_plugin_capture> recording;  // by the caller's thread alone
  std::thread thread;                             // last
};

struct oar_plugin_event {
  oar_plugin_stream* stream = nullptr;
  uint64_t task = 0;
};

struct oar_plugin_kernel {
  int32_t family;
  std::string format;
};

struct oar_plugin_device {
  Config config = g_config;
  Memory memory;
  std::map<std::pair<int32_t, std::string>, oar_plugin_kernel> kernels;
  std::unique_ptr<oar_plugin_stream> only;  // where streams are not given out
  std::string error;
  int64_t launches = 0;
  std::atomic<int64_t> kernels_run{0};
  std::atomic<bool> busy{false};

  oar_plugin_stream& stream(oar_plugin_stream* s) { return s != nullptr ? *s : *only; }
  oar_plugin_status fail(oar_plugin_status status, std::string why) {
    error = std::move(why);
    return status;
  }
};

namespace loopback {
namespace {

thread_local std::string t_error;  // of calls without a device

// Calls for a device must not overlap.
class Busy {
 public:
  explicit Busy(oar_plugin_device* d) : d_(d) {
    if (d_->busy.exchange(true)) std::abort();
  }
  ~Busy() { d_->busy = false; }

 private:
  oar_plugin_device* d_;
};

// A task reports nothing at once; what it does wrong later is told by the next call that looks.
oar_plugin_status settle(oar_plugin_device* d, const std::string& wrong) {
  return wrong.empty() ? OAR_PLUGIN_OK : d->fail(OAR_PLUGIN_DEVICE_ERROR, wrong);
}

void dawdle() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

oar_plugin_status device_count(int32_t* n) {
  *n = static_cast<int32_t>(g_config.devices);
  return OAR_PLUGIN_OK;
}

oar_plugin_status device_info(int32_t index, oar_plugin_device_info* info) {
  if (index < 0 || index >= g_config.devices) {
    t_error = "no such device";
    return OAR_PLUGIN_INVALID;
  }
  std::strncpy(info->name, "processor behind a fence", sizeof info->name - 1);
  info->memory_bytes = static_cast<uint64_t>(g_config.memory);
  return OAR_PLUGIN_OK;
}

oar_plugin_status open(int32_t, oar_plugin_device** device) {
  auto d = std::make_unique<oar_plugin_device>();
  if (!d->memory.ok()) {
    t_error = "no address range for device memory";
    return OAR_PLUGIN_DEVICE_ERROR;
  }
  d->only = std::make_unique<oar_plugin_stream>();
  count(kOpenDevices);
  *device = d.release();
  return OAR_PLUGIN_OK;
}

void close(oar_plugin_device* d) {
  if (d->memory.used() != 0) std::abort();  // memory was not given back
  count(kOpenDevices, -1);
  delete d;
}

oar_plugin_status allocate(oar_plugin_device* d, uint64_t bytes, void** memory) {
  Busy busy(d);
  if (bytes + d->memory.used() > static_cast<uint64_t>(d->config.memory))
    return d->fail(OAR_PLUGIN_OUT_OF_MEMORY, "the device is full");
  *memory = d->memory.allocate(bytes);
  if (*memory == nullptr) return d->fail(OAR_PLUGIN_OUT_OF_MEMORY, "the host is full");
  count(kAllocations);
  g_used += bytes;
  return OAR_PLUGIN_OK;
}

void release(oar_plugin_device* d, void* memory) {
  Busy busy(d);
  const uint64_t before = d->memory.used();
  if (!d->memory.release(memory)) std::abort();
  g_used -= before - d->memory.used();
  count(kAllocations, -1);
}

// Between host and device: `late` leaves the host's bytes alone for a while, as a real copy does.
Task transfer(oar_plugin_device* d, void* to, const void* from, uint64_t bytes, bool to_device, bool late) {
  return [=]() -> std::string {
    if (late) dawdle();
    void* inside = d->memory.translate(to_device ? to : from, bytes);
    if (inside == nullptr) return "a copy's device pointer does not point to device memory";
    if (to_device) std::memcpy(inside, from, bytes);
    else std::memcpy(to, inside, bytes);
    return "";
  };
}

oar_plugin_status blocking(oar_plugin_device* d, oar_plugin_stream* s, Task task) {
  oar_plugin_stream& stream = d->stream(s);
  if (stream.recording) return d->fail(OAR_PLUGIN_INVALID, "a blocking copy inside a capture");
  return settle(d, stream.wait(stream.put(std::move(task))));
}

oar_plugin_status copy_to_device(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                 uint64_t bytes) {
  Busy busy(d);
  return blocking(d, s, transfer(d, to, from, bytes, true, false));
}
oar_plugin_status copy_to_host(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                               uint64_t bytes) {
  Busy busy(d);
  return blocking(d, s, transfer(d, to, from, bytes, false, false));
}
oar_plugin_status copy_to_device_async(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                       uint64_t bytes) {
  Busy busy(d);
  if (d->stream(s).recording) return d->fail(OAR_PLUGIN_INVALID, "a copy from the host inside a capture");
  d->stream(s).put(transfer(d, to, from, bytes, true, true));
  count(kAsyncCopies);
  return OAR_PLUGIN_OK;
}
oar_plugin_status copy_to_host_async(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                     uint64_t bytes) {
  Busy busy(d);
  if (d->stream(s).recording) return d->fail(OAR_PLUGIN_INVALID, "a copy to the host inside a capture");
  d->stream(s).put(transfer(d, to, from, bytes, false, true));
  count(kAsyncCopies);
  return OAR_PLUGIN_OK;
}

void put(oar_plugin_stream& stream, Task task) {
  if (stream.recording) stream.recording->tasks.push_back(std::move(task));
  else stream.put(std::move(task));
}

oar_plugin_status copy_on_device(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                 uint64_t bytes) {
  Busy busy(d);
  put(d->stream(s), [=]() -> std::string {
    void* a = d->memory.translate(to, bytes);
    const void* b = d->memory.translate(from, bytes);
    if (a == nullptr || b == nullptr) return "a copy on the device outside of device memory";
    std::memcpy(a, b, bytes);
    return "";
  });
  return OAR_PLUGIN_OK;
}

oar_plugin_status synchronize(oar_plugin_device* d, oar_plugin_stream* s) {
  Busy busy(d);
  return settle(d, d->stream(s).wait());
}

oar_plugin_status find_kernel(oar_plugin_device* d, const oar_plugin_query* query,
                              const oar_plugin_kernel** kernel) {
  Busy busy(d);
  const char* family = Launch::family_name(query->family);
  const std::string format = query->format;
  const bool integers = query->family == OAR_FAMILY_QUANTIZED_CONV;
  const bool cache =
      query->family >= OAR_FAMILY_KV_APPEND && query->family <= OAR_FAMILY_QUANT_PAGED_ATTENTION;
  const bool heads = query->family == OAR_FAMILY_ROPE && !d->config.plain;
  if (std::strcmp(query->input, integers ? "u8" : "f32") != 0 ||
      (query->layout != OAR_LAYOUT_FAMILY && !(cache && query->layout == OAR_LAYOUT_KEYS_HOLD_VALUES) &&
       !(heads && query->layout == OAR_LAYOUT_HEADS_APART)) ||
      query->rows != OAR_ROWS_ANY || query->sum != (integers ? OAR_SUM_I32 : OAR_SUM_F32))
    return OAR_PLUGIN_UNSUPPORTED;
  if (family == nullptr || Launch::find(query->family, format) == nullptr) return OAR_PLUGIN_UNSUPPORTED;
  const std::string name = family;
  if (d->config.missing.find("+" + name + "+") != std::string::npos ||
      d->config.missing.find("+" + name + ":" + format + "+") != std::string::npos)
    return OAR_PLUGIN_UNSUPPORTED;
  *kernel = &d->kernels.try_emplace({query->family, format}, oar_plugin_kernel{query->family, format})
                 .first->second;
  return OAR_PLUGIN_OK;
}

bool packs_weights(const oar_plugin_device* d) { return !d->config.plain; }

oar_plugin_status packed_bytes(const char* format, int64_t n, int64_t K, uint64_t* bytes) {
  *bytes = packed_weight_bytes(format, n, K);
  return OAR_PLUGIN_OK;
}

oar_plugin_status pack_weight(const char* format, int64_t n, int64_t K, void* to, const void* rows) {
  turn_weight(format, n, K, to, rows);
  return OAR_PLUGIN_OK;
}

// More than the kernel needs, so that every launch has scratch to be lost in.
constexpr uint64_t kExtraScratch = 64;

oar_plugin_status kernel_scratch(oar_plugin_device* d, const oar_plugin_kernel* k, const void* args,
                                 uint64_t* bytes) {
  Busy busy(d);
  *bytes = Launch(k->family, k->format, args, packs_weights(d)).shared_scratch() + kExtraScratch;
  return OAR_PLUGIN_OK;
}

oar_plugin_status launch(oar_plugin_device* d, oar_plugin_stream* s, const oar_plugin_kernel* k,
                         const void* args, void* scratch, uint64_t scratch_bytes) {
  Busy busy(d);
  const int64_t number = ++d->launches;
  count(kLaunches);
  if (number == d->config.fail_launch) return d->fail(OAR_PLUGIN_DEVICE_ERROR, "fail_launch was asked for");
  put(d->stream(s),
      [=,
       call = std::make_shared<const Launch>(k->family, k->format, args, packs_weights(d))]() -> std::string {
        if (++d->kernels_run == d->config.fail_later) return "fail_later was asked for";
        std::unique_ptr<void, void (*)(void*)> own(nullptr, std::free);
        void* shared = nullptr;
        if (scratch_bytes > 0) {
          shared = d->memory.translate(scratch, scratch_bytes);
          if (shared == nullptr) return "the scratch is no device memory";
          if (reinterpret_cast<uintptr_t>(scratch) % 256 != 0) return "the scratch is not aligned";
          std::memset(shared, 0xff, scratch_bytes);
        } else if (const uint64_t bytes = call->shared_scratch(); bytes > 0) {
          own.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
          shared = own.get();
        }
        return call->run([d](const void* p) { return d->memory.translate(p, 1); }, shared);
      });
  return OAR_PLUGIN_OK;
}

const char* error_message(oar_plugin_device* d) { return d != nullptr ? d->error.c_str() : t_error.c_str(); }

oar_plugin_status memory_stats(oar_plugin_device* d, oar_plugin_memory* memory) {
  Busy busy(d);
  memory->total_bytes = static_cast<uint64_t>(d->config.memory);
  memory->free_bytes = memory->total_bytes - d->memory.used();
  return OAR_PLUGIN_OK;
}

// Nothing of what it draws is measured: it says what it was told.
oar_plugin_status device_usage(int32_t index, oar_plugin_usage* usage) {
  if (index < 0 || index >= g_config.devices) return OAR_PLUGIN_INVALID;
  usage->memory_total_bytes = static_cast<double>(g_config.memory);
  usage->memory_used_bytes = static_cast<double>(g_used);
  if (g_config.watts == 0) return OAR_PLUGIN_OK;
  std::strncpy(usage->uuid, "LOOPBACK-0", sizeof usage->uuid - 1);
  usage->power_watts = static_cast<double>(g_config.watts);
  usage->power_limit_watts = 2 * usage->power_watts;
  usage->utilization = 0.5;
  usage->energy_joules = 1000 * usage->power_watts;
  usage->clock_hertz = 2e9;
  usage->memory_clock_hertz = 1e9;
  usage->temperature_celsius = 40;
  return OAR_PLUGIN_OK;
}

oar_plugin_status host_allocate(oar_plugin_device*, uint64_t bytes, void** memory) {
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (*memory == nullptr) return OAR_PLUGIN_OUT_OF_MEMORY;
  count(kHostAllocations);
  return OAR_PLUGIN_OK;
}
void host_release(oar_plugin_device*, void* memory) {
  std::free(memory);
  count(kHostAllocations, -1);
}

oar_plugin_status create_stream(oar_plugin_device* d, oar_plugin_stream** stream) {
  Busy busy(d);
  *stream = new oar_plugin_stream;
  return OAR_PLUGIN_OK;
}
void destroy_stream(oar_plugin_device* d, oar_plugin_stream* stream) {
  Busy busy(d);
  delete stream;
}

oar_plugin_status create_event(oar_plugin_device*, oar_plugin_event** event) {
  *event = new oar_plugin_event;
  return OAR_PLUGIN_OK;
}
void destroy_event(oar_plugin_device*, oar_plugin_event* event) { delete event; }
oar_plugin_status record_event(oar_plugin_device* d, oar_plugin_stream* s, oar_plugin_event* event) {
  Busy busy(d);
  event->stream = &d->stream(s);
  event->task = event->stream->put([] { return std::string(); });
  count(kEvents);
  return OAR_PLUGIN_OK;
}
oar_plugin_status synchronize_event(oar_plugin_device* d, oar_plugin_event* event) {
  Busy busy(d);
  return event->stream == nullptr ? OAR_PLUGIN_OK : settle(d, event->stream->wait(event->task));
}

oar_plugin_status begin_capture(oar_plugin_device* d, oar_plugin_stream* s) {
  Busy busy(d);
  if (d->stream(s).recording) return d->fail(OAR_PLUGIN_INVALID, "already capturing");
  d->stream(s).recording = std::make_unique<oar_plugin_capture>();
  return OAR_PLUGIN_OK;
}
oar_plugin_status end_capture(oar_plugin_device* d, oar_plugin_stream* s, oar_plugin_capture** capture) {
  Busy busy(d);
  if (!d->stream(s).recording) return d->fail(OAR_PLUGIN_INVALID, "not capturing");
  *capture = d->stream(s).recording.release();
  count(kCaptures);
  return OAR_PLUGIN_OK;
}
oar_plugin_status replay(oar_plugin_device* d, oar_plugin_stream* s, oar_plugin_capture* capture) {
  Busy busy(d);
  for (const Task& task : capture->tasks) d->stream(s).put(task);
  count(kReplays);
  return OAR_PLUGIN_OK;
}
void destroy_capture(oar_plugin_device*, oar_plugin_capture* capture) { delete capture; }

oar_plugin make_table(bool plain) {
  oar_plugin t = {};
  t.size = sizeof t;
  t.major = OAR_PLUGIN_MAJOR;
  t.minor = OAR_PLUGIN_MINOR;
  t.name = "loopback";
  t.device_count = device_count;
  t.device_info = device_info;
  t.open = open;
  t.close = close;
  t.allocate = allocate;
  t.release = release;
  t.copy_to_device = copy_to_device;
  t.copy_to_host = copy_to_host;
  t.copy_on_device = copy_on_device;
  t.synchronize = synchronize;
  t.find_kernel = find_kernel;
  t.launch = launch;
  if (plain) return t;
  t.packed_bytes = packed_bytes;
  t.pack_weight = pack_weight;
  t.error_message = error_message;
  t.memory_stats = memory_stats;
  t.host_allocate = host_allocate;
  t.host_release = host_release;
  t.copy_to_device_async = copy_to_device_async;
  t.copy_to_host_async = copy_to_host_async;
  t.create_stream = create_stream;
  t.destroy_stream = destroy_stream;
  t.create_event = create_event;
  t.destroy_event = destroy_event;
  t.record_event = record_event;
  t.synchronize_event = synchronize_event;
  t.kernel_scratch = kernel_scratch;
  t.begin_capture = begin_capture;
  t.end_capture = end_capture;
  t.replay = replay;
  t.destroy_capture = destroy_capture;
  t.device_usage = device_usage;
  return t;
}

const oar_plugin kFull = make_table(false);
const oar_plugin kPlain = make_table(true);

}  // namespace
}  // namespace loopback

extern "C" {

OAR_PLUGIN_EXPORT const oar_plugin* oar_plugin_entry(const oar_plugin_host* host) {
  g_config = read_config();
  if (host->log != nullptr) host->log(0, "loopback plug-in loaded");
  return g_config.plain ? &kPlain : &kFull;
}

// For tests: what has happened so far, of all devices.
OAR_PLUGIN_EXPORT int64_t oar_loopback_counter(int which) { return g_counters[which]; }
}
