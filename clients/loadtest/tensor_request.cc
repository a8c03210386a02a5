#include "clients/loadtest/tensor_request.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "clients/loadtest/arrival.h"
#include "engine/base/format.h"
#include "engine/base/json.h"

namespace oar::loadtest {
namespace {

static_assert(std::endian::native == std::endian::little,
              "raw tensors are little-endian, and copied as they are");

constexpr int64_t kMostBytes = int64_t{1} << 30;

struct Kind {
  const char* name;
  int bytes;  // 0: BYTES
  enum { kFloat, kSigned, kUnsigned, kBool, kText } what;
};
constexpr Kind kKinds[] = {
    {"FP32", 4, Kind::kFloat},      {"FP64", 8, Kind::kFloat},      {"FP16", 2, Kind::kFloat},
    {"BF16", 2, Kind::kFloat},      {"INT8", 1, Kind::kSigned},     {"INT16", 2, Kind::kSigned},
    {"INT32", 4, Kind::kSigned},    {"INT64", 8, Kind::kSigned},    {"UINT8", 1, Kind::kUnsigned},
    {"UINT16", 2, Kind::kUnsigned}, {"UINT32", 4, Kind::kUnsigned}, {"UINT64", 8, Kind::kUnsigned},
    {"BOOL", 1, Kind::kBool},       {"BYTES", 0, Kind::kText}};

Result<Kind> find_kind(const std::string& datatype, const std::string& where) {
  std::string known;
  for (const Kind& k : kKinds) {
    if (datatype == k.name) return k;
    known += cat(known.empty() ? "" : ", ", k.name);
  }
  return invalid_argument(cat(where, ": there is no datatype '", datatype, "'; one of ", known), where);
}

Result<int64_t> count_elements(const std::vector<int64_t>& shape, int bytes, const std::string& where) {
  int64_t n = 1;
  for (const int64_t d : shape) {
    if (d < 0)
      return invalid_argument(cat(where, ": an extent is ", d, "; a request has none that is open"), where);
    if (__builtin_mul_overflow(n, d, &n) || n > kMostBytes / std::max(1, bytes))
      return invalid_argument(cat(where, ": the tensor has more than 1 GiB"), where);
  }
  return n;
}

template <class T>
void append(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}

// To half precision, to nearest even; what is too large becomes infinity.
uint16_t half_of(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float a = std::fabs(f);
  if (!(a < 65520.0f)) return sign | (std::isnan(f) ? 0x7e00 : 0x7c00);
  if (a < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(a * 0x1p24f));
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

uint16_t bfloat_of(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if (std::isnan(f)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void append_float(std::string& out, const Kind& kind, double v) {
  const std::string_view name = kind.name;
  if (name == "FP64") append(out, v);
  else if (name == "FP32") append(out, static_cast<float>(v));
  else append(out, name == "FP16" ? half_of(static_cast<float>(v)) : bfloat_of(static_cast<float>(v)));
}

void append_bits(std::string& out, const Kind& kind, uint64_t bits) {
  out.append(reinterpret_cast<const char*>(&bits), static_cast<size_t>(kind.bytes));
}

void append_text(std::string& out, std::string_view text) {
  append(out, static_cast<uint32_t>(text.size()));
  out += text;
}

bool in_range(const Kind& kind, const json::value& v, uint64_t& bits) {
  const int width = kind.bytes * 8;
  if (kind.what == Kind::kBool) {
    if (const bool* b = v.if_bool()) return bits = *b, true;
    const int64_t* i = v.if_int64();
    return i != nullptr && (*i == 0 || *i == 1) ? (bits = static_cast<uint64_t>(*i), true) : false;
  }
  if (const uint64_t* u = v.if_uint64()) return bits = *u, kind.what == Kind::kUnsigned && width == 64;
  const int64_t* i = v.if_int64();
  if (i == nullptr) return false;
  bits = static_cast<uint64_t>(*i);
  if (kind.what == Kind::kUnsigned) return *i >= 0 && (width == 64 || *i >> width == 0);
  return width == 64 || (*i >= -(int64_t{1} << (width - 1)) && *i < int64_t{1} << (width - 1));
}

// Flat or nested: what counts is the order.
Status append_data(InputTensor& t, const Kind& kind, const json::value& v, int64_t& count, int depth) {
  const std::string where = cat("inputs.", t.name, ".data");
  if (const json::array* a = v.if_array()) {
    if (depth > 16) return invalid_argument(cat(where, ": nested deeper than 16"), where);
    for (const json::value& e : *a) OAR_RETURN_IF_ERROR(append_data(t, kind, e, count, depth + 1));
    return ok_status();
  }
  ++count;
  if (kind.what == Kind::kText) {
    if (!v.is_string()) return invalid_argument(cat(where, ": BYTES are strings"), where);
    append_text(t.raw, v.get_string());
  } else if (kind.what == Kind::kFloat) {
    if (!v.is_number()) return invalid_argument(cat(where, ": ", kind.name, " are numbers"), where);
    append_float(t.raw, kind, v.to_number<double>());
  } else {
    uint64_t bits = 0;
    if (!in_range(kind, v, bits))
      return invalid_argument(cat(where, ": ", json::serialize(v), " is no ", kind.name), where);
    append_bits(t.raw, kind, bits);
  }
  return ok_status();
}

Result<InputTensor> parse_input(const json::value& v) {
  const json::object* o = v.if_object();
  if (o == nullptr) return invalid_argument("inputs: each must be an object", "inputs");
  InputTensor t;
  for (const auto& [field, into] : {std::pair{"name", &t.name}, std::pair{"datatype", &t.datatype}}) {
    const json::value* s = o->if_contains(field);
    if (s == nullptr || !s->is_string())
      return invalid_argument(cat("inputs.", field, ": must be a string"), field);
    *into = std::string(s->get_string());
  }
  const std::string where = cat("inputs.", t.name);
  OAR_ASSIGN(const Kind kind, find_kind(t.datatype, where + ".datatype"));
  const json::value* shape = o->if_contains("shape");
  if (shape == nullptr || !shape->is_array())
    return invalid_argument(cat(where, ".shape: must be an array"), "shape");
  for (const json::value& d : shape->get_array()) {
    if (!d.is_int64()) return invalid_argument(cat(where, ".shape: must hold integers"), "shape");
    t.shape.push_back(d.get_int64());
  }
  OAR_ASSIGN(const int64_t expected, count_elements(t.shape, kind.bytes, where + ".shape"));
  const json::value* data = o->if_contains("data");
  if (data == nullptr || !data->is_array())
    return invalid_argument(cat(where, ".data: must be an array"), "data");
  int64_t count = 0;
  OAR_RETURN_IF_ERROR(append_data(t, kind, *data, count, 0));
  if (count != expected)
    return invalid_argument(cat(where, ".data: holds ", count, " elements, the shape wants ", expected),
                            "data");
  return t;
}

}  // namespace

Result<InputTensor> parse_tensor_option(const std::string& text, uint64_t seed) {
  const auto wrong = [&](const std::string& what) {
    return invalid_argument(cat("tensor: '", text, "' ", what, "; write name:FP32:1,3,224,224"), "tensor");
  };
  const size_t last = text.rfind(':');
  const size_t first = last == std::string::npos || last == 0 ? last : text.rfind(':', last - 1);
  if (first == std::string::npos || last == 0 || first == 0) return wrong("has not three parts");
  InputTensor t;
  t.name = text.substr(0, first);
  t.datatype = text.substr(first + 1, last - first - 1);
  OAR_ASSIGN(const Kind kind, find_kind(t.datatype, "tensor"));
  std::string_view dims = std::string_view(text).substr(last + 1);
  while (!dims.empty()) {
    int64_t d = 0;
    const auto [end, ec] = std::from_chars(dims.data(), dims.data() + dims.size(), d);
    if (ec != std::errc() || d < 0) return wrong("has a bad shape");
    t.shape.push_back(d);
    dims.remove_prefix(static_cast<size_t>(end - dims.data()));
    if (dims.empty()) break;
    if (dims.front() != ',' || dims.size() == 1) return wrong("has a bad shape");
    dims.remove_prefix(1);
  }
  OAR_ASSIGN(const int64_t count, count_elements(t.shape, kind.bytes, "tensor"));
  uint64_t state = seed ^ 0x74656e736f72u;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t r = next_random(state);
    switch (kind.what) {
      case Kind::kFloat: append_float(t.raw, kind, static_cast<double>(r >> 11) * 0x1p-53); break;
      case Kind::kBool: append_bits(t.raw, kind, r & 1); break;
      case Kind::kText: append_text(t.raw, cat("text ", r % 1000)); break;
      default: append_bits(t.raw, kind, r % 100); break;  // small: often indices
    }
  }
  return t;
}

Result<std::vector<InputTensor>> parse_tensor_body(std::string_view text) {
  OAR_ASSIGN(const json::value v, parse_json(text, "--body"));
  const json::object* o = v.if_object();
  const json::value* inputs = o == nullptr ? nullptr : o->if_contains("inputs");
  if (inputs == nullptr || !inputs->is_array() || inputs->get_array().empty())
    return invalid_argument("inputs: the body must hold an array of tensors", "inputs");
  std::vector<InputTensor> out;
  for (const json::value& i : inputs->get_array()) {
    OAR_ASSIGN(InputTensor t, parse_input(i));
    out.push_back(std::move(t));
  }
  return out;
}

BinaryBody binary_body(const std::vector<InputTensor>& inputs) {
  json::array list;
  for (const InputTensor& t : inputs)
    list.push_back({{"name", t.name},
                    {"datatype", t.datatype},
                    {"shape", json::array(t.shape.begin(), t.shape.end())},
                    {"parameters", {{"binary_data_size", t.raw.size()}}}});
  BinaryBody out;
  out.body = json::serialize(
      json::object{{"inputs", std::move(list)}, {"parameters", {{"binary_data_output", true}}}});
  out.header_length = out.body.size();
  for (const InputTensor& t : inputs) out.body += t.raw;
  return out;
}

}  // namespace oar::loadtest
