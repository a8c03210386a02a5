// liboar_cuda.so: NVIDIA devices as a plug-in, an ordinary user of plugin.h. Devices, memory, streams,
// events, captures (CUDA graphs) and the kernels of kernels/cuda (kernels.h lists them); what has none runs
// on the processor.
//
// It needs a driver at run time only (cudart is linked statically); without one it finds no device. The same
// source over an emulated device (kernels/cuda/emulation) is the plug-in cuda_emulated.
//
// OAR_CUDA_LIBRARIES in the environment, looked at when a device is opened, names NVIDIA's libraries that
// take part, with commas between: "cublaslt" has products of prompts with weights of bf16 and e4m3_g128
// (matmul_library.h),
// "cudnn" has convolutions and pools of ordinary models (conv_library.h). Where one is missing our own
// kernels do its part, with a warning; "none", or nothing, has them do all. "wgmma" in the place of
// "cublaslt" has our own products of warp groups do that part (matmul_wgmma.h, matmul_wgmma_codes.h), on
// devices that have them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "engine/tensor/plugin.h"
#include "kernels/cuda/conv_library.h"
#include "kernels/cuda/cost.h"
#include "kernels/cuda/counters.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries/nvml.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_library.h"
#include "kernels/cuda/matmul_wgmma.h"
#include "kernels/cuda/matmul_wgmma_codes.h"
#ifdef OAR_CUDA_FAKES
#include "kernels/cuda/emulation/libraries.h"
#endif

struct oar_plugin_device {
  int index;
  std::string error;
  std::unique_ptr<oar::cuda::LibraryProducts> products;  // null: our own kernels do all
  std::unique_ptr<oar::cuda::LibraryImages> images;      // the same
  oar::cuda::WarpGroupProducts groups;
  bool by_groups;  // they do what `products` would
  oar::cuda::HeldLaunches held;
  oar::cuda::HeldLaunches foreseen;  // of calls whose cost is asked for, in their order

  bool has_prompts() const { return products != nullptr || by_groups; }
};

// The table's handles are CUDA's own.
struct oar_plugin_stream;   // cudaStream_t
struct oar_plugin_event;    // cudaEvent_t
struct oar_plugin_kernel;   // oar::cuda::DeviceKernel
struct oar_plugin_capture;  // cudaGraphExec_t

namespace {

thread_local std::string t_error;  // of calls without a device
const oar_plugin_host* g_host = nullptr;

// Their place in a query's answer: what libraries do with these.
constexpr oar::cuda::DeviceKernel kByLibrary[] = {
    {oar::KernelFamily::kMatmul, "bf16", nullptr},
    {oar::KernelFamily::kGatedMatmul, "bf16", nullptr},
    {oar::KernelFamily::kMatmul, "e4m3_channel", nullptr},
    {oar::KernelFamily::kGatedMatmul, "e4m3_channel", nullptr},
    {oar::KernelFamily::kMatmul, "e4m3_g128", nullptr},
    {oar::KernelFamily::kGatedMatmul, "e4m3_g128", nullptr},
    {oar::KernelFamily::kConv, "f32", nullptr},
    {oar::KernelFamily::kDepthwise, "f32", nullptr},
    {oar::KernelFamily::kPool, "f32", nullptr},
};

std::string words(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

oar_plugin_status tell(oar_plugin_device* d, cudaError_t error) {
  if (error == cudaSuccess) return OAR_PLUGIN_OK;
  d->error = words(error);
  return error == cudaErrorMemoryAllocation ? OAR_PLUGIN_OUT_OF_MEMORY : OAR_PLUGIN_DEVICE_ERROR;
}

// The current device belongs to the thread, and calls come from any.
cudaError_t use(const oar_plugin_device* d) { return cudaSetDevice(d->index); }

// For what comes behind all launches so far.
template <class Call>
oar_plugin_status in_order(oar_plugin_device* d, Call&& call) {
  cudaError_t error = use(d);
  if (error == cudaSuccess) error = static_cast<cudaError_t>(d->held.release().code);
  if (error == cudaSuccess) error = call();
  return tell(d, error);
}

template <class Call>
oar_plugin_status on(oar_plugin_device* d, Call&& call) {
  cudaError_t error = use(d);
  if (error == cudaSuccess) error = call();
  return tell(d, error);
}

cudaStream_t handle(oar_plugin_stream* s) { return reinterpret_cast<cudaStream_t>(s); }
cudaEvent_t handle(oar_plugin_event* e) { return reinterpret_cast<cudaEvent_t>(e); }
const oar::cuda::DeviceKernel& handle(const oar_plugin_kernel* k) {
  return *reinterpret_cast<const oar::cuda::DeviceKernel*>(k);
}
cudaGraphExec_t handle(oar_plugin_capture* c) { return reinterpret_cast<cudaGraphExec_t>(c); }

oar_plugin_status device_count(int32_t* count) {
  int n = 0;
  // No driver, an old one or no device: nothing that could be opened.
  *count = cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
  return OAR_PLUGIN_OK;
}

oar_plugin_status device_info(int32_t index, oar_plugin_device_info* info) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    t_error = words(error);
    return OAR_PLUGIN_DEVICE_ERROR;
  }
  std::snprintf(info->name, sizeof info->name, "%.*s", static_cast<int>(sizeof info->name) - 1,
                properties.name);
  info->memory_bytes = properties.totalGlobalMem;
  return OAR_PLUGIN_OK;
}

