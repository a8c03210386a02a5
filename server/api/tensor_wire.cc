#include "server/api/tensor_wire.h"

#include <cstring>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "server/api/fields.h"

namespace oar::api {
namespace {

constexpr Datatype kDatatypes[] = {
    {"BOOL", DType::kBool, 1},  {"UINT8", DType::kU8, 1},     {"UINT16", DType::kU16, 2},
    {"UINT32", DType::kU32, 4}, {"UINT64", DType::kU64, 8},   {"INT8", DType::kI8, 1},
    {"INT16", DType::kI16, 2},  {"INT32", DType::kI32, 4},    {"INT64", DType::kI64, 8},
    {"FP16", DType::kF16, 2},   {"BF16", DType::kBF16, 2},    {"FP32", DType::kF32, 4},
    {"FP64", DType::kF64, 8},   {"BYTES", DType::kString, 0},
};

constexpr int64_t kMaxElements = int64_t{1} << 32;  // no message is that large

Status bad_tensor(std::string_view tensor, std::string_view why, const char* param) {
  return invalid_argument(cat("input ", in_quotes(tensor), ": ", why), param);
}

uint32_t little_endian32(const char* p) {
  unsigned char b[4];
  std::memcpy(b, p, 4);
  return b[0] | uint32_t{b[1]} << 8 | uint32_t{b[2]} << 16 | uint32_t{b[3]} << 24;
}

Result<Tensor> strings_from_raw(std::string_view tensor, const Shape& shape, std::string_view raw) {
  const int64_t count = shape.numel();
  // Each element takes four bytes at least: checked before anything is allocated for a shape of billions.
  if (static_cast<uint64_t>(count) > raw.size() / 4) {
    return bad_tensor(tensor,
                      cat(raw.size(), " raw bytes cannot hold the ", count, " BYTES elements of its shape"),
                      "raw_input_contents");
  }
  OAR_ASSIGN(Tensor out, allocate_elements(shape, DType::kString));
  auto* to = mutable_elements<std::string>(out);
  size_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (raw.size() - at < 4)
      return bad_tensor(tensor, cat("raw element ", i, " of ", count, " lacks its 4-byte length"),
                        "raw_input_contents");
    const uint32_t length = little_endian32(raw.data() + at);
    at += 4;
    if (raw.size() - at < length) {
      return bad_tensor(
          tensor, cat("raw element ", i, " says ", length, " bytes but only ", raw.size() - at, " follow"),
          "raw_input_contents");
    }
    to[i].assign(raw.substr(at, length));
    at += length;
  }
  if (at != raw.size()) {
    return bad_tensor(
        tensor,
        cat(raw.size() - at, " raw bytes are left over after ", count, " elements; size and shape disagree"),
        "raw_input_contents");
  }
  return out;
}

}  // namespace

const Datatype* find_datatype(std::string_view name) {
  for (const Datatype& d : kDatatypes)
    if (d.name == name) return &d;
  return nullptr;
}

const Datatype* datatype_of(DType dtype) {
  for (const Datatype& d : kDatatypes)
    if (d.dtype == dtype) return &d;
  return nullptr;
}

Result<const Datatype*> parse_datatype(std::string_view tensor, std::string_view name) {
  if (const Datatype* d = find_datatype(name)) return d;
  return bad_tensor(
      tensor, cat("the datatype ", in_quotes(name), " is unknown; use BOOL, BYTES, INT8 to FP64 or BF16"),
      "datatype");
}

std::string describe_tensor(std::string_view datatype, std::span<const int64_t> dims) {
  std::string out = cat(datatype, " [");
  for (size_t k = 0; k < dims.size(); ++k) out += cat(k ? ", " : "", dims[k]);
  return out + "]";
}

std::string describe_tensor(const Datum& d) {
  if (!d.is_tensor()) return d.to_string();
  const Shape& s = d.tensor.shape();
  const Datatype* type = datatype_of(d.tensor.format().dtype());
  return describe_tensor(type ? type->name : std::string_view(dtype_name(d.tensor.format().dtype())),
                         {s.begin(), s.end()});
}

std::string in_quotes(std::string_view name) {
  return describe(json::value(json::string_view(name.data(), name.size())));
}

Result<Shape> check_shape(std::string_view tensor, std::span<const int64_t> dims) {
  if (dims.size() > static_cast<size_t>(Shape::kMaxRank))
    return bad_tensor(tensor, cat("has ", dims.size(), " dimensions; at most ", Shape::kMaxRank), "shape");
  int64_t count = 1;
  for (const int64_t dim : dims) {
    if (dim < 0)
      return bad_tensor(tensor, cat("has the negative dimension ", dim, "; give actual sizes"), "shape");
    if (dim > 0 && count > kMaxElements / dim)
      return invalid_argument(
          cat("byte size overflow for input ", in_quotes(tensor),
              ": its shape causes total element count to exceed maximum size of ", kMaxElements),
          "shape");
    if (dim > 0) count *= dim;
  }
  return Shape(dims);
}

Result<Tensor> tensor_from_raw(std::string_view tensor, const Datatype& type, const Shape& shape,
                               std::string_view raw, std::shared_ptr<const void> owner) {
  if (type.bytes == 0) return strings_from_raw(tensor, shape, raw);
  const uint64_t needed = static_cast<uint64_t>(shape.numel()) * static_cast<uint64_t>(type.bytes);
  if (needed != raw.size()) {
    return bad_tensor(tensor,
                      cat("has ", raw.size(), " raw bytes but ",
                          describe_tensor(type.name, {shape.begin(), shape.end()}), " needs ", needed),
                      "raw_input_contents");
  }
  return tensor_from_bytes(shape, type.dtype, Buffer::wrap_const(raw.data(), raw.size(), std::move(owner)));
}

Result<Tensor> allocate_wire(const Datatype& type, const Shape& shape) {
  return allocate_elements(shape, type.dtype, uint64_t{1} << 36, false);
}

uint64_t raw_size(const Tensor& t) {
  if (t.format().dtype() != DType::kString) return t.bytes();
  uint64_t size = 0;
  for (int64_t i = 0; i < t.numel(); ++i) size += 4 + elements<std::string>(t)[i].size();
  return size;
}

void append_raw(const Tensor& t, std::string& out) {
  if (t.format().dtype() != DType::kString) {
    out.append(static_cast<const char*>(t.data()), t.bytes());
    return;
  }
  for (int64_t i = 0; i < t.numel(); ++i) {
    const std::string& s = elements<std::string>(t)[i];
    const auto length = static_cast<uint32_t>(s.size());
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(length >> shift & 0xFF);
    out += s;
  }
}

}  // namespace oar::api
