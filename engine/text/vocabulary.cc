// Linear probing on a half-full table.
#include "engine/text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace oar {

uint64_t hash_bytes(std::string_view s) {
  // Multiply-and-fold over 8-byte words (the mixing step of wyhash).
  constexpr uint64_t kSeed = 0x9E3779B97F4A7C15ULL, kPrime = 0xD6E8FEB86659FD93ULL;
  const auto mix = [](uint64_t a, uint64_t b) {
    const unsigned __int128 m = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  };
  uint64_t h = kSeed ^ s.size();
  const char* p = s.data();
  size_t n = s.size();
  while (n >= 8) {
    uint64_t w;
    std::memcpy(&w, p, 8);
    h = mix(h ^ w, kPrime);
    p += 8, n -= 8;
  }
  uint64_t tail = 0;
  for (size_t i = 0; i < n; ++i) tail |= static_cast<uint64_t>(static_cast<unsigned char>(p[i])) << (8 * i);
  return mix(h ^ tail, kPrime ^ kSeed);
}

Vocabulary Vocabulary::build(std::span<const std::string> texts) {
  Vocabulary v;
  size_t bytes = 0;
  for (const std::string& t : texts) bytes += t.size();
  v.arena_.reserve(bytes);
  v.offsets_.reserve(texts.size() + 1);
  v.offsets_.push_back(0);
  v.slots_.assign(std::bit_ceil(std::max<size_t>(16, texts.size() * 2)), -1);
  for (size_t id = 0; id < texts.size(); ++id) {
    v.arena_ += texts[id];
    v.offsets_.push_back(static_cast<uint32_t>(v.arena_.size()));
    v.longest_ = std::max(v.longest_, texts[id].size());
    if (texts[id].empty()) continue;
    size_t i = hash_bytes(texts[id]) & (v.slots_.size() - 1);
    while (v.slots_[i] >= 0 && v.text(v.slots_[i]) != texts[id]) i = (i + 1) & (v.slots_.size() - 1);
    if (v.slots_[i] < 0) v.slots_[i] = static_cast<int32_t>(id);
  }
  return v;
}

int32_t Vocabulary::find(std::string_view text) const {
  if (slots_.empty() || text.empty() || text.size() > longest_) return -1;
  for (size_t i = hash_bytes(text) & (slots_.size() - 1); slots_[i] >= 0; i = (i + 1) & (slots_.size() - 1))
    if (this->text(slots_[i]) == text) return slots_[i];
  return -1;
}

}  // namespace oar
