// The two wire elements that the GGUF directory parser and its metadata lookups share.
#pragma once

#include <string>
#include <string_view>

#include "engine/loader/byte_reader.h"
#include "engine/loader/gguf.h"

namespace oar {

// Bytes of a fixed-size type; 0 for strings and arrays.
inline uint64_t scalar_size(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    default: return 0;
  }
}

// A length of 64 bits, at most max_size, and that many bytes, viewed in place.
inline Status read_string(ByteReader& in, uint64_t max_size, std::string_view what, const std::string& file,
                          std::string_view& out) {
  uint64_t size = 0;
  OAR_RETURN_IF_ERROR(in.read(what, size));
  if (size > max_size) {
    return data_loss(cat(file, ": ", what, " before byte ", in.position(), " has ", size, " bytes; at most ",
                         max_size, " are accepted"));
  }
  std::span<const std::byte> bytes;
  OAR_RETURN_IF_ERROR(in.take(size, what, bytes));
  out = as_text(bytes);
  return ok_status();
}

}  // namespace oar
