#include <cstring>

#include "kernels/cuda/emulation/libraries.h"

namespace oar::cuda {

struct NvmlDevice {};

namespace emulation {
namespace {

enum : NvmlResult {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kDriverNotLoaded = 9
};

FakeNvml g_fake;
bool g_initialized = false;
NvmlDevice g_devices[2];

const char* error_string(NvmlResult result) {
  return result == kSuccess ? "no error" : result == kDriverNotLoaded ? "driver not loaded" : "an error";
}
NvmlResult init() {
  if (!g_fake.driver) return kDriverNotLoaded;
  g_initialized = true;
  return kSuccess;
}
NvmlResult handle_by_bus(const char* bus, NvmlDevice** device) {
  if (!g_initialized) return kUninitialized;
  const bool first = std::strcmp(bus, kFakePciBus) == 0;
  if (!first && std::strcmp(bus, kSecondFakePciBus) != 0) return kNotFound;
  *device = g_devices + (first ? 0 : 1);
  return kSuccess;
}

// A number of a device; negative: it has none.
template <class T>
NvmlResult tell(NvmlDevice* device, long long number, T* out) {
  if (!g_initialized) return kUninitialized;
  if ((device != g_devices && device != g_devices + 1) || out == nullptr) return kInvalidArgument;
  if (number < 0) return kNotSupported;
  *out = static_cast<T>(number);
  return kSuccess;
}
NvmlResult utilization(NvmlDevice* device, NvmlUtilization* out) {
  unsigned percent = 0;
  const NvmlResult result = tell(device, g_fake.percent, &percent);
  if (result == kSuccess) *out = {percent, 0};
  return result;
}
NvmlResult power(NvmlDevice* d, unsigned* out) {
  const long long more = d == g_devices + 1 ? 1000 : 0;
  return tell(d, g_fake.milliwatts < 0 ? g_fake.milliwatts : g_fake.milliwatts + more, out);
}
NvmlResult power_limit(NvmlDevice* d, unsigned* out) { return tell(d, g_fake.milliwatts_limit, out); }
NvmlResult energy(NvmlDevice* d, unsigned long long* out) { return tell(d, g_fake.millijoules, out); }
NvmlResult clock(NvmlDevice* d, int clock, unsigned* out) {
  if (clock != kNvmlClockSm && clock != kNvmlClockMemory) return kInvalidArgument;
  return tell(d, clock == kNvmlClockSm ? g_fake.megahertz : g_fake.megahertz_of_memory, out);
}
NvmlResult temperature(NvmlDevice* d, int sensor, unsigned* out) {
  if (sensor != kNvmlTemperatureGpu) return kInvalidArgument;
  return tell(d, g_fake.celsius, out);
}

}  // namespace

NvmlApi fake_nvml(const FakeNvml& says) {
  g_fake = says;
  g_initialized = false;
  return {error_string, init, handle_by_bus, utilization, power, power_limit, energy, clock, temperature};
}

}  // namespace emulation
}  // namespace oar::cuda
