// The values of one evaluation, by side: on the host, on the device beside it, or on both once somebody on
// the other side asked. A value is copied at most once, and only for who reads it. Without a device
// everything is on the host and nothing is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/evaluate.h"

namespace oar {

// One thread.
class RunValues {
 public:
  // `device`: the weights that lie there, and `memory` of its own for copies; null: there is none. Copies on
  // the host come from options.memory. All outlive the values.
  RunValues(const Graph& graph, const EvalOptions& options, WeightStore* device, RunMemory* memory)
      : graph_(graph),
        options_(options),
        device_weights_(device),
        device_memory_(memory),
        host_(graph.num_values()),
        where_(graph.num_values()) {
    if (device != nullptr) device_.resize(graph.num_values());
  }

  void set_on_host(ValueId v, Datum d) { host_[v] = std::move(d), where_[v] |= kHost; }
  void set_on_device(ValueId v, Datum d) { device_[v] = std::move(d), where_[v] |= kDevice; }
  // For its type and size: on whichever side it is. Null: not computed, or left out (kNoValue).
  const Datum* find(ValueId v);
  bool only_on_device(ValueId v) const { return v != kNoValue && where_[v] == kDevice; }
  // Where it may be read. What comes from the device is there after arrive().
  Result<const Datum*> on_host(ValueId v);
  Result<const Datum*> on_device(ValueId v);
  Status arrive();
  void drop(ValueId v);

  // Bytes of values that were copied to the device and from it; weights are not counted.
  uint64_t uploaded() const { return uploaded_; }
  uint64_t downloaded() const { return downloaded_; }

 private:
  static constexpr uint8_t kHost = 1, kDevice = 2;
  const Graph& graph_;
  const EvalOptions& options_;
  WeightStore* const device_weights_;
  RunMemory* const device_memory_;
  std::vector<Datum> host_, device_;
  std::vector<uint8_t> where_;
  bool coming_ = false;  // downloads that were not waited for
  uint64_t uploaded_ = 0, downloaded_ = 0;
};

}  // namespace oar
