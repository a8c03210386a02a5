// Names for things kept between runs: a hash of what they were made from. Tensors are sampled, up to 64 KiB
// of each, evenly spread: reading all of a large model would cost the time that keeping things saves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/loader/checkpoint.h"

namespace oar {

// FNV-1a over eight bytes at a time, finished by a mix: an identity, not a secret.
class ContentHash {
 public:
  void add(const void* data, size_t size);
  void add(std::string_view text) { add(text.data(), text.size()); }
  void add(int64_t number) { add(&number, sizeof number); }
  void add(const Tensor& tensor);  // format, shape, sampled bytes
  std::string hex() const;

 private:
  void step(uint64_t word);
  uint64_t a_ = 0xcbf29ce484222325u, b_ = 0x84222325cbf29ce4u;
};

// Of the tensors, by name: the same model in another place has the same.
std::string model_identity(const Checkpoint& checkpoint);

// Where things are kept when nobody says where: $XDG_CACHE_HOME/oar, else ~/.cache/oar; empty: nowhere.
std::string default_cache_dir();

}  // namespace oar
