#include "engine/loader/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/file_writer.h"

namespace oar {
std::string safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF64: return "F64";
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kE4M3: return "F8_E4M3";
    case DType::kE5M2: return "F8_E5M2";
    case DType::kI64: return "I64";
    case DType::kI32: return "I32";
    case DType::kI16: return "I16";
    case DType::kI8: return "I8";
    case DType::kU8: return "U8";
    default: return {};
  }
}

Result<SafetensorsWriter> SafetensorsWriter::open(const std::string& path,
                                                  const std::vector<SafetensorsEntry>& entries,
                                                  const std::map<std::string, std::string>& metadata,
                                                  bool resume, std::string_view last) {
  // A reader maps tensors in place, so each should begin at a multiple of what its type needs. Gaps are not
  // allowed; the header is padded to 64 bytes and tensors go in falling order of the largest power of two (up
  // to 64) that divides their size, so each begins at a multiple of its own.
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& e : entries) order.push_back(&e);
  const auto alignment = [&](const SafetensorsEntry* e) {
    if (!last.empty() && e->name == last) return uint64_t{0};
    return e->bytes == 0 ? uint64_t{64} : std::min<uint64_t>(e->bytes & ~(e->bytes - 1), 64);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto* a, const auto* b) { return alignment(a) > alignment(b); });
  json::object header;
  if (!metadata.empty()) header["__metadata__"] = json::value_from(metadata);
  SafetensorsWriter out;
  uint64_t offset = 0;
  for (const SafetensorsEntry* e : order) {
    header[e->name] = {{"dtype", e->dtype},
                       {"shape", json::value_from(e->shape)},
                       {"data_offsets", {offset, offset + e->bytes}}};
    if (!out.places_.emplace(e->name, Place{offset, e->bytes}).second) {
      return invalid_argument(cat("tensor ", e->name, " would be written twice"));
    }
    offset += e->bytes;
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');
  const uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  for (auto& [name, place] : out.places_) place.offset += text.size();
  out.path_ = path;
  out.file_bytes_ = offset + text.size();

  if (!resume) {
    std::error_code ec;
    const auto folder = std::filesystem::path(path).parent_path();
    const auto space = std::filesystem::space(folder.empty() ? "." : folder, ec);
    if (!ec && space.available < out.file_bytes_) {
      return resource_exhausted(cat("writing ", path, " needs ", format_bytes(out.file_bytes_),
                                    ", the disk has ", format_bytes(space.available),
                                    " left; free space there or choose another folder"));
    }
  }
  out.fd_ = ::open(path.c_str(), (resume ? 0 : O_CREAT | O_TRUNC) | O_RDWR | O_CLOEXEC, 0644);
  if (out.fd_ < 0) return io_error("cannot open", path, errno);
  if (resume) {
    struct stat info = {};
    std::string there(text.size(), '\0');
    const bool whole = fstat(out.fd_, &info) == 0 && static_cast<uint64_t>(info.st_size) == out.file_bytes_ &&
                       pread(out.fd_, there.data(), there.size(), 0) == static_cast<ssize_t>(there.size());
    if (!whole || there != text) {
      return data_loss(cat(path, " was begun with other settings or another model; remove it to start over"));
    }
    return out;
  }
  if (const int error = write_at(out.fd_, text.data(), text.size(), 0)) {
    return io_error("cannot write", path, error);
  }
  // Reserves the space now, where the file system can: better to fail here than half-way.
  if (const int error = posix_fallocate(out.fd_, 0, static_cast<off_t>(out.file_bytes_));
      error != 0 && error != EINVAL && error != EOPNOTSUPP) {
    return io_error("cannot reserve space for", path, error);
  }
  if (ftruncate(out.fd_, static_cast<off_t>(out.file_bytes_)) != 0) {
    return io_error("cannot size", path, errno);
  }
  return out;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept { *this = std::move(other); }

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(places_, other.places_);
  std::swap(file_bytes_, other.file_bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
}

Status SafetensorsWriter::write(const std::string& name, const void* data, uint64_t size, uint64_t offset) {
  const auto it = places_.find(name);
  OAR_CHECK(it != places_.end() && offset <= it->second.bytes && size <= it->second.bytes - offset,
            "bytes outside the layout");
  if (const int error = write_at(fd_, data, size, it->second.offset + offset)) {
    return io_error("cannot write", path_, error);
  }
  return ok_status();
}

Status SafetensorsWriter::sync() {
  return fdatasync(fd_) == 0 ? ok_status() : io_error("cannot write", path_, errno);
}

Result<std::string> safetensors_dtype(const std::string& name, Format format) {
  const std::string out = format.plain() ? safetensors_dtype(format.dtype()) : "";
  if (!out.empty()) return out;
  return unimplemented(
      cat("'", name, "' is stored as ", format.name(), ", which a Hugging Face folder cannot hold"));
}

Result<Tensor> stored_as(const Tensor& t, Format format) {
  if (t.format() == format) return t;
  OAR_ASSIGN(Tensor out, Tensor::allocate(t.shape(), format));
  OAR_CHECK(format.info().encode != nullptr, "a plain format of floats can be written");
  if (t.numel() > 0) format.encode_row(static_cast<const float*>(t.data()), t.numel(), out.mutable_data());
  return out;
}

Status write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsTensor& w : tensors) {
    OAR_ASSIGN(const std::string dtype, safetensors_dtype(w.name, w.as));
    OAR_ASSIGN(const int64_t bytes, tensor_bytes(w.tensor.shape(), w.as));
    entries.push_back(
        {w.name, dtype, {w.tensor.shape().begin(), w.tensor.shape().end()}, static_cast<uint64_t>(bytes)});
  }
  OAR_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::open(path, entries, metadata, false));
  for (const SafetensorsTensor& w : tensors) {
    OAR_ASSIGN(const Tensor stored, stored_as(w.tensor, w.as));
    OAR_RETURN_IF_ERROR(writer.write(w.name, stored.data(), stored.bytes()));
    stored.buffer().release_pages();
  }
  return writer.sync();
}

}  // namespace oar
