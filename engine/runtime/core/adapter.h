// What a request holds of an adapter (LoRA) while it runs: its place, which nobody else gets before the last
// holder is gone. See engine/runtime/adapters.h for who loads them.
#pragma once

#include <cstdint>
#include <string>

namespace oar {

struct AdapterLease {
  uint64_t load = 0;  // the load's number, from 1; no two loads of a process share one
  int32_t slot = -1;  // in the model's slots: what a row's index says
  std::string name = {};
};

}  // namespace oar