void log(int level, const std::string& text) {
  if (g_host != nullptr && g_host->log != nullptr) g_host->log(level, text.c_str());
}

std::unique_ptr<oar::cuda::LibraryProducts> open_products(std::string* why) {
#ifdef OAR_CUDA_FAKES
  return oar::cuda::LibraryProducts::make(oar::cuda::emulation::fake_cublas_lt(), why);
#else
  oar::cuda::CublasLtApi api;
  return load_cublas_lt(&api, why) ? oar::cuda::LibraryProducts::make(api, why) : nullptr;
#endif
}
std::unique_ptr<oar::cuda::LibraryImages> open_images(std::string* why) {
#ifdef OAR_CUDA_FAKES
  return oar::cuda::LibraryImages::make(oar::cuda::emulation::fake_cudnn(), why);
#else
  oar::cuda::CudnnApi api;
  return load_cudnn(&api, why) ? oar::cuda::LibraryImages::make(api, why) : nullptr;
#endif
}

// False: what the environment asks for is nothing that there is; t_error says so.
bool open_libraries(oar_plugin_device* d) {
  const char* value = std::getenv("OAR_CUDA_LIBRARIES");
  const std::string wanted = value != nullptr ? value : "";
  if (wanted.empty() || wanted == "none") return true;
  const auto opened = [&](const auto& library, const std::string& name, const char* what,
                          const std::string& why) {
    if (library != nullptr) log(1, name + " does " + what);
    else log(2, "OAR_CUDA_LIBRARIES: " + name + ": " + why + "; our own kernels do " + what);
  };
  std::string why;
  for (size_t at = 0; at <= wanted.size();) {
    const size_t end = std::min(wanted.find(',', at), wanted.size());
    const std::string name = wanted.substr(at, end - at);
    at = end + 1;
    if ((name == "cublaslt" || name == "wgmma") && d->has_prompts()) {
      t_error = "OAR_CUDA_LIBRARIES has two names for products of prompts: \"" + wanted + "\"";
      return false;
    }
    if (name == "wgmma") {
      cudaDeviceProp properties;
      d->by_groups = cudaGetDeviceProperties(&properties, d->index) == cudaSuccess && properties.major == 9;
      if (d->by_groups) log(1, "products of warp groups do products of prompts");
      else log(2, "OAR_CUDA_LIBRARIES: wgmma: the device has none; our other kernels do products of prompts");
    } else if (name == "cublaslt") {
      d->products = open_products(&why);
      opened(d->products, name, "products of prompts", why);
    } else if (name == "cudnn") {
      d->images = open_images(&why);
      opened(d->images, name, "convolutions and pools", why);
    } else {
      t_error =
          "OAR_CUDA_LIBRARIES has \"" + name + "\"; it may have cublaslt or wgmma, and cudnn, or be none";
      return false;
    }
  }
  return true;
}

oar_plugin_status open_device(int32_t index, oar_plugin_device** device) {
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaFree(nullptr);  // makes the context
  if (error != cudaSuccess) {
    t_error = words(error);
    return OAR_PLUGIN_DEVICE_ERROR;
  }
  std::unique_ptr<oar_plugin_device> opened(
      new oar_plugin_device{index, {}, nullptr, nullptr, {}, false, {}, {}});
  if (!open_libraries(opened.get())) return OAR_PLUGIN_INVALID;
  if (opened->has_prompts()) opened->held.hold_rows();
  *device = opened.release();
  return OAR_PLUGIN_OK;
}

