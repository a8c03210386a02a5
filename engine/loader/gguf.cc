#include "engine/loader/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#include "engine/loader/byte_reader.h"
#include "engine/loader/gguf_wire.h"
#include "engine/loader/ranges.h"
#include "engine/tensor/model_file.h"

namespace oar {
namespace {

// Metadata and tensor directory together; the largest real ones (long vocabularies) have about 20 MB. Bounds
// the memory that copies of strings can take.
constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxKeyBytes = 65535;   // the specification's limit
constexpr uint64_t kMaxKeys = 1 << 16;     // real files have fewer than 100
constexpr uint64_t kMaxTensors = 1 << 20;  // real files have fewer than 40 000 (one tensor per expert)
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxDims = 4;  // GGML_MAX_DIMS
constexpr int kMaxArrayNesting = 4;

struct GgmlType {
  uint32_t id;
  const char* name;
  const char* format;  // ours; null when unsupported
};
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", "f32"},        {1, "F16", "f16"},          {2, "Q4_0", "q4_0"},
    {3, "Q4_1", "q4_1"},      {6, "Q5_0", "q5_0"},        {7, "Q5_1", "q5_1"},
    {8, "Q8_0", "q8_0"},      {9, "Q8_1", nullptr},       {10, "Q2_K", "q2_k"},
    {11, "Q3_K", "q3_k"},     {12, "Q4_K", "q4_k"},       {13, "Q5_K", "q5_k"},
    {14, "Q6_K", "q6_k"},     {15, "Q8_K", nullptr},      {16, "IQ2_XXS", "iq2_xxs"},
    {17, "IQ2_XS", "iq2_xs"}, {18, "IQ3_XXS", "iq3_xxs"}, {19, "IQ1_S", nullptr},
    {20, "IQ4_NL", "iq4_nl"}, {21, "IQ3_S", "iq3_s"},     {22, "IQ2_S", "iq2_s"},
    {23, "IQ4_XS", "iq4_xs"}, {24, "I8", "i8"},           {25, "I16", "i16"},
    {26, "I32", "i32"},       {27, "I64", "i64"},         {28, "F64", "f64"},
    {29, "IQ1_M", nullptr},   {30, "BF16", "bf16"},       {34, "TQ1_0", nullptr},
    {35, "TQ2_0", nullptr},   {39, "MXFP4", "mxfp4"},
};

Result<Format> format_of(uint32_t type, std::string_view tensor, const std::string& file) {
  const char* known = "unknown";
  std::string supported;
  for (const GgmlType& t : kGgmlTypes) {
    const auto format = t.format ? Format::find(t.format) : std::nullopt;
    if (t.id == type && format) return *format;
    if (t.id == type) known = t.name;
    if (format) supported += supported.empty() ? t.name : cat(", ", t.name);
  }
  return unimplemented(cat(file, ": tensor ", show_name(tensor), " has GGML type ", type, " (", known,
                           "), which is not supported; requantize the model to one of ", supported));
}

Status read_type(ByteReader& in, std::string_view what, const std::string& file, GgufType& out) {
  uint32_t type = 0;
  OAR_RETURN_IF_ERROR(in.read(what, type));
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return data_loss(
        cat(file, ": ", what, " before byte ", in.position(), " is ", type, ", which is no GGUF type"));
  }
  out = static_cast<GgufType>(type);
  return ok_status();
}

// Walks over `count` elements, checking them; arrays of arrays are legal, if rare.
Status skip_elements(ByteReader& in, GgufType element, uint64_t count, int depth, const std::string& file) {
  constexpr std::string_view kWhat = "a metadata array";
  if (const uint64_t size = scalar_size(element)) {
    OAR_RETURN_IF_ERROR(in.check_count(count, size, kWhat));
    std::span<const std::byte> bytes;
    return in.take(count * size, kWhat, bytes);
  }
  if (element == GgufType::kString) {
    OAR_RETURN_IF_ERROR(in.check_count(count, sizeof(uint64_t), kWhat));
    std::string_view s;
    for (uint64_t i = 0; i < count; ++i) OAR_RETURN_IF_ERROR(read_string(in, UINT64_MAX, kWhat, file, s));
    return ok_status();
  }
  if (depth == kMaxArrayNesting) {
    return data_loss(cat(file, ": a metadata array nests deeper than ", kMaxArrayNesting, " levels"));
  }
  OAR_RETURN_IF_ERROR(in.check_count(count, sizeof(uint32_t) + sizeof(uint64_t), kWhat));
  for (uint64_t i = 0; i < count; ++i) {
    GgufType inner;
    uint64_t inner_count = 0;
    OAR_RETURN_IF_ERROR(read_type(in, kWhat, file, inner));
    OAR_RETURN_IF_ERROR(in.read(kWhat, inner_count));
    OAR_RETURN_IF_ERROR(skip_elements(in, inner, inner_count, depth + 1, file));
  }
  return ok_status();
}

