#include "server/api/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

Status off() {
  return Status(
      StatusCode::kFailedPrecondition,
      "shared_memory_region: shared memory is off; send the tensors themselves, or start the server "
      "with --shared-memory",
      "shared_memory_region");
}

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

Status smaller(std::string_view region) {
  return invalid_argument(cat("shared memory region ", in_quotes(region),
                              ": the memory is smaller than what is asked for; make it larger"),
                          "shared_memory_region");
}

}  // namespace

// A descriptor of a client's memory.
class SharedMemory::Memory {
 public:
  explicit Memory(int fd) : fd_(fd) {}
  ~Memory() { ::close(fd_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  // Now; clients change it. 0 for what has no size.
  uint64_t bytes() const {
    struct stat there = {};
    return fstat(fd_, &there) == 0 && S_ISREG(there.st_mode) && there.st_size > 0
               ? static_cast<uint64_t>(there.st_size)
               : 0;
  }
  // False when the memory ends before.
  bool read(uint64_t at, char* to, size_t n) const {
    return whole(n, [&](size_t done) { return ::pread(fd_, to + done, n - done, offset(at + done)); });
  }
  bool write(uint64_t at, const char* from, size_t n) const {
    return whole(n, [&](size_t done) { return ::pwrite(fd_, from + done, n - done, offset(at + done)); });
  }

 private:
  static off_t offset(uint64_t at) { return static_cast<off_t>(at); }
  template <class Move>
  static bool whole(size_t n, Move move) {
    for (size_t done = 0; done < n;) {
      const ssize_t moved = move(done);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return false;
      done += static_cast<size_t>(moved);
    }
    return true;
  }
  const int fd_;
};

void read_span(Fields& p, RegionSpan& out) {
  p.string("shared_memory_region", out.region, 1 << 10);
  std::optional<int64_t> bytes, offset;
  p.integer("shared_memory_byte_size", bytes, 0, INT64_MAX);
  p.integer("shared_memory_offset", offset, 0, INT64_MAX);
  if (!p.ok()) return;
  if (out.region.empty() && (bytes.value_or(0) > 0 || offset.value_or(0) > 0))
    p.fail("shared_memory_region", cat(p.path_of("shared_memory_region"), " is missing; name the region"));
  if (!out.region.empty() && !bytes)
    p.fail("shared_memory_byte_size", cat(p.path_of("shared_memory_byte_size"),
                                          " is missing; say how much of shared_memory_region it is"));
  out.bytes = static_cast<uint64_t>(bytes.value_or(0));
  out.offset = static_cast<uint64_t>(offset.value_or(0));
}

Result<std::shared_ptr<SharedMemory>> SharedMemory::create(const std::string& prefix) {
  if (!prefix.empty() && (prefix.size() < 4 || prefix.size() > 128 || prefix[0] != '/' ||
                          !is_plain(std::string_view(prefix).substr(1))))
    return invalid_argument(
        "shared-memory: the prefix of keys is a slash and three or more of a-z, A-Z, 0-9, '-', '_' and '.', "
        "for instance /oar-",
        "shared-memory");
  return std::shared_ptr<SharedMemory>(new SharedMemory(prefix));
}

Status SharedMemory::on() const { return prefix_.empty() ? off() : ok_status(); }

Status SharedMemory::add(const std::string& owner, const MemoryRegion& region) {
  OAR_RETURN_IF_ERROR(on());
  if (region.name.empty()) return invalid_argument("the region has no name", "name");
  const bool allowed = region.key.starts_with(prefix_) && region.key.size() <= 255 &&
                       is_plain(std::string_view(region.key).substr(1));
  if (!allowed)
    return invalid_argument(cat("shared memory region ", in_quotes(region.name),
                                ": its key has not the prefix that this server takes"),
                            "key");
  if (region.bytes == 0 || region.offset > INT64_MAX || region.bytes > INT64_MAX - region.offset)
    return invalid_argument(cat("shared memory region ", in_quotes(region.name), ": offset ", region.offset,
                                " and byte_size ", region.bytes, " are no part of any memory"),
                            "byte_size");
  const int fd = shm_open(region.key.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0)
    return invalid_argument(
        cat("shared memory region ", in_quotes(region.name), ": its memory cannot be opened"), "key");
  auto memory = std::make_shared<const Memory>(fd);
  if (memory->bytes() < region.offset + region.bytes) return smaller(region.name);
  const std::lock_guard lock(mutex_);
  if (regions_.size() >= kMaxRegions)
    return resource_exhausted(cat("there are ", regions_.size(), " shared memory regions; unregister some"));
  if (!regions_.try_emplace({owner, region.name}, Entry{region, std::move(memory)}).second)
    return Status(
        StatusCode::kAlreadyExists,
        cat("shared memory region ", in_quotes(region.name), " is there already; unregister it first"),
        "name");
  return ok_status();
}

Status SharedMemory::remove(const std::string& owner, const std::string& name) {
  OAR_RETURN_IF_ERROR(on());
  const std::lock_guard lock(mutex_);
  if (name.empty()) {
    std::erase_if(regions_, [&](const auto& entry) { return entry.first.first == owner; });
    return ok_status();
  }
  // As Triton: what is not there is not there behind this.
  regions_.erase({owner, name});
  return ok_status();
}

Result<std::vector<MemoryRegion>> SharedMemory::list(const std::string& owner,
                                                     const std::string& name) const {
  OAR_RETURN_IF_ERROR(on());
  std::vector<MemoryRegion> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, entry] : regions_)
    if (key.first == owner && (name.empty() || key.second == name)) out.push_back(entry.region);
  if (out.empty() && !name.empty())
    return not_found(cat("there is no shared memory region ", in_quotes(name)));
  return out;
}

