#include "engine/import/onnx_tensor.h"

#include <cstring>

#include "engine/tensor/model_file.h"

namespace oar {
namespace {

constexpr DType kTypes[] = {DType::kBytes,    DType::kF32,  DType::kU8,   DType::kI8,       DType::kU16,
                            DType::kI16,      DType::kI32,  DType::kI64,  DType::kString,   DType::kBool,
                            DType::kF16,      DType::kF64,  DType::kU32,  DType::kU64,      DType::kBytes,
                            DType::kBytes,    DType::kBF16, DType::kE4M3, DType::kE4M3Fnuz, DType::kE5M2,
                            DType::kE5M2Fnuz, DType::kU4,   DType::kI4,   DType::kE2M1,     DType::kE8M0,
                            DType::kU2,       DType::kI2};
constexpr int64_t kTypeCount = sizeof(kTypes) / sizeof(kTypes[0]);

int bits_of(DType t) { return t == DType::kString ? 0 : dtype_bits(t); }

// Elements narrower than a byte lie several to a byte, the lowest bits first.
void unpack(DType dtype, const uint8_t* packed, int64_t count, uint8_t* out) {
  const int bits = bits_of(dtype), per = 8 / bits;
  for (int64_t k = 0; k < count; ++k) {
    auto v = static_cast<uint8_t>((packed[k / per] >> (bits * (k % per))) & ((1 << bits) - 1));
    if (dtype == DType::kI4) v = static_cast<uint8_t>(Element<i4>::store(static_cast<int8_t>(v)).value);
    if (dtype == DType::kI2) v = static_cast<uint8_t>(Element<i2>::store(static_cast<int8_t>(v)).value);
    out[k] = v;
  }
}

}  // namespace

std::optional<DType> dtype_of_onnx(int64_t type) {
  if (type <= 0 || type >= kTypeCount || kTypes[type] == DType::kBytes) return std::nullopt;
  return kTypes[type];
}

int onnx_type_of(DType dtype) {
  for (int64_t t = 1; t < kTypeCount; ++t) {
    if (kTypes[t] == dtype && dtype != DType::kBytes) return static_cast<int>(t);
  }
  return 0;
}

namespace onnx {
namespace {

// The typed fields of the message as dense elements.
Status read_typed(const TensorMsg& m, DType dtype, int64_t count, Tensor& out) {
  auto expect = [&](size_t have, int64_t want) {
    if (static_cast<int64_t>(have) == want) return ok_status();
    return data_loss(cat("tensor '", m.name, "' at byte ", m.offset, " has ", have,
                         " values where its shape needs ", want));
  };
  if (dtype == DType::kString) {
    OAR_RETURN_IF_ERROR(expect(m.strings.size(), count));
    for (int64_t k = 0; k < count; ++k)
      mutable_elements<std::string>(out)[k] = m.strings[static_cast<size_t>(k)];
    return ok_status();
  }
  if (dtype == DType::kF32 || dtype == DType::kF64) {
    const bool wide = dtype == DType::kF64;
    OAR_RETURN_IF_ERROR(expect(wide ? m.doubles.size() : m.floats.size(), count));
    if (count > 0) {
      std::memcpy(out.mutable_data(), wide ? static_cast<const void*>(m.doubles.data()) : m.floats.data(),
                  out.bytes());
    }
    return ok_status();
  }
  const int bits = bits_of(dtype);
  if (bits < 8) {
    const int per = 8 / bits;
    OAR_RETURN_IF_ERROR(expect(m.ints.size(), (count + per - 1) / per));
    std::vector<uint8_t> packed(m.ints.begin(), m.ints.end());
    unpack(dtype, packed.data(), count, mutable_elements<uint8_t>(out));
    return ok_status();
  }
  OAR_RETURN_IF_ERROR(expect(m.ints.size(), count));
  const size_t width = static_cast<size_t>(bits) / 8;
  auto* bytes = mutable_elements<uint8_t>(out);
  for (int64_t k = 0; k < count; ++k) {
    int64_t v = m.ints[static_cast<size_t>(k)];
    if (dtype == DType::kBool) v = v != 0;
    std::memcpy(bytes + static_cast<size_t>(k) * width, &v, width);
  }
  return ok_status();
}

}  // namespace

Result<Buffer> TensorSource::external(const TensorMsg& t) {
  const std::string location(t.location);
  if (path_.empty()) {
    return invalid_argument(
        cat("tensor '", t.name, "' lies in another file, '", location, "', and this model has no folder"));
  }
  auto& file = files_[location];
  if (!file) {
    FileOptions options;
    options.mmap = options_.mmap;
    const auto real = file_of_model(path_, location);
    if (!real.ok()) {
      return Status(real.status().code(),
                    cat("tensor '", t.name, "': external data ", real.status().message()));
    }
    OAR_ASSIGN(file, MappedFile::open(*real, options));
  }
  const uint64_t length = t.external_sized                    ? t.external_length
                          : file->size() >= t.external_offset ? file->size() - t.external_offset
                                                              : 0;
  if (t.external_offset > file->size() || length > file->size() - t.external_offset) {
    return data_loss(cat("tensor '", t.name, "': bytes [", t.external_offset, ", +", length,
                         ") lie outside '", location, "' of ", file->size(), " bytes"));
  }
  return file_slice(file, t.external_offset, length);
}

std::vector<std::string> TensorSource::external_files() const {
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "./" : path_.substr(0, slash + 1);
  std::vector<std::string> paths;
  for (const auto& [location, file] : files_) paths.push_back(folder + location);
  return paths;
}

Result<Tensor> TensorSource::read(const TensorMsg& m, DeferredCopies* later) {
  const auto dtype = dtype_of_onnx(m.type);
  if (!dtype) {
    return unimplemented(cat("tensor '", m.name, "' at byte ", m.offset, " has element type ", m.type,
                             ", which is not supported"));
  }
  auto checked = checked_shape(m.dims);
  if (!checked.ok()) {
    return data_loss(cat("tensor '", m.name, "' at byte ", m.offset, ": ", checked.status().message()));
  }
  const Shape shape = *checked;
  const int64_t count = shape.numel();
  const bool narrow = *dtype != DType::kString && bits_of(*dtype) < 8;
  if (m.has_raw || m.external) {
    Buffer bytes;
    if (m.external) {
      OAR_ASSIGN(bytes, external(m));
    } else {
      const auto at = static_cast<uint64_t>(m.raw.data() - static_cast<const char*>(file_.data()));
      if (!m.raw.empty()) bytes = file_.slice(at, m.raw.size());
    }
    if (*dtype == DType::kString) return data_loss(cat("tensor '", m.name, "': strings in raw data"));
    if (!narrow) {
      auto t = tensor_from_bytes(shape, *dtype, std::move(bytes), later);
      if (!t.ok()) {
        return Status(t.status().code(),
                      cat("tensor '", m.name, "' at byte ", m.offset, ": ", t.status().message()));
      }
      return t;
    }
    const int per = 8 / bits_of(*dtype);
    if (static_cast<int64_t>(bytes.size()) != (count + per - 1) / per) {
      return data_loss(cat("tensor '", m.name, "' at byte ", m.offset, ": ", bytes.size(), " bytes for ",
                           count, " elements of ", dtype_name(*dtype)));
    }
    OAR_ASSIGN(Tensor t, allocate_elements(shape, *dtype));
    unpack(*dtype, static_cast<const uint8_t*>(bytes.data()), count, mutable_elements<uint8_t>(t));
    return t;
  }
  // Before allocating: no more elements than the message can hold.
  const size_t held = std::max({m.floats.size(), m.doubles.size(), m.ints.size() * 4, m.strings.size()});
  if (static_cast<uint64_t>(count) > held) {
    return data_loss(cat("tensor '", m.name, "' at byte ", m.offset, " of shape ", shape.to_string(),
                         " lacks its values"));
  }
  OAR_ASSIGN(Tensor t, allocate_elements(shape, *dtype));
  OAR_RETURN_IF_ERROR(read_typed(m, *dtype, count, t));
  return t;
}

Result<Tensor> TensorSource::read(const SparseMsg& s) {
  OAR_ASSIGN(const Tensor values, read(s.values));
  OAR_ASSIGN(const Tensor indices, read(s.indices));
  OAR_ASSIGN(const Shape shape, checked_shape(s.dims));
  OAR_ASSIGN(Tensor out, allocate_elements(shape, values.format().dtype(), uint64_t{1} << 32));
  const int64_t n = values.numel(), rank = shape.rank();
  const bool linear = indices.shape().rank() == 1;
  if (indices.format().dtype() != DType::kI64 || indices.numel() != (linear ? n : n * rank)) {
    return data_loss(cat("sparse tensor '", s.values.name, "': indices do not match its values"));
  }
  Status status;
  dispatch_move(out, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t k = 0; k < n; ++k) {
      int64_t at = linear ? elements<int64_t>(indices)[k] : 0;
      for (int d = 0; d < rank && !linear; ++d) {
        const int64_t i = elements<int64_t>(indices)[k * rank + d];
        if (i < 0 || i >= shape[d]) status = data_loss("an index of a sparse tensor is out of range");
        else at = at * shape[d] + i;
      }
      if (at < 0 || at >= shape.numel()) status = data_loss("an index of a sparse tensor is out of range");
      if (!status.ok()) return;
      mutable_elements<T>(out)[at] = elements<T>(values)[k];
    }
  });
  OAR_RETURN_IF_ERROR(status);
  return out;
}

