// WeightStore: the weights of a model in the layouts that kernels read, in a backend's memory. One per model
// and backend, whatever the number of plans, runs, clones and uses: a table that is also the head lies there
// once. Who lowers an op asks for a weight in a layout and gets what is there; what is not yet there is made,
// at the first asking.
//
// Threads: get() may be called from any thread; different weights are made in parallel. What was returned
// stays where it is for the life of the store.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/graph/graph.h"
#include "engine/tensor/backend.h"

namespace oar {

// A weight as kernels see it.
struct StoredWeight {
  Buffer buffer;       // memory of the backend
  uint64_t bytes = 0;  // that a kernel reads
  bool copied = true;  // false: the bytes lie where the model's file has them
  const void* data() const { return buffer.data(); }
};

class WeightStore {
 public:
  explicit WeightStore(Backend& backend) : backend_(backend) {}
  Backend& backend() const { return backend_; }

  // The weight called `key` (weight_key() and the layout); `make` is called once, and again only after it
  // failed. Never null.
  Result<const StoredWeight*> get(const std::string& key, const std::function<Result<StoredWeight>()>& make);
  // `host` bytes as they are: where they lie, if that is the backend's memory, else uploaded. `copied`: the
  // bytes were made for the store.
  Result<StoredWeight> place(const Buffer& host, bool copied) const;
  Result<StoredWeight> place(const Tensor& host, bool copied) const { return place(host.buffer(), copied); }

  // Copies, and what lies in the model's file; each byte once.
  uint64_t copied_bytes() const;
  uint64_t in_place_bytes() const;

 private:
  struct Entry {
    std::mutex making;
    bool made = false;
    StoredWeight weight;
  };
  uint64_t sum(bool copied) const;
  Backend& backend_;
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Entry>, std::less<>> entries_;
};

// What tells a weight from the others of its graph: a constant lies where no other does, whatever its names;
// an expression (weights.h) is a value.
std::string weight_key(const Graph& graph, ValueId value);

}  // namespace oar
