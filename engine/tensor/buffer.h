// Buffer: a range of bytes in host or device memory together with what keeps them alive. A value: copies and
// slices share the owner, and the last one gone releases it. Owners are opaque (an allocation, a mapped file,
// a device pool), so whoever makes memory needs no subclass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/base/status.h"

namespace oar {

enum class MemoryKind : uint8_t { kHost, kDevice };

class Buffer {
 public:
  // Host allocations are aligned to a cache line, which is also the widest vector.
  static constexpr size_t kAlignment = 64;
  // Host memory of this size (a page) and more is charged to a reservation (charge.h).
  static constexpr uint64_t kCharged = 4 << 10;

  Buffer() = default;  // empty

  // New host memory. Bytes are uninitialized with allocate() and zero with zeros(); RESOURCE_EXHAUSTED when
  // the system or the budget refuses.
  static Result<Buffer> allocate(uint64_t size);
  static Result<Buffer> zeros(uint64_t size);

  // Bytes kept alive by `owner` (null: the caller promises they outlive every copy). `writable` false is for
  // mapped files and constants.
  static Buffer wrap(void* data, uint64_t size, std::shared_ptr<const void> owner,
                     MemoryKind kind = MemoryKind::kHost) {
    return Buffer(static_cast<std::byte*>(data), size, std::move(owner), kind, true);
  }
  static Buffer wrap_const(const void* data, uint64_t size, std::shared_ptr<const void> owner,
                           MemoryKind kind = MemoryKind::kHost) {
    return Buffer(static_cast<std::byte*>(const_cast<void*>(data)), size, std::move(owner), kind, false);
  }

  // The same for pages of a file mapped read-only: release_pages() may give them back.
  static Buffer wrap_mapped(const void* data, uint64_t size, std::shared_ptr<const void> owner) {
    Buffer b = wrap_const(data, size, std::move(owner));
    b.mapped_ = true;
    return b;
  }

  // Memory of one evaluation that nobody outside of it sees: whoever turns out to be its only holder may
  // write a result over it (EvalContext::allocate_over).
  static Buffer wrap_transient(void* data, uint64_t size, std::shared_ptr<const void> owner,
                               MemoryKind kind = MemoryKind::kHost) {
    Buffer b = wrap(data, size, std::move(owner), kind);
    b.transient_ = true;
    return b;
  }
  bool transient() const { return transient_; }
  // Buffers that share these bytes, this one included; 0 without an owner.
  int64_t holders() const { return owner_.use_count(); }

  const void* data() const { return data_; }
  // Our own bug to call on a read-only buffer.
  void* mutable_data() const {
    OAR_CHECK(writable_ || size_ == 0, "buffer is read-only");
    return data_;
  }
  uint64_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }
  bool writable() const { return writable_; }
  bool mapped() const { return mapped_; }  // pages of a file, or of the program

  // Bytes [offset, offset + size) of this buffer, sharing its owner. Must lie inside.
  Buffer slice(uint64_t offset, uint64_t size) const {
    OAR_CHECK(offset <= size_ && size <= size_ - offset, "slice outside the buffer");
    Buffer b(data_ + offset, size, owner_, kind_, writable_);
    b.mapped_ = mapped_;
    b.transient_ = transient_;
    return b;
  }

  // Takes the whole pages of a mapped file inside this buffer out of the process's memory: they were read to
  // make another copy and will hardly be read again. They stay in the page cache, and reading them anew is
  // correct. Does nothing to any other memory.
  void release_pages() const;

 private:
  Buffer(std::byte* data, uint64_t size, std::shared_ptr<const void> owner, MemoryKind kind, bool writable)
      : data_(data), size_(size), owner_(std::move(owner)), kind_(kind), writable_(writable) {}

  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  std::shared_ptr<const void> owner_;
  MemoryKind kind_ = MemoryKind::kHost;
  bool writable_ = false;
  bool mapped_ = false;
  bool transient_ = false;
};

}  // namespace oar
