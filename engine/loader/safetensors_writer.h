// Writes a safetensors file tensor by tensor, in any order, so that no more than one tensor is in memory. The
// layout is settled first; bytes then go to their places. Durable and atomic are the caller's: write under a
// temporary name, sync(), rename.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/tensor/tensor.h"

namespace oar {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // "BF16", "F32", "U8": safetensors' words
  std::vector<int64_t> shape;  // row-major
  uint64_t bytes = 0;
};

// safetensors' word for a plain format's dtype; empty when it has none.
std::string safetensors_dtype(DType dtype);

class SafetensorsWriter {
 public:
  // Creates `path` at its full size, or, with `resume`, opens one made by the same entries and metadata
  // (DATA_LOSS when it differs). RESOURCE_EXHAUSTED before anything is written when the disk has no room.
  // `last`: the tensor to lie at the end; the others come in the order of what their alignment needs.
  static Result<SafetensorsWriter> open(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                                        const std::map<std::string, std::string>& metadata, bool resume,
                                        std::string_view last = {});
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  ~SafetensorsWriter();

  // `size` bytes at `offset` within a tensor. Any thread; ranges must not overlap.
  Status write(const std::string& name, const void* data, uint64_t size, uint64_t offset = 0);
  // Everything written so far is on the disk when it returns.
  Status sync();
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  SafetensorsWriter() = default;
  struct Place {
    uint64_t offset = 0, bytes = 0;
  };
  std::string path_;
  std::map<std::string, Place> places_;
  uint64_t file_bytes_ = 0;
  int fd_ = -1;
};

// A tensor of a file that is written at once.
struct SafetensorsTensor {
  std::string name;
  Tensor tensor;
  Format as = tensor.format();  // of f32: rounded to this when its turn comes
};
// UNIMPLEMENTED names a tensor whose format such a file cannot hold.
Result<std::string> safetensors_dtype(const std::string& name, Format format);
// f32 rounded to `format`, or `t` where that is its own.
Result<Tensor> stored_as(const Tensor& t, Format format);
// All of them, on the disk when it returns. Pages of mapped files that are read on the way leave memory.
Status write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace oar
