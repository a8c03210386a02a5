#include "engine/import/paddle_program.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"

namespace oar::paddle {
namespace {

template <class List>
auto* find_named(List& list, std::string_view name) {
  for (auto& item : list) {
    if (item.name == name) return &item;
  }
  return static_cast<decltype(&list[0])>(nullptr);
}

struct DTypeWord {
  const char* word;
  int var_type;  // framework.proto's VarType.Type; -1: PIR only
  std::optional<DType> dtype;
};
constexpr DTypeWord kDTypes[] = {
    {"bool", 0, DType::kBool},
    {"int16", 1, DType::kI16},
    {"int32", 2, DType::kI32},
    {"int64", 3, DType::kI64},
    {"float16", 4, DType::kF16},
    {"float32", 5, DType::kF32},
    {"float64", 6, DType::kF64},
    {"uint8", 20, DType::kU8},
    {"int8", 21, DType::kI8},
    {"bfloat16", 22, DType::kBF16},
    {"complex64", 23, {}},
    {"complex128", 24, {}},
    {"uint16", -1, DType::kU16},
    {"uint32", -1, DType::kU32},
    {"uint64", -1, DType::kU64},
    {"float8_e4m3fn", 32, DType::kE4M3},
    {"float8_e5m2", 33, DType::kE5M2},
};

std::string text_of(std::monostate) { return "null"; }
std::string text_of(bool b) { return b ? "1" : "0"; }
std::string text_of(int64_t i) { return cat(i); }
std::string text_of(double d) { return cat(d); }
std::string text_of(const std::string& s) { return show_name(s); }
template <class T>
std::string text_of(const std::vector<T>& list) {
  constexpr size_t kMost = 32;
  std::string s = "[";
  for (size_t k = 0; k < std::min(list.size(), kMost); ++k) s += cat(k ? ", " : "", text_of(list[k]));
  return s + "]";
}

}  // namespace

std::string Attr::to_string() const {
  constexpr size_t kLongest = 80;
  const std::string s = std::visit([](const auto& v) { return text_of(v); }, data);
  return s.size() > kLongest ? cat(s.substr(0, kLongest), "...") : s;
}

const Attr* Op::attr(std::string_view name) const { return find_named(attrs, name); }
const Slot* Op::input(std::string_view name) const { return find_named(inputs, name); }
const Slot* Op::output(std::string_view name) const { return find_named(outputs, name); }

std::string Program::where(const Op& op) const {
  if (kind == Kind::kPir) return cat(file, ": op ", op.location, " (", show_name(op.type), ")");
  return cat(file, ": op ", show_name(op.type), " at byte ", op.location);
}

std::optional<DType> dtype_named(std::string_view word) {
  for (const DTypeWord& d : kDTypes) {
    if (word == d.word) return d.dtype;
  }
  return std::nullopt;
}

std::string_view dtype_word(int64_t var_type) {
  for (const DTypeWord& d : kDTypes) {
    if (d.var_type >= 0 && d.var_type == var_type) return d.word;
  }
  return {};
}

std::string_view word_of(DType dtype) {
  for (const DTypeWord& d : kDTypes) {
    if (d.dtype == dtype && d.var_type >= 0) return d.word;
  }
  return {};
}

int64_t var_type_of(std::string_view word) {
  for (const DTypeWord& d : kDTypes) {
    if (word == d.word) return d.var_type;
  }
  return -1;
}

bool is_program(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  // A ProgramDesc begins with field 1, 4 or 5.
  return bytes[first] == '{' || bytes[0] == 0x0a || bytes[0] == 0x22 || bytes[0] == 0x2a;
}

Result<Program> parse_program(std::string_view bytes, std::string_view file) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  // A ProgramDesc begins with field 1, 4 or 5 (0x0a, 0x22, 0x2a): 0x0a is a newline too, but no json follows
  // it directly with a brace where a length has to be.
  if (first != std::string_view::npos && bytes[first] == '{' &&
      bytes.substr(0, first + 4096).find("\"base_code\"") != std::string_view::npos)
    return parse_pir(bytes, file);
  if (first == 0 && bytes[0] == '{') return parse_pir(bytes, file);
  return parse_program_desc(bytes, file);
}

}  // namespace oar::paddle
