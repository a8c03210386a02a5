// A protobuf message under construction (https://protobuf.dev/programming-guides/encoding/): fields are
// appended in the order of the calls. The other half of the importers' wire readers; no schema, no generated
// code.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace oar {

class ProtoWriter {
 public:
  ProtoWriter& number(int field, int64_t v) { return key(field, 0).varint(static_cast<uint64_t>(v)); }
  ProtoWriter& fixed32(int field, float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    key(field, 5);
    for (int k = 0; k < 4; ++k) bytes_ += static_cast<char>(bits >> (8 * k));
    return *this;
  }
  ProtoWriter& text(int field, std::string_view s) {
    key(field, 2).varint(s.size());
    bytes_ += s;
    return *this;
  }
  ProtoWriter& message(int field, const ProtoWriter& m) { return text(field, m.bytes_); }

  // Fields that are written already.
  ProtoWriter& raw(std::string_view fields) {
    bytes_ += fields;
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  ProtoWriter& key(int field, int wire) {
    return varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
  }
  ProtoWriter& varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes_ += static_cast<char>(v | 0x80);
    bytes_ += static_cast<char>(v);
    return *this;
  }
  std::string bytes_;
};

}  // namespace oar