void close_device(oar_plugin_device* d) {
  (void)use(d);  // a library's handle is of the current device
  delete d;
}

oar_plugin_status allocate(oar_plugin_device* d, uint64_t bytes, void** memory) {
  return on(d, [&] { return cudaMalloc(memory, bytes); });
}

void release(oar_plugin_device* d, void* memory) {
  if (use(d) == cudaSuccess) (void)cudaFree(memory);
}

oar_plugin_status copy_async(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                             uint64_t bytes, cudaMemcpyKind kind, bool wait) {
  return in_order(d, [&] {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, handle(s));
    return error == cudaSuccess && wait ? cudaStreamSynchronize(handle(s)) : error;
  });
}

oar_plugin_status copy_to_device(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                 uint64_t bytes) {
  return copy_async(d, s, to, from, bytes, cudaMemcpyHostToDevice, true);
}
oar_plugin_status copy_to_host(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                               uint64_t bytes) {
  return copy_async(d, s, to, from, bytes, cudaMemcpyDeviceToHost, true);
}
oar_plugin_status copy_on_device(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                 uint64_t bytes) {
  return copy_async(d, s, to, from, bytes, cudaMemcpyDeviceToDevice, false);
}
oar_plugin_status copy_to_device_async(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                       uint64_t bytes) {
  return copy_async(d, s, to, from, bytes, cudaMemcpyHostToDevice, false);
}
oar_plugin_status copy_to_host_async(oar_plugin_device* d, oar_plugin_stream* s, void* to, const void* from,
                                     uint64_t bytes) {
  return copy_async(d, s, to, from, bytes, cudaMemcpyDeviceToHost, false);
}

oar_plugin_status synchronize(oar_plugin_device* d, oar_plugin_stream* s) {
  return in_order(d, [&] { return cudaStreamSynchronize(handle(s)); });
}

oar_plugin_status find_kernel(oar_plugin_device* d, const oar_plugin_query* query,
                              const oar_plugin_kernel** kernel) {
  const bool latent = query->layout == OAR_LAYOUT_KEYS_HOLD_VALUES;
  // Its heads may lie apart whoever asks.
  const bool heads = query->family == OAR_FAMILY_ROPE && query->layout == OAR_LAYOUT_HEADS_APART;
  const bool plain = std::strcmp(query->input, "f32") == 0 && query->sum == OAR_SUM_F32 &&
                     (latent || heads || query->layout == OAR_LAYOUT_FAMILY);
  for (const oar::cuda::DeviceKernel& k : kByLibrary) {
    const bool codes = oar::cuda::WarpGroupCodes::has(k.format), product = codes || k.format == "bf16";
    const int32_t rows = product ? OAR_ROWS_PROMPT : OAR_ROWS_ANY;
    if (!plain || latent || query->rows != rows || query->format != k.format ||
        query->family != static_cast<int32_t>(k.family) ||
        (codes     ? !d->by_groups && !(d->products != nullptr && oar::cuda::LibraryCodes::has(k.format))
         : product ? !d->has_prompts()
                   : d->images == nullptr))
      continue;
    *kernel = reinterpret_cast<const oar_plugin_kernel*>(&k);
    return OAR_PLUGIN_OK;
  }
  const bool bytes = query->family == OAR_FAMILY_QUANTIZED_CONV && std::strcmp(query->input, "u8") == 0 &&
                     query->sum == OAR_SUM_I32 && query->layout == OAR_LAYOUT_FAMILY;
  const bool usual =
      (query->family == OAR_FAMILY_QUANTIZED_CONV ? bytes : plain) && query->rows == OAR_ROWS_ANY;
  if (!usual || query->family < 0 || query->family > static_cast<int32_t>(oar::kLastFamily)) {
    return OAR_PLUGIN_UNSUPPORTED;
  }
  const auto word = [](const char* text) { return text != nullptr ? text : ""; };
  const auto* found =
      oar::cuda::find_device_kernel(static_cast<oar::KernelFamily>(query->family), query->format,
                                    word(query->keys), word(query->values), latent);
  *kernel = reinterpret_cast<const oar_plugin_kernel*>(found);
  return found != nullptr ? OAR_PLUGIN_OK : OAR_PLUGIN_UNSUPPORTED;
}

