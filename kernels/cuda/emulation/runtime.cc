// The part of the CUDA runtime that the plug-in and the tests call, over the emulator, with the toolkit's own
// declarations. Streams do their work at once and in order; a capture keeps it until it is replayed. But what
// is copied to page-locked memory arrives when the stream is waited for, or an event behind the copy; until
// then that memory is 0xff. An error of a kernel sticks to the device, as on a real one.
// What belongs to another device than the thread's is refused: its streams, and copies and releases of its
// memory.
// While a stream is captured, what CUDA calls unsafe is refused to the threads that its mode names, and the
// capture is void. A replay is refused whose copies or libraries touch memory that was released meanwhile.
#include "kernels/cuda/emulation/runtime.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/machine.h"

namespace {

namespace emulation = oar::cuda::emulation;
using Work = std::function<cudaError_t()>;
using emulation::Touched;
// What a kernel touches is known when it runs: of its node nothing is.
struct Node {
  Work work;
  std::vector<Touched> touched;
};
using Graph = std::vector<Node>;

struct Capture {
  cudaStreamCaptureMode mode;
  bool blocking;  // the stream follows the legacy one
  std::thread::id by = std::this_thread::get_id();
  bool is_void = false;
  Graph graph = {};
};

// A copy to page-locked memory, which comes as late as it may.
struct Landing {
  std::vector<std::byte> bytes;
  void* to;
};
struct Stream {
  int device = 0;
  bool blocking = true;
  std::unique_ptr<Capture> capture;
  std::deque<Landing> landings;
  uint64_t landed = 0;  // so many are over
};
struct Event {
  Stream* stream = nullptr;
  uint64_t behind = 0;  // so many landings of the stream
  bool captured = false;
};
// What OAR_CUDA_EMULATED asks for (runtime.h).
struct Asked {
  int devices = 1;
  uint64_t failing_launch = 0;  // of all that the process launches; 0: none
  std::string kernels;          // the file that names those which are launched
};
Asked g_asked;
constexpr int kMostDevices = 2;
std::recursive_mutex g_mutex;  // all devices are one emulator's, and that does one thing at a time
// Of each device.
std::array<Stream, kMostDevices> g_default_streams = {Stream{.device = 0}, Stream{.device = 1}};
std::array<cudaError_t, kMostDevices> g_sticky = {};
thread_local int t_device = 0;
thread_local cudaError_t t_last = cudaSuccess;
struct Owned {
  int device;
  size_t bytes;
};
std::map<const std::byte*, Owned> g_owned;  // what cudaMalloc gave away
std::map<std::byte*, size_t> g_locked;      // page-locked memory
emulation::RuntimeCounters g_counters;
std::vector<Capture*> g_captures;  // under way

Stream& of(cudaStream_t stream) {
  return stream != nullptr ? *reinterpret_cast<Stream*>(stream)
                           : g_default_streams[static_cast<size_t>(t_device)];
}
cudaError_t& sticky_of(int device) { return g_sticky[static_cast<size_t>(device)]; }

// Device memory that lies elsewhere than on `device`.
bool is_of_another(const void* p, int device) {
  const auto* at = static_cast<const std::byte*>(p);
  auto next = g_owned.upper_bound(at);
  if (next == g_owned.begin()) return false;
  --next;
  return at < next->first + next->second.bytes && next->second.device != device;
}

constexpr std::string_view kKernels = "kernels=";

void read_asked() {
  std::lock_guard lock(g_mutex);
  g_asked = {};
  const char* text = std::getenv("OAR_CUDA_EMULATED");
  std::string rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string word = rest.substr(0, end);
    int number = 0;
    char more = 0;
    const auto is = [&](const char* pattern) {
      return std::sscanf(word.c_str(), pattern, &number, &more) == 1;
    };
    if (is("devices=%d%c") && number >= 0 && number <= kMostDevices) {
      g_asked.devices = number;
    } else if (is("fail_launch=%d%c") && number > 0) {
      g_asked.failing_launch = g_counters.launches + static_cast<uint64_t>(number);
    } else if (word.starts_with(kKernels)) {
      g_asked.kernels = word.substr(kKernels.size());
    } else {
      std::fprintf(stderr, "emulated CUDA device: OAR_CUDA_EMULATED has \"%s\"\n", word.c_str());
      std::abort();
    }
    rest.erase(0, end + 1);
  }
}

