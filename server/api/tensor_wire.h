// Tensors as the Open Inference Protocol writes them, whatever they travel in: names of datatypes, checked
// shapes, and raw bytes (row-major, little-endian, BYTES elements each behind their length as four bytes).
// gRPC and REST share it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/runtime/predictor.h"

namespace oar::api {

struct Datatype {
  std::string_view name;  // "FP32"
  DType dtype;
  int bytes;  // of one element; 0: BYTES, each element carries its length
};

// Null when the protocol has no such datatype.
const Datatype* find_datatype(std::string_view name);
const Datatype* datatype_of(DType dtype);
// The same as an error that names the tensor.
Result<const Datatype*> parse_datatype(std::string_view tensor, std::string_view name);

// `FP32 [1, 3, 224, 224]`.
std::string describe_tensor(std::string_view datatype, std::span<const int64_t> dims);
std::string describe_tensor(const Datum& d);
// A name in quotes, shortened, safe to print.
std::string in_quotes(std::string_view name);

// Refuses negative extents, more than Shape::kMaxRank of them and products beyond 2^32 elements.
Result<Shape> check_shape(std::string_view tensor, std::span<const int64_t> dims);

// A view of `raw`, which `owner` keeps alive (null: the caller does), where it is aligned for the datatype; a
// copy otherwise. INVALID_ARGUMENT names the tensor, the bytes given and the bytes its shape needs.
Result<Tensor> tensor_from_raw(std::string_view tensor, const Datatype& type, const Shape& shape,
                               std::string_view raw, std::shared_ptr<const void> owner);
// An uninitialized tensor (strings: empty) to be filled by a codec.
Result<Tensor> allocate_wire(const Datatype& type, const Shape& shape);

// The tensor must be of a datatype of the protocol.
uint64_t raw_size(const Tensor& t);
void append_raw(const Tensor& t, std::string& out);

}  // namespace oar::api
