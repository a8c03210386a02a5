#include "engine/loader/safetensors.h"

#include <boost/json/basic_parser_impl.hpp>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/base/json.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/ranges.h"
#include "engine/tensor/model_file.h"

namespace oar {
namespace {

constexpr uint64_t kMaxJsonHeaderBytes = 100'000'000;    // the reference implementation's limit
constexpr uint64_t kMaxIndexBytes = uint64_t{32} << 20;  // the largest real ones have about 10 MB

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypeNames[] = {
    {"F64", DType::kF64},      {"F32", DType::kF32},      {"F16", DType::kF16},   {"BF16", DType::kBF16},
    {"F8_E4M3", DType::kE4M3}, {"F8_E5M2", DType::kE5M2}, {"I64", DType::kI64},   {"I32", DType::kI32},
    {"I16", DType::kI16},      {"I8", DType::kI8},        {"U64", DType::kU64},   {"U32", DType::kU32},
    {"U16", DType::kU16},      {"U8", DType::kU8},        {"BOOL", DType::kBool},
};

std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeName& d : kDTypeNames) {
    if (name == d.name) return d.dtype;
  }
  return std::nullopt;
}

std::string dtype_list() {
  std::string list;
  for (const DTypeName& d : kDTypeNames) list += list.empty() ? d.name : cat(", ", d.name);
  return list;
}

struct Entry {
  std::string dtype;
  std::optional<Shape> shape;
  std::optional<uint64_t> begin, end;
};

struct Header {
  std::map<std::string, Entry, std::less<>> entries;
  std::map<std::string, std::string, std::less<>> metadata;
};

// Receives the JSON events of a header and accepts exactly
//   {"name": {"dtype": s, "shape": [n...], "data_offsets": [n, n]}, ..., "__metadata__": {"key": s, ...}}
// Everything else ends the parse with a message in error().
class HeaderHandler {
 public:
  static constexpr size_t max_object_size = SIZE_MAX;
  static constexpr size_t max_array_size = SIZE_MAX;
  static constexpr size_t max_key_size = 65536;
  static constexpr size_t max_string_size = SIZE_MAX;
  using error_code = json::error_code;