// Ends a capture, whatever becomes of it.
std::unique_ptr<Capture> take_capture(Stream& stream) {
  std::erase(g_captures, stream.capture.get());
  return std::move(stream.capture);
}

// What the legacy stream does, streams that follow it would have to wait for.
cudaError_t implied_in_capture() {
  cudaError_t error = cudaSuccess;
  for (Capture* c : g_captures) {
    if (!c->blocking) continue;
    c->is_void = true;
    error = cudaErrorStreamCaptureImplicit;
  }
  return error;
}

cudaError_t submit(cudaStream_t stream, Work work, std::vector<Touched> touched = {}) {
  std::lock_guard lock(g_mutex);
  const int device = of(stream).device;
  if (device != t_device) return t_last = cudaErrorInvalidResourceHandle;
  for (const Touched& t : touched)
    if (is_of_another(t.at, device)) return t_last = cudaErrorInvalidValue;
  if (Capture* capture = of(stream).capture.get(); capture != nullptr) {
    if (capture->is_void) return t_last = cudaErrorStreamCaptureInvalidated;
    std::erase_if(touched, [](const Touched& t) { return !emulation::device_holds(t.at, t.bytes); });
    capture->graph.push_back({std::move(work), std::move(touched)});
    return cudaSuccess;
  }
  if (stream == nullptr) {
    if (const cudaError_t error = implied_in_capture(); error != cudaSuccess) return t_last = error;
  }
  cudaError_t& sticky = sticky_of(device);
  if (sticky == cudaSuccess) sticky = work();
  return t_last = sticky;
}

// What is refused to this thread while it, or any, captures.
template <class Call>
cudaError_t outside_captures(Call&& call) {
  std::lock_guard lock(g_mutex);
  const cudaError_t error = emulation::refused_in_capture() ? cudaErrorStreamCaptureUnsupported : call();
  if (error != cudaSuccess) t_last = error;
  return error;
}

bool is_locked(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  auto next = g_locked.upper_bound(const_cast<std::byte*>(at));
  if (next == g_locked.begin()) return false;
  --next;
  return at < next->first + next->second;
}

// The first `count` landings of the stream are over.
cudaError_t land(Stream& stream, uint64_t count) {
  std::lock_guard lock(g_mutex);
  for (; stream.landed < count && !stream.landings.empty(); ++stream.landed) {
    const Landing& landing = stream.landings.front();
    std::memcpy(landing.to, landing.bytes.data(), landing.bytes.size());
    stream.landings.pop_front();
  }
  return sticky_of(stream.device);
}

cudaError_t sticky() {
  std::lock_guard lock(g_mutex);
  return sticky_of(t_device);
}

cudaError_t run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread, bool early,
                unsigned cluster) {
  if (++g_counters.launches == g_asked.failing_launch) {
    std::fputs("emulated CUDA device: a launch fails, as OAR_CUDA_EMULATED asks\n", stderr);
    return cudaErrorLaunchFailure;
  }
  emulation::run_grid(grid, block, shared_bytes, thread, early, cluster);
  const std::string error = emulation::take_error();
  if (error.empty()) return cudaSuccess;
  std::fprintf(stderr, "emulated CUDA device: %s\n", error.c_str());
  return cudaErrorLaunchFailure;
}

}  // namespace

