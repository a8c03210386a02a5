#include "engine/runtime/content_hash.h"

#include <cstdlib>
#include <cstring>

#include "engine/base/format.h"

namespace oar {

void ContentHash::add(const void* data, size_t size) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (; size >= 8; p += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    step(word);
  }
  uint64_t rest = size;
  for (size_t i = 0; i < size; ++i) rest = rest << 8 | p[i];
  step(rest);
}

void ContentHash::add(const Tensor& t) {
  constexpr uint64_t kPiece = 1024, kPieces = 64;
  add(std::string_view(t.format().name()));
  for (const int64_t d : t.shape()) add(d);
  const auto* bytes = static_cast<const std::byte*>(t.data());
  const uint64_t size = t.bytes();
  if (size <= kPiece * kPieces) return add(bytes, size);
  for (uint64_t k = 0; k < kPieces; ++k) add(bytes + (size - kPiece) / (kPieces - 1) * k, kPiece);
  t.buffer().release_pages();  // each piece brought many around it
}

std::string ContentHash::hex() const {
  std::string out;
  for (const uint64_t half : {a_, b_}) {
    for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[half >> shift & 15];
  }
  return out;
}

void ContentHash::step(uint64_t word) {
  a_ = (a_ ^ word) * 0x100000001b3u;
  a_ ^= a_ >> 29;
  b_ = (b_ + word) * 0x9e3779b97f4a7c15u;
  b_ ^= b_ >> 32;
}

std::string model_identity(const Checkpoint& checkpoint) {
  ContentHash hash;
  for (const auto& [name, tensor] : checkpoint.tensors) {  // in the order of names
    hash.add(std::string_view(name));
    hash.add(tensor);
  }
  return hash.hex();
}

std::string default_cache_dir() {
  for (const auto& [variable, rest] : {std::pair{"XDG_CACHE_HOME", "/oar"}, {"HOME", "/.cache/oar"}}) {
    if (const char* base = std::getenv(variable); base != nullptr && *base != 0) return cat(base, rest);
  }
  return {};
}

}  // namespace oar
