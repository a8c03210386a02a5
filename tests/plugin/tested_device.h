// The device that cases tagged [any] are about: the loopback device, or the one that OAR_PLUGIN_DEVICE names.
// Kernels of another device need not give the processor's bits: each case has a bound for it.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/plugin/loopback_device.h"

namespace oar_test {

inline std::string tested_device() {
  const char* name = std::getenv("OAR_PLUGIN_DEVICE");
  return name != nullptr && *name != '\0' ? name : "loopback";
}
inline bool on_loopback() { return tested_device() == "loopback"; }

// As OAR_LOOPBACK has them; another device is tried once, as it is.
inline std::vector<const char*> configs(std::vector<const char*> of_loopback) {
  if (!on_loopback()) return {""};
  return of_loopback;
}
inline std::unique_ptr<oar::Backend> tested_backend(const std::string& config = "") {
  if (on_loopback()) return loopback_backend(config);
  auto backend = oar::make_plugin_backend(tested_device(), cpu_backend(), {});
  REQUIRE_OK(backend);
  return std::move(*backend);
}
// Another device counts nothing.
inline int64_t tested_counter(loopback::Counter which) { return on_loopback() ? loopback_counter(which) : 0; }

// As distance() of graph_fixture.h has it, of numbers in f32.
inline double distance_of(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, scale = 1;
  for (size_t k = 0; k < a.size(); ++k) {
    if (std::isnan(a[k]) != std::isnan(b[k])) return INFINITY;
    if (a[k] == b[k] || std::isnan(b[k])) continue;
    worst = std::max(worst, std::abs(static_cast<double>(a[k]) - static_cast<double>(b[k])));
    scale = std::max(scale, std::abs(static_cast<double>(b[k])));
  }
  return worst / scale;
}

}  // namespace oar_test
