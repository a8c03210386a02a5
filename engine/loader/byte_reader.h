// A cursor over the bytes of an untrusted file. Every read is checked against what is left, counts and
// lengths before anything is allocated, and a failure says what was being read and where. Little-endian, like
// every format here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/format.h"
#include "engine/base/status.h"

namespace oar {

class ByteReader {
 public:
  // `name` (the file) is used in messages and must outlive the reader.
  ByteReader(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  uint64_t position() const { return at_; }
  uint64_t remaining() const { return bytes_.size() - at_; }

  // The next `size` bytes, viewed in place. Within its callers wherever: a vocabulary is read by it, and the
  // linker may give all of them the copy of a file that is compiled for size.
  [[gnu::always_inline]] Status take(uint64_t size, std::string_view what, std::span<const std::byte>& out) {
    if (size > remaining()) return truncated(size, what);
    out = bytes_.subspan(at_, size);
    at_ += size;
    return ok_status();
  }

  template <class T>
  [[gnu::always_inline]] Status read(std::string_view what, T& out) {
    static_assert(std::is_arithmetic_v<T>);
    std::span<const std::byte> raw;
    OAR_RETURN_IF_ERROR(take(sizeof(T), what, raw));
    memcpy(&out, raw.data(), sizeof(T));
    return ok_status();
  }

  // `count` items of at least `min_size` bytes each: refused when they cannot fit in what is left.
  Status check_count(uint64_t count, uint64_t min_size, std::string_view what) const {
    if (count <= remaining() / min_size) return ok_status();
    return data_loss(cat(name_, ": ", what, " at byte ", at_, " is ", count, ", more than the ", remaining(),
                         " bytes that are left can hold; the file is truncated or damaged"));
  }

 private:
  Status truncated(uint64_t size, std::string_view what) const;

  std::span<const std::byte> bytes_;
  std::string_view name_;
  uint64_t at_ = 0;
};

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A name from a file, for messages: in quotes, cut at 120 bytes, control characters and non-ASCII bytes as
// '?'.
std::string show_name(std::string_view name);

}  // namespace oar