  Header header;
  const std::string& error() const { return error_; }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }

  bool on_object_begin(error_code& ec) {
    switch (where_) {
      case kDocument: where_ = kTop; return true;
      case kTop: where_ = is_metadata_ ? kMetadata : kEntry; return true;
      default: return unexpected("an object", ec);
    }
  }
  bool on_object_end(size_t, error_code& ec) {
    if (where_ == kEntry) {
      where_ = kTop;
      if (entry_->dtype.empty() || !entry_->shape || !entry_->end) {
        return fail(cat("tensor ", show_name(name_), " must have dtype, shape and data_offsets"), ec);
      }
    } else {
      where_ = where_ == kMetadata ? kTop : kDocument;
    }
    return true;
  }

  bool on_array_begin(error_code& ec) {
    if (where_ == kEntry && field_ == "shape" && !entry_->shape) {
      where_ = kShape;
    } else if (where_ == kEntry && field_ == "data_offsets" && !entry_->begin) {
      where_ = kOffsets;
    } else {
      return unexpected("an array", ec);
    }
    numbers_.clear();
    return true;
  }
  bool on_array_end(size_t, error_code& ec) {
    if (where_ == kOffsets) {
      if (numbers_.size() != 2) {
        return fail(
            cat("tensor ", show_name(name_), ": data_offsets must be two numbers, not ", numbers_.size()),
            ec);
      }
      entry_->begin = numbers_[0];
      entry_->end = numbers_[1];
    } else {
      int64_t dims[Shape::kMaxRank];
      for (size_t i = 0; i < numbers_.size(); ++i) {
        if (numbers_[i] > INT64_MAX) {
          return fail(
              cat("tensor ", show_name(name_), ": size ", numbers_[i], " in shape does not fit in 63 bits"),
              ec);
        }
        dims[i] = static_cast<int64_t>(numbers_[i]);
      }
      entry_->shape = Shape(std::span<const int64_t>(dims, numbers_.size()));
    }
    where_ = kEntry;
    return true;
  }

  bool on_key_part(json::string_view s, size_t, error_code&) {
    return text_.append(s.data(), s.size()), true;
  }
  bool on_key(json::string_view s, size_t, error_code& ec) {
    text_.append(s.data(), s.size());
    std::string key = std::exchange(text_, {});
    if (where_ == kTop) {
      is_metadata_ = key == "__metadata__";
      if (is_metadata_) {
        if (std::exchange(seen_metadata_, true)) return fail("__metadata__ appears twice", ec);
        return true;
      }
      name_ = std::move(key);
      const auto [at, added] = header.entries.try_emplace(name_);
      if (!added) return fail(cat("tensor ", show_name(name_), " appears twice"), ec);
      entry_ = &at->second;
    } else {
      field_ = std::move(key);
    }
    return true;
  }

  bool on_string_part(json::string_view s, size_t, error_code&) {
    return text_.append(s.data(), s.size()), true;
  }
  bool on_string(json::string_view s, size_t, error_code& ec) {
    text_.append(s.data(), s.size());
    std::string value = std::exchange(text_, {});
    if (where_ == kMetadata) {
      if (!header.metadata.try_emplace(std::move(field_), std::move(value)).second) {
        return fail("a __metadata__ key appears twice", ec);
      }
      return true;
    }
    if (where_ == kEntry && field_ == "dtype" && entry_->dtype.empty()) {
      if (value.empty()) return fail(cat("tensor ", show_name(name_), ": dtype is empty"), ec);
      entry_->dtype = std::move(value);
      return true;
    }
    return unexpected("a string", ec);
  }

  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t i, json::string_view, error_code& ec) {
    if (i < 0 && (where_ == kShape || where_ == kOffsets)) {
      return fail(cat("tensor ", show_name(name_), ": ", show_name(field_), " holds ", i,
                      "; numbers must not be negative"),
                  ec);
    }
    return on_uint64(static_cast<uint64_t>(i), {}, ec);
  }
  bool on_uint64(uint64_t u, json::string_view, error_code& ec) {
    const size_t limit = where_ == kShape ? Shape::kMaxRank : where_ == kOffsets ? 2 : 0;
    if (limit == 0) return unexpected("a number", ec);
    if (numbers_.size() == limit) {
      return fail(
          cat("tensor ", show_name(name_), ": ", show_name(field_), " has more than ", limit, " numbers"),
          ec);
    }
    numbers_.push_back(u);
    return true;
  }
  bool on_double(double, json::string_view, error_code& ec) {
    return where_ == kShape || where_ == kOffsets
               ? fail(cat("tensor ", show_name(name_), ": ", show_name(field_),
                          " must hold integers below 2^64"),
                      ec)
               : unexpected("a number", ec);
  }
  bool on_bool(bool, error_code& ec) { return unexpected("a boolean", ec); }
  bool on_null(error_code& ec) { return unexpected("null", ec); }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  enum Where { kDocument, kTop, kEntry, kShape, kOffsets, kMetadata };

  bool fail(std::string message, error_code& ec) {
    error_ = std::move(message);
    ec = json::make_error_code(json::error::exception);  // any error stops the parser
    return false;
  }
  bool unexpected(std::string_view got, error_code& ec) {
    switch (where_) {
      case kDocument: return fail(cat("the header must be a JSON object, not ", got), ec);
      case kTop:
        return fail(cat(is_metadata_ ? "'__metadata__'" : show_name(name_), " must be an object, not ", got),
                    ec);
      case kMetadata:
        return fail(cat("__metadata__ ", show_name(field_), " must be a string, not ", got), ec);
      default:
        return fail(cat("tensor ", show_name(name_), ": ", show_name(field_), " cannot be ", got,
                        "; a tensor has one dtype (string), shape and data_offsets (arrays of integers)"),
                    ec);
    }
  }

  Where where_ = kDocument;
  bool is_metadata_ = false, seen_metadata_ = false;
  Entry* entry_ = nullptr;  // map nodes do not move
  std::string name_, field_, text_, error_;
  std::vector<uint64_t> numbers_;
};

Result<Header> parse_header(std::string_view text, const std::string& name) {
  json::basic_parser<HeaderHandler> parser{json::parse_options{}};
  json::error_code ec;
  const size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (!parser.handler().error().empty()) return data_loss(cat(name, ": ", parser.handler().error()));
  if (ec) return data_loss(cat(name, ": the header is not valid JSON near byte ", used, ": ", ec.message()));
  if (used < text.size()) return data_loss(cat(name, ": the header has extra characters after byte ", used));
  return std::move(parser.handler().header);
}

// The entry's bytes as a Tensor: dtype and shape must account for exactly the range.
Result<Tensor> make_tensor(const std::string& tensor, const Entry& e, const Buffer& data,
                           const std::string& file) {
  const auto dtype = dtype_named(e.dtype);
  if (!dtype) {
    return unimplemented(cat(file, ": tensor ", show_name(tensor), " has dtype ", show_name(e.dtype),
                             ", which is not supported; supported: ", dtype_list()));
  }
  if (*e.begin > *e.end || *e.end > data.size()) {
    return data_loss(cat(file, ": tensor ", show_name(tensor), ": data_offsets [", *e.begin, ", ", *e.end,
                         "] lie outside the ", data.size(),
                         " bytes of data; the file is truncated or damaged"));
  }
  const Format format = Format::of(*dtype);
  const auto need = tensor_bytes(*e.shape, format);
  if (!need.ok()) return data_loss(cat(file, ": tensor ", show_name(tensor), ": ", need.status().message()));
  if (static_cast<uint64_t>(*need) != *e.end - *e.begin) {
    return data_loss(cat(file, ": tensor ", show_name(tensor), ": data_offsets [", *e.begin, ", ", *e.end,
                         "] hold ", *e.end - *e.begin, " bytes, but ", e.dtype, " ", e.shape->to_string(),
                         " needs ", *need));
  }
  return Tensor::make(*e.shape, format, data.slice(*e.begin, *e.end - *e.begin));
}

