// The kernels of the loopback device: those of kernels/reference, behind the public argument structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace loopback {

// A launch as the device keeps it: the argument struct and the host arrays it points to are copies.
class Launch {
 public:
  // `args` is the argument struct of the family, as documented in plugin.h.
  // `packed`: weights lie as turn_weight() left them.
  Launch(int32_t family, const std::string& format, const void* args, bool packed);

  // Host address of a device pointer; null when it is no device memory.
  using Translate = std::function<void*(const void* device)>;
  // Runs to the end with `shared` scratch (host address). Empty, or what is wrong with the arguments.
  std::string run(const Translate& translate, void* shared) const;
  uint64_t shared_scratch() const;

  // Whether there is a kernel.
  static const oar::Kernel* find(int32_t family, const std::string& format);
  static const char* family_name(int32_t family);  // null: not in the interface

 private:
  bool is_product() const;
  size_t product_at() const;   // of oar_matmul_args in the argument struct
  size_t segments_at() const;  // of the list of weights
  size_t k_at() const;

  int32_t family_;
  bool packed_;
  std::string format_;
  std::vector<std::byte> args_;
  std::vector<std::byte> segments_;
};

// The device's own layout of weights that are stored in blocks: the last row in front. 0 of others, which lie
// as they are stored.
uint64_t packed_weight_bytes(const std::string& format, int64_t n, int64_t K);
// There and back.
void turn_weight(const std::string& format, int64_t n, int64_t K, void* to, const void* from);

}  // namespace loopback
