#include "kernels/cuda/libraries/nvml.h"

#include <limits>

namespace oar::cuda {

bool load_nvml(NvmlApi* api, std::string* why) {
  void* library = open_library({"libnvidia-ml.so.1"}, why);
  if (library == nullptr) return false;
#define OAR_FIND(name) find_function(library, "nvml" #name, &api->name, why)
  return OAR_FIND(ErrorString) && OAR_FIND(Init_v2) && OAR_FIND(DeviceGetHandleByPciBusId_v2) &&
         OAR_FIND(DeviceGetUtilizationRates) && OAR_FIND(DeviceGetPowerUsage) &&
         OAR_FIND(DeviceGetEnforcedPowerLimit) && OAR_FIND(DeviceGetTotalEnergyConsumption) &&
         OAR_FIND(DeviceGetClockInfo) && OAR_FIND(DeviceGetTemperature);
#undef OAR_FIND
}

std::unique_ptr<Nvml> Nvml::make(const NvmlApi& api, std::string* why) {
  if (const NvmlResult result = api.Init_v2(); result != 0) {
    *why = std::string("nvmlInit: ") + api.ErrorString(result);
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(api));
}

NvmlReading Nvml::read(const std::string& pci_bus) const {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  NvmlReading r = {kUnknown, kUnknown, kUnknown, kUnknown, kUnknown, kUnknown, kUnknown};
  NvmlDevice* device = nullptr;
  if (api_.DeviceGetHandleByPciBusId_v2(pci_bus.c_str(), &device) != 0) return r;
  NvmlUtilization utilization;
  if (api_.DeviceGetUtilizationRates(device, &utilization) == 0) r.utilization = utilization.gpu / 100.0;
  unsigned n;
  if (api_.DeviceGetPowerUsage(device, &n) == 0) r.power_watts = n / 1e3;
  if (api_.DeviceGetEnforcedPowerLimit(device, &n) == 0) r.power_limit_watts = n / 1e3;
  unsigned long long millijoules;
  if (api_.DeviceGetTotalEnergyConsumption(device, &millijoules) == 0)
    r.energy_joules = static_cast<double>(millijoules) / 1e3;
  if (api_.DeviceGetClockInfo(device, kNvmlClockSm, &n) == 0) r.clock_hertz = n * 1e6;
  if (api_.DeviceGetClockInfo(device, kNvmlClockMemory, &n) == 0) r.memory_clock_hertz = n * 1e6;
  if (api_.DeviceGetTemperature(device, kNvmlTemperatureGpu, &n) == 0) r.temperature_celsius = n;
  return r;
}

}  // namespace oar::cuda