oar_plugin_status packed_bytes(const char* format, int64_t n, int64_t K, uint64_t* bytes) {
  *bytes = oar::cuda::packed_bytes(format, n, K);
  return OAR_PLUGIN_OK;
}
oar_plugin_status pack_weight(const char* format, int64_t n, int64_t K, void* to, const void* rows) {
  oar::cuda::pack_weight(format, n, K, to, rows);
  return OAR_PLUGIN_OK;
}

bool is_of_library(const oar::cuda::DeviceKernel& k) {
  return std::any_of(std::begin(kByLibrary), std::end(kByLibrary),
                     [&](const oar::cuda::DeviceKernel& its) { return &its == &k; });
}
// Rows of a product, or -1.
int64_t rows_of_product(const oar::cuda::DeviceKernel& k, const void* args) {
  if (k.family == oar::KernelFamily::kMatmul) return static_cast<const oar::MatmulArgs*>(args)->T;
  if (k.family == oar::KernelFamily::kGatedMatmul)
    return static_cast<const oar::GatedMatmulArgs*>(args)->matmul.T;
  return -1;
}
// Calls `call` with the library and the arguments of what it does.
template <class Call>
auto by_library(oar_plugin_device* d, const oar::cuda::DeviceKernel& k, const void* args, const Call& call) {
  const auto product = [&](const auto& a) {
    if (k.format != "bf16" && d->products != nullptr) {
      oar::cuda::LibraryCodes codes(*d->products);
      return call(codes, a);
    }
    if (k.format != "bf16") {
      oar::cuda::WarpGroupCodes codes(k.format);
      return call(codes, a);
    }
    return d->products != nullptr ? call(*d->products, a) : call(d->groups, a);
  };
  switch (k.family) {
    case oar::KernelFamily::kMatmul: return product(*static_cast<const oar::MatmulArgs*>(args));
    case oar::KernelFamily::kGatedMatmul: return product(*static_cast<const oar::GatedMatmulArgs*>(args));
    case oar::KernelFamily::kConv: return call(*d->images, *static_cast<const oar::ConvArgs*>(args));
    case oar::KernelFamily::kDepthwise:
      return call(*d->images, *static_cast<const oar::DepthwiseArgs*>(args));
    default: return call(*d->images, *static_cast<const oar::PoolArgs*>(args));
  }
}

oar_plugin_status kernel_scratch(oar_plugin_device* d, const oar_plugin_kernel* k, const void* args,
                                 uint64_t* bytes) {
  if (is_of_library(handle(k))) {
    if (const cudaError_t error = use(d); error != cudaSuccess) return tell(d, error);
    *bytes = by_library(d, handle(k), args, [](auto& library, const auto& a) { return library.scratch(a); });
    return OAR_PLUGIN_OK;
  }
  if (handle(k).beyond != nullptr) {
    d->error = handle(k).beyond(args);
    if (!d->error.empty()) return OAR_PLUGIN_UNSUPPORTED;
  }
  *bytes = handle(k).scratch != nullptr ? handle(k).scratch(args) : 0;
  return OAR_PLUGIN_OK;
}

oar_plugin_status kernel_cost(oar_plugin_device* d, const oar_plugin_kernel* k, const void* args,
                              int64_t context, oar_plugin_cost* cost) {
  oar::cuda::KernelCost c;
  if (is_of_library(handle(k)) || !oar::cuda::cost_of(handle(k), args, context, &c, &d->foreseen))
    return OAR_PLUGIN_UNSUPPORTED;
  cost->bytes = c.bytes;
  cost->matrix_operations = c.tensor_operations;
  cost->operations = c.operations;
  cost->seconds = c.seconds;
  if (cost->size >= sizeof *cost) cost->launches = c.launches;
  return OAR_PLUGIN_OK;
}