namespace oar::cuda::emulation {

void tell_kernel(const void* kernel) {
  std::lock_guard lock(g_mutex);
  static std::set<const void*> told;
  if (g_asked.kernels.empty() || !told.insert(kernel).second) return;
  Dl_info info{};
  std::FILE* const file = dladdr(kernel, &info) != 0 ? std::fopen(g_asked.kernels.c_str(), "a") : nullptr;
  if (file == nullptr) {
    std::fprintf(stderr, "emulated CUDA device: cannot write %s\n", g_asked.kernels.c_str());
    std::abort();
  }
  std::fprintf(file, "%s %tx\n", info.dli_fname,
               static_cast<const char*>(kernel) - static_cast<const char*>(info.dli_fbase));
  std::fclose(file);
}

bool refused_in_capture() {
  std::lock_guard lock(g_mutex);
  bool refused = false;
  for (Capture* c : g_captures) {
    if (c->mode == cudaStreamCaptureModeRelaxed ||
        (c->mode == cudaStreamCaptureModeThreadLocal && c->by != std::this_thread::get_id()))
      continue;
    refused = c->is_void = true;
  }
  return refused;
}

int launch(void* stream, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> thread, bool early,
           unsigned cluster) {
  return submit(static_cast<cudaStream_t>(stream),
                [=] { return run(grid, block, shared_bytes, thread, early, cluster); });
}

int launch_over(void* stream, std::vector<Touched> memory, std::function<void()> work) {
  return submit(
      static_cast<cudaStream_t>(stream), [=] { return run(dim3(1), dim3(1), 0, work, false, 1); },
      std::move(memory));
}

}  // namespace oar::cuda::emulation

