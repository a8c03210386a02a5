// Typed lookups in a GGUF file's metadata, and the tokenizer it carries.
#include <cstring>

#include "engine/loader/byte_reader.h"
#include "engine/loader/gguf.h"
#include "engine/loader/gguf_wire.h"

namespace oar {
namespace {

constexpr uint64_t kMaxVocabulary = 1 << 22;  // real ones have fewer than 300 000 tokens

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
  const uint64_t size = v.type == GgufType::kArray ? scalar_size(v.element) : 0;
  if (size == 0) return wrong_type(*this, key, v, "an array of numbers");
  if (v.count > max_count) return too_long(*this, key, v.count, max_count);
  out.reserve(v.count);
  for (uint64_t i = 0; i < v.count; ++i) {
    const std::byte* p = v.bytes.data() + i * size;
    out.push_back(v.element == GgufType::kBool ? load<uint8_t>(p) != 0 : *number_at(v.element, p));
  }
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
