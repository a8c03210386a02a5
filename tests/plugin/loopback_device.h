// The loopback plug-in (loopback.cc) as tests open it.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "engine/tensor/backend.h"
#include "engine/tensor/plugin_table.h"
#include "tests/plugin/loopback.h"
#include "tests/support/catch.h"

namespace oar_test {

// Sets OAR_LOOPBACK as long as it lives; the plug-in reads it when a device is opened by name.
class LoopbackConfig {
 public:
  explicit LoopbackConfig(const std::string& text) { setenv("OAR_LOOPBACK", text.c_str(), 1); }
  ~LoopbackConfig() { unsetenv("OAR_LOOPBACK"); }
  LoopbackConfig(const LoopbackConfig&) = delete;
  LoopbackConfig& operator=(const LoopbackConfig&) = delete;
};

inline std::unique_ptr<oar::Backend> cpu_backend(oar::Isa isa = oar::Isa::kReference) {
  return oar::make_cpu_backend(std::make_shared<oar::ThreadPool>(oar::ThreadPoolOptions{.threads = 2}), isa);
}

// A device of that configuration, the reference kernels beside it.
inline std::unique_ptr<oar::Backend> loopback_backend(const std::string& config = "") {
  LoopbackConfig set(config);
  auto backend = oar::make_plugin_backend("loopback", cpu_backend(), {});
  REQUIRE_OK(backend);
  return std::move(*backend);
}

// Counters are of the process: take differences.
inline int64_t loopback_counter(loopback::Counter which) {
  REQUIRE_OK(oar::load_plugin("loopback", {}));  // it stays loaded
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  REQUIRE(n > 0);
  std::string file(path, static_cast<size_t>(n));
  file = file.substr(0, file.rfind('/')) + "/liboar_loopback.so";
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  auto* counter = reinterpret_cast<int64_t (*)(int)>(dlsym(library, "oar_loopback_counter"));
  REQUIRE(counter != nullptr);
  const int64_t value = counter(which);
  dlclose(library);
  return value;
}

// Warnings of a plan or model.
class Warnings {
 public:
  oar::Logger logger() {
    return {[this](oar::LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex_);
      if (level == oar::LogLevel::kWarning) lines_.emplace_back(text);
    }};
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace oar_test
