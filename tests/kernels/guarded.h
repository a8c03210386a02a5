// Memory that ends where a forbidden page begins: a kernel that touches one byte past an operand dies on the
// spot. The start is only as aligned as the size happens to make it, which also exercises unaligned operands.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "tests/support/catch.h"

namespace oar_test {

template <class T>
class Guarded {
 public:
  Guarded() = default;
  // `align`: the start is moved down to a multiple of this; the guard then begins up to align - 1 bytes late.
  explicit Guarded(size_t count, size_t align = alignof(T)) : count_(count) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = (count * sizeof(T) + align - 1) / align * align;
    const size_t body = (bytes + page - 1) / page * page;
    mapped_ = body + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base_ != MAP_FAILED);
    REQUIRE(mprotect(static_cast<char*>(base_) + body, page, PROT_NONE) == 0);
    data_ = reinterpret_cast<T*>(static_cast<char*>(base_) + body - bytes);
  }
  Guarded(Guarded&& o) noexcept { swap(o); }
  Guarded& operator=(Guarded&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Guarded() {
    if (mapped_ != 0) munmap(base_, mapped_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + count_; }

 private:
  void swap(Guarded& o) {
    std::swap(base_, o.base_);
    std::swap(mapped_, o.mapped_);
    std::swap(data_, o.data_);
    std::swap(count_, o.count_);
  }
  void* base_ = nullptr;
  size_t mapped_ = 0;
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace oar_test
