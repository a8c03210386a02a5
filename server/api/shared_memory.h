// Triton's system shared memory: regions that clients made with shm_open() and registered under names, for
// inputs to be read from and outputs to be written to. Off without a prefix; then only keys that begin with
// it can be registered, so that a client reaches no memory of others on the machine.
//
// Bytes are copied by pread() and pwrite() at the time of a request: a client that writes meanwhile changes
// nothing that was checked, and one that makes its memory smaller gets an error and not a crash of ours. No
// error tells a key. A region belongs to the API key it was registered with. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/fields.h"

namespace oar::api {

struct MemoryRegion {
  std::string name, key;
  uint64_t offset = 0, bytes = 0;  // the part of the client's memory that is the region
};

// Where a tensor of a request lies.
struct RegionSpan {
  std::string region;  // empty: in the request itself
  uint64_t offset = 0, bytes = 0;
};
// The parameters shared_memory_region, _byte_size and _offset of a tensor.
void read_span(Fields& parameters, RegionSpan& out);

class SharedMemory {
 public:
  static constexpr size_t kMaxRegions = 1024;
  static constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 30;  // read at once

  // An empty prefix: everything below is FAILED_PRECONDITION. INVALID_ARGUMENT unless it is a slash and at
  // least three letters, digits, '-', '_' or '.'.
  static Result<std::shared_ptr<SharedMemory>> create(const std::string& prefix);

  bool enabled() const { return !prefix_.empty(); }

  // ALREADY_EXISTS for a name that is taken; INVALID_ARGUMENT for a key without the prefix, memory that
  // cannot be opened or is smaller than offset and bytes.
  Status add(const std::string& owner, const MemoryRegion& region);
  // An empty name: all of the owner's, and no error when there are none.
  Status remove(const std::string& owner, const std::string& name);
  Result<std::vector<MemoryRegion>> list(const std::string& owner, const std::string& name) const;

  // The span must lie in the region, and the region in the memory.
  Result<std::string> read(const std::string& owner, const RegionSpan& span) const;
  // `what` must fit into the span.
  Status write(const std::string& owner, const RegionSpan& span, std::string_view what) const;

 private:
  class Memory;
  struct Entry {
    MemoryRegion region;
    std::shared_ptr<const Memory> memory;
  };
  explicit SharedMemory(std::string prefix) : prefix_(std::move(prefix)) {}
  Status on() const;
  Result<Entry> find(const std::string& owner, const RegionSpan& span) const;

  const std::string prefix_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Entry> regions_;  // by owner and name; guarded by mutex_
};

// Whose regions a request may use.
struct MemoryAccess {
  std::shared_ptr<SharedMemory> memory;  // null: none
  std::string owner;
  Result<std::string> read(const RegionSpan& span) const;
  Status write(const RegionSpan& span, std::string_view what) const;
};

// The answer to CUDA's, whatever is asked.
Status no_cuda_memory();

}  // namespace oar::api
