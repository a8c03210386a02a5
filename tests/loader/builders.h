// Small model files made in memory, right or deliberately wrong, and what every test does with bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/format.h"
#include "engine/loader/gguf.h"
#include "engine/tensor/tensor.h"
#include "tests/support/test_data.h"

namespace oar_test {

// The bytes in an allocation of exactly their size, so that AddressSanitizer sees every read past them.
inline oar::Buffer exact_buffer(std::string_view bytes) {
  auto* copy = static_cast<std::byte*>(malloc(bytes.size() == 0 ? 1 : bytes.size()));
  if (!bytes.empty()) memcpy(copy, bytes.data(), bytes.size());
  return oar::Buffer::wrap_const(copy, bytes.size(), std::shared_ptr<std::byte>(copy, free));
}

template <class T>
void append(std::string& out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string out;
  append<uint64_t>(out, header.size());
  out += header;
  out += data;
  return out;
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out) throw std::runtime_error("cannot write " + path);
}

inline std::string floats(std::initializer_list<float> values) {
  std::string out;
  for (float v : values) append(out, v);
  return out;
}

// Writes GGUF v3. Values are put as given: nothing is checked, so that tests can lie.
class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;
  int64_t tensor_count_error = 0, key_count_error = 0;  // added to the true counts
  struct Key {
    std::string name;
    oar::GgufType type;
    std::string payload;
  };
  std::vector<Key> keys;

  static std::string text(std::string_view s) {
    std::string out;
    append<uint64_t>(out, s.size());
    return out += s;
  }
  GgufBuilder& raw(std::string_view key, oar::GgufType type, std::string_view payload) {
    keys.push_back({std::string(key), type, std::string(payload)});
    return *this;
  }
  GgufBuilder& str(std::string_view key, std::string_view v) {
    return raw(key, oar::GgufType::kString, text(v));
  }
  GgufBuilder& u32(std::string_view key, uint32_t v) { return scalar(key, oar::GgufType::kU32, v); }
  GgufBuilder& f32(std::string_view key, float v) { return scalar(key, oar::GgufType::kF32, v); }
  template <class T>
  GgufBuilder& scalar(std::string_view key, oar::GgufType type, T v) {
    std::string payload;
    append(payload, v);
    return raw(key, type, payload);
  }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& items) {
    std::string payload = array_head(oar::GgufType::kString, items.size());
    for (const std::string& s : items) payload += text(s);
    return raw(key, oar::GgufType::kArray, payload);
  }
  template <class T>
  GgufBuilder& array(std::string_view key, oar::GgufType element, const std::vector<T>& items) {
    std::string payload = array_head(element, items.size());
    for (const T& v : items) append(payload, v);
    return raw(key, oar::GgufType::kArray, payload);
  }
  static std::string array_head(oar::GgufType element, uint64_t count) {
    std::string out;
    append(out, static_cast<uint32_t>(element));
    append(out, count);
    return out;
  }
  // `dims` innermost first, as in the file. The offset follows from the data so far unless given.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      std::string_view bytes, int64_t offset = -1) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    directory_ += text(name);
    append(directory_, static_cast<uint32_t>(dims.size()));
    for (uint64_t d : dims) append(directory_, d);
    append(directory_, type);
    append(directory_, offset < 0 ? static_cast<uint64_t>(data_.size()) : static_cast<uint64_t>(offset));
    data_ += bytes;
    ++tensors_;
    return *this;
  }
  std::string bytes() const {
    std::string out = "GGUF";
    append(out, version);
    append(out, tensors_ + static_cast<uint64_t>(tensor_count_error));
    append(out, keys.size() + static_cast<uint64_t>(key_count_error));
    for (const Key& key : keys) {
      out += text(key.name);
      append(out, static_cast<uint32_t>(key.type));
      out += key.payload;
    }
    out += directory_;
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data_;
  }

 private:
  uint64_t tensors_ = 0;
  std::string directory_, data_;
};

// A byte of every page and the ends of a tensor, and its decoded values where it is small: a view that
// reaches outside its file shows here.
inline uint64_t touch(const oar::Tensor& t) {
  const auto* p = static_cast<const unsigned char*>(t.data());
  uint64_t sum = 0;
  for (uint64_t i = 0; i < t.bytes(); i += 512) sum += p[i];
  if (t.bytes() > 0) sum += p[t.bytes() - 1];
  if (t.numel() < 4096) {
    auto values = oar::to_f32(t);
    sum += values.ok() ? values->bytes() : 0;
  }
  return sum;
}

}  // namespace oar_test
