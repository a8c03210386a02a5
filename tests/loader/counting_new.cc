// operator new that counts, so that a test can say how much a parser allocated. A file of its own: the
// compiler must not see it beside code that uses it, or it inlines one half of the pair and warns about the
// other.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace oar_test {
std::atomic<uint64_t> allocated_bytes{0};
}

void* operator new(size_t size) {
  oar_test::allocated_bytes += size;
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  oar_test::allocated_bytes += size;
  return std::malloc(size ? size : 1);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
