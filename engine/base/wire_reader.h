// Reads the protobuf wire format (https://protobuf.dev/programming-guides/encoding): fields one after the
// other, views into the buffer, nothing allocated. Any damage ends the walk with ok() == false.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace oar {

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint32_t wire_type = 0;
    uint64_t value = 0;      // varint, fixed64, fixed32
    std::string_view bytes;  // length-delimited
    bool is_varint() const { return wire_type == 0; }
    bool is_bytes() const { return wire_type == 2; }
    bool is_fixed32() const { return wire_type == 5; }
    bool is_fixed64() const { return wire_type == 1; }
    double as_double() const {
      double d;
      std::memcpy(&d, &value, sizeof d);
      return d;
    }
    float as_float() const {
      const auto bits = static_cast<uint32_t>(value);
      float f;
      std::memcpy(&f, &bits, sizeof f);
      return f;
    }
  };

  // nullopt at the end, or when what follows is damaged.
  std::optional<Field> next() {
    if (pos_ == bytes_.size() || !ok_) return std::nullopt;
    uint64_t tag = 0;
    Field f;
    if (!varint(tag) || (tag >> 3) == 0 || (tag >> 3) > 0x1FFFFFFF) return damaged();
    f.number = static_cast<uint32_t>(tag >> 3);
    f.wire_type = static_cast<uint32_t>(tag & 7);
    switch (f.wire_type) {
      case 0: return varint(f.value) ? std::optional(f) : damaged();
      case 1: return fixed(8, f.value) ? std::optional(f) : damaged();
      case 5: return fixed(4, f.value) ? std::optional(f) : damaged();
      case 2: {
        uint64_t length = 0;
        if (!varint(length) || length > bytes_.size() - pos_) return damaged();
        f.bytes = bytes_.substr(pos_, static_cast<size_t>(length));
        pos_ += static_cast<size_t>(length);
        return f;
      }
      default: return damaged();  // groups are not used by the formats read here
    }
  }
  bool ok() const { return ok_; }

 private:
  std::optional<Field> damaged() {
    ok_ = false;
    return std::nullopt;
  }
  bool varint(uint64_t& out) {
    out = 0;
    for (int shift = 0; shift < 70 && pos_ < bytes_.size(); shift += 7) {
      const auto b = static_cast<unsigned char>(bytes_[pos_++]);
      if (shift < 64) out |= static_cast<uint64_t>(b & 0x7F) << shift;
      if (!(b & 0x80)) return true;
    }
    return false;
  }
  bool fixed(size_t n, uint64_t& out) {
    if (bytes_.size() - pos_ < n) return false;
    out = 0;
    for (size_t i = 0; i < n; ++i)
      out |= static_cast<uint64_t>(static_cast<unsigned char>(bytes_[pos_ + i])) << (8 * i);
    pos_ += n;
    return true;
  }

  std::string_view bytes_;
  size_t pos_ = 0;
  bool ok_ = true;
};

}  // namespace oar
