#include "engine/loader/gguf.h"

#include <bit>
#include <cstring>

#include "engine/loader/byte_reader.h"
#include "engine/loader/ranges.h"

namespace oar {
namespace {

// Metadata and tensor directory together; the largest real ones (long vocabularies) have about 20 MB. Bounds
// the memory that copies of strings can take.
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxKeyBytes = 65535;   // the specification's limit
constexpr uint64_t kMaxKeys = 1 << 16;     // real files have fewer than 100
constexpr uint64_t kMaxTensors = 1 << 20;  // real files have fewer than 40 000 (one tensor per expert)
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxDims = 4;  // GGML_MAX_DIMS
constexpr int kMaxArrayNesting = 4;
constexpr uint64_t kMaxVocabulary = 1 << 22;  // real ones have fewer than 300 000 tokens

struct GgmlType {
  uint32_t id;
  const char* name;
  const char* format;  // ours; null when unsupported
};
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", "f32"},        {1, "F16", "f16"},       {2, "Q4_0", "q4_0"},      {3, "Q4_1", "q4_1"},
    {6, "Q5_0", "q5_0"},      {7, "Q5_1", "q5_1"},     {8, "Q8_0", "q8_0"},      {9, "Q8_1", nullptr},
    {10, "Q2_K", nullptr},    {11, "Q3_K", nullptr},   {12, "Q4_K", "q4_k"},     {13, "Q5_K", "q5_k"},
    {14, "Q6_K", "q6_k"},     {15, "Q8_K", nullptr},   {16, "IQ2_XXS", nullptr}, {17, "IQ2_XS", nullptr},
    {18, "IQ3_XXS", nullptr}, {19, "IQ1_S", nullptr},  {20, "IQ4_NL", nullptr},  {21, "IQ3_S", nullptr},
    {22, "IQ2_S", nullptr},   {23, "IQ4_XS", nullptr}, {24, "I8", "i8"},         {25, "I16", "i16"},
    {26, "I32", "i32"},       {27, "I64", "i64"},      {28, "F64", "f64"},       {29, "IQ1_M", nullptr},
    {30, "BF16", "bf16"},     {34, "TQ1_0", nullptr},  {35, "TQ2_0", nullptr},   {39, "MXFP4", nullptr},
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

// Bytes of a fixed-size type; 0 for strings and arrays.
uint64_t scalar_size(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    default: return 0;
  }
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

Status read_string(ByteReader& in, uint64_t max_size, std::string_view what, const std::string& file,
                   std::string_view& out) {
  uint64_t size = 0;
  OAR_RETURN_IF_ERROR(in.read(what, size));
  if (size > max_size) {
    return data_loss(cat(file, ": ", what, " before byte ", in.position(), " has ", size, " bytes; at most ",
                         max_size, " are accepted"));
  }
  std::span<const std::byte> bytes;
  OAR_RETURN_IF_ERROR(in.take(size, what, bytes));
  out = as_text(bytes);
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
    if (reinterpret_cast<uintptr_t>(t.data()) % static_cast<size_t>(t.format().info().alignment) == 0)
      continue;
    OAR_ASSIGN(Tensor aligned, Tensor::allocate(t.shape(), t.format()));
    if (t.bytes() > 0) memcpy(aligned.mutable_data(), t.data(), t.bytes());
    t = std::move(aligned);
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
                                          std::min(bytes.size(), kMaxHeaderBytes));
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

  std::vector<DirectoryEntry> entries(tensor_count);
  for (DirectoryEntry& e : entries) OAR_RETURN_IF_ERROR(read_entry(in, name, e));

