// Tensor: a shape, a Format and the bytes. Row-major and contiguous, always: a layout other than that is a
// kernel's private packing, not a Tensor. Cheap to copy (copies share the bytes). Thread-compatible; who
// writes is the caller's affair.
#pragma once

#include <span>

#include "engine/tensor/buffer.h"
#include "engine/tensor/shape.h"
#include "quant/format.h"

namespace oar {

// Bytes of a tensor: rows * row_bytes(cols). INVALID_ARGUMENT when the innermost size is no multiple of the
// format's block or the size overflows.
Result<int64_t> tensor_bytes(const Shape& shape, Format format);

class Tensor {
 public:
  Tensor() = default;  // no bytes; defined() is false

  // Views the first bytes of `buffer`, which must hold them all.
  static Result<Tensor> make(const Shape& shape, Format format, Buffer buffer);
  // New host memory.
  static Result<Tensor> allocate(const Shape& shape, Format format);
  static Result<Tensor> zeros(const Shape& shape, Format format);

  // Shape and format of bytes that have left memory: what is made of weights once they are packed. Its data()
  // is null and bytes() 0; a view of it has no bytes either.
  static Tensor without_bytes(const Shape& shape, Format format) { return Tensor(shape, format, Buffer()); }
  bool has_bytes() const { return buffer_.data() != nullptr || numel() == 0; }

  bool defined() const { return defined_; }
  const Shape& shape() const { return shape_; }
  Format format() const { return format_; }
  const Buffer& buffer() const { return buffer_; }
  MemoryKind kind() const { return buffer_.kind(); }
  int64_t numel() const { return shape_.numel(); }
  uint64_t bytes() const { return buffer_.size(); }

  const void* data() const { return buffer_.data(); }
  void* mutable_data() const { return buffer_.mutable_data(); }
  // Typed view of a plain host tensor; T must be its element type.
  template <class T>
  std::span<const T> values() const {
    check_typed(DTypeOf<T>::value);
    return {static_cast<const T*>(data()), static_cast<size_t>(numel())};
  }
  template <class T>
  std::span<T> mutable_values() const {
    check_typed(DTypeOf<T>::value);
    return {static_cast<T*>(mutable_data()), static_cast<size_t>(numel())};
  }

  // The same bytes under another shape of equally many elements (and, for block formats, whole blocks per
  // row; rows with a head keep their length).
  Result<Tensor> reshape(const Shape& shape) const;
  // Entries [begin, end) of the outermost axis: a view. The range must lie inside and the rank be at least 1;
  // for rank 1 of a block format both ends must lie on block borders, and rows with a head have no parts.
  Tensor slice(int64_t begin, int64_t end) const;

 private:
  Tensor(const Shape& shape, Format format, Buffer buffer)
      : shape_(shape), format_(format), buffer_(std::move(buffer)), defined_(true) {}
  void check_typed(DType dtype) const {
    OAR_CHECK(format_.plain() && format_.dtype() == dtype, "tensor has another element type");
    OAR_CHECK(kind() == MemoryKind::kHost, "tensor is not in host memory");
  }

  Shape shape_;
  Format format_;
  Buffer buffer_;  // exactly the tensor's bytes, or none of them
  bool defined_ = false;
};

// A host tensor's values as f32, decoded by its Format's scalar reader. For tests, small weights and the
// reference path; kernels read the bytes themselves.
Result<Tensor> to_f32(const Tensor& t);

// The tensor itself where its bytes lie as its format's alignment asks, otherwise an aligned copy: what
// loaders do with tensors at offsets that a file chose.
Result<Tensor> aligned(Tensor tensor);

}  // namespace oar