// A weight_map value: the plain name of a file in the index's folder, so that an index cannot name anything
// else.
bool plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

Result<Safetensors> parse_safetensors(const Buffer& file, const std::string& name) {
  ByteReader in({static_cast<const std::byte*>(file.data()), file.size()}, name);
  uint64_t header_size = 0;
  OAR_RETURN_IF_ERROR(in.read("the header length", header_size));
  if (header_size > kMaxJsonHeaderBytes) {
    return data_loss(cat(name, ": the header length is ", header_size, " bytes; at most ",
                         kMaxJsonHeaderBytes, " are accepted. Is this a safetensors file?"));
  }
  std::span<const std::byte> header_bytes;
  OAR_RETURN_IF_ERROR(in.take(header_size, "the header", header_bytes));
  OAR_ASSIGN(Header header, parse_header(as_text(header_bytes), name));

  const Buffer data = file.slice(in.position(), in.remaining());
  Safetensors out;
  std::vector<NamedRange> ranges;
  ranges.reserve(header.entries.size());
  for (const auto& [tensor, entry] : header.entries) {
    OAR_ASSIGN(Tensor t, make_tensor(tensor, entry, data, name));
    ranges.push_back({*entry.begin, *entry.end, tensor});
    out.tensors.emplace(tensor, std::move(t));
  }
  OAR_RETURN_IF_ERROR(sort_and_check_overlap(ranges, name));
  // The format has no holes: bytes nobody names are damage, or something smuggled along.
  uint64_t covered = 0;
  for (const NamedRange& r : ranges) {
    if (r.begin != covered && r.begin != r.end) {
      return data_loss(cat(name, ": data bytes [", covered, ", ", r.begin, ") before tensor ",
                           show_name(r.name), " belong to no tensor"));
    }
    covered = std::max(covered, r.end);
  }
  if (covered != data.size()) {
    return data_loss(
        cat(name, ": the tensors end at data byte ", covered, ", but the file has ", data.size()));
  }
  // Only now copy what lies misaligned: no memory is spent on a file that turns out damaged.
  for (auto& [tensor, t] : out.tensors) { OAR_ASSIGN(t, aligned(std::move(t))); }
  out.metadata = std::move(header.metadata);
  return out;
}

Result<Safetensors> open_safetensors(const std::string& path, const LoadOptions& options,
                                     const Progress& progress) {
  OAR_ASSIGN(auto file, MappedFile::open(path, {.mmap = options.mmap, .progress = progress}));
  OAR_ASSIGN(Safetensors out, parse_safetensors(file_slice(file, 0, file->size()), path));
  OAR_RETURN_IF_ERROR(file->still_whole());
  return out;
}

Result<TensorMap> open_sharded_safetensors(const std::string& index_path, const LoadOptions& options,
                                           const Progress& progress) {
  namespace fs = std::filesystem;
  OAR_ASSIGN(const std::string text, read_small_file(index_path, kMaxIndexBytes));
  OAR_ASSIGN(const json::value index, parse_json(text, index_path));
  const json::value* map = index.is_object() ? index.get_object().if_contains("weight_map") : nullptr;
  if (!map || !map->is_object()) {
    return data_loss(cat(index_path, ": weight_map must be an object of tensor names to file names"));
  }
  std::map<std::string, std::vector<std::string>> shards;  // file name -> the tensors it must hold
  for (const auto& item : map->get_object()) {
    const std::string tensor(item.key());
    const json::string* file = item.value().if_string();
    if (!file || !plain_file_name(std::string_view(*file))) {
      return data_loss(cat(index_path, ": weight_map ", show_name(tensor),
                           " must name a file of the same folder, without any path",
                           file ? cat(", not ", show_name(std::string_view(*file))) : ""));
    }
    shards[std::string(*file)].push_back(tensor);
  }

  const fs::path folder = fs::path(index_path).parent_path();
  uint64_t total = 0, done = 0;
  for (const auto& [file, tensors] : shards) {
    std::error_code ec;
    const uint64_t size = fs::file_size(folder / file, ec);
    if (ec) {
      return not_found(cat(index_path, " lists the shard ", show_name(file),
                           ", which cannot be read: ", ec.message(), "; download it into the same folder"));
    }
    total += size;
  }
  TensorMap out;
  for (const auto& [file, tensors] : shards) {
    Progress step;
    uint64_t shard_size = 0;
    if (progress) {
      step = [&](std::string_view what, uint64_t read, uint64_t size) {
        shard_size = size;
        return progress(what, done + read, std::max(total, done + read));
      };
    }
    OAR_ASSIGN(const std::string real, file_of_model(index_path, file));
    OAR_ASSIGN(Safetensors shard, open_safetensors(real, options, step));
    done += shard_size;
    for (const std::string& tensor : tensors) {
      const auto at = shard.tensors.find(tensor);
      if (at == shard.tensors.end()) {
        return data_loss(cat(index_path, ": weight_map puts tensor ", show_name(tensor), " in ",
                             show_name(file), ", which does not have it"));
      }
      out.insert(shard.tensors.extract(at));
    }
  }
  return out;
}

}  // namespace oar
