// What open devices say of themselves: memory, power, clocks. Who opens a device says how it is asked
// (engine/tensor), who reports it asks (server/metrics); neither knows the other. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace oar {

// NaN: the device does not say.
struct DeviceUsage {
  std::string device;  // "cuda:0 (NVIDIA H100 80GB HBM3)"
  std::string uuid;    // the same in every process; empty: it does not say
  double memory_total_bytes, memory_used_bytes;
  double utilization;  // share of the last moments in which it computed, 1 is all
  double power_watts, power_limit_watts;
  double energy_joules;  // since some moment in the past
  double clock_hertz, memory_clock_hertz;
  double temperature_celsius;
};
// False: not now.
using DeviceQuestion = std::function<bool(DeviceUsage*)>;

// As long as the result lives, device_usages() asks so about the device of that name. A device that is open
// several times is asked once.
std::shared_ptr<const void> answer_for_device(std::string device, DeviceQuestion question);

// Of every device that is open in this process and answers, by name.
std::vector<DeviceUsage> device_usages();

}  // namespace oar
