// What a device does and draws, by NVML (libnvidia-ml.so.1), which comes with the driver. Its header is not
// part of every toolkit, so what is used is declared here, as NVML 12 has it:
// https://docs.nvidia.com/deploy/nvml-api.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/libraries/library.h"

namespace oar::cuda {

using NvmlResult = int;  // nvmlReturn_t; 0: success
struct NvmlDevice;       // nvmlDevice_st
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
// Of nvmlClockType_t and nvmlTemperatureSensors_t.
inline constexpr int kNvmlClockSm = 1, kNvmlClockMemory = 2, kNvmlTemperatureGpu = 0;

// The functions that are used, by the names of the library.
struct NvmlApi {
  const char* (*ErrorString)(NvmlResult);
  NvmlResult (*Init_v2)();
  NvmlResult (*DeviceGetHandleByPciBusId_v2)(const char* bus, NvmlDevice**);
  NvmlResult (*DeviceGetUtilizationRates)(NvmlDevice*, NvmlUtilization*);
  NvmlResult (*DeviceGetPowerUsage)(NvmlDevice*, unsigned* milliwatts);
  NvmlResult (*DeviceGetEnforcedPowerLimit)(NvmlDevice*, unsigned* milliwatts);
  NvmlResult (*DeviceGetTotalEnergyConsumption)(NvmlDevice*, unsigned long long* millijoules);
  NvmlResult (*DeviceGetClockInfo)(NvmlDevice*, int clock, unsigned* megahertz);
  NvmlResult (*DeviceGetTemperature)(NvmlDevice*, int sensor, unsigned* celsius);
};
// The library's own. False: it is not there, or too old; *why says which.
bool load_nvml(NvmlApi* api, std::string* why);

// NaN: the device does not say, or not to us.
struct NvmlReading {
  double utilization, power_watts, power_limit_watts, energy_joules, clock_hertz, memory_clock_hertz,
      temperature_celsius;
};

// Any thread. The library stays open as long as the process lives.
class Nvml {
 public:
  // Null: *why says it in the library's words.
  static std::unique_ptr<Nvml> make(const NvmlApi& api, std::string* why);

  // Of the device in that place ("00000000:17:00.0"); of a slice of MIG the whole device's.
  NvmlReading read(const std::string& pci_bus) const;

 private:
  explicit Nvml(const NvmlApi& api) : api_(api) {}
  const NvmlApi api_;
};

}  // namespace oar::cuda
