// GGUF v2 and v3: typed metadata, a tensor directory, then aligned tensor bytes.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
// Untrusted input: parsing only indexes the file. Metadata stays where it is and is decoded when asked for. A
// count in the file never becomes an allocation before the bytes behind it have been seen.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/gguf_vocab.h"
#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/loader/load_options.h"
#include "engine/tensor/tensor.h"

namespace oar {

// The file's own numbers.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
const char* gguf_type_name(GgufType type);

// One metadata value, in place.
struct GgufValue {
  GgufType type;
  GgufType element;                  // of an array
  uint64_t count = 0;                // of an array
  std::span<const std::byte> bytes;  // a scalar, a string without its length, or an array's elements
};

struct GgufFile {
  std::string name;  // for messages
  uint32_t version = 0;
  uint64_t alignment = 32;
  std::map<std::string, GgufValue, std::less<>> metadata;  // views of the bytes the file holds
  std::map<std::string, Tensor, std::less<>> tensors;      // shapes row-major, outermost first: [out, in]
  Buffer bytes;                                            // keeps the views alive
  uint64_t metadata_end = 0;                               // where in `bytes` the tensor directory begins

  // Lookups: nullopt when the key is absent, INVALID_ARGUMENT when its value has another type. Integers of
  // any width serve as unsigned when they are not negative, and as float; strings and arrays are copied.
  Result<std::optional<uint64_t>> get_uint(std::string_view key) const;
  Result<std::optional<double>> get_float(std::string_view key) const;
  Result<std::optional<bool>> get_bool(std::string_view key) const;
  Result<std::optional<std::string>> get_string(std::string_view key) const;
  // Arrays of at most `max_count` elements; a missing array is empty.
  Result<std::vector<std::string>> get_strings(std::string_view key, uint64_t max_count) const;
  Result<std::vector<double>> get_numbers(std::string_view key, uint64_t max_count) const;
};

// `file` holds the whole file; tensors share its owner (those not aligned for their format are copied).
// DATA_LOSS for a damaged file, UNIMPLEMENTED for versions and tensor types we do not have, each named.
Result<GgufFile> parse_gguf(const Buffer& file, const std::string& name);

// One file on disk, or all parts of a split model when any of them is named.
Result<GgufFile> open_gguf(const std::string& path, const LoadOptions& options = {},
                           const Progress& progress = {});

// The tokenizer in the metadata; nullopt when the file has none.
Result<std::optional<GgufVocab>> gguf_vocab(const GgufFile& file);

}  // namespace oar