  // Cannot overflow: the position is at most kMaxHeaderBytes, the alignment at most kMaxAlignment.
  const uint64_t start = (in.position() + file.alignment - 1) & ~(file.alignment - 1);
  const uint64_t clipped =
      std::min(start, bytes.size());  // a vocabulary-only file may end before its padding
  OAR_RETURN_IF_ERROR(place_tensors(entries, bytes.slice(clipped, bytes.size() - clipped), file));
  return file;
}

Result<GgufFile> open_gguf(const std::string& path, const LoadOptions& options, const Progress& progress) {
  OAR_ASSIGN(auto file, MappedFile::open(path, {.mmap = options.mmap, .progress = progress}));
  OAR_ASSIGN(GgufFile out, parse_gguf(file_slice(file, 0, file->size()), path));
  OAR_RETURN_IF_ERROR(file->still_whole());
  return out;
}

namespace {

template <class T>
T load(const std::byte* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}

// A scalar of any numeric type as a double; bools are not numbers.
std::optional<double> number_at(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kU8: return load<uint8_t>(p);
    case GgufType::kI8: return load<int8_t>(p);
    case GgufType::kU16: return load<uint16_t>(p);
    case GgufType::kI16: return load<int16_t>(p);
    case GgufType::kU32: return load<uint32_t>(p);
    case GgufType::kI32: return load<int32_t>(p);
    case GgufType::kF32: return static_cast<double>(load<float>(p));
    case GgufType::kU64: return static_cast<double>(load<uint64_t>(p));
    case GgufType::kI64: return static_cast<double>(load<int64_t>(p));
    case GgufType::kF64: return load<double>(p);
    default: return std::nullopt;
  }
}

std::optional<uint64_t> unsigned_at(GgufType type, const std::byte* p) {
  const auto not_negative = [](int64_t v) { return v < 0 ? std::nullopt : std::optional<uint64_t>(v); };
  switch (type) {
    case GgufType::kU8: return load<uint8_t>(p);
    case GgufType::kI8: return not_negative(load<int8_t>(p));
    case GgufType::kU16: return load<uint16_t>(p);
    case GgufType::kI16: return not_negative(load<int16_t>(p));
    case GgufType::kU32: return load<uint32_t>(p);
    case GgufType::kI32: return not_negative(load<int32_t>(p));
    case GgufType::kU64: return load<uint64_t>(p);
    case GgufType::kI64: return not_negative(load<int64_t>(p));
    default: return std::nullopt;
  }
}

Status wrong_type(const GgufFile& file, std::string_view key, const GgufValue& v, std::string_view wanted) {
  return invalid_argument(cat(file.name, ": metadata ", show_name(key), " must be ", wanted, ", not ",
                              v.type == GgufType::kArray ? cat("an array of ", gguf_type_name(v.element))
                                                         : std::string(gguf_type_name(v.type))));
}

Status too_long(const GgufFile& file, std::string_view key, uint64_t count, uint64_t max_count) {
  return data_loss(cat(file.name, ": metadata ", show_name(key), " has ", count, " elements; at most ",
                       max_count, " are accepted"));
}

}  // namespace

Result<std::optional<uint64_t>> GgufFile::get_uint(std::string_view key) const {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return std::optional<uint64_t>();
  const auto v = unsigned_at(at->second.type, at->second.bytes.data());
  if (!v) return wrong_type(*this, key, at->second, "an integer that is not negative");
  return v;
}

Result<std::optional<double>> GgufFile::get_float(std::string_view key) const {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return std::optional<double>();
  const auto v = number_at(at->second.type, at->second.bytes.data());
  if (!v) return wrong_type(*this, key, at->second, "a number");
  return v;
}

Result<std::optional<bool>> GgufFile::get_bool(std::string_view key) const {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return std::optional<bool>();
  if (at->second.type != GgufType::kBool) return wrong_type(*this, key, at->second, "a boolean");
  return std::optional<bool>(load<uint8_t>(at->second.bytes.data()) != 0);
}

Result<std::optional<std::string>> GgufFile::get_string(std::string_view key) const {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return std::optional<std::string>();
  if (at->second.type != GgufType::kString) return wrong_type(*this, key, at->second, "a string");
  return std::optional<std::string>(std::string(as_text(at->second.bytes)));
}

Result<std::vector<std::string>> GgufFile::get_strings(std::string_view key, uint64_t max_count) const {
  std::vector<std::string> out;
  const auto at = metadata.find(key);
  if (at == metadata.end()) return out;
  const GgufValue& v = at->second;
  if (v.type != GgufType::kArray || v.element != GgufType::kString)
    return wrong_type(*this, key, v, "an array of strings");
  if (v.count > max_count) return too_long(*this, key, v.count, max_count);
  out.reserve(v.count);
  ByteReader in(v.bytes, name);
  std::string_view s;
  for (uint64_t i = 0; i < v.count; ++i) {
    OAR_RETURN_IF_ERROR(read_string(in, UINT64_MAX, key, name, s));
    out.emplace_back(s);
  }
  return out;
}