Status read_value(ByteReader& in, const std::string& what, const std::string& file,
                  std::span<const std::byte> header, GgufValue& out) {
  OAR_RETURN_IF_ERROR(read_type(in, what, file, out.type));
  if (const uint64_t size = scalar_size(out.type)) return in.take(size, what, out.bytes);
  if (out.type == GgufType::kString) {
    std::string_view s;
    OAR_RETURN_IF_ERROR(read_string(in, UINT64_MAX, what, file, s));
    out.bytes = std::as_bytes(std::span(s.data(), s.size()));
    return ok_status();
  }
  OAR_RETURN_IF_ERROR(read_type(in, what, file, out.element));
  OAR_RETURN_IF_ERROR(in.read(what, out.count));
  const uint64_t begin = in.position();
  OAR_RETURN_IF_ERROR(skip_elements(in, out.element, out.count, 1, file));
  out.bytes = header.subspan(begin, in.position() - begin);
  return ok_status();
}

struct DirectoryEntry {
  std::string_view name;
  Shape shape;
  Format format;
  uint64_t offset = 0;  // from the start of the data
};

Status read_entry(ByteReader& in, const std::string& file, DirectoryEntry& out) {
  OAR_RETURN_IF_ERROR(read_string(in, kMaxKeyBytes, "a tensor name", file, out.name));
  uint32_t rank = 0, type = 0;
  OAR_RETURN_IF_ERROR(in.read("a tensor's dimension count", rank));
  if (rank > kMaxDims) {
    return data_loss(cat(file, ": tensor ", show_name(out.name), " has ", rank,
                         " dimensions; GGUF has at most ", kMaxDims));
  }
  int64_t dims[kMaxDims];
  for (uint32_t i = 0; i < rank; ++i) {
    uint64_t size = 0;
    OAR_RETURN_IF_ERROR(in.read("a tensor's dimension", size));
    if (size > INT64_MAX) {
      return data_loss(
          cat(file, ": tensor ", show_name(out.name), ": dimension ", size, " does not fit in 63 bits"));
    }
    dims[rank - 1 - i] = static_cast<int64_t>(size);  // the file has the innermost first
  }
  out.shape = Shape(std::span<const int64_t>(dims, rank));
  OAR_RETURN_IF_ERROR(in.read("a tensor's type", type));
  OAR_RETURN_IF_ERROR(in.read("a tensor's offset", out.offset));
  OAR_ASSIGN(out.format, format_of(type, out.name, file));
  return ok_status();
}

Status read_magic(ByteReader& in, GgufFile& file) {
  uint32_t magic = 0;
  OAR_RETURN_IF_ERROR(in.read("the magic number", magic));
  if (magic != 0x46554747u)
    return invalid_argument(cat(file.name, " is not a GGUF file: it does not begin with \"GGUF\""));
  OAR_RETURN_IF_ERROR(in.read("the version", file.version));
  if (file.version != 0 && (file.version & 0xffffu) == 0) {
    return unimplemented(cat(file.name, " is a big-endian GGUF file; convert it to little-endian"));
  }
  if (file.version != 2 && file.version != 3) {
    return unimplemented(
        cat(file.name, " is GGUF version ", file.version, "; versions 2 and 3 are supported"));
  }
  return ok_status();
}

Status read_alignment(GgufFile& file) {
  OAR_ASSIGN(const auto alignment, file.get_uint("general.alignment"));
  if (!alignment) return ok_status();
  if (!std::has_single_bit(*alignment) || *alignment > kMaxAlignment) {
    return data_loss(cat(file.name, ": general.alignment is ", *alignment,
                         "; it must be a power of two, at most ", kMaxAlignment));
  }
  file.alignment = *alignment;
  return ok_status();
}