// Rows that it makes in one launch with rounding them were held until now.
oar_plugin_status launch_by_library(oar_plugin_device* d, oar_plugin_stream* s,
                                    const oar::cuda::DeviceKernel& k, const void* args, void* scratch,
                                    uint64_t bytes) {
  if (rows_of_product(k, args) == 0) return OAR_PLUGIN_OK;  // what is held may go on behind it
  std::optional<oar::cuda::RowSteps> steps;
  if (k.family == oar::KernelFamily::kMatmul)
    steps = d->held.take_rows(*static_cast<const oar::MatmulArgs*>(args), scratch, bytes, handle(s));
  const auto release = [&] { return in_order(d, [] { return cudaSuccess; }); };
  if (!steps) {
    if (const oar_plugin_status status = release(); status != OAR_PLUGIN_OK) return status;
  } else if (const cudaError_t error = use(d); error != cudaSuccess) {
    return tell(d, error);
  }
  const oar::cuda::LibraryStatus status = by_library(d, k, args, [&](auto& library, const auto& a) {
    if constexpr (std::is_same_v<std::decay_t<decltype(a)>, oar::MatmulArgs>)
      return library.run(a, scratch, handle(s), steps ? &*steps : nullptr);
    else return library.run(a, scratch, handle(s));
  });
  if (!status.ok()) {
    d->error = status.what;
    return OAR_PLUGIN_DEVICE_ERROR;
  }
  return release();
}

oar_plugin_status launch(oar_plugin_device* d, oar_plugin_stream* s, const oar_plugin_kernel* k,
                         const void* args, void* scratch, uint64_t bytes) {
  if (is_of_library(handle(k))) return launch_by_library(d, s, handle(k), args, scratch, bytes);
  return on(
      d, [&] { return static_cast<cudaError_t>(d->held.launch(handle(k), args, scratch, handle(s)).code); });
}

const char* error_message(oar_plugin_device* d) { return d != nullptr ? d->error.c_str() : t_error.c_str(); }

oar_plugin_status memory_stats(oar_plugin_device* d, oar_plugin_memory* memory) {
  size_t free_bytes = 0, total_bytes = 0;
  const oar_plugin_status status = on(d, [&] { return cudaMemGetInfo(&free_bytes, &total_bytes); });
  memory->free_bytes = free_bytes;
  memory->total_bytes = total_bytes;
  return status;
}

std::unique_ptr<oar::cuda::Nvml> open_nvml(std::string* why) {
#ifdef OAR_CUDA_FAKES
  return oar::cuda::Nvml::make(
      oar::cuda::emulation::fake_nvml({.percent = 0, .milliwatts = 0, .millijoules = 0}), why);
#else
  oar::cuda::NvmlApi api;
  return load_nvml(&api, why) ? oar::cuda::Nvml::make(api, why) : nullptr;
#endif
}
// Null: it is not there, which is said once. Opened by who asks first, as it takes a while.
const oar::cuda::Nvml* nvml() {
  static const std::unique_ptr<oar::cuda::Nvml> kOpened = [] {
    std::string why;
    auto opened = open_nvml(&why);
    if (opened == nullptr)
      log(2, "NVML: " + why + "; of a device's metrics there is memory, but no power, clocks or utilization");
    return opened;
  }();
  return kOpened.get();
}

// Memory is the runtime's: of a slice of MIG it knows the slice's.
oar_plugin_status device_usage(int32_t index, oar_plugin_usage* usage) {
  cudaDeviceProp p;
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaSetDevice(index) != cudaSuccess || cudaGetDeviceProperties(&p, index) != cudaSuccess ||
      cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
    return OAR_PLUGIN_DEVICE_ERROR;
  usage->memory_total_bytes = static_cast<double>(total_bytes);
  usage->memory_used_bytes = static_cast<double>(total_bytes - free_bytes);
  std::string uuid = "GPU";
  for (size_t i = 0; i < sizeof p.uuid.bytes; ++i) {
    char digits[4];
    const bool dash = i == 0 || (i % 2 == 0 && i >= 4 && i <= 10);
    std::snprintf(digits, sizeof digits, dash ? "-%02x" : "%02x", static_cast<uint8_t>(p.uuid.bytes[i]));
    uuid += digits;
  }
  std::snprintf(usage->uuid, sizeof usage->uuid, "%s", uuid.c_str());
  if (nvml() == nullptr) return OAR_PLUGIN_OK;
  char bus[32];
  std::snprintf(bus, sizeof bus, "%08x:%02x:%02x.0", static_cast<unsigned>(p.pciDomainID),
                static_cast<unsigned>(p.pciBusID), static_cast<unsigned>(p.pciDeviceID));
  const oar::cuda::NvmlReading r = nvml()->read(bus);
  usage->utilization = r.utilization;
  usage->power_watts = r.power_watts;
  usage->power_limit_watts = r.power_limit_watts;
  usage->energy_joules = r.energy_joules;
  usage->clock_hertz = r.clock_hertz;
  usage->memory_clock_hertz = r.memory_clock_hertz;
  usage->temperature_celsius = r.temperature_celsius;
  return OAR_PLUGIN_OK;
}