extern "C" {

void oar_emulated_runtime_counters(emulation::RuntimeCounters* out) {
  std::lock_guard lock(g_mutex);
  *out = g_counters;
}

cudaError_t cudaGetDeviceCount(int* count) {
  read_asked();
  *count = g_asked.devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= g_asked.devices) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated CUDA device");
  properties->totalGlobalMem = emulation::kDeviceBytes;
  properties->major = 9;
  properties->pciBusID = 0x0e + device;  // kFakePciBus
  std::memcpy(properties->uuid.bytes, "emulated device", sizeof properties->uuid.bytes);
  properties->uuid.bytes[sizeof properties->uuid.bytes - 1] = static_cast<char>(device);
  properties->warpSize = emulation::kLanes;
  properties->sharedMemPerBlockOptin = emulation::kMaxSharedBytes;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= g_asked.devices) return t_last = cudaErrorInvalidDevice;
  t_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(t_last, sticky()); }
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    default: return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorLaunchFailure: return "a kernel did what no kernel may do (standard error has the place)";
    case cudaErrorInvalidDevice: return "no such device";
    case cudaErrorInvalidResourceHandle: return "a stream or an event of another device than the thread's";
    case cudaErrorIllegalState: return "a stream that is captured, or is not";
    case cudaErrorStreamCaptureUnsupported: return "a call that no capture allows";
    case cudaErrorStreamCaptureInvalidated: return "a capture that an earlier error made void";
    case cudaErrorStreamCaptureImplicit: return "the legacy stream, which a captured stream would wait for";
    case cudaErrorCapturedEvent: return "an event of a captured stream";
    case cudaErrorStreamCaptureWrongThread: return "a capture that another thread has begun";
    default: return "error of the emulated device";
  }
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return outside_captures([&] {
    *memory = emulation::device_allocate(bytes);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    g_owned[static_cast<std::byte*>(*memory)] = {t_device, bytes};
    return cudaSuccess;
  });
}
cudaError_t cudaFree(void* memory) {
  return outside_captures([&] {
    if (memory == nullptr) return cudaSuccess;
    if (is_of_another(memory, t_device) || !emulation::device_release(memory)) return cudaErrorInvalidValue;
    g_owned.erase(static_cast<std::byte*>(memory));
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return submit(nullptr,
                [=] {
                  std::memset(memory, value, bytes);
                  return cudaSuccess;
                },
                {{memory, bytes}});
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return outside_captures([&] {
    *memory = std::malloc(bytes);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    g_locked[static_cast<std::byte*>(*memory)] = bytes;
    return cudaSuccess;
  });
}
cudaError_t cudaFreeHost(void* memory) {
  return outside_captures([&] {
    g_locked.erase(static_cast<std::byte*>(memory));
    std::free(memory);
    return cudaSuccess;
  });
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  std::lock_guard lock(g_mutex);
  *total_bytes = emulation::kDeviceBytes;
  // Both share what the emulator has; of the other's the thread's device has nothing to tell.
  size_t others = 0;
  for (const auto& [at, its] : g_owned) others += its.device == t_device ? 0 : its.bytes;
  *free_bytes = emulation::kDeviceBytes - (emulation::device_bytes() - others);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_row, const void* from, size_t from_row, size_t bytes,
                              size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind != cudaMemcpyDeviceToDevice || bytes > to_row || bytes > from_row) return cudaErrorInvalidValue;
  const size_t last = rows > 0 ? rows - 1 : 0;
  return submit(stream,
                [=] {
                  for (size_t r = 0; r < rows; ++r) {
                    std::memcpy(static_cast<std::byte*>(to) + r * to_row,
                                static_cast<const std::byte*>(from) + r * from_row, bytes);
                  }
                  return cudaSuccess;
                },
                {{to, last * to_row + bytes}, {from, last * from_row + bytes}});
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return submit(stream,
                [=] {
                  g_counters.copies_to_device += kind == cudaMemcpyHostToDevice;
                  g_counters.copies_to_host += kind == cudaMemcpyDeviceToHost;
                  if (kind == cudaMemcpyDeviceToHost && is_locked(to)) {
                    const auto* const bytes_from = static_cast<const std::byte*>(from);
                    of(stream).landings.push_back({{bytes_from, bytes_from + bytes}, to});
                    std::memset(to, 0xff, bytes);
                  } else {
                    std::memmove(to, from, bytes);
                  }
                  return cudaSuccess;
                },
                {{to, bytes}, {from, bytes}});
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = outside_captures([&] { return cudaMemcpyAsync(to, from, bytes, kind, nullptr); });
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  auto* const made = new Stream{.device = t_device};
  made->blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  take_capture(of(stream));
  delete reinterpret_cast<Stream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  if (Capture* capture = of(stream).capture.get(); capture != nullptr) {
    capture->is_void = true;
    return t_last = cudaErrorStreamCaptureUnsupported;
  }
  if (stream == nullptr) {
    if (const cudaError_t error = implied_in_capture(); error != cudaSuccess) return t_last = error;
  }
  return land(of(stream), UINT64_MAX);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  Stream& s = of(stream);
  if (s.device != t_device) return t_last = cudaErrorInvalidResourceHandle;
  *reinterpret_cast<Event*>(event) = {&s, s.landed + s.landings.size(), s.capture != nullptr};
  return sticky_of(s.device);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Event& e = *reinterpret_cast<Event*>(event);
  if (e.captured) return t_last = cudaErrorCapturedEvent;
  return e.stream != nullptr ? land(*e.stream, e.behind) : sticky();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  std::lock_guard lock(g_mutex);
  if (stream == nullptr) return t_last = cudaErrorStreamCaptureUnsupported;
  Stream& s = of(stream);
  if (s.capture != nullptr) return t_last = cudaErrorIllegalState;
  s.capture = std::make_unique<Capture>(Capture{mode, s.blocking});
  g_captures.push_back(s.capture.get());
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::lock_guard lock(g_mutex);
  *graph = nullptr;
  Stream& s = of(stream);
  if (s.capture == nullptr) return t_last = cudaErrorIllegalState;
  if (s.capture->mode != cudaStreamCaptureModeRelaxed && s.capture->by != std::this_thread::get_id()) {
    s.capture->is_void = true;
    return t_last = cudaErrorStreamCaptureWrongThread;
  }
  const std::unique_ptr<Capture> capture = take_capture(s);
  if (capture->is_void) return t_last = cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new Graph(std::move(capture->graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  std::lock_guard lock(g_mutex);
  ++g_counters.captures;
  *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Graph*>(executable);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  const Graph& graph = *reinterpret_cast<Graph*>(executable);
  for (const Node& node : graph) {
    for (const Touched& t : node.touched)
      if (!emulation::device_holds(t.at, t.bytes)) return t_last = cudaErrorInvalidValue;
  }
  ++g_counters.replays;
  for (const Node& node : graph) {
    if (const cudaError_t error = submit(stream, node.work, node.touched); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
}