namespace {

Result<Datum> container_value(TensorSource& source, const ContainerMsg& c, bool optional, int depth) {
  if (depth > 8) return data_loss("sequences nest too deeply");
  if (optional) {
    if (!c.tensors.empty()) {
      OAR_ASSIGN(Tensor t, source.read(c.tensors[0]));
      return Datum(std::move(t));
    }
    if (!c.containers.empty()) return container_value(source, c.containers[0], false, depth + 1);
    return Datum();
  }
  std::vector<Datum> items;
  for (const TensorMsg& m : c.tensors) {
    OAR_ASSIGN(Tensor t, source.read(m));
    items.emplace_back(std::move(t));
  }
  for (const ContainerMsg& m : c.containers) {
    OAR_ASSIGN(Datum d, container_value(source, m, false, depth + 1));
    items.push_back(std::move(d));
  }
  return Datum::sequence(std::move(items));
}

}  // namespace
}  // namespace onnx

Result<Datum> read_onnx_value(Buffer bytes, IoSpec::Kind kind, const std::string& name) {
  const std::string_view view(static_cast<const char*>(bytes.data()), bytes.size());
  onnx::TensorSource source(bytes, "", ImportOptions());
  auto value = [&]() -> Result<Datum> {
    if (kind == IoSpec::Kind::kTensor) {
      OAR_ASSIGN(const onnx::TensorMsg m, onnx::read_tensor(view));
      OAR_ASSIGN(Tensor t, source.read(m));
      return Datum(std::move(t));
    }
    OAR_ASSIGN(const onnx::ContainerMsg c, onnx::read_container(view));
    return onnx::container_value(source, c, kind == IoSpec::Kind::kOptional, 0);
  }();
  if (!value.ok()) return Status(value.status().code(), cat(name, ": ", value.status().message()));
  return value;
}

