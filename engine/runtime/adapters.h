// The adapters (LoRA) of a loaded language model: a number of slots of equal size beside the weights, and who
// lies in them under which name. Loading writes a free slot while the engine runs with others; a request
// holds its adapter's lease until its last choice has ended, so what is unloaded leaves its slot when nobody
// uses it any more.
//
// Threads: any. Slots that a step reads are held by leases and not written; a lease is published under the
// mutex after its slot was written.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/graph/passes/adapters.h"
#include "engine/runtime/core/adapter.h"

namespace oar {

class Backend;
class Run;
struct PeftAdapter;

struct AdapterInfo {
  std::string name, path;
  std::string base;  // what it says it was trained on
  int64_t rank = 0;
  uint64_t load = 0;
};

class Adapters {
 public:
  // Takes memory for the slots, which the run's backend has, and binds it to the run. Fails where the model
  // has no layer for adapters.
  static Result<std::shared_ptr<Adapters>> make(AdapterLayout layout, Run& run, ThreadPool& pool);

  // Before every step, by who runs it: brings to a device what was loaded since. It alone may copy there.
  Status upload();

  // A folder in PEFT's layout (engine/loader/peft.h). INVALID_ARGUMENT says what does not fit this model,
  // ALREADY_EXISTS that one has this name, RESOURCE_EXHAUSTED that every slot is held, and by whom.
  Result<AdapterInfo> load(const std::string& name, const std::string& folder);
  // The same of one that was read, or made: `path` is what people are told.
  Result<AdapterInfo> load(const std::string& name, const PeftAdapter& adapter, const std::string& path);
  // Requests that hold it go on. NOT_FOUND lists what is loaded.
  Status unload(const std::string& name);
  // NOT_FOUND lists what is loaded.
  Result<std::shared_ptr<const AdapterLease>> lease(std::string_view name) const;
  // Null when none has this name.
  std::shared_ptr<const AdapterLease> find(std::string_view name) const;
  std::vector<AdapterInfo> list() const;  // by name
  int64_t slots() const { return layout_.options.slots; }
  int64_t max_rank() const { return layout_.options.rank; }

 private:
  struct Entry {
    AdapterInfo info;
    std::shared_ptr<const AdapterLease> lease;
  };
  // Which slots are free; outlives the model where a request does.
  struct Slots {
    std::mutex mutex;
    std::vector<bool> taken;
  };
  Adapters(AdapterLayout layout, ThreadPool& pool) : layout_(std::move(layout)), pool_(pool) {}
  Result<std::shared_ptr<const AdapterLease>> take_slot(const std::string& name);
  Status write(int32_t slot, const PeftAdapter& adapter);
  std::string names() const;                        // under mutex_
  Status no_adapter(std::string_view name) const;   // under mutex_
  Status check_new(const std::string& name) const;  // under mutex_

  const AdapterLayout layout_;
  ThreadPool& pool_;
  std::vector<Buffer> ranks_, a_, b_;  // by site
  Backend* device_ = nullptr;          // that has these; null: the processor
  // What is to be copied there: bytes, and the byte of the buffer that they begin at.
  struct Waiting {
    const Buffer* to;
    uint64_t at;
    std::vector<std::byte> bytes;
  };
  void put(std::vector<Waiting>& waiting, const Buffer& to, uint64_t at, std::vector<std::byte> bytes);
  std::vector<Waiting> waiting_;  // under mutex_
  std::atomic<bool> waits_ = false;
  std::shared_ptr<Slots> slots_ = std::make_shared<Slots>();
  mutable std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> by_name_;
};

}  // namespace oar
