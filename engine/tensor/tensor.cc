#include "engine/tensor/tensor.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/base/format.h"
#include "engine/tensor/charge.h"
#include "engine/tensor/huge_pages.h"

namespace oar {

std::string Shape::to_string() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i) s += i == 0 ? cat(dims_[i]) : cat(", ", dims_[i]);
  return s + "]";
}

namespace {

struct HostMemory {
  HostMemory() = default;
  ~HostMemory() { std::free(data); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  void* data = nullptr;
  Reservation charge;
};

Result<Buffer> allocate_host(uint64_t size, bool zeroed) {
  if (size == 0) return Buffer();
  // aligned_alloc wants a multiple of the alignment; kernels may also read, never write, up to the rounded
  // end.
  constexpr uint64_t kAddressSpace = uint64_t{1} << 47;  // of a process, on x86-64 and AArch64 alike
  if (size > kAddressSpace - Buffer::kAlignment) {
    return resource_exhausted(cat("cannot allocate ", size, " bytes of host memory: not addressable"));
  }
  const uint64_t rounded = (size + Buffer::kAlignment - 1) & ~uint64_t{Buffer::kAlignment - 1};
  auto owner = std::make_shared<HostMemory>();
  if (Reservation* const from = ChargeTo::current(); from != nullptr && size >= Buffer::kCharged) {
    OAR_ASSIGN(owner->charge, from->take(rounded));
  }
  void* const p = owner->data = std::aligned_alloc(Buffer::kAlignment, rounded);
  if (!p) return resource_exhausted(cat("cannot allocate ", format_bytes(size), " of host memory"));
  if (zeroed) memset(p, 0, rounded);
  return Buffer::wrap(p, size, std::move(owner));
}

}  // namespace

Result<Buffer> Buffer::allocate(uint64_t size) { return allocate_host(size, false); }
Result<Buffer> Buffer::zeros(uint64_t size) { return allocate_host(size, true); }

namespace {
// Advice about the whole pages of a range. Advice only: a refusal leaves the pages as they are.
void advise(const std::byte* data, uint64_t size, int advice) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}
}  // namespace

void Buffer::release_pages() const {
  if (mapped_) advise(data_, size_, MADV_DONTNEED);
}

void prefer_huge_pages(const Buffer& buffer) {
#ifdef MADV_HUGEPAGE
  if (buffer.kind() == MemoryKind::kHost && !buffer.mapped())
    advise(static_cast<const std::byte*>(buffer.data()), buffer.size(), MADV_HUGEPAGE);
#endif
}

Result<int64_t> tensor_bytes(const Shape& shape, Format format) {
  const auto row = format.row_bytes(shape.cols());
  if (!row) {
    return invalid_argument(cat("shape ", shape.to_string(), " does not fit format ", format.name(),
                                ": the innermost size must be a multiple of ", format.block_elems(),
                                " and its bytes fit in 63 bits"));
  }
  const auto rows = shape.checked_rows();
  int64_t bytes = 0;
  if (!shape.checked_numel() || !rows || __builtin_mul_overflow(*rows, *row, &bytes)) {
    return invalid_argument(
        cat("shape ", shape.to_string(), " of ", format.name(), " overflows 63-bit sizes"));
  }
  return bytes;
}

Result<Tensor> Tensor::make(const Shape& shape, Format format, Buffer buffer) {
  OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, format));
  if (static_cast<uint64_t>(bytes) > buffer.size()) {
    return invalid_argument(cat("a tensor ", shape.to_string(), " of ", format.name(), " needs ", bytes,
                                " bytes; its buffer has ", buffer.size()));
  }
  return Tensor(shape, format, buffer.slice(0, static_cast<uint64_t>(bytes)));
}

Result<Tensor> Tensor::allocate(const Shape& shape, Format format) {
  OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, format));
  OAR_ASSIGN(Buffer buffer, Buffer::allocate(static_cast<uint64_t>(bytes)));
  return Tensor(shape, format, std::move(buffer));
}

Result<Tensor> Tensor::zeros(const Shape& shape, Format format) {
  OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, format));
  OAR_ASSIGN(Buffer buffer, Buffer::zeros(static_cast<uint64_t>(bytes)));
  return Tensor(shape, format, std::move(buffer));
}

Result<Tensor> Tensor::reshape(const Shape& shape) const {
  const auto n = shape.checked_numel();
  if (!n || *n != numel()) {
    return invalid_argument(
        cat("cannot view ", shape_.to_string(), " as ", shape.to_string(), ": the element counts differ"));
  }
  if (format_.head_bytes() > 0 && shape.cols() != shape_.cols()) {
    return invalid_argument(cat("cannot view ", shape_.to_string(), " of ", format_.name(), " as ",
                                shape.to_string(), ": a row of this format has a head and stays whole"));
  }
  if (!has_bytes()) return without_bytes(shape, format_);  // of a run that is only sized
  return make(shape, format_, buffer_);
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  OAR_CHECK(shape_.rank() >= 1 && begin >= 0 && begin <= end && end <= shape_[0], "slice outside the tensor");
  OAR_CHECK(shape_.rank() > 1 || format_.head_bytes() == 0, "slice cuts a row with a head");
  int64_t dims[Shape::kMaxRank];
  std::copy(shape_.begin(), shape_.end(), dims);
  const auto offset_of = [&](int64_t count) {  // bytes of the first `count` entries
    dims[0] = count;
    const auto bytes = tensor_bytes(Shape(std::span<const int64_t>(dims, shape_.rank())), format_);
    OAR_CHECK(bytes.ok(), "slice cuts a block");
    return static_cast<uint64_t>(*bytes);
  };
  const uint64_t from = offset_of(begin), to = offset_of(end);
  dims[0] = end - begin;
  return Tensor(Shape(std::span<const int64_t>(dims, shape_.rank())), format_,
                has_bytes() ? buffer_.slice(from, to - from) : Buffer());
}

Result<Tensor> to_f32(const Tensor& t) {
  OAR_CHECK(t.defined() && t.kind() == MemoryKind::kHost, "to_f32 reads host tensors");
  OAR_ASSIGN(Tensor out, Tensor::allocate(t.shape(), Format::f32()));
  if (t.numel() == 0) return out;  // a hostile file may declare 2^62 rows of nothing
  const int64_t rows = t.shape().rows(), cols = t.shape().cols(), stride = t.format().stride(cols);
  for (int64_t r = 0; r < rows; ++r) {
    t.format().decode_row(static_cast<const std::byte*>(t.data()) + r * stride, cols,
                          static_cast<float*>(out.mutable_data()) + r * cols);
  }
  return out;
}

Result<Tensor> aligned(Tensor tensor) {
  const auto at = reinterpret_cast<uintptr_t>(tensor.data());
  if (at % static_cast<size_t>(tensor.format().info().alignment) == 0) return tensor;
  OAR_ASSIGN(Tensor copy, Tensor::allocate(tensor.shape(), tensor.format()));
  if (tensor.bytes() > 0) std::memcpy(copy.mutable_data(), tensor.data(), tensor.bytes());
  return copy;
}

}  // namespace oar