Result<std::string> write_onnx_tensor(const Tensor& t, std::string_view name) {
  std::string out;
  auto varint = [&](uint64_t v) {
    for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
    out += static_cast<char>(v);
  };
  auto bytes = [&](int field, std::string_view s) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(s.size());
    out += s;
  };
  const DType dtype = t.format().dtype();
  const int type = onnx_type_of(dtype);
  if (type == 0) return unimplemented(cat("ONNX has no element type for ", t.format().name()));
  for (int64_t d : t.shape()) varint(1 << 3), varint(static_cast<uint64_t>(d));
  varint(2 << 3), varint(static_cast<uint64_t>(type));
  if (!name.empty()) bytes(8, name);
  if (dtype == DType::kString) {
    for (int64_t k = 0; k < t.numel(); ++k) bytes(6, elements<std::string>(t)[k]);
    return out;
  }
  if (bits_of(dtype) >= 8) {
    bytes(9, {static_cast<const char*>(t.data()), t.bytes()});
    return out;
  }
  const int bits = bits_of(dtype), per = 8 / bits;
  std::string packed(static_cast<size_t>((t.numel() + per - 1) / per), '\0');
  for (int64_t k = 0; k < t.numel(); ++k) {
    const int v = elements<uint8_t>(t)[k] & ((1 << bits) - 1);
    packed[static_cast<size_t>(k / per)] =
        static_cast<char>(packed[static_cast<size_t>(k / per)] | v << (bits * (k % per)));
  }
  bytes(9, packed);
  return out;
}

}  // namespace oar