Result<std::vector<double>> GgufFile::get_numbers(std::string_view key, uint64_t max_count) const {
  std::vector<double> out;
  const auto at = metadata.find(key);
  if (at == metadata.end()) return out;
  const GgufValue& v = at->second;
  const uint64_t size =
      v.type == GgufType::kArray && v.element != GgufType::kBool ? scalar_size(v.element) : 0;
  if (size == 0) return wrong_type(*this, key, v, "an array of numbers");
  if (v.count > max_count) return too_long(*this, key, v.count, max_count);
  out.reserve(v.count);
  for (uint64_t i = 0; i < v.count; ++i) out.push_back(*number_at(v.element, v.bytes.data() + i * size));
  return out;
}

Result<std::optional<GgufVocab>> gguf_vocab(const GgufFile& file) {
  OAR_ASSIGN(const auto model, file.get_string("tokenizer.ggml.model"));
  if (!model || !file.metadata.contains("tokenizer.ggml.tokens")) return std::optional<GgufVocab>();
  GgufVocab v;
  v.model = *model;
  const auto text = [&](std::string_view key, std::string& out) -> Status {
    OAR_ASSIGN(auto s, file.get_string(key));
    if (s) out = std::move(*s);
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(text("tokenizer.ggml.pre", v.pre));
  OAR_RETURN_IF_ERROR(text("tokenizer.chat_template", v.chat_template));
  OAR_ASSIGN(v.tokens, file.get_strings("tokenizer.ggml.tokens", kMaxVocabulary));
  OAR_ASSIGN(v.merges, file.get_strings("tokenizer.ggml.merges", kMaxVocabulary));

  OAR_ASSIGN(const std::vector<double> scores, file.get_numbers("tokenizer.ggml.scores", kMaxVocabulary));
  OAR_ASSIGN(const std::vector<double> types, file.get_numbers("tokenizer.ggml.token_type", kMaxVocabulary));
  for (const auto& [key, size] :
       {std::pair("tokenizer.ggml.scores", scores.size()), {"tokenizer.ggml.token_type", types.size()}}) {
    if (size != 0 && size != v.tokens.size()) {
      return data_loss(
          cat(file.name, ": ", key, " has ", size, " elements, tokenizer.ggml.tokens ", v.tokens.size()));
    }
  }
  v.scores.assign(scores.begin(), scores.end());
  v.types.reserve(types.size());
  for (double t : types) {  // numbers outside the enumeration are kept, those outside int32 mean nothing
    v.types.push_back(t >= INT32_MIN && t <= INT32_MAX ? static_cast<int32_t>(t) : 0);
  }

  const auto id = [&](std::string_view key, std::optional<uint32_t>& out) -> Status {
    // Writers store "none" as -1 in one width or another, so a negative or too large id is an absent one.
    const auto at = file.metadata.find(key);
    if (at == file.metadata.end()) return ok_status();
    if (!number_at(at->second.type, at->second.bytes.data()))
      return wrong_type(file, key, at->second, "a token id");
    const auto u = unsigned_at(at->second.type, at->second.bytes.data());
    if (u && *u < v.tokens.size()) out = static_cast<uint32_t>(*u);
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.bos_token_id", v.bos_id));
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.eos_token_id", v.eos_id));
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.eot_token_id", v.eot_id));
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.eom_token_id", v.eom_id));
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.unknown_token_id", v.unknown_id));
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.seperator_token_id", v.separator_id));  // the format's own spelling
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.padding_token_id", v.padding_id));
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.cls_token_id", v.cls_id));
  OAR_RETURN_IF_ERROR(id("tokenizer.ggml.mask_token_id", v.mask_id));

  OAR_ASSIGN(v.add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  OAR_ASSIGN(v.add_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  OAR_ASSIGN(v.add_space_prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
  OAR_ASSIGN(v.remove_extra_whitespaces, file.get_bool("tokenizer.ggml.remove_extra_whitespaces"));

  const auto charsmap = file.metadata.find("tokenizer.ggml.precompiled_charsmap");
  if (charsmap != file.metadata.end()) {
    if (charsmap->second.type != GgufType::kArray || scalar_size(charsmap->second.element) != 1) {
      return wrong_type(file, charsmap->first, charsmap->second, "an array of bytes");
    }
    v.precompiled_charsmap = as_text(charsmap->second.bytes);
  }
  return std::optional<GgufVocab>(std::move(v));
}

}  // namespace oar