oar_plugin_status host_allocate(oar_plugin_device* d, uint64_t bytes, void** memory) {
  return on(d, [&] { return cudaMallocHost(memory, bytes); });
}
void host_release(oar_plugin_device* d, void* memory) {
  if (use(d) == cudaSuccess) (void)cudaFreeHost(memory);
}

oar_plugin_status create_stream(oar_plugin_device* d, oar_plugin_stream** stream) {
  // Not the legacy stream's follower: engines beside each other shall not wait for one another.
  return on(d, [&] {
    const cudaError_t error =
        cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
    if (error != cudaSuccess) return error;
    uint32_t* counters = nullptr;  // made now, as the first launch may be captured
    const auto made = static_cast<cudaError_t>(oar::cuda::counters_of(*stream, &counters));
    if (made != cudaSuccess) (void)cudaStreamDestroy(handle(*stream));
    return made;
  });
}
void destroy_stream(oar_plugin_device* d, oar_plugin_stream* s) {
  if (use(d) != cudaSuccess) return;
  oar::cuda::release_counters(s);
  (void)cudaStreamDestroy(handle(s));
}

oar_plugin_status create_event(oar_plugin_device* d, oar_plugin_event** event) {
  return on(d, [&] {
    return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
  });
}
void destroy_event(oar_plugin_device* d, oar_plugin_event* event) {
  if (use(d) == cudaSuccess) (void)cudaEventDestroy(handle(event));
}
oar_plugin_status record_event(oar_plugin_device* d, oar_plugin_stream* s, oar_plugin_event* event) {
  return in_order(d, [&] { return cudaEventRecord(handle(event), handle(s)); });
}
oar_plugin_status synchronize_event(oar_plugin_device* d, oar_plugin_event* event) {
  return on(d, [&] { return cudaEventSynchronize(handle(event)); });
}

oar_plugin_status begin_capture(oar_plugin_device* d, oar_plugin_stream* s) {
  // Thread-local: other engines of the process may allocate meanwhile.
  return in_order(d, [&] { return cudaStreamBeginCapture(handle(s), cudaStreamCaptureModeThreadLocal); });
}
oar_plugin_status end_capture(oar_plugin_device* d, oar_plugin_stream* s, oar_plugin_capture** capture) {
  return in_order(d, [&] {
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamEndCapture(handle(s), &graph);
    if (error != cudaSuccess) return error;
    error = cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(capture), graph, 0);
    (void)cudaGraphDestroy(graph);
    return error;
  });
}
oar_plugin_status replay(oar_plugin_device* d, oar_plugin_stream* s, oar_plugin_capture* capture) {
  return in_order(d, [&] { return cudaGraphLaunch(handle(capture), handle(s)); });
}
void destroy_capture(oar_plugin_device* d, oar_plugin_capture* capture) {
  if (use(d) == cudaSuccess) (void)cudaGraphExecDestroy(handle(capture));
}

oar_plugin make_table() {
  oar_plugin t = {};
  t.size = sizeof t;
  t.major = OAR_PLUGIN_MAJOR;
  t.minor = OAR_PLUGIN_MINOR;
  t.name = OAR_CUDA_PLUGIN;
  t.device_count = device_count;
  t.device_info = device_info;
  t.open = open_device;
  t.close = close_device;
  t.allocate = allocate;
  t.release = release;
  t.copy_to_device = copy_to_device;
  t.copy_to_host = copy_to_host;
  t.copy_on_device = copy_on_device;
  t.synchronize = synchronize;
  t.find_kernel = find_kernel;
  t.launch = launch;
  t.kernel_scratch = kernel_scratch;
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
  t.begin_capture = begin_capture;
  t.end_capture = end_capture;
  t.replay = replay;
  t.destroy_capture = destroy_capture;
  t.kernel_cost = kernel_cost;
  t.device_usage = device_usage;
  return t;
}

const oar_plugin kTable = make_table();

}  // namespace

extern "C" OAR_PLUGIN_EXPORT const oar_plugin* oar_plugin_entry(const oar_plugin_host* host) {
  g_host = host;
  return &kTable;
}