// Checks the directory against the data and makes the tensors.
Status place_tensors(const std::vector<DirectoryEntry>& entries, const Buffer& data, GgufFile& file) {
  std::vector<NamedRange> ranges;
  ranges.reserve(entries.size());
  for (const DirectoryEntry& e : entries) {
    const auto bytes = tensor_bytes(e.shape, e.format);
    if (!bytes.ok())
      return data_loss(cat(file.name, ": tensor ", show_name(e.name), ": ", bytes.status().message()));
    const uint64_t size = static_cast<uint64_t>(*bytes);
    if (e.offset % file.alignment != 0) {
      return data_loss(cat(file.name, ": tensor ", show_name(e.name), ": offset ", e.offset,
                           " is no multiple of the alignment ", file.alignment));
    }
    if (e.offset > data.size() || size > data.size() - e.offset) {
      return data_loss(cat(file.name, ": tensor ", show_name(e.name), ": ", size, " bytes at offset ",
                           e.offset, " lie outside the ", data.size(),
                           " bytes of data; the file is truncated or damaged"));
    }
    ranges.push_back({e.offset, e.offset + size, e.name});
    OAR_ASSIGN(Tensor t, Tensor::make(e.shape, e.format, data.slice(e.offset, size)));
    if (!file.tensors.emplace(e.name, std::move(t)).second) {
      return data_loss(cat(file.name, ": tensor ", show_name(e.name), " appears twice"));
    }
  }
  OAR_RETURN_IF_ERROR(sort_and_check_overlap(ranges, file.name));
  for (auto& [name, t] : file.tensors) {  // only with a small general.alignment, or a caller's odd buffer
    OAR_ASSIGN(t, aligned(std::move(t)));
  }
  return ok_status();
}

}  // namespace