Result<SharedMemory::Entry> SharedMemory::find(const std::string& owner, const RegionSpan& span) const {
  OAR_RETURN_IF_ERROR(on());
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find({owner, span.region});
  if (it == regions_.end())
    return invalid_argument(cat("there is no shared memory region ", in_quotes(span.region)),
                            "shared_memory_region");
  const MemoryRegion& region = it->second.region;
  if (span.offset > region.bytes || span.bytes > region.bytes - span.offset)
    return invalid_argument(
        cat("shared memory region ", in_quotes(span.region), " has ", region.bytes, " bytes; offset ",
            span.offset, " and byte_size ", span.bytes, " go beyond its end"),
        "shared_memory_byte_size");
  return it->second;
}

Result<std::string> SharedMemory::read(const std::string& owner, const RegionSpan& span) const {
  OAR_ASSIGN(const Entry entry, find(owner, span));
  if (span.bytes > kMaxTensorBytes)
    return invalid_argument(cat("shared memory region ", in_quotes(span.region), ": a tensor of ", span.bytes,
                                " bytes; at most ", kMaxTensorBytes),
                            "shared_memory_byte_size");
  const uint64_t at = entry.region.offset + span.offset;
  if (entry.memory->bytes() < at + span.bytes) return smaller(span.region);  // before anything is allocated
  std::string out(span.bytes, '\0');
  if (!entry.memory->read(at, out.data(), out.size())) return smaller(span.region);
  return out;
}

Status SharedMemory::write(const std::string& owner, const RegionSpan& span, std::string_view what) const {
  OAR_ASSIGN(const Entry entry, find(owner, span));
  if (what.size() > span.bytes)
    return invalid_argument(cat("shared memory region ", in_quotes(span.region), ": the output has ",
                                what.size(), " bytes, and shared_memory_byte_size is ", span.bytes),
                            "shared_memory_byte_size");
  const uint64_t at = entry.region.offset + span.offset;
  // Behind its end nothing is written: that would make the client's memory larger.
  if (entry.memory->bytes() < at + what.size()) return smaller(span.region);
  if (!entry.memory->write(at, what.data(), what.size())) return smaller(span.region);
  return ok_status();
}

Result<std::string> MemoryAccess::read(const RegionSpan& span) const {
  return memory ? memory->read(owner, span) : Result<std::string>(off());
}

Status MemoryAccess::write(const RegionSpan& span, std::string_view what) const {
  return memory ? memory->write(owner, span, what) : off();
}

Status no_cuda_memory() {
  return unimplemented("CUDA shared memory is not offered; use system shared memory, or send the tensors");
}

}  // namespace oar::api