const char* gguf_type_name(GgufType type) {
  constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                    "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

Result<GgufFile> parse_gguf(const Buffer& bytes, const std::string& name) {
  GgufFile file;
  file.name = name;
  file.bytes = bytes;
  const std::span<const std::byte> header(static_cast<const std::byte*>(bytes.data()),
                                          std::min(bytes.size(), kMaxGgufHeaderBytes));
  ByteReader in(header, name);
  OAR_RETURN_IF_ERROR(read_magic(in, file));
  uint64_t tensor_count = 0, key_count = 0;
  OAR_RETURN_IF_ERROR(in.read("the tensor count", tensor_count));
  OAR_RETURN_IF_ERROR(in.read("the metadata count", key_count));
  if (tensor_count > kMaxTensors || key_count > kMaxKeys) {
    return data_loss(cat(name, ": ", tensor_count, " tensors and ", key_count, " metadata keys; at most ",
                         kMaxTensors, " and ", kMaxKeys, " are accepted"));
  }
  // The least an entry can take: a length, a type and one byte; a length, a rank, a type and an offset.
  OAR_RETURN_IF_ERROR(in.check_count(key_count, 8 + 4 + 1, "the metadata count"));
  OAR_RETURN_IF_ERROR(in.check_count(tensor_count, 8 + 4 + 4 + 8, "the tensor count"));

  for (uint64_t i = 0; i < key_count; ++i) {
    std::string_view key;
    OAR_RETURN_IF_ERROR(read_string(in, kMaxKeyBytes, "a metadata key", name, key));
    GgufValue value{};
    OAR_RETURN_IF_ERROR(read_value(in, cat("metadata ", show_name(key)), name, header, value));
    if (!file.metadata.emplace(key, value).second) {
      return data_loss(cat(name, ": metadata ", show_name(key), " appears twice"));
    }
  }
  OAR_RETURN_IF_ERROR(read_alignment(file));
  file.metadata_end = in.position();

  std::vector<DirectoryEntry> entries(tensor_count);
  for (DirectoryEntry& e : entries) OAR_RETURN_IF_ERROR(read_entry(in, name, e));

  // Cannot overflow: the position is at most kMaxGgufHeaderBytes, the alignment at most kMaxAlignment.
  const uint64_t start = (in.position() + file.alignment - 1) & ~(file.alignment - 1);
  const uint64_t clipped =
      std::min(start, bytes.size());  // a vocabulary-only file may end before its padding
  OAR_RETURN_IF_ERROR(place_tensors(entries, bytes.slice(clipped, bytes.size() - clipped), file));
  return file;
}

namespace {

Result<GgufFile> open_one(const std::string& path, const LoadOptions& options, const Progress& progress) {
  OAR_ASSIGN(auto file, MappedFile::open(path, {.mmap = options.mmap, .progress = progress}));
  OAR_ASSIGN(GgufFile out, parse_gguf(file_slice(file, 0, file->size()), path));
  OAR_RETURN_IF_ERROR(file->still_whole());
  return out;
}

// "-00002-of-00005.gguf": how the parts of a split model are named, counted from one.
std::string split_suffix(uint64_t part, uint64_t parts) {
  const auto padded = [](uint64_t n) {
    const std::string digits = cat(n);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return cat("-", padded(part), "-of-", padded(parts), ".gguf");
}

bool named_as_part(std::string_view path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() < kPattern.size()) return false;
  path.remove_prefix(path.size() - kPattern.size());
  return std::equal(path.begin(), path.end(), kPattern.begin(),
                    [](char c, char p) { return p == '0' ? c >= '0' && c <= '9' : c == p; });
}

}  // namespace

Result<GgufFile> open_gguf(const std::string& path, const LoadOptions& options, const Progress& progress) {
  constexpr uint64_t kMaxParts = 4096;
  // How many parts there are is in the file: a part is looked at first, then all are opened under one
  // progress.
  const bool look = named_as_part(path);
  OAR_ASSIGN(GgufFile named, open_one(path, look ? LoadOptions{} : options, look ? Progress{} : progress));
  OAR_ASSIGN(const auto parts, named.get_uint("split.count"));
  if (!parts || *parts <= 1)
    return look ? open_one(path, options, progress) : Result<GgufFile>(std::move(named));
  OAR_ASSIGN(const auto own, named.get_uint("split.no"));
  const std::string suffix = split_suffix(own.value_or(0) + 1, *parts);
  if (*parts > kMaxParts || own.value_or(0) >= *parts || !path.ends_with(suffix)) {
    return invalid_argument(cat(path, " is part ", own.value_or(0) + 1, " of ", *parts,
                                " of a split model; its name must end with ", suffix));
  }
  // The first part has the metadata; the others only tensors.
  const std::string stem = path.substr(0, path.size() - suffix.size());
  uint64_t total = 0, done = 0;
  for (uint64_t part = 1; part <= *parts; ++part) {
    std::error_code ec;
    const std::string part_path = stem + split_suffix(part, *parts);
    const uint64_t size = std::filesystem::file_size(part_path, ec);
    if (ec) {
      return not_found(cat("part ", part, " of ", *parts, " cannot be read: ", part_path, ": ", ec.message(),
                           "; all parts must be in one folder"));
    }
    total += size;
  }
  GgufFile out;
  for (uint64_t part = 1; part <= *parts; ++part) {
    const std::string part_path = stem + split_suffix(part, *parts);
    Progress step;
    if (progress) {
      step = [&](std::string_view what, uint64_t read, uint64_t) {
        return progress(what, done + read, std::max(total, done + read));
      };
    }
    OAR_ASSIGN(const std::string real,
               file_of_model(path, std::filesystem::path(part_path).filename().string()));
    OAR_ASSIGN(GgufFile file, open_one(real, options, step));
    done += file.bytes.size();
    OAR_ASSIGN(const auto count, file.get_uint("split.count"));
    OAR_ASSIGN(const auto number, file.get_uint("split.no"));
    if (count != parts || number != std::optional<uint64_t>(part - 1)) {
      return data_loss(
          cat(part_path, " does not say that it is part ", part, " of ", *parts, " (split.no, split.count)"));
    }
    if (part == 1) {
      out = std::move(file);
      continue;
    }
    for (auto& [name, t] : file.tensors) {
      if (!out.tensors.emplace(name, t).second) {
        return data_loss(cat(part_path, ": tensor ", show_name(name), " is also in an earlier part"));
      }
    }
  }
  return out;
}

}  // namespace oar
